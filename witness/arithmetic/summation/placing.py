"""Placing with accumulation: where several sources meet at one place, in whatever order a device brings them.

Floats that are summed at places which the data chooses (the gradient of an embedding, `index_add`, `scatter_add`) are
summed as integers, which commute. Along each column of the result the sources share a power-of-two quantum:

    e = the exponent of the column's largest source (so that |x| < 2**e)
    q = round(x * 2**(BITS - e)), half to even, |q| <= 2**BITS
    sum = float32(float64(sum of q) * 2**(e - BITS))

A column is all elements with the same index in every dimension but the indexed one. |sum of q| <= 2**BITS * n, so 64
bits hold it for n <= 2**(63 - BITS) sources: with BITS = 40 eight million, and beyond that BITS shrinks. An infinity or
NaN among the sources of one place gives what IEEE addition would, whatever the order.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from protocol.errors import UsageError
from witness.arithmetic.layers.derivatives import widened
from witness.arithmetic.registry import operator
from witness.arithmetic.summation.scattering import flat_places, latest

BITS = 40


def accumulate(size: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Sums rows of `source` that share an index.

    Args:
        size: rows of the result.
        index: int64 of shape (n,).
        source: float32 or float64 of shape (n, ...).

    Returns:
        Of `source`'s dtype, shape (size, ...); rows without a source are zero.
    """
    n, shape = source.shape[0], source.shape[1:]
    flat = source.reshape(n, shape.numel())
    if not flat.numel():
        return source.new_zeros((size, *shape))
    wide = flat.double()
    largest = wide.abs().amax(0)
    finite = bool(torch.isfinite(largest).all())
    clean = wide if finite else torch.where(torch.isfinite(wide), wide, torch.zeros_like(wide))
    bits = min(BITS, 63 - max(1, math.ceil(math.log2(n + 1))))
    exponent = _exponent(largest if finite else clean.abs().amax(0))
    q = (clean * _power(bits - exponent)).round_().to(torch.int64)
    acc = torch.zeros((size, flat.shape[1]), dtype=torch.int64, device=flat.device).index_add_(0, index, q)
    result = (acc.double() * _power(exponent - bits)).to(source.dtype)
    if not finite:
        result = _with_specials(result, index, wide)
    return result.reshape(size, *shape)


def _with_specials(result: torch.Tensor, index: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    def met(where: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(result.shape, dtype=torch.int64, device=result.device)
        return counts.index_add_(0, index, where.to(torch.int64)) > 0

    up, down, nan = met(wide == math.inf), met(wide == -math.inf), met(wide.isnan())
    result = torch.where(up, torch.full_like(result, math.inf), result)
    result = torch.where(down, torch.full_like(result, -math.inf), result)
    return torch.where(nan | (up & down), torch.full_like(result, math.nan), result)


def _exponent(largest: torch.Tensor) -> torch.Tensor:
    """E with |x| < 2**e, int64, from the bits of float64 `largest`; at least -900, so that no scale overflows."""
    field = (largest.view(torch.int64) >> 52) & 0x7FF
    return (field - 1022).clamp_(-900, 1024)


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """2**exponent as float64, from bits; exponents within -1022..1023, as 40 - e and e - 40 are for |e| <= 980."""
    return ((exponent.clamp(-1022, 1023) + 1023) << 52).view(torch.float64)


def _along(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.movedim(dim, 0) if x.dim() else x.reshape(1)


@operator("embedding_dense_backward")
def embedding_dense_backward(
    gradient: torch.Tensor, index: torch.Tensor, rows: int, padding: int, by_frequency: bool
) -> torch.Tensor:
    """The gradient of an embedding: the sum over the places where each row was used."""
    if by_frequency:
        raise UsageError("exact-refused", "embedding with scale_grad_by_freq has no exact definition: leave it off")
    flat, rows_used = gradient.reshape(-1, gradient.shape[-1]), index.reshape(-1)
    result = accumulate(rows, rows_used, flat)
    if padding >= 0:
        result[padding] = 0
    return result


@operator("index_add")
def index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> torch.Tensor:
    """`x` plus the accumulated sources."""
    if alpha != 1:
        source = source * alpha
    added = accumulate(_along(x, dim).shape[0], index.reshape(-1), _along(source, dim))
    return x + (added.movedim(0, dim) if x.dim() else added.reshape(()))


@operator("scatter_add", "scatter.reduce", "scatter_reduce.two")
def scatter_add(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str = "sum",
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """`x` plus the accumulated sources; means, and the largest and smallest."""
    if x.dim() == 0:
        return scatter_add(
            x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self
        ).reshape(())
    if reduce in ("amax", "amin"):
        return torch.scatter_reduce(x, dim, index, source, reduce, include_self=include_self) + 0.0
    if reduce not in ("sum", "add", "mean"):
        raise UsageError(
            "exact-refused", f"scatter with reduce={reduce!r} has no exact definition: use sum, mean, amax or amin"
        )
    source = source[tuple(slice(0, s) for s in index.shape)]
    places = flat_places(x.shape, dim, index).reshape(-1)
    result = accumulate(x.numel(), places, source.reshape(-1)).reshape(x.shape)
    if include_self:
        result = x + result
    if reduce != "mean" and include_self:
        return result
    met = torch.zeros(x.numel(), dtype=torch.int64, device=x.device).index_add_(0, places, torch.ones_like(places))
    met = met.reshape(x.shape)
    if reduce == "mean":
        result = result / (met + 1 if include_self else met.clamp(min=1)).to(x.dtype)
    return result if include_self else torch.where(met > 0, result, x)


@operator("index_reduce")
def index_reduce(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Rows to the places that an index names, as `scatter_add` reduces."""
    if not x.dim():
        return scatter_add(x, 0, index, source, reduce, include_self=include_self)
    line = index.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
    return scatter_add(x, dim, line.expand(source.shape), source, reduce, include_self=include_self)


Indices = list[torch.Tensor | None]


def _met_twice(x: torch.Tensor, indices: Indices) -> bool:
    """Whether indices name one place more than once; masks never do."""
    chosen = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not chosen or all(i.dtype in (torch.bool, torch.uint8) or i.numel() < 2 for _, i in chosen):
        return False
    if any(i.dtype in (torch.bool, torch.uint8) for _, i in chosen):
        return True  # a mask beside indices: left to the general way
    places = torch.zeros((), dtype=torch.int64, device=x.device)
    for d, i in chosen:
        places = places * x.shape[d] + i.to(torch.int64) % max(1, x.shape[d])
    ordered = places.reshape(-1).sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


@operator("index_put", "_index_put_impl", "_unsafe_index_put")
def index_put(
    x: torch.Tensor,
    indices: Indices,
    values: torch.Tensor,
    accumulate_: bool = False,
    unsafe: bool = False,
    *,
    accumulate: bool | None = None,
) -> torch.Tensor:
    """Placing at indices; accumulated as integers where asked for."""
    del unsafe
    adding = accumulate_ if accumulate is None else accumulate
    if not x.is_floating_point() if adding else not _met_twice(x, indices):
        return torch.ops.aten.index_put.default(x, indices, values, adding)  # type: ignore[no-any-return]
    places = torch.arange(x.numel(), device=x.device).reshape(x.shape)
    places = torch.ops.aten.index.Tensor(places, indices)
    source = values.to(x.dtype).expand(places.shape)
    if not adding:
        return latest(x, places.reshape(-1), source.reshape(-1))
    return x + _accumulate(x, places, source)


@operator("index_put_", "_index_put_impl_", in_place=True)
def index_put_(x: torch.Tensor, indices: Indices, values: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Placing at indices in place: without a copy of `x` where nothing is added and no place is met twice."""
    adding = args[0] if args else kwargs.get("accumulate", False)
    if not x.is_floating_point() if adding else not _met_twice(x, indices):
        return torch.ops.aten.index_put_.default(x, indices, values, adding)  # type: ignore[no-any-return]
    return x.copy_(index_put(widened(x), indices, widened(values), *args, **kwargs))


def _accumulate(x: torch.Tensor, places: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return accumulate(x.numel(), places.reshape(-1), source.reshape(-1)).reshape(x.shape)


@operator("bincount", halves=True)
def bincount(x: torch.Tensor, weights: torch.Tensor, minlength: int = 0) -> torch.Tensor:
    """Sums of weights by bin, accumulated as integers."""
    size = max(minlength, int(x.max()) + 1 if x.numel() else 0)
    wide = weights if weights.dtype == torch.float32 else weights.double()
    torch.bincount(x, minlength=minlength)  # raises what torch raises
    return accumulate(size, x, wide)


@operator("masked_scatter_backward")
def masked_scatter_backward(gradient: torch.Tensor, mask: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Moves the gradient back to where the values came from."""
    return torch.ops.aten.masked_scatter_backward.default(gradient, mask, sizes)  # type: ignore[no-any-return]
