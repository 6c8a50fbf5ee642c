"""Leaves, packing and opened pieces against the plain concatenation of the documents."""

import hashlib
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import corpus as protocol_corpus
from protocol.corpus import (
    PIECE,
    Document,
    Documents,
    Packing,
    assemble,
    check_piece,
    describe,
    iterate_pieces,
    parse_leaves,
    piece_count,
)
from protocol.errors import ProtocolError, UsageError, VerificationError
from witness.data.corpus import commit
from witness.data.memory import MemoryCorpus

# Lengths around what could go wrong: nothing, one byte, and one byte to each side of a piece boundary.
EDGES = [0, 1, 2, 7, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1, 5 * PIECE]
lengths = st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, 40)), min_size=1, max_size=8)
windows = st.builds(
    lambda length, stride: Packing("windows", length=length, stride=stride),
    st.one_of(st.integers(1, 50), st.sampled_from([PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])),
    st.one_of(st.integers(1, 50), st.sampled_from([PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])),
)


def texts(sizes):
    """Documents in which every place can be told from every other one near it."""
    stream = hashlib.shake_256(b"documents").digest(sum(sizes))
    found, at = [], 0
    for size in sizes:
        found.append(stream[at : at + size])
        at += size
    return found


def naive_root(leaves):
    """MTH of RFC 9162 2.1.1, as the definition is written."""
    if len(leaves) <= 1:
        return leaves[0] if leaves else hashlib.sha256(b"").digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + naive_root(leaves[:k]) + naive_root(leaves[k:])).digest()


def naive_leaf(index, start, data):
    """The 96 bytes of a leaf, from the module's docstrings alone."""
    cut = [data[at : at + 4096] for at in range(0, len(data), 4096)] or [b""]
    pieces = naive_root([hashlib.sha256(b"\x00TW1D" + piece).digest() for piece in cut])
    numbers = struct.pack(">QQ", index, len(data)), struct.pack(">QQ", start, len(data))
    return numbers[0] + hashlib.sha256(data).digest() + pieces + numbers[1]


def naive_samples(stream, length, stride):
    found, at = [], 0
    while at + length <= len(stream):
        found.append(stream[at : at + length])
        at += stride
    return found


@given(lengths, windows)
def test_windows_are_those_of_the_concatenation(sizes, packing):
    documents = texts(sizes)
    corpus = MemoryCorpus(documents, packing)
    expected = naive_samples(b"".join(documents), packing.length, packing.stride)
    assert corpus.documents.samples == len(expected)
    picked = sorted({0, 1, len(expected) // 2, len(expected) - 1} & set(range(len(expected))))
    assert corpus.samples(picked) == [expected[i] for i in picked]
    for sample in picked:
        spans = corpus.documents.spans(sample)
        assert all(start < stop for _, start, stop in spans)  # no empty document takes part
    for beyond in (-1, len(expected)):
        with pytest.raises(UsageError) as caught:
            corpus.sample(beyond)
        assert caught.value.code == "schedule"


@given(lengths)
def test_documents_are_samples_one_by_one(sizes):
    documents = texts(sizes)
    corpus = MemoryCorpus(documents, Packing("documents"))
    assert corpus.documents.samples == len(documents)
    assert corpus.samples(range(len(documents))) == documents


@given(lengths, st.one_of(windows, st.just(Packing("documents"))), st.data())
def test_a_verifier_assembles_the_samples_from_opened_pieces(sizes, packing, data):
    corpus = MemoryCorpus(texts(sizes), packing)
    count = corpus.documents.samples
    drawn = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4)) if count else []
    needed = corpus.documents.pieces_of(drawn)
    # The verifier has the leaves and what it is sent; nothing else.
    public = Documents(parse_leaves(b"".join(leaf.to_bytes() for leaf in corpus.documents.leaves)), packing)
    public.check(corpus.claim())
    opened = {}
    for document, piece in needed:
        content, proof = corpus.piece(document, piece)
        check_piece(public.leaves[document], piece, content, proof)
        opened[document, piece] = content
    for sample in drawn:
        assert assemble(public, opened, sample) == corpus.sample(sample)
    touched = {
        (d, p) for s in drawn for d, a, b in public.spans(s) for p in range(a // PIECE, max(a, b - 1) // PIECE + 1)
    }
    assert set(needed) == touched


@given(lengths, st.data())
def test_leaves_do_not_depend_on_how_the_bytes_arrive(sizes, data):
    documents = texts(sizes)
    streams = []
    for text in documents:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        bounds = [0, *cuts, len(text)]
        streams.append([text[a:b] for a, b in pairwise(bounds)])
    committed = commit(streams, Packing("documents"))
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    expected = [naive_leaf(i, start, text) for i, (start, text) in enumerate(zip(starts, documents, strict=True))]
    assert [leaf.to_bytes() for leaf in committed.leaves] == expected
    assert committed.root == naive_root([hashlib.sha256(b"\x00TW1C" + leaf).digest() for leaf in expected])
    assert committed.tokens == sum(sizes)


@given(st.sampled_from([size for size in EDGES if size]), st.data())
def test_no_other_piece_passes_for_the_committed_one(size, data):
    (text,) = texts([size])
    corpus = MemoryCorpus([text], Packing("documents"))
    leaf = corpus.documents.leaves[0]
    piece = data.draw(st.integers(0, piece_count(leaf) - 1))
    content, proof = corpus.piece(0, piece)
    at = data.draw(st.integers(0, len(content) - 1))
    flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
    attempts = [(piece, flipped, proof), (piece, content[:-1], proof), (piece, content + b"\0", proof)]
    attempts += [(other, content, proof) for other in range(piece_count(leaf)) if other != piece]
    attempts += [(piece, content, [*proof, bytes(32)])] + ([(piece, content, proof[:-1])] if proof else [])
    for number, claimed, path in attempts:
        with pytest.raises(VerificationError) as caught:
            check_piece(leaf, number, claimed, path)
        assert caught.value.code == "record-bytes"


@given(lengths, st.data())
def test_leaves_that_do_not_continue_each_other_are_refused(sizes, data):
    leaves = list(commit([[text] for text in texts(sizes)], Packing("documents")).leaves)
    at = data.draw(st.integers(0, len(leaves) - 1))
    field = data.draw(st.sampled_from(["index", "token_start", "token_length", "length"]))
    leaves[at] = leaves[at]._replace(**{field: getattr(leaves[at], field) + 1})
    with pytest.raises(ProtocolError) as caught:
        Documents(leaves, Packing("documents"))
    assert caught.value.code == "corpus-leaves"


@given(lengths, st.data())
def test_any_bit_of_any_leaf_moves_the_root(sizes, data):
    committed = commit([[text] for text in texts(sizes)], Packing("documents"))
    raw = bytearray(b"".join(leaf.to_bytes() for leaf in committed.leaves))
    at = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[at // 8] ^= 1 << at % 8
    try:
        Documents(parse_leaves(bytes(raw)), Packing("documents")).check(committed.claim())
    except ProtocolError as error:
        assert error.code == "corpus-leaves"
    except VerificationError as error:
        assert error.code == "corpus-root"
    else:
        pytest.fail(f"bit {at} is bound by nothing")


def test_a_list_of_leaves_that_is_cut_short_is_refused():
    raw = b"".join(leaf.to_bytes() for leaf in commit([[b"one"], [b"two"]], Packing("documents")).leaves)
    with pytest.raises(ProtocolError) as caught:
        parse_leaves(raw[:-1])
    assert caught.value.code == "corpus-leaves"


@given(st.integers(0, 3), st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=4))
def test_the_records_digest_names_step_samples_and_their_order(step, left, right):
    documents = MemoryCorpus(texts([5, 0, 9, 30]), Packing("windows", length=10, stride=6)).documents
    assert documents.samples == 6
    same = documents.records_digest(step, left) == documents.records_digest(step, right)
    assert same == (left == right)
    assert documents.records_digest(step, left) != documents.records_digest(step + 1, left)


def test_the_records_digest_by_hand():
    documents = MemoryCorpus([b"abc", b"", b"defgh"], Packing("windows", length=4, stride=2)).documents

    def part(data):
        return struct.pack(">Q", len(data)) + data

    # Sample 1 is "cdef": byte 2 of the first document, bytes 0 to 3 of the third.
    leaves = [hashlib.sha256(b"\x00TW1C" + leaf.to_bytes()).digest() for leaf in documents.leaves]
    spans = leaves[0] + struct.pack(">QQ", 2, 3) + leaves[2] + struct.pack(">QQ", 0, 3)
    preimage = part(b"training-witness/v1/records") + part(struct.pack(">Q", 9)) + part(struct.pack(">Q", 1) + spans)
    assert documents.records_digest(9, [1]) == hashlib.sha256(preimage).digest()


def test_leaves_that_claim_an_impossible_length_cost_no_memory(monkeypatch):
    huge = describe(0, 0, [b"x"])._replace(length=1 << 62, token_length=1 << 62)
    documents = Documents([huge], Packing("documents"))
    with pytest.raises(ProtocolError) as caught:
        documents.pieces_of([0])
    assert caught.value.code == "too-large"
    monkeypatch.setattr(protocol_corpus, "MAX_OPENED", 10)
    sizes = [6 * PIECE, 4 * PIECE, 1]
    leaves = [Document(i, size, bytes(32), bytes(32), sum(sizes[:i]), size) for i, size in enumerate(sizes)]
    documents = Documents(leaves, Packing("documents"))
    assert len(documents.pieces_of([0, 1])) == 10
    with pytest.raises(ProtocolError):
        documents.pieces_of([0, 1, 2])


@pytest.mark.parametrize(
    ("kind", "length", "stride"),
    [
        ("windows", 0, 1),
        ("windows", 1, 0),
        ("windows", 0, 0),
        ("windows", -1, 1),
        ("documents", 1, 1),
        ("documents", 1, 0),
        ("documents", 0, 1),
    ],
)
def test_packing_has_one_spelling_and_advances(kind, length, stride):
    with pytest.raises(ProtocolError) as caught:
        Packing(kind, length=length, stride=stride)
    assert caught.value.code == "not-canonical"


def test_pieces_in_memory_are_those_of_the_leaf():
    for size in EDGES:
        (text,) = texts([size])
        leaf = describe(0, 0, [text])
        pieces = list(iterate_pieces(text))
        assert len(pieces) == piece_count(leaf)
        assert b"".join(pieces) == text
