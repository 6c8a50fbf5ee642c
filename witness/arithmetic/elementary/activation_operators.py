"""Activations and their backwards as torch dispatches them.

Those that are a few IEEE operations stand here in full; the others are in `witness.arithmetic.elementary.activations`.
"""

from __future__ import annotations

import numpy as np
import torch

from witness.arithmetic.elementary import activations, functions
from witness.arithmetic.elementary.elementary_operators import Definition, Kernel, evaluate, refusal
from witness.arithmetic.kernels import activations as kernels
from witness.arithmetic.registry import operator

Number = int | float


def _single(name: str, *operands: torch.Tensor) -> None:
    for t in operands:
        if t.dtype != torch.float32:
            raise refusal(name, t.dtype)


def _enter(name: str, definition: Definition, kernel: Kernel | None = None) -> None:
    """Enters a function of float32 tensors of one shape."""

    @operator(name)
    def handler(*operands: torch.Tensor) -> torch.Tensor:
        _single(name, *operands)
        return evaluate(definition, kernel, *operands)


_enter("silu", activations.silu, kernels.silus)
_enter("silu_backward", activations.silu_backward, kernels.silu_backwards)
_enter("mish", activations.mish)
_enter("mish_backward", activations.mish_backward)


@operator("sigmoid_backward")
def sigmoid_backward(grad_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """`g * (1 - y) * y`."""
    if output.dtype == torch.float64:
        return activations.sigmoid_backward(grad_output, output)  # type: ignore[no-any-return]
    _single("sigmoid_backward", grad_output, output)
    return evaluate(activations.sigmoid_backward, kernels.sigmoid_backwards, grad_output, output)


@operator("tanh_backward")
def tanh_backward(grad_output: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """`g * (1 - y * y)`."""
    if output.dtype == torch.float64:
        return activations.tanh_backward(grad_output, output)  # type: ignore[no-any-return]
    _single("tanh_backward", grad_output, output)
    return evaluate(activations.tanh_backward, kernels.tanh_backwards, grad_output, output)


@operator("gelu")
def gelu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """By the normal distribution, or by tanh."""
    _single("gelu", x)
    if approximate == "tanh":
        return evaluate(activations.gelu_tanh, kernels.gelu_tanhs, x)
    return evaluate(activations.gelu, kernels.gelus, x)


@operator("gelu_backward")
def gelu_backward(grad_output: torch.Tensor, x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """The gradient of either form."""
    _single("gelu_backward", grad_output, x)
    if approximate == "tanh":
        return evaluate(activations.gelu_tanh_backward, kernels.gelu_tanh_backwards, grad_output, x)
    return evaluate(activations.gelu_backward, kernels.gelu_backwards, grad_output, x)


@operator("log_sigmoid_forward")
def log_sigmoid_forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The value, and an empty buffer: the backward pass computes from x."""
    _single("log_sigmoid", x)
    return activations.log_sigmoid(x), x.new_empty(0)


@operator("log_sigmoid_backward")
def log_sigmoid_backward(grad_output: torch.Tensor, x: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """`g * sigmoid(-x)`; the buffer differs between devices and is not used."""
    del buffer
    _single("log_sigmoid_backward", grad_output, x)
    return activations.log_sigmoid_backward(grad_output, x)  # type: ignore[no-any-return]


@operator("softplus")
def softplus(x: torch.Tensor, beta: Number = 1, threshold: Number = 20) -> torch.Tensor:
    """`log(1 + e**(beta x)) / beta`, linear above the threshold."""
    _single("softplus", x)
    numbers = (np.float32(beta), np.float32(threshold), 1.0 / float(np.float32(beta)))
    return evaluate(activations.softplus, kernels.softpluses, x, numbers=numbers)


@operator("softplus_backward")
def softplus_backward(grad_output: torch.Tensor, x: torch.Tensor, beta: Number, threshold: Number) -> torch.Tensor:
    """`g * sigmoid(beta x)`."""
    _single("softplus_backward", grad_output, x)
    numbers = (np.float32(beta), np.float32(threshold))
    return evaluate(activations.softplus_backward, kernels.softplus_backwards, grad_output, x, numbers=numbers)


@operator("elu")
def elu(x: torch.Tensor, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> torch.Tensor:
    """`scale * x`; for x <= 0 `alpha * scale * expm1(input_scale * x)`."""
    _single("elu", x)
    return activations.elu(x, float(alpha) * float(scale), float(scale), float(input_scale))  # type: ignore[no-any-return]


@operator("celu")
def celu(x: torch.Tensor, alpha: Number = 1) -> torch.Tensor:
    """`elu` with its input scaled by `1 / alpha`."""
    return elu(x, alpha, 1, 1.0 / float(alpha))


@operator("elu_backward")
def elu_backward(
    grad_output: torch.Tensor, alpha: Number, scale: Number, input_scale: Number, is_result: bool, x: torch.Tensor
) -> torch.Tensor:
    """From the input, or from the result `y`: `g * input_scale * (y + alpha * scale)`."""
    _single("elu_backward", grad_output, x)
    negative, inner = float(alpha) * float(scale), float(input_scale)
    if is_result:
        below = grad_output * inner * (x + negative)
    else:
        below = grad_output * (inner * negative) * functions.exp(x * inner)
    return torch.where(x <= 0, below, grad_output * float(scale))


def _bounds(x: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    low = torch.full((), eps, dtype=x.dtype, device=x.device)
    return low, 1 - low


@operator("logit")
def logit(x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """`log(x / (1 - x))`, of x within [eps, 1 - eps]."""
    _single("logit", x)
    if eps is not None:
        low, high = _bounds(x, eps)
        x = torch.where(x < low, low, torch.where(x > high, high, x))
    return activations.logit(x)  # type: ignore[no-any-return]


@operator("logit_backward")
def logit_backward(grad_output: torch.Tensor, x: torch.Tensor, eps: float | None = None) -> torch.Tensor:
    """`g / (x * (1 - x))`; outside of [eps, 1 - eps] 0, or NaN where there is no eps."""
    low, high = _bounds(x, eps or 0.0)
    inside = (x >= low) & (x <= high)
    outside = torch.full_like(x, float("nan") if eps is None else 0.0)
    return torch.where(inside, grad_output / (x * (1 - x)), outside)
