"""The exact profile as one context manager over any program: forward, backward and optimiser alike.

A dispatch mode sees every aten operator below autograd and lets it pass, runs our definition instead, or refuses it. A
function mode above autograd takes the functions that devices or torch releases split into different operators.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from protocol.errors import UsageError
from witness.arithmetic import definitions, guards, recomputation, registry, table, threads, variants
from witness.arithmetic.generator import truncation
from witness.arithmetic.matrix.scaling import canonical_nan

__all__ = ["ExactFunctions", "ExactOperators", "activate", "kind_of", "prove"]

definitions.load()


class ExactOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sends every dispatched operator to its definition, or refuses it by name."""

    supports_higher_order_operators = True

    def __init__(self, scope: threads.Scope | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._scope = scope

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator's definition.

        A tensor type with operators of its own runs those first; what they are made of comes here again.
        """
        if types and any(kind not in (torch.Tensor, torch.nn.Parameter) for kind in types):
            return NotImplemented
        plan = _plan(func) if self._scope is None or self._scope.active else func
        return plan(*args, **kwargs) if kwargs else plan(*args)


class ExactFunctions(TorchFunctionMode):
    """Sends functions of torch's Python interface to their definitions; the rest passes."""

    def __init__(self, scope: threads.Scope | None = None) -> None:
        super().__init__()
        self._scope = scope

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one function's definition, or the function."""
        del types
        if self._scope is None or self._scope.active:
            func = registry.FUNCTIONS.get(func, func)
        return func(*args, **(kwargs or {}))


@functools.cache
def _plan(op: Any) -> Callable[..., Any]:
    """What stands for one operator overload; decided once."""
    kind = kind_of(op)
    if kind == "refused":
        return _refusal(op)
    if op.namespace == "profiler":
        return op  # type: ignore[no-any-return]
    if op._schema.name.startswith("aten::_foreach_"):  # noqa: SLF001
        return functools.partial(variants.each, op, ExactOperators)
    plan = _defined(op, kind)
    return guards.apart(op, plan if kind in ("moves", "composite") else guards.real(op, plan))


def _defined(op: Any, kind: str) -> Callable[..., Any]:
    """The plan of an operator that has a definition, before what is checked of its operands."""
    if kind in ("moves", "rounds"):
        return op  # type: ignore[no-any-return]
    if kind == "composite":
        whole = variants.functional(op)
        parts = functools.partial(variants.taken_apart, op if whole is None else whole, ExactOperators)
        return parts if whole is None else variants.of(op, parts, halves=True, in_place=False)
    entry = _entry(op)
    if entry is None:  # exact on integers only
        return functools.partial(variants.integers_only, op, _refusal(op))
    plan = variants.of(
        op, registry.OPERATORS[entry], halves=entry in registry.HALVES, in_place=entry in registry.IN_PLACE
    )
    if table.base(op._schema.name.partition("::")[2]) in table.INTEGER:  # noqa: SLF001
        return functools.partial(variants.integers_first, op, plan)
    return plan


@functools.cache
def kind_of(op: Any) -> str:
    """`moves`, `rounds`, `replaced`, `integers`, `composite` or `refused`: the class of one operator overload.

    A composite is made of other operators, each of which has a class; it reaches a mode only where autograd is left out
    (`torch.inference_mode`).
    """
    if not isinstance(op, torch._ops.OpOverload) or op.namespace not in ("aten", "profiler"):  # noqa: SLF001
        return "refused"
    if op.namespace == "profiler":  # optimisers mark their steps for it; no tensor is touched
        return "moves"
    name = op._schema.name.partition("::")[2]  # noqa: SLF001
    if name.startswith("_foreach_"):
        return "replaced" if _elementary(table.base(name)) else "refused"
    whole = variants.functional(op)
    if whole is not None:  # an operator into a given tensor is what its functional form is
        return kind_of(whole)
    if _entry(op) is not None:
        return "replaced"
    base = table.base(name)
    for kind, names in (("moves", table.MOVES), ("rounds", table.ROUNDS)):
        if base in names:
            return kind
    full: str = op.name()  # type: ignore[no-untyped-call]
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(full, "CompositeImplicitAutograd")  # noqa: SLF001
    return "composite" if composite else "integers" if base in table.INTEGER else "refused"


def _elementary(base: str) -> bool:
    """Whether a list operator's element has a definition."""
    known = table.MOVES | table.ROUNDS | {name.partition(".")[0] for name in registry.OPERATORS}
    return base in known or f"{base}_" in known or base in variants.ELEMENT


def _entry(op: Any) -> str | None:
    """The key under which an overload's definition is entered."""
    op = variants.functional(op) or op
    name = op._schema.name.partition("::")[2]  # noqa: SLF001
    overload = op._overloadname  # noqa: SLF001
    stem = overload.removesuffix("_out").removesuffix("out") or "default"
    for base in (name, table.base(name)):
        for key in (f"{base}.{overload}", f"{base}.{stem}", base):
            if key in registry.OPERATORS:
                return key
    return None


def _refusal(op: Any) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        name = str(op)
        if isinstance(op, torch._ops.HigherOrderOperator):  # noqa: SLF001
            raise UsageError(
                "exact-refused",
                f"{name} has no exact definition: write it with tensors and Python's own if, while and for, attention"
                " with torch.nn.functional.scaled_dot_product_attention",
                evidence={"operator": name},
            )
        base = table.base(name.split(".")[1]) if name.startswith("aten.") else name
        advice = table.advice(base) if name.startswith("aten.") else "use torch's own operations"
        raise UsageError(
            "exact-refused", f"{name} has no exact definition: {advice}", evidence={"operator": name, "instead": advice}
        )

    return refuse


class Exact:
    """The active arithmetic, as `activate` yields it."""

    def settle(self, tensors: Iterable[torch.Tensor]) -> None:
        """Gives every NaN the one pattern that devices agree on, in place, before its bytes are committed to.

        A sum that is a number has no NaN among its terms, and is the cheapest way to know.
        """
        with _disable_current_modes(), torch.no_grad():
            for tensor in tensors:
                summed = tensor.float() if tensor.element_size() == 1 else tensor
                if tensor.is_floating_point() and bool(summed.sum().isnan()):
                    tensor.copy_(canonical_nan(tensor))


@contextmanager
def activate(name: str) -> Iterator[Exact]:
    """Runs everything inside under a named exact arithmetic.

    Args:
        name: `exact-14` or `exact-18`: the magnitude bits of the operands of products.

    Raises:
        UsageError: `exact-refused`, inside, for an operation without a definition; before and after, where subnormal
            numbers are flushed to zero.
    """
    family, _, bits = name.partition("-")
    if family != "exact" or bits not in ("14", "18"):
        raise UsageError("exact-refused", f"{name!r} is no arithmetic: exact-14 or exact-18")
    guards.require_subnormals()
    with (
        threads.under(_modes) as scope,
        registry.precision(int(bits)),
        variants.settings(),
        truncation.substituted(),
        recomputation.under(ExactFunctions),
        _modes(scope),
    ):
        yield Exact()
    guards.require_subnormals()


@contextmanager
def _modes(scope: threads.Scope) -> Iterator[None]:
    """Both modes, in one thread."""
    with ExactOperators(scope), ExactFunctions(scope):
        yield


def prove() -> None:
    """Shows that this process's arithmetic gives the definition's bits.

    Raises:
        IncompleteError: `arithmetic-unproven`, naming what differs.
    """
    from witness.arithmetic import conformance

    conformance.prove(activate)
