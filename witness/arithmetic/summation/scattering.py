"""Placing without accumulation: of several sources for one place, the last in row-major order wins.

torch's kernels leave that to whichever thread comes last. Along one dimension the CPU's have one thread a line, which
takes its sources in order; elsewhere the winner of each place is found by a stable sort.
"""

from __future__ import annotations

from typing import Any

import torch

from protocol.errors import UsageError
from witness.arithmetic.guards import overlaps
from witness.arithmetic.layers.derivatives import laid_out
from witness.arithmetic.registry import OPERATORS, operator


def flat_places(shape: torch.Size, dim: int, index: torch.Tensor) -> torch.Tensor:
    """For an index as `scatter` takes it: the row-major place in a tensor of `shape` that each element goes to."""
    places = torch.zeros(index.shape, dtype=torch.int64, device=index.device)
    for d, size in enumerate(shape):
        if d == dim % len(shape):
            coordinate = index
        else:
            line = [1] * index.dim()
            line[d] = index.shape[d]
            coordinate = torch.arange(index.shape[d], device=index.device).reshape(line)
        places = places * size + coordinate
    return places


def latest(x: torch.Tensor, places: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """`x` with each source at its row-major place; of several for one place the last.

    Args:
        x: any shape.
        places: int64 (n,), non-negative.
        source: (n,), of `x`'s dtype.
    """
    ordered, order = torch.sort(places, stable=True)
    last = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=last[:-1])
    result = x.clone(memory_format=torch.contiguous_format)
    result.view(-1)[ordered[last]] = source[order[last]]
    return result


def _line_by_line(x: torch.Tensor) -> bool:
    """Whether torch's own kernel takes the sources of a line along the dimension in order."""
    return x.device.type == "cpu" or not x.dim()


@operator("scatter.src", "scatter.value", "scatter.value_reduce")
def scatter(x: torch.Tensor, dim: int, index: torch.Tensor, value: Any, reduce: str | None = None, **kw: Any) -> Any:
    """Placing without accumulation, unless a reduction is named."""
    if reduce is not None:
        source = torch.full(index.shape, value, dtype=x.dtype, device=x.device)
        return OPERATORS["scatter.reduce"](x, dim, index, source, reduce)
    if not isinstance(value, torch.Tensor) or _line_by_line(x):
        return torch.scatter(x, dim, index, value, **kw)
    places = flat_places(x.shape, dim, index)
    return latest(x, places.reshape(-1), value[tuple(slice(0, s) for s in index.shape)].reshape(-1))


def _twice(index: torch.Tensor) -> bool:
    ordered = index.reshape(-1).sort().values
    return bool((ordered[1:] == ordered[:-1]).any())


@operator("index_copy")
def index_copy(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Rows to the places that an index names."""
    if not x.dim() or not _twice(index):
        return torch.index_copy(x, dim, index, source)
    line = index.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())])
    return scatter(x, dim, line.expand(source.shape), source)  # type: ignore[no-any-return]


@operator("index_copy_", in_place=True)
def index_copy_(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Rows in place."""
    if not x.dim() or not _twice(index):
        return torch.ops.aten.index_copy_.default(x, dim, index, source)  # type: ignore[no-any-return]
    return x.copy_(index_copy(x, dim, index, source))


@operator("as_strided_scatter")
def as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: list[int], stride: list[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Placing at strides.

    Raises:
        UsageError: `exact-refused`, where they name one place twice.
    """
    if overlaps(x.as_strided(size, stride, storage_offset)):
        raise UsageError("exact-refused", "as_strided_scatter to overlapping places has no exact definition")
    return torch.as_strided_scatter(x, source, size, stride, storage_offset)


@operator("max_unpool2d", "max_unpool3d")
def max_unpool(x: torch.Tensor, index: torch.Tensor, output_size: list[int], *given: Any) -> torch.Tensor:
    """Each element to the place in its plane that an index names, zeros elsewhere; `given` is not needed."""
    del given
    d = len(output_size)
    plane = torch.Size(output_size).numel()
    if x.shape != index.shape or bool(((index < 0) | (index >= plane)).any()):
        raise RuntimeError(f"unpooling of {tuple(x.shape)} into {list(output_size)}: an index lies outside")
    planes = torch.arange(x.shape[:-d].numel(), device=x.device)[:, None] * plane
    places = index.reshape(-1, x.shape[-d:].numel()) + planes
    y = latest(x.new_zeros(*x.shape[:-d], *output_size), places.reshape(-1), x.reshape(-1))
    return laid_out(y, x)


@operator("put")
def put(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Placing at row-major places; accumulated as integers where asked for."""
    if index.numel() != source.numel() or bool(((index < -x.numel()) | (index >= x.numel())).any()):
        raise RuntimeError(f"put of {source.numel()} elements at {index.numel()} places, or outside of {x.numel()}")
    places = (index % max(1, x.numel())).reshape(-1)
    if not accumulate:
        return latest(x, places, source.reshape(-1))
    add = OPERATORS["index_add"] if x.is_floating_point() else torch.index_add
    return add(x.reshape(-1), 0, places, source.reshape(-1)).reshape(x.shape)
