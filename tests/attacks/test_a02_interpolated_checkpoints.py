"""A02: no training at all: the states are points on a line from the initial state to a stolen one.

One multiplication a weight instead of a gradient, and smooth curves to look at. Every single transition is false,
so that the first challenge of any kind ends it; there is nothing that a verifier would have to be lucky for.
"""

from pathlib import Path

from attacks import programs
from attacks.court import Seen, verify
from attacks.table import Row, caught
from attacks.trainers import Bytes, Cheater, StolenStart, commit, floats, state_of, with_floats

from protocol.records import StepRecord
from witness.recorder import Batch

ROW = Row(
    "A02", "states interpolated towards a stolen one", "mandatory", "first step", "replay-state", 1, bad=12, draws=1
)
ROWS = (ROW,)


class Painter(Cheater):
    """Paints the trajectory between two ends."""

    last: Bytes
    start: Bytes

    def _advance(self, batch: Batch | None = None) -> StepRecord:
        step = self.step_number + 1
        if step == 1:
            type(self).start = self.grab()
        share = step / programs.STEPS
        first, last = floats(self.start), floats(self.last)
        # The optimiser's tensors are those of the stolen end throughout: the initial state has none.
        self.put(with_floats(self.last, {name: first[name].lerp(last[name], share) for name in first}))
        return self.invent(5.8 - share, 0.01)


def test_the_first_challenge_finds_it(tmp_path: Path, honest_mlp: Seen) -> None:
    stolen = commit(StolenStart, tmp_path / "stolen", programs.mlp())
    Painter.last = state_of(stolen, programs.STEPS)
    run = commit(Painter, tmp_path / "run", programs.mlp())
    # Where it leads is where it was meant to lead.
    assert state_of(run, programs.STEPS) == Painter.last
    caught(verify(run), ROW)
    # No challenge whatever could have been passed: all of them were made, and every one but the initial state diverged.
    seen = verify(run, draws=programs.STEPS, keep_going=True)
    assert {step for step, _ in seen.found} == set(range(1, programs.STEPS + 1))
    assert ROW.by_draws == 1
    assert honest_mlp.verdict == "reproduced"
