"""JSON lines: what is a document, what is refused with its line, and lines that change under our hands."""

import gzip
import json
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest

from protocol.corpus import PIECE, Packing, check_piece
from protocol.errors import UsageError, VerificationError
from witness.data import lines, open_corpus, options
from witness.data.corpus import CHUNK

zstandard = pytest.importorskip("zstandard")
DOCUMENTS = Packing("documents")
PACKERS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
    ".zstd": lambda data: zstandard.ZstdCompressor(write_checksum=True, write_content_size=False).compress(data),
}


def written(tmp_path: Path, data: bytes, suffix: str = "") -> Path:
    path = tmp_path / ("a.jsonl" + suffix)
    path.write_bytes(PACKERS[suffix](data))
    return path


def texts_of(path: Path, **named) -> list[bytes]:
    found = open_corpus(path, DOCUMENTS, **named)
    found.check()
    return found.samples(range(found.documents.samples))


def refusal(path: Path, **named) -> UsageError:
    with pytest.raises(UsageError) as caught:
        open_corpus(path, DOCUMENTS, **named)
    assert str(path) in str(caught.value)
    assert caught.value.next_action
    return caught.value


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"text":"one"}\n{"text":"two"}\n', [b"one", b"two"]),
        (b'{"text":"one"}\n{"text":"no newline"}', [b"one", b"no newline"]),
        (b'{"text":"one"}\r\n\r\n \t\n\n{"text":"two"}\r\n', [b"one", b"two"]),
        (b'{"text":""}\n{"text":"after nothing"}\n{"text":""}', [b"", b"after nothing", b""]),
        (b'{"text":"a\\nb\\u0000\\u00e9\\ud83d\\ude00"}', [b"a\nb\x00\xc3\xa9\xf0\x9f\x98\x80"]),
        (b'{"id":1,"text":"x","meta":{"text":"inner"},"n":1e999}', [b"x"]),
        (b'{"te\\u0078t":"escaped name"}', [b"escaped name"]),
        (b'{"text":"first","text":"last"}', [b"last"]),
        (' {"text" : "sp\u00e4ce"} \n'.encode(), [b"sp\xc3\xa4ce"]),
    ],
)
def test_documents_are_the_bytes_of_the_field(tmp_path: Path, data: bytes, expected: list[bytes], suffix: str):
    assert texts_of(written(tmp_path, data, suffix)) == expected


def test_the_field_is_chosen(tmp_path: Path):
    path = written(tmp_path, b'{"body":"this","text":"that","a.b":"dotted"}')
    assert texts_of(path, field="body") == [b"this"]
    assert texts_of(path, field="a.b") == [b"dotted"]
    assert texts_of(path) == [b"that"]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"other":"x"}', "required field `text`"),
        (b'{"text":7}', "Expected `str`, got `int`"),
        (b'{"text":null}', "got `null`"),
        (b'["text"]', "Expected `object`"),
        (b'"text"', "Expected `object`"),
        (b'{"text":"\xff"}', "UTF-8"),
        (b'{"text":"\xed\xa0\x80"}', "UTF-8"),
        (b'{"text":"\\ud800"}', "."),
        (b'{"text":"a"} {"text":"b"}', "trailing"),
        (b'{"text":"a"', "truncated"),
        (b"{'text':'a'}", "malformed"),
        (b'\xef\xbb\xbf{"text":"a"}', "malformed"),
        (b'{"x":NaN,"text":"a"}', "malformed"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"text":"a"}', "recursion"),
        (b"\x00", "malformed"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path: Path, line: bytes, says: str, suffix: str):
    error = refusal(written(tmp_path, b'{"text":"good"}\n\n' + line + b'\n{"text":"good"}\n', suffix))
    assert error.code == "data-file"
    assert error.evidence["line"] == 3
    assert "line 3" in str(error)
    assert says in str(error)


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_line_has_a_cap(tmp_path: Path, monkeypatch, suffix: str):
    monkeypatch.setattr(lines, "MAX_RECORD", 2 * CHUNK)
    path = written(tmp_path, b'{"text":"' + b"x" * (4 * CHUNK), suffix)
    error = refusal(path)
    assert error.code == "data-file"
    assert "a line of more than" in str(error)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".zstd"])
def test_compressed_files_are_read_to_the_last_byte_or_not_at_all(tmp_path: Path, suffix: str):
    path = written(tmp_path, b"".join(b'{"text":"%d"}\n' % i for i in range(3000)), suffix)
    whole = path.read_bytes()
    assert len(texts_of(path)) == 3000
    # Cut anywhere: in the head, in a block, before and in the check at the end; each cut is at a whole line or not.
    for size in {1, 3, 5, 9, 12, 20, len(whole) // 2, *range(len(whole) - 9, len(whole))}:
        path.write_bytes(whole[:size])
        assert refusal(path).code == "data-file"
    path.write_bytes(b"")
    assert refusal(path).code == "data-file"
    path.write_bytes(whole + b"rest")
    assert refusal(path).code == "data-file"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_members_and_frames_stand_one_after_another(tmp_path: Path, suffix: str):
    parts = [b'{"text":"on', b'e"}\n', b"", b'{"text":"two"}']
    path = tmp_path / ("a.jsonl" + suffix)
    path.write_bytes(b"".join(map(PACKERS[suffix], parts)))
    assert texts_of(path) == [b"one", b"two"]
    path.write_bytes(b"".join(map(PACKERS[suffix], parts)) + PACKERS[suffix](b'{"text":"three"}')[:-1])
    assert refusal(path).code == "data-file"


def test_zeros_after_gzip_are_padding_and_skippable_frames_are_skipped(tmp_path: Path):
    path = written(tmp_path, b'{"text":"one"}', ".gz")
    path.write_bytes(path.read_bytes() + bytes(70_000))
    assert texts_of(path) == [b"one"]
    path.write_bytes(path.read_bytes() + b"\1")
    assert refusal(path).code == "data-file"
    path = written(tmp_path, b'{"text":"two"}', ".zst")
    path.write_bytes(path.read_bytes() + b"\x50\x2a\x4d\x18\x04\x00\x00\x00note")
    assert texts_of(path) == [b"two"]


def test_a_wrong_check_sum_is_refused(tmp_path: Path):
    path = written(tmp_path, b'{"text":"one"}', ".gz")
    whole = bytearray(path.read_bytes())
    whole[-8] ^= 1
    path.write_bytes(whole)
    assert refusal(path).code == "data-file"
    path = written(tmp_path, b'{"text":"one"}', ".zstd")
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    assert refusal(path).code == "data-file"


def test_the_first_bytes_decide_what_a_file_is_compressed_with(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"text":"one"}'))
    assert texts_of(tmp_path / "a.jsonl") == [b"one"]
    (tmp_path / "b.jsonl.gz").write_bytes(b'{"text":"one"}')
    assert refusal(tmp_path / "b.jsonl.gz").code == "data-file"
    (tmp_path / "c.jsonl.gz").write_bytes(PACKERS[".zst"](b'{"text":"one"}'))
    assert refusal(tmp_path / "c.jsonl.gz").code == "data-file"


def bomb(suffix: str, count: int) -> bytes:
    """A file that expands to `count` lines of a mebibyte."""
    line = b'{"text":"' + b"x" * ((1 << 20) - 12) + b'"}\n'
    packer = zlib.compressobj(9, wbits=31) if suffix == ".gz" else zstandard.ZstdCompressor(level=3).compressobj()
    return b"".join([*(packer.compress(line) for _ in range(count)), packer.flush()])


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_bomb_costs_little(tmp_path: Path, monkeypatch, suffix: str):
    monkeypatch.setattr(options, "FREE_EXPANSION", 8 << 20)
    path = tmp_path / ("a.jsonl" + suffix)
    path.write_bytes(bomb(suffix, 200))
    assert path.stat().st_size < 300_000
    tracemalloc.start()
    try:
        error = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.code == "data-expands"
    assert peak < 120 << 20


def test_a_window_that_would_fill_the_memory_is_refused(tmp_path: Path):
    big = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=big).compressobj()  # no content size: the window is declared
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(b'{"text":"one"}') + packer.flush())
    error = refusal(tmp_path / "a.jsonl.zst")
    assert error.code == "data-file"
    assert "memory" in str(error)


def test_without_its_library_zstd_says_what_to_install(tmp_path: Path, monkeypatch):
    path = written(tmp_path, b'{"text":"one"}', ".zst")
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(UsageError, match=r"training-witness\[data\]") as caught:
        open_corpus(path, DOCUMENTS)
    assert caught.value.code == "extra-missing"


# -- lines that stay where they are --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = tmp_path / "shards"
    base.mkdir()
    (base / "1.jsonl").write_text('{"text":"a"}\n\n{"text":"bb"}\n')
    (base / "2.jsonl").write_text("\n")
    (base / "3.jsonl").write_text(json.dumps({"text": "c" * (2 * CHUNK + 5), "id": 1}) + '\n{"text":"dd"}')
    return base


def test_lines_are_read_where_they_stand(folder: Path):
    found = open_corpus(folder, Packing("windows", length=3, stride=2))
    stream = b"abb" + b"c" * (2 * CHUNK + 5) + b"dd"
    count = found.documents.samples
    assert found.sample(0) == b"abb"
    assert found.sample(1) == b"bcc"
    assert found.sample(count - 1) == stream[2 * count - 2 : 2 * count + 1]
    assert found.read(2, CHUNK - 1, CHUNK + 1) == b"cc"
    assert found.name(1) == f"document 1 of shards in {folder / '1.jsonl'}"
    data, proof = found.piece(2, 2 * CHUNK // PIECE)
    check_piece(found.documents.leaves[2], 2 * CHUNK // PIECE, data, proof)
    assert data == b"c" * 5
    found.check()


def edit(path: Path, data: bytes) -> None:
    before = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(before, before + 1_000_000))


@pytest.mark.parametrize("change", ["grown", "cut", "edited", "emptied", "broken", "shifted"])
def test_lines_that_change_after_the_commitment_are_named(folder: Path, change: str):
    found = open_corpus(folder, DOCUMENTS)
    path = folder / "1.jsonl"
    whole = path.read_bytes()
    changed = {
        "grown": whole + b'{"text":"new"}\n',
        "cut": whole[:-4],
        "edited": whole.replace(b"bb", b"bB"),
        "emptied": b"",
        "broken": whole.replace(b"bb", b'"b'),
        "shifted": b"\n" + whole[:-1],
    }
    edit(path, changed[change])
    for attempt in (lambda: found.sample(1), lambda: found.piece(1, 0), found.check):
        with pytest.raises(VerificationError) as caught:
            attempt()
        assert caught.value.code == "corpus-changed"
        assert str(path) in str(caught.value)
    assert found.read(2, 0, 4) == b"cccc"
    assert found.sample(3) == b"dd"
    path.unlink()
    with pytest.raises(UsageError) as missing:
        found.sample(0)
    assert missing.value.code == "corpus-missing"


def test_touched_lines_are_still_the_corpus(folder: Path):
    found = open_corpus(folder, DOCUMENTS)
    edit(folder / "1.jsonl", (folder / "1.jsonl").read_bytes())
    assert found.sample(1) == b"bb"


def test_an_edit_of_another_field_is_noticed_and_does_no_harm(folder: Path):
    found = open_corpus(folder, DOCUMENTS)
    path = folder / "3.jsonl"
    edit(path, path.read_bytes().replace(b'"id": 1', b'"id": 2'))
    assert found.sample(3) == b"dd"


def test_an_edit_that_keeps_length_and_time_is_not_opened(folder: Path):
    found = open_corpus(folder, DOCUMENTS)
    path = folder / "1.jsonl"
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b"bb", b"bB"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(VerificationError):
        found.piece(1, 0)
