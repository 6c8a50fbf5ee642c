"""A09: carry a stolen model in through the optimiser's memory.

Weights and fingerprint of step t stay exactly as they were; only the moment is replaced, by the one from which the
honest next step lands on the target. So step t replays with identical weights, losses, norms and probe logits, and
step t + 1 replays exactly: a verifier who compares weights or behaviour sees nothing, at any number of draws. The
state root covers the moments, and step t is a bad step like any other.

The moment is not solved for in closed form but by one rehearsal: in both optimisers the next weights are affine in
the moment, with a slope that the rehearsal leaves in the second moment (AdamW) or that does not depend on the state
at all (SGD).
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from attacks import programs
from attacks.court import verify
from attacks.table import Row, found_by_draws_alone
from attacks.trainers import Cheater, commit, floats, records_of, state_of

from protocol.records import StepRecord
from witness.program import Program, State

AT = 8  # the honest outliers of these runs lie elsewhere
ADAMW = Row(
    "A09",
    "AdamW's first moment carries a stolen model",
    "draw",
    "the step of the moment",
    "replay-state",
    AT,
    bad=1,
    draws=3,
)
MOMENTUM = Row(
    "A09", "SGD's momentum carries a stolen model", "draw", "the step of the moment", "replay-state", AT, bad=1, draws=3
)
ROWS = (ADAMW, MOMENTUM)


def target(parameter: torch.Tensor) -> torch.Tensor:
    """The stolen model's values."""
    generator = torch.Generator().manual_seed(parameter.numel())
    return torch.randn(parameter.shape, generator=generator) * 0.3


def distance(parameters: list[torch.Tensor]) -> float:
    """Largest difference of any weight from the stolen model."""
    return max(float((p.detach() - target(p)).abs().max()) for p in parameters)


class Smuggler(Cheater):
    """Replaces moments so that the next honest step lands on the target."""

    reached: list[float]

    def tamper(self, made: StepRecord) -> StepRecord:
        if made.step == AT:
            parameters = list(self.state.model.parameters())
            type(self).reached = [distance(list(self.rehearse(AT + 1).model.parameters()))]
            for _ in range(3):  # once in real numbers; again for what float32 rounds
                ahead = self.rehearse(AT + 1)
                with torch.no_grad():
                    for mine, next_one in zip(parameters, ahead.model.parameters(), strict=True):
                        self.aim(mine, next_one, ahead)
                self.reached.append(distance(list(self.rehearse(AT + 1).model.parameters())))
        return made

    def aim(self, mine: torch.Tensor, next_one: torch.Tensor, ahead: State) -> None:
        raise NotImplementedError


class AdamWSmuggler(Smuggler):
    def aim(self, mine: torch.Tensor, next_one: torch.Tensor, ahead: State) -> None:
        group: dict[str, Any] = next(g for g in ahead.optimizer.param_groups if any(p is next_one for p in g["params"]))
        beta1, beta2 = group["betas"]
        moments = ahead.optimizer.state[next_one]
        step = float(moments["step"])
        # next = decayed - lr / (1 - beta1^t) * (beta1 * m + (1 - beta1) * g) / (sqrt(v / (1 - beta2^t)) + eps)
        root = (moments["exp_avg_sq"].double() / (1 - beta2**step)).sqrt() + group["eps"]
        slope = group["lr"] / (1 - beta1**step) * beta1 / root
        self.state.optimizer.state[mine]["exp_avg"].sub_((target(mine) - next_one) / slope)


class MomentumSmuggler(Smuggler):
    def aim(self, mine: torch.Tensor, next_one: torch.Tensor, ahead: State) -> None:
        group = ahead.optimizer.param_groups[0]
        # Nesterov: next = before - lr * (d + mu * (mu * buffer + d)); the scheduler may have halved lr afterwards
        rate = self.program.hyperparameters(AT + 1)["learning_rate"]
        slope = rate * group["momentum"] ** 2
        self.state.optimizer.state[mine]["momentum_buffer"].sub_((target(mine) - next_one) / slope)


CASES = {
    "adamw": (AdamWSmuggler, programs.gpt, "gpt", ADAMW),
    "momentum": (MomentumSmuggler, programs.mlp, "mlp", MOMENTUM),
}


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, Row, type[Smuggler]]:
    kind, make, twin, row = CASES[request.param]
    program: Program = make()
    run = commit(kind, tmp_path_factory.mktemp("a09") / request.param, program)
    return run, request.getfixturevalue(twin), row, kind


def test_the_smuggled_model_arrives(case: tuple[Path, Path, Row, type[Smuggler]]) -> None:
    run, twin, _, kind = case
    honest, *_, reached = kind.reached
    assert honest > 0.5 > 1e-5 > reached
    # Weights and fingerprint of the tampered step are the honest ones, to the bit.
    mine, theirs = floats(state_of(run, AT)), floats(state_of(twin, AT))
    changed = {name for name in mine if not torch.equal(mine[name], theirs[name])}
    assert changed and not any(name.startswith("model/") for name in changed)
    assert records_of(run)[AT].fingerprint == records_of(twin)[AT].fingerprint
    # And the model that the next state holds is the stolen one.
    next_weights = [
        t for name, t in floats(state_of(run, AT + 1)).items() if name.startswith("model/") and "running" not in name
    ]
    assert distance(next_weights) == reached


def test_the_step_whose_moments_are_not_the_replayed_ones_is_found(
    case: tuple[Path, Path, Row, type[Smuggler]], request: pytest.FixtureRequest
) -> None:
    run, twin, row, _ = case
    seen = found_by_draws_alone(run, row)
    assert seen.facts["fields"] == ["state_root"]  # the fingerprint is blind to it
    assert str(seen.facts["tensor"]).startswith("optimizer/")
    assert str(seen.facts["tensor"]).endswith(("/exp_avg", "/momentum_buffer"))
    assert request.getfixturevalue(f"honest_{twin.name}").verdict == "reproduced"


def test_the_landing_itself_replays_exactly(case: tuple[Path, Path, Row, type[Smuggler]]) -> None:
    """The jump is an outlier and challenged; it is honest arithmetic from a dishonest state."""
    run, _, row, _ = case
    seen = verify(run, draws=programs.STEPS, keep_going=True)
    assert [step for step, _ in seen.found] == [AT]
    assert AT + 1 in {c.step for c in seen.evidence.predicate.challenges if c.reason == "outlier"}
    assert seen.verdict == "diverged" and row.bad == 1
