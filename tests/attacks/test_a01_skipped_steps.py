"""A01: execute some of the steps, report all of them.

The lazy trainer leaves the state as it is and makes the record up: records, batch and hyperparameters cost no
gradient and are true, only the fingerprint is invented.
"""

from fractions import Fraction
from pathlib import Path

import pytest
from attacks import programs
from attacks.court import Seen, share_that_hits, verify
from attacks.table import Row, caught, found_by_draws_alone
from attacks.trainers import Cheater, commit

from protocol.records import StepRecord
from witness.recorder import Batch

HALF = Row("A01", "every second step is skipped", "mandatory", "last step", "replay-state", 12, bad=6, draws=1)
ONE = Row("A01", "one step is skipped", "draw", "the step", "replay-state", 7, bad=1, draws=3)
ROWS = (HALF, ONE)


class Lazy(Cheater):
    """Skips every second step."""

    def skips(self, step: int) -> bool:
        return step % 2 == 0

    def _advance(self, batch: Batch | None = None) -> StepRecord:
        if not self.skips(self.step_number + 1):
            return super()._advance(batch)
        return self.invent(self.losses[-1], 1e-3)


class LazyOnce(Lazy):
    """Skips one step."""

    def skips(self, step: int) -> bool:
        return step == ONE.step


@pytest.fixture(scope="module")
def skipped_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit(LazyOnce, tmp_path_factory.mktemp("a01") / "run", programs.mlp())


def test_half_of_the_steps_are_found_at_once(tmp_path: Path, honest_mlp: Seen) -> None:
    seen = verify(commit(Lazy, tmp_path / "run", programs.mlp()))
    caught(seen, HALF)
    assert honest_mlp.verdict == "reproduced"


def test_one_step_is_found_when_it_is_drawn(skipped_once: Path, honest_mlp: Seen) -> None:
    seen = found_by_draws_alone(skipped_once, ONE)
    assert seen.facts["first_differing_step"] == ONE.step
    assert str(seen.facts["tensor"]).startswith("model/")
    assert honest_mlp.verdict == "reproduced"


def test_nonces_draw_it_as_often_as_the_certificate_says(skipped_once: Path) -> None:
    assert ONE.detection == Fraction(3, programs.STEPS)
    found = share_that_hits(skipped_once, ONE.draws, ONE.step or 0, 2000)
    assert abs(found - ONE.detection) < Fraction(1, 20)  # five standard deviations
