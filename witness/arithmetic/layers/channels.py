"""Passes over (N, C, L), examples by channels by positions, with numbers that belong to channels or groups of them.

What batch and group normalisation share; float32 on the CPU has compiled forms, one pass each.
"""

from __future__ import annotations

import torch

from witness.arithmetic import compiled
from witness.arithmetic.kernels import channels as kernels
from witness.arithmetic.kernels.rows import ABSENT
from witness.arithmetic.layers.derivatives import array, widened
from witness.arithmetic.summation import sums

Optional = torch.Tensor | None


def beside(values: torch.Tensor) -> torch.Tensor:
    """(C,) beside (N, C, L)."""
    return widened(values).view(1, -1, 1)


def squares(seen: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """The total squared distance of each channel from its mean."""
    if not _compiled(seen, mean):
        c = seen - beside(mean)
        return sums.total(c.mul_(c), (0, 2), owned=True)
    rows = seen.new_empty(seen.shape[:2])
    n, channels = seen.shape[2], seen.shape[1]
    compiled.run(kernels.squares, rows.numel(), n, 1, channels, array(seen), array(mean), array(rows), weight=n)
    return sums.total(rows, 0)


def applied(
    seen: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, weight: Optional, bias: Optional
) -> torch.Tensor:
    """`(x - mean) * scale * weight + bias`."""
    if not _compiled(seen, mean, scale):
        y = (seen - beside(mean)).mul_(beside(scale))
        y = y if weight is None else y.mul_(beside(weight))
        return y if bias is None else y.add_(beside(bias))
    n, channels = seen.shape[2], seen.shape[1]
    w = seen.new_ones(channels) if weight is None else widened(weight).contiguous()
    b = seen.new_full((channels,), float(ABSENT)) if bias is None else widened(bias).contiguous()
    out = torch.empty_like(seen)
    given = array(seen), array(mean), array(scale), array(w), array(b), array(out)
    compiled.run(kernels.apply, out.numel() // n, n, channels, *given, weight=n)
    return out


def gradient_totals(
    g: torch.Tensor, seen: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, per: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The totals of `g * normal` and `g` by channel: over positions, then over examples.

    Args:
        g: (N, C, L).
        seen: (N, C, L), the input.
        mean: one for every `per` channels; over again for the next example where there are C / per of them.
        scale: alike.
        per: how many channels share statistics.
    """
    n, c, positions = seen.shape
    if not _compiled(g, seen, mean, scale):
        shape = (-1, c // per, per, positions)
        normal = (seen.view(shape) - mean.view(-1, c // per, 1, 1)).mul_(scale.view(-1, c // per, 1, 1))
        return sums.total(normal.view(g.shape).mul_(g), (0, 2), owned=True), sums.total(g, (0, 2))
    first, second = seen.new_empty(n, c), seen.new_empty(n, c)
    given = array(g), array(seen), array(mean), array(scale), array(first), array(second)
    compiled.run(kernels.gradient_totals, n * c, positions, per, mean.numel(), *given, weight=2 * positions)
    return sums.total(first, 0), sums.total(second, 0)


def by_input(
    g: torch.Tensor, seen: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, weight: Optional,
    a: torch.Tensor, b: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """`(g - a - normal * b) * scale * weight`, all but g and x by channel."""
    if not _compiled(g, seen, mean, scale):
        normal = (seen - beside(mean)).mul_(beside(scale))
        by_x = (g - beside(a)).sub_(normal.mul_(beside(b))).mul_(beside(scale))
        return by_x if weight is None else by_x.mul_(beside(weight))
    n, channels = seen.shape[2], seen.shape[1]
    w = seen.new_ones(channels) if weight is None else widened(weight).contiguous()
    out = torch.empty_like(seen)
    given = array(g), array(seen), array(mean), array(scale), array(w), array(a), array(b), array(out)
    compiled.run(kernels.backward, out.numel() // n, n, channels, *given, weight=n)
    return out


def _compiled(seen: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether compiled passes over rows of positions pay: not for single positions, which lie across the rows."""
    return seen.dtype == torch.float32 and seen.numel() > 0 and seen.shape[2] > 1 and compiled.usable(seen, *others)
