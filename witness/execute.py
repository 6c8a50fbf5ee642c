"""ONE step: seeds, batch, `Program.step`, fingerprint. Recording, rebuilding and replaying all go through this code.

If they did not, they would drift apart, and an honest run would diverge. The state root is taken by the caller, from
the census, after the fingerprint.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import nn

from protocol.encoding import encode, float_of
from protocol.errors import UsageError
from protocol.plain import NAN, settled, to_plain
from protocol.records import Fingerprint
from protocol.schedule import stream_seed
from protocol.statetree import JSON, Entry
from witness.profile import Arithmetic, Settling
from witness.program import Program, State
from witness.state import Census, part, tensor_bytes
from witness.switches import tell_compiler

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one step shows besides the state it leaves.

    Attributes:
        loss: as a Python float, for the caller's loop.
        fingerprint: of the step.
        batch: entries and bytes of the tensors handed to the step.
        hyperparameters: in plain form.
    """

    loss: float
    fingerprint: Fingerprint
    batch: tuple[list[Entry], dict[str, bytes]]
    hyperparameters: dict[str, str | int | bool | None]


def seed_everything(seed: bytes, step: int, rank: int, purpose: str) -> None:
    """Starts torch's, numpy's and Python's global generators from `H("seed", seed, step, rank, purpose)`."""
    words = stream_seed(seed, step, rank, purpose)
    torch.manual_seed(int.from_bytes(words[:8], "big"))
    np.random.seed(np.frombuffer(words[8:24], dtype=">u4").astype(np.uint32))
    random.seed(words[24:])


def build(program: Program, seed: bytes, rank: int = 0, *, arithmetic: Arithmetic = nullcontext) -> State:
    """The initial state: `Program.build` with generators seeded for step 0, under the run's arithmetic."""
    with arithmetic() as exact:
        seed_everything(seed, 0, rank, "init")
        components = program.build()
        if exact and isinstance(components, Mapping):
            exact.settle(_tensors(program, State(components)))
    tell_compiler()
    if not isinstance(components, Mapping) or not components:
        raise UsageError(
            "program", f"{type(program).__qualname__}.build() must return a mapping of names to components"
        )
    return State(components, settles=bool(exact))


def run_step(
    program: Program,
    state: State,
    step: int,
    seed: bytes,
    samples: Sequence[bytes],
    probe_samples: Sequence[bytes],
    rank: int = 0,
    *,
    arithmetic: Arithmetic = nullcontext,
) -> Outcome:
    """Executes one step.

    Args:
        program: the transition function.
        state: before the step; after it, on return.
        step: number, counted from 1.
        seed: the run's seed.
        samples: bytes of the samples drawn, in batch order.
        probe_samples: bytes of the probe's samples; empty for none.
        rank: of this process.
        arithmetic: of the run's profile; everything that the step computes, fingerprint included, is computed in it.

    Raises:
        UsageError: `program`, when the program breaks its contract; `exact-refused`, when it uses an operation that
            the run's arithmetic does not define.
    """
    with arithmetic() as exact:
        state.step = step
        hyperparameters = hyperparameter_forms(program, step, settles=bool(exact))
        parameters = list(_parameters(state))
        for parameter in parameters:
            parameter.grad = None
        seed_everything(seed, step, rank, "batch")
        batch = program.collate(samples)
        batch_entries = flatten_batch(batch, exact)
        seed_everything(seed, step, rank, "step")
        trace = _Trace(state)
        with trace:
            loss = program.step(state, batch)
        if exact:
            exact.settle(_tensors(program, state))
            exact.settle(part for part in (loss,) if isinstance(part, torch.Tensor))
        value = _scalar_loss(loss, program)
        shown = _settled if exact else str
        fingerprint = Fingerprint(
            loss=shown(value),
            gradient_norm=shown(trace.gradient_norm(parameters)),
            update_norms=tuple(shown(norm) for norm in trace.update_norms()),
            probe=_probe(program, state, seed, step, rank, probe_samples, exact) if probe_samples else None,
        )
    return Outcome(float_of(value), fingerprint, batch_entries, hyperparameters)


def hyperparameter_forms(program: Program, step: int, *, settles: bool = False) -> dict[str, str | int | bool | None]:
    """The recorded form of `Program.hyperparameters(step)`: scalars only, floats as bits.

    Args:
        program: the run's.
        step: number of the step.
        settles: whether every NaN is given one pattern.

    Raises:
        UsageError: `program`.
    """
    declared = program.hyperparameters(step)
    forms: dict[str, str | int | bool | None] = {}
    for name, value in declared.items():
        form = to_plain(value.item() if isinstance(value, torch.Tensor) else value, path=f"hyperparameters()[{name!r}]")
        if isinstance(form, list | dict) or not (isinstance(name, str) and name.isascii() and name.isprintable()):
            raise UsageError("program", f"hyperparameters()[{name!r}] must be a number, text, bool or None")
        forms[name] = settled(form) if settles else form
    return forms


def _tensors(program: Program, state: State) -> Iterator[torch.Tensor]:
    """Every tensor that the state root binds."""
    return (leaf for leaf in Census(program, state).leaves.values() if isinstance(leaf, torch.Tensor))


def flatten_batch(batch: Any, exact: Settling | None = None) -> tuple[list[Entry], dict[str, bytes]]:
    """Entries and bytes of a batch: tensors by place, everything else as plain data.

    Args:
        batch: what `Program.collate` returned.
        exact: the exact arithmetic, if the run has one: it settles what bits a NaN has.

    Raises:
        UsageError: `program`, for a part that is neither.
    """
    leaves: dict[str, Any] = {}

    def walk(path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            leaves[path] = value
        elif isinstance(value, np.ndarray):
            leaves[path] = torch.from_numpy(value)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                walk(f"{path}/{part(key)}", item)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                walk(f"{path}/{index}", item)
        else:
            form = to_plain(value, path=path)
            leaves[path] = encode(settled(form) if exact else form)

    walk("batch", batch)
    entries, buffers = [], {}
    for name in sorted(leaves, key=str.encode):
        leaf = leaves[name]
        if isinstance(leaf, bytes):
            entries.append(Entry(name, JSON, (len(leaf),)))
            buffers[name] = leaf
        else:
            if exact:
                exact.settle([leaf])
            entries.append(Entry(name, str(leaf.dtype).removeprefix("torch."), tuple(leaf.shape)))
            buffers[name] = bytes(tensor_bytes(leaf))
    return entries, buffers


class _Trace:
    """Watches one step: the gradients each optimiser used and what became of its parameters."""

    def __init__(self, state: State) -> None:
        self._optimizers = [c for c in state.values() if isinstance(c, torch.optim.Optimizer)]
        self._groups = [list(group["params"]) for o in self._optimizers for group in o.param_groups]
        self._before = [torch._foreach_clone(g) if g else [] for g in self._detached()]  # noqa: SLF001
        self._squares: list[torch.Tensor] = []
        self._hooks: list[Any] = []

    def _detached(self) -> list[list[torch.Tensor]]:
        return [[p.detach() for p in group] for group in self._groups]

    def __enter__(self) -> None:
        self._hooks = [o.register_step_pre_hook(self._see) for o in self._optimizers]

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _see(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._squares.append(
            _norm([p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None])
        )

    def gradient_norm(self, parameters: list[torch.Tensor]) -> str:
        """Bits of the norm over what the optimisers saw; over the gradients left behind when there is no optimiser."""
        norms = self._squares or [_norm([p.grad for p in parameters if p.grad is not None])]
        return _bits(torch.linalg.vector_norm(torch.stack(norms)) if len(norms) > 1 else norms[0])

    def update_norms(self) -> tuple[str, ...]:
        """Bits of the norm of each parameter group's change."""
        return tuple(
            _bits(_norm(torch._foreach_sub(new, cast("Any", old)) if new else []))  # noqa: SLF001
            for new, old in zip(self._detached(), self._before, strict=True)
        )


@torch.no_grad()
def _norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """2-norm over all elements, in float32, from per-tensor norms."""
    dense = [t.detach() for t in tensors if t.numel()]
    if not dense:
        return torch.zeros((), dtype=torch.float32)
    norms = [n.float().cpu() for n in torch._foreach_norm(dense)]  # noqa: SLF001
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def _bits(value: torch.Tensor) -> str:
    return "f32:" + struct.pack(">I", int(value.float().cpu().view(torch.int32).item()) & 0xFFFFFFFF).hex()


def _settled(bits: str) -> str:
    """The bits of a float, NaN in the one pattern that the exact arithmetic gives it: machines disagree about it."""
    if not math.isnan(float_of(bits)):
        return bits
    return "f32:7fc00000" if bits.startswith("f32:") else NAN


def _scalar_loss(loss: Any, program: Program) -> str:
    """Bits of the loss as returned, NaN payload included: NaN is recorded and reported, not hidden."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        loss = loss.detach().reshape(())
        if loss.dtype == torch.float64:
            return "f64:" + struct.pack(">q", loss.cpu().view(torch.int64).item()).hex()
        return _bits(loss)
    if isinstance(loss, int | float):
        return "f64:" + struct.pack(">d", loss).hex()
    raise UsageError(
        "program", f"{type(program).__qualname__}.step() must return the loss as a scalar, not a {type(loss).__name__}"
    )


def _parameters(state: State) -> Iterator[torch.Tensor]:
    for component in state.values():
        if isinstance(component, nn.Module):
            yield from component.parameters()
        elif isinstance(component, torch.optim.Optimizer):
            yield from (p for group in component.param_groups for p in group["params"])
        elif isinstance(component, torch.Tensor) and component.requires_grad:
            yield component


@contextmanager
def evaluation_mode(state: State) -> Iterator[None]:
    """Every module in evaluation mode, no gradients; training flags and generators put back afterwards."""
    flags = [(m, m.training) for c in state.values() if isinstance(c, nn.Module) for m in c.modules()]
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        for module, _ in flags:
            module.training = False
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_available() else ()),
        ):
            yield
    finally:
        for module, training in flags:
            module.training = training
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _probe(
    program: Program,
    state: State,
    seed: bytes,
    step: int,
    rank: int,
    samples: Sequence[bytes],
    exact: Settling | None,
) -> str | None:
    with evaluation_mode(state):
        seed_everything(seed, step, rank, "probe")
        outputs = program.probe(state, program.collate(samples))
    if outputs is None:
        return None
    if exact:
        exact.settle([outputs])
    shape = encode([str(outputs.dtype), list(outputs.shape)])
    return hashlib.sha256(shape + bytes(tensor_bytes(outputs))).hexdigest()
