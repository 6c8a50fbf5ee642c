"""Pooling: which element is the largest is exact; what averages and gradients add up is added in one order.

Averages are window sums by the halving tree (`windows`), dimension by dimension from the last, divided by the count.
Gradients of averages go back through `windows.overlapped` or, for adaptive pooling, are themselves ragged window sums.

The gradient of a maximum goes to the element that won, and windows overlap. With R windows of a dimension reaching at
most across one place, windows R apart never meet; so outputs fall into classes by their coordinates modulo R, and the
classes are added one after the other, in row-major order.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from witness.arithmetic import compiled
from witness.arithmetic.kernels import pooling as kernels
from witness.arithmetic.layers.windows import framed, overlapped, ragged_sums, sliding_sums
from witness.arithmetic.registry import operator


def _each(values: Sequence[int] | int, d: int) -> list[int]:
    listed = [values] if isinstance(values, int) else list(values)
    return listed * d if len(listed) == 1 else listed


def _batched(x: torch.Tensor, d: int) -> torch.Tensor:
    """(A, B, *extent) of a tensor with or without batch dimension."""
    return x if x.dim() == d + 2 else x.unsqueeze(0)


def returned(source: torch.Tensor, index: torch.Tensor, extent: Sequence[int], classes: Sequence[int]) -> torch.Tensor:
    """Adds each element of `source` to the place of its plane that `index` names.

    Args:
        source: (A, B, *out).
        index: int64, of the same shape: row-major places in a plane.
        extent: the extent of a plane of the result.
        classes: for each dimension R such that outputs R apart never name the same place.

    Returns:
        (A, B, *extent).
    """
    a, b, *out = source.shape
    size = torch.Size(extent).numel()
    result = source.new_zeros((a, b, *extent))
    if not source.numel():
        return result
    parts = [max(1, min(r, n)) for r, n in zip(classes, out, strict=True)]
    source, index = source.contiguous(), index.contiguous()
    if source.dtype == torch.float32 and compiled.usable(source, index, result):
        lead = [1] * (3 - len(out))
        arrays = [t.reshape(-1).numpy() for t in (source.detach(), index, result)]
        sizes = (*lead, *out, *lead, *parts, size)
        compiled.run(kernels.returned, a * b, *sizes, *arrays, weight=source.numel() // (a * b))
        return result
    flat = result.view(a * b, size)
    for offsets in itertools.product(*map(range, parts)):
        chosen = (slice(None), slice(None), *(slice(o, None, r) for o, r in zip(offsets, parts, strict=True)))
        places = index[chosen].reshape(a * b, -1)
        flat.scatter_(1, places, flat.gather(1, places) + source[chosen].reshape(a * b, -1))
    return result


def max_pool_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: torch.Tensor,
    *,
    d: int,
) -> torch.Tensor:
    """Gives each output's gradient to the element that was the largest.

    Args:
        gradient: (N, C, *out) or (C, *out).
        x: the input, of which only the shape counts.
        kernel_size: of each dimension; so are the others, or one number for all.
        stride: the kernel's size if empty.
        padding: not needed: `indices` has the places.
        dilation: distance of a window's elements.
        ceil_mode: not needed.
        indices: int64, row-major places in a plane of `x`.
        d: dimensions.
    """
    del padding, ceil_mode
    kernel, spread = _each(kernel_size, d), _each(dilation, d)
    step = _each(stride, d) if stride else kernel
    classes = [-(-((k - 1) * g + 1) // s) for k, g, s in zip(kernel, spread, step, strict=True)]
    return returned(_batched(gradient, d), _batched(indices, d), x.shape[-d:], classes).reshape(x.shape)


def adaptive_max_pool_backward(
    gradient: torch.Tensor, x: torch.Tensor, indices: torch.Tensor, *, d: int
) -> torch.Tensor:
    """Gives each output's gradient to the element that was the largest."""
    # Output i covers floor(i n / m) .. ceil((i + 1) n / m) - 1, so outputs at least m / n + 1 apart are disjoint.
    extents = zip(x.shape[-d:], gradient.shape[-d:], strict=True)
    classes = [1 if n % m == 0 else -(-m // n) + 1 for n, m in extents]
    return returned(_batched(gradient, d), _batched(indices, d), x.shape[-d:], classes).reshape(x.shape)


class _Averaging:
    """The windows of an average pooling of d dimensions over planes of some extent, and their divisors."""

    def __init__(
        self,
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] | int = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        d: int,
    ) -> None:
        self.kernel, self.padding = _each(kernel_size, d), _each(padding, d)
        self.step = _each(stride, d) if stride else self.kernel
        self.out: list[int] = []
        divisor = torch.ones((), dtype=torch.int64, device=x.device)
        if max(2 * p - k for p, k in zip(self.padding, self.kernel, strict=True)) > 0 or min(self.step) < 1:
            raise RuntimeError("pooling: padding may be at most half of the kernel, and strides at least 1")
        for n, k, s, p in zip(x.shape[-d:], self.kernel, self.step, self.padding, strict=True):
            count = (n + 2 * p - k + (s - 1 if ceil_mode else 0)) // s + 1
            if ceil_mode and (count - 1) * s >= n + p:  # no window may start in the padding at the end
                count -= 1
            if count < 1:
                raise RuntimeError(f"pooling of {tuple(x.shape)} by {tuple(self.kernel)}: its output has no elements")
            self.out.append(count)
            start = torch.arange(count, device=x.device) * s - p
            stop = (start + k).clamp(max=n + p)
            if not count_include_pad:
                start, stop = start.clamp(min=0), stop.clamp(max=n)
            divisor = divisor[..., None] * (stop - start)
        if divisor_override is not None:
            divisor = torch.full((), divisor_override, device=x.device)
        self.divisor = divisor.to(x.dtype)


def avg_pool(x: torch.Tensor, *args: Any, d: int, **kwargs: Any) -> torch.Tensor:
    """Means over windows: the sum, last dimension first, divided by the count.

    Args:
        x: (N, C, *extent) or (C, *extent).
        args: kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override, as torch has them.
        d: dimensions.
        kwargs: the same.
    """
    over = _Averaging(x, *args, d=d, **kwargs)
    reach = [(o - 1) * s + k for o, s, k in zip(over.out, over.step, over.kernel, strict=True)]
    y = framed(_batched(x, d), [-p for p in over.padding], reach)
    for place in reversed(range(d)):
        y = sliding_sums(y, place + 2, over.kernel[place], over.step[place], over.out[place])
    return (y / over.divisor).reshape(*x.shape[:-d], *over.out)


def avg_pool_backward(gradient: torch.Tensor, x: torch.Tensor, *args: Any, d: int, **kwargs: Any) -> torch.Tensor:
    """The gradient divided by the count, given to every element of its window; arguments as for `avg_pool`."""
    over = _Averaging(x, *args, d=d, **kwargs)
    g = _batched(gradient, d) / over.divisor
    for place in reversed(range(d)):
        k, s, p, n = over.kernel[place], over.step[place], over.padding[place], x.shape[-d:][place]
        spread = g.unsqueeze(place + 3).expand(*g.shape[: place + 3], k, *g.shape[place + 3 :])
        g = overlapped(spread, place + 2, s, 1, n + 2 * p).narrow(place + 2, p, n)
    return g.reshape(x.shape)


def _parts(n: int, m: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Start and stop of each of `m` parts of `n` elements, as adaptive pooling divides them; they may overlap."""
    i = torch.arange(m, device=device)
    return i * n // m, -(-(i + 1) * n // m)


def _areas(x: torch.Tensor, outputs: Sequence[int]) -> torch.Tensor:
    """The number of elements of each part, of `x`'s dtype and shape `outputs`."""
    area = torch.ones((), dtype=torch.int64, device=x.device)
    for n, m in zip(x.shape[-len(outputs) :], outputs, strict=True):
        start, stop = _parts(n, m, x.device)
        area = area[..., None] * (stop - start)
    return area.to(x.dtype)


def adaptive_avg_pool(x: torch.Tensor, output_size: Sequence[int] | int, *, d: int) -> torch.Tensor:
    """Means over parts; of one part, the bits of `mean`."""
    outputs = _each(output_size, d)
    y = x
    for place in reversed(range(x.dim() - d, x.dim())):
        start, stop = _parts(x.shape[place], outputs[place - x.dim() + d], x.device)
        y = ragged_sums(y, place, start, stop)
    return y / _areas(x, outputs)


def adaptive_avg_pool_backward(gradient: torch.Tensor, x: torch.Tensor, *, d: int) -> torch.Tensor:
    """Each element takes from the parts that it is in, divided by their counts."""
    g = gradient / _areas(x, gradient.shape[-d:])
    for place in reversed(range(x.dim() - d, x.dim())):
        start, stop = _parts(gradient.shape[place], x.shape[place], x.device)  # the same formula the other way round
        g = ragged_sums(g, place, start, stop)
    return g


for _d in (2, 3):
    operator(f"max_pool{_d}d_with_indices_backward")(partial(max_pool_backward, d=_d))
    operator(f"adaptive_max_pool{_d}d_backward")(partial(adaptive_max_pool_backward, d=_d))
    operator(f"avg_pool{_d}d")(partial(avg_pool, d=_d))
    operator(f"avg_pool{_d}d_backward")(partial(avg_pool_backward, d=_d))
    operator(f"_adaptive_avg_pool{_d}d")(partial(adaptive_avg_pool, d=_d))
    operator(f"_adaptive_avg_pool{_d}d_backward")(partial(adaptive_avg_pool_backward, d=_d))
