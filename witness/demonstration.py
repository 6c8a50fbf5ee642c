"""Six cheating trainers, small enough to watch: what each does, and the code with which it is caught.

Each is the real recorder with one dishonest part. They know all of this package, hold the trainer's key and keep every
state they commit to, so that whatever is drawn can be opened; what they cannot do is make the declared program give
other bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from protocol.errors import VerificationError
from witness.execute import Outcome, flatten_batch, hyperparameter_forms
from witness.program import Program, State
from witness.programs.mlp import MLP, MLPConfig
from witness.recorder import Batch, Recorder

STEPS = 16
CONFIG = MLPConfig(steps=STEPS)


class Cheater(Recorder):
    """A recorder that lets its own step differ from the declared one."""

    def _check_self_contained(self, step: int, table: Any) -> None:
        """A cheat does not test itself."""

    def _execute(
        self, program: Program, state: State, step: int, batch: Batch | None = None
    ) -> tuple[Outcome, list[int]]:
        if program is not self.program or step < 3:
            return super()._execute(program, state, step, batch)
        return self._cheat(program, state, step, batch)

    def _cheat(self, program: Program, state: State, step: int, batch: Batch | None) -> tuple[Outcome, list[int]]:
        return super()._execute(program, state, step, batch)

    def _honest(self, program: Program, state: State, step: int, batch: Batch | None) -> tuple[Outcome, list[int]]:
        return super()._execute(program, state, step, batch)


class SkippedSteps(Cheater):
    """Executes every second step and reports all of them."""

    _last: Outcome

    def _cheat(self, program: Program, state: State, step: int, batch: Batch | None) -> tuple[Outcome, list[int]]:
        if step % 2 == 0:
            self._last, indices = self._honest(program, state, step, batch)
            return self._last, indices
        last = getattr(self, "_last", None)
        if last is None:
            return self._honest(program, state, step, batch)
        drawn = self._schedule.indices(step)
        batch_shown = flatten_batch(program.collate(self.corpus.samples(drawn)))
        return replace(last, batch=batch_shown, hyperparameters=hyperparameter_forms(program, step)), drawn


class HiddenLearningRate(Cheater):
    """Declares the schedule, and trains with ten times the rate at one step."""

    def _cheat(self, program: Program, state: State, step: int, batch: Batch | None) -> tuple[Outcome, list[int]]:
        if step != 7:
            return self._honest(program, state, step, batch)
        before = [p.detach().clone() for p in state.model.parameters()]
        result = self._honest(program, state, step, batch)
        with torch.no_grad():
            for now, then in zip(state.model.parameters(), before, strict=True):
                now.add_(now - then, alpha=9.0)
        return result


class SubstitutedData(Cheater):
    """Reports the scheduled records and trains on others."""

    def _cheat(self, program: Program, state: State, step: int, batch: Batch | None) -> tuple[Outcome, list[int]]:
        drawn = self._schedule.indices(step)
        if step != 9:
            return self._honest(program, state, step, batch)
        others = [(i + 1) % self.corpus.documents.samples for i in drawn]
        outcome, _ = self._honest(program, state, step, Batch(step, others, self.corpus.samples(others)))
        return outcome, drawn


class SmuggledMoment(Cheater):
    """Leaves the weights of a step alone, and plants a momentum that carries the next step elsewhere."""

    def _cheat(self, program: Program, state: State, step: int, batch: Batch | None) -> tuple[Outcome, list[int]]:
        result = self._honest(program, state, step, batch)
        if step == 6:
            for parameter, moments in state.optimizer.state.items():
                moments["momentum_buffer"].add_(torch.sign(parameter.detach()), alpha=3.0)
        return result


class StolenStart(Cheater):
    """Starts from weights that were trained before, and calls them a random initialisation."""

    def _initial_state(self) -> State:
        state = super()._initial_state()
        with torch.no_grad():
            for parameter in state.model.parameters():
                parameter.mul_(0.5).add_(0.01)
        return state


@dataclass(frozen=True, slots=True)
class Cheat:
    """One act of the demonstration.

    Attributes:
        attack: number in the catalogue of cheats.
        recorder: who trains.
        code: with which it must be caught.
        step: at which it must be caught.
    """

    attack: str
    recorder: type[Recorder]
    code: str
    step: int

    @property
    def story(self) -> str:
        """What the cheat does, in one line."""
        return (self.recorder.__doc__ or "").splitlines()[0]

    def commit(self, folder: Path) -> None:
        """Records the dishonest run."""
        recorder = self.recorder.begin(
            folder,
            MLP(CONFIG),
            MLP(CONFIG).default_data(),
            steps=STEPS,
            batch_size=32,
            seed=1,
            key=None,
            checkpoint_every=1,
            commit_every=1,
            pieces=None,
            profile="exact",
        )
        with recorder:
            for batch in recorder:
                recorder.step(batch)


CHEATS = (
    Cheat("A01", SkippedSteps, "replay-state", 5),
    Cheat("A25", HiddenLearningRate, "replay-state", 7),
    Cheat("A15", SubstitutedData, "replay-batch", 9),
    Cheat("A09", SmuggledMoment, "replay-state", 6),
    Cheat("A12", StolenStart, "init-diverged", 0),
)


def alter_released_weights(folder: Path) -> None:
    """The sixth: changes one bit of one weight in the published file, after the run has ended (A10)."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    flat = tensors[name].view(-1).view(torch.uint8)
    flat[0] ^= 1
    save_file(tensors, path)


def caught(act: Callable[[], object]) -> VerificationError:
    """The error with which an act is refused.

    Raises:
        AssertionError: when it is not refused, which would be a defect of this package.
    """
    try:
        act()
    except VerificationError as error:
        return error
    raise AssertionError("the cheat was not caught")
