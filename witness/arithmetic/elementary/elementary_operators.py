"""Exponentials, logarithms, trigonometry and powers as torch dispatches them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from protocol.errors import UsageError
from witness.arithmetic import compiled
from witness.arithmetic.elementary import cores, doubles, functions, powers, trigonometry
from witness.arithmetic.elementary.elements import root, where
from witness.arithmetic.kernels import functions as kernels
from witness.arithmetic.registry import operator
from witness.arithmetic.rounding.elementwise import floating

Definition = Callable[..., torch.Tensor]
Kernel = Callable[..., None]
Number = int | float


def evaluate(
    definition: Definition, kernel: Kernel | None, *operands: torch.Tensor, numbers: tuple[float | np.float32, ...] = ()
) -> torch.Tensor:
    """The definition's value, by its compiled form where there is one and the operands allow it.

    Args:
        definition: of float32 tensors, then of numbers.
        kernel: its loop over flat arrays: the operands, the numbers, the result.
        operands: float32 tensors of one shape.
        numbers: what else the definition takes.

    Returns:
        A float32 tensor with the shape and memory layout of the first operand.
    """
    first = operands[0]
    if kernel is None or not compiled.on() or any(t.device.type != "cpu" or t.shape != first.shape for t in operands):
        return definition(*operands, *numbers)
    flat = [t.detach().contiguous().view(-1).numpy() for t in operands]
    out = torch.empty(first.shape, dtype=torch.float32)
    compiled.run(kernel, first.numel(), *flat, *numbers, out.view(-1).numpy())
    return out if first.is_contiguous() else torch.empty_like(first).copy_(out)


def refusal(name: str, dtype: torch.dtype) -> UsageError:
    """What is raised for a precision without a definition."""
    kind = str(dtype).removeprefix("torch.")
    return UsageError("exact-refused", f"aten.{name} has no exact definition for {kind}: convert to float32 first")


def unary(name: str, definition: Definition, kernel: Kernel | None = None, double: Definition | None = None) -> None:
    """Enters a function of one tensor.

    Args:
        name: of the aten operator.
        definition: between float32 tensors.
        kernel: the compiled form.
        double: between float64 tensors; they are refused where there is none.
    """

    @operator(name)
    def handler(x: torch.Tensor) -> torch.Tensor:
        x = floating(x)
        if x.dtype == torch.float32:
            return evaluate(definition, kernel, x)
        if x.dtype == torch.float64 and double is not None:
            return double(x)
        raise refusal(name, x.dtype)


unary("exp", functions.exp, kernels.exps, doubles.exp)
unary("exp2", functions.exp2)
unary("expm1", functions.expm1, None, doubles.expm1)
unary("log", functions.log, kernels.logs, doubles.log)
unary("log2", functions.log2)
unary("log10", functions.log10)
unary("log1p", functions.log1p, kernels.log1ps, doubles.log1p)
unary("tanh", functions.tanh, kernels.tanhs, doubles.tanh)
unary("sinh", functions.sinh)
unary("cosh", functions.cosh)
unary("asinh", functions.asinh)
unary("acosh", functions.acosh)
unary("atanh", functions.atanh)
unary("sigmoid", functions.sigmoid, kernels.sigmoids, doubles.sigmoid)
unary("erf", functions.erf, kernels.erfs)
unary("erfc", functions.erfc)
unary("erfinv", functions.erfinv)
unary("sin", trigonometry.sin, kernels.sins, doubles.sin)
unary("cos", trigonometry.cos, kernels.coss, doubles.cos)
unary("tan", trigonometry.tan)
unary("asin", trigonometry.asin)
unary("acos", trigonometry.acos)
unary("atan", trigonometry.atan)
unary("sqrt", powers.sqrt, kernels.roots, powers.sqrt)
unary("rsqrt", powers.rsqrt, kernels.inverse_roots, powers.rsqrt)
unary("reciprocal", powers.reciprocal, None, powers.reciprocal)


def _single_operands(
    name: str, x: torch.Tensor | Number, y: torch.Tensor | Number
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two operands in float64, exactly, of an operation whose result is float32."""
    dtype = torch.result_type(x, y)
    if not dtype.is_floating_point and not dtype.is_complex:
        dtype = torch.get_default_dtype()
    if dtype != torch.float32:
        raise refusal(name, dtype)
    device = x.device if isinstance(x, torch.Tensor) else y.device  # type: ignore[union-attr]

    def widened(value: torch.Tensor | Number) -> torch.Tensor:
        if isinstance(value, torch.Tensor):
            return value.to(torch.float32).double()
        return torch.full((), float(value), dtype=torch.float64, device=device)

    return widened(x), widened(y)


@operator("pow")
def pow_(x: torch.Tensor | Number, y: torch.Tensor | Number) -> torch.Tensor:
    """x**y: by IEEE operations where the exponent is a number that has a formula, else by logarithm.

    A Python number stands for itself, not for the float32 nearest to it.
    """
    if isinstance(x, torch.Tensor) and not isinstance(y, torch.Tensor):
        dtype = torch.result_type(x, y)
        if not dtype.is_floating_point and not dtype.is_complex:
            return torch.pow(x, y)
        x = x.to(dtype)
        if float(y) == 0.0:
            return torch.ones_like(x)
        if float(y) in powers.IEEE_EXPONENTS:
            return powers.power_by_formula(x, float(y))
        if dtype == torch.float32:
            return evaluate(_power, kernels.pows, x, numbers=(float(y),))
        if dtype == torch.float64:
            return doubles.power(x, float(y))
        raise refusal("pow", dtype)
    if not torch.result_type(x, y).is_floating_point:
        return torch.pow(x, y)  # type: ignore[arg-type]
    a, b = _single_operands("pow", x, y)
    return powers.pow_(a.float(), b) if isinstance(x, torch.Tensor) else powers.wide_pow(a, b).float()  # type: ignore[no-any-return]


def _power(x: torch.Tensor, exponent: float) -> torch.Tensor:
    return powers.pow_(x, torch.full((), exponent, dtype=torch.float64, device=x.device))  # type: ignore[no-any-return]


@operator("atan2")
def atan2(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The angle of the point (x, y)."""
    b, a = _single_operands("atan2", y, x)
    return trigonometry.atan2(b.float(), a.float())  # type: ignore[no-any-return]


@operator("hypot")
def hypot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`sqrt(x**2 + y**2)`; infinite where either is."""
    a, b = _single_operands("hypot", x, y)
    value = root(a * a + b * b)
    return where(a.isinf() | b.isinf(), cores.INFINITY, value).float()  # type: ignore[no-any-return]


@operator("xlogy")
def xlogy(x: torch.Tensor | Number, y: torch.Tensor | Number) -> torch.Tensor:
    """`x * log(y)`; 0 where x is 0 and y is a number."""
    a, b = _single_operands("xlogy", x, y)
    return where((a == 0.0) & (b == b), 0.0, a * cores.wide_log(b)).float()  # type: ignore[no-any-return]


@operator("logaddexp")
def logaddexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`log(e**x + e**y)`, as `max(x, y) + log(1 + e**-|x - y|)`."""
    a, b = _single_operands("logaddexp", x, y)
    gap = where(a == b, 0.0, (a - b).abs())
    value = where(a > b, a, b) + cores.wide_log1p(cores.wide_exp(-cores.clamp(gap, 0.0, 200.0)))
    return where(a != a, a, value).float()  # type: ignore[no-any-return]


@operator("logaddexp2")
def logaddexp2(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`log2(2**x + 2**y)`, as `max(x, y) + log2(1 + 2**-|x - y|)`."""
    a, b = _single_operands("logaddexp2", x, y)
    gap = where(a == b, 0.0, (a - b).abs())
    value = where(a > b, a, b) + cores.wide_log2(cores.wide_exp2(-cores.clamp(gap, 0.0, 200.0)) + 1.0)
    return where(a != a, a, value).float()  # type: ignore[no-any-return]


@operator("special_xlog1py")
def xlog1py(x: torch.Tensor | Number, y: torch.Tensor | Number) -> torch.Tensor:
    """`x * log(1 + y)`; 0 where x is 0 and y is a number."""
    a, b = _single_operands("xlog1py", x, y)
    return where((a == 0.0) & (b == b), 0.0, a * cores.wide_log1p(b)).float()  # type: ignore[no-any-return]


@operator("special_entr")
def entropy(x: torch.Tensor) -> torch.Tensor:
    """`-x log(x)`: 0 at 0, -infinity below."""
    a, _ = _single_operands("special_entr", x, 1.0)
    value = where(a == 0.0, 0.0, -(a * cores.wide_log(a)))
    return where(a < 0.0, -cores.INFINITY, value).float()  # type: ignore[no-any-return]


@operator("sinc")
def sinc(x: torch.Tensor) -> torch.Tensor:
    """`sin(pi x) / (pi x)`, the argument rounded to float32; 1 at 0."""
    x = floating(x)
    if x.dtype != torch.float32:
        raise refusal("sinc", x.dtype)
    z = x * float(np.float32(np.pi))
    return torch.where(z == 0, torch.ones_like(z), evaluate(trigonometry.sin, kernels.sins, z) / z)
