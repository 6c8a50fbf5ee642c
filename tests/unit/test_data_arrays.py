"""Array files: rows without loading, and headers that lie."""

import io
from pathlib import Path

import numpy as np
import pytest

from protocol.corpus import Packing
from protocol.errors import UsageError, VerificationError
from witness.data import open_corpus

DOCUMENTS = Packing("documents")


def saved(path: Path, array: np.ndarray, **options) -> Path:
    np.save(path, array, **options)
    return path


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.uint8).reshape(3, 4),
        np.arange(24, dtype="<i4").reshape(2, 3, 4),
        np.array([[1.5, -0.0], [np.nan, np.inf]], dtype="<f8"),
        np.array([[True], [False]]),
        np.array([[1 + 2j]], dtype="<c8"),
        np.zeros((2, 3), dtype="<f2"),
    ],
)
def test_rows_are_documents(tmp_path: Path, array: np.ndarray):
    path = saved(tmp_path / "a.npy", array)
    found = open_corpus(path, DOCUMENTS)
    assert found.samples(range(len(array))) == [row.tobytes() for row in array]
    assert found.claim().source == "a.npy"
    # The same data is the same corpus, in memory or in a file.
    assert found.claim().root == open_corpus(array, DOCUMENTS).claim().root
    found.check()


def test_one_dimension_is_one_document(tmp_path: Path):
    tokens = np.arange(100, dtype="<u2")
    found = open_corpus(saved(tmp_path / "a.npy", tokens), Packing("windows", length=8, stride=2))
    assert len(found.documents.leaves) == 1
    assert found.sample(3) == tokens[3:7].tobytes()


def test_a_link_whose_target_has_another_name(tmp_path: Path):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    saved(tmp_path / "a.npy", array).rename(tmp_path / "5f2d")
    (tmp_path / "a.npy").symlink_to(tmp_path / "5f2d")
    assert open_corpus(tmp_path / "a.npy", DOCUMENTS).sample(2) == array[2].tobytes()


def test_a_folder_may_be_named_like_an_array(tmp_path: Path):
    (tmp_path / "d.npy").mkdir()
    (tmp_path / "d.npy" / "text").write_bytes(b"words")
    assert open_corpus(tmp_path / "d.npy", DOCUMENTS).sample(0) == b"words"


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.array(7), "without dimensions"),
        (np.array([[None]]), "dtype object"),
        (np.array([["text"]]), "not plain numbers"),
        (np.zeros(2, dtype=[("a", "u1"), ("b", "u8")]), "not plain numbers"),
        (np.asfortranarray(np.zeros((2, 3))), "column-major"),
        (np.zeros((2, 3), dtype=">f4"), "big-endian"),
    ],
)
def test_arrays_whose_rows_do_not_stand_in_the_file(tmp_path: Path, array: np.ndarray, says: str):
    path = saved(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(UsageError, match=says) as caught:
        open_corpus(path, DOCUMENTS)
    assert caught.value.code == "corpus-data"
    assert str(path) in str(caught.value)


def header(shape: object, descr: object = "|u1") -> bytes:
    """A file's header, as anybody can write it."""
    stream = io.BytesIO()
    text = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    stream.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    return stream.getvalue()


GOOD = header((3, 4)) + bytes(12)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x07\x00" + GOOD[8:],
        b"\x93NUMPY\x03\x00" + GOOD[8:],
        b"words, not an array",
        GOOD[:20],
        GOOD[:-1],
        GOOD + b"\0",
        header((1 << 62, 1 << 62)) + bytes(12),
        header((-3, -4)) + bytes(12),
        header((3, "4")) + bytes(12),
        header((1 << 40, 0)),
        header((1 << 25, 1)) + bytes(1 << 25),
        header((3, 4), "__import__('os').getpid()") + bytes(12),
        b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"{",
    ],
)
def test_headers_that_lie(tmp_path: Path, data: bytes):
    path = tmp_path / "a.npy"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        open_corpus(path, DOCUMENTS)
    assert caught.value.code == "corpus-data"


def test_the_header_of_this_file_is_good(tmp_path: Path):
    (tmp_path / "a.npy").write_bytes(GOOD)  # or the test above would prove nothing
    assert open_corpus(tmp_path / "a.npy", DOCUMENTS).samples([0, 1, 2]) == [bytes(4)] * 3


def test_an_array_that_changes_after_the_commitment(tmp_path: Path):
    path = saved(tmp_path / "a.npy", np.zeros((1000, 64), dtype=np.uint8))
    found = open_corpus(path, DOCUMENTS)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])  # a mapped file would kill the process here
    with pytest.raises(VerificationError) as caught:
        found.sample(999)
    assert caught.value.code == "corpus-changed"
    path.write_bytes(whole)
    assert found.sample(999) == bytes(64)
    path.write_bytes(whole[:-1] + b"\1")
    with pytest.raises(VerificationError, match=r"document 999 of a\.npy"):
        found.check()
