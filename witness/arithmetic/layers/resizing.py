"""Resizing by the nearest element or by straight lines, one dimension after the other, the last one first.

The nearest element is torch's own choice (`upsample_nearest1d` is asked which one it takes, in float32 as everywhere);
going back, an element gets the halving sum of the outputs that were taken from it.

Between two elements, output o of m lies at `p = o * (n - 1) / (m - 1)` with aligned corners, else at
`p = max((o + 0.5) * ratio - 0.5, 0)`, `ratio` being n / m, or the inverse of the factor that the program gave; each
operation rounds to float64. With `b = p - floor(p)` and `a = 1 - b`, both rounded to float32, the output is
`x[floor(p)] * a + x[floor(p) + 1] * b`. Going back, an element gets the halving sum of `g * a` over the outputs that it
begins, plus that of `g * b` over those that it ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from witness.arithmetic.layers.windows import ragged_sums
from witness.arithmetic.registry import operator


def _factors(size: Sequence[int], scales: Sequence[float | None], named: dict[str, float | None]) -> list[float | None]:
    given = [*scales, *named.values()]
    return given + [None] * (len(size) - len(given))


def _taken(g: torch.Tensor, dim: int, source: torch.Tensor, n: int) -> torch.Tensor:
    """For each of `n` elements the sum over the outputs whose `source`, which ascends, it is."""
    numbers = torch.arange(n, dtype=source.dtype, device=source.device)
    start, stop = torch.searchsorted(source, numbers), torch.searchsorted(source, numbers, right=True)
    return ragged_sums(g, dim, start, stop)


def nearest_backward(
    gradient: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    *scales: float | None,
    exact: bool,
    **named: float | None,
) -> torch.Tensor:
    """Adds up the outputs that were taken from each element.

    Args:
        gradient: (N, C, *output_size).
        output_size: extent of the output.
        input_size: shape of the input (N, C, *extent).
        scales: factors of the dimensions, where the program gave them.
        exact: whether centres of elements were compared (`nearest-exact`).
        named: the same factors by name.
    """
    resize = torch.ops.aten._upsample_nearest_exact1d if exact else torch.ops.aten.upsample_nearest1d  # noqa: SLF001
    factors = _factors(output_size, scales, named)
    for place in reversed(range(len(output_size))):
        n = input_size[place + 2]
        numbers = torch.arange(n, dtype=torch.float64, device=gradient.device)
        source = resize(numbers[None, None], [output_size[place]], factors[place])[0, 0]
        gradient = _taken(gradient, place + 2, source, n)
    return gradient


class _Line:
    """Where the outputs of one dimension lie between its elements.

    Attributes:
        first: int64 (m,), the element before.
        second: the one behind.
        a: float32 (m,), the share of the first.
        b: of the second.
    """

    def __init__(self, n: int, m: int, aligned: bool, factor: float | None, like: torch.Tensor) -> None:
        numbers = torch.arange(m, dtype=torch.float64)
        if aligned:
            p = numbers * ((n - 1) / (m - 1) if m > 1 else 0.0)
        else:
            p = (numbers + 0.5) * (1.0 / factor if factor else n / m) - 0.5
            p = torch.where(p < 0, 0.0, p)
        first = torch.where(p.floor() > n - 1, float(n - 1), p.floor())
        b = torch.where(first == n - 1, 0.0, p - first)
        self.first = first.to(like.device, torch.int64)
        self.second = torch.where(self.first < n - 1, self.first + 1, self.first)
        self.a, self.b = (1.0 - b).to(like), b.to(like)
        self.whole = m == n and not bool(b.any())

    def shaped(self, share: torch.Tensor, rank: int, dim: int) -> torch.Tensor:
        """A share that broadcasts along one dimension."""
        return share.reshape([-1 if d == dim else 1 for d in range(rank)])


def linear(
    x: torch.Tensor,
    output_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
    **named: float | None,
) -> torch.Tensor:
    """Resizes by straight lines.

    Args:
        x: (N, C, *extent).
        output_size: extent of the result.
        align_corners: whether first and last elements stay where they are, or the borders do.
        scales: factors of the dimensions, where the program gave them.
        named: the same factors by name.
    """
    factors = _factors(output_size, scales, named)
    for place in reversed(range(len(output_size))):
        dim = place + 2
        line = _Line(x.shape[dim], output_size[place], align_corners, factors[place], x)
        if not line.whole:
            before = x.index_select(dim, line.first) * line.shaped(line.a, x.dim(), dim)
            x = before + x.index_select(dim, line.second) * line.shaped(line.b, x.dim(), dim)
    return x.clone()


def linear_backward(
    gradient: torch.Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
    **named: float | None,
) -> torch.Tensor:
    """The derivative of `linear`.

    Args:
        gradient: (N, C, *output_size).
        output_size: extent of the output.
        input_size: shape of the input (N, C, *extent).
        align_corners: as for `linear`.
        scales: as for `linear`.
        named: as for `linear`.
    """
    g = gradient
    factors = _factors(output_size, scales, named)
    for place in reversed(range(len(output_size))):
        dim, n = place + 2, input_size[place + 2]
        line = _Line(n, output_size[place], align_corners, factors[place], g)
        if not line.whole:
            begun = _taken(g * line.shaped(line.a, g.dim(), dim), dim, line.first, n)
            g = begun + _taken(g * line.shaped(line.b, g.dim(), dim), dim, line.second, n)
    return g.clone()


for _d, _kind in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
    operator(f"upsample_nearest{_d}d_backward")(partial(nearest_backward, exact=False))
    operator(f"_upsample_nearest_exact{_d}d_backward")(partial(nearest_backward, exact=True))
    operator(f"upsample_{_kind}")(linear)
    operator(f"upsample_{_kind}_backward")(linear_backward)
