"""A18: the same data in another order.

The order of clean data alone can bias a model. Here two steps exchange their batches, or one batch is turned around.
"""

from pathlib import Path

import pytest
from attacks import programs
from attacks.court import Seen, verify
from attacks.table import Row, caught, found_by_draws_alone
from attacks.trainers import Cheater, commit

from witness.execute import Outcome, flatten_batch, seed_everything
from witness.program import Program, State
from witness.recorder import Batch

AT, WITH = 8, 10
SWAPPED = Row("A18", "two steps exchange their batches", "check", "records drawn, every step", "records-digest", AT)
TURNED = Row("A18", "a batch in another order", "check", "records drawn, every step", "records-digest", AT)
HIDDEN = Row(
    "A18", "a batch in another order, reported as scheduled", "draw", "the step", "replay-state", AT, bad=1, draws=3
)
ROWS = (SWAPPED, TURNED, HIDDEN)


class Swapper(Cheater):
    def order(self, step: int) -> list[int]:
        return self._schedule.indices({AT: WITH, WITH: AT}.get(step, step))

    def _execute(
        self, program: Program, state: State, step: int, batch: Batch | None = None
    ) -> tuple[Outcome, list[int]]:
        indices = self.order(step)
        return super()._execute(program, state, step, Batch(step, indices, self.corpus.samples(indices)))


class Turner(Swapper):
    def order(self, step: int) -> list[int]:
        scheduled = self._schedule.indices(step)
        return scheduled[::-1] if step == AT else scheduled


class Hider(Turner):
    def _execute(
        self, program: Program, state: State, step: int, batch: Batch | None = None
    ) -> tuple[Outcome, list[int]]:
        outcome, _ = super()._execute(program, state, step, batch)
        scheduled = self._schedule.indices(step)
        seed_everything(self._seed, step, 0, "batch")
        shown = flatten_batch(program.collate(self.corpus.samples(scheduled)))
        return Outcome(outcome.loss, outcome.fingerprint, shown, outcome.hyperparameters), scheduled


@pytest.mark.parametrize(("kind", "row"), [(Swapper, SWAPPED), (Turner, TURNED)])
def test_a_reported_order_is_held_to_the_schedule(
    tmp_path: Path, kind: type[Cheater], row: Row, honest_gpt: Seen
) -> None:
    caught(verify(commit(kind, tmp_path / "run", programs.gpt())), row)
    assert honest_gpt.verdict == "reproduced"


def test_a_hidden_order_is_found_when_the_step_is_drawn(tmp_path: Path) -> None:
    """With dropout, position in the batch matters, so that even a gradient that is a mean over it changes."""
    seen = found_by_draws_alone(commit(Hider, tmp_path / "run", programs.gpt()), HIDDEN)
    assert "batch" not in seen.facts["fields"]  # type: ignore[operator]
