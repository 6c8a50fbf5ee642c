"""Which definition stands for which operation: the two tables that handlers enter themselves in.

`operator` names what torch dispatches below autograd (`aten.mm.default`); its handler gets and returns plain tensors.
`function` names what a program calls above autograd (`torch.nn.functional.layer_norm`), where devices and torch
releases still agree; its handler may use autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

Handler = TypeVar("Handler", bound=Callable[..., Any])

OPERATORS: dict[str, Callable[..., Any]] = {}
"""From `aten` name with overload, as `"mm.default"`, to what stands for it."""
HALVES: set[str] = set()
"""Entries of `OPERATORS` that take half precision themselves."""
IN_PLACE: set[str] = set()
"""Entries of `OPERATORS` that change their first argument themselves."""
FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""From a callable that torch's function modes see, to what stands for it."""

_active: list[int] = []


def operator(*names: str, halves: bool = False, in_place: bool = False) -> Callable[[Handler], Handler]:
    """Enters a handler for operators, by aten name; without an overload, for every overload of that name.

    Args:
        names: as `mm.default` or `mm`.
        halves: the handler takes bfloat16 and float16 itself, and need not be given float32 in their place.
        in_place: the handler is for the in-place variant and changes its first argument itself.
    """

    def enter(handler: Handler) -> Handler:
        for name in names:
            if name in OPERATORS:
                raise ValueError(f"{name} has two handlers")
            OPERATORS[name] = handler
            HALVES.update((name,) if halves else ())
            IN_PLACE.update((name,) if in_place else ())
        return handler

    return enter


def function(*callables: Any) -> Callable[[Handler], Handler]:
    """Enters a handler for functions of torch's Python interface."""

    def enter(handler: Handler) -> Handler:
        for target in callables:
            if target in FUNCTIONS:
                raise ValueError(f"{target} has two handlers")
            FUNCTIONS[target] = handler
        return handler

    return enter


def product_bits() -> int:
    """Magnitude bits of the operands of products, under the profile that is active in this process."""
    return _active[-1]


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Makes `bits` the active precision."""
    _active.append(bits)
    try:
        yield
    finally:
        _active.pop()
