"""Activations and their derivatives, from float32 to float32: those that are more than one IEEE operation."""

from __future__ import annotations

import numpy as np

from witness.arithmetic.elementary.cores import INFINITY, NAN, clamp, wide_exp, wide_log, wide_log1p
from witness.arithmetic.elementary.elements import (
    Element,
    bits32,
    f32,
    magnitude,
    narrow,
    number32,
    polynomial,
    singles,
    where,
    wide,
)
from witness.arithmetic.elementary.functions import (
    DOWN,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    ONE,
    SHIFT_UP,
    ZERO,
    expm1,
    near_one,
    sigmoid,
    sigmoid_and_rest,
)

TAIL_NUMERATOR = singles(0.5000000031505907, 0.439283334860071, 0.18396907283468197, 0.04088110723497344,
                         0.00415322723804805)  # fmt: skip
TAIL_DENOMINATOR = singles(1.0, 1.6764516767626987, 1.205547996665707, 0.47140852602803146, 0.10247985584950793,
                           0.010410485160232703)  # fmt: skip
"""(1 - Phi(z)) * e**(z**2 / 2) as a quotient, for 0 <= z <= 15; relative error below 2**-27."""
INVERSE_ROOT_TAU = f32(0.3989422804014327)
SLOPE, CUBIC = f32(1.5957691216057308), f32(0.07135481627260025)  # 2 sqrt(2 / pi), and that times 0.044715
CUBIC_SLOPE = f32(0.21406444881780073)


def gaussian(z: Element) -> Element:
    """e**(-z**2 / 2) for 0 <= z <= 14.5: the square of the leading 12 bits is exact, what they leave out is added."""
    h = number32((bits32(z) + 0x800) & -0x1000)
    x = h * h * f32(-0.5)
    t = x * LOG2E + SHIFT_UP
    k = t - SHIFT_UP
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    r = (z + h) * (z - h) * f32(-0.5) + r
    return near_one(r) * number32(bits32(t) << 23) * DOWN


def tail_of(z: Element, density: Element) -> Element:
    """`1 - Phi(z)` of the normal distribution, given e**(-z**2 / 2)."""
    return density * (polynomial(z, TAIL_NUMERATOR) / polynomial(z, TAIL_DENOMINATOR))


def bounded(z: Element) -> Element:
    """At most 14.5, where the normal distribution's tail is 0 in float32; NaN stays."""
    return where(z > f32(14.5), f32(14.5), z)


def gelu(x: Element) -> Element:
    """`x * Phi(x)`, for negative x from the tail of the distribution: no digits cancel."""
    z = bounded(magnitude(x))
    tail = tail_of(z, gaussian(z))
    return x * where(x < ZERO, tail, ONE - tail)


def gelu_backward(g: Element, x: Element) -> Element:
    """`g * (Phi(x) + x * phi(x))`."""
    z = bounded(magnitude(x))
    density = gaussian(z)
    tail = tail_of(z, density) - z * (density * INVERSE_ROOT_TAU)
    return g * where(x < ZERO, tail, ONE - tail)


def gelu_tanh(x: Element) -> Element:
    """`x * (1 + tanh(u)) / 2`, as `x * sigmoid(2 u)` with `2 u = x * (1.5957691 + 0.0713548 * x**2)`."""
    return x * sigmoid(x * (x * x * CUBIC + SLOPE))


def gelu_tanh_backward(g: Element, x: Element) -> Element:
    """`g * (s * (1 + x * (1 - s) * (1.5957691 + 0.2140644 * x**2)))` with `s = sigmoid(2 u)`."""
    x = where(x < f32(-12.0), f32(-12.0), x)
    x = where(x > f32(12.0), f32(12.0), x)
    square = x * x
    s, rest = sigmoid_and_rest(x * (square * CUBIC + SLOPE))
    return g * (s * (x * rest * (square * CUBIC_SLOPE + SLOPE) + ONE))


def silu(x: Element) -> Element:
    """`x * sigmoid(x)`."""
    return x * sigmoid(x)


def silu_backward(g: Element, x: Element) -> Element:
    """`g * (s * (1 + x * (1 - s)))` with `s = sigmoid(x)`."""
    s, rest = sigmoid_and_rest(x)
    return g * (s * (x * rest + ONE))


def sigmoid_backward(g: Element, y: Element) -> Element:
    """`g * (1 - y) * y`."""
    return g * (ONE - y) * y


def tanh_backward(g: Element, y: Element) -> Element:
    """`g * (1 - y * y)`."""
    return g * (ONE - y * y)


def log_sigmoid(x: Element) -> Element:
    """`min(x, 0) - log(1 + e**-|x|)`."""
    x = wide(x)
    return narrow(where(x < 0.0, x, 0.0) - wide_log1p(wide_exp(-clamp(magnitude(x), 0.0, 200.0))))


def log_sigmoid_backward(g: Element, x: Element) -> Element:
    """`g * sigmoid(-x)`."""
    return g * sigmoid(-x)


def softplus(x: Element, beta: np.float32, threshold: np.float32, inverse: float) -> Element:
    """`log(1 + e**(beta x)) / beta`, given 1 / beta as well; x itself where `beta x` exceeds the threshold."""
    scaled = x * beta
    w = wide(scaled)
    value = where(w > 40.0, w, wide_log1p(wide_exp(clamp(w, -200.0, 40.0))))
    return where(scaled > threshold, x, narrow(value * inverse))


def softplus_backward(g: Element, x: Element, beta: np.float32, threshold: np.float32) -> Element:
    """`g * sigmoid(beta x)`; g itself where `beta x` exceeds the threshold."""
    scaled = x * beta
    return where(scaled > threshold, g, g * sigmoid(scaled))


def mish(x: Element) -> Element:
    """`x * tanh(log(1 + e**x))`, as `x * n / (n + 2)` with `n = e**x * (e**x + 2)`."""
    x = clamp(wide(x), -200.0, INFINITY)
    e = wide_exp(clamp(x, -200.0, 40.0))
    n = e * (e + 2.0)
    return narrow(x * (n / (n + 2.0)))


def mish_backward(g: Element, x: Element) -> Element:
    """`g * (t + x * (1 - t**2) * sigmoid(x))` with `t = tanh(log(1 + e**x))`."""
    x = clamp(wide(x), -200.0, 40.0)
    e = wide_exp(x)
    n = e * (e + 2.0)
    t = n / (n + 2.0)
    return narrow(wide(g) * (t + x * ((1.0 - t * t) * (e / (e + 1.0)))))


def elu(x: Element, negative: float, positive: float, inner: float) -> Element:
    """`positive * x`; for x <= 0 `negative * expm1(inner * x)`. Of tensors only: the numbers are rounded to float32."""
    return where(x <= ZERO, expm1(x * inner) * negative, x * positive)


def logit(x: Element) -> Element:
    """`log(x / (1 - x))`."""
    x = wide(x)
    return narrow(where((x >= 0.0) & (x <= 1.0), wide_log(x / (1.0 - x)), NAN))
