"""New tensors: ranges of floats, and memory that nobody has written to.

torch steps through ranges with fused operations whose grouping follows the vector width. What a tensor without values
holds is whatever was there before; here it is zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from witness.arithmetic.registry import operator


def _steps(start: float, step: float, count: int, dtype: torch.dtype, device: Any) -> torch.Tensor:
    """`start + i * step` in float64, two roundings, converted once."""
    places = torch.arange(count, dtype=torch.int64, device=device).double()
    return (places * step + start).to(dtype)


@operator("arange")
def arange(*bounds: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """Integers as torch has them; floats as `start + i * step`."""
    floating = dtype.is_floating_point if dtype else any(isinstance(b, float) for b in bounds)
    if not floating:
        return torch.arange(*bounds, dtype=dtype, **kwargs)
    start, end, step = (0, bounds[0], 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    count = len(torch.arange(start, end, step, dtype=torch.float64))
    return _steps(start, step, count, dtype or torch.get_default_dtype(), kwargs.get("device"))


@operator("linspace")
def linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """From both ends, as torch has it: `start + i * step`, and in the second half `end - (n - 1 - i) * step`."""
    dtype, device = dtype or torch.get_default_dtype(), kwargs.get("device")
    start, end = float(start), float(end)
    if steps < 2:
        return torch.full((steps,), start, dtype=dtype, device=device)
    step = (end - start) / (steps - 1)
    half = steps // 2
    low = _steps(start, step, half, dtype, device)
    high = _steps(end, -step, steps - half, dtype, device).flip(0)
    return torch.cat([low, high])


def _blank(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        return make(*args, **kwargs).zero_()

    return zeros


for _name in ("empty", "empty_like", "empty_permuted", "empty_strided"):
    operator(_name, halves=True)(_blank(getattr(torch, _name)))
for _name in ("new_empty", "new_empty_strided"):
    operator(_name, halves=True)(_blank(getattr(torch.Tensor, _name)))


@operator("resize_", halves=True, in_place=True)
def resize_(x: torch.Tensor, size: Any, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """Another shape; memory that is added holds zeros."""
    storage = x.untyped_storage()
    before = storage.nbytes()
    torch.ops.aten.resize_.default(x, size, memory_format=memory_format)
    if storage.nbytes() > before:
        added = torch.empty(0, dtype=torch.uint8, device=x.device)
        added.set_(storage, before, (storage.nbytes() - before,), (1,)).zero_()
    return x


@operator("resize_as_", halves=True, in_place=True)
def resize_as_(
    x: torch.Tensor, like: torch.Tensor, *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    """The shape of another tensor."""
    return resize_(x, like.shape, memory_format=memory_format)


@operator("_efficientzerotensor")
def zero_tensor(size: Any, **kwargs: Any) -> torch.Tensor:
    """Zeros that are there; torch's take no memory, and the definitions would have to ask which kind they are given."""
    return torch.zeros(size, **kwargs)
