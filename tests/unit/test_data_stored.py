"""How a run keeps its corpus: what comes back, and what every kind of damage is called."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from protocol.corpus import PIECE, Packing, check_piece
from protocol.encoding import decode, encode
from protocol.errors import ProtocolError, UsageError, VerificationError, WitnessError
from witness.data import open_corpus, open_stored, store
from witness.data.stored import MAX_INDEX, StoredCorpus

DOCUMENTS = Packing("documents")
WINDOWS = Packing("windows", length=7, stride=3)
TEXTS = [b"the first document", b"", b"x" * (2 * PIECE + 3), b"and the last"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name, text in zip(["a", "b", "sub/c", "z"], TEXTS, strict=True):
        (folder / name).write_bytes(text)
    return folder


def array_file(tmp_path: Path) -> Path:
    np.save(tmp_path / "rows.npy", np.arange(600, dtype="<u2").reshape(60, 10))
    return tmp_path / "rows.npy"


def seen(corpus):
    """Everything that a corpus promises and shows, while it can."""
    return corpus.claim(), corpus.documents.leaves, corpus.samples(range(corpus.documents.samples))


def require_same(found, expected):
    assert seen(found) == expected
    for leaf in expected[1]:
        check_piece(leaf, 0, *found.piece(leaf.index, 0))
    found.check()


def test_data_in_memory_is_copied(tmp_path: Path):
    corpus = open_corpus(TEXTS, WINDOWS)
    expected = seen(corpus)
    store(corpus, tmp_path / "run" / "corpus", copy_limit=0)
    assert (tmp_path / "run" / "corpus" / "data").read_bytes() == b"".join(TEXTS)
    require_same(open_stored(tmp_path / "run" / "corpus"), expected)


def test_small_files_are_copied_and_the_originals_may_go(tmp_path: Path, data: Path):
    corpus = open_corpus(data, WINDOWS)
    expected = seen(corpus)
    assert corpus.documents.tokens == sum(map(len, TEXTS))
    store(corpus, tmp_path / "run")
    data.rename(tmp_path / "gone")
    require_same(open_stored(tmp_path / "run"), expected)


@pytest.mark.parametrize("kind", ["text-file", "text-folder", "npy"])
def test_large_data_stays_where_it_is(tmp_path: Path, data: Path, kind: str):
    path = {"text-file": data / "sub" / "c", "text-folder": data, "npy": array_file(tmp_path)}[kind]
    corpus = open_corpus(path, WINDOWS)
    expected = seen(corpus)
    store(corpus, tmp_path / "run", copy_limit=corpus.documents.tokens - 1)
    assert not (tmp_path / "run" / "data").exists()
    index = decode((tmp_path / "run" / "corpus.json").read_bytes(), StoredCorpus, limit=MAX_INDEX)
    assert (index.kind, index.path) == (kind, str(path))
    require_same(open_stored(tmp_path / "run"), expected)
    # It can be stored again from what was stored.
    store(open_stored(tmp_path / "run"), tmp_path / "again", copy_limit=0)
    require_same(open_stored(tmp_path / "again"), expected)
    # Moved: an error that says how to go on, and the way to go on.
    moved = tmp_path / "moved"
    path.rename(moved)
    with pytest.raises(UsageError) as caught:
        open_stored(tmp_path / "run")
    assert caught.value.code == "corpus-missing"
    require_same(open_stored(tmp_path / "run", moved), expected)


def test_files_that_join_a_folder_later_do_no_harm(tmp_path: Path, data: Path):
    corpus = open_corpus(data, DOCUMENTS)
    store(corpus, tmp_path / "run", copy_limit=0)
    (data / "aa").write_bytes(b"new")
    require_same(open_stored(tmp_path / "run"), seen(corpus))


@pytest.mark.parametrize("kind", ["text-file", "text-folder", "npy"])
@pytest.mark.parametrize("how", ["longer", "shorter"])
def test_data_of_another_length_is_named_at_once(tmp_path: Path, data: Path, kind: str, how: str):
    path = {"text-file": data / "sub" / "c", "text-folder": data, "npy": array_file(tmp_path)}[kind]
    corpus = open_corpus(path, DOCUMENTS)
    store(corpus, tmp_path / "run", copy_limit=0)
    victim = data / "a" if kind == "text-folder" else path
    whole = victim.read_bytes()
    if kind == "npy":
        np.save(path, np.zeros((61, 10) if how == "longer" else (60, 9), dtype="<u2"))
    else:
        victim.write_bytes(whole + b"!" if how == "longer" else whole[:-1])
    with pytest.raises(VerificationError, match=str(victim)) as caught:
        open_stored(tmp_path / "run")
    assert caught.value.code == "corpus-changed"


@pytest.mark.parametrize("kept", ["copy", "path"])
def test_altered_data_is_found_by_check_and_never_opened(tmp_path: Path, data: Path, kept: str):
    store(open_corpus(data, DOCUMENTS), tmp_path / "run", copy_limit=1 << 20 if kept == "copy" else 0)
    victim, at = (tmp_path / "run" / "data", 30) if kept == "copy" else (data / "sub" / "c", 12)
    changed = bytearray(victim.read_bytes())
    changed[at] ^= 4
    victim.write_bytes(changed)
    found = open_stored(tmp_path / "run")
    for attempt in (found.check, lambda: found.piece(2, 0)):
        with pytest.raises(VerificationError) as caught:
            attempt()
        assert caught.value.code == "corpus-changed"
    assert found.piece(0, 0)[0] == TEXTS[0]


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
    elif how == "folder":
        path.unlink()
        path.mkdir()
    elif how == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        middle = bytes([whole[len(whole) // 2] ^ 1])
        changed = {
            "empty": b"",
            "cut": whole[:-1],
            "half": whole[: len(whole) // 2 // 96 * 96],
            "flipped": whole[: len(whole) // 2] + middle + whole[len(whole) // 2 + 1 :],
            "longer": whole + b"\0",
            "garbage": b"\xff" * len(whole),
        }
        path.write_bytes(changed[how])


DAMAGES = ["missing", "link", "folder", "pipe", "empty", "cut", "half", "flipped", "longer", "garbage"]


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["leaves", "corpus.json", "names", "data"])
def test_every_damage_has_a_name(tmp_path: Path, data: Path, name: str, how: str):
    run = tmp_path / "run"
    store(open_corpus(data, DOCUMENTS), run, copy_limit=0 if name == "names" else 1 << 20)
    open_stored(run).check()
    damage(run / name, how)
    with pytest.raises(WitnessError) as caught:
        open_stored(run).check()
    expected = {
        "leaves": {"corpus-file", "corpus-leaves", "corpus-root"},
        "corpus.json": {"corpus-file", "not-canonical", "corpus-root"},
        "names": {"corpus-file", "corpus-changed", "corpus-missing"},
        "data": {"corpus-file", "corpus-changed"},
    }[name]
    assert caught.value.code in expected
    if how in ("missing", "link", "folder", "pipe"):
        assert caught.value.code == "corpus-file"
        assert isinstance(caught.value, ProtocolError)
    assert caught.value.next_action


def test_every_byte_of_the_index_and_the_leaves_counts(tmp_path: Path):
    store(open_corpus([b"one", b"two"], DOCUMENTS), tmp_path)
    for name in ("corpus.json", "leaves"):
        whole = (tmp_path / name).read_bytes()
        for at in range(len(whole)):
            (tmp_path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            try:
                found = open_stored(tmp_path)
            except WitnessError:
                continue
            # What the trainer calls the data is the one thing that is not checked here; the manifest binds it.
            assert name == "corpus.json"
            assert found.claim().source != "memory"
            assert found.claim().root == open_corpus([b"one", b"two"], DOCUMENTS).claim().root
        (tmp_path / name).write_bytes(whole)


@pytest.mark.parametrize("name", [b"../secret", b"/etc/passwd", b"a//b", b"./a", b"", b"a/../../b", b"a/"])
def test_names_cannot_leave_their_folder(tmp_path: Path, data: Path, name: bytes):
    store(open_corpus(data, DOCUMENTS), tmp_path / "run", copy_limit=0)
    names = (tmp_path / "run" / "names").read_bytes().split(b"\0")
    (tmp_path / "run" / "names").write_bytes(b"\0".join([name, *names[1:]]))
    with pytest.raises(ProtocolError) as caught:
        open_stored(tmp_path / "run")
    assert caught.value.code == "corpus-file"


@pytest.mark.parametrize("path", [None, "relative/path", "/nul\0l", ""])
def test_a_path_is_absolute(tmp_path: Path, path: str | None):
    corpus = open_corpus([b"text"], DOCUMENTS)
    store(corpus, tmp_path)
    (tmp_path / "corpus.json").write_bytes(encode(StoredCorpus(corpus.claim(), "text-file", path)))
    with pytest.raises(ProtocolError) as caught:
        open_stored(tmp_path)
    assert caught.value.code == "corpus-file"


def test_a_huge_index_is_not_read(tmp_path: Path):
    store(open_corpus([b"text"], DOCUMENTS), tmp_path)
    with (tmp_path / "corpus.json").open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ProtocolError) as caught:
        open_stored(tmp_path)
    assert caught.value.code == "too-large"


def test_data_that_changed_since_the_commitment_is_not_stored(tmp_path: Path):
    path = tmp_path / "text"
    path.write_bytes(b"as committed")
    corpus = open_corpus(path, DOCUMENTS)
    before = path.stat()
    path.write_bytes(b"as pretended")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(VerificationError) as caught:
        store(corpus, tmp_path / "run")
    assert caught.value.code == "corpus-changed"
    assert list((tmp_path / "run").iterdir()) == []  # nothing half-written is left


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch):
    old = open_corpus([b"old"], DOCUMENTS)
    store(old, tmp_path)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError) as caught:
        store(open_corpus([b"new"], DOCUMENTS), tmp_path)
    assert caught.value.code == "disk-full"
    require_same(open_stored(tmp_path), seen(old))


def test_a_path_that_json_cannot_hold(tmp_path: Path):
    path = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        path.write_bytes(b"text")
    except OSError:
        pytest.skip("this file system only takes names in UTF-8")
    corpus = open_corpus(path, DOCUMENTS)
    with pytest.raises(UsageError, match="UTF-8") as caught:
        store(corpus, tmp_path / "run", copy_limit=0)
    assert caught.value.code == "corpus-data"
    store(corpus, tmp_path / "run")
    require_same(open_stored(tmp_path / "run"), seen(corpus))
