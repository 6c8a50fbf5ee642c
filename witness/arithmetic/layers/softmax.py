"""Softmax, its logarithm, and sums of exponentials.

For one row x, with `total` the halving sum of `sums` and `exp`, `log` those of `functions`:

    m = max(x) + 0                        (so that a largest element of -0 counts as +0)
    softmax:       e = exp(x - m),  y = e / total(e);              dx = (g - total(g * y)) * y
    log_softmax:   y = (x - m) - log(total(exp(x - m)));           dx = g - exp(y) * total(g)
    logsumexp:     log(total(exp(x - m))) + m, with m = 0 where the largest element is infinite

Every operation rounds once. A row that holds NaN or +infinity, or nothing but -infinity, is all NaN, as in torch;
`_safe_softmax` gives zeros for the last of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from witness.arithmetic import compiled
from witness.arithmetic.elementary import functions
from witness.arithmetic.kernels import softmax as kernels
from witness.arithmetic.kernels import softmax_columns as side_by_side
from witness.arithmetic.layers.derivatives import array, value, widened
from witness.arithmetic.registry import operator
from witness.arithmetic.summation import sums

Kernel = Callable[..., None]


def _decay(x: torch.Tensor) -> torch.Tensor:
    """`exp` of what is not positive."""
    return functions.decay(x) if x.dtype == torch.float32 else value("exp", x)


def _place(dim: int, rank: int) -> int:
    """A dimension counted from the front."""
    if not -max(1, rank) <= dim < max(1, rank):
        raise IndexError(f"Dimension out of range (expected to be in [{-max(1, rank)}, {max(1, rank) - 1}], got {dim})")
    return dim % max(1, rank)


def along(
    dim: int, forms: tuple[Callable[..., torch.Tensor], Kernel, Kernel], logarithm: bool, *operands: torch.Tensor
) -> torch.Tensor:
    """A function of rows along one dimension, by its compiled form where there is one.

    Args:
        dim: where the rows lie.
        forms: the function of operands with the rows last, in tensor operations; its kernel over rows that are
            contiguous, of (start, stop, n, operands, result); its kernel over rows that lie side by side, of (start,
            stop, n, inner, logarithm, operands, result).
        logarithm: what the last one is told.
        operands: float32 or float64, of one shape.

    Returns:
        A contiguous tensor of that shape.
    """
    shape = operands[0].shape
    if not shape:
        _place(dim, 0)
        return along(0, forms, logarithm, *(t.reshape(1) for t in operands)).reshape(())
    tensors, rows, columns = forms
    place = _place(dim, len(shape))
    given = [t.contiguous() for t in operands]
    out = torch.empty_like(given[0])
    if not out.numel():
        return out
    if out.dtype != torch.float32 or not compiled.usable(*given):
        return tensors(*(t.movedim(place, -1) for t in given)).movedim(-1, place).contiguous()
    n, inner = shape[place], shape[place + 1 :].numel()
    flat = *map(array, given), array(out)
    if inner == 1:
        compiled.run(rows, out.numel() // n, n, *flat, weight=4 * n)
    else:
        parts = out.numel() // (n * inner) * -(-inner // int(side_by_side.BLOCK))
        compiled.run(columns, parts, n, inner, logarithm, *flat, weight=4 * n * min(inner, int(side_by_side.BLOCK)))
    return out


def _shifted(x: torch.Tensor) -> torch.Tensor:
    return x - (x.amax(-1, keepdim=True) + 0.0)


def _softmax(x: torch.Tensor) -> torch.Tensor:
    e = _decay(_shifted(x))
    return e / sums.total(e, -1, True)


def _softmax_backward(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (g - sums.total(g * y, -1, True, owned=True)) * y


def _log_softmax(x: torch.Tensor) -> torch.Tensor:
    s = _shifted(x)
    return s - value("log", sums.total(_decay(s), -1, True, owned=True))


def _log_softmax_backward(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return g - _decay(y) * sums.total(g, -1, True)


_FORWARD = _softmax, kernels.forward, side_by_side.forward
_LOG_FORWARD = _log_softmax, kernels.log_forward, side_by_side.forward
_BACKWARD = _softmax_backward, kernels.backward, side_by_side.backward
_LOG_BACKWARD = _log_softmax_backward, kernels.log_backward, side_by_side.backward


@operator("_softmax", halves=True)
def softmax(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    """Exponentials over their sum, along one dimension."""
    y = along(dim, _FORWARD, False, widened(x))
    return y if half_to_float else y.to(x.dtype)


@operator("_softmax_backward_data", halves=True)
def softmax_backward(g: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """The gradient of softmax's operand, in the operand's precision."""
    return along(dim, _BACKWARD, False, widened(g), widened(y)).to(input_dtype)


@operator("_log_softmax", halves=True)
def log_softmax(x: torch.Tensor, dim: int, half_to_float: bool = False) -> torch.Tensor:
    """The logarithm of softmax, along one dimension."""
    y = along(dim, _LOG_FORWARD, True, widened(x))
    return y if half_to_float else y.to(x.dtype)


@operator("_log_softmax_backward_data", halves=True)
def log_softmax_backward(g: torch.Tensor, y: torch.Tensor, dim: int, input_dtype: torch.dtype) -> torch.Tensor:
    """The gradient of log_softmax's operand, in the operand's precision."""
    return along(dim, _LOG_BACKWARD, True, widened(g), widened(y)).to(input_dtype)


@operator("_safe_softmax", halves=True)
def safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Softmax, with zeros where all elements of a row are -infinity."""
    x = x if dtype is None else x.to(dtype)
    y = softmax(x, dim)
    return torch.where((x == -torch.inf).all(dim, keepdim=True), torch.zeros_like(y), y)


@operator("_masked_softmax")
def masked_softmax(x: torch.Tensor, mask: torch.Tensor, dim: int | None = None, mask_type: int | None = None) -> Any:
    """Softmax over what the mask does not cover; zeros elsewhere, and in rows that are covered."""
    if mask_type == 0 and mask.dim() == 2 and x.dim() == 4:  # (L, L) for all
        mask = mask.view(1, 1, *mask.shape)
    elif mask_type == 1 and mask.dim() == 2 and x.dim() == 4:  # (B, L): keys
        mask = mask.view(mask.shape[0], 1, 1, mask.shape[1])
    y = safe_softmax(x.masked_fill(mask.to(torch.bool), -torch.inf), x.dim() - 1 if dim is None else dim)
    return y.masked_fill(mask.to(torch.bool), 0.0)


@operator("_masked_softmax_backward")
def masked_softmax_backward(g: torch.Tensor, y: torch.Tensor, mask: torch.Tensor, dim: int | None = None) -> Any:
    """Zeros where the mask covers."""
    covered = mask.to(torch.bool)
    by_x = softmax_backward(g.masked_fill(covered, 0.0), y, y.dim() - 1 if dim is None else dim, y.dtype)
    return by_x.masked_fill(covered, 0.0)


@operator("logsumexp")
def logsumexp(x: torch.Tensor, dim: int | Sequence[int], keepdim: bool = False) -> torch.Tensor:
    """The logarithm of the sum of exponentials over dimensions."""
    dims = [dim] if isinstance(dim, int) else list(dim) or range(x.dim())
    places = sorted({_place(d, x.dim()) for d in dims})
    if not x.dim():
        return x + 0.0
    kept = [size for place, size in enumerate(x.shape) if place not in places]
    shape = [1 if place in places else size for place, size in enumerate(x.shape)] if keepdim else kept
    if not x.numel():
        return x.new_full(shape, -torch.inf)
    others = [place for place in range(x.dim()) if place not in places]
    rows = x.permute(*others, *places).reshape(*kept, -1)
    m = rows.amax(-1, keepdim=True) + 0.0
    m = torch.where(m.isinf(), torch.zeros_like(m), m)
    s = sums.total(value("exp", rows - m), -1, True, owned=True)
    return (value("log", s) + m).reshape(shape)
