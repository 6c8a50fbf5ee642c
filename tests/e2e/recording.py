"""Experiments on the recorder, run in a process of the laboratory: small runs, and ends in the middle of a write."""

import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from e2e.lab import KILLED
from msgspec import structs

from protocol.operations import OperationProbe
from protocol.records import StepRecord
from witness import keys, machine
from witness.logstore import LogStore
from witness.operations import OperationRecorder
from witness.program import Program
from witness.programs import gpt
from witness.programs.gpt import GPT, GPTConfig
from witness.programs.mlp import MLP, MLPConfig
from witness.recorder import Batch, Recorder, record
from witness.rundir import RunDir
from witness.state import Census
from witness.training import find_program

ROWS = [bytes((i, 7 * i % 256, 13 * i % 256, 31 * i % 256, i % 5)) for i in range(48)]
TEXTS = [b"document %d says that %d is not %d. " % (i, i, i + 1) * 6 for i in range(24)]


def small(kind: str, steps: int) -> tuple[Program, list[bytes] | None]:
    """A program with dropout and AdamW, or one with momentum, BatchNorm and a scheduler; and its data."""
    if kind == "command":  # what `e2e.command.SMALL_GPT` says
        return GPT(GPTConfig(layers=1, heads=2, width=32, context=32, steps=steps)), None
    if kind == "wide":  # enough rows and columns for torch to share them out among threads
        return MLP(MLPConfig(hidden=256, steps=steps, batch_size=512)), None
    if kind in ("gpt", "long"):
        context = 16 if kind == "gpt" else 128
        config = GPTConfig(layers=1, heads=2, width=32, context=context, warmup=3, steps=steps, batch_size=2)
        return GPT(config), TEXTS
    return MLP(MLPConfig(columns=4, hidden=8, layers=1, classes=5, steps=steps, batch_size=4, halve_every=5)), ROWS


def open_recorder(folder: str, *, kind: str, steps: int, resume: bool = False, **options: Any) -> Recorder:
    """A new run, or one that goes on."""
    program, data = small(kind, steps)
    return record(folder, program, data, resume=resume, **options)


def run_to_end(folder: str, *, kind: str = "mlp", steps: int = 4, resume: bool = False, **options: Any) -> Any:
    """Records a run, or continues one, to its end."""
    with open_recorder(folder, kind=kind, steps=steps, resume=resume, **options) as run:
        for batch in run:
            run.step(batch)
    return {"root": run.last_root.hex(), "steps": run.step_number}


def run_on(data: Any, folder: str, *, kind: str = "gpt", steps: int = 4, **options: Any) -> Any:
    """Records a run on other data: a path, or rows.

    Returns:
        The losses, and the most memory that this process had, in bytes.
    """
    program, _ = small(kind, steps)
    rows = [bytes(row) for row in data] if isinstance(data, list) else data
    with record(folder, program, rows, **options) as run:
        for batch in run:
            run.step(batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"root": run.last_root.hex(), "losses": run.losses, "peak": peak}


def run_program(source: str, folder: str, *, resume: bool = False, search: Any = (), **options: Any) -> Any:
    """Records a run of `PROGRAM.py:Class`, as the command line does; `search` is where this machine has packages."""
    sys.path[:0] = search
    program = find_program(source)()
    with record(folder, program, options.pop("data", ROWS), resume=resume, **options) as run:
        for batch in run:
            run.step(batch)
    return {"root": run.last_root.hex(), "digest": run.manifest.program.digest.hex()}


def run_to_step(folder: str, stop: int, *, closes: bool, **options: Any) -> Any:
    """Records up to a step, then closes the run as Ctrl-C does, or ends as kill -9 does."""
    run = open_recorder(folder, **options)
    for batch in run:
        run.step(batch)
        if batch.step == stop:
            break
    if not closes:
        os._exit(KILLED)
    run.close()
    return run.step_number


def resumed_at_every_step(folder: str, *, kind: str, steps: int, closes: bool, **options: Any) -> Any:
    """A run that stops, or is left as it is, after each step and goes on in a new recorder each time."""
    for number in range(steps):
        run = open_recorder(folder, kind=kind, steps=steps, resume=number > 0, **options)
        run.step(next(iter(run)))
        if closes:
            run.close()
        else:  # what the death of the process does: nothing is written, the lock and the connection go
            run.log.close()
            run.run.unlock()
    return run.last_root.hex()


# -- other machines ------------------------------------------------------------------------------


def run_with_build(folder: str, lines: dict[str, str], **options: Any) -> Any:
    """Records, or continues, on what claims to be another machine: some lines of its profile differ."""
    build = machine.build
    machine.build = lambda: {**build(), **lines}  # type: ignore[assignment]
    return run_to_end(folder, **options)


def run_with_operation_digest(folder: str, operation: str, **options: Any) -> Any:
    """Records where one operation gave other bits, as another CPU would."""
    probe = OperationRecorder.probe

    def altered(recorder: OperationRecorder) -> OperationProbe:
        found = probe(recorder)
        changed = [
            structs.replace(o, digest="0" * len(o.digest)) if o.spec.operator.startswith(operation) else o
            for o in found.operations
        ]
        assert changed != list(found.operations)
        return structs.replace(found, operations=tuple(changed))

    OperationRecorder.probe = altered  # type: ignore[method-assign]
    return run_to_end(folder, **options)


def run_with_flipped_bit(folder: str, step: int, leaf: str, lines: dict[str, str] | None = None, **options: Any) -> Any:
    """Records a run in which one bit of the state after a step is not what the step left, and is committed to."""
    advance = Recorder._advance

    def flipping(recorder: Recorder, batch: Batch | None = None) -> StepRecord:
        made = advance(recorder, batch)
        if made.step != step:
            return made
        census = Census(recorder.program, recorder.state)
        tensor = census.leaves[leaf]
        tensor.view(-1)[0:1].view(torch.int32).bitwise_xor_(1)  # type: ignore[union-attr]
        recorder._previous_root = recorder._table(Census(recorder.program, recorder.state)).root
        return structs.replace(made, state_root=recorder._previous_root.hex())

    Recorder._advance = flipping  # type: ignore[method-assign]
    return run_with_build(folder, lines or {}, **options)


def run_with_other_cosine(folder: str, **options: Any) -> Any:
    """Records where a cosine has other last bits, as with another libm; learning rates follow it."""
    cosine = math.cos
    math.cos = gpt.cos = lambda x: cosine(x) * (1 + 2.0**-50)
    return run_to_end(folder, **options)


def run_in_environment(folder: str, variables: dict[str, str], **options: Any) -> Any:
    """Records, or continues, in a process that was started with other variables."""
    os.environ.update(variables)
    return run_to_end(folder, **options)


# -- ends in the middle of a write


class WritePoints:
    """Counts everything that the recorder makes durable, and ends the process just before or just after one of them.

    Args:
        end: number of the write, and `before` or `after`; None to count only.

    Attributes:
        labels: what was written, in order.
    """

    def __init__(self, end: tuple[int, str] | None) -> None:
        self.end, self.labels = end, []

    def __enter__(self) -> Self:
        self._wrap(LogStore, "append", lambda _, entry: f"append {json.loads(entry)['type']}")
        self._wrap(LogStore, "flush", lambda _: "flush")
        self._wrap(Path, "replace", lambda _, target: f"rename {target.parent.name}/{target.name}")
        self._wrap(keys, "write_key", lambda path, _: f"key {path.name}")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _wrap(self, owner: Any, name: str, label: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def write(*args: Any) -> Any:
            number = len(self.labels)
            self.labels.append(label(*args))
            if self.end == (number, "before"):
                os._exit(KILLED)
            done = original(*args)
            if self.end == (number, "after"):
                os._exit(KILLED)
            return done

        setattr(owner, name, write)


def run_with_write_points(folder: str, number: int | None = None, side: str = "", **options: Any) -> Any:
    """Records a run, and ends at a write; or lists the writes."""
    with WritePoints(None if number is None else (number, side)) as points:
        run_to_end(folder, **options)
    return points.labels


# -- what else can happen


def run_on_small_disk(folder: str, limit: int, **options: Any) -> Any:
    """Records while no file may grow beyond `limit` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return run_to_end(folder, **options)


def run_with_failing_append(folder: str, failing: int, **options: Any) -> Any:
    """Records while the disk refuses one entry of the log, and only that one."""
    original, count = LogStore.append, 0

    def append(store: LogStore, entry: bytes) -> int:
        nonlocal count
        count += 1
        if count == failing:
            from witness.statefile import disk_error

            raise disk_error(store.path, OSError(28, "No space left on device"))
        return original(store, entry)

    LogStore.append = append  # type: ignore[method-assign]
    return run_to_end(folder, **options)


def truncate_log(folder: str, entries: int) -> None:
    """The log as a power cut may leave it where a disk lies about flushing: its last entries are gone."""
    run = RunDir(Path(folder))
    with run.log() as log:
        kept = list(log.entries(0, entries))
    for suffix in ("", "-wal", "-shm"):
        run.log_path.with_name(run.log_path.name + suffix).unlink(missing_ok=True)
    with LogStore(run.log_path) as log:
        for entry in kept:
            log.append(entry)
