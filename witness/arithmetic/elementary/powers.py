"""Powers, reciprocals and roots, from float32 to float32."""

from __future__ import annotations

import torch

from witness.arithmetic.elementary.cores import INFINITY, NAN, clamp, wide_exp2, wide_log2
from witness.arithmetic.elementary.elements import (
    Element,
    f32,
    floor,
    magnitude,
    narrow,
    over,
    root,
    where,
    wide,
    with_sign,
)

IEEE_EXPONENTS = (1.0, 2.0, 3.0, -1.0, -2.0, 0.5, -0.5)
"""Exponents that have formulas of their own; see `power_by_formula`."""


def wide_pow(x: Element, y: Element) -> Element:
    """x**y with the special cases of C99, annex F; 2**(y log2 |x|) elsewhere."""
    value = wide_exp2(clamp(wide_log2(magnitude(x)) * y, -1000.0, 1000.0))
    whole = floor(y) == y
    odd = whole & (floor(y * 0.5) != y * 0.5)
    value = where(odd, with_sign(value, x), value)
    value = where((x < 0.0) & (x > -INFINITY) & (floor(y) != y), NAN, value)
    return where((x == 1.0) | (y == 0.0) | ((x == -1.0) & (magnitude(y) == INFINITY)), 1.0, value)


def pow_(x: Element, y: Element) -> Element:
    """x**y, for a float32 x and a float64 y."""
    return narrow(wide_pow(wide(x), y))


def sqrt(x: Element) -> Element:
    """The square root, with one rounding."""
    return root(x)


def rsqrt(x: Element) -> Element:
    """1 / sqrt(x): the root rounds, then the quotient."""
    return over(f32(1.0), root(x))


def reciprocal(x: Element) -> Element:
    """1 / x."""
    return over(f32(1.0), x)


def power_by_formula(x: torch.Tensor, exponent: float) -> torch.Tensor:
    """x**exponent for one of IEEE_EXPONENTS: `x * x`, `x * x * x`, `1 / x`, `1 / (x * x)`, `sqrt(x)`, `1 / sqrt(x)`."""
    if exponent == 1.0:
        return x.clone()
    if exponent in (0.5, -0.5):
        return root(x) if exponent > 0 else rsqrt(x)  # type: ignore[no-any-return]
    if exponent == -1.0:
        return reciprocal(x)  # type: ignore[no-any-return]
    square = x * x
    if exponent == 3.0:
        return square * x
    return square if exponent > 0 else reciprocal(square)
