"""Sums in one order: by halving.

`n` numbers are summed by adding the second half to the first, element by element, until one is left: with
`h = ceil(n / 2)`, `x[i] + x[h + i]` for `i < n - h`. Each addition rounds once, the tree is a function of `n` alone,
and its depth keeps the error near `log2(n)` roundings (Higham, SIAM J. Sci. Comput. 14(4), 1993). No thread or vector
width has a say.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from witness.arithmetic import compiled
from witness.arithmetic.kernels import sums as kernels


def total(
    x: torch.Tensor, dims: int | Sequence[int] | None = None, keepdim: bool = False, *, owned: bool = False
) -> torch.Tensor:
    """The sum over dimensions, reduced one after the other from the last to the first.

    Args:
        x: float32 or float64.
        dims: dimensions; all of them when None or empty.
        keepdim: whether they stay, with size 1.
        owned: whether `x` may be overwritten.

    Returns:
        Of `x`'s dtype; zero for an empty sum.
    """
    places = sorted(dimensions(x, dims), reverse=True)
    for place in places:
        reduced = _reduce(x, place, owned)
        owned = owned or reduced is not x  # a dimension of size 1 leaves the caller's own tensor
        x = reduced
    if not keepdim and places:
        x = x.reshape([size for place, size in enumerate(x.shape) if place not in places])
    return x if owned else x.clone()


def dimensions(x: torch.Tensor, dims: int | Sequence[int] | None) -> set[int]:
    """The dimensions that a reduction names, counted from the front; all of them where it names none.

    Raises:
        IndexError: out of range.
        RuntimeError: named twice.
    """
    rank = x.dim()
    chosen = [dims] if isinstance(dims, int) else list(dims) if dims else list(range(rank))
    for d in chosen:
        if not -max(1, rank) <= d < max(1, rank):
            raise IndexError(f"Dimension out of range (expected within [{-max(1, rank)}, {max(1, rank) - 1}], got {d})")
    places = {d % rank for d in chosen} if rank else set[int]()
    if rank and len(places) < len(chosen):
        raise RuntimeError(f"a dimension appears twice in {chosen}")
    return places


def mean(x: torch.Tensor, dims: int | Sequence[int] | None = None, keepdim: bool = False) -> torch.Tensor:
    """`total` divided by the count, which is first rounded to `x`'s dtype."""
    s = total(x, dims, keepdim)
    count = x.numel() // s.numel() if s.numel() else 0
    return s / torch.full((), float(count), dtype=x.dtype, device=x.device)


def _reduce(x: torch.Tensor, place: int, owned: bool) -> torch.Tensor:
    """Halves dimension `place` until its size is 1."""
    n = x.shape[place]
    if n == 0:
        return x.new_zeros([*x.shape[:place], 1, *x.shape[place + 1 :]])
    if x.dtype == torch.float32 and n >= 2 and compiled.usable(x):
        return _compiled(x, place)
    while n > 1:
        half = (n + 1) // 2
        head = x.narrow(place, 0, half)
        if not owned:
            head = head.clone(memory_format=torch.contiguous_format)
        head.narrow(place, 0, n - half).add_(x.narrow(place, half, n - half))
        x, n, owned = head, half, True
    return x


def _compiled(x: torch.Tensor, place: int) -> torch.Tensor:
    outer = x.shape[:place].numel()
    n = x.shape[place]
    inner = x.shape[place + 1 :].numel()
    out = torch.empty([*x.shape[:place], 1, *x.shape[place + 1 :]], dtype=x.dtype)
    if inner == 1:
        compiled.run(kernels.rows, outer, n, x.detach().reshape(-1).numpy(), out.reshape(-1).numpy(), weight=n)
    else:
        flat, result = x.detach().reshape(-1).numpy(), out.reshape(-1).numpy()
        columns = kernels.BLOCK
        parts = outer * -(-inner // columns)
        compiled.run(kernels.columns, parts, n, inner, flat, result, weight=n * min(inner, columns))
    return out


def scan(x: torch.Tensor, place: int, combine: str = "add") -> torch.Tensor:
    """Inclusive prefix sums (or products) in log-steps: `x[i]` takes in `x[i - d]` for d = 1, 2, 4, ... (Kogge, Stone).

    Args:
        x: float32 or float64.
        place: dimension.
        combine: `add` or `mul`.
    """
    x = x.clone(memory_format=torch.contiguous_format)
    n, distance = (x.shape[place] if x.dim() else 1), 1
    while distance < n:
        shifted = x.narrow(place, 0, n - distance).clone()
        tail = x.narrow(place, distance, n - distance)
        tail.add_(shifted) if combine == "add" else tail.mul_(shifted)
        distance *= 2
    return x


def product(x: torch.Tensor, place: int, keepdim: bool = False) -> torch.Tensor:
    """The product over one dimension, by halving."""
    if not x.dim():
        return x.clone()
    place %= x.dim()
    n = x.shape[place]
    if n == 0:
        x = x.new_ones([*x.shape[:place], 1, *x.shape[place + 1 :]])
    while n > 1:
        half = (n + 1) // 2
        head = x.narrow(place, 0, half).clone()
        head.narrow(place, 0, n - half).mul_(x.narrow(place, half, n - half))
        x, n = head, half
    return x.clone() if keepdim else x.squeeze(place).clone()
