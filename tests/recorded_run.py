"""One small real run, recorded once a process, and ways to alter copies of it."""

import functools
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import witness
from protocol.encoding import encode
from protocol.manifest import Manifest, parse_manifest
from protocol.records import AfterManifest, parse_entry
from witness.logreader import LogReader, Row
from witness.programs.gpt import GPT, GPTConfig
from witness.rundir import RunDir

STEPS, EVERY = 8, 4
TEXTS = ["it was a dark and stormy night. " * 40, "", "the rain fell in torrents. " * 30]
CONFIG = GPTConfig(layers=1, heads=2, width=32, context=16, warmup=2, steps=STEPS, batch_size=4)


@functools.cache
def _recorded() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="witness-recorded-")) / "run"
    threads, deterministic = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    try:
        with witness.record(folder, GPT(CONFIG), TEXTS, checkpoint_every=EVERY, pieces=4096) as run:
            for batch in run:
                run.step(batch)
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)
    return folder


@pytest.fixture(scope="session")
def recorded() -> Iterator[Path]:
    """The run; nobody writes to it."""
    yield _recorded()
    shutil.rmtree(_recorded().parent, ignore_errors=True)
    _recorded.cache_clear()


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> RunDir:
    """A copy of the run, to alter."""
    return RunDir(Path(shutil.copytree(recorded, tmp_path / "run")))


def rows(run: RunDir) -> list[Row]:
    """The rows of an undamaged log."""
    with LogReader(run.log_path) as log:
        found = list(log.rows())
    assert all(isinstance(row, Row) for row in found)
    return found


@contextmanager
def editing(run: RunDir) -> Iterator[sqlite3.Connection]:
    """The log's database, without the triggers that keep it append-only."""
    connection = sqlite3.connect(run.log_path)
    for name in ("leaf_no_delete", "leaf_no_update"):
        connection.execute(f"DROP TRIGGER {name}")
    yield connection
    connection.commit()
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()


def record_again(
    run: RunDir,
    change: Callable[[int, AfterManifest], AfterManifest | None] = lambda _, record: record,
    change_manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> None:
    """Writes another log, signed by the trainer's own key at the same places: what a cheat would have recorded.

    Args:
        run: to alter.
        change: maps entry number and entry to another entry, or to None for none.
        change_manifest: maps the manifest to another one.
    """
    old, sizes, key = rows(run), run.head_sizes(), run.read_key()
    run.log_path.unlink()
    shutil.rmtree(run.heads)
    run.heads.mkdir()
    manifest = change_manifest(parse_manifest(old[0].entry))
    with run.log() as log:
        for row in old:
            entry = change(row.number, parse_entry(row.entry)) if row.number else manifest
            if entry is not None:
                log.append(encode(entry))
            if row.number + 1 in sizes:
                run.sign_head(log, manifest.origin, key)
