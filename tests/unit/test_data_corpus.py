"""What every corpus does, whatever its bytes lie in: open pieces, check itself, refuse what is no data."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from protocol.corpus import PIECE, Packing, check_piece, piece_count
from protocol.errors import UsageError, VerificationError
from witness.data import Corpus, corpus, open_corpus
from witness.data.embedded import CONTEXT, STRIDE, embedded_rows, embedded_text

DOCUMENTS = Packing("documents")
WINDOWS = Packing("windows", length=8, stride=4)


def noise(length, label=b"noise"):
    return hashlib.shake_256(label).digest(length)


class Tampered(Corpus):
    """A corpus whose bytes can be changed after the commitment."""

    def __init__(self, *texts):
        self.texts = [bytearray(text) for text in texts]
        self.reads = 0
        super().__init__(corpus.commit([[text] for text in texts], DOCUMENTS), "tampered")

    def read(self, document, start, stop):
        self.reads += 1
        return bytes(self.texts[document][start:stop])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([b"one", "zw\u00f6lf", b""], [b"one", b"zw\xc3\xb6lf", b""]),
        ((b"one",), [b"one"]),
        (np.array([[1, 2], [3, 4]], dtype=np.uint8), [b"\x01\x02", b"\x03\x04"]),
        (np.array([[1, 2], [3, 4]], dtype=">u2"), [b"\x01\x00\x02\x00", b"\x03\x00\x04\x00"]),
        (np.asfortranarray(np.array([[1, 2], [3, 4]], dtype=np.uint8)), [b"\x01\x02", b"\x03\x04"]),
        (np.arange(16, dtype=np.uint8).reshape(2, 4, 2)[:, ::2], [bytes([0, 1, 4, 5]), bytes([8, 9, 12, 13])]),
        (np.array([True, False, True]), [b"\x01\x00\x01"]),
        (np.array([[1.0], [-2.0]], dtype="<f4"), [b"\x00\x00\x80\x3f", b"\x00\x00\x00\xc0"]),
    ],
)
def test_data_in_memory_becomes_documents(data, expected):
    found = open_corpus(data, DOCUMENTS)
    assert found.samples(range(len(expected))) == expected
    assert found.documents.samples == len(expected)
    assert found.claim().tokens == sum(map(len, expected))
    found.check()


def test_an_array_changed_after_the_commitment_changes_nothing():
    array = np.zeros((3, 4), dtype=np.uint8)
    found = open_corpus(array, DOCUMENTS)
    array[:] = 7
    assert found.sample(1) == bytes(4)
    found.check()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"bytes themselves", "a bytes is no corpus"),
        (7, "a int is no corpus"),
        (None, "a NoneType is no corpus"),
        ({"a": b"b"}, "a dict is no corpus"),
        ([b"fine", 7], "document 1 of the list is a int"),
        ([["nested"]], "document 0 of the list is a list"),
        (["\ud800"], "document 0 is not text that UTF-8 can hold"),
        (np.array(7), "without dimensions"),
        (np.array([object()]), "dtype object"),
        (np.array([(1, 2)], dtype=[("a", "u1"), ("b", "u4")]), "not plain numbers"),
        (np.array(["text"]), "not plain numbers"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "not plain numbers"),
    ],
)
def test_what_is_no_corpus_is_refused_by_name(data, says):
    with pytest.raises(UsageError, match=says) as caught:
        open_corpus(data, DOCUMENTS)
    assert caught.value.code == "corpus-data"
    assert "list of bytes" in str(caught.value) or caught.value.next_action


@pytest.mark.parametrize(
    ("data", "packing", "evidence"),
    [
        ([], DOCUMENTS, {"documents": 0, "tokens": 0}),
        ([b""], DOCUMENTS, {"documents": 1, "tokens": 0}),
        ([b"", b""], WINDOWS, {"documents": 2, "tokens": 0, "window": 8}),
        ([b"abc", b"defg"], WINDOWS, {"documents": 2, "tokens": 7, "window": 8}),
        (np.zeros((0, 4)), DOCUMENTS, {"documents": 0, "tokens": 0}),
        (np.zeros((4, 0)), DOCUMENTS, {"documents": 4, "tokens": 0}),
    ],
)
def test_a_corpus_without_a_sample_says_what_it_holds(data, packing, evidence):
    with pytest.raises(UsageError) as caught:
        open_corpus(data, packing)
    assert caught.value.code == "empty-corpus"
    assert caught.value.evidence == evidence
    assert all(str(number) in str(caught.value) for number in evidence.values())


def test_one_window_is_enough():
    assert open_corpus([b"abcd", b"efgh"], WINDOWS).samples([0]) == [b"abcdefgh"]


def test_a_corpus_is_taken_as_it_is_or_cut_anew():
    first = open_corpus([b"abcdefgh", b"ijkl"], WINDOWS)
    assert open_corpus(first, WINDOWS) is first
    again = open_corpus(first, DOCUMENTS)
    assert again.samples([0, 1]) == [b"abcdefgh", b"ijkl"]
    assert first.samples([0, 1]) == [b"abcdefgh", b"efghijkl"]
    assert first.claim().packing == WINDOWS
    assert again.claim().root == first.claim().root


def test_every_piece_opens_with_a_proof():
    texts = [b"", noise(1), noise(PIECE), noise(3 * PIECE + 5), noise(300 * PIECE + 1)]
    found = open_corpus(texts, DOCUMENTS)
    for leaf, text in zip(found.documents.leaves, texts, strict=True):
        for piece in range(piece_count(leaf)):
            content, proof = found.piece(leaf.index, piece)
            assert content == text[piece * PIECE : (piece + 1) * PIECE]
            check_piece(leaf, piece, content, proof)


@pytest.mark.parametrize(("document", "piece"), [(0, 3), (0, -1), (0, 1 << 60), (1, 1), (2, 0), (-1, 0)])
def test_there_are_no_other_pieces(document, piece):
    found = Tampered(noise(3 * PIECE), b"")
    with pytest.raises(UsageError) as caught:
        found.piece(document, piece)
    assert caught.value.code == "no-such-leaf"
    assert found.reads == 0  # a stranger's impossible question costs no reading


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 6), (6, 6)])
def test_there_are_no_bytes_outside_a_document(start, stop):
    with pytest.raises(UsageError) as caught:
        open_corpus([b"abcde"], DOCUMENTS).read(0, start, stop)
    assert caught.value.code == "no-such-leaf"


@pytest.mark.parametrize("length", [5, PIECE, 2 * PIECE + 1])
def test_a_changed_byte_is_never_opened(length):
    found = Tampered(noise(length), b"other")
    found.texts[0][length - 1] ^= 1
    for attempt in (lambda: found.piece(0, piece_count(found.documents.leaves[0]) - 1), found.check):
        with pytest.raises(VerificationError) as caught:
            attempt()
        assert caught.value.code == "corpus-changed"
        assert caught.value.evidence["document"] == 0
    assert found.piece(1, 0) == (b"other", [])


def test_a_byte_changed_after_the_tree_was_built_is_not_opened_either():
    found = Tampered(noise(2 * PIECE))
    found.piece(0, 0)
    found.texts[0][PIECE] ^= 1
    found.piece(0, 0)
    with pytest.raises(VerificationError) as caught:
        found.piece(0, 1)
    assert caught.value.code == "corpus-changed"


def test_trees_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(corpus, "CACHED_PIECES", 5)
    found = Tampered(noise(2 * PIECE), noise(2 * PIECE), noise(9 * PIECE))

    def reads(document):
        before = found.reads
        found.piece(document, 0)
        return found.reads - before

    assert [reads(0), reads(0), reads(1), reads(0), reads(1)] == [2, 1, 2, 1, 1]
    assert [reads(2), reads(2)] == [2, 1]  # larger than the limit, and kept all the same: alone
    assert [reads(0), reads(2)] == [2, 2]


def test_pieces_can_be_asked_for_by_several_threads(monkeypatch):
    monkeypatch.setattr(corpus, "CACHED_PIECES", 5)
    texts = [noise(n * PIECE + n, bytes([n])) for n in range(1, 5)]
    found = open_corpus(texts, DOCUMENTS)
    wanted = [(d, p) for d in range(4) for p in range(d + 2)] * 20
    with ThreadPoolExecutor(4) as pool:
        for (document, piece), (content, proof) in zip(
            wanted, pool.map(lambda w: found.piece(*w), wanted), strict=True
        ):
            check_piece(found.documents.leaves[document], piece, content, proof)


def test_progress_rises_to_the_total():
    told = []
    size = 3 * corpus.CHUNK
    open_corpus([noise(10), bytes(size), noise(10)], DOCUMENTS, lambda done, total: told.append((done, total)))
    assert {total for _, total in told} == {size + 20}
    done = [done for done, _ in told]
    assert done == sorted(done)
    assert len(done) >= 3
    assert done[-1] == size + 20


def test_progress_of_small_work_is_told_once():
    told = []
    open_corpus([b"x"] * 100, DOCUMENTS, lambda *numbers: told.append(numbers))
    assert told == [(100, 100)]


def test_a_path_that_leads_nowhere(tmp_path: Path):
    for path in (tmp_path / "absent", str(tmp_path / "absent"), "To be, or not to be", "a\0b", "x" * 5000):
        with pytest.raises(UsageError) as caught:
            open_corpus(path, DOCUMENTS)
        assert caught.value.code == "corpus-missing"
        assert "path" in caught.value.next_action


def test_the_embedded_text_is_one_document_a_topic():
    from pydoc_data.topics import topics

    found = embedded_text(Packing("windows", length=129, stride=128))
    names = sorted(topics)
    assert [found.documents.leaves[i].digest for i in range(len(names))] == [
        hashlib.sha256(topics[name].encode()).digest() for name in names
    ]
    assert found.documents.samples > 1000  # enough that a demonstration does not repeat itself
    assert found.claim().root == embedded_text(Packing("documents")).claim().root


def test_the_embedded_rows_are_contexts_with_the_next_byte():
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics)).encode()
    found = embedded_rows(DOCUMENTS)
    rows = found.samples(range(found.documents.samples))
    assert len(rows) > 10_000
    assert {len(row) for row in rows} == {CONTEXT + 1}
    assert rows == [text[at : at + CONTEXT + 1] for at in range(0, len(text) - CONTEXT, STRIDE)]
