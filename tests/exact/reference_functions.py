"""The elementary functions again, one number at a time, from the sentences of their definitions.

Nothing is taken from the package but its tables of coefficients. Where the package moves bits about, this computes with
whole numbers and exact fractions: rounding by `Fraction`, scaling by `ldexp`, exponents by `frexp`, angles by a
product of integers. A float32 operation is numpy's scalar one, a float64 operation is Python's.
"""

import math
from fractions import Fraction

import mpmath
import numpy as np

from witness.arithmetic.elementary import activations, cores, functions, trigonometry

F = np.float32
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
INF, NAN = math.inf, math.nan


def rounded(x) -> F:
    """A float64 to float32, by way of exact fractions: to nearest, ties to even, subnormals and overflow included."""
    x = float(x)
    if x == 0 or math.isnan(x) or math.isinf(x):
        return F(x)
    exponent = max(math.frexp(x)[1] - 24, -149)
    whole = round(Fraction(x) / Fraction(2) ** exponent)  # round() of a Fraction is half to even
    value = Fraction(whole) * Fraction(2) ** exponent
    if abs(value) >= Fraction(2) ** 128:
        return F(math.copysign(INF, x))
    return F(math.copysign(float(value), x))


def nearest(x, bias: int) -> int:
    """The whole number nearest to x; of two the one that makes an even sum with the bias."""
    return round(Fraction(float(x)) + bias) - bias


def horner(x, coefficients):
    value = x * coefficients[-1]
    for c in reversed(coefficients[1:-1]):
        value = (value + c) * x
    return value + coefficients[0]


def quotient(a, b):
    """IEEE division of float64 numbers; Python's raises where the divisor is 0."""
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def square_root(x: float) -> float:
    return math.sqrt(x) if x >= 0 else NAN


# --- float32 throughout ---


def _near_one(r: F) -> F:
    return (horner(r, functions.EXP) * (r * r) + r) + F(1)


def _scaled(y: F, k: int, half: int) -> F:
    """y * 2**k in two factors, the second of which is 2**half."""
    return (y * F(math.ldexp(1.0, k - half))) * F(math.ldexp(1.0, half))


def exp(x: F) -> F:
    if math.isnan(x):
        return x
    x = max(F(-104), min(F(89), x))
    half, bias = (-64, 191) if x < 0 else (64, 63)
    k = nearest(x * F(LOG2E), bias)
    r = (x - F(k) * functions.LN2_HIGH) - F(k) * functions.LN2_LOW
    return _scaled(_near_one(r), k, half)


def sigmoid(x: F) -> F:
    z = exp(F(-abs(x)))
    return (z if x < 0 else F(1)) / (z + F(1))


def _sides(x: F) -> tuple[F, F]:
    z = exp(F(-abs(x)))
    larger = F(1) / (z + F(1))
    return (z * larger, larger) if x < 0 else (larger, z * larger)


def silu(x: F) -> F:
    return x * sigmoid(x)


def silu_backward(g: F, x: F) -> F:
    s, rest = _sides(x)
    return g * (s * (x * rest + F(1)))


def _gaussian(z: F) -> F:
    mantissa, exponent = math.frexp(z)
    # to 12 bits, ties away from zero
    h = (
        F(math.ldexp(math.floor(Fraction(mantissa) * 4096 + Fraction(1, 2)), exponent - 12))
        if z >= F(2.0**-126)
        else None
    )
    if h is None:  # the mantissa's 12 low bits are the pattern's
        pattern = int(np.array(z).view(np.int32))
        h = np.array((pattern + 2048) // 4096 * 4096, dtype=np.int32).view(F)[()]
    x = (h * h) * F(-0.5)
    k = nearest(x * F(LOG2E), 191)
    r = (x - F(k) * functions.LN2_HIGH) - F(k) * functions.LN2_LOW
    r = ((z + h) * (z - h)) * F(-0.5) + r
    return _scaled(_near_one(r), k, -64)


def _tail(z: F) -> tuple[F, F]:
    density = _gaussian(z)
    return density, density * (horner(z, activations.TAIL_NUMERATOR) / horner(z, activations.TAIL_DENOMINATOR))


def gelu(x: F) -> F:
    if math.isnan(x):
        return x
    _, tail = _tail(min(abs(x), F(14.5)))
    return x * (tail if x < 0 else F(1) - tail)


def gelu_backward(g: F, x: F) -> F:
    if math.isnan(x):
        return x
    z = min(abs(x), F(14.5))
    density, tail = _tail(z)
    tail = tail - z * (density * F(0.3989422804014327))
    return g * (tail if x < 0 else F(1) - tail)


def gelu_tanh(x: F) -> F:
    return x * sigmoid(x * ((x * x) * F(0.07135481627260025) + F(1.5957691216057308)))


def gelu_tanh_backward(g: F, x: F) -> F:
    x = x if math.isnan(x) else max(F(-12), min(F(12), x))
    square, slope = x * x, F(1.5957691216057308)
    s, rest = _sides(x * (square * F(0.07135481627260025) + slope))
    return g * (s * ((x * rest) * (square * F(0.21406444881780073) + slope) + F(1)))


def sigmoid_backward(g: F, y: F) -> F:
    return (g * (F(1) - y)) * y


def tanh_backward(g: F, y: F) -> F:
    return g * (F(1) - y * y)


def log_sigmoid_backward(g: F, x: F) -> F:
    return g * sigmoid(-x)


def sqrt(x: F) -> F:
    """In whole numbers: the root of x * 4**n to 27 bits and whether anything is left."""
    if not 0 < x < INF:
        return x if x == 0 or x == INF else F(NAN)
    _, exponent = math.frexp(float(x))
    exponent -= exponent % 2
    whole = int(Fraction(float(x)) * Fraction(4) ** (27 - exponent // 2))
    floor = math.isqrt(whole)
    return rounded(float(Fraction(2 * floor + (floor * floor != whole)) * Fraction(2) ** (exponent // 2 - 28)))


def rsqrt(x: F) -> F:
    return F(1) / np.sqrt(x)


def reciprocal(x: F) -> F:
    return F(1) / x


# --- through float64 ---


def _clamped(x: float, low: float, high: float) -> float:
    return x if math.isnan(x) else max(low, min(high, x))


def _exp(x: float) -> float:
    k = nearest(x * LOG2E, 1023)
    r = x - k * LN2
    return math.ldexp(horner(r, cores.EXPM1) * r + 1.0, k)


def _exp2(x: float) -> float:
    k = nearest(x, 1023)
    r = x - k
    return math.ldexp(horner(r, cores.EXP2M1) * r + 1.0, k)


def _expm1(x: float) -> float:
    k = nearest(x * LOG2E, 1023)
    r = x - k * LN2
    return math.ldexp(horner(r, cores.EXPM1) * r, k) + (math.ldexp(1.0, k) - 1.0)


def _split(x: float) -> tuple[int, float]:
    """(k, m): x = 2**k m, and m from sqrt(1/2) to below sqrt(2)."""
    m, k = math.frexp(x)
    return (k - 1, m * 2) if m < math.sqrt(0.5) else (k, m)


def _log_of(f: float) -> float:
    s = f / (f + 2.0)
    u = s * s
    return s * (horner(u, cores.LOG) * u + 2.0)


def _log(x: float) -> float:
    if math.isnan(x) or x < 0:
        return NAN
    if x in (0.0, INF):
        return -INF if x == 0 else INF
    k, m = _split(x)
    return k * LN2 + _log_of(m - 1.0)


def _log2(x: float) -> float:
    if not 0 < x < INF:
        return _log(x)
    k, m = _split(x)
    return _log_of(m - 1.0) * LOG2E + k


def _log1p(x: float) -> float:
    w = x + 1.0
    if not 0 < w < INF:
        return _log(w)
    k, m = _split(w)
    return k * LN2 + _log_of(x if k == 0 else m - 1.0)


def exp2(x: F) -> F:
    return x if math.isnan(x) else rounded(_exp2(_clamped(float(x), -200.0, 200.0)))


def expm1(x: F) -> F:
    return x if math.isnan(x) or x == 0 else rounded(_expm1(_clamped(float(x), -100.0, 100.0)))


def log(x: F) -> F:
    return rounded(_log(float(x)))


def log2(x: F) -> F:
    return rounded(_log2(float(x)))


def log10(x: F) -> F:
    return rounded(_log(float(x)) * 0.4342944819032518)


def log1p(x: F) -> F:
    return x if x == 0 else rounded(_log1p(float(x)))


def tanh(x: F) -> F:
    if math.isnan(x):
        return x
    e = _expm1(-2.0 * min(abs(float(x)), 10.0))
    return rounded(math.copysign(-e / (e + 2.0), x))


def sinh(x: F) -> F:
    if math.isnan(x):
        return x
    m = _expm1(min(abs(float(x)), 100.0))
    return rounded(math.copysign((m + m / (m + 1.0)) * 0.5, x))


def cosh(x: F) -> F:
    if math.isnan(x):
        return x
    e = _exp(min(abs(float(x)), 100.0))
    return rounded((e + 1.0 / e) * 0.5)


def asinh(x: F) -> F:
    a = abs(float(x))
    square = a * a
    value = _log1p(a + square / (math.sqrt(square + 1.0) + 1.0)) if a < INF else a
    return rounded(math.copysign(value, x))


def acosh(x: F) -> F:
    d = float(x) - 1.0
    return rounded(_log1p(d + square_root(d * 2.0 + d * d)) if d >= 0 else NAN)


def atanh(x: F) -> F:
    a = abs(float(x))
    return rounded(math.copysign(_log1p(quotient(a + a, 1.0 - a)) * 0.5, x))


def _erfc(z: float) -> float:
    return _exp(-(z * z)) * (horner(z, cores.ERFCX_NUMERATOR) / horner(z, cores.ERFCX_DENOMINATOR))


def erf(x: F) -> F:
    if math.isnan(x):
        return x
    z = min(abs(float(x)), 6.0)
    return rounded(math.copysign(horner(z * z, cores.ERF) * z if z < 0.5 else 1.0 - _erfc(z), x))


def erfc(x: F) -> F:
    if math.isnan(x):
        return x
    w = _clamped(float(x), -10.25, 10.25)
    if abs(w) < 0.5:
        return rounded(1.0 - horner(w * w, cores.ERF) * w)
    return rounded(2.0 - _erfc(-w) if w < 0 else _erfc(w))


def erfinv(x: F) -> F:
    x = float(x)
    if math.isnan(x) or abs(x) >= 1:
        return F(math.copysign(INF, x)) if abs(x) == 1 else F(NAN)
    w = -_log1p(-(x * x))
    return rounded(x * (horner(w, cores.ERFINV_NUMERATOR) / horner(w, cores.ERFINV_DENOMINATOR)))


def softplus(x: F, beta: F, threshold: F, inverse: float) -> F:
    scaled = float(x * beta)
    if scaled > threshold or math.isnan(scaled):
        return x
    return rounded((scaled if scaled > 40 else _log1p(_exp(max(scaled, -200.0)))) * inverse)


def softplus_backward(g: F, x: F, beta: F, threshold: F) -> F:
    return g if x * beta > threshold else g * sigmoid(x * beta)


def log_sigmoid(x: F) -> F:
    if math.isnan(x):
        return x
    return rounded(min(float(x), 0.0) - _log1p(_exp(-min(abs(float(x)), 200.0))))


def mish(x: F) -> F:
    if math.isnan(x):
        return x
    x = max(float(x), -200.0)
    e = _exp(min(x, 40.0))
    n = e * (e + 2.0)
    return rounded(x * (n / (n + 2.0)))


def mish_backward(g: F, x: F) -> F:
    if math.isnan(x):
        return x
    x = _clamped(float(x), -200.0, 40.0)
    e = _exp(x)
    n = e * (e + 2.0)
    t = n / (n + 2.0)
    return rounded(float(g) * (t + x * ((1.0 - t * t) * (e / (e + 1.0)))))


def logit(x: F) -> F:
    x = float(x)
    return rounded(_log(quotient(x, 1.0 - x)) if 0 <= x <= 1 else NAN)


def pow_(x: F, y: float) -> F:
    x = float(x)
    if x == 1 or y == 0 or (x == -1 and math.isinf(y)):
        return F(1)
    if math.isnan(x) or math.isnan(y):
        return F(NAN)
    whole = math.isinf(y) or y.is_integer()
    if -INF < x < 0 and not whole:
        return F(NAN)
    value = _exp2(_clamped(_log2(abs(x)) * y, -1000.0, 1000.0))
    odd = not math.isinf(y) and whole and int(y) % 2
    return rounded(math.copysign(value, x) if odd else value)


# --- angles ---

with mpmath.workprec(400):
    TWO_OVER_PI = Fraction(int(mpmath.floor(2 / mpmath.pi * mpmath.mpf(2) ** 384)), 2**384)


def _remainder(x: float) -> tuple[int, float]:
    """(k, r): x = k pi/2 + r, k as a residue modulo 4."""
    if abs(x) < 2.0**28:
        k = nearest(x * 0.6366197723675814, 0)
        r = x
        for part in (trigonometry.HALF_PI_HIGH, trigonometry.HALF_PI_MIDDLE, trigonometry.HALF_PI_LOW):
            r = r - k * part
        return k % 4, r
    if math.isinf(x):
        return 0, NAN
    # |x| = whole * 2**exponent; of 2/pi the 96 bits that start at a multiple of 8 and bring in the multiples of 4
    mantissa, exponent = math.frexp(abs(x))
    whole, exponent = int(mantissa * 2**24), exponent - 24
    shift = (exponent + 150) % 8
    last = 8 * ((exponent + 150) // 8 % 16) + 8 + 64  # the window's last bit, counted from the point
    window = int(TWO_OVER_PI * 2**last) % 2**96
    turns = ((whole << shift) * window >> 32) % 2**64  # in units of 2**-62 quarter turns, modulo 4
    k = (turns + 2**61) // 2**62
    r = float(turns - k * 2**62) * trigonometry.UNIT
    return (-k % 4, -r) if x < 0 else (k % 4, r)


def _sine(k: int, r: float) -> float:
    u = r * r
    value = horner(u, trigonometry.COS) if k % 2 else horner(u, trigonometry.SIN) * r
    return -value if k % 4 >= 2 else value


def sin(x: F) -> F:
    k, r = _remainder(float(x)) if x == x else (0, NAN)
    return rounded(_sine(k, r))


def cos(x: F) -> F:
    k, r = _remainder(float(x)) if x == x else (0, NAN)
    return rounded(_sine(k + 1, r))


def tan(x: F) -> F:
    k, r = _remainder(float(x)) if x == x else (0, NAN)
    u = r * r
    s, c = horner(u, trigonometry.SIN) * r, horner(u, trigonometry.COS)
    return rounded(quotient(-c, s) if k % 2 else quotient(s, c))


def _atan(z: float) -> float:
    base = 0.0
    if z > 2.414213562373095:
        base, z = math.pi / 2, -1.0 / z
    elif z > 0.41421356237309503:
        base, z = math.pi / 4, (z - 1.0) / (z + 1.0)
    return base + horner(z * z, trigonometry.ATAN) * z


def atan(x: F) -> F:
    return rounded(math.copysign(_atan(abs(float(x))), x))


def asin(x: F) -> F:
    a = abs(float(x))
    return rounded(math.copysign(_atan(quotient(a, square_root((1.0 - a) * (a + 1.0)))), x))


def acos(x: F) -> F:
    x = float(x)
    return rounded(_atan(square_root(quotient(1.0 - x, x + 1.0))) * 2.0)


def atan2(y: F, x: F) -> F:
    y, x = float(y), float(x)
    if math.isnan(x) or math.isnan(y):
        return F(NAN)
    a, b = abs(y), abs(x)
    angle = _atan(0.0 if a == 0 else 1.0 if a == b else quotient(a, b))
    return rounded(math.copysign(math.pi - angle if math.copysign(1.0, x) < 0 else angle, y))
