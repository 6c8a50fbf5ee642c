"""Reading files in several processes, one for each core: the way to use more than one of them for hashing.

A worker is a Python of its own (`witness.data.worker`) that is sent runs of files, takes each run in and leaves what it
found in part files. The parts are put together in the order of the files, so the result is the same for any number of
workers. Both sides speak canonical JSON, a line each, over pipes; a worker whose pipe ends has nothing left to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NamedTuple, cast

import witness
from protocol.corpus import Leaves
from protocol.encoding import Struct, decode, encode
from protocol.errors import UsageError, VerificationError
from witness.data.files import DataFile, readable
from witness.data.intake import Intake, Part, Watcher
from witness.data.options import DataOptions

RUN_BYTES, RUN_FILES = 32 << 20, 4096
"""A run of files ends when it reaches either: large enough to be worth a message, small enough to share out evenly."""
MAX_MESSAGE = 1 << 20


class Job(Struct, frozen=True):
    """To a worker: take in files `first` to `stop` of the data at `path`, into part files that begin with `part`."""

    path: str
    options: DataOptions
    first: int
    stop: int
    part: str


class Report(Struct, frozen=True, tag="done", tag_field="type"):
    """From a worker: for each file its length, its time, and how many documents and bytes there were with it."""

    files: tuple[tuple[int, str, int, int], ...]


class Failure(Struct, frozen=True, tag="failed", tag_field="type"):
    """From a worker: the error, of the family that its code belongs to."""

    code: str
    message: str
    changed: bool
    next_action: str


def part_names(part: str) -> tuple[Path, Path, Path]:
    """The files that a worker leaves: leaves, places of lines, documents."""
    return Path(part + ".leaves"), Path(part + ".lines"), Path(part + ".data")


class Work(NamedTuple):
    """What is worked on.

    Attributes:
        path: of the data, as a worker finds it.
        options: the same for every worker.
        folder: for part files; exists, and is emptied as they are used.
        workers: how many.
    """

    path: str
    options: DataOptions
    folder: Path
    workers: int


def take_in(intake: Intake, work: Work, watcher: Watcher | None = None) -> None:
    """Reads the files that are not done, in several processes where that is worth it.

    Raises:
        What `Intake.run` and `Intake.absorb` raise. UsageError: `data-worker`, when a worker dies.
    """
    files = intake.source.files
    runs = list(_runs(files, intake.done))
    workers = min(work.workers, len(runs))
    if workers > 1 and readable(work.path) == work.path:
        with _pool(workers) as ask:
            waiting: deque[tuple[range, str, Future[Report]]] = deque()
            for number, run in enumerate(runs):
                part = str(work.folder / f"{number:08}")
                waiting.append((run, part, ask(Job(work.path, work.options, run.start, run.stop, part))))
                if len(waiting) > 2 * workers:
                    _absorb(intake, watcher, *waiting.popleft())
            while waiting:
                _absorb(intake, watcher, *waiting.popleft())
    intake.run(watcher)
    intake.finish()


def _absorb(intake: Intake, watcher: Watcher | None, run: range, part: str, answer: Future[Report]) -> None:
    report = answer.result()
    leaves, lines, data = part_names(part)
    for index, (length, modified, _, _) in zip(run, report.files, strict=True):
        file = intake.source.files[index]
        if (length, modified) != (file.stamp.length, str(file.stamp.modified)):
            raise VerificationError("corpus-changed", f"{file} changed while it was being read")
    with data.open("rb") as spooled:
        totals = [(documents, size) for _, _, documents, size in report.files]
        intake.absorb(Part(Leaves(leaves.read_bytes()), lines.read_bytes(), spooled, totals), watcher)
    for path in (leaves, lines, data):
        path.unlink()


def _runs(files: Sequence[DataFile], first: int) -> Iterator[range]:
    size = 0
    for index in range(first, len(files)):
        size += files[index].stamp.length
        if size >= RUN_BYTES or index + 1 - first >= RUN_FILES:
            yield range(first, index + 1)
            first, size = index + 1, 0
    if first < len(files):
        yield range(first, len(files))


@contextmanager
def _pool(workers: int):  # type: ignore[no-untyped-def] # Iterator[Callable[[Job], Future[Report]]], which reads worse
    """Workers, and a function that asks whichever is free."""
    root = str(Path(witness.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "witness.data.worker"]
    started: list[subprocess.Popen[bytes]] = []
    free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()

    def ask(job: Job) -> Report:
        worker = free.get()
        try:
            return _asked(worker, job)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            started.append(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
                )
            )
            free.put(started[-1])
        yield lambda job: pool.submit(ask, job)
    finally:
        for worker in started:
            worker.kill()
        pool.shutdown(cancel_futures=True)
        for worker in started:
            with suppress(BrokenPipeError), worker:  # of a question that it did not live to read
                pass


def _asked(worker: subprocess.Popen[bytes], job: Job) -> Report:
    stdin, stdout = cast("BinaryIO", worker.stdin), cast("BinaryIO", worker.stdout)
    line = b""
    with suppress(BrokenPipeError):
        stdin.write(encode(job) + b"\n")
        stdin.flush()
        line = stdout.readline(MAX_MESSAGE)
    if not line.endswith(b"\n"):
        raise UsageError("data-worker", f"a process that reads the data died (exit status {worker.poll()})")
    reply: Report | Failure = decode(line[:-1], Report | Failure, limit=MAX_MESSAGE)  # type: ignore[arg-type] # a union
    if isinstance(reply, Failure):
        family = VerificationError if reply.changed else UsageError
        raise family(reply.code, reply.message, next_action=reply.next_action)
    return reply
