"""Every format against a commitment that is computed in memory, from documents and the format's definition alone."""

import gzip
import hashlib
import json
import struct
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.corpus import PIECE, Documents, Packing, assemble, check_piece, parse_leaves
from protocol.errors import ProtocolError, UsageError
from witness.data import open_corpus
from witness.data.compressed import expand
from witness.data.files import DataFile

DOCUMENTS = Packing("documents")
WIDTHS = {"bytes": 1, "uint16": 2, "uint32": 4}


def naive_root(nodes: list[bytes]) -> bytes:
    """MTH of RFC 9162 2.1.1, as the definition is written."""
    if len(nodes) <= 1:
        return nodes[0] if nodes else hashlib.sha256(b"").digest()
    k = 1
    while 2 * k < len(nodes):
        k *= 2
    return hashlib.sha256(b"\x01" + naive_root(nodes[:k]) + naive_root(nodes[k:])).digest()


def naive_leaves(documents: list[bytes], width: int) -> list[bytes]:
    found, start = [], 0
    for index, data in enumerate(documents):
        pieces = [
            hashlib.sha256(b"\x00TW1D" + data[at : at + 4096]).digest() for at in range(0, max(1, len(data)), 4096)
        ]
        found.append(
            struct.pack(">QQ", index, len(data))
            + hashlib.sha256(data).digest()
            + naive_root(pieces)
            + struct.pack(">QQ", start, len(data) // width)
        )
        start += len(data) // width
    return found


def require_equal(corpus, documents: list[bytes], tokenizer: str = "bytes") -> None:
    leaves = naive_leaves(documents, WIDTHS[tokenizer])
    assert corpus.documents.leaves.to_bytes() == b"".join(leaves)
    claim = corpus.claim()
    assert claim.root == naive_root([hashlib.sha256(b"\x00TW1C" + leaf).digest() for leaf in leaves]).hex()
    assert (claim.documents, claim.tokenizer) == (len(documents), tokenizer)
    assert claim.tokens == sum(map(len, documents)) // WIDTHS[tokenizer]
    assert corpus.samples(range(len(documents))) == documents
    corpus.check()


texts = st.lists(
    st.one_of(st.text(max_size=20), st.sampled_from(["", "\u00e9" * 2049, "x" * 4096])), min_size=1, max_size=8
)
texts = texts.filter(lambda found: any(found))
cuts = st.lists(st.integers(0, 8), max_size=2)


def split(items: list, places: list[int]) -> list[list]:
    bounds = [0, *sorted(min(place, len(items)) for place in places), len(items)]
    return [items[a:b] for a, b in pairwise(bounds)]


@settings(deadline=None, max_examples=60)
@given(texts, cuts, st.sampled_from(["", ".gz", ".zst"]), st.booleans(), st.data())
def test_json_lines(documents, places, suffix, ascii_only, data):
    zstandard = pytest.importorskip("zstandard")
    pack = {"": lambda d: d, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}[suffix]
    with tempfile.TemporaryDirectory() as folder:
        for number, shard in enumerate(split(documents, places)):
            lines = []
            for text in shard:
                lines += [b""] * data.draw(st.integers(0, 1))
                lines.append(json.dumps({"n": 1, "text": text}, ensure_ascii=ascii_only).encode())
            end = b"\n" if data.draw(st.booleans()) else b""
            content = b"\n".join(lines) + end
            # An empty file is compressed with nothing.
            Path(folder, f"{number}.jsonl{suffix}").write_bytes(pack(content))
        require_equal(open_corpus(folder, DOCUMENTS), [text.encode() for text in documents])


@settings(deadline=None, max_examples=40)
@given(texts, st.integers(1, 5), st.booleans(), cuts)
def test_parquet(documents, group, dictionary, places):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    with tempfile.TemporaryDirectory() as folder:
        for number, shard in enumerate(split(documents, places)):
            table = pa.table({"text": pa.array(shard, pa.string())})
            pq.write_table(table, Path(folder, f"{number}.parquet"), row_group_size=group, use_dictionary=dictionary)
        require_equal(open_corpus(folder, DOCUMENTS), [text.encode() for text in documents])


def parted(tokens: list[int], delimiter: int, at: str) -> list[list[int]]:
    """Documents of one shard, the slow way."""
    found: list[list[int]] = []
    fresh = True
    for token in tokens:
        if fresh or (at == "start" and token == delimiter):
            found.append([])
        found[-1].append(token)
        fresh = at == "end" and token == delimiter
    return found


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.lists(st.integers(0, 3), max_size=40), min_size=1, max_size=3).filter(any),
    st.one_of(st.none(), st.integers(0, 3)),
    st.sampled_from(["start", "end"]),
    st.sampled_from(["uint16", "uint32"]),
    st.booleans(),
    st.integers(1, 7),
    st.integers(1, 7),
)
def test_token_files(shards, delimiter, at, tokenizer, headed, length, stride):
    dtype = f"<u{WIDTHS[tokenizer]}"
    named = {"delimiter": delimiter, "delimiter_at": at} if delimiter is not None else {}
    documents: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        for number, shard in enumerate(shards):
            magic = (20240520, 1) if tokenizer == "uint16" else (20240801, 7)
            head = struct.pack("<3i", *magic, len(shard)) + bytes(1012) if headed else b""
            Path(folder, f"{number}.bin").write_bytes(head + np.array(shard, dtype).tobytes())
            cut = [shard] if delimiter is None else parted(shard, delimiter, at)
            documents += [np.array(tokens, dtype).tobytes() for tokens in cut]
        require_equal(open_corpus(folder, DOCUMENTS, tokens=tokenizer, **named), documents, tokenizer)
        # Windows are those of the token stream, whatever the documents are.
        packing = Packing("windows", length=length, stride=stride)
        stream = [token for shard in shards for token in shard]
        expected = [stream[a : a + length] for a in range(0, len(stream) - length + 1, stride)]
        try:
            windows = open_corpus(folder, packing, tokens=tokenizer, **named)
        except UsageError as error:
            assert error.code == "empty-corpus"
            assert not expected
            return
        found = windows.samples(range(windows.documents.samples))
        assert [np.frombuffer(data, dtype).tolist() for data in found] == expected
        # And a verifier who has the claim and the leaves puts them together from opened pieces.
        leaves = parse_leaves(windows.documents.leaves.to_bytes())
        public = Documents(leaves, windows.claim().packing, windows.claim().tokenizer)
        public.check(windows.claim())
        drawn = [0, public.samples - 1]
        opened = {}
        for document, piece in public.pieces_of(drawn):
            content, proof = windows.piece(document, piece)
            check_piece(public.leaves[document], piece, content, proof)
            opened[document, piece] = content
        assert [assemble(public, opened, sample) for sample in drawn] == [found[sample] for sample in drawn]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.sampled_from(["uint16", "uint32"]), st.data())
def test_leaves_of_another_width_are_refused(sizes, tokenizer, data):
    width = WIDTHS[tokenizer]
    leaves = b"".join(naive_leaves([bytes(size * width) for size in sizes], width))
    good = Documents(parse_leaves(leaves), Packing("windows", 3, 2), tokenizer)
    assert (good.tokens, good.size) == (sum(sizes), sum(sizes) * width)
    other = data.draw(st.sampled_from(sorted(set(WIDTHS) - {tokenizer})))
    if any(sizes):
        with pytest.raises(ProtocolError) as caught:
            Documents(parse_leaves(leaves), Packing("windows", 3, 2), other)
        assert caught.value.code == "corpus-leaves"


def test_a_document_across_pieces_in_wide_tokens(tmp_path: Path):
    tokens = np.arange(3 * PIECE, dtype="<u2")
    (tmp_path / "a.bin").write_bytes(tokens.tobytes())
    corpus = open_corpus(tmp_path / "a.bin", Packing("windows", length=PIECE // 2, stride=PIECE // 2 - 1))
    assert corpus.documents.pieces_of([0]) == [(0, 0)]
    assert corpus.documents.pieces_of([1]) == [(0, 0), (0, 1)]
    assert corpus.sample(1) == tokens[PIECE // 2 - 1 : PIECE - 1].tobytes()


@settings(deadline=None, max_examples=200)
@given(st.data(), st.sampled_from(["gzip", "zstd"]))
def test_no_damage_of_a_compressed_file_passes_for_other_content(data, kind):
    """gzip checks everything but its own heading; zstd here writes a check sum."""
    zstandard = pytest.importorskip("zstandard")
    content = b"".join(b'{"text":"%d"}\n' % n for n in range(50))
    packed = (
        gzip.compress(content) if kind == "gzip" else zstandard.ZstdCompressor(write_checksum=True).compress(content)
    )
    at = data.draw(st.integers(0, len(packed) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "drop"]))
    flipped = bytes([packed[at] ^ 1 << data.draw(st.integers(0, 7))])
    damaged = {
        "flip": packed[:at] + flipped + packed[at + 1 :],
        "cut": packed[:at],
        "drop": packed[:at] + packed[at + 1 :],
    }[how]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(damaged)
        file = DataFile(str(path))
        with file.opened() as opened:
            try:
                found = b"".join(part for part, _ in expand(file, opened, kind))
            except UsageError as error:
                assert error.code == "data-file"
                return
    assert found == content


FLAT = """
import json, resource, sys
from pathlib import Path
from protocol.corpus import Packing
from witness.data import DataOptions, commit_folder, open_corpus

def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10

small, large, out = map(Path, sys.argv[1:])
packing = Packing("windows", 4096, 4096)
commit_folder(small, out / "small", packing, DataOptions(), copy_limit=0)
open_corpus(small, packing).sample(0)
before = memory()
commit_folder(large, out / "large", packing, DataOptions(), copy_limit=0)
committed = memory() - before
corpus = open_corpus(large, packing)
last = corpus.sample(corpus.documents.samples - 1)
corpus.piece(corpus.documents.at_token(corpus.documents.tokens // 2), 0)
print(json.dumps([committed, memory() - before, corpus.documents.size, len(last)]))
"""


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_memory_stays_flat(tmp_path: Path, suffix: str):
    """200 MB of documents, in a process of its own: its peak grows by a small part of them."""
    count, text = 10_000, "0123456789abcdef" * 1250
    for name, lines in (("small", 20), ("large", count)):
        path = tmp_path / (name + suffix)
        if suffix == ".parquet":
            pa = pytest.importorskip("pyarrow")
            pq = pytest.importorskip("pyarrow.parquet")
            with pq.ParquetWriter(
                path, pa.schema([("text", pa.string())]), compression="none", use_dictionary=False
            ) as w:
                w.write_table(pa.table({"text": [f"{n} {text}" for n in range(lines)]}), row_group_size=lines)
            continue
        opener = gzip.open if suffix == ".jsonl.gz" else open
        with opener(path, "wb", *([1] if suffix == ".jsonl.gz" else [])) as file:
            for n in range(lines):
                file.write(b'{"text":"%d %s"}\n' % (n, text.encode()))
    shown = subprocess.run(
        [sys.executable, "-c", FLAT, tmp_path / f"small{suffix}", tmp_path / f"large{suffix}", tmp_path],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    committed, opened, size, last = json.loads(shown.stdout)
    assert size > 200_000_000
    assert last == 4096
    assert committed < 48 << 20
    assert opened < 64 << 20
