"""Cross entropy: `log_softmax` and what is picked from it, written out above the point where releases of torch differ.

For class targets it is `nll_loss(log_softmax(x))`; with label smoothing e over C classes, `(1 - e)` times that and
`e / C` times the sum of all negative logarithms; for targets that are probabilities, the negative sum of products.

On the CPU, float32 logits (N, C) with class targets take one pass over the logits forward and one backward, and the
logarithms are never stored. The bits are those of the composition.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from witness.arithmetic import compiled
from witness.arithmetic.kernels import softmax as kernels
from witness.arithmetic.layers import losses
from witness.arithmetic.layers.derivatives import array, differentiable, plain, transformed
from witness.arithmetic.registry import function
from witness.arithmetic.summation import sums

Optional = torch.Tensor | None
_REDUCTIONS = {"none": losses.NONE, "mean": losses.MEAN, "sum": losses.SUM}


class _Picked(torch.autograd.Function):
    """Cross entropy of float32 logits (N, C) and classes (N,), compiled."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, target: torch.Tensor, weight: Optional, reduction: int, ignore_index: int
    ) -> torch.Tensor:
        """The loss; what turns a logit into its logarithm is kept, two numbers a row."""
        with plain():
            rows, n = x.shape
            valid, index, weights = losses.used(target, n, weight, ignore_index, x)
            loss, m, s = x.new_empty(rows), x.new_empty(rows), x.new_empty(rows)
            given = array(x), array(index), array(m), array(s), array(weights), array(loss)
            compiled.run(kernels.picked, rows, n, *given, weight=4 * n)
            loss = torch.where(valid, loss, torch.zeros_like(loss))
            all_weights = sums.total(weights)
            out = loss if reduction == losses.NONE else losses.likelihood(loss, all_weights, reduction)
        ctx.save_for_backward(x, index, m, s, weights, valid, all_weights, target, weight)
        ctx.reduction, ctx.ignore_index = reduction, ignore_index
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Optional, None, None, None, None]:
        """By the logits."""
        x, index, m, s, weights, valid, all_weights, target, weight = ctx.saved_tensors
        if torch.is_grad_enabled() or transformed(grad):
            reduction = next(name for name, number in _REDUCTIONS.items() if number == ctx.reduction)
            named: dict[str, Any] = {"ignore_index": ctx.ignore_index, "reduction": reduction}
            (again,) = differentiable(lambda t: F.nll_loss(torch.log_softmax(t, 1), target, weight, **named), grad, x)
            return again, None, None, None, None
        with plain():
            shares = losses.likelihood_share(grad, weights, valid, ctx.reduction, all_weights).contiguous()
            by_x = torch.empty_like(x)
            given = array(x), array(index), array(m), array(s), array(shares), array(by_x)
            compiled.run(kernels.picked_backward, x.shape[0], x.shape[1], *given, weight=4 * x.shape[1])
        return by_x, None, None, None, None


@function(F.cross_entropy)
def cross_entropy(
    input: torch.Tensor,  # noqa: A002 - torch's name
    target: torch.Tensor,
    weight: Optional = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """`F.cross_entropy`."""
    if size_average is not None or reduce is not None:
        averaged = size_average is None or size_average
        reduction = "none" if reduce is False else "mean" if averaged else "sum"
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{reduction} is not a valid value for reduction")
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    if input.shape == target.shape:
        return _of_probabilities(input, target, weight, reduction, label_smoothing)
    if label_smoothing == 0.0 and not transformed() and _fits(input, target, weight):
        return _Picked.apply(input.contiguous(), target, weight, _REDUCTIONS[reduction], ignore_index)  # type: ignore[no-any-return, no-untyped-call]
    logs = torch.log_softmax(input, 0 if input.dim() == 1 else 1, dtype=input.dtype)
    loss = F.nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction)
    if label_smoothing == 0.0:
        return loss
    smooth = _smoothed(logs, target, weight, ignore_index, reduction)
    return loss * (1.0 - label_smoothing) + smooth * (label_smoothing / logs.shape[0 if logs.dim() == 1 else 1])


def _fits(x: torch.Tensor, target: torch.Tensor, weight: Optional) -> bool:
    """Whether the compiled form takes these operands."""
    plain_shapes = x.dim() == 2 and target.shape == x.shape[:1] and x.numel() > 0
    kinds = x.dtype == torch.float32 and target.dtype == torch.int64 and (weight is None or weight.dtype == x.dtype)
    return plain_shapes and kinds and not (weight is not None and weight.requires_grad) and compiled.usable(target)


def _weights(weight: torch.Tensor, logs: torch.Tensor) -> torch.Tensor:
    """(C,) beside (N, C, ...)."""
    place = 0 if logs.dim() == 1 else 1
    return weight.view([-1 if d == place else 1 for d in range(logs.dim())])


def _smoothed(
    logs: torch.Tensor, target: torch.Tensor, weight: Optional, ignore_index: int, reduction: str
) -> torch.Tensor:
    """The part of the loss that all classes share in."""
    ignored = target == ignore_index
    weighted = logs if weight is None else logs * _weights(weight, logs)
    smooth = (-weighted.sum(0 if logs.dim() == 1 else 1)).masked_fill(ignored, 0.0)
    if reduction == "none":
        return smooth
    if reduction == "sum":
        return smooth.sum()
    if weight is None:
        return smooth.sum() / (~ignored).sum()
    return smooth.sum() / weight[target.masked_select(~ignored)].sum()


def _of_probabilities(
    x: torch.Tensor, target: torch.Tensor, weight: Optional, reduction: str, label_smoothing: float
) -> torch.Tensor:
    """Targets are probabilities of the classes."""
    if not target.is_floating_point():
        raise RuntimeError("Expected floating point type for target with class probabilities")
    place = 0 if x.dim() == 1 else 1
    logs = torch.log_softmax(x, place, dtype=x.dtype)
    classes = x.shape[place]
    if label_smoothing > 0.0:
        target = target * (1.0 - label_smoothing) + label_smoothing / classes
    products = logs * target
    if weight is not None:
        products = products * _weights(weight, logs)
    if reduction == "none":
        return -products.sum(place)
    loss = -products.sum()
    return loss / (x.numel() // classes) if reduction == "mean" else loss
