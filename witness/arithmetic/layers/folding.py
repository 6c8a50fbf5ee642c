"""Folding and padding, backwards: where an element was used several times, its gradients add up in one order.

Going forward these operators only place values. Backwards:

- `unfold`, and `fold` itself (`col2im`): `windows.overlapped`, so by offset within the window, lowest first;
- reflected borders: the inside, plus what the border before it brings, plus what the one behind it brings;
- replicated borders: the inside, plus the halving sum of the border before it, plus that of the one behind it.

Dimensions are taken one after the other, the last one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from witness.arithmetic.layers.windows import overlapped
from witness.arithmetic.registry import operator
from witness.arithmetic.summation import sums


def _pair(values: Sequence[int] | int) -> list[int]:
    listed = [values] if isinstance(values, int) else list(values)
    return listed * 2 if len(listed) == 1 else listed


@operator("unfold_backward")
def unfold_backward(gradient: torch.Tensor, input_sizes: Sequence[int], dim: int, size: int, step: int) -> torch.Tensor:
    """Adds the windows of `Tensor.unfold` up where they overlap.

    Args:
        gradient: windows counted along `dim`, their elements along a last dimension more.
        input_sizes: shape of the result.
        dim: which dimension was unfolded.
        size: elements of a window.
        step: distance of windows.
    """
    del size
    if not input_sizes:
        return gradient.reshape(())
    place = dim % len(input_sizes)
    return overlapped(gradient.movedim(-1, place + 1), place, step, 1, input_sizes[place])


@operator("col2im")
def col2im(
    x: torch.Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> torch.Tensor:
    """Adds columns of windows (N, C * kernel, L) up to images (N, C, *output_size), as `nn.Fold` does."""
    extent, kernel, spread, border, step = map(_pair, (output_size, kernel_size, dilation, padding, stride))
    counts = [
        (n + 2 * p - g * (k - 1) - 1) // s + 1
        for n, k, g, p, s in zip(extent, kernel, spread, border, step, strict=True)
    ]
    columns = kernel[0] * kernel[1]
    if x.dim() not in (2, 3) or x.shape[-2] % columns or x.shape[-1] != counts[0] * counts[1]:
        raise RuntimeError(
            f"fold of {tuple(x.shape)} into {tuple(extent)}: expected (N, C * {columns}, {counts[0] * counts[1]})"
        )
    windows = x.reshape(-1, x.shape[-2] // columns, *kernel, *counts).permute(0, 1, 4, 2, 5, 3)
    for place, at in ((1, 4), (0, 2)):
        n, p = extent[place], border[place]
        windows = overlapped(windows, at, step[place], spread[place], n + 2 * p).narrow(at, p, n)
    return windows.reshape(*x.shape[:-2], x.shape[-2] // columns, *extent)


def pad_backward(gradient: torch.Tensor, x: torch.Tensor, padding: Sequence[int], *, reflected: bool) -> torch.Tensor:
    """Adds what was copied into borders to where it came from.

    Args:
        gradient: of the padded tensor.
        x: the input, of which only the shape counts.
        padding: before and behind the last dimension, before and behind the one before it, and so on.
        reflected: whether the border was the mirror image without the edge, or else the edge itself.
    """
    g = gradient
    for i in range(len(padding) // 2):
        before, behind = padding[2 * i], padding[2 * i + 1]
        dim = x.dim() - 1 - i
        n = x.shape[dim]
        cut, rest = max(-before, 0), max(-behind, 0)
        out = g.new_zeros([*g.shape[:dim], n, *g.shape[dim + 1 :]])
        out.narrow(dim, cut, n - cut - rest).copy_(g.narrow(dim, max(before, 0), n - cut - rest))
        if before > 0:
            border = g.narrow(dim, 0, before)
            if reflected:
                out.narrow(dim, 1, before).add_(border.flip(dim))
            else:
                out.narrow(dim, 0, 1).add_(sums.total(border, dim, True))
        if behind > 0:
            border = g.narrow(dim, g.shape[dim] - behind, behind)
            if reflected:
                out.narrow(dim, n - 1 - behind, behind).add_(border.flip(dim))
            else:
                out.narrow(dim, n - 1, 1).add_(sums.total(border, dim, True))
        g = out
    return g


for _d in (1, 2, 3):
    operator(f"reflection_pad{_d}d_backward")(partial(pad_backward, reflected=True))
    operator(f"replication_pad{_d}d_backward")(partial(pad_backward, reflected=False))
