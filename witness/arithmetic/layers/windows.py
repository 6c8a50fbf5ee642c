"""Sums over sliding windows, and back: the pieces of pooling, folding and resizing, each in one order of additions.

A window of neighbours is summed by the tree of `sums.total`. Going back, where windows overlap, a place adds up what
its windows give it in the order of its offset within them, lowest offset first. Dimensions are taken one after the
other, the last one first.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from witness.arithmetic.summation import sums

SHORT = 16
"""Windows of up to so many elements are summed as that many strided slices."""


def framed(x: torch.Tensor, low: Sequence[int], size: Sequence[int], last: bool = False) -> torch.Tensor:
    """The last dimensions of `x` cut or filled up with zeros to another extent.

    Args:
        x: (A, B, *extent).
        low: first coordinate of the result in each of the last dimensions; negative ones lie before `x`.
        size: extent of the result.
        last: whether dimension B is to lie innermost in memory.

    Returns:
        (A, B, *size); `x` itself where nothing is to be done.
    """
    extent = x.shape[2:]
    whole = list(size) == list(extent) and not any(low)
    if whole and (x.movedim(1, -1) if last else x).is_contiguous():
        return x
    out = x.new_zeros((x.shape[0], *size, x.shape[1])).movedim(-1, 1) if last else x.new_zeros((*x.shape[:2], *size))
    source, target = x, out
    for place, (first, n, m) in enumerate(zip(low, extent, size, strict=True), start=2):
        start, stop = max(first, 0), min(first + m, n)
        length = max(stop - start, 0)
        source = source.narrow(place, start if length else 0, length)
        target = target.narrow(place, start - first if length else 0, length)
    target.copy_(source)
    return out


def tree(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of tensors of one shape, by halving: `sums.total` over a dimension that is not there."""
    parts = list(parts)
    while len(parts) > 1:
        half = (len(parts) + 1) // 2
        parts = [p + parts[half + i] if half + i < len(parts) else p for i, p in enumerate(parts[:half])]
    return parts[0]


def sliding_sums(x: torch.Tensor, dim: int, length: int, step: int, count: int) -> torch.Tensor:
    """Sums of windows along one dimension.

    Args:
        x: of at least `(count - 1) * step + length` elements along `dim`.
        dim: non-negative.
        length: elements of a window.
        step: distance of windows.
        count: windows.

    Returns:
        `x`'s shape with `count` in place of dimension `dim`.
    """
    if length > SHORT:
        views = x.narrow(dim, 0, (count - 1) * step + length).unfold(dim, length, step)
        return sums.total(views, -1)
    span = (count - 1) * step + 1
    return tree([x.narrow(dim, j, span)[_every(x.dim(), dim, step)] for j in range(length)])


def _every(rank: int, dim: int, step: int) -> tuple[slice, ...]:
    return tuple(slice(None, None, step) if d == dim % rank else slice(None) for d in range(rank))


def ragged_sums(x: torch.Tensor, dim: int, start: torch.Tensor, stop: torch.Tensor) -> torch.Tensor:
    """Sums of `x[start[i]:stop[i]]` along one dimension: each filled up with +0 to the longest, then by the tree.

    Args:
        x: any shape.
        dim: non-negative.
        start: int64 (m,), on `x`'s device.
        stop: int64 (m,), at least `start`.

    Returns:
        `x`'s shape with `m` in place of dimension `dim`.
    """
    longest = int((stop - start).max()) if start.numel() else 0
    if longest == 0 or not x.numel():
        return x.new_zeros([*x.shape[:dim], start.numel(), *x.shape[dim + 1 :]])
    place = start[:, None] + torch.arange(longest, device=x.device)
    outside = place >= stop[:, None]
    got = x.index_select(dim, place.clamp(max=x.shape[dim] - 1).reshape(-1))
    got = got.reshape(*x.shape[:dim], *place.shape, *x.shape[dim + 1 :])
    if bool(outside.any()):
        got = got.masked_fill(outside.reshape(*place.shape, *[1] * (x.dim() - dim - 1)), 0.0)
    return sums.total(got, dim + 1)


def overlapped(windows: torch.Tensor, dim: int, step: int, dilation: int, size: int) -> torch.Tensor:
    """Puts windows back where they came from, adding where they overlap.

    Args:
        windows: dimension `dim` counts windows, dimension `dim + 1` the elements of each.
        dim: non-negative.
        step: distance of the windows' first elements.
        dilation: distance of a window's elements.
        size: elements along the result; those that no window reaches are zero, those beyond it are dropped.

    Returns:
        `windows` with `size` in place of the two dimensions.
    """
    count, length = windows.shape[dim], windows.shape[dim + 1]
    if not windows.numel():
        return windows.new_zeros([*windows.shape[:dim], size, *windows.shape[dim + 2 :]])
    if dilation > 1:
        reach = (count - 1) * step + (length - 1) * dilation + 1
        out = windows.new_zeros([*windows.shape[:dim], max(size, reach), *windows.shape[dim + 2 :]])
        for j in range(length):
            span = out.narrow(dim, j * dilation, (count - 1) * step + 1)
            span[_every(out.dim(), dim, step)].add_(windows.select(dim + 1, j))
        return out.narrow(dim, 0, size)
    blocks = -(-length // step)  # offsets q * step .. (q + 1) * step of all windows meet nowhere: one pass each
    rows = max(count + blocks - 1, -(-size // step))
    out = windows.new_zeros([*windows.shape[:dim], rows, step, *windows.shape[dim + 2 :]])
    for q in range(blocks):
        width = min(step, length - q * step)
        out.narrow(dim, q, count).narrow(dim + 1, 0, width).add_(windows.narrow(dim + 1, q * step, width))
    return out.flatten(dim, dim + 1).narrow(dim, 0, size)
