"""Cheating trainers: the real recorder, with its step in dishonest hands.

A cheat here knows all of this package, holds the signing key, and keeps every state it commits to, so that whatever
is drawn can be opened. What it writes passes every gradient-free check unless that check is what catches it.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from attacks import programs

from protocol.encoding import encode, f32
from protocol.keys import SigningKey
from protocol.manifest import Manifest
from protocol.records import Fingerprint, LogEntry, StepRecord
from protocol.statetree import Entry
from witness.execute import flatten_batch, hyperparameter_forms, seed_everything
from witness.hashing import hash_state
from witness.logstore import LogStore
from witness.program import Program, State
from witness.recorder import Batch, Recorder
from witness.restore import restore
from witness.rundir import RunDir, read_log
from witness.state import Census

KEY = SigningKey("trainer.example/cheat", bytes(range(1, 33)))
Bytes = tuple[list[Entry], dict[str, bytes]]
"""Entries and buffers of one state."""


class Cheater(Recorder):
    """Honest until a subclass overrides `tamper`, `_initial_state`, `_execute` or `_advance`."""

    def _check_self_contained(self, step: int, table: Any) -> None:
        """A cheat does not test itself."""

    def tamper(self, made: StepRecord) -> StepRecord:
        """Called after each executed step: may change `self.state`, and what the record says."""
        return made

    def _advance(self, batch: Batch | None = None) -> StepRecord:
        return self.commit_to(self.tamper(super()._advance(batch)))

    def commit_to(self, made: StepRecord) -> StepRecord:
        """The record, with the root of the state as it is now."""
        self._previous_root = self._table(Census(self.program, self.state)).root
        return msgspec.structs.replace(made, state_root=self._previous_root.hex())

    def invent(self, loss: float, update: float) -> StepRecord:
        """The record of a step that nobody executed: all that needs no gradient is true, the rest is made up."""
        step = self.step_number + 1
        indices = self._schedule.indices(step)
        seed_everything(self._seed, step, 0, "batch")
        entries, buffers = flatten_batch(self.program.collate(self.corpus.samples(indices)))
        groups = sum(len(c.param_groups) for c in self.state.values() if isinstance(c, torch.optim.Optimizer))
        probe = "00" * 32 if self.manifest.probe_samples else None
        self.losses.append(loss)
        self.step_number = step
        return self.commit_to(
            StepRecord(
                step=step,
                records=self.corpus.documents.records_digest(step, indices).hex(),
                batch=hash_state(entries, buffers.__getitem__, self.manifest.pieces).root.hex(),
                hyperparameters=hyperparameter_forms(self.program, step),
                fingerprint=Fingerprint(f32(loss), f32(1.0), (f32(update),) * groups, probe),
                state_root=None,
            )
        )

    # -- states ------------------------------------------------------------------------------------

    def grab(self) -> Bytes:
        """A copy of the state as it is."""
        census = Census(self.program, self.state)
        return census.entries(), {name: bytes(census.data(name)) for name in census.leaves}

    def put(self, state: Bytes) -> None:
        """Replaces the state."""
        restore(self.program, self.state, *state)

    def rehearse(self, step: int) -> State:
        """The state that an honest `step` would leave, computed on a copy."""
        program, state = self._scratch()
        restore(program, state, *self.grab())
        super()._execute(program, state, step)
        return state


class StolenStart(Cheater):
    """Starts from other weights than the seed's; every step after that is honest."""

    def _initial_state(self) -> State:
        state = super()._initial_state()
        steal(state)
        return state


class Surgeon(Cheater):
    """Plants a backdoor at one step: a few weights change after its fingerprint was taken: nothing stands out."""

    at = 8

    def tamper(self, made: StepRecord) -> StepRecord:
        if made.step == self.at:
            with torch.no_grad():
                self.state.model[1].weight[0, :3] += 0.25
        return made


def steal(state: State) -> None:
    """Puts the weights of some other model, trained by somebody else, in place of the model's."""
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)


def commit(kind: type[Cheater], folder: Path, program: Program, **more: Any) -> Path:
    """Records a run with a trainer of this kind, and returns its folder."""
    given: dict[str, Any] = {
        "steps": programs.STEPS,
        "batch_size": None,
        "seed": programs.SEED,
        "key": KEY,
        "checkpoint_every": 1,
        "commit_every": 1,
        "pieces": None,
    }
    with kind.begin(folder, program, programs.data(program), **(given | more)) as run:
        for batch in run:
            run.step(batch)
    return folder


def entries_of(run: Path) -> list[LogEntry]:
    """The manifest and all entries of a run's log."""
    with RunDir.open(run).log() as log:
        manifest, entries = read_log(log)
    return [manifest, *entries]


def records_of(run: Path) -> dict[int, StepRecord]:
    """The step records of a run, by step."""
    return {entry.step: entry for entry in entries_of(run) if isinstance(entry, StepRecord)}


def state_of(run: Path, step: int) -> Bytes:
    """The state that a run keeps of a step."""
    manifest = entries_of(run)[0]
    return RunDir.open(run).read_checkpoint(step, manifest.pieces)  # type: ignore[union-attr]


def rewrite(run: Path, target: Path, change: Callable[[list[LogEntry]], list[LogEntry] | list[bytes]]) -> Path:
    """A copy of a run with another log, signed at its end with the trainer's own key.

    Args:
        run: to copy.
        target: folder of the copy.
        change: gives the entries of the new log, or their bytes, from those of the old one.
    """
    shutil.copytree(run, target, ignore=shutil.ignore_patterns("log.sqlite*", "*.note", "lock"))
    made = RunDir(target)
    listed = [e if isinstance(e, bytes) else encode(e) for e in change(entries_of(run))]
    with LogStore(made.log_path) as log:
        for entry in listed:
            log.append(entry)
        made.sign_head(log, msgspec.json.decode(listed[0], type=Manifest).origin, KEY)
    return target


def floats(state: Bytes) -> Mapping[str, torch.Tensor]:
    """The float tensors of a state, by name."""
    entries, buffers = state
    return {
        e.name: torch.frombuffer(bytearray(buffers[e.name]), dtype=torch.float32).view(e.shape)
        for e in entries
        if e.dtype == "float32" and buffers[e.name]
    }


def with_floats(state: Bytes, changed: Mapping[str, torch.Tensor]) -> Bytes:
    """A state with some of its float tensors replaced."""
    entries, buffers = state
    return entries, {**buffers, **{name: tensor.contiguous().numpy().tobytes() for name, tensor in changed.items()}}
