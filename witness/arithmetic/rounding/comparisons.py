"""Largest, smallest, sorted: exact, but for two questions that kernels answer differently.

Whether +0 or -0 is the larger, and which of two equal elements is taken. Here a tie of zeros gives the first operand,
or +0 from a reduction; sorting is stable; and of equal elements the one with the lowest index wins. NaN is larger and
smaller than everything, as in torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from witness.arithmetic.registry import operator

Operand = torch.Tensor | int | float


@operator("maximum")
def maximum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The larger; `x` where they are equal; NaN where either is."""
    return torch.where((x >= y) | x.isnan(), x, y)


@operator("minimum")
def minimum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The smaller; `x` where they are equal; NaN where either is."""
    return torch.where((x <= y) | x.isnan(), x, y)


@operator("fmax")
def fmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The larger; the other operand where one is NaN."""
    return torch.where((x >= y) | y.isnan(), x, y)


@operator("fmin")
def fmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The smaller; the other operand where one is NaN."""
    return torch.where((x <= y) | y.isnan(), x, y)


@operator("clamp")
def clamp(x: torch.Tensor, low: Operand | None = None, high: Operand | None = None) -> torch.Tensor:
    """Within bounds; values equal to a bound, and NaN, stay as they are."""
    if low is not None:
        x = torch.where(x < low, _like(low, x), x)
    if high is not None:
        x = torch.where(x > high, _like(high, x), x)
    return x


@operator("clamp_min")
def clamp_min(x: torch.Tensor, low: Operand) -> torch.Tensor:
    """Not below `low`."""
    return clamp(x, low)


@operator("clamp_max")
def clamp_max(x: torch.Tensor, high: Operand) -> torch.Tensor:
    """Not above `high`."""
    return clamp(x, None, high)


def _like(value: Operand, x: torch.Tensor) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    return torch.full((), value, dtype=x.dtype, device=x.device)


def _places(dim: int | Sequence[int]) -> tuple[int, ...]:
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _positive_zero(x: torch.Tensor) -> torch.Tensor:
    """-0 becomes +0, everything else stays."""
    return x + 0.0


@operator("amax")
def amax(x: torch.Tensor, dim: int | Sequence[int] = (), keepdim: bool = False) -> torch.Tensor:
    """The largest over dimensions."""
    return _positive_zero(torch.amax(x, _places(dim), keepdim))


@operator("amin")
def amin(x: torch.Tensor, dim: int | Sequence[int] = (), keepdim: bool = False) -> torch.Tensor:
    """The smallest over dimensions."""
    return _positive_zero(torch.amin(x, _places(dim), keepdim))


@operator("aminmax")
def aminmax(x: torch.Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Both."""
    places = () if dim is None else (dim,)
    return amin(x, places, keepdim), amax(x, places, keepdim)


@operator("max.default")
def max_all(x: torch.Tensor) -> torch.Tensor:
    """The largest element."""
    return amax(x)


@operator("min.default")
def min_all(x: torch.Tensor) -> torch.Tensor:
    """The smallest element."""
    return amin(x)


@operator("max.dim")
def max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and lowest indices of the largest elements."""
    index = torch.argmax(x, dim, keepdim=True)
    return _taken(x, dim, index, keepdim)


@operator("min.dim")
def min_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and lowest indices of the smallest elements."""
    index = torch.argmin(x, dim, keepdim=True)
    return _taken(x, dim, index, keepdim)


def _taken(x: torch.Tensor, dim: int, index: torch.Tensor, keepdim: bool) -> tuple[torch.Tensor, torch.Tensor]:
    if x.dim() == 0:
        return x.clone(), index.reshape(())
    values = x.gather(dim, index)
    return (values, index) if keepdim else (values.squeeze(dim), index.squeeze(dim))


def _scan(x: torch.Tensor, dim: int, *, smallest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Running extremes and their last indices, in log-steps: NaN from the first one on."""
    if not x.dim():
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    n = x.shape[dim]
    line = [-1 if d == dim % x.dim() else 1 for d in range(x.dim())]
    values, indices = x, torch.arange(n, device=x.device).reshape(line).expand(x.shape)
    distance = 1
    while distance < n:
        size = n - distance
        before, now = values.narrow(dim, 0, size), values.narrow(dim, distance, size)
        further = (before < now) if smallest else (before > now)
        stays = ~now.isnan() & (before.isnan() | further)
        places = torch.where(stays, indices.narrow(dim, 0, size), indices.narrow(dim, distance, size))
        values = torch.cat([values.narrow(dim, 0, distance), torch.where(stays, before, now)], dim)
        indices = torch.cat([indices.narrow(dim, 0, distance), places], dim)
        distance *= 2
    return values.contiguous(), indices.contiguous()


@operator("cummax")
def cummax(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Running maxima; of equal elements, and of NaN, the last one's index."""
    return _scan(x, dim, smallest=False)


@operator("cummin")
def cummin(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Running minima; alike."""
    return _scan(x, dim, smallest=True)


@operator("sort.default", "sort.stable")
def sort(
    x: torch.Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Stable, whatever was asked for."""
    del stable
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
    return values, indices


@operator("topk")
def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, ordered: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first `k` of a stable sort."""
    del ordered
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    if x.dim() == 0:
        return values, indices
    return values.narrow(dim, 0, k).clone(), indices.narrow(dim, 0, k).clone()


@operator("kthvalue")
def kthvalue(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The k-th of a stable sort, counted from 1."""
    if not x.dim():
        return kthvalue(x.reshape(1), k, 0)
    values, indices = torch.sort(x, dim=dim, stable=True)
    chosen = values.narrow(dim, k - 1, 1).clone(), indices.narrow(dim, k - 1, 1).clone()
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


@operator("median.dim")
def median_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower median and its index, by a stable sort; NaN, where there is one."""
    if not x.dim():
        return median_dim(x.reshape(1), 0)
    values, indices = torch.sort(x, dim=dim, stable=True)
    n = x.shape[dim]
    place = torch.where(x.isnan().any(dim, keepdim=True), n - 1, (n - 1) // 2)
    chosen = values.gather(dim, place), indices.gather(dim, place)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


@operator("median.default")
def median(x: torch.Tensor) -> torch.Tensor:
    """The lower median of all elements; NaN of none."""
    if not x.numel():
        return x.new_full((), torch.nan)
    return median_dim(x.reshape(-1), 0)[0]


@operator("nanmedian.dim")
def nanmedian_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower median of what is a number and its index, by a stable sort; NaN, where nothing is."""
    if not x.dim():
        return nanmedian_dim(x.reshape(1), 0)
    values, indices = torch.sort(x, dim=dim, stable=True)
    place = ((~x.isnan()).sum(dim, keepdim=True) - 1).clamp(min=0) // 2
    chosen = values.gather(dim, place), indices.gather(dim, place)
    return chosen if keepdim else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


@operator("nanmedian.default")
def nanmedian(x: torch.Tensor) -> torch.Tensor:
    """The lower median of all elements that are numbers."""
    return nanmedian_dim(x.reshape(-1), 0)[0] if x.numel() else x.new_full((), torch.nan)
