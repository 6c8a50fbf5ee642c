"""A25: another learning rate than the declared one, to get somewhere faster.

A wrong rate in the record is compared with the program's own function, for every step. A rate that is only used,
and put back in the optimiser before the state is committed, shows in the weights.
"""

from pathlib import Path
from unittest import mock

import msgspec
from attacks import programs
from attacks.court import Seen, verify
from attacks.table import Row, caught, found_by_draws_alone
from attacks.trainers import Cheater, commit

from protocol.encoding import f64
from protocol.records import StepRecord
from witness.execute import hyperparameter_forms
from witness.programs.gpt import GPT
from witness.recorder import Batch

AT = 8
DECLARED = Row(
    "A25", "the record shows another learning rate", "check", "hyperparameters, every step", "hyperparameters", AT
)
HIDDEN = Row("A25", "another learning rate is used than shown", "draw", "the step", "replay-state", AT, bad=1, draws=3)
ROWS = (DECLARED, HIDDEN)


class Declarer(Cheater):
    def tamper(self, made: StepRecord) -> StepRecord:
        if made.step != AT:
            return made
        return msgspec.structs.replace(made, hyperparameters=made.hyperparameters | {"learning_rate": f64(0.5)})


class Booster(Cheater):
    def _advance(self, batch: Batch | None = None) -> StepRecord:
        if self.step_number + 1 != AT:
            return super()._advance(batch)
        declared = hyperparameter_forms(self.program, AT)
        honest = self.program.learning_rate(AT)  # type: ignore[attr-defined]
        with mock.patch.object(GPT, "learning_rate", return_value=honest * 1.5):
            made = super()._advance(batch)
        for group in self.state.optimizer.param_groups:
            group["lr"] = honest
        return self.commit_to(msgspec.structs.replace(made, hyperparameters=declared))


def test_a_declared_rate_is_held_to_the_schedule(tmp_path: Path, honest_gpt: Seen) -> None:
    seen = verify(commit(Declarer, tmp_path / "run", programs.gpt()))
    caught(seen, DECLARED)
    assert seen.found[0][0] == "hyperparameters"
    assert (seen.facts["name"], seen.facts["recorded"]) == ("learning_rate", f64(0.5))
    assert honest_gpt.verdict == "reproduced"


def test_a_hidden_rate_is_found_when_the_step_is_drawn(tmp_path: Path, honest_gpt: Seen) -> None:
    seen = found_by_draws_alone(commit(Booster, tmp_path / "run", programs.gpt()), HIDDEN)
    assert str(seen.facts["tensor"]).startswith("model/")  # weights alone: the optimiser's own rate was put back
    assert honest_gpt.verdict == "reproduced"
