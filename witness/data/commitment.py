"""Committing to data in a folder, so that a run finds it hashed and, where it has to be made, made.

The folder is a stored corpus (`witness.data.stored`) that can be named as data. Documents that have to be made are
written there as they are found; others stay where they are unless they are few. An interrupted commit goes on where it
stopped (`witness.data.journal`).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, cast

from protocol.corpus import Packing
from protocol.errors import UsageError
from witness.data.corpus import Corpus, Progress, require_samples
from witness.data.files import DataFile, HeldFile, readable
from witness.data.intake import Intake
from witness.data.journal import JOURNAL, Heading, Journal
from witness.data.options import DataOptions
from witness.data.source import find
from witness.data.stored import COPY_LIMIT, DATA, is_committed, open_committed, store
from witness.data.text import resolve
from witness.data.workers import Work, take_in
from witness.statefile import disk_error

PARTS = "parts"


def commit_here(data: str | Path, packing: Packing, options: DataOptions, progress: Progress | None = None) -> Corpus:
    """Commits to data at a path; documents that have to be made are kept in a temporary file while the corpus lives.

    Raises:
        UsageError: what `find` and the format's reader raise; `disk`, `disk-full`.
        VerificationError: `corpus-changed`, when the data changes meanwhile.
    """
    source = find(data, options)
    if source.location is not None:
        intake = Intake(source, None, progress)
        intake.run()
        intake.finish()
        return intake.corpus(packing, None)
    try:
        spool = cast("BinaryIO", TemporaryFile(prefix="witness-data-"))  # noqa: SIM115 - it lives as long as the corpus
    except OSError as error:
        raise disk_error(Path("a temporary file"), error) from error
    with ExitStack() as undo:
        undo.callback(spool.close)
        intake = Intake(source, spool, progress)
        intake.run()
        intake.finish()
        spool.flush()
        undo.pop_all()
    return intake.corpus(packing, HeldFile(spool, f"the documents of {source.name}"))


def commit_folder(
    data: str | Path,
    folder: Path,
    packing: Packing,
    options: DataOptions,
    progress: Progress | None = None,
    *,
    copy_limit: int = COPY_LIMIT,
    workers: int = 1,
) -> Corpus:
    """Commits to data at a path, in a folder. After an interruption, the same call goes on.

    Args:
        data: a path.
        folder: to write; missing, empty, or with the beginning of this very commit.
        packing: how samples are cut; a run that uses the corpus says so again.
        options: what is known of the data.
        progress: told as files are read.
        copy_limit: documents of up to this many bytes in all are copied; the path is kept otherwise.
        workers: processes to share the files out to.

    Raises:
        UsageError: `corpus-exists`, `corpus-busy`, and what `find` and the format's reader raise; `disk`, `disk-full`.
        VerificationError: `corpus-changed`, when the data changes meanwhile.
    """
    path = resolve(data)
    _require_free(path, folder)
    source = find(data, options)
    heading = Heading(readable(str(path)), options, source.reader.tokenizer)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from error
    kept = folder.resolve() / DATA
    with ExitStack() as stack:
        spool = None if source.location is not None else stack.enter_context(_open(kept))
        intake = Intake(source, spool, progress)
        journal = stack.enter_context(Journal(folder, heading, intake, spool).opened())
        take_in(intake, Work(str(path), options, stack.enter_context(_parts(folder)), workers), journal)
        journal.write()
        if spool is not None:
            spool.flush()
            os.fsync(spool.fileno())
        corpus = require_samples(intake.corpus(packing, None if spool is None else DataFile(str(kept))))
        store(corpus, folder, copy_limit=copy_limit)
        del corpus  # it is opened again from what was stored, and two of them need twice the memory
        journal.remove()
    return open_committed(folder)


def _require_free(path: Path, folder: Path) -> None:
    if path.is_dir() and is_committed(path):
        raise UsageError(
            "corpus-exists", f"{path} is a committed corpus already", next_action="name it as data of a run"
        )
    if folder.resolve().is_relative_to(path):
        raise UsageError("data-option", f"{folder} lies in the data itself", next_action="name a folder elsewhere")
    try:
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    except OSError as error:
        raise disk_error(folder, error) from error
    if found and JOURNAL not in found:
        what = "a committed corpus" if is_committed(folder) else f"other files, such as {found[0]}"
        raise UsageError("corpus-exists", f"{folder} holds {what}")


@contextmanager
def _parts(folder: Path) -> Iterator[Path]:
    """A folder for what workers find; nothing in it is of use to another commit."""
    parts = folder / PARTS
    shutil.rmtree(parts, ignore_errors=True)
    try:
        parts.mkdir()
    except OSError as error:
        raise disk_error(parts, error) from error
    try:
        yield parts
    finally:
        shutil.rmtree(parts, ignore_errors=True)


def _open(path: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666), "r+b")
    except OSError as error:
        raise disk_error(path, error) from error
