"""What optimisers do in place to every parameter, without temporaries: the formulas of `elementwise`, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from witness.arithmetic import compiled
from witness.arithmetic.guards import shares
from witness.arithmetic.kernels import updates as kernels
from witness.arithmetic.registry import operator
from witness.arithmetic.rounding import elementwise
from witness.arithmetic.variants import castable

Number = int | float


def _fused(function: Callable[..., None], x: torch.Tensor, others: list[Any], scalar: Number) -> bool:
    """Runs a kernel over float32 tensors of one shape that are contiguous; False where they are not."""
    if not all(isinstance(t, torch.Tensor) and t.dtype == torch.float32 and t.shape == x.shape for t in (x, *others)):
        return False
    if not compiled.usable(x, *others) or any(shares(x, t) for t in others):
        return False
    arrays = [t.detach().reshape(-1).numpy() for t in (x, *others)]
    compiled.run(function, x.numel(), *arrays, np.float32(scalar))
    return True


def _stored(x: torch.Tensor, formula: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
    """The formula in float32 where `x` is narrower, converted back into `x`."""
    if x.dtype.itemsize == 2 and x.is_floating_point():
        wide = [a.float() if isinstance(a, torch.Tensor) and a.dtype.itemsize == 2 else a for a in args]
        return x.copy_(formula(x.float(), *wide, **kwargs))
    result = formula(x, *args, **kwargs)
    castable(result, x)
    return x.copy_(result)


@operator("add_", halves=True, in_place=True)
def add_(x: torch.Tensor, y: Any, alpha: Number = 1) -> torch.Tensor:
    """`x += alpha * y`."""
    if alpha == 1:
        return torch.ops.aten.add_(x, y)  # type: ignore[no-any-return]
    return x if _fused(kernels.add, x, [y], alpha) else _stored(x, elementwise.add, y, alpha)


@operator("sub_", halves=True, in_place=True)
def sub_(x: torch.Tensor, y: Any, alpha: Number = 1) -> torch.Tensor:
    """`x -= alpha * y`: the sign of a product does not change how it rounds."""
    if alpha == 1:
        return torch.ops.aten.sub_(x, y)  # type: ignore[no-any-return]
    return x if _fused(kernels.add, x, [y], -float(alpha)) else _stored(x, elementwise.sub, y, alpha)


@operator("lerp_", halves=True, in_place=True)
def lerp_(x: torch.Tensor, y: torch.Tensor, weight: Any) -> torch.Tensor:
    """`x` towards `y`."""
    if isinstance(weight, int | float):
        low = abs(weight) < 0.5
        kernel, scalar = (kernels.lerp_low, weight) if low else (kernels.lerp_high, 1 - weight)
        if _fused(kernel, x, [y], scalar):
            return x
    return _stored(x, elementwise.lerp, y, weight)


@operator("addcmul_", halves=True, in_place=True)
def addcmul_(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, value: Number = 1) -> torch.Tensor:
    """`x += (value * y) * z`."""
    return x if _fused(kernels.addcmul, x, [y, z], value) else _stored(x, elementwise.addcmul, y, z, value)


@operator("addcdiv_", halves=True, in_place=True)
def addcdiv_(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, value: Number = 1) -> torch.Tensor:
    """`x += value * (y / z)`."""
    return x if _fused(kernels.addcdiv, x, [y, z], value) else _stored(x, elementwise.addcdiv, y, z, value)
