"""Functions between float64 numbers, accurate to about 2**-32: what float32 functions are rounded from, once.

Polynomials are minimax fits of the relative error. Each core says over which arguments it holds; callers clamp.
"""

from __future__ import annotations

from witness.arithmetic.elementary.elements import (
    Element,
    bits64,
    magnitude,
    number64,
    polynomial,
    real,
    where,
)

INFINITY, NAN = float("inf"), float("nan")

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
SHIFT = 6755399441055744.0 + 1023  # 1.5 * 2**52: adding it rounds to a whole number; 1023 is float64's exponent bias
EXPM1 = (
    1.0, 0.4999999999973621, 0.16666666754489265, 0.041666666955106395, 0.008333288974592686, 0.0013888809315816205,
    0.00019904946628289034, 2.488249526398934e-05,
)  # fmt: skip
"""(e**r - 1) / r for |r| <= ln(2) / 2; relative error of e**r - 1 below 2**-37."""
EXP2M1 = (
    0.6931471805416521, 0.24022651075847323, 0.055504109625824624, 0.00961803691153969, 0.001333343077723164,
    0.00015467110158465182, 1.531494921713007e-05,
)  # fmt: skip
"""(2**r - 1) / r for |r| <= 1/2; relative error below 2**-34."""
LOG = (0.666666656450383, 0.40000335294028333, 0.28537301502273493, 0.23582293406998678)
"""(2 atanh(s) / s - 2) / s**2 in s**2, for 1/sqrt(2) <= (1 + s) / (1 - s) <= sqrt(2); relative error below 2**-37."""
ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
ERF = (
    1.1283791670826093, -0.37612638529642556, 0.11283774140824365, -0.026863157320948048, 0.005200479018391608,
    -0.0007695578664457777,
)  # fmt: skip
"""erf(z) / z in z**2, for |z| <= 1/2; relative error below 2**-36."""
ERFCX_NUMERATOR = (
    0.9999999999169261, 1.4351739222406332, 1.0018396106299141, 0.40311457848611726, 0.093060784182525,
    0.010051337049841104,
)  # fmt: skip
ERFCX_DENOMINATOR = (
    1.0, 2.563553078073501, 2.894499743075144, 1.8579053977358542, 0.7234321734259099, 0.16494488538326219,
    0.017815553374359465,
)  # fmt: skip
"""erfc(z) * e**(z**2) as a quotient, for 0 <= z <= 10.3; relative error below 2**-33."""
ERFINV_NUMERATOR = (
    0.8862269236976612, 0.3131572816997448, 0.06275412240337225, 0.008486470965540624, 0.0007498412806541382,
    3.586667448676876e-05, 8.94085024751906e-08,
)  # fmt: skip
ERFINV_DENOMINATOR = (
    1.0, 0.09156070548695387, 0.03380815341499905, 0.0021661515949421293, 0.00022461576884163028,
    2.9017080991781877e-06,
)  # fmt: skip
"""erfinv(x) / x as a quotient in -log(1 - x**2), for |x| <= 1 - 2**-24; relative error below 2**-28."""


def clamp(x: Element, low: float, high: float) -> Element:
    """Within bounds; NaN stays."""
    x = where(x < low, low, x)
    return where(x > high, high, x)


def wide_exp(x: Element) -> Element:
    """e**x for |x| <= 700."""
    t = x * LOG2E + SHIFT
    r = x - (t - SHIFT) * LN2
    return (polynomial(r, EXPM1) * r + 1.0) * number64(bits64(t) << 52)


def wide_exp2(x: Element) -> Element:
    """2**x for |x| <= 1000; exact where x is whole."""
    t = x + SHIFT
    r = x - (t - SHIFT)
    return (polynomial(r, EXP2M1) * r + 1.0) * number64(bits64(t) << 52)


def wide_expm1(x: Element) -> Element:
    """e**x - 1 for |x| <= 700, with a small relative error near 0 as well; the sign of -0 is lost."""
    t = x * LOG2E + SHIFT
    r = x - (t - SHIFT) * LN2
    scale = number64(bits64(t) << 52)
    return polynomial(r, EXPM1) * r * scale + (scale - 1.0)


def exponent_and_fraction(x: Element) -> tuple[Element, Element]:
    """(k, m) with x = 2**k * m and 1/sqrt(2) <= m < sqrt(2), both float64, for positive normal x."""
    bits = bits64(x)
    k = (bits - ROOT_HALF_BITS) >> 52
    return real(k), number64(bits - (k << 52))


def log_of_fraction(f: Element) -> Element:
    """log(1 + f) for 1/sqrt(2) <= 1 + f < sqrt(2)."""
    s = f / (f + 2.0)
    u = s * s
    return s * (polynomial(u, LOG) * u + 2.0)


def of_positive(x: Element, value: Element) -> Element:
    """`value` for 0 < x < infinity; what a logarithm gives for the other x."""
    other = where(x == 0.0, -INFINITY, x * NAN)
    return where(x > 0.0, where(x < INFINITY, value, x), other)


def wide_log(x: Element) -> Element:
    """The natural logarithm of a float64 that is no subnormal."""
    k, m = exponent_and_fraction(x)
    return of_positive(x, k * LN2 + log_of_fraction(m - 1.0))


def wide_log2(x: Element) -> Element:
    """The logarithm to base 2 of a float64 that is no subnormal; exact for powers of two."""
    k, m = exponent_and_fraction(x)
    return of_positive(x, log_of_fraction(m - 1.0) * LOG2E + k)


def wide_log1p(x: Element) -> Element:
    """log(1 + x), with a small relative error near 0 as well; the sign of -0 is lost."""
    w = x + 1.0
    k, m = exponent_and_fraction(w)
    f = where(k == 0.0, x, m - 1.0)
    return of_positive(w, k * LN2 + log_of_fraction(f))


def wide_tanh(x: Element) -> Element:
    """The hyperbolic tangent of |x| <= 300; the sign of -0 is lost."""
    e = wide_expm1(magnitude(x) * -2.0)
    t = e / (e + 2.0)
    return where(x < 0.0, t, -t)


def erf_near_zero(x: Element) -> Element:
    """erf(x) for |x| <= 1/2."""
    return polynomial(x * x, ERF) * x


def erfc_of_positive(z: Element) -> Element:
    """erfc(z) for 0 <= z <= 10.3."""
    return wide_exp(z * -z) * (polynomial(z, ERFCX_NUMERATOR) / polynomial(z, ERFCX_DENOMINATOR))


def wide_erfinv(x: Element) -> Element:
    """The x of which erf is y, for |y| < 1; infinities at +-1, NaN beyond."""
    w = -wide_log1p(x * -x)
    value = x * (polynomial(w, ERFINV_NUMERATOR) / polynomial(w, ERFINV_DENOMINATOR))
    return where(w < INFINITY, value, x * w)
