"""Losses: what torch dispatches for each, and its derivative.

With x the input, t the target, and `v` the gradient of one element's loss (the incoming gradient, divided by the count
where the loss is a mean):

| loss | of an element | derivative |
| --- | --- | --- |
| mse, d = x - t | `d * d` | `d * (v * 2)` |
| smooth l1, z = abs(d) | `z / 2 * z / beta` for z < beta, else `z - beta / 2` | `v * d / beta`, or `v`, `-v` |
| huber | `z / 2 * z` for z <= delta, else `delta * (z - delta / 2)` | `v * d`, or `delta * v`, `-(delta * v)` |
| binary cross entropy | `(t - 1) * max(log1p(-x), -100) - t * max(log(x), -100)` | `v * d / max((1 - x) * x, 1e-12)` |
| with logits, l = log1p(exp(-abs(x))) | `(1 - t) * x + l` for x >= 0, else `-t * x + l` | torch's own composition |
| soft margin, z = -t * x | `max(z, 0) + log1p(exp(-abs(z)))` | `-t * sigmoid(z) * v` |
| negative log likelihood | `-(x[t] * weight[t])` | `-(weight[t] * v)` at t |

A mean is the total divided by the count, and for negative log likelihood by the total of the weights that were used.
`l1_loss`, `kl_div` and the rest are compositions that torch takes apart itself.
"""

from __future__ import annotations

import torch

from witness.arithmetic.layers.derivatives import value, widened
from witness.arithmetic.registry import operator
from witness.arithmetic.summation import sums

NONE, MEAN, SUM = 0, 1, 2
"""Torch's numbers for reductions."""

Optional = torch.Tensor | None


def reduce(losses: torch.Tensor, reduction: int) -> torch.Tensor:
    """The losses, their mean or their total."""
    if reduction == NONE:
        return losses
    return sums.mean(losses) if reduction == MEAN else sums.total(losses)


def share(grad: torch.Tensor, count: int, reduction: int) -> torch.Tensor:
    """What one element of a loss has of the incoming gradient."""
    return grad / _number(count, grad) if reduction == MEAN else grad


def _number(value: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full((), float(value), dtype=like.dtype, device=like.device)


@operator("mse_loss")
def mse_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN) -> torch.Tensor:
    """The squared difference."""
    d = x - target
    return reduce(d * d, reduction)


@operator("mse_loss_backward")
def mse_loss_backward(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int) -> torch.Tensor:
    """By the input."""
    d = x - target
    return d * (share(grad, d.numel(), reduction) * 2.0)


@operator("smooth_l1_loss")
def smooth_l1_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN, beta: float = 1.0) -> torch.Tensor:
    """Quadratic near zero, absolute from `beta` on."""
    z = (x - target).abs()
    b = _number(beta, z)
    return reduce(torch.where(z < b, z * 0.5 * z / b, z - b * 0.5), reduction)


@operator("smooth_l1_loss_backward")
def smooth_l1_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
) -> torch.Tensor:
    """By the input."""
    d = x - target
    b, v = _number(beta, d), share(grad, d.numel(), reduction)
    return torch.where(d <= -b, -v, torch.where(d >= b, v, v * d / b))


@operator("huber_loss")
def huber_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN, delta: float = 1.0) -> torch.Tensor:
    """Quadratic near zero, linear from `delta` on."""
    z = (x - target).abs()
    b = _number(delta, z)
    return reduce(torch.where(z <= b, z * 0.5 * z, b * (z - b * 0.5)), reduction)


@operator("huber_loss_backward")
def huber_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, delta: float
) -> torch.Tensor:
    """By the input."""
    d = x - target
    b, v = _number(delta, d), share(grad, d.numel(), reduction)
    return torch.where(d <= -b, -(b * v), torch.where(d >= b, b * v, v * d))


@operator("binary_cross_entropy")
def binary_cross_entropy(
    x: torch.Tensor, target: torch.Tensor, weight: Optional = None, reduction: int = MEAN
) -> torch.Tensor:
    """Of probabilities; logarithms count as -100 at least.

    Raises:
        RuntimeError: for an input that is no probability.
    """
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise RuntimeError("all elements of input should be between 0 and 1")
    yes = value("log", x)
    no = value("log1p", -x)
    floor = _number(-100.0, x)
    losses = (target - 1.0) * torch.where(no < floor, floor, no) - target * torch.where(yes < floor, floor, yes)
    return reduce(losses if weight is None else losses * weight, reduction)


@operator("binary_cross_entropy_backward")
def binary_cross_entropy_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: Optional = None, reduction: int = MEAN
) -> torch.Tensor:
    """By the input."""
    spread, least = (1.0 - x) * x, _number(1e-12, x)
    by_x = share(grad, x.numel(), reduction) * (x - target) / torch.where(spread < least, least, spread)
    return by_x if weight is None else by_x * weight


def _log1p_exp(z: torch.Tensor) -> torch.Tensor:
    """`log(1 + exp(z))` for z <= 0."""
    return value("log1p", value("exp", z))


@operator("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Optional = None,
    pos_weight: Optional = None,
    reduction: int = MEAN,
) -> torch.Tensor:
    """Of logits: no digits cancel. With `pos_weight` p, `t * p` stands for t, and `1 - t + t * p` times l for l."""
    rest = 1.0 - target
    positive = target if pos_weight is None else target * pos_weight
    tail = _log1p_exp(-x.abs())
    losses = torch.where(x < 0, -positive, rest) * x + (tail if pos_weight is None else (rest + positive) * tail)
    return reduce(losses if weight is None else losses * weight, reduction)


@operator("soft_margin_loss")
def soft_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int = MEAN) -> torch.Tensor:
    """Of targets -1 and 1."""
    z = -target * x
    return reduce(torch.where(z < 0, torch.zeros_like(z), z) + _log1p_exp(-z.abs()), reduction)


@operator("soft_margin_loss_backward")
def soft_margin_loss_backward(
    grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int
) -> torch.Tensor:
    """By the input."""
    s = value("sigmoid", -target * x)
    return -target * s * share(grad, s.numel(), reduction)


def used(
    target: torch.Tensor, classes: int, weight: Optional, ignore_index: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which targets count, an index for each that can be gathered, and its weight (0 where it does not count).

    Raises:
        IndexError: for a target that is no class, where the device can be asked.
    """
    if weight is not None and tuple(weight.shape) != (classes,):
        raise RuntimeError(f"weight tensor should be defined either for all {classes} classes or no classes")
    valid = target != ignore_index
    index = torch.where(valid, target, torch.zeros_like(target))
    if target.device.type == "cpu" and bool(((index < 0) | (index >= classes)).any()):
        wrong = index[(index < 0) | (index >= classes)].flatten()[0].item()
        raise IndexError(f"Target {wrong} is out of bounds.")
    weights = torch.ones_like(index, dtype=like.dtype) if weight is None else weight.to(like.dtype)[index]
    return valid, index, torch.where(valid, weights, torch.zeros_like(weights))


@operator("nll_loss_forward", "nll_loss2d_forward", halves=True)
def nll_loss(
    x: torch.Tensor, target: torch.Tensor, weight: Optional, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the total of the weights that were used, which stays wide.

    Args:
        x: (N, C, ...) or (C,), logarithms of probabilities.
        target: (N, ...) or (), classes.
        weight: (C,).
        reduction: see `NONE`, `MEAN`, `SUM`.
        ignore_index: the target that does not count.
    """
    place = 0 if x.dim() == 1 else 1
    if x.dim() == 0 or tuple(target.shape) != (*x.shape[:place], *x.shape[place + 1 :]):
        raise ValueError(f"size mismatch (got input: {list(x.shape)}, target: {list(target.shape)})")
    wide = widened(x)
    valid, index, weights = used(target, x.shape[place], weight, ignore_index, wide)
    picked = wide.gather(place, index.unsqueeze(place)).squeeze(place).reshape(target.shape)
    losses = torch.where(valid, -(picked * weights), torch.zeros_like(picked))
    if reduction == NONE:
        return losses.to(x.dtype), wide.new_zeros(())
    all_weights = sums.total(weights)
    return likelihood(losses, all_weights, reduction).to(x.dtype), all_weights


@operator("nll_loss_backward", "nll_loss2d_backward", halves=True)
def nll_loss_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    target: torch.Tensor,
    weight: Optional,
    reduction: int,
    ignore_index: int,
    all_weights: torch.Tensor,
) -> torch.Tensor:
    """By the input: one element for each target, zeros elsewhere."""
    place = 0 if x.dim() == 1 else 1
    grad = widened(grad)
    valid, index, weights = used(target, x.shape[place], weight, ignore_index, grad)
    shares = likelihood_share(grad, weights, valid, reduction, widened(all_weights))
    by_x = torch.zeros(x.shape, dtype=grad.dtype, device=x.device)
    return by_x.scatter_(place, index.unsqueeze(place), shares.unsqueeze(place)).to(x.dtype)


def likelihood(losses: torch.Tensor, all_weights: torch.Tensor, reduction: int) -> torch.Tensor:
    """The total of the losses, divided by that of the weights for a mean."""
    loss = sums.total(losses)
    return loss / all_weights if reduction == MEAN else loss


def likelihood_share(
    grad: torch.Tensor, weights: torch.Tensor, valid: torch.Tensor, reduction: int, all_weights: torch.Tensor
) -> torch.Tensor:
    """The derivative of a negative log likelihood by the logarithm that it picked; 0 where no target counts."""
    shares = -(weights * (grad / all_weights if reduction == MEAN else grad))
    return torch.where(valid, shares, torch.zeros_like(shares))
