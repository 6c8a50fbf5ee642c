"""Token files: headers, delimiters, shards, and windows that are cut in tokens."""

import struct
from pathlib import Path

import numpy as np
import pytest

from protocol.corpus import Packing
from protocol.errors import UsageError, VerificationError
from witness.data import open_corpus
from witness.data.corpus import CHUNK

DOCUMENTS = Packing("documents")
END = 50256


def header(count: int, magic: int = 20240520, version: int = 1) -> bytes:
    return struct.pack("<3i", magic, version, count) + bytes(1012)


def tokens_of(*values: int, dtype: str = "<u2") -> bytes:
    return np.array(values, dtype=dtype).tobytes()


def written(path: Path, *values: int, dtype: str = "<u2", head: bytes | None = None) -> Path:
    data = tokens_of(*values, dtype=dtype)
    path.write_bytes((header(len(values)) if head is None else head) + data)
    return path


def documents_of(path: Path, **named) -> list[list[int]]:
    found = open_corpus(path, DOCUMENTS, **named)
    found.check()
    dtype = {"uint16": "<u2", "uint32": "<u4"}[found.claim().tokenizer]
    return [np.frombuffer(data, dtype).tolist() for data in found.samples(range(found.documents.samples))]


def refusal(path: Path, **named) -> UsageError:
    with pytest.raises(UsageError) as caught:
        open_corpus(path, DOCUMENTS, **named)
    assert caught.value.next_action
    return caught.value


@pytest.mark.parametrize("head", [None, b""])
def test_a_file_is_one_document_of_tokens(tmp_path: Path, head: bytes | None):
    path = written(tmp_path / "a.bin", 1, 65535, 256, head=head)
    found = open_corpus(path, DOCUMENTS)
    assert found.samples([0]) == [b"\x01\x00\xff\xff\x00\x01"]
    claim = found.claim()
    assert (claim.tokenizer, claim.tokens, claim.documents) == ("uint16", 3, 1)
    assert found.documents.size == 6


def test_windows_are_cut_in_tokens_and_span_bytes(tmp_path: Path):
    path = written(tmp_path / "a.bin", *range(300, 310), head=b"")
    found = open_corpus(path, Packing("windows", length=4, stride=3))
    assert found.documents.samples == 3
    assert found.samples([0, 1, 2]) == [tokens_of(*range(a, a + 4)) for a in (300, 303, 306)]
    assert found.documents.spans(1) == [(0, 6, 14)]


@pytest.mark.parametrize(
    ("values", "ends", "starts"),
    [
        ([1, 2, END, 3, END], [[1, 2, END], [3, END]], [[1, 2], [END, 3], [END]]),
        ([END, 1, END, 2], [[END], [1, END], [2]], [[END, 1], [END, 2]]),
        ([1, 2], [[1, 2]], [[1, 2]]),
        ([END], [[END]], [[END]]),
        ([END, END, 7], [[END], [END], [7]], [[END], [END, 7]]),
        ([], [], []),
    ],
)
def test_a_delimiter_parts_documents_and_stays_in_them(tmp_path: Path, values, ends, starts):
    bare = written(tmp_path / "bare.bin", *values, 5, head=b"")  # a token more, so that nothing is an empty corpus
    headed = written(tmp_path / "headed.bin", *values, 5)

    expected = {
        "end": [*ends[:-1], [*ends[-1], 5]] if ends and ends[-1][-1] != END else [*ends, [5]],
        "start": [*starts[:-1], [*starts[-1], 5]] if starts else [[5]],
    }
    for path in (bare, headed):
        for at, parted in expected.items():
            assert documents_of(path, delimiter=END, delimiter_at=at) == parted
    # nanoGPT ends a document with the delimiter; modded-nanogpt and llm.c, which write headers, begin with it.
    assert documents_of(bare, delimiter=END) == expected["end"]
    assert documents_of(headed, delimiter=END) == expected["start"]
    roots = {open_corpus(path, DOCUMENTS, delimiter=END, delimiter_at="end").claim().root for path in (bare, headed)}
    assert len(roots) == 1


@pytest.mark.parametrize("place", [-2, -1, 0, 1])
@pytest.mark.parametrize("at", ["start", "end"])
def test_delimiters_at_the_edge_of_what_is_read_at_a_time(tmp_path: Path, place: int, at: str):
    values = np.arange(CHUNK + 10, dtype="<u2") % 1000  # two chunks and a bit
    cut = CHUNK // 2 + place
    values[cut] = END
    path = tmp_path / "a.bin"
    path.write_bytes(values.tobytes())
    found = open_corpus(path, DOCUMENTS, delimiter=END, delimiter_at=at)
    edge = cut + (at == "end")
    assert [leaf.token_length for leaf in found.documents.leaves] == [edge, len(values) - edge]
    assert found.sample(1) == values[edge:].tobytes()
    found.check()


def test_shards_are_read_in_name_order(tmp_path: Path):
    written(tmp_path / "train_000002.bin", 5, 6, END, 7)
    written(tmp_path / "train_000001.bin", END, 1, 2, END, 3)
    written(tmp_path / "train_000003.bin")
    written(tmp_path / "train_000004.bin", 8)
    assert documents_of(tmp_path, delimiter=END) == [[END, 1, 2], [END, 3], [5, 6], [END, 7], [8]]
    assert documents_of(tmp_path) == [[END, 1, 2, END, 3], [5, 6, END, 7], [], [8]]
    windows = open_corpus(tmp_path, Packing("windows", length=6, stride=5))
    assert windows.sample(0) == tokens_of(END, 1, 2, END, 3, 5)
    assert windows.name(1) == str(tmp_path / "train_000002.bin")


def test_wider_tokens(tmp_path: Path):
    path = written(tmp_path / "a.bin", 1 << 17, 7, dtype="<u4", head=header(2, 20240801, 7))
    assert documents_of(path) == [[1 << 17, 7]]
    bare = written(tmp_path / "b.bin", 1 << 17, 7, dtype="<u4", head=b"")
    assert documents_of(bare, tokens="uint32", delimiter=1 << 17) == [[1 << 17], [7]]
    assert open_corpus(bare, Packing("windows", 1, 1), tokens="uint32").documents.samples == 2


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (tokens_of(1, 2) + b"\0", {}),
        (header(3) + tokens_of(1, 2), {}),
        (header(1) + tokens_of(1, 2), {}),
        (header(-1), {}),
        (header(2) + tokens_of(1, 2) + b"\0", {}),
        (header(2, version=2) + tokens_of(1, 2), {}),
        (header(2)[:1000], {}),
        (header(2)[:8], {}),
        (header(2, magic=20240521) + tokens_of(1, 2), {"header": True}),
        (tokens_of(1, 2), {"header": True}),
        (b"", {"header": True}),
        (tokens_of(1, 2, 3), {"tokens": "uint32"}),
    ],
)
def test_files_that_lie(tmp_path: Path, data: bytes, named: dict):
    (tmp_path / "a.bin").write_bytes(data)
    error = refusal(tmp_path / "a.bin", **named)
    assert error.code == "data-file"
    assert str(tmp_path / "a.bin") in str(error)


def test_tokens_that_look_like_a_header(tmp_path: Path):
    values = struct.unpack("<2H", struct.pack("<i", 20240520))
    path = written(tmp_path / "a.bin", *values, 2, 0, 9, head=b"")
    assert refusal(path).code == "data-file"
    assert documents_of(path, header=False) == [[*values, 2, 0, 9]]


def test_other_options_than_the_header_says(tmp_path: Path):
    path = written(tmp_path / "a.bin", 1, 2)
    assert refusal(path, tokens="uint32").code == "data-option"
    assert refusal(path, tokens="bytes").code == "data-option"


@pytest.mark.parametrize("first", [True, False])
def test_shards_of_two_kinds(tmp_path: Path, first: bool):
    written(tmp_path / "a.bin", 1, 2, head=None if first else b"")
    written(tmp_path / "b.bin", 3, 4, head=b"" if first else None)
    error = refusal(tmp_path)
    assert error.code == "data-file"
    assert "b.bin" in str(error)


def test_an_empty_file_holds_no_sample(tmp_path: Path):
    (tmp_path / "a.bin").write_bytes(b"")
    assert refusal(tmp_path / "a.bin").code == "empty-corpus"
    assert refusal(tmp_path / "a.bin", delimiter=END).code == "empty-corpus"


def test_tokens_that_change_after_the_commitment(tmp_path: Path):
    written(tmp_path / "a.bin", 1, END, 2)
    path = written(tmp_path / "b.bin", 3, END, 4)
    found = open_corpus(tmp_path, DOCUMENTS, delimiter=END)
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(VerificationError, match=str(path)) as caught:
        found.sample(3)
    assert caught.value.code == "corpus-changed"
    path.write_bytes(whole[:-1] + b"\7")
    with pytest.raises(VerificationError, match=r"document 3 of .* in .*b\.bin"):
        found.check()
    assert found.sample(1) == tokens_of(END, 2)
