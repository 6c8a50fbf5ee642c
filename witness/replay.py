"""Replay: hand states and records to the sandbox, take back what came out, and hash it here.

The parent never imports the program and needs no torch. What the sandbox leaves is a stranger's: read with caps, parsed
strictly, hashed, and only then compared - by the caller - with what was committed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from msgspec import structs

from protocol.comparison import Comparison
from protocol.encoding import decode, encode
from protocol.errors import CODES, IncompleteError, ProtocolError, VerificationError
from protocol.manifest import Manifest
from protocol.messages import join_entries
from protocol.operations import OperationSpec
from protocol.records import Fingerprint
from protocol.statetree import Entry, Table
from witness import profile, sandbox
from witness.hashing import hash_state
from witness.statefile import parse_state, write_state
from witness.worker_files import Job, Shown, Trouble

TARGET = "witness.worker:main"
ROWS = 4096
"""Hyperparameter rows a job."""


@dataclass(frozen=True, slots=True)
class Input:
    """What one step reads: the bytes of its samples and of its probe's samples."""

    samples: Sequence[bytes]
    probe: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class ReplayedState:
    """A state that came out of the sandbox, hashed here."""

    table: Table
    entries: list[Entry]
    buffers: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """What an executed step showed, and the state after it where it was kept."""

    step: int
    fingerprint: Fingerprint
    hyperparameters: Mapping[str, str | int | bool | None]
    batch: bytes
    state: ReplayedState | None


class Replayer:
    """Executes parts of one run in the sandbox; a context manager.

    Args:
        manifest: of the run; its profile says in which environment the sandbox starts.
        program: folder with the program's files, checked against the manifest; None for a reference program.
        limits: of each job.
    """

    def __init__(self, manifest: Manifest, program: Path | None, *, limits: sandbox.Limits | None = None) -> None:
        self.manifest = manifest
        self._program = program.resolve() if program else None
        self._work = TemporaryDirectory(prefix="witness-replay-", ignore_cleanup_errors=True)
        self._limits = limits or sandbox.Limits()
        self._sandbox = sandbox.Sandbox(
            environment=profile.environment(manifest.profile),
            readable=[self._program] if self._program else [],
            limits=self._limits,
            # The first optimiser of a process imports torch._dynamo, which takes longer than most steps.
            preload=("torch", "torch._dynamo", "witness.worker", *profile.preloads(manifest.profile)),
        )
        self._count = 0
        self.seconds: list[float] = []
        """Wall seconds of each job."""
        self.trace = False
        """Whether jobs list the operations they use, in `traced`."""
        self.traced: tuple[OperationSpec, ...] = ()

    def __enter__(self) -> Self:
        self._sandbox.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sandbox.close()
        self._work.cleanup()

    @property
    def largest_state(self) -> int:
        """Bytes of the largest state that the limits let a job read and write."""
        return self._limits.file_bytes

    # -- jobs -------------------------------------------------------------------------------------

    def compare(self) -> Comparison:
        """Whether this machine can be held to the recorded bits.

        Raises:
            IncompleteError: naming the line or operation that differs.
        """
        with self._job(Job("compare", self._folder())) as job:
            self._run(job)
            return decode(sandbox.read_output(job, "comparison", limit=1 << 20), Comparison, limit=1 << 20)

    def hyperparameters(self, first: int, last: int) -> list[dict[str, str | int | bool | None]]:
        """What the program's pure function says for steps `first` to `last`, in order; at most `ROWS` of them."""
        with self._job(Job("hyperparameters", self._folder(), first, last)) as job:
            self._run(job)
            data = sandbox.read_output(job, "hyperparameters", limit=1 << 26)
            rows = decode(data, list[dict[str, str | int | bool | None]], limit=1 << 26)
        if len(rows) != last - first + 1:
            raise ProtocolError("sandbox-output", f"{len(rows)} rows of hyperparameters for {last - first + 1} steps")
        return rows

    def init(self) -> ReplayedState:
        """The initial state, built from the seed."""
        with self._job(Job("init", self._folder())) as job:
            self._run(job)
            return self._state(job, 0)

    def steps(
        self,
        entries: Sequence[Entry],
        buffers: Mapping[str, bytes],
        first: int,
        inputs: Sequence[Input],
        keep: Sequence[int],
        progress: Callable[[int], None] | None = None,
    ) -> list[ReplayedStep]:
        """Executes consecutive steps from a state.

        Args:
            entries: of the state before step `first`.
            buffers: its bytes.
            first: number of the first step.
            inputs: what each step reads, in order.
            keep: steps after which the state is wanted.
            progress: called with the number of steps done.

        Raises:
            IncompleteError: the job could not run to its end here.
            VerificationError: `replay-failed`, when the program itself fails on committed input.
        """
        last = first + len(inputs) - 1
        with self._job(Job("steps", self._folder(), first, last, tuple(keep))) as job:
            write_state(job / "before.state", entries, buffers.__getitem__, durable=False)
            for step, given in enumerate(inputs, first):
                (job / f"{step}.samples").write_bytes(join_entries(list(given.samples)))
                (job / f"{step}.probe").write_bytes(join_entries(list(given.probe)))
            done = 0

            def count(_: str) -> None:
                nonlocal done
                done = min(done + 1, len(inputs))
                if progress is not None:
                    progress(done)

            self._run(job, len(inputs), count)
            return [self._step(job, step, step in keep) for step in range(first, last + 1)]

    # -- inside -----------------------------------------------------------------------------------

    def _folder(self) -> str:
        return str(self._program) if self._program else ""

    def _job(self, job: Job) -> _Folder:
        self._count += 1
        folder = Path(self._work.name) / f"{self._count}"
        folder.mkdir()
        (folder / "manifest").write_bytes(encode(self.manifest))
        (folder / "job").write_bytes(encode(structs.replace(job, trace=self.trace)))
        return _Folder(folder)

    def _run(self, job: Path, steps: int = 1, progress: Callable[[str], None] | None = None) -> None:
        limits = replace(
            self._limits,
            wall_seconds=self._limits.wall_seconds * steps,
            cpu_seconds=self._limits.cpu_seconds * steps,
            output_entries=self._limits.output_entries + 8 * steps,
        )
        self.traced = ()
        result = self._sandbox.run(job, TARGET, limits=limits, progress=progress)
        self.seconds.append(result.wall_seconds)
        if self.trace and (job / "operations").exists():
            data = sandbox.read_output(job, "operations", limit=1 << 24)
            self.traced = decode(data, tuple[OperationSpec, ...], limit=1 << 24)
        if (job / "error").exists():
            raise _trouble(decode(sandbox.read_output(job, "error", limit=1 << 20), Trouble, limit=1 << 20))
        if result.end is sandbox.End.FORBIDDEN:
            raise VerificationError(
                "replay-failed",
                "the program was stopped: it kept calling what a replay may not call",
                evidence={"refused": list(result.refused)},
            )
        if not result.succeeded:
            raise IncompleteError(
                "replay-stopped",
                f"the replay did not come to its end here: {result.end.value}",
                evidence={
                    "exit_status": result.exit_status,
                    "signal": result.signal,
                    "stderr": result.stderr_tail[-500:],
                },
            )

    def _step(self, job: Path, step: int, keep: bool) -> ReplayedStep:
        shown = decode(sandbox.read_output(job, f"{step}.record", limit=1 << 20), Shown, limit=1 << 20)
        batch = self._read(job, f"{step}.batch")
        state = self._state(job, step) if keep else None
        return ReplayedStep(step, shown.fingerprint, shown.hyperparameters, batch.table.root, state)

    def _state(self, job: Path, step: int) -> ReplayedState:
        return self._read(job, f"{step}.state")

    def _read(self, job: Path, name: str) -> ReplayedState:
        data = sandbox.read_output(job, name, limit=self._limits.file_bytes)
        entries, buffers = parse_state(data, self.manifest.pieces, name)
        return ReplayedState(hash_state(entries, buffers.__getitem__, self.manifest.pieces), entries, buffers)


class _Folder:
    """A job's folder, removed afterwards whatever happened."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Path:
        return self._path

    def __exit__(self, *_: object) -> None:
        sandbox.discard(self._path)
        shutil.rmtree(self._path, ignore_errors=True)


def _trouble(found: Trouble) -> Exception:
    """What the worker reported, as the error it means: a failing program is a divergence, a missing means is not.

    It accuses in two ways only (`witness.worker` says when). Whatever else went wrong went wrong here.
    """
    evidence: dict[str, Any] = dict(found.evidence)
    if found.code == "replay-failed":
        return VerificationError(found.code, found.message, evidence=evidence)
    if found.code == "program-arguments":
        return ProtocolError(found.code, found.message, evidence=evidence)
    if found.code not in CODES:
        return ProtocolError("sandbox-output", "the replay reported something unintelligible")
    if CODES[found.code].family == "cannot tell":
        return IncompleteError(found.code, found.message, evidence=evidence)
    return IncompleteError(
        "replay-stopped", f"{found.code}: {found.message}", evidence={**evidence, "found": found.code}
    )
