"""A03: train honestly, and put another model in the place of the last step's outcome.

The best attack on random draws alone, because what is published is wrong at the price of one bad step. So the last
step is always challenged. What the log announces as published weights must be those of the last state, or the jump
would move there.
"""

from fractions import Fraction
from pathlib import Path

import msgspec
from attacks import programs
from attacks.court import Seen, nonce_that, verify
from attacks.table import Row, caught
from attacks.trainers import Cheater, commit, rewrite, steal

from protocol.records import FinalEvent, LogEntry, StepRecord

JUMP = Row(
    "A03", "the last state is another model's", "mandatory", "last step", "replay-state", programs.STEPS, bad=1, draws=1
)
ANNOUNCED = Row(
    "A03", "other weights announced as published", "mandatory", "last step", "released-weights", programs.STEPS, draws=1
)
ROWS = (JUMP, ANNOUNCED)


class Jumper(Cheater):
    def tamper(self, made: StepRecord) -> StepRecord:
        if made.step == programs.STEPS:
            steal(self.state)
        return made  # with the honest fingerprint: the update looks small


def test_the_last_step_is_always_challenged(tmp_path: Path, honest_mlp: Seen) -> None:
    run = commit(Jumper, tmp_path / "run", programs.mlp())
    # The draws alone would find it with this probability, and here they do not:
    seen = verify(run, draws=JUMP.draws, nonce=nonce_that(run, JUMP.draws, misses=[programs.STEPS]))
    caught(seen, JUMP)
    assert JUMP.by_draws == Fraction(1, programs.STEPS)
    assert [c.order for c in seen.evidence.predicate.challenges if c.step == programs.STEPS] == [None]
    assert seen.facts["tensor"] == "model/0.0.weight"
    assert honest_mlp.verdict == "reproduced"


def test_the_announced_weights_are_those_of_the_last_state(tmp_path: Path, mlp: Path, honest_mlp: Seen) -> None:
    """A hole until it was tried: every state was honest, and the log's last entry named the root of stolen weights."""

    def announce(entries: list[LogEntry]) -> list[LogEntry]:
        *rest, final = entries
        assert isinstance(final, FinalEvent)
        return [*rest, msgspec.structs.replace(final, released="ab" * 32)]

    seen = verify(rewrite(mlp, tmp_path / "run", announce))
    caught(seen, ANNOUNCED)
    assert seen.facts["announced"] == "ab" * 32
    assert honest_mlp.verdict == "reproduced"
