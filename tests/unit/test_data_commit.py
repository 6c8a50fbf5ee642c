"""Committing in a folder: what is written, how an interrupted commit goes on, and the command."""

import fcntl
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from protocol.corpus import Packing
from protocol.errors import UsageError, VerificationError
from witness.data import DataOptions, commit_folder, intake, journal, open_corpus, workers
from witness.data.lines import LineReader
from witness.data.text import TextReader

DOCUMENTS = Packing("documents")
WINDOWS = Packing("windows", length=5, stride=4)
FILES = ("leaves", "data", "corpus.json")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    base = tmp_path / "texts"
    base.mkdir()
    for number in range(6):
        (base / f"{number}.txt").write_text(f"text {number} " * (number + 1))
    return base


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    base = tmp_path / "shards"
    base.mkdir()
    for number in range(6):
        lines = "".join(json.dumps({"text": f"line {i} of {number}"}) + "\n" for i in range(number + 1))
        (base / f"{number}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return base


def listing(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_small_documents_are_copied(tmp_path: Path, texts: Path):
    corpus = commit_folder(texts, tmp_path / "out", WINDOWS, DataOptions())
    assert listing(tmp_path / "out") == sorted(FILES)
    expected = open_corpus(texts, WINDOWS)
    assert corpus.claim() == expected.claim()
    again = open_corpus(tmp_path / "out", WINDOWS)
    assert again.samples(range(5)) == expected.samples(range(5))
    assert open_corpus(tmp_path / "out", DOCUMENTS).sample(1) == (texts / "1.txt").read_bytes()


def test_large_documents_stay_where_they_are_unless_they_have_to_be_made(tmp_path: Path, texts: Path, shards: Path):
    commit_folder(texts, tmp_path / "out", WINDOWS, DataOptions(), copy_limit=0)
    assert listing(tmp_path / "out") == ["corpus.json", "leaves", "names"]
    assert open_corpus(tmp_path / "out", DOCUMENTS).sample(5) == (texts / "5.txt").read_bytes()
    commit_folder(shards, tmp_path / "made", WINDOWS, DataOptions(), copy_limit=0)
    assert listing(tmp_path / "made") == sorted(FILES)
    plain = tmp_path / "a.jsonl"
    plain.write_text('{"text":"stays here"}\n')
    commit_folder(plain, tmp_path / "lines", WINDOWS, DataOptions(), copy_limit=0)
    assert listing(tmp_path / "lines") == ["corpus.json", "leaves", "lines"]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, texts: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("words")
    with pytest.raises(UsageError) as caught:
        commit_folder(texts, out, WINDOWS, DataOptions())
    assert caught.value.code == "corpus-exists"
    assert content(out) == {"precious": b"words"}
    commit_folder(texts, tmp_path / "good", WINDOWS, DataOptions())
    before = content(tmp_path / "good")
    for data in (texts, tmp_path / "good"):
        with pytest.raises(UsageError) as caught:
            commit_folder(data, tmp_path / "good", WINDOWS, DataOptions())
        assert caught.value.code == "corpus-exists"
    assert content(tmp_path / "good") == before
    for inside in (texts, texts / "out"):
        with pytest.raises(UsageError):
            commit_folder(texts, inside, WINDOWS, DataOptions())


class Stop(Exception):  # noqa: N818 - what Ctrl-C does, at a chosen place
    pass


def interrupted(monkeypatch, data: Path, out: Path, reader: type, at: int, **named) -> None:
    """Starts a commit that is interrupted while it reads file number `at`."""
    seen: list[str] = []
    original = reader.chunks

    def chunks(self, file, opened):
        seen.append(str(file))
        for chunk in original(self, file, opened):
            yield chunk
            if len(seen) == at + 1:
                raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(reader, "chunks", chunks)
        with pytest.raises(Stop):
            commit_folder(data, out, WINDOWS, DataOptions(), **named)


def read_again(monkeypatch, data: Path, out: Path, reader: type, **named) -> list[str]:
    """Commits, and tells the names of the files that were read for it."""
    seen: list[str] = []
    original = reader.chunks

    def chunks(self, file, opened):
        seen.append(Path(str(file)).name.split(".")[0])
        return original(self, file, opened)

    with monkeypatch.context() as patch:
        patch.setattr(reader, "chunks", chunks)
        commit_folder(data, out, WINDOWS, DataOptions(), **named)
    return seen


@pytest.mark.parametrize("kind", ["texts", "shards"])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_an_interrupted_commit_goes_on(tmp_path: Path, texts: Path, shards: Path, monkeypatch, kind: str, at: int):
    data, reader = (texts, TextReader) if kind == "texts" else (shards, LineReader)
    interrupted(monkeypatch, data, tmp_path / "out", reader, at)
    assert "unfinished" in listing(tmp_path / "out")
    with pytest.raises(UsageError):  # it is no corpus yet
        open_corpus(tmp_path / "out", WINDOWS, field="text")
    assert read_again(monkeypatch, data, tmp_path / "out", reader) == [str(number) for number in range(at, 6)]
    commit_folder(data, tmp_path / "whole", WINDOWS, DataOptions())
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_lines_that_stay_where_they_are_go_on_too(tmp_path: Path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        (data / f"{number}.jsonl").write_text(json.dumps({"text": f"a{number}"}) + '\n{"text":"b"}\n')
    interrupted(monkeypatch, data, tmp_path / "out", LineReader, 2, copy_limit=0)
    assert read_again(monkeypatch, data, tmp_path / "out", LineReader, copy_limit=0) == ["2", "3"]
    commit_folder(data, tmp_path / "whole", WINDOWS, DataOptions(), copy_limit=0)
    assert "lines" in listing(tmp_path / "whole")
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("change", ["touched", "edited", "grown", "gone", "earlier", "later"])
def test_files_that_changed_meanwhile_are_read_again(tmp_path: Path, texts: Path, monkeypatch, change: str):
    interrupted(monkeypatch, texts, tmp_path / "out", TextReader, 4)
    victim = texts / "2.txt"
    stamp = victim.stat()
    if change == "touched":
        os.utime(victim, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    elif change == "edited":
        victim.write_bytes(victim.read_bytes().upper())
        os.utime(victim, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1_000_000))
    elif change == "grown":
        victim.write_bytes(victim.read_bytes() + b"!")
        os.utime(victim, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    elif change == "gone":
        victim.unlink()
    else:
        (texts / ("15.txt" if change == "earlier" else "9.txt")).write_text("new")
    read = read_again(monkeypatch, texts, tmp_path / "out", TextReader)
    expected = {
        "gone": ["3", "4", "5"],
        "earlier": ["15", "2", "3", "4", "5"],
        "later": ["4", "5", "9"],
    }.get(change, ["2", "3", "4", "5"])
    assert read == expected
    commit_folder(texts, tmp_path / "whole", WINDOWS, DataOptions())
    assert content(tmp_path / "out") == content(tmp_path / "whole")


@pytest.mark.parametrize("damage", ["torn", "garbage", "leaves", "spool", "empty", "leaves gone"])
def test_a_journal_is_believed_as_far_as_it_goes(tmp_path: Path, shards: Path, monkeypatch, damage: str):
    out = tmp_path / "out"
    interrupted(monkeypatch, shards, out, LineReader, 4)
    text = (out / "unfinished").read_bytes()
    if damage == "torn":
        (out / "unfinished").write_bytes(text[:-5])
        expected = 3
    elif damage == "garbage":
        lines = text.split(b"\n")
        (out / "unfinished").write_bytes(b"\n".join([*lines[:3], b"{}", *lines[4:]]))
        expected = 2
    elif damage == "leaves":
        (out / "leaves.part").write_bytes((out / "leaves.part").read_bytes()[:-1])
        expected = 3
    elif damage == "spool":
        size = sum(len(f"line {i} of {n}") for n in range(2) for i in range(n + 1))
        (out / "data").write_bytes((out / "data").read_bytes()[:size])
        expected = 2
    elif damage == "empty":
        (out / "unfinished").write_bytes(b"")
        expected = 0
    else:
        (out / "leaves.part").unlink()
        expected = 0
    assert read_again(monkeypatch, shards, out, LineReader) == [str(number) for number in range(expected, 6)]
    commit_folder(shards, tmp_path / "whole", WINDOWS, DataOptions())
    assert content(out) == content(tmp_path / "whole")


def test_another_commit_does_not_go_on_with_it(tmp_path: Path, texts: Path, shards: Path, monkeypatch):
    interrupted(monkeypatch, shards, tmp_path / "out", LineReader, 3)
    before = content(tmp_path / "out")
    for data, options in ((texts, DataOptions()), (shards, DataOptions(field="text")), (shards, DataOptions("text"))):
        with pytest.raises(UsageError) as caught:
            commit_folder(data, tmp_path / "out", WINDOWS, options)
        assert caught.value.code == "corpus-exists"
    assert content(tmp_path / "out") == before
    with (tmp_path / "out" / "unfinished").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(UsageError) as caught:
            commit_folder(shards, tmp_path / "out", WINDOWS, DataOptions())
        assert caught.value.code == "corpus-busy"
    # Another packing is no other commit: the documents are the same.
    assert commit_folder(shards, tmp_path / "out", DOCUMENTS, DataOptions()).claim().packing == DOCUMENTS


def test_what_is_done_is_written_while_it_goes_on(tmp_path: Path, texts: Path, monkeypatch):
    monkeypatch.setattr(journal, "EVERY_SECONDS", 0.0)
    counts = []

    def watch(self, index, documents, size):
        journal_passed(self, index, documents, size)
        counts.append(len((tmp_path / "out" / "leaves.part").read_bytes()) // 96)

    journal_passed = journal.Journal.passed
    monkeypatch.setattr(journal.Journal, "passed", watch)
    commit_folder(texts, tmp_path / "out", WINDOWS, DataOptions())
    assert counts == [1, 2, 3, 4, 5, 6]


def test_altered_data_of_a_committed_folder_is_not_trained_on(tmp_path: Path, texts: Path):
    commit_folder(texts, tmp_path / "out", WINDOWS, DataOptions())
    data = tmp_path / "out" / "data"
    stamp = data.stat()
    data.write_bytes(data.read_bytes().replace(b"text 3", b"text 8"))
    os.utime(data, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(VerificationError, match="document 3") as caught:
        open_corpus(tmp_path / "out", WINDOWS)
    assert caught.value.code == "corpus-changed"


def test_too_many_documents(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(intake, "MAX_DOCUMENTS", 3)
    np.save(tmp_path / "a.npy", np.zeros((3, 2), np.uint8))
    assert open_corpus(tmp_path / "a.npy", DOCUMENTS).documents.samples == 3
    np.save(tmp_path / "a.npy", np.zeros((4, 2), np.uint8))
    with pytest.raises(UsageError, match="more than 3 documents") as caught:
        open_corpus(tmp_path / "a.npy", DOCUMENTS)
    assert caught.value.code == "corpus-data"


# -- several processes -------------------------------------------------------------------------------------------


def data_of(tmp_path: Path, kind: str, texts: Path, shards: Path) -> tuple[Path, DataOptions]:
    if kind == "texts":
        return texts, DataOptions()
    if kind == "shards":
        return shards, DataOptions()
    base = tmp_path / "more"
    base.mkdir()
    for number in range(7):
        if kind == "lines":
            (base / f"{number}.jsonl").write_text("".join(f'{{"text":"{number} {n}"}}\n' for n in range(number)))
        else:
            (base / f"{number}.bin").write_bytes(np.array([7, *range(number), 7, 1], "<u2").tobytes())
    return base, DataOptions(delimiter=7) if kind == "tokens" else DataOptions()


@pytest.mark.parametrize("kind", ["texts", "shards", "lines", "tokens"])
def test_several_processes_find_the_same(tmp_path: Path, texts: Path, shards: Path, monkeypatch, kind: str):
    data, options = data_of(tmp_path, kind, texts, shards)
    commit_folder(data, tmp_path / "one", WINDOWS, options, copy_limit=0)
    monkeypatch.setattr(workers, "RUN_FILES", 2)
    counted = []
    absorb = intake.Intake.absorb
    monkeypatch.setattr(
        intake.Intake, "absorb", lambda self, part, watcher=None: (counted.append(part), absorb(self, part, watcher))
    )
    told = []
    commit_folder(data, tmp_path / "several", WINDOWS, options, lambda *n: told.append(n), copy_limit=0, workers=2)
    assert len(counted) > 2
    assert content(tmp_path / "several") == content(tmp_path / "one")
    assert told[-1][0] == told[-1][1] == sum(path.stat().st_size for path in data.iterdir())


def test_an_error_in_another_process_is_the_same_error(tmp_path: Path, shards: Path, monkeypatch):
    monkeypatch.setattr(workers, "RUN_FILES", 1)
    (shards / "4.jsonl.gz").write_bytes(gzip.compress(b'{"text":"good"}\n{"text":7}\n'))
    for count in (1, 2):
        with pytest.raises(UsageError, match=r"4\.jsonl\.gz: line 2: Expected `str`") as caught:
            commit_folder(shards, tmp_path / "out", WINDOWS, DataOptions(), workers=count)
        assert caught.value.code == "data-file"
    # What was found before it is kept, by either.
    (shards / "4.jsonl.gz").write_bytes(gzip.compress(b'{"text":"mended"}\n'))
    assert read_again(monkeypatch, shards, tmp_path / "out", LineReader) == ["4", "5"]
    commit_folder(shards, tmp_path / "whole", WINDOWS, DataOptions())
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_process_that_dies_is_named(tmp_path: Path, shards: Path, monkeypatch):
    monkeypatch.setattr(workers, "RUN_FILES", 1)
    asked = workers._asked

    def kill(worker, job):
        if job.first == 3:
            worker.kill()
            worker.wait()
        return asked(worker, job)

    with monkeypatch.context() as patch:
        patch.setattr(workers, "_asked", kill)
        with pytest.raises(UsageError) as caught:
            commit_folder(shards, tmp_path / "out", WINDOWS, DataOptions(), workers=2)
    assert caught.value.code == "data-worker"
    assert "parts" not in listing(tmp_path / "out")
    commit_folder(shards, tmp_path / "out", WINDOWS, DataOptions(), workers=2)
    commit_folder(shards, tmp_path / "whole", WINDOWS, DataOptions())
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_file_that_another_process_saw_differently(tmp_path: Path, texts: Path, monkeypatch):
    monkeypatch.setattr(workers, "RUN_FILES", 1)
    asked = workers._asked

    def change(worker, job):
        (texts / "5.txt").write_text("something else")
        return asked(worker, job)

    monkeypatch.setattr(workers, "_asked", change)
    with pytest.raises(VerificationError, match=r"5\.txt changed") as caught:
        commit_folder(texts, tmp_path / "out", WINDOWS, DataOptions(), workers=2)
    assert caught.value.code == "corpus-changed"


# -- the command -------------------------------------------------------------------------------------------------


def called(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "witness", "data", "commit", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=environment)


def test_the_command(tmp_path: Path):
    data = tmp_path / "a.jsonl"
    data.write_text('{"body":"one"}\n{"body":"three"}\n')
    arguments = ("--field", "body", "--packing", "windows:3:1", "--workers", 2)
    shown = called(data, *arguments, "--out", tmp_path / "out", "--json")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    document = json.loads(shown.stdout)
    assert document["claim"]["packing"] == {"kind": "windows", "length": 3, "stride": 1}
    assert (document["samples"], document["bytes"], document["claim"]["tokenizer"]) == (6, 8, "bytes")
    corpus = open_corpus(tmp_path / "out", DOCUMENTS)
    assert corpus.claim().root == document["claim"]["root"]
    assert corpus.documents.leaves[1].digest == hashlib.sha256(b"three").digest()
    again = called(data, "--field", "body", "--out", tmp_path / "out", "--json")
    assert again.returncode == 64
    assert json.loads(again.stderr)["error"] == "corpus-exists"


def test_the_command_in_words(tmp_path: Path):
    (tmp_path / "a.bin").write_bytes(np.array([1, 50256, 2, 50256], "<u2").tobytes())
    shown = called("a.bin", "--delimiter", 50256, "--no-header", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "2, 4 tokens (uint16)" in shown.stdout
    assert "witness train PROGRAM --data a.bin.corpus" in shown.stdout
    assert open_corpus(tmp_path / "a.bin.corpus", Packing("windows", 3, 1)).documents.samples == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--packing", "windows"),
        ("--packing", "windows:0:1"),
        ("--packing", "windows:1:-1"),
        ("--packing", "documents:3"),
    ],
)
def test_a_packing_that_means_nothing(tmp_path: Path, arguments: tuple):
    (tmp_path / "a.txt").write_text("words")
    shown = called(tmp_path / "a.txt", "--out", tmp_path / "out", *arguments)
    assert shown.returncode == 64
    assert "windows:LENGTH:STRIDE" in shown.stderr


def test_the_command_names_what_it_accepts(tmp_path: Path):
    (tmp_path / "a.xyz").write_text("words")
    shown = called(tmp_path / "a.xyz", "--out", tmp_path / "out")
    assert shown.returncode == 64
    assert ".parquet" in shown.stderr
    assert not (tmp_path / "out").exists()
