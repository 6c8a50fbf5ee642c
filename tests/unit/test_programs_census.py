"""What else a program may keep in its state: bound and put back, or refused by name."""

import collections
import dataclasses
import types
from typing import NamedTuple

import numpy as np
import pytest
import torch

from protocol.errors import ProtocolError, UsageError
from witness.execute import build, run_step
from witness.program import Program, State
from witness.restore import restore
from witness.state import Census

SEED = bytes(32)


class Pair(NamedTuple):
    tensor: torch.Tensor
    number: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    parts: tuple
    table: dict


@dataclasses.dataclass
class Open:
    parts: tuple
    history: list


def snapshot(program: Program, state: State):
    census = Census(program, state)
    entries = census.entries()
    return entries, {entry.name: bytes(census.data(entry.name)) for entry in entries}


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


KEPT = {
    "list": lambda: [ones(2), 3, {"deep": [ones(1)]}],
    "tuple": lambda: (ones(2), 1.5, [ones(1)]),
    "named tuple": lambda: Pair(ones(2), 3),
    "dict of sequences": lambda: {"a": {"b": (ones(1), [ones(1)])}},
    "ordered dict": lambda: collections.OrderedDict(a=ones(1)),
    "frozen dataclass": lambda: Frozen((ones(1), 2), {"a": ones(2)}),
    "open dataclass": lambda: Open((1, ones(1)), [ones(1)]),
    "namespace": lambda: types.SimpleNamespace(a=ones(1), b=2),
    "expanded tensor": lambda: ones(1).expand(5),
    "transposed tensor": lambda: torch.arange(6.0).view(2, 3).t(),
    "empty tensor": lambda: torch.zeros(0, 3),
    "array": lambda: np.arange(6.0).reshape(2, 3),
    "array without dimensions": lambda: np.array(3.0),
}


@pytest.mark.parametrize("kind", KEPT)
def test_a_component_is_put_back(kind: str):
    def changed(value):
        census = Census(Program(), State({"x": value}))
        for leaf in census.leaves.values():
            if isinstance(leaf, torch.Tensor) and kind != "expanded tensor":
                leaf.mul_(7)
        return value

    program, state = Program(), State({"x": changed(KEPT[kind]())})
    entries, buffers = snapshot(program, state)
    fresh = State({"x": KEPT[kind]()})
    if kind not in ("expanded tensor", "empty tensor"):
        assert snapshot(program, fresh) != (entries, buffers)
    restore(program, fresh, entries, buffers)
    assert snapshot(program, fresh) == (entries, buffers)
    assert type(fresh.x) is type(state.x)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize(("built", "kept"), [(1, 3), (3, 1), (0, 2), (2, 0)])
def test_a_sequence_may_have_grown_or_shrunk(kind: type, built: int, kept: int):
    program, state = Program(), State({"x": {"history": kind(ones(1) * i for i in range(kept))}})
    entries, buffers = snapshot(program, state)
    fresh = State({"x": {"history": kind(ones(1) for _ in range(built))}})
    restore(program, fresh, entries, buffers)
    assert snapshot(program, fresh) == (entries, buffers)


def test_a_sequence_of_another_kind_is_no_place_for_it():
    entries, buffers = snapshot(Program(), State({"x": [ones(1)]}))
    with pytest.raises(ProtocolError, match="x is a tuple, committed as a list") as caught:
        restore(Program(), State({"x": (ones(1),)}), entries, buffers)
    assert caught.value.code == "state-restore"


def test_containers_keep_their_identity():
    class Remembering(Program):
        """Holds on to what it built, as programs do."""

        def build(self):
            self.history, self.table = [ones(1)], {"a": ones(1)}
            return {"history": self.history, "table": self.table}

        def step(self, state, batch):
            self.history[0].add_(1)
            state.table["a"].add_(1)
            return float(self.table["a"] + state.history[0])

        def hyperparameters(self, step):
            return {}

    program = Remembering()
    state = build(program, SEED)
    run_step(program, state, 1, SEED, [b"x"], [])
    entries, buffers = snapshot(program, state)
    again = Remembering()
    fresh = build(again, SEED)
    restore(again, fresh, entries, buffers)
    assert fresh.history is again.history
    assert fresh.table is again.table
    assert run_step(again, fresh, 2, SEED, [b"x"], []) == run_step(program, state, 2, SEED, [b"x"], [])
    assert snapshot(again, fresh) == snapshot(program, state)


def holding_itself():
    loop: list = [ones(1)]
    loop.append(loop)
    return loop


REFUSED = {
    "foreign byte order": lambda: np.zeros(2, dtype=">f4"),
    "negative strides": lambda: np.arange(6.0)[::-1],
    "text array": lambda: np.array(["a"]),
    "records": lambda: np.zeros(2, dtype=[("a", "u1")]),
    "objects": lambda: np.array([object()]),
    "unknown dtype": lambda: torch.zeros(2, dtype=torch.complex32),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "itself": holding_itself,
    "generator": lambda: (i for i in range(3)),
    "random generator": lambda: np.random.default_rng(3),
    "set of tensors": lambda: {ones(1)},
    "numbered tensors": lambda: {1: ones(1)},
    "reserved name": lambda: {"@groups": ones(1)},
}


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_bound_is_refused_by_name(kind: str):
    with pytest.raises(UsageError) as caught:
        Census(Program(), State({"x": REFUSED[kind]()}))
    assert caught.value.code == "unbound-state"
    if kind != "itself":
        assert caught.value.evidence["path"].startswith("x")
