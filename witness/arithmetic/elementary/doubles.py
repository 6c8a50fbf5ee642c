"""Elementary functions from float64 to float64, for the few tensors of a program that are kept in that precision.

The largest errors found, in units of the last place, among some ten thousand numbers compared with mpmath:

    exp      0.85    expm1    1.30    log      0.80    log2     1.40    log1p    0.80
    tanh     2.60    sigmoid  2.00    sin      0.80    cos      0.80

Functions that are not here are refused in float64.
"""

from __future__ import annotations

import math

import torch

from protocol.errors import UsageError
from witness.arithmetic.elementary import powers
from witness.arithmetic.elementary.cores import INFINITY, LOG2E, clamp, exponent_and_fraction, of_positive
from witness.arithmetic.elementary.elements import Element, bits64, magnitude, number64, polynomial, where, with_sign

LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # the first has 32 bits
SHIFT = 6755399441055744.0 + 1023  # 1.5 * 2**52, and float64's exponent bias
UP, DOWN = 2.0**512, 2.0**-512
EXP = tuple(1.0 / math.factorial(n) for n in range(2, 15))
"""(e**r - 1 - r) / r**2 for |r| <= ln(2) / 2: Taylor's series; relative error of e**r below 2**-61."""
LOG = (
    0.6666666666666761, 0.39999999999245844, 0.2857142877861484, 0.22222194976346904, 0.1818374577740097,
    0.15309531078932523, 0.14840080363173297,
)  # fmt: skip
"""(2 atanh(s) / s - 2) / s**2 in s**2, as in `cores.LOG`; relative error below 2**-58."""
SIN = (
    -0.16666666666666557, 0.008333333333306636, -0.00019841269818767583, 2.755731028435064e-06,
    -2.5050276803279478e-08, 1.587134749829819e-10,
)  # fmt: skip
"""(sin(r) / r - 1) / r**2 in r**2, for |r| <= pi / 4; relative error of sin(r) below 2**-55."""
COS = (
    0.041666666666665804, -0.001388888888877708, 2.4801587245305154e-05, -2.7557304731609254e-07,
    2.0874708177996698e-09, -1.1317832554926365e-11,
)  # fmt: skip
"""(cos(r) - 1 + r**2 / 2) / r**4 in r**2, for |r| <= pi / 4; error below 2**-58."""
TWO_OVER_PI = 0.6366197723675814
HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21, 8.4784276603689e-32)
"""pi/2 in parts of 33 bits: their products with k < 2**20 are exact."""
LARGE = 2.0**20
INVERSE_LN10, LOG10_2 = 0.4342944819032518, 0.3010299956639812


def _reduced(x: Element) -> tuple[Element, Element, Element, Element]:
    """(k, scale, r, tail): x = k ln 2 + r - tail, and 2**k = scale * 2**+-512, the sign that of x."""
    shift = where(x < 0.0, SHIFT + 512.0, where(x >= 0.0, SHIFT - 512.0, x))
    t = x * LOG2E + shift
    k = t - shift
    return k, number64(bits64(t) << 52), x - k * LN2_HIGH, k * LN2_LOW


def exp(x: Element) -> Element:
    """e**x."""
    x = clamp(x, -746.0, 710.0)
    _, scale, high, low = _reduced(x)
    r = high - low
    y = ((polynomial(r, EXP) * (r * r) - low) + high) + 1.0
    return y * scale * where(x < 0.0, DOWN, x * 0.0 + UP)


def expm1(x: Element) -> Element:
    """e**x - 1."""
    bounded = clamp(x, -50.0, 710.0)
    k, scale, high, low = _reduced(bounded)
    r = high - low
    small = (polynomial(r, EXP) * (r * r) - low) + high
    factor = where(bounded < 0.0, DOWN, bounded * 0.0 + UP)
    half = scale * 0.5
    value = where(k < 1000.0, (small * scale * factor) + (scale * factor - 1.0), (small * half + half) * factor * 2.0)
    return where(k == 0.0, where(x == 0.0, x, small), value)


def _log_of(k: Element, f: Element, correction: Element) -> Element:
    """The sum `k ln 2 + log(1 + f) + correction`."""
    s = f / (f + 2.0)
    u = s * s
    half_square = f * f * 0.5
    rest = s * (polynomial(u, LOG) * u + half_square) + (k * LN2_LOW + correction)
    return k * LN2_HIGH - ((half_square - rest) - f)


def log(x: Element) -> Element:
    """The natural logarithm."""
    tiny = x < 2.0**-1022
    k, m = exponent_and_fraction(where(tiny, x * 2.0**54, x))
    k = where(tiny, k - 54.0, k)
    return of_positive(x, _log_of(k, m - 1.0, 0.0))


def log2(x: Element) -> Element:
    """The logarithm to base 2; exact for powers of two."""
    tiny = x < 2.0**-1022
    k, m = exponent_and_fraction(where(tiny, x * 2.0**54, x))
    k = where(tiny, k - 54.0, k)
    return of_positive(x, _log_of(k * 0.0, m - 1.0, 0.0) * LOG2E + k)


def log1p(x: Element) -> Element:
    """log(1 + x); what the sum 1 + x loses is added to the logarithm."""
    w = x + 1.0
    k, m = exponent_and_fraction(w)
    lost = where(w > 2.0, 1.0 - (w - x), x - (w - 1.0)) / w
    near = k == 0.0
    value = _log_of(k, where(near, x, m - 1.0), where(near, 0.0, lost))
    return where(x == 0.0, x, of_positive(w, value))


def tanh(x: Element) -> Element:
    """`-(e**-2|x| - 1) / (e**-2|x| + 1)` with the sign of x."""
    e = expm1(magnitude(x) * -2.0)
    return with_sign(e / (e + 2.0), x)


def sigmoid(x: Element) -> Element:
    """`1 / (1 + e**-x)`; for negative x `e**x / (1 + e**x)`."""
    z = exp(-magnitude(x))
    return where(x < 0.0, z, 1.0) / (z + 1.0)


def _remainder(x: torch.Tensor) -> tuple[Element, Element, Element]:
    """(k, r, tail): x = k pi/2 + r + tail."""
    if bool(((x.abs() >= LARGE) & (x.abs() < INFINITY)).any()):
        raise UsageError("exact-refused", "sin and cos of float64 beyond 2**20 have no exact definition: use float32")
    t = x * TWO_OVER_PI + (SHIFT - 1023)
    k = t - (SHIFT - 1023)
    r, tail = x - k * HALF_PI[0], k * 0.0
    for part in HALF_PI[1:]:
        w = k * part
        difference = r - w
        back = difference - r
        tail = tail + ((r - (difference - back)) - (w + back))
        r = difference
    return bits64(t), r, tail


def _sine_of(k: Element, r: Element, tail: Element) -> Element:
    u = r * r
    sine = polynomial(u, SIN) * (u * r) + (tail * (u * -0.5 + 1.0)) + r
    half = u * 0.5
    whole = 1.0 - half
    cosine = whole + (((1.0 - whole) - half) + (polynomial(u, COS) * (u * u) - r * tail))
    value = where((k & 1) == 0, where(r == 0.0, r, sine), cosine)
    return number64(bits64(value) ^ ((k & 2) << 62))


def sin(x: torch.Tensor) -> Element:
    """The sine of |x| < 2**20.

    Raises:
        UsageError: `exact-refused` for larger angles.
    """
    return _sine_of(*_remainder(x))


def cos(x: torch.Tensor) -> Element:
    """The cosine of |x| < 2**20.

    Raises:
        UsageError: `exact-refused` for larger angles.
    """
    k, r, tail = _remainder(x)
    return _sine_of(k + 1, r, tail)


def power(x: torch.Tensor, exponent: float) -> torch.Tensor:
    """x**n by repeated squaring, for whole n; a negative n by the reciprocal of the power.

    Raises:
        UsageError: `exact-refused` for other exponents.
    """
    if not exponent.is_integer() or abs(exponent) > 1024:
        raise UsageError("exact-refused", "float64 powers are defined for whole exponents up to 1024: use float32")
    n, square, value = abs(int(exponent)), x, torch.ones_like(x)
    while n:
        if n & 1:
            value = value * square
        n >>= 1
        square = square * square if n else square
    return powers.reciprocal(value) if exponent < 0 else value
