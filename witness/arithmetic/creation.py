"""Ranges of floats: torch steps through them with fused operations whose grouping follows the vector width."""

from __future__ import annotations

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
