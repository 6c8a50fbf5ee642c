"""Exponentials, logarithms, hyperbolic functions, the error function and their kin, from float32 to float32.

What training spends its time on - `exp`, `sigmoid` and the gates built on them - is computed in float32 alone; all else
in float64 (`elementary.cores`), rounded once, which is nearly always the float32 nearest to the truth. Each
function is written once, in the vocabulary of `elementary.elements`, and read both as tensor operations and as
compiled loops. Zeros keep their sign, infinities, NaN and subnormals are what C99 (annex F) says.

The largest errors, in units of the last place, that `benchmarks/exact_functions.py` found among 2**24 numbers of all
sizes and around the worst of them; for the first five, with `--exhaustive`, among all numbers of ordinary size:

    exp         0.99    exp2        0.51    expm1       0.51    log         0.51    log2        0.51
    sigmoid     2.41    log10       0.51    log1p       0.51    tanh        0.51    sinh        0.51
    silu        52.1    cosh        0.51    asinh       0.51    acosh       0.51    atanh       0.51
    gelu        10.5    erf         0.51    erfc        0.51    erfinv      0.54    sin         0.51
    gelu_tanh   214     cos         0.51    tan         0.51    asin        0.51    acos        0.51
    atan        0.51    sqrt        0.50    rsqrt       1.50    reciprocal  0.50    pow         0.51
    softplus    0.51    log_sigmoid 0.51    mish        0.51    logit       0.51

`silu` is within 3.2 for x > -87, below which its sigmoid is subnormal; `gelu` within 5.7 for x > -3 and `gelu_tanh`
within 16 there (35 for x > -5): their tails inherit the rounding of an exponent. torch's own keep no digit of these
tails. `pow` is of exponents without a formula (`powers.power_by_formula`). Derivatives cross zero; the errors of
`gelu_backward` (1.2), `gelu_tanh_backward` (2.1), `silu_backward` (2.0), `softplus_backward` (0.8) and
`log_sigmoid_backward` (0.8) are in units of the last place of 1, for a gradient of 1.
"""

from __future__ import annotations

from witness.arithmetic.elementary.cores import (
    INFINITY,
    NAN,
    clamp,
    erf_near_zero,
    erfc_of_positive,
    wide_erfinv,
    wide_exp,
    wide_exp2,
    wide_expm1,
    wide_log,
    wide_log1p,
    wide_log2,
    wide_tanh,
)
from witness.arithmetic.elementary.elements import (
    Element,
    bits32,
    f32,
    magnitude,
    narrow,
    number32,
    over,
    polynomial,
    root,
    singles,
    where,
    wide,
    with_sign,
)

LOG2E = f32(1.4426950408889634)
LN2_HIGH, LN2_LOW = f32(0.693145751953125), f32(1.428606765330187e-06)  # the first has 15 bits: k * LN2_HIGH is exact
SHIFT_UP, SHIFT_DOWN = f32(12582912.0 + 127 + 64), f32(12582912.0 + 127 - 64)  # 1.5 * 2**23, exponent bias, 2**+-64
UP, DOWN = f32(2.0**64), f32(2.0**-64)
ZERO, ONE = f32(0.0), f32(1.0)
EXP = singles(0.4999999339504927, 0.16666519849421554, 0.041668397256536586, 0.008368811699688951, 0.001381440195574649)
"""(e**r - 1 - r) / r**2 for |r| <= ln(2) / 2; relative error of e**r below 2**-28."""
INVERSE_LN10 = 0.4342944819032518


def near_one(r: Element) -> Element:
    """e**r for |r| <= ln(2) / 2."""
    return polynomial(r, EXP) * (r * r) + r + ONE


def exp(x: Element) -> Element:
    """`2**k * e**(x - k ln 2)`, the power of two in two factors so that a subnormal result rounds once."""
    x = where(x < f32(-104.0), f32(-104.0), x)
    x = where(x > f32(89.0), f32(89.0), x)
    negative = x < ZERO
    shift = where(negative, SHIFT_UP, SHIFT_DOWN)
    t = x * LOG2E + shift
    k = t - shift
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    return near_one(r) * number32(bits32(t) << 23) * where(negative, DOWN, UP)


def decay(x: Element) -> Element:
    """`exp` of x <= 0: the same bits in fewer operations."""
    x = where(x < f32(-104.0), f32(-104.0), x)
    t = x * LOG2E + SHIFT_UP
    k = t - SHIFT_UP
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    return near_one(r) * number32(bits32(t) << 23) * DOWN


def sigmoid(x: Element) -> Element:
    """`1 / (1 + e**-x)`; for negative x `e**x / (1 + e**x)`."""
    z = decay(-magnitude(x))
    return where(x < ZERO, z, ONE) / (z + ONE)


def sigmoid_and_rest(x: Element) -> tuple[Element, Element]:
    """(s, 1 - s) with `s = sigmoid(x)`: the larger is `1 / (1 + z)`, the other z times it, so that no digits cancel."""
    z = decay(-magnitude(x))
    larger = over(ONE, z + ONE)
    smaller = z * larger
    negative = x < ZERO
    return where(negative, smaller, larger), where(negative, larger, smaller)


def exp2(x: Element) -> Element:
    """2**x."""
    return narrow(wide_exp2(clamp(wide(x), -200.0, 200.0)))


def expm1(x: Element) -> Element:
    """e**x - 1."""
    value = narrow(wide_expm1(clamp(wide(x), -100.0, 100.0)))
    return where(x == ZERO, x, value)


def log(x: Element) -> Element:
    """The natural logarithm."""
    return narrow(wide_log(wide(x)))


def log2(x: Element) -> Element:
    """The logarithm to base 2; exact for powers of two."""
    return narrow(wide_log2(wide(x)))


def log10(x: Element) -> Element:
    """The logarithm to base 10."""
    return narrow(wide_log(wide(x)) * INVERSE_LN10)


def log1p(x: Element) -> Element:
    """log(1 + x)."""
    return where(x == ZERO, x, narrow(wide_log1p(wide(x))))


def tanh(x: Element) -> Element:
    """`-(e**-2|x| - 1) / (e**-2|x| + 1)` with the sign of x."""
    return with_sign(narrow(wide_tanh(clamp(wide(magnitude(x)), 0.0, 10.0))), x)


def sinh(x: Element) -> Element:
    """`(m + m / (m + 1)) / 2` with `m = e**|x| - 1`, and the sign of x."""
    m = wide_expm1(clamp(wide(magnitude(x)), 0.0, 100.0))
    return with_sign(narrow((m + m / (m + 1.0)) * 0.5), x)


def cosh(x: Element) -> Element:
    """`(e**|x| + 1 / e**|x|) / 2`."""
    e = wide_exp(clamp(wide(magnitude(x)), 0.0, 100.0))
    return narrow((e + over(1.0, e)) * 0.5)


def asinh(x: Element) -> Element:
    """`log1p(|x| + x**2 / (1 + sqrt(1 + x**2)))` with the sign of x."""
    a = wide(magnitude(x))
    square = a * a
    value = wide_log1p(a + square / (root(square + 1.0) + 1.0))
    return with_sign(narrow(where(a < INFINITY, value, a)), x)


def acosh(x: Element) -> Element:
    """`log1p(d + sqrt(2 d + d**2))` with `d = x - 1`."""
    d = wide(x) - 1.0
    return narrow(where(d < 0.0, NAN, wide_log1p(d + root(d * 2.0 + d * d))))


def atanh(x: Element) -> Element:
    """`log1p(2 |x| / (1 - |x|)) / 2` with the sign of x."""
    a = wide(magnitude(x))
    return with_sign(narrow(wide_log1p((a + a) / (1.0 - a)) * 0.5), x)


def erf(x: Element) -> Element:
    """A polynomial for |x| < 1/2; `1 - erfc(|x|)` with the sign of x elsewhere."""
    z = clamp(wide(magnitude(x)), 0.0, 6.0)
    return with_sign(narrow(where(z < 0.5, erf_near_zero(z), 1.0 - erfc_of_positive(z))), x)


def erfc(x: Element) -> Element:
    """`1 - erf(x)`: for |x| >= 1/2 from e**-x**2 and a quotient of polynomials, so that the tail keeps its digits."""
    w = clamp(wide(x), -10.25, 10.25)
    tail = erfc_of_positive(magnitude(w))
    return narrow(where(magnitude(w) < 0.5, 1.0 - erf_near_zero(w), where(w < 0.0, 2.0 - tail, tail)))


def erfinv(x: Element) -> Element:
    """The number of which erf is x."""
    return narrow(wide_erfinv(wide(x)))
