"""Record a run: commit to what it is, then to every state it reaches.

    with witness.record("runs/a", CharGPT(config), data) as run:
        for batch in run:
            loss = run.step(batch)

The program is tried twice on scratch copies: before step 1 for one step (which the operation recorder watches under the
native profile: which operations, shapes and dtypes does it really use?), and after the second real step, that step once
more from the restored state. A program that keeps state where the census cannot see it, or draws from somewhere else
than its seeds, is refused there and then, by the name of the tensor that differs, instead of failing an honest run's
verification weeks later.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors.torch import save_file

from protocol.encoding import encode, encode_trusted
from protocol.errors import IncompleteError, UsageError, WitnessError
from protocol.keys import SigningKey
from protocol.manifest import Manifest, validate
from protocol.native_profile import NativeProfile
from protocol.operations import OperationProbe
from protocol.profile import NATIVE, full_name
from protocol.records import (
    AfterManifest,
    CheckpointEvent,
    FaultEvent,
    FinalEvent,
    InitRecord,
    ResumeEvent,
    StepRecord,
)
from protocol.schedule import Schedule, probe_indices
from protocol.statetree import Entry, Table, first_difference
from witness import keys, source
from witness import profile as numeric
from witness.data import Corpus, open_corpus, open_stored, store
from witness.declared import differing, sentence
from witness.execute import Outcome, build, run_step
from witness.hashing import hash_state
from witness.history import require_unbroken
from witness.ledgers import store as store_ledgers
from witness.logstore import LogStore
from witness.program import Program, State, instantiate, plain_arguments
from witness.promise import Promise, Settings
from witness.readable import readable
from witness.restore import restore
from witness.rundir import RunDir, last_checkpoint, read_log
from witness.state import Census
from witness.statefile import atomic_write, write_state

NO_ROOT = bytes(32)
COMPILED = (
    "The program is compiled (torch.compile): code of the default back end can be made neither in a verifier's sandbox "
    "nor in the one that rebuilds states, so that verification will be incomplete. Record without torch.compile."
)


class RecordingWarning(UserWarning):
    """Something that does not keep a run from being recorded, and that its trainer should know."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What the committed schedule draws for one step; the program's `collate` makes tensors of it inside `run.step`.

    Attributes:
        step: number of the step, from 1.
        indices: sample numbers, in batch order.
        samples: their bytes.
    """

    step: int
    indices: list[int]
    samples: list[bytes]


def record(
    folder: str | Path,
    program: Program,
    data: Any = None,
    *,
    steps: int | None = None,
    batch_size: int | None = None,
    seed: int | bytes = 0,
    key: SigningKey | str | Path | None = None,
    checkpoint_every: int | None = None,
    commit_every: int = 1,
    pieces: int | None = None,
    ledgers: Sequence[str] = ("default",),
    profile: str | None = None,
    resume: bool = False,
) -> Recorder:
    """Starts recording a run, or continues one.

    Args:
        folder: of the run; missing or empty, unless `resume`.
        program: the run as a transition function.
        data: a path, a list of texts or bytes, a numpy array or a `Corpus`; None for the embedded corpus.
        steps: how many steps are promised (default: the program's `steps`).
        batch_size: samples a step (default: the program's `batch_size`).
        seed: an integer, or 32 bytes; everything random derives from it.
        key: the trainer's signing key or its file; None makes one inside the run's folder.
        checkpoint_every: keep the state every so many steps (default: about 20 states a run).
        commit_every: commit the state root every so many steps.
        pieces: bytes of a state piece, a power of two from 4 KiB to 1 MiB.
        ledgers: tiers of the ledgers over the corpus (`default`: raw bytes, and normalised text where this Python can).
        profile: numeric profile: `native` (torch's own arithmetic, replayed on machines like this one), `exact`
            (defined arithmetic, replayed anywhere) or `exact-14`, `exact-18`; None for `witness.profile.DEFAULT`.
        resume: continue the run in `folder`; everything else must be as it was.

    Raises:
        UsageError: `run-exists`, `run-missing`, `run-locked`, `empty-corpus`, `unbound-state`, `not-self-contained`,
            `profile-unknown`, `exact-refused`, ...
        IncompleteError: `arithmetic-unproven`.
    """
    source.stop_when_loading()
    if resume:
        return Recorder.resume(Path(folder), program, key, profile=profile)
    recorder = Recorder.begin(
        Path(folder),
        program,
        data,
        steps=steps,
        batch_size=batch_size,
        seed=seed,
        key=key,
        checkpoint_every=checkpoint_every,
        commit_every=commit_every,
        pieces=pieces,
        ledgers=ledgers,
        profile=profile,
    )
    for text in recorder.warnings:
        warnings.warn(text, RecordingWarning, stacklevel=2)
    return recorder


def _signer(key: SigningKey | str | Path | None) -> SigningKey | None:
    return keys.read_key(Path(key)) if isinstance(key, str | Path) else key


class Recorder:
    """A run being recorded; use `witness.record` to make one, as a context manager and an iterator of batches."""

    def __init__(self, run: RunDir, program: Program, corpus: Corpus, key: SigningKey) -> None:
        self.run, self.program, self.corpus, self.key = run, program, corpus, key
        self.own_key = False
        """Whether the key was made for this run and lies in its folder, so that it names nobody."""
        self.manifest: Manifest
        self.log: LogStore
        self.state: State
        self.step_number = 0
        """Steps done."""
        self.losses: list[float] = []
        """Losses of the steps done in this process."""
        self.warnings: list[str] = []
        """What the trial step showed that whoever records should know, a sentence each."""
        self.stopping = False
        """Set this (from a signal handler, say) to end after the current step; the run can be resumed."""
        self._previous_root = NO_ROOT
        self._snapshot: tuple[list[Entry], dict[str, bytes]] | None = None
        self._first_root: Table | None = None
        self._broken = False
        self._finished = False
        self._schedule: Schedule
        self._arithmetic: numeric.Arithmetic

    @property
    def last_root(self) -> bytes:
        """The state root after the last step, or after the initial state; 32 zeros where none was committed."""
        return self._previous_root

    # -- beginning --------------------------------------------------------------------------------

    @classmethod
    def begin(
        cls,
        folder: Path,
        program: Program,
        data: Any,
        *,
        steps: int | None,
        batch_size: int | None,
        seed: int | bytes,
        key: SigningKey | str | Path | None,
        checkpoint_every: int | None,
        commit_every: int,
        pieces: int | None,
        ledgers: Sequence[str] = ("default",),
        profile: str | None = None,
    ) -> Self:
        """Starts a new run; see `record`."""
        signer = _signer(key)
        corpus = open_corpus(data, program.packing()) if data is not None else program.default_data()
        chosen = profile or numeric.DEFAULT
        settings = Settings(steps, batch_size, seed, checkpoint_every, commit_every, pieces, ledgers, chosen)
        promise = cls.promise(program, corpus, settings)  # whatever is wrong is found before anything is written
        numeric.begin(promise.profile)
        run = RunDir.create(folder)
        made = signer is None
        if signer is None:
            signer = run.read_key() if run.key.exists() else keys.generate("trainer")
        recorder = cls(run, program, corpus, signer)
        recorder.own_key = made
        with ExitStack() as undo:
            run.lock()
            undo.callback(recorder._release)
            recorder.start(promise)
            undo.pop_all()
        return recorder

    @classmethod
    def promise(cls, program: Program, corpus: Corpus, settings: Settings) -> Promise:
        """What the run promises."""
        return Promise(program, corpus, settings)

    def start(self, promise: Promise) -> None:
        """Tries one step on a scratch copy, then commits to the manifest and the initial state."""
        self._use(promise.manifest(self.key.public, numeric.capture(promise.profile, {}), OperationProbe()))
        validate(self.manifest)
        with numeric.operation_recorder(self.manifest.profile) as operations:
            scratch, state = self._scratch()
            self._previous_root = self._table(Census(scratch, state)).root
            with _groups(state) as groups:
                outcome, _ = self._execute(scratch, state, 1)
        self._warn(outcome, groups)
        self._first_root = self._table(Census(scratch, state))
        captured = numeric.capture(promise.profile, *_parts(scratch, state))
        if isinstance(captured, NativeProfile) and captured.switches.get("compile") == "compiled":
            self.warnings.append(COMPILED)
        probe = operations.probe() if operations is not None else OperationProbe()
        self._use(promise.manifest(self.key.public, captured, probe))
        del scratch, state
        self.run.write_program(promise.files)
        store(self.corpus, self.run.corpus)
        store_ledgers(self.run.corpus, promise.ledgers)
        if self.own_key and not self.run.key.exists():
            keys.write_key(self.run.key, self.key)
        self.log = self.run.log()
        self.log.append(encode(self.manifest))
        self.run.sign_head(self.log, self.manifest.origin, self.key)
        self._begin()

    def _warn(self, outcome: Outcome, groups: list[dict[str, Any]]) -> None:
        """Says where the program declares another learning rate, say, than its optimisers used in the trial step."""
        declared = {name: readable(form) for name, form in outcome.hyperparameters.items()}
        self.warnings += [sentence(1, *found) for found in differing(declared, groups)]

    def _begin(self) -> None:
        """The initial state, committed and kept."""
        self.state = self._initial_state()
        census = Census(self.program, self.state)
        table = self._table(census)
        write_state(self.run.checkpoint_path(0), census.entries(), census.data)
        self.log.append(encode(InitRecord(table.root.hex())))
        self.run.sign_head(self.log, self.manifest.origin, self.key)
        self._previous_root = table.root

    def _initial_state(self) -> State:
        return self._build(self.program)

    def _build(self, program: Program) -> State:
        return build(program, self._seed, arithmetic=self._arithmetic)

    def _use(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self._arithmetic = numeric.arithmetic(manifest.profile)
        self._seed = bytes.fromhex(manifest.seed.value)
        self._schedule = Schedule(self._seed, self.corpus.documents.samples, manifest.batch_size)

    def _scratch(self) -> tuple[Program, State]:
        """A second copy of the program, made as a replayer makes it, with its initial state."""
        namespace = vars(sys.modules[type(self.program).__module__])
        program = instantiate(type(self.program), namespace, self.manifest.program.arguments)
        return program, self._build(program)

    # -- resuming ---------------------------------------------------------------------------------

    @classmethod
    def resume(
        cls, path: Path, program: Program, key: SigningKey | str | Path | None, *, profile: str | None = None
    ) -> Self:
        """Continues a run after a stop or a kill, from its newest whole checkpoint.

        Steps that were recorded after that checkpoint are executed again and must come out as recorded.

        Raises:
            UsageError: `run-finished`, `resume-mismatch`, `resume-diverged`.
            ProtocolError, VerificationError: `log-truncated`, `head-root`, ...: what is there does not hold together.
        """
        run = RunDir.open(path)
        recorder = cls(run, program, open_stored(run.corpus), _signer(key) or run.read_key())
        with ExitStack() as undo:
            run.lock()
            undo.callback(recorder._release)
            recorder.log = run.log()
            manifest, entries = read_log(recorder.log)
            recorder._check_same(manifest, profile)
            recorder.corpus.check()  # whoever records on from altered data could never be replayed
            recorder._use(manifest)
            require_unbroken(run, recorder.log, manifest, recorder.corpus.documents)
            recorder._go_on(entries)
            undo.pop_all()
        return recorder

    def _go_on(self, entries: list[AfterManifest]) -> None:
        final = next((entry for entry in entries if isinstance(entry, FinalEvent)), None)
        if final is not None:
            self._close_finished(final)
            return
        try:
            numeric.apply(self.manifest.profile)
            self.state = self._initial_state()
            optimizers, reachable = _parts(self.program, self.state)
            numeric.compare(self.manifest.profile, self.manifest.operations, optimizers, reachable)
        except IncompleteError as error:
            raise UsageError(
                "resume-diverged", f"this process does not give the recorded bits: {error}", evidence=error.evidence
            ) from error
        if any(isinstance(entry, InitRecord) for entry in entries):
            self._continue(entries)
        else:
            self._begin()

    def _close_finished(self, final: FinalEvent) -> None:
        """Signs the last head, where the process was stopped between the last entry and that head."""
        if self.run.head_sizes()[-1:] == [self.log.size]:
            raise UsageError("run-finished", f"{self.run.path} is finished: {self.manifest.steps} steps")
        self.step_number, self._previous_root = final.steps, bytes.fromhex(final.state_root)
        self._finished = True
        self.run.sign_head(self.log, self.manifest.origin, self.key)

    def _check_same(self, manifest: Manifest, profile: str | None) -> None:
        claim, _ = source.collect(type(self.program))
        pairs = {
            "program files": (claim.files, manifest.program.files),
            "program entry": (claim.entry, manifest.program.entry),
            "program arguments": (encode(plain_arguments(self.program)), encode(manifest.program.arguments)),
            "corpus": (self.corpus.claim().root, manifest.corpus.root),
            "key": (self.key.public.vkey, manifest.key),
            "profile": (full_name(profile) if profile else manifest.profile.full_name, manifest.profile.full_name),
        }
        for name, (now, then) in pairs.items():
            if now != then:
                raise UsageError(
                    "resume-mismatch",
                    f"{name}: not what the manifest of {self.run.path} promises",
                    next_action=self.run.way_out()
                    or (
                        "continue with the program, data, key and profile the run was started with, or record a new run"
                    ),
                )

    def _continue(self, entries: list[AfterManifest]) -> None:
        steps = {entry.step: entry for entry in entries if isinstance(entry, StepRecord)}
        last = max(steps, default=0)
        kept = last_checkpoint(self.run, entries, self.manifest.pieces)
        at = kept.step if kept else 0
        if at:
            restore(self.program, self.state, *self.run.read_checkpoint(at, self.manifest.pieces))
        init = next(entry for entry in entries if isinstance(entry, InitRecord))
        expected = steps[at].state_root if at else init.state_root
        table = self._table(Census(self.program, self.state))
        if table.root.hex() != expected:
            raise UsageError(
                "resume-diverged",
                f"the state after step {at} does not come back as recorded",
                evidence={"step": at, "recorded": expected, "restored": table.root.hex()},
            )
        self.step_number, self._previous_root = at, table.root
        for step in range(at + 1, last + 1):
            made = self._advance()
            if made != steps[step]:
                fields = [
                    f
                    for f in ("records", "batch", "fingerprint", "state_root")
                    if getattr(made, f) != getattr(steps[step], f)
                ]
                raise UsageError(
                    "resume-diverged",
                    f"step {step} does not come out as recorded ({', '.join(fields)} differ): other threads, "
                    "versions or machine?",
                    evidence={"step": step, "fields": fields},
                    next_action=(
                        "resume with the environment of the manifest's profile (`witness train --resume` sets it)"
                        if self.manifest.profile.full_name == NATIVE
                        else "resume with the versions of torch, Python and numpy that the manifest names"
                    ),
                )
        if last and self.manifest.keeps(last) and not _announced(entries, last):
            self._keep()
        self.log.append(encode(ResumeEvent(last, at)))
        if last == self.manifest.steps:
            self._finish()

    # -- the loop ---------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except WitnessError:
            if error is None:
                raise

    def __iter__(self) -> Iterator[Batch]:
        while self.step_number < self.manifest.steps and not self.stopping:
            step = self.step_number + 1
            indices = self._schedule.indices(step)
            yield Batch(step, indices, self.corpus.samples(indices))
            if self.step_number < step:
                raise UsageError("program", f"the loop went on without run.step(batch) for step {step}")

    def __len__(self) -> int:
        return self.manifest.steps

    def step(self, batch: Batch) -> float:
        """Executes, commits and records the step of `batch`; returns the loss.

        Raises:
            UsageError: `program`, `not-self-contained`, `disk-full`.
        """
        if batch.step != self.step_number + 1 or self._broken:
            raise UsageError("program", f"batch {batch.step} is not the one that is due ({self.step_number + 1})")
        made = self._advance(batch)
        self._broken = True  # until it is recorded: a disk that refuses one entry may take the next
        self.log.append(encode_trusted(made))
        if self.manifest.keeps(made.step):
            self._keep()
        if self.step_number == self.manifest.steps:
            self._finish()
        self._broken = False
        return self.losses[-1]

    def _advance(self, batch: Batch | None = None) -> StepRecord:
        step = self.step_number + 1
        self._broken = True  # until the step is whole: a state caught in the middle of a step is never kept
        if step == 2:
            census = Census(self.program, self.state)
            self._snapshot = census.entries(), {name: bytes(census.data(name)) for name in census.leaves}
        outcome, indices = self._execute(self.program, self.state, step, batch)
        census = Census(self.program, self.state)
        committed = self.manifest.commits(step)
        root = NO_ROOT
        if committed or step <= 2:
            table = self._table(census)
            self._check_self_contained(step, table)
            root = table.root if committed else NO_ROOT
        entries, buffers = outcome.batch
        made = StepRecord(
            step=step,
            records=self.corpus.documents.records_digest(step, indices).hex(),
            batch=hash_state(entries, buffers.__getitem__, self.manifest.pieces).root.hex(),
            hyperparameters=outcome.hyperparameters,
            fingerprint=outcome.fingerprint,
            state_root=root.hex() if committed else None,
        )
        self.losses.append(outcome.loss)
        self.step_number, self._previous_root, self._broken = step, root, False
        return made

    def _execute(
        self, program: Program, state: State, step: int, batch: Batch | None = None
    ) -> tuple[Outcome, list[int]]:
        indices = batch.indices if batch else self._schedule.indices(step)
        samples = batch.samples if batch else self.corpus.samples(indices)
        probe = probe_indices(
            self._seed, step, self._previous_root, self.corpus.documents.samples, self.manifest.probe_samples
        )
        probe_samples = self.corpus.samples(probe)
        made = run_step(program, state, step, self._seed, samples, probe_samples, arithmetic=self._arithmetic)
        return made, indices

    def _check_self_contained(self, step: int, table: Table) -> None:
        """Compares step 1 with the scratch copy's, and step 2 with its repetition from the restored state."""
        other: Table | None = None
        if step == 1 and self._first_root is not None:
            other, self._first_root = self._first_root, None
        elif step == 2 and self._snapshot is not None:
            program, state = self._scratch()
            restore(program, state, *self._snapshot)
            self._snapshot = None
            self._execute(program, state, 2)
            other = self._table(Census(program, state))
        if other is not None and other.root != table.root:
            name, offset, what = first_difference(table, other) or ("state", 0, "order")
            raise UsageError(
                "not-self-contained",
                f"step {step}, executed again from the same state, batch and seeds, differs first in {name} ({what})",
                evidence={"step": step, "tensor": name, "byte": offset},
                next_action="something outside the state decides the step: an unseeded generator, a global, a clock, "
                f"an unregistered tensor. Mend the program, delete {self.run.path}, and start again",
            )

    def _table(self, census: Census) -> Table:
        return hash_state(census.entries(), census.data, self.manifest.pieces)

    # -- keeping and ending -----------------------------------------------------------------------

    def _keep(self) -> None:
        """Keeps the state, announces it in the log and signs a head."""
        census = Census(self.program, self.state)
        root = self._table(census).root
        write_state(self.run.checkpoint_path(self.step_number), census.entries(), census.data)
        self.log.append(encode(CheckpointEvent(self.step_number, root.hex())))
        self.run.sign_head(self.log, self.manifest.origin, self.key)

    def fault(self, step: int, note: str) -> None:
        """Declares that the transition to `step` may be wrong; it will be challenged.

        Args:
            step: a recorded step.
            note: at most 256 characters.
        """
        if not 1 <= step <= self.step_number or len(note) > 256:
            raise UsageError(
                "program", f"a fault names a recorded step (1 to {self.step_number}) and at most 256 characters"
            )
        self.log.append(encode(FaultEvent(step, note)))

    def _finish(self) -> None:
        census = Census(self.program, self.state)
        table = self._table(census)
        released = table.released()
        tensors = {e.name: census.leaves[e.name].clone().contiguous() for e in released.entries}  # type: ignore[union-attr]
        atomic_write(self.run.released, lambda path: save_file(tensors, path))
        self.log.append(encode(FinalEvent(self.step_number, table.root.hex(), released.root.hex())))
        self.run.sign_head(self.log, self.manifest.origin, self.key)
        self._finished = True

    def close(self) -> None:
        """Ends recording. An unfinished run keeps its state, when it is whole, and can be resumed."""
        try:
            if getattr(self, "log", None) and not self._finished and not self._broken and self.step_number > 0:
                self._stop()
        finally:
            self._release()

    def _release(self) -> None:
        log = getattr(self, "log", None)
        if log is not None:
            log.close()
            self.log = None  # type: ignore[assignment]
        self.run.unlock()

    def _stop(self) -> None:
        kept = self.run.checkpoint_path(self.step_number).exists()
        if not kept and self.manifest.commits(self.step_number):
            self._keep()
        else:
            self.run.sign_head(self.log, self.manifest.origin, self.key)


def _parts(program: Program | None, state: State) -> tuple[dict[str, torch.optim.Optimizer], dict[str, Any]]:
    """The optimisers of a state, and everything that its steps use, by name."""
    optimizers = {name: c for name, c in state.items() if isinstance(c, torch.optim.Optimizer)}
    return optimizers, {**state, "program": program}


@contextmanager
def _groups(state: State) -> Iterator[list[dict[str, Any]]]:
    """Collects what the parameter groups say whenever an optimiser steps."""
    seen: list[dict[str, Any]] = []

    def see(optimizer: torch.optim.Optimizer, *_: object) -> None:
        seen.extend({k: _number(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups)

    hooks = [o.register_step_pre_hook(see) for o in _parts(None, state)[0].values()]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def _announced(entries: list[AfterManifest], step: int) -> bool:
    return any(isinstance(entry, CheckpointEvent) and entry.step == step for entry in entries)
