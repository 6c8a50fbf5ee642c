"""Sums, means, variances, norms, products and scans, all over `sums.total` and its tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from witness.arithmetic.elementary.elements import root
from witness.arithmetic.registry import OPERATORS, operator
from witness.arithmetic.rounding.comparisons import amax, amin
from witness.arithmetic.summation import sums

Dims = int | Sequence[int] | None


def _cast(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    return x if dtype is None else x.to(dtype)


@operator("sum")
def sum_(x: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The sum over dimensions."""
    x = _cast(x, dtype)
    if not x.is_floating_point():
        return torch.sum(x, dim, keepdim)  # type: ignore[arg-type]
    if x.dtype.itemsize == 2:
        return sums.total(x.float(), dim, keepdim).to(x.dtype)
    return sums.total(x, dim, keepdim)


@operator("mean")
def mean(x: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """The sum divided by the count."""
    x = _cast(x, dtype)
    if x.dtype.itemsize == 2:
        return sums.mean(x.float(), dim, keepdim).to(x.dtype)
    return sums.mean(x, dim, keepdim)


@operator("nansum")
def nansum(
    x: torch.Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The sum of what is a number."""
    x = _cast(x, dtype)
    return sum_(torch.where(x.isnan(), torch.zeros_like(x), x), dim, keepdim)


def _variance(x: torch.Tensor, dim: Dims, correction: float, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    places = list(range(x.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    m = sums.mean(x, places, True)
    centred = x - m
    squares = sums.total(centred * centred, places, True, owned=True)
    count = max(0.0, x.numel() / max(1, squares.numel()) - correction)
    v = squares / torch.full((), count, dtype=x.dtype, device=x.device)
    if keepdim:
        return v, m
    shape = [s for d, s in enumerate(x.shape) if d not in sums.dimensions(x, places)]
    return v.reshape(shape), m.reshape(shape)


def _correction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Dims, float, bool]:
    """Dimensions, correction and keepdim from either spelling of `var`."""
    if args and isinstance(args[0], bool):  # var(x, unbiased)
        return None, float(args[0]), False
    dim = args[0] if args else kwargs.get("dim")
    if len(args) > 1 or "unbiased" in kwargs:  # var.dim(x, dim, unbiased, keepdim)
        unbiased = args[1] if len(args) > 1 else kwargs["unbiased"]
        return dim, float(unbiased), args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    given = kwargs.get("correction")
    return dim, 1.0 if given is None else float(given), kwargs.get("keepdim", False)


@operator("var")
def var(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The mean of squared distances from the mean, with a correction of the count."""
    return _variance(x, *_correction(args, kwargs))[0]


@operator("std")
def std(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The root of the variance."""
    deviation: torch.Tensor = root(var(x, *args, **kwargs))
    return deviation


@operator("var_mean")
def var_mean(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Variance and mean."""
    return _variance(x, *_correction(args, kwargs))


@operator("std_mean")
def std_mean(x: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Root of the variance, and mean."""
    v, m = var_mean(x, *args, **kwargs)
    return root(v), m


@operator("linalg_vector_norm", "norm")
def vector_norm(
    x: torch.Tensor,
    ord: Any = 2,  # noqa: A002 - torch's name
    dim: Dims = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Norms; the 2-norm is the root of the sum of squares, without scaling, others are powers of sums of powers."""
    x = _cast(x, dtype)
    order = 2.0 if ord is None else float(ord)
    if order == 2.0:
        length: torch.Tensor = root(sums.total(x * x, dim, keepdim, owned=True))
        return length
    if order == 1.0:
        return sums.total(x.abs(), dim, keepdim, owned=True)
    if order == 0.0:
        return sums.total((x != 0).to(x.dtype), dim, keepdim, owned=True)
    if math.isinf(order):
        places = () if dim is None else dim
        return (amax if order > 0 else amin)(x.abs(), places, keepdim)
    power = OPERATORS["pow"]
    return power(sums.total(power(x.abs(), order), dim, keepdim, owned=True), 1.0 / order)  # type: ignore[no-any-return]


@operator("linalg__powsum")
def power_sum(x: torch.Tensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False, **kwargs: Any) -> torch.Tensor:  # noqa: A002
    """The sum whose root is the norm."""
    x = _cast(x, kwargs.get("dtype"))
    order = float(ord)
    powers = x * x if order == 2.0 else x.abs() if order == 1.0 else OPERATORS["pow"](x.abs(), order)
    return sums.total(powers, dim, keepdim, owned=order != 1.0)


@operator("dist")
def dist(x: torch.Tensor, y: torch.Tensor, p: Any = 2) -> torch.Tensor:
    """The norm of the difference."""
    return vector_norm(x - y, p)


@operator("prod")
def prod(x: torch.Tensor, *args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
    """The product, by halving."""
    x = _cast(x, dtype)
    if not args and "dim" not in kwargs:
        return sums.product(x.reshape(-1), 0)
    dim = args[0] if args else kwargs["dim"]
    return sums.product(x, dim, args[1] if len(args) > 1 else kwargs.get("keepdim", False))


@operator("cumsum")
def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Prefix sums, in log-steps."""
    return sums.scan(_cast(x, dtype), dim)


@operator("cumprod")
def cumprod(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Prefix products, in log-steps."""
    return sums.scan(_cast(x, dtype), dim, "mul")


@operator("logcumsumexp")
def logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Running `logaddexp`, in log-steps."""
    n, distance = (x.shape[dim] if x.dim() else 1), 1
    add = OPERATORS["logaddexp"]
    while distance < n:
        head, tail = x.narrow(dim, 0, distance), x.narrow(dim, distance, n - distance)
        x = torch.cat([head, add(x.narrow(dim, 0, n - distance), tail)], dim)
        distance *= 2
    return x.clone()


@operator("trace")
def trace(x: torch.Tensor) -> torch.Tensor:
    """The sum of the diagonal."""
    return sums.total(x.diagonal())
