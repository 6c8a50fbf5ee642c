"""Dropout: a coin an element, and one rounding.

`x * noise`, where the noise is 0 for a dropped element and otherwise `1 / (1 - p)`: `1 - p` rounded to the type, then
the quotient. That is also what torch's own composition comes to (`bernoulli_`, `div_`, `mul`), so that a program gets
the same bits by either way, on any device.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from witness.arithmetic import compiled
from witness.arithmetic.generator import philox, sampling
from witness.arithmetic.generator.randomness import draw_key
from witness.arithmetic.kernels import sampling as kernels
from witness.arithmetic.layers.derivatives import array
from witness.arithmetic.registry import function, operator


@function(F.dropout, torch.dropout)
def dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, **named: Any) -> Any:  # noqa: A002
    """`F.dropout` and `torch.dropout` (which calls `training` `train`)."""
    training = named.pop("train", training)
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0.0 or input.numel() == 0:
        return input
    out = torch.native_dropout(input, p, True)[0]
    return input.copy_(out) if inplace else out


@function(torch.dropout_)
def dropout_(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: A002
    """`torch.dropout_`."""
    return dropout(input, p, train, inplace=True)  # type: ignore[no-any-return]


@operator("dropout", halves=True)
def _composite(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """What inference mode dispatches."""
    return native_dropout(x, p, train)[0]


@operator("native_dropout", halves=True)
def native_dropout(x: torch.Tensor, p: float, train: bool | None = True) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the mask (bool), both of the shape of `x`.

    Without training, where p is 0 and where `x` is empty, they are `x` and ones; where p is 1, zeros: no key is drawn.
    """
    if train is False or p == 0.0 or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1.0 or x.device.type == "meta":
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    keep = 1.0 - p
    limit, scale = sampling.threshold(keep), noise(keep, x.dtype)
    words = philox.words(draw_key(), x.numel(), x.device)
    if x.dtype == torch.float32 and limit and compiled.usable(words):
        out, mask = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=torch.bool)
        flat = [array(t) for t in (x.contiguous(), out, mask)]
        compiled.run(kernels.dropout, x.numel(), words.numpy().view("uint32"), limit - 1, scale, *flat, weight=2)
        return (out if x.is_contiguous() else torch.empty_like(x).copy_(out)), mask
    mask = (philox.unsigned(words) < limit).reshape(x.shape)
    return x * (mask.to(x.dtype) * scale), mask


@operator("native_dropout_backward", halves=True)
def native_dropout_backward(gradient: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """The gradient times the noise; `scale` is `1 / (1 - p)`, or 0 where p was 1."""
    factor = noise(1.0 / scale, gradient.dtype) if scale else 0.0
    if gradient.dtype == torch.float32 and compiled.usable(gradient, mask):
        out = torch.empty_like(gradient)
        compiled.run(kernels.dropout_backward, out.numel(), array(mask), factor, array(gradient), array(out), weight=2)
        return out
    return gradient * (mask.to(gradient.dtype) * factor)


def noise(keep: float, dtype: torch.dtype) -> float:
    """`1 / keep`, both rounded to `dtype`; half precision by way of float32."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    quotient = torch.ones((), dtype=wide) / torch.full((), keep, dtype=wide)
    return float(quotient.to(dtype).item())
