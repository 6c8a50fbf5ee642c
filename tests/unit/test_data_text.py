"""Text files and folders of them: order, links, and files that change under our hands."""

import os
import tracemalloc
from pathlib import Path

import pytest

from protocol.corpus import PIECE, Packing, check_piece
from protocol.errors import UsageError, VerificationError
from witness.data import files, open_corpus

DOCUMENTS = Packing("documents")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    base = tmp_path / "texts"
    for name, text in {
        "b.txt": "second",
        "a/z.txt": "after a.txt",
        "a.txt": "first",
        "a/sub/deep": "deepest",
        ".hidden": "unseen",
        ".git/config": "unseen",
        "a/.swp": "unseen",
        "Z.txt": "capital",
        "empty": "",
    }.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    return base


def edit(path: Path, data: bytes) -> None:
    """Writes other bytes and makes sure that the time shows it, however coarse the file system's clock is."""
    before = path.stat().st_mtime_ns
    path.write_bytes(data)
    os.utime(path, ns=(before, before + 1_000_000))


def test_a_file_is_one_document(tmp_path: Path):
    path = tmp_path / "corpus.txt"
    path.write_bytes(b"\xff\xfe not UTF-8, and welcome")
    for named in (path, str(path)):
        found = open_corpus(named, DOCUMENTS)
        assert found.samples([0]) == [b"\xff\xfe not UTF-8, and welcome"]
        assert found.claim().source == "corpus.txt"  # the manifest is public: no path


def test_a_folder_is_read_in_the_order_of_its_paths_as_bytes(folder: Path):
    found = open_corpus(folder, DOCUMENTS)
    # "Z" before "a"; "." (0x2e) before "/" (0x2f).
    names = ["Z.txt", "a.txt", "a/sub/deep", "a/z.txt", "b.txt", "empty"]
    assert found.samples(range(found.documents.samples)) == [(folder / name).read_bytes() for name in names]
    assert [found.name(i) for i in range(6)] == [str(folder / name) for name in names]


def test_names_that_are_not_utf8(tmp_path: Path):
    base = tmp_path / "texts"
    base.mkdir()
    path = base / os.fsdecode(b"caf\xe9.txt")
    try:
        path.write_bytes(b"coffee")
    except OSError:
        pytest.skip("this file system only takes names in UTF-8")
    found = open_corpus(base, DOCUMENTS)
    assert found.sample(0) == b"coffee"
    assert found.name(0).endswith("caf\\xe9.txt")
    path.unlink()
    with pytest.raises(UsageError) as caught:
        found.sample(0)
    caught.value.diagnostics().encode()


@pytest.mark.parametrize("target", ["b.txt", "a", "nowhere", "..", "/etc/passwd"])
def test_a_link_inside_a_folder_is_refused(folder: Path, target: str):
    (folder / "a" / "link").symlink_to(folder / target if not target.startswith("/") else target)
    with pytest.raises(UsageError, match="a/link is a symbolic link") as caught:
        open_corpus(folder, DOCUMENTS)
    assert caught.value.code == "corpus-data"


def test_the_path_itself_may_be_a_link(folder: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "file").symlink_to(folder / "b.txt")
    assert open_corpus(tmp_path / "link", DOCUMENTS).claim().root == open_corpus(folder, DOCUMENTS).claim().root
    assert open_corpus(tmp_path / "file", DOCUMENTS).samples([0]) == [b"second"]
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(UsageError) as caught:
        open_corpus(tmp_path / "loop", DOCUMENTS)
    assert caught.value.code == "corpus-missing"


def test_a_pipe_is_refused_and_hangs_nothing(folder: Path, tmp_path: Path):
    os.mkfifo(folder / "pipe")
    os.mkfifo(tmp_path / "alone")
    for path in (folder, tmp_path / "alone", "/dev/null"):
        with pytest.raises(UsageError) as caught:
            open_corpus(path, DOCUMENTS)
        assert caught.value.code == "corpus-data"


def test_what_cannot_be_read_is_named(folder: Path):
    if os.geteuid() == 0:
        pytest.skip("root reads everything")
    (folder / "a").chmod(0)
    try:
        with pytest.raises(UsageError, match="Permission denied") as caught:
            open_corpus(folder, DOCUMENTS)
    finally:
        (folder / "a").chmod(0o700)
    assert caught.value.code == "corpus-missing"


def test_an_empty_folder_holds_no_sample(tmp_path: Path):
    (tmp_path / ".hidden").write_text("unseen")
    with pytest.raises(UsageError) as caught:
        open_corpus(tmp_path, DOCUMENTS)
    assert caught.value.code == "empty-corpus"


@pytest.mark.parametrize("change", ["grown", "cut", "edited", "emptied"])
def test_a_file_that_changes_after_the_commitment_is_named(folder: Path, change: str):
    found = open_corpus(folder, DOCUMENTS)
    path = folder / "a.txt"
    edit(path, {"grown": b"first and more", "cut": b"fir", "edited": b"FIRST", "emptied": b""}[change])
    for attempt in (lambda: found.sample(1), lambda: found.piece(1, 0), found.check):
        with pytest.raises(VerificationError, match=str(path)) as caught:
            attempt()
        assert caught.value.code == "corpus-changed"
    assert found.sample(0) == b"capital"  # the others are still good


def test_a_file_that_goes_away_is_named(folder: Path):
    found = open_corpus(folder, DOCUMENTS)
    (folder / "b.txt").unlink()
    with pytest.raises(UsageError, match=r"b\.txt") as caught:
        found.sample(4)
    assert caught.value.code == "corpus-missing"
    (folder / "b.txt").symlink_to(folder / "a.txt")
    with pytest.raises(UsageError) as caught:
        found.sample(4)
    assert caught.value.code == "corpus-missing"


def test_a_touched_or_replaced_file_with_the_same_bytes_is_still_the_corpus(folder: Path, monkeypatch):
    found = open_corpus(folder, DOCUMENTS)
    edit(folder / "a.txt", b"first")
    assert found.sample(1) == b"first"
    # It was looked at once, not at every read from now on.
    monkeypatch.setattr(files, "describe", None)
    assert found.sample(1) == b"first"


def test_an_edit_that_keeps_length_and_time_is_seen_when_it_is_opened(folder: Path):
    found = open_corpus(folder, DOCUMENTS)
    path = folder / "a.txt"
    before = path.stat()
    path.write_bytes(b"FIRST")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(VerificationError) as caught:
        found.piece(1, 0)
    assert caught.value.code == "corpus-changed"


def test_a_file_that_grows_while_it_is_committed_is_named(tmp_path: Path):
    path = tmp_path / "log"
    path.write_bytes(bytes(3 << 20))

    def append(done, total):
        with path.open("ab") as file:
            file.write(b"more")

    with pytest.raises(VerificationError, match="changed while it was being read") as caught:
        open_corpus(path, DOCUMENTS, append)
    assert caught.value.code == "corpus-changed"


def test_a_document_larger_than_memory_is_streamed(tmp_path: Path):
    size = 300 << 20
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"hello")
    packing = Packing("windows", length=4096, stride=4096)
    tracemalloc.start()
    try:
        found = open_corpus(path, packing)
        committing = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        last = found.sample(found.documents.samples - 1)
        content, proof = found.piece(0, size // PIECE - 1)
        opening = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert last == content
    assert content.endswith(b"hello")
    check_piece(found.documents.leaves[0], size // PIECE - 1, content, proof)
    assert committing < 8 << 20
    assert opening < size // 16  # the tree of pieces, while it is built
