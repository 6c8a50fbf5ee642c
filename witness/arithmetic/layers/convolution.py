"""Convolutions as exact products: what BLAS, oneDNN or cuDNN would choose an algorithm for has one definition here.

Every output of a convolution is one exact product (`products.multiply`) of the inputs in its window, zeros where the
window leaves the input, with the weights of its channel: rounded once, then the bias is added. Its row of the product
is its own window, so an example has the same bits alone and in any batch.

A transposed convolution, which is also the gradient of the input, gathers instead of scattering. With stride s, padding
p and kernel k (dilation 1), output o = q s + r - p gets `x[q - t] * w[r + t s]` for t < T = ceil(k / s): an ordinary
convolution of stride 1 with s times the channels, one set for each residue r, laid out alternately, the kernel filled
up with zeros to T s. So overlapping contributions meet inside one exact sum, and no time goes into zeros between the
inputs. A dilated kernel keeps its dilation where s = 1 and is written out with zeros where s > 1.

The gradient of the weights is one exact product over all positions of all examples; that of the bias is `sums.total`.
The zeros named here are terms like others: where an infinity meets one, the output is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import pad

from witness.arithmetic.layers.windows import framed
from witness.arithmetic.matrix.products import multiply, prepare
from witness.arithmetic.registry import operator, product_bits
from witness.arithmetic.summation import sums

CHUNK = 1 << 23
"""Elements of unfolded input that are laid out at a time; rows and columns of a product do not notice each other."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where windows lie: `out` of them a dimension, the first at `low`, `step` apart, elements `dilation` apart."""

    low: list[int]
    out: list[int]
    kernel: list[int]
    step: list[int]
    dilation: list[int]

    @property
    def reach(self) -> list[int]:
        """The extent of the input that the windows cover."""
        parts = zip(self.out, self.step, self.kernel, self.dilation, strict=True)
        return [(o - 1) * s + (k - 1) * d + 1 for o, s, k, d in parts]


def _windows(x: torch.Tensor, shape: _Shape, last: bool) -> torch.Tensor:
    """A view (N, C, *out, *kernel) of `x` (N, C, *extent), filled up with zeros."""
    frame = framed(x, shape.low, shape.reach, last)
    batch, channel, *rest = frame.stride()
    steps = [r * s for r, s in zip(rest, shape.step, strict=True)]
    inner = [r * d for r, d in zip(rest, shape.dilation, strict=True)]
    return frame.as_strided((*frame.shape[:2], *shape.out, *shape.kernel), (batch, channel, *steps, *inner))


def _rows(x: torch.Tensor, shape: _Shape) -> torch.Tensor:
    """Windows as rows: (N * out, kernel * C)."""
    d = len(shape.out)
    view = _windows(x, shape, last=True)
    order = view.permute(0, *range(2, 2 + d), *range(2 + d, 2 + 2 * d), 1)
    return order.reshape(x.shape[0] * _count(shape.out), _count(shape.kernel) * x.shape[1])


def _columns(x: torch.Tensor, shape: _Shape, groups: int) -> torch.Tensor:
    """Windows as columns, by group: (G, C / G * kernel, N * out)."""
    d = len(shape.out)
    view = _windows(x, shape, last=False)
    order = view.permute(1, *range(2 + d, 2 + 2 * d), 0, *range(2, 2 + d))
    return order.reshape(groups, x.shape[1] // groups * _count(shape.kernel), x.shape[0] * _count(shape.out))


def _count(sizes: Sequence[int]) -> int:
    return torch.Size(sizes).numel()


def _correlate(x: torch.Tensor, weight: torch.Tensor, groups: int, shape: _Shape) -> torch.Tensor:
    """Windows of `x` (N, C, *extent) times `weight` (O, C / G, *kernel): (N, O, *out), in some order of memory."""
    n, filters, bits = x.shape[0], weight.shape[0], product_bits()
    unfolded = _count(shape.out) * _count(shape.kernel) * max(1, x.shape[1])
    some = max(1, CHUNK // max(1, unfolded))
    parts = [x[first : first + some] for first in range(0, n, some)] or [x]
    if groups == 1:
        right = prepare(weight.movedim(1, -1).reshape(filters, -1).t(), -2, bits)
        flat = [multiply(_rows(part, shape), right, bits) for part in parts]
        return _joined(flat, 0).reshape(n, *shape.out, filters).movedim(-1, 1)
    left = prepare(weight.reshape(groups, filters // groups, -1), -1, bits)
    grouped = [
        multiply(left, _columns(part, shape, groups), bits).reshape(filters, part.shape[0], *shape.out)
        for part in parts
    ]
    return _joined(grouped, 1).transpose(0, 1)


def _joined(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _transposed(
    x: torch.Tensor,
    weight: torch.Tensor,
    groups: int,
    size: Sequence[int],
    step: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> torch.Tensor:
    """Scatters `x` (N, I, *extent) through `weight` (I, O / G, *kernel), by gathering: (N, O, *size)."""
    d, per_group = len(step), weight.shape[1]
    low, out, taps, spread = [], [], [], []
    w = weight
    for place, (s, p, g, o) in enumerate(zip(step, padding, dilation, size, strict=True), start=2):
        if s > 1 and g > 1:  # write the zeros of the dilation out
            spaced = w.new_zeros([*w.shape[:place], w.shape[place], g, *w.shape[place + 1 :]])
            spaced.select(place + 1, 0).copy_(w)
            w = spaced.flatten(place, place + 1).narrow(place, 0, (w.shape[place] - 1) * g + 1)
        t = -(-w.shape[place] // s)
        low.append(p // s - (t - 1) * (g if s == 1 else 1))
        out.append((p + o - 1) // s - p // s + 1)
        taps.append(t)
        spread.append(g if s == 1 else 1)
        after = [0] * (2 * (w.dim() - place) - 1) + [t * s - w.shape[place]]
        w = pad(w, after) if after[-1] else w
    # (G, I / G, O / G, t1, r1, t2, r2, ...) -> (G, O / G, r1, r2, ..., I / G, t1, t2, ...), the last t first
    split = [length for t, s in zip(taps, step, strict=True) for length in (t, s)]
    w = w.reshape(groups, x.shape[1] // groups, per_group, *split).flip([3 + 2 * i for i in range(d)])
    w = w.permute(0, 2, *(4 + 2 * i for i in range(d)), 1, *(3 + 2 * i for i in range(d)))
    w = w.reshape(groups * per_group * _count(step), x.shape[1] // groups, *taps)
    fine = _correlate(x, w, groups, _Shape(low, out, taps, [1] * d, spread))
    if _count(step) > 1:  # (N, O, r1, r2, ..., q1, q2, ...) -> (N, O, q1 r1, q2 r2, ...)
        fine = fine.reshape(x.shape[0], groups * per_group, *step, *out)
        order = [axis for i in range(d) for axis in (2 + d + i, 2 + i)]
        whole = [o * s for o, s in zip(out, step, strict=True)]
        fine = fine.permute(0, 1, *order).reshape(x.shape[0], groups * per_group, *whole)
    for place, (s, p, o) in enumerate(zip(step, padding, size, strict=True), start=2):
        fine = fine.narrow(place, p % s, o)
    return fine


def _weights(x: torch.Tensor, g: torch.Tensor, groups: int, shape: _Shape) -> torch.Tensor:
    """`sum over n, o of g[n, :, o] * windows of x`: (O, C / G, *kernel)."""
    filters, channels, bits = g.shape[1], x.shape[1] // groups, product_bits()
    left = prepare(g.transpose(0, 1).reshape(groups, filters // groups, -1), -1, bits)
    unfolded = x.shape[0] * _count(shape.out) * _count(shape.kernel) * groups
    some = max(1, CHUNK // max(1, unfolded))
    if groups == 1:
        parts = [
            multiply(left, _rows(part, shape)[None], bits).reshape(filters, *shape.kernel, part.shape[1])
            for part in torch.split(x, some, 1)
        ]
        return _joined(parts, -1).movedim(-1, 1).contiguous()
    by_group = x.reshape(x.shape[0], groups, channels, *x.shape[2:])
    parts = [
        multiply(left, _columns(part.flatten(1, 2), shape, groups).mT, bits).reshape(filters, -1, *shape.kernel)
        for part in torch.split(by_group, some, 2)
    ]
    return _joined(parts, 1)


def _each(values: Sequence[int], d: int) -> list[int]:
    return list(values) * d if len(values) == 1 else list(values)


def _channels_last(*tensors: torch.Tensor) -> bool:
    """Whether torch would keep channels innermost in memory in the result."""
    return any(not t.is_contiguous() and t.dim() in (4, 5) and t.movedim(1, -1).is_contiguous() for t in tensors)


def _laid_out(y: torch.Tensor, channels_last: bool) -> torch.Tensor:
    return y.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else y.contiguous()


def _checked(x: torch.Tensor, weight: torch.Tensor, groups: int, transposed: bool) -> None:
    wanted = weight.shape[0] if transposed else weight.shape[1] * groups
    if x.dim() != weight.dim() or x.shape[1] != wanted or weight.shape[0] % groups:
        raise RuntimeError(
            f"convolution of an input of shape {tuple(x.shape)} with weights of shape {tuple(weight.shape)} and"
            f" {groups} groups: expected {wanted} channels and {weight.dim()} dimensions"
        )


@operator("convolution")
def convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """Convolutions of any number of dimensions, see the module.

    Args:
        x: (N, C, *extent), float32.
        weight: (O, C / groups, *kernel), or (C, O / groups, *kernel) if transposed.
        bias: (O,).
        stride: one number, or one for each dimension; so are padding, dilation and output_padding.
        padding: zeros on both sides (transposed: elements cut off).
        dilation: distance of a kernel's elements.
        transposed: whether to scatter rather than gather.
        output_padding: elements added at the end, if transposed.
        groups: parts into which channels are divided.

    Returns:
        (N, O, *out).
    """
    _checked(x, weight, groups, transposed)
    d = x.dim() - 2
    step, padded, spread = _each(stride, d), _each(padding, d), _each(dilation, d)
    kernel = list(weight.shape[2:])
    reach = [g * (k - 1) + 1 for g, k in zip(spread, kernel, strict=True)]
    if transposed:
        more = _each(output_padding, d)
        size = [(n - 1) * step[i] - 2 * padded[i] + reach[i] + more[i] for i, n in enumerate(x.shape[2:])]
    else:
        size = [(n + 2 * padded[i] - reach[i]) // step[i] + 1 for i, n in enumerate(x.shape[2:])]
    if min(size) < 1:
        raise RuntimeError(
            f"convolution of {tuple(x.shape)} with a kernel of {tuple(kernel)}: its output has no elements"
        )
    if transposed:
        y = _transposed(x, weight, groups, size, step, padded, spread)
    else:
        y = _correlate(x, weight, groups, _Shape([-p for p in padded], size, kernel, step, spread))
    if bias is not None:
        y = y + bias.reshape(-1, *[1] * d)
    return _laid_out(y, _channels_last(x, weight))


@operator("convolution_backward")
def convolution_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The gradients of input, weights and bias that `output_mask` asks for; arguments as for `convolution`."""
    del bias_sizes, output_padding
    d = x.dim() - 2
    step, padded, spread = _each(stride, d), _each(padding, d), _each(dilation, d)
    kernel = list(weight.shape[2:])
    low = [-p for p in padded]
    to_input = to_weight = to_bias = None
    if output_mask[0]:
        if transposed:
            shape = _Shape(low, list(x.shape[2:]), kernel, step, spread)
            to_input = _correlate(gradient, weight, groups, shape)
        else:
            to_input = _transposed(gradient, weight, groups, x.shape[2:], step, padded, spread)
        to_input = _laid_out(to_input, _channels_last(x, weight))
    if output_mask[1]:
        narrow, wide = (x, gradient) if transposed else (gradient, x)
        to_weight = _weights(wide, narrow, groups, _Shape(low, list(narrow.shape[2:]), kernel, step, spread))
    if output_mask[2]:
        to_bias = sums.total(gradient, [0, *range(2, x.dim())])
    return to_input, to_weight, to_bias
