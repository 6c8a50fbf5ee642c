"""Sine, cosine, tangent and their inverses, from float32 to float32; the angle is reduced rightly whatever its size.

Below 2**28, `x - k pi/2` is taken in float64 with pi/2 in three parts of which two make exact products. Above, the
bits of 2/pi that matter for x are multiplied as integers (Payne and Hanek 1983; glibc's `sinf` does the same). No
float32 comes closer to a multiple of pi/2 than 2**-31, so that 2**-60 is left of the remainder.
"""

from __future__ import annotations

import numpy as np
import torch

from witness.arithmetic.elementary.cores import INFINITY
from witness.arithmetic.elementary.elements import (
    Element,
    bits32,
    bits64,
    f32,
    integer,
    lookup,
    magnitude,
    narrow,
    number64,
    polynomial,
    real,
    root,
    where,
    wide,
    with_sign,
)

LARGE = f32(2.0**28)
TWO_OVER_PI = 0.6366197723675814
HALF_PI_HIGH, HALF_PI_MIDDLE, HALF_PI_LOW = 1.5707963109016418, 1.5893254712295857e-08, 6.123233995736766e-17
SHIFT = 6755399441055744.0  # 1.5 * 2**52: adding it rounds to a whole number, found in the lowest bits
SIN = (1.0, -0.16666666641526906, 0.008333329374126185, -0.0001983933099818885, 2.7182744831547417e-06)
"""sin(r) / r in r**2, for |r| <= pi / 4; relative error below 2**-37."""
COS = (1.0, -0.5, 0.04166666662265291, -0.0013888883738045032, 2.479951589247822e-05, -2.7209893141069165e-07)
"""cos(r) in r**2, for |r| <= pi / 4; absolute error below 2**-43."""
ATAN = (1.0, -0.333333325146053, 0.1999990518665298, -0.14282042070384035, 0.11045093500073286, -0.08478406005232053,
        0.04748274914568613)  # fmt: skip
"""atan(q) / q in q**2, for |q| <= tan(pi / 8); relative error below 2**-35."""
PI, HALF_PI, QUARTER_PI = 3.141592653589793, 1.5707963267948966, 0.7853981633974483
_INVERSE = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041  # the first 192 bits of 2/pi
WORDS = np.array([_INVERSE >> (184 - 8 * j) & 0xFFFFFFFF for j in range(24)], dtype=np.int64)
"""The 32 bits of 2/pi that end with its (8 j + 8)-th."""
UNIT = 3.4061215800865545e-19  # 2**-62 of a quarter turn


def remainder_of_moderate(x: Element) -> tuple[Element, Element]:
    """(k, x - k pi/2) for |x| < 2**28: k as an int64 of which the low bits count, the remainder as a float64."""
    x = wide(x)
    t = x * TWO_OVER_PI + SHIFT
    k = t - SHIFT
    return bits64(t), ((x - k * HALF_PI_HIGH) - k * HALF_PI_MIDDLE) - k * HALF_PI_LOW


def remainder_of_large(x: Element) -> tuple[Element, Element]:
    """(k, x - k pi/2) for finite |x| >= 2**28, by integers: 64 bits of x * 2/pi, the first of which weighs 2."""
    bits = integer(bits32(x)) & 0x7FFFFFFF
    index = (bits >> 26) & 15
    mantissa = ((bits & 0x7FFFFF) | 0x800000) << ((bits >> 23) & 7)
    high = ((mantissa * lookup(WORDS, index)) & 0xFFFFFFFF) << 32
    low = (mantissa * lookup(WORDS, index + 8)) >> 32
    turns = high + low + mantissa * lookup(WORDS, index + 4)
    k = (turns + (1 << 61)) >> 62
    r = real((turns << 2) >> 2) * UNIT
    return where(x < f32(0.0), -k, k), where(x < f32(0.0), -r, r)


def sine_of(k: Element, r: Element) -> Element:
    """sin(k pi/2 + r), as float64."""
    u = r * r
    value = where((k & 1) == 0, polynomial(u, SIN) * r, polynomial(u, COS))
    return number64(bits64(value) ^ ((k & 2) << 62))


def tangent_of(k: Element, r: Element) -> Element:
    """tan(k pi/2 + r), as float64."""
    u = r * r
    s, c = polynomial(u, SIN) * r, polynomial(u, COS)
    even = (k & 1) == 0
    return where(even, s, -c) / where(even, c, s)


def sin_of_moderate(x: Element) -> Element:
    """sin(x) for |x| < 2**28; NaN for infinities."""
    k, r = remainder_of_moderate(x)
    return narrow(sine_of(k, r))


def sin_of_large(x: Element) -> Element:
    """sin(x) for finite |x| >= 2**28."""
    k, r = remainder_of_large(x)
    return narrow(sine_of(k, r))


def cos_of_moderate(x: Element) -> Element:
    """cos(x) for |x| < 2**28; NaN for infinities."""
    k, r = remainder_of_moderate(x)
    return narrow(sine_of(k + 1, r))


def cos_of_large(x: Element) -> Element:
    """cos(x) for finite |x| >= 2**28."""
    k, r = remainder_of_large(x)
    return narrow(sine_of(k + 1, r))


def tan_of_moderate(x: Element) -> Element:
    """tan(x) for |x| < 2**28; NaN for infinities."""
    k, r = remainder_of_moderate(x)
    return narrow(tangent_of(k, r))


def tan_of_large(x: Element) -> Element:
    """tan(x) for finite |x| >= 2**28."""
    k, r = remainder_of_large(x)
    return narrow(tangent_of(k, r))


def is_large(x: Element) -> Element:
    """Whether the angle takes the long way."""
    return (magnitude(x) >= LARGE) & (magnitude(x) < f32(INFINITY))


def sin(x: torch.Tensor) -> torch.Tensor:
    """The sine."""
    return _both(sin_of_moderate, sin_of_large, x)


def cos(x: torch.Tensor) -> torch.Tensor:
    """The cosine."""
    return _both(cos_of_moderate, cos_of_large, x)


def tan(x: torch.Tensor) -> torch.Tensor:
    """The tangent."""
    return _both(tan_of_moderate, tan_of_large, x)


def _both(moderate: Element, large: Element, x: torch.Tensor) -> torch.Tensor:
    value: torch.Tensor = moderate(x)
    far = is_large(x)
    if bool(far.any()):
        value[far] = large(x[far])
    return value


def wide_atan(z: Element) -> Element:
    """atan(z) for z >= 0."""
    steep, middle = z > 2.414213562373095, z > 0.41421356237309503
    numerator = where(steep, -1.0, where(middle, z - 1.0, z))
    q = numerator / where(steep, z, where(middle, z + 1.0, 1.0))
    base = where(steep, HALF_PI, where(middle, QUARTER_PI, 0.0 * q))
    return base + polynomial(q * q, ATAN) * q


def atan(x: Element) -> Element:
    """The angle of slope x, within +-pi/2."""
    return with_sign(narrow(wide_atan(wide(magnitude(x)))), x)


def asin(x: Element) -> Element:
    """`atan(|x| / sqrt((1 - |x|) (1 + |x|)))` with the sign of x."""
    a = wide(magnitude(x))
    return with_sign(narrow(wide_atan(a / root((1.0 - a) * (a + 1.0)))), x)


def acos(x: Element) -> Element:
    """`2 atan(sqrt((1 - x) / (1 + x)))`."""
    x = wide(x)
    return narrow(wide_atan(root((1.0 - x) / (x + 1.0))) * 2.0)


def atan2(y: Element, x: Element) -> Element:
    """The angle of the point (x, y), within +-pi; signed zeros and infinities as C99 has them."""
    a, b = magnitude(wide(y)), magnitude(wide(x))
    slope = where(a == 0.0, 0.0, where(a == b, 1.0, a / b))
    angle = wide_atan(slope)
    angle = where(bits64(wide(x)) < 0, PI - angle, angle)
    return narrow(where((a == a) & (b == b), with_sign(angle, wide(y)), a + b))
