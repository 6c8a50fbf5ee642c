"""The vocabulary in which elementary functions are written, read here as tensors on any device.

A definition is one text with two readings. Called as Python, its names are those of this module and it computes on
tensors, one operation a pass. `witness.arithmetic.kernels.elements` binds the same text to numbers and compiles it, for
loops that keep everything in registers. Each word is exact, or one IEEE 754 operation, in both readings; so are the
operators `+ - * / < > == & | ^ << >>` that stand between them, and the bits agree because the text does.

Float32 constants are `f32(...)`: a bare Python number would promote a compiled float32 to float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Element = Any
"""A tensor, or a number inside a kernel."""

f32 = np.float32


def singles(*values: float) -> tuple[np.float32, ...]:
    """Coefficients rounded to float32, constant term first."""
    return tuple(f32(value) for value in values)


def where(condition: Element, x: Element, y: Element) -> Element:
    """`x` where the condition holds, else `y`."""
    return torch.where(condition, x, y)


def wide(x: Element) -> Element:
    """To float64, exactly."""
    return x.double()


def narrow(x: Element) -> Element:
    """To the nearest float32."""
    return x.float()


def bits32(x: Element) -> Element:
    """The pattern of a float32 as an int32."""
    return x.view(torch.int32)


def bits64(x: Element) -> Element:
    """The pattern of a float64 as an int64."""
    return x.view(torch.int64)


def number32(i: Element) -> Element:
    """The float32 that has these bits."""
    return i.view(torch.float32)


def number64(i: Element) -> Element:
    """The float64 that has these bits."""
    return i.view(torch.float64)


def integer(i: Element) -> Element:
    """An int32 as an int64."""
    return i.long()


def real(i: Element) -> Element:
    """The float64 nearest to an int64."""
    return i.double()


def magnitude(x: Element) -> Element:
    """Without the sign."""
    return x.abs()


def with_sign(x: Element, y: Element) -> Element:
    """The magnitude of `x` with the sign of `y`."""
    return torch.copysign(x, y)


def floor(x: Element) -> Element:
    """The largest whole number not above `x`."""
    return torch.floor(x)


def root(x: Element) -> Element:
    """The square root with one rounding; torch asks MKL on CPUs, which is off by a unit in a fifth of all cases."""
    if x.device.type != "cpu":
        return torch.sqrt(x)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(x.detach().numpy())))


def over(numerator: Element, x: Element) -> Element:
    """`numerator / x` with one rounding; torch computes `2 / x` as a reciprocal and a product."""
    return torch.div(torch.full((), float(numerator), dtype=x.dtype, device=x.device), x)


def polynomial(x: Element, coefficients: tuple[Any, ...]) -> Element:
    """Horner's rule, constant term first: each product rounds, then each sum."""
    value = x * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        value += c
        value *= x
    value += coefficients[0]
    return value


def lookup(table: np.ndarray, index: Element) -> Element:
    """`table[index]`, of int64."""
    return torch.as_tensor(table, device=index.device)[index]
