"""safetensors: rows where they stand, and headers that lie. Tokens in arrays."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from protocol.corpus import Packing
from protocol.errors import UsageError, VerificationError
from witness.data import open_corpus

DOCUMENTS = Packing("documents")
TOKENS = np.arange(12, dtype="<u2").reshape(3, 4)
OTHER = np.linspace(0, 1, 10, dtype="<f4").reshape(2, 5)


def refusal(path: Path, **named) -> str:
    with pytest.raises(UsageError) as caught:
        open_corpus(path, DOCUMENTS, **named)
    assert str(path) in str(caught.value)
    return caught.value.code


@pytest.mark.parametrize("array", [TOKENS, OTHER, np.arange(8, dtype=np.int64).reshape(2, 2, 2), np.ones((3, 1), bool)])
def test_rows_are_documents_and_those_of_the_array(tmp_path: Path, array: np.ndarray):
    path = tmp_path / "a.safetensors"
    save_file({"first": np.zeros(3), "rows": array, "z": np.ones(2)}, path, metadata={"note": "text"})
    found = open_corpus(path, DOCUMENTS, tensor="rows")
    assert found.samples(range(len(array))) == [row.tobytes() for row in array]
    assert found.claim().root == open_corpus(array, DOCUMENTS).claim().root
    found.check()


def test_the_only_tensor_needs_no_name(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    save_file({"x": TOKENS}, path, metadata={"a": "b"})
    assert open_corpus(path, DOCUMENTS).sample(2) == TOKENS[2].tobytes()
    save_file({"x": TOKENS, "y": OTHER}, path)
    assert refusal(path) == "data-option"
    assert refusal(path, tensor="z") == "data-option"


def test_one_dimension_is_one_document_and_none_is_none(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    save_file({"line": np.arange(5, dtype=np.uint8), "point": np.array(1, np.float32)}, path)
    assert open_corpus(path, DOCUMENTS, tensor="line").samples([0]) == [bytes(range(5))]
    assert refusal(path, tensor="point") == "corpus-data"


def test_tokens_in_arrays_are_cut_as_tokens(tmp_path: Path):
    save_file({"x": TOKENS}, tmp_path / "a.safetensors")
    np.save(tmp_path / "a.npy", TOKENS)
    windows = Packing("windows", length=3, stride=2)
    for name in ("a.safetensors", "a.npy"):
        found = open_corpus(tmp_path / name, windows, tokens="uint16")
        assert found.claim().tokenizer == "uint16"
        assert found.sample(1) == TOKENS.ravel()[2:5].tobytes()
        assert found.documents.samples == 5
        assert (
            open_corpus(tmp_path / name, windows).sample(1) == TOKENS.tobytes()[2:5]
        )  # bytes, unless tokens are named
        with pytest.raises(UsageError) as caught:
            open_corpus(tmp_path / name, windows, tokens="uint32")
        assert caught.value.code == "corpus-data"
    np.save(tmp_path / "b.npy", TOKENS.astype("<i2"))
    assert refusal(tmp_path / "b.npy", tokens="uint16") == "corpus-data"


def test_shards_of_arrays(tmp_path: Path):
    for name, low in (("b", 4), ("a", 0)):
        np.save(tmp_path / f"{name}.npy", np.arange(low, low + 4, dtype=np.uint8).reshape(2, 2))
    found = open_corpus(tmp_path, DOCUMENTS)
    assert found.samples(range(4)) == [bytes([i, i + 1]) for i in (0, 2, 4, 6)]
    assert found.name(3) == f"document 3 of {tmp_path.name} in {tmp_path / 'b.npy'}"
    found.check()


def file_of(header: object, data: bytes, size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(dtype="U8", shape=(3, 4), offsets=(0, 12), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        b"\x00" * 8,
        file_of({"x": entry()}, bytes(11)),
        file_of({"x": entry()}, bytes(13)),
        file_of({"x": entry()}, bytes(12), size=1 << 62),
        file_of({"x": entry()}, bytes(12), size=7),
        file_of({"x": entry(shape=(3, 5))}, bytes(12)),
        file_of({"x": entry(shape=(-3, -4))}, bytes(12)),
        file_of({"x": entry(shape=(1 << 62, 1 << 62))}, bytes(12)),
        file_of({"x": entry(offsets=(4, 16))}, bytes(16)),
        file_of({"x": entry(offsets=(-12, 0))}, bytes(12)),
        file_of({"x": entry(offsets=(0, 1 << 70))}, bytes(12)),
        file_of({"x": entry(), "y": entry()}, bytes(12)),
        file_of({"x": entry("F4", (3, 8))}, bytes(12)),
        file_of({"x": entry("pickle")}, bytes(12)),
        file_of({"x": entry(shape=(3.0, 4))}, bytes(12)),
        file_of({"x": {"dtype": "U8", "shape": [3, 4]}}, bytes(12)),
        file_of({"x": [1, 2]}, bytes(12)),
        file_of([1, 2], bytes(12)),
        file_of(b"{" + b"[" * 100_000, bytes(12)),
        file_of(b'{"\xff": 1}', bytes(12)),
    ],
)
def test_headers_that_lie(tmp_path: Path, data: bytes):
    (tmp_path / "a.safetensors").write_bytes(data)
    assert refusal(tmp_path / "a.safetensors", tensor="x") == "data-file"


def test_the_header_of_these_files_is_good(tmp_path: Path):
    (tmp_path / "a.safetensors").write_bytes(file_of({"x": entry()}, bytes(range(12))))  # or nothing above is proven
    assert open_corpus(tmp_path / "a.safetensors", DOCUMENTS).sample(2) == bytes(range(8, 12))


def test_too_many_rows(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(file_of({"x": entry(shape=((1 << 24) + 1, 0), offsets=(0, 0))}, b""))
    assert refusal(path) == "corpus-data"


def test_a_tensor_that_changes_after_the_commitment(tmp_path: Path):
    path = tmp_path / "a.safetensors"
    save_file({"a": OTHER, "x": TOKENS}, path)
    found = open_corpus(path, DOCUMENTS, tensor="x")
    at = path.read_bytes().index(TOKENS.tobytes())
    whole = bytearray(path.read_bytes())
    whole[at + 23] ^= 1
    path.write_bytes(whole)
    with pytest.raises(VerificationError, match="document 2") as caught:
        found.check()
    assert caught.value.code == "corpus-changed"
    path.write_bytes(whole[:-1])
    with pytest.raises(VerificationError, match=str(path)):
        found.sample(2)
