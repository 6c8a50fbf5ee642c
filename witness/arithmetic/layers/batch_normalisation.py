"""Batch and instance normalisation, taken above the point where devices choose different operators for them.

The input is seen as (N, C, L): examples, channels, positions. With m = N L, and sums over positions first, then over
examples:

    mean = total(x) / m,  c = x - mean,  square = total(c * c),  scale = 1 / sqrt(square / m + eps)
    y = c * scale * weight + bias
    running_mean = running_mean * (1 - momentum) + mean * momentum
    running_var = running_var * (1 - momentum) + square / (m - 1) * momentum

    normal = (x - mean) * scale,  dweight = total(g * normal),  dbias = total(g)
    dx = (g - dbias / m - normal * (dweight / m)) * scale * weight

In evaluation mean and variance are the running ones, and `dx = g * scale * weight`. Half precision is converted to
float32 and back, the running statistics too where they are kept in it.

Instance normalisation is group normalisation with a channel a group; its running statistics take in the mean over
examples of what each of them has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from witness.arithmetic.elementary.elements import over, root
from witness.arithmetic.layers.channels import applied, beside, by_input, gradient_totals, squares
from witness.arithmetic.layers.derivatives import laid_out, plain, widened
from witness.arithmetic.registry import function, operator
from witness.arithmetic.summation import sums

Optional = torch.Tensor | None
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _seen(x: torch.Tensor) -> torch.Tensor:
    """(N, C, L), wide and contiguous."""
    return widened(x).contiguous().view(x.shape[0], x.shape[1], -1)


def _as(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`y` as `_seen(x)` is, in the shape, precision and layout of `x`."""
    return laid_out(y.view(x.shape).to(x.dtype), x)


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), float(value), dtype=like.dtype, device=like.device)


def _update(running: torch.Tensor, new: torch.Tensor, momentum: float) -> None:
    """Takes `new` into a running statistic, in place."""
    running.copy_(widened(running) * (1.0 - momentum) + new.to(widened(running).dtype) * momentum)


@operator("native_batch_norm", halves=True)
def native_batch_norm(
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
) -> Triple:
    """Result, mean and scale (C,); the latter two empty in evaluation, where backward takes the running ones again."""
    for name, t in (("weight", weight), ("bias", bias), ("running_mean", running_mean), ("running_var", running_var)):
        if t is not None and t.numel() != x.shape[1]:
            raise RuntimeError(f"{name} should contain {x.shape[1]} elements not {t.numel()}")
    seen = _seen(x)
    if training:
        m = seen.shape[0] * seen.shape[2]
        mean = sums.total(seen, (0, 2)) / _number(m, seen)
        square = squares(seen, mean)
        scale = over(1.0, root(square / _number(m, seen) + eps))
        if running_mean is not None:
            _update(running_mean, mean, momentum)
        if running_var is not None:
            _update(running_var, square / _number(m - 1, seen), momentum)
        kept = mean, scale
    else:
        mean, scale = _running(running_mean, running_var, eps)
        kept = mean.new_empty(0), mean.new_empty(0)
    return _as(applied(seen, mean, scale, weight, bias), x), *kept


def _running(mean: Optional, var: Optional, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and scale of evaluation."""
    if mean is None or var is None:
        raise RuntimeError("Expected running_mean and running_var to be defined when training=False")
    return widened(mean), over(1.0, root(widened(var) + eps))


@operator("native_batch_norm_backward", halves=True)
def native_batch_norm_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    weight: Optional,
    running_mean: Optional,
    running_var: Optional,
    mean: Optional,
    scale: Optional,
    train: bool,
    eps: float,
    wanted: Sequence[bool],
) -> tuple[Optional, Optional, Optional]:
    """Gradients of input, weight and bias, each in its own precision."""
    seen, g = _seen(x), _seen(grad)
    if not train or mean is None or scale is None:
        mean, scale = _running(running_mean, running_var, eps)
    mean, scale = widened(mean), widened(scale)
    by_x = by_weight = by_bias = None
    if wanted[1] or wanted[2] or train:
        by_weight, by_bias = gradient_totals(g, seen, mean, scale, 1)
    if wanted[0] and by_weight is not None and by_bias is not None and train:
        m = _number(seen.shape[0] * seen.shape[2], seen)
        by_x = _as(by_input(g, seen, mean, scale, weight, by_bias / m, by_weight / m), x)
    elif wanted[0]:
        wide = g * beside(scale)
        by_x = _as(wide if weight is None else wide * beside(weight), x)
    kind = widened(x).dtype if weight is None else weight.dtype
    return (
        by_x,
        by_weight.to(kind) if by_weight is not None and wanted[1] else None,
        by_bias.to(kind) if by_bias is not None and wanted[2] else None,
    )


@operator("_native_batch_norm_legit.default", halves=True)
def native_batch_norm_legit(
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> Triple:
    """What a traced program calls."""
    return native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)


@operator("_native_batch_norm_legit.no_stats", halves=True)
def native_batch_norm_without_statistics(
    x: torch.Tensor, weight: Optional, bias: Optional, training: bool, momentum: float, eps: float
) -> Triple:
    """Alike, without running statistics."""
    return native_batch_norm(x, weight, bias, None, None, training, momentum, eps)


@operator("_native_batch_norm_legit_no_training.default", halves=True)
def native_batch_norm_in_evaluation(
    x: torch.Tensor,
    weight: Optional,
    bias: Optional,
    running_mean: torch.Tensor,
    running_var: torch.Tensor,
    momentum: float,
    eps: float,
) -> Triple:
    """Alike, by the running statistics."""
    return native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)


@function(torch.batch_norm)
def batch_norm(
    input: torch.Tensor,  # noqa: A002 - torch's name
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> torch.Tensor:
    """`torch.batch_norm`, by the one operator whose derivative is the same on every device."""
    del cudnn_enabled
    if input.numel() == 0:  # as torch has it: no statistics, and gradients that exist
        out = input.clone()
        out = out if weight is None else out * weight[0]
        return out if bias is None else out + bias[0]
    return torch.native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)[0]


@function(F.batch_norm)
def functional_batch_norm(
    input: torch.Tensor,  # noqa: A002 - torch's name
    running_mean: Optional,
    running_var: Optional,
    weight: Optional = None,
    bias: Optional = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """`F.batch_norm`."""
    if training and input.shape[0] * input.shape[2:].numel() == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.size()}")
    if eps < 0.0 or (training and eps == 0.0):
        raise ValueError(f"batch_norm eps must be positive during training and non-negative else, but got {eps}")
    return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)


@function(torch.instance_norm)
def instance_norm(
    input: torch.Tensor,  # noqa: A002 - torch's name
    weight: Optional,
    bias: Optional,
    running_mean: Optional,
    running_var: Optional,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = False,
) -> torch.Tensor:
    """`torch.instance_norm`."""
    del cudnn_enabled
    if not use_input_stats:
        return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    n, c, positions = input.shape[0], input.shape[1], input.shape[2:].numel()
    if running_mean is not None and running_var is not None:
        with plain(), torch.no_grad():
            seen = _seen(input.detach())
            mean = sums.mean(seen, 2, True)
            off = seen - mean
            var = sums.total(off * off, 2, owned=True) / _number(positions - 1, seen)
            _update(running_mean.detach(), sums.mean(mean[..., 0], 0), momentum)
            _update(running_var.detach(), sums.mean(var, 0), momentum)
    return torch.native_group_norm(input.contiguous(), weight, bias, n, c, positions, c, eps)[0]


@function(F.instance_norm)
def functional_instance_norm(
    input: torch.Tensor,  # noqa: A002 - torch's name
    running_mean: Optional = None,
    running_var: Optional = None,
    weight: Optional = None,
    bias: Optional = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """`F.instance_norm`."""
    if use_input_stats and input.shape[2:].numel() == 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {input.size()}")
    return instance_norm(input, weight, bias, running_mean, running_var, use_input_stats, momentum, eps)
