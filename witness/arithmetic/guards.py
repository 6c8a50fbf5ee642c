"""What no operator is given, whatever its definition: complex numbers, and targets whose elements share memory.

Complex numbers have no definition: their products and magnitudes are several roundings, in an order that each library
chooses. They may be placed, not computed with. A tensor of which two elements lie at one place of memory (an expanded
one, overlapping windows) may be read; what writing to it leaves there is up to the order of the writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from protocol.errors import UsageError

SHAPING = {
    "as_strided_", "detach_", "rename_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_",
    "transpose_", "unsqueeze_",
}  # fmt: skip
"""Operators in place that write no element."""


def real(op: Any, plan: Callable[..., Any]) -> Callable[..., Any]:
    """`plan`, refusing complex operands, scalars and types."""

    def checked(*args: Any, **kwargs: Any) -> Any:
        if _complex(args) or (kwargs and _complex(kwargs.values())):
            raise UsageError(
                "exact-refused",
                f"{op} of complex numbers has no exact definition: write it with real and imaginary parts as floats",
                evidence={"operator": str(op)},
            )
        return plan(*args, **kwargs)

    return checked


def _complex(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_complex():
                return True
        elif isinstance(value, list | tuple):
            if _complex(value):
                return True
        elif isinstance(value, complex) or (isinstance(value, torch.dtype) and value.is_complex):
            return True
    return False


def apart(op: Any, plan: Callable[..., Any]) -> Callable[..., Any]:
    """`plan`, refusing to write to a tensor that `overlaps` itself; `plan` itself where nothing is written."""
    schema = op._schema  # noqa: SLF001
    written = [
        (place, argument.name)
        for place, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if not written or schema.name.partition("::")[2] in SHAPING:
        return plan

    def checked(*args: Any, **kwargs: Any) -> Any:
        for place, name in written:
            target = args[place] if place < len(args) else kwargs.get(name)
            if isinstance(target, torch.Tensor) and not target.is_contiguous() and overlaps(target):
                raise UsageError(
                    "exact-refused",
                    f"{op} into a tensor whose elements share memory has no exact definition: clone it first",
                    evidence={"operator": str(op)},
                )
        return plan(*args, **kwargs)

    return checked


def require_subnormals() -> None:
    """Asks the calling thread's processor, by Python's own floats.

    Raises:
        UsageError: `exact-refused`, where what is smaller than the normal numbers becomes zero.
    """
    smallest = sys.float_info.min
    if smallest * 0.5 == 0.0:
        raise UsageError(
            "exact-refused",
            "subnormal numbers are flushed to zero in this thread; the exact arithmetic keeps them: leave out"
            " torch.set_flush_denormal(True)",
        )


def overlaps(x: torch.Tensor) -> bool:
    """Whether two elements may lie at one place: a stride does not step over all that the smaller ones reach."""
    if x.layout != torch.strided or not x.numel():
        return False
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two contiguous tensors of one shape overlap without being the same memory."""
    distance = abs(x.data_ptr() - y.data_ptr())
    return 0 < distance < x.numel() * x.element_size()
