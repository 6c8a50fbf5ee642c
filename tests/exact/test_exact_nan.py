"""A NaN has one pattern wherever it is committed to: machines compute it with other signs and payloads."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from protocol.plain import NAN, settled, to_plain
from witness.arithmetic import mode
from witness.execute import Outcome, build, run_step
from witness.profile import Arithmetic
from witness.program import Program, State
from witness.state import Census

ODD32, ODD64 = -0x3FEDCC, -0x7EDCBA9876544  # NaN with a sign and a payload, as no machine makes it by itself


def odd() -> float:
    """A NaN of Python with other bits than the canonical ones."""
    return struct.unpack(">d", struct.pack(">q", ODD64))[0]


class Astray(Program):
    """Everything it shows is not a number, and none of it has the canonical bits."""

    loss: Any = None
    hidden = 0.0

    def build(self) -> dict[str, Any]:
        model = torch.nn.Linear(2, 1)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.5), "notes": {"best": odd()}}

    def collate(self, samples: Any) -> dict[str, Any]:
        return {"x": torch.ones(len(samples), 2), "scale": odd()}

    def step(self, state: State, batch: Any) -> Any:
        state.model(batch["x"]).sum().backward()
        for parameter in state.model.parameters():
            parameter.grad.copy_(torch.tensor(ODD32, dtype=torch.int32).view(torch.float32))
        state.optimizer.step()
        state.notes["best"] = odd()
        state.notes["numpy"] = np.frombuffer(struct.pack("<i", ODD32), dtype=np.float32)[0]
        self.hidden = odd()
        return self.loss()

    def hyperparameters(self, step: int) -> dict[str, Any]:
        return {"lr": odd()}

    def probe(self, state: State, batch: Any) -> torch.Tensor:
        return torch.tensor([ODD32], dtype=torch.int32).view(torch.float32)


LOSSES = {
    "f32": lambda: torch.tensor(ODD32, dtype=torch.int32).view(torch.float32),
    "f64": lambda: torch.tensor(ODD64, dtype=torch.int64).view(torch.float64),
    "python": odd,
}


@contextmanager
def other_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose norms of NaN have a sign."""
    norm = torch.linalg.vector_norm

    def signed(*args: Any, **named: Any) -> torch.Tensor:
        made = norm(*args, **named)
        strange = torch.tensor(ODD32, dtype=torch.int32).view(torch.float32)
        return strange if bool(made.isnan()) else made

    with monkeypatch.context() as patched:
        patched.setattr(torch.linalg, "vector_norm", signed)
        yield


def shown(arithmetic: Arithmetic, loss: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Outcome, dict[str, bytes]]:
    """What a step shows, and the state it leaves, as bytes."""
    program = Astray()
    program.loss = LOSSES[loss]
    state = build(program, bytes(32), arithmetic=arithmetic)
    with other_bits(monkeypatch):
        outcome = run_step(program, state, 1, bytes(32), [b"a"], [b"b"], arithmetic=arithmetic)
    program.loss = None
    census = Census(program, state)
    return outcome, {name: bytes(census.data(name)) for name in census.leaves}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_nan_has_one_pattern_under_the_exact_arithmetic(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, state = shown(lambda: mode.activate("exact-14"), loss, monkeypatch)
    one = outcome.fingerprint
    assert one.loss == ("f32:7fc00000" if loss == "f32" else NAN)
    assert one.gradient_norm == "f32:7fc00000"
    assert one.update_norms == ("f32:7fc00000",)
    assert outcome.hyperparameters == {"lr": NAN}
    _, buffers = outcome.batch
    assert buffers["batch/scale"] == f'"{NAN}"'.encode()
    quiet = struct.pack("<I", 0x7FC00000)
    assert state["model/weight"] == 2 * quiet
    assert state["program"] == f'{{"dict":[["s:loss",null],["s:hidden","{NAN}"]]}}'.encode()
    notes = state["notes"].decode()
    assert f'["s:best","{NAN}"]' in notes and f"b:{quiet.hex()}" in notes


def test_the_native_profile_keeps_all_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """There they are the machine's, and part of what is compared."""
    from contextlib import nullcontext

    outcome, state = shown(nullcontext, "python", monkeypatch)
    bits = f"f64:{struct.pack('>q', ODD64).hex()}"
    assert outcome.fingerprint.loss == bits and outcome.hyperparameters == {"lr": bits}
    assert outcome.fingerprint.gradient_norm == "f32:" + struct.pack(">i", ODD32).hex()
    assert bits in state["notes"].decode()


def test_plain_data_is_settled_wherever_a_float_stands() -> None:
    value = {"a": [odd(), (odd(), -0.0, float("inf"))], odd(): "f64:fff0000000000001", "b": b"f64:"}
    text = str(settled(to_plain(value)))
    assert text.count(NAN) == 3
    assert settled(to_plain(value["a"][1][1:])) == {"tuple": ["f64:8000000000000000", "f64:7ff0000000000000"]}
    assert "'s:f64:fff0000000000001'" in text  # that was text
