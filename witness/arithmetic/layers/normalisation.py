"""Layer, RMS and group normalisation: rows put on mean 0 and mean square 1, by one definition.

With `total` the halving sum of `sums` and n the length of a row:

    mean = total(x) / n                                 (0 for RMS normalisation)
    c = x - mean
    scale = 1 / sqrt(total(c * c) / n + eps)
    y = c * scale * weight + bias                       (a factor or term that is not given is left out)

    normal = (x - mean) * scale,  w = g * weight
    dx = (w - total(w) / n - normal * (total(w * normal) / n)) * scale
    dweight = total of g * normal, dbias = total of g,  over rows

Every operation rounds once. Half precision is converted to float32 and back; mean and scale stay float32. A row's bits
do not depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from witness.arithmetic import compiled
from witness.arithmetic.elementary.elements import over, root
from witness.arithmetic.kernels import normalisation as kernels
from witness.arithmetic.kernels.rows import ABSENT
from witness.arithmetic.layers.channels import gradient_totals
from witness.arithmetic.layers.derivatives import array, cast, differentiable, laid_out, plain, transformed, widened
from witness.arithmetic.registry import function, operator
from witness.arithmetic.summation import sums

Optional = torch.Tensor | None


def _count(n: int, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), float(n), dtype=like.dtype, device=like.device)


def normalise(
    x: torch.Tensor, weight: Optional, bias: Optional, eps: float, *, groups: int = 1, centred: bool = True
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows on mean 0 and mean square 1, then scaled and shifted.

    Args:
        x: (R, n), float32 or float64.
        weight: (groups, n); row r takes part `r % groups`.
        bias: alike.
        eps: added to the mean square.
        groups: how many parts.
        centred: whether the mean is taken off.

    Returns:
        The result (R, n); mean and scale, both (R,).
    """
    rows, n = x.shape
    if x.dtype == torch.float32 and n and compiled.usable(x):
        out, mean, scale = torch.empty_like(x), x.new_empty(rows), x.new_empty(rows)
        w = x.new_ones(groups * n) if weight is None else weight.to(x.dtype).contiguous()
        b = x.new_full((groups * n,), float(ABSENT)) if bias is None else bias.to(x.dtype).contiguous()
        into = array(out), array(mean), array(scale)
        compiled.run(kernels.forward, rows, n, groups, centred, array(x), array(w), array(b), eps, *into, weight=4 * n)
        return out, mean, scale
    mean = sums.mean(x, 1, True) if centred else x.new_zeros(rows, 1)
    c = x - mean
    scale = over(1.0, root(sums.total(c * c, 1, True, owned=True) / _count(n, x) + eps))
    y = (c * scale).view(-1, groups, n)
    if weight is not None:
        y = y * weight.to(x.dtype).view(groups, n)
    if bias is not None:
        y = y + bias.to(x.dtype).view(groups, n)
    return y.view(rows, n), mean.view(rows), scale.view(rows)


def by_input(
    g: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: Optional,
    *,
    groups: int = 1,
    centred: bool = True,
) -> torch.Tensor:
    """The gradient of the rows; arguments as of `normalise`, `g` (R, n) the gradient of the result."""
    rows, n = x.shape
    if x.dtype == torch.float32 and n and compiled.usable(g, x, mean, scale):
        out = torch.empty_like(x)
        w = x.new_ones(groups * n) if weight is None else weight.to(x.dtype).contiguous()
        given = array(g), array(x), array(w), array(mean), array(scale)
        compiled.run(kernels.backward, rows, n, groups, centred, *given, array(out), weight=4 * n)
        return out
    normal = (x - mean.view(-1, 1)) * scale.view(-1, 1)
    w = g
    if weight is not None:
        w = (g.view(-1, groups, n) * weight.to(x.dtype).view(groups, n)).view(rows, n)
    a = sums.mean(w, 1, True) if centred else w.new_zeros(rows, 1)
    b = sums.total(w * normal, 1, True, owned=True) / _count(n, x)
    return (w - a - normal * b) * scale.view(-1, 1)


def by_affine(
    g: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of weight and bias, both (n,), where all rows share them."""
    rows, n = x.shape
    if x.dtype == torch.float32 and rows and n and compiled.usable(g, x, mean, scale):
        by_weight, by_bias = x.new_empty(n), x.new_empty(n)
        given = array(g), array(x), array(mean), array(scale)
        parts = -(-n // int(kernels.BLOCK))
        into = array(by_weight), array(by_bias)
        compiled.run(kernels.backward_affine, parts, rows, n, *given, *into, weight=rows * int(kernels.BLOCK))
        return by_weight, by_bias
    normal = (x - mean.view(-1, 1)) * scale.view(-1, 1)
    return sums.total(g * normal, 0, owned=True), sums.total(g, 0)


def _rows(x: torch.Tensor, n: int) -> torch.Tensor:
    return widened(x).contiguous().view(-1, n)


def _length(x: torch.Tensor, shape: Sequence[int], *affine: Optional) -> int:
    """How many elements of `x` are normalised together; torch would check the shapes in its own kernels."""
    fits = tuple(x.shape[x.dim() - len(shape) :]) == tuple(shape) and len(shape) > 0
    if not fits or any(t is not None and tuple(t.shape) != tuple(shape) for t in affine):
        raise RuntimeError(f"normalisation over {tuple(shape)} of an input of shape {tuple(x.shape)}, or its weights")
    return torch.Size(shape).numel()


@operator("native_layer_norm", halves=True)
def native_layer_norm(
    x: torch.Tensor, shape: Sequence[int], weight: Optional, bias: Optional, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Result, mean and scale; the latter two with size 1 in the normalised dimensions."""
    y, mean, scale = normalise(_rows(x, _length(x, shape, weight, bias)), weight, bias, eps)
    outer = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return y.view(x.shape).to(x.dtype), mean.view(outer), scale.view(outer)


@operator("native_layer_norm_backward", halves=True)
def native_layer_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: Optional,
    bias: Optional,
    wanted: Sequence[bool],
) -> tuple[Optional, Optional, Optional]:
    """Gradients of input, weight and bias, each in its own precision."""
    n = _length(x, shape, weight)
    rows, g = _rows(x, n), _rows(grad, n)
    statistics = widened(mean).reshape(-1), widened(scale).reshape(-1)
    by_x = by_weight = by_bias = None
    if wanted[0]:
        by_x = by_input(g, rows, *statistics, weight).view(x.shape).to(x.dtype)
    if wanted[1] or wanted[2]:
        first, second = by_affine(g, rows, *statistics)
        by_weight = first.view(shape).to(x.dtype if weight is None else weight.dtype) if wanted[1] else None
        by_bias = second.view(shape).to(x.dtype if bias is None else bias.dtype) if wanted[2] else None
    return by_x, by_weight, by_bias


def _default_eps(dtype: torch.dtype) -> float:
    return torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps


@operator("_fused_rms_norm", halves=True)
def fused_rms_norm(
    x: torch.Tensor, shape: Sequence[int], weight: Optional, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Result and scale; without `eps`, the distance from 1 to the next float32."""
    eps = _default_eps(x.dtype) if eps is None else eps
    y, _, scale = normalise(_rows(x, _length(x, shape, weight)), weight, None, eps, centred=False)
    outer = [*x.shape[: x.dim() - len(shape)], *[1] * len(shape)]
    return y.view(x.shape).to(x.dtype), scale.view(outer)


@operator("_fused_rms_norm_backward", halves=True)
def fused_rms_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    shape: Sequence[int],
    scale: torch.Tensor,
    weight: Optional,
    wanted: Sequence[bool],
) -> tuple[Optional, Optional]:
    """Gradients of input and weight, each in its own precision."""
    n = _length(x, shape, weight)
    rows, g = _rows(x, n), _rows(grad, n)
    scales = widened(scale).reshape(-1)
    zeros = torch.zeros_like(scales)
    by_x = by_weight = None
    if wanted[0]:
        by_x = by_input(g, rows, zeros, scales, weight, centred=False).view(x.shape).to(x.dtype)
    if wanted[1]:
        by_weight = by_affine(g, rows, zeros, scales)[0].view(shape).to(x.dtype if weight is None else weight.dtype)
    return by_x, by_weight


def _composed_rms_norm(shape: Sequence[int], eps: float | None, x: torch.Tensor, weight: Optional) -> torch.Tensor:
    """The same in torch's operations."""
    wide = widened(x)
    mean = (wide * wide).mean(list(range(-len(shape), 0)), True)
    y = wide * (mean + (_default_eps(x.dtype) if eps is None else eps)).rsqrt()
    return (y if weight is None else y * weight).to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    """RMS normalisation above autograd: torch takes it apart on some devices and not on others."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Optional, shape: Sequence[int], eps: float | None) -> torch.Tensor:
        """See `fused_rms_norm`."""
        with plain():
            y, scale = fused_rms_norm(x, shape, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        ctx.shape, ctx.eps = shape, eps
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Optional, Optional, None, None]:
        """See `fused_rms_norm_backward`."""
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed(grad):
            composed = differentiable(partial(_composed_rms_norm, ctx.shape, ctx.eps), grad, x, weight)
            return *composed, None, None  # type: ignore[return-value]
        with plain():
            by_x, by_weight = fused_rms_norm_backward(grad, x, ctx.shape, scale, weight, ctx.needs_input_grad[:2])
        return by_x, by_weight, None, None


@function(F.rms_norm, torch.rms_norm)
def rms_norm(
    input: torch.Tensor,  # noqa: A002 - torch's name
    normalized_shape: Sequence[int],
    weight: Optional = None,
    eps: float | None = None,
) -> torch.Tensor:
    """`F.rms_norm`; under autocast in float32 where torch's list for the device has it."""
    shape = tuple(normalized_shape)
    if input.device.type != "cpu":
        input, weight = cast(input.device.type, input, weight, to=torch.float32)  # noqa: A001
    if transformed():
        return _composed_rms_norm(shape, eps, input, weight)
    return _RMSNorm.apply(input, weight, shape, eps)  # type: ignore[no-any-return, no-untyped-call]


@operator("native_group_norm", halves=True)
def native_group_norm(
    x: torch.Tensor, weight: Optional, bias: Optional, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Result, and mean and scale (N, groups)."""
    rows = _rows(x, c // group * hxw)
    y, mean, scale = normalise(rows, _spread(weight, hxw), _spread(bias, hxw), eps, groups=group)
    return laid_out(y.view(x.shape).to(x.dtype), x), mean.view(n, group), scale.view(n, group)


def _spread(values: Optional, hxw: int) -> Optional:
    """A number a channel as a number an element."""
    return None if values is None else widened(values)[:, None].expand(-1, hxw).reshape(-1)


@operator("native_group_norm_backward", halves=True)
def native_group_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    mean: torch.Tensor,
    scale: torch.Tensor,
    weight: Optional,
    n: int,
    c: int,
    hxw: int,
    group: int,
    wanted: Sequence[bool],
) -> tuple[Optional, Optional, Optional]:
    """Gradients of input, weight and bias; those of weight and bias are sums over positions, then examples."""
    rows, g = _rows(x, c // group * hxw), _rows(grad, c // group * hxw)
    statistics = widened(mean).reshape(-1), widened(scale).reshape(-1)
    by_x = by_weight = by_bias = None
    if wanted[0]:
        by_x = by_input(g, rows, *statistics, _spread(weight, hxw), groups=group).view(x.shape).to(x.dtype)
        by_x = laid_out(by_x, x)
    kind = x.dtype if weight is None else weight.dtype
    if wanted[1] or wanted[2]:
        seen = n, c, hxw
        first, second = gradient_totals(g.view(seen), rows.view(seen), *statistics, c // group)
        by_weight = first.to(kind) if wanted[1] else None
        by_bias = second.to(kind) if wanted[2] else None
    return by_x, by_weight, by_bias
