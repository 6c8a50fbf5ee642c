"""Activations made of comparisons and IEEE operations, as torch dispatches them: any floating precision."""

from __future__ import annotations

import torch

from witness.arithmetic.elementary import functions
from witness.arithmetic.elementary.elementary_operators import evaluate, refusal
from witness.arithmetic.kernels import functions as kernels
from witness.arithmetic.registry import operator

Number = int | float


def _over(x: torch.Tensor, divisor: float) -> torch.Tensor:
    """The IEEE quotient, where a GPU would multiply by the reciprocal of a Python number."""
    return x / torch.full((), divisor, dtype=x.dtype, device=x.device)


def _clamped(x: torch.Tensor, low: Number, high: Number) -> torch.Tensor:
    x = torch.where(x < low, torch.full_like(x, low), x)
    return torch.where(x > high, torch.full_like(x, high), x)


def _zero(x: torch.Tensor) -> torch.Tensor:
    """0, and NaN where x is."""
    return torch.where(x == x, torch.zeros_like(x), x)


@operator("relu")
def relu(x: torch.Tensor) -> torch.Tensor:
    """0 for x < 0, else x: -0 and NaN stay."""
    return torch.where(x < 0, torch.zeros_like(x), x)


@operator("threshold")
def threshold(x: torch.Tensor, threshold: Number, value: Number) -> torch.Tensor:
    """`value` where x <= threshold, else x."""
    return torch.where(x <= threshold, torch.full_like(x, value), x)


@operator("threshold_backward")
def threshold_backward(grad_output: torch.Tensor, x: torch.Tensor, threshold: Number) -> torch.Tensor:
    """0 where x <= threshold, else g."""
    return torch.where(x <= threshold, torch.zeros_like(grad_output), grad_output)


@operator("leaky_relu")
def leaky_relu(x: torch.Tensor, negative_slope: Number = 0.01) -> torch.Tensor:
    """x, or x * slope where x is not positive."""
    return torch.where(x > 0, x, x * negative_slope)


@operator("leaky_relu_backward")
def leaky_relu_backward(
    grad_output: torch.Tensor, x: torch.Tensor, negative_slope: Number, is_result: bool
) -> torch.Tensor:
    """`g`, or `g * slope` where x (or the result, which has its sign) is not positive."""
    del is_result
    return torch.where(x > 0, grad_output, grad_output * negative_slope)


@operator("_prelu_kernel")
def prelu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x, or weight * x where x is not positive."""
    return torch.where(x > 0, x, weight * x)


@operator("_prelu_kernel_backward")
def prelu_backward(
    grad_output: torch.Tensor, x: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and, element by element, of the weight."""
    positive = x > 0
    return (
        torch.where(positive, grad_output, weight * grad_output),
        torch.where(positive, torch.zeros_like(x), x * grad_output),
    )


@operator("hardtanh")
def hardtanh(x: torch.Tensor, min_val: Number = -1, max_val: Number = 1) -> torch.Tensor:
    """Within bounds; NaN stays."""
    return _clamped(x, min_val, max_val)


@operator("hardtanh_backward")
def hardtanh_backward(grad_output: torch.Tensor, x: torch.Tensor, min_val: Number, max_val: Number) -> torch.Tensor:
    """0 where x is at a bound or beyond, else g."""
    return torch.where((x <= min_val) | (x >= max_val), torch.zeros_like(grad_output), grad_output)


@operator("hardsigmoid")
def hardsigmoid(x: torch.Tensor) -> torch.Tensor:
    """`clamp(x + 3, 0, 6) / 6`."""
    return _over(_clamped(x + 3, 0, 6), 6.0)


@operator("hardsigmoid_backward")
def hardsigmoid_backward(grad_output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`g / 6` for -3 < x < 3, else 0."""
    return torch.where((x > -3) & (x < 3), _over(grad_output, 6.0), torch.zeros_like(grad_output))


@operator("hardswish")
def hardswish(x: torch.Tensor) -> torch.Tensor:
    """`x * clamp(x + 3, 0, 6) / 6`."""
    return _over(x * _clamped(x + 3, 0, 6), 6.0)


@operator("hardswish_backward")
def hardswish_backward(grad_output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`g * (x / 3 + 1/2)` for -3 < x < 3; 0 below, g above."""
    inside = torch.where(x < 3, grad_output * (_over(x, 3.0) + 0.5), grad_output)
    return torch.where(x <= -3, torch.zeros_like(grad_output), inside)


@operator("hardshrink")
def hardshrink(x: torch.Tensor, lambd: Number = 0.5) -> torch.Tensor:
    """0 where |x| <= lambd, else x."""
    return torch.where((x >= -lambd) & (x <= lambd), torch.zeros_like(x), x)


@operator("hardshrink_backward", "softshrink_backward")
def shrink_backward(grad_output: torch.Tensor, x: torch.Tensor, lambd: Number) -> torch.Tensor:
    """0 where |x| <= lambd, else g."""
    return torch.where((x >= -lambd) & (x <= lambd), torch.zeros_like(grad_output), grad_output)


@operator("softshrink")
def softshrink(x: torch.Tensor, lambd: Number = 0.5) -> torch.Tensor:
    """Moved towards 0 by lambd, and 0 within it; NaN stays."""
    return torch.where(x > lambd, x - lambd, torch.where(x < -lambd, x + lambd, _zero(x)))


@operator("glu")
def glu(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """`a * sigmoid(b)` of the halves of x."""
    a, b = x.chunk(2, dim)
    return a * _sigmoid("glu", b)


@operator("glu_backward")
def glu_backward(grad_output: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """`g * s` and `g * a * (s * (1 - s))` with `s = sigmoid(b)`, of the halves of x."""
    a, b = x.chunk(2, dim)
    s = _sigmoid("glu_backward", b)
    return torch.cat([grad_output * s, grad_output * a * (s * (1 - s))], dim)


def _sigmoid(name: str, x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.float32:
        raise refusal(name, x.dtype)
    return evaluate(functions.sigmoid, kernels.sigmoids, x)
