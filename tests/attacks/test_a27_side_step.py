"""A27: an update that stands in no record, between two that do.

The trainer takes a second step on data of its choice and sets the optimiser's step counters back. Whatever leaves a
trace in the state makes the next committed root another one than the replay's.
"""

from pathlib import Path

from attacks import programs
from attacks.court import Seen
from attacks.table import Row, found_by_draws_alone
from attacks.trainers import Cheater, commit, records_of

from protocol.records import StepRecord
from witness.execute import run_step

AT = 8
ROW = Row("A27", "an unlogged second update", "draw", "the step", "replay-state", AT, bad=1, draws=3)
ROWS = (ROW,)


class SideStepper(Cheater):
    def tamper(self, made: StepRecord) -> StepRecord:
        if made.step == AT:
            counters = [(s["step"], s["step"].clone()) for s in self.state.optimizer.state.values()]
            private = self.corpus.samples([1, 2])
            run_step(self.program, self.state, AT, self._seed, private, [])
            for counter, before in counters:
                counter.copy_(before)
        return made


def test_a_second_update_is_found_when_the_step_is_drawn(tmp_path: Path, gpt: Path, honest_gpt: Seen) -> None:
    run = commit(SideStepper, tmp_path / "run", programs.gpt())
    assert records_of(run)[AT].fingerprint == records_of(gpt)[AT].fingerprint
    assert records_of(run)[AT].state_root != records_of(gpt)[AT].state_root
    seen = found_by_draws_alone(run, ROW)
    assert seen.facts["fields"] == ["state_root"]
    assert honest_gpt.verdict == "reproduced"


def test_a_side_computation_without_effect_is_invisible_as_the_certificate_says(honest_gpt: Seen) -> None:
    assert any("other run was trained beside" in claim for claim in honest_gpt.evidence.predicate.not_claimed)
