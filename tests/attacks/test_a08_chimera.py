"""A08: the beginning of one run and the end of another, glued together.

The other run has the same manifest and started from a stolen model. Chain, schedule and every transition but one
are honest; the trainer signs the whole. Where the seam is declared as a resume it is challenged always; where it is
not, only draws find it.
"""

from fractions import Fraction
from pathlib import Path

import pytest
from attacks import programs
from attacks.court import Seen, nonce_that, verify
from attacks.table import Row, caught, found_by_draws_alone
from attacks.trainers import Cheater, StolenStart, commit, records_of, rewrite, state_of

from protocol.records import LogEntry, ResumeEvent, StepRecord
from witness.recorder import Batch

SEAM = 8
HIDDEN = Row("A08", "two runs glued, the seam hidden", "draw", "the seam", "replay-state", SEAM, bad=1, draws=3)
DECLARED = Row(
    "A08", "two runs glued, the seam declared as a resume", "mandatory", "resume", "replay-state", SEAM, bad=1, draws=1
)
ROWS = (HIDDEN, DECLARED)


class Gluer(Cheater):
    """Goes on with another run's states and records from the seam on."""

    other: Path

    def _advance(self, batch: Batch | None = None) -> StepRecord:
        step = self.step_number + 1
        if step < SEAM:
            return super()._advance(batch)
        self.put(state_of(self.other, step))
        self.step_number = step
        self.losses.append(0.0)
        return self.commit_to(records_of(self.other)[step])


@pytest.fixture(scope="module")
def glued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a08")
    Gluer.other = commit(StolenStart, folder / "other", programs.mlp())
    return commit(Gluer, folder / "run", programs.mlp())


def test_a_hidden_seam_is_found_when_it_is_drawn(glued: Path, mlp: Path, honest_mlp: Seen) -> None:
    assert state_of(glued, SEAM - 1) == state_of(mlp, SEAM - 1)
    assert state_of(glued, programs.STEPS) == state_of(Gluer.other, programs.STEPS)
    seen = found_by_draws_alone(glued, HIDDEN)
    assert seen.facts["first_differing_step"] == SEAM
    assert honest_mlp.verdict == "reproduced"


def test_a_declared_seam_is_always_challenged(glued: Path, tmp_path: Path) -> None:
    def declare(entries: list[LogEntry]) -> list[LogEntry]:
        at = next(i for i, e in enumerate(entries) if isinstance(e, StepRecord) and e.step == SEAM)
        return [*entries[:at], ResumeEvent(SEAM - 1, SEAM - 1), *entries[at:]]

    run = rewrite(glued, tmp_path / "run", declare)
    caught(verify(run, draws=1, nonce=nonce_that(run, 1, misses=[SEAM])), DECLARED)
    assert DECLARED.by_draws == Fraction(1, programs.STEPS)
