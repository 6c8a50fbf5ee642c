"""The quantile function of the normal distribution in float64, made of single IEEE operations.

Normal numbers are drawn by inverting the distribution function: one uniform number in, one normal number out, so that
element `i` of a tensor is a function of its own random bits. (Box and Muller's method needs sin and cos, and pairs.)

The approximation is Wichura's PPND16 (algorithm AS 241, Applied Statistics 37(3), 1988). The logarithm in its tails is
fdlibm's `e_log.c`. Every operation below rounds once, in the order in which it stands.
"""

from __future__ import annotations

import torch

from witness.arithmetic import compiled
from witness.arithmetic.elementary.elements import root
from witness.arithmetic.kernels import quantile as kernels

CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
NEAR = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip
"""Numerator and denominator, highest power first, of the three pieces of AS 241."""

LOG = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
    2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01, 0.0,
)  # fmt: skip
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


def quantile(q: torch.Tensor) -> torch.Tensor:
    """The normal quantile of 1/2 + q.

    The largest error found by search is 5.9 ulp of float64 (300 000 arguments over all magnitudes of both tails and the
    centre, against 40 digits).

    Args:
        q: float64, |q| < 1/2, and then at least 2^-54 away from it.

    Returns:
        float64, odd in `q`, `|result| < 8.3`.
    """
    if compiled.usable(q):
        out = torch.empty_like(q)
        compiled.run(kernels.quantiles, q.numel(), q.reshape(-1).numpy(), out.reshape(-1).numpy(), weight=4)
        return out
    centre = _ratio(CENTRE, 0.180625 - q * q, q)
    distance = root(-logarithm(0.5 - q.abs()))
    tail = torch.where(distance <= 5.0, _ratio(NEAR, distance - 1.6), _ratio(FAR, distance - 5.0))
    return torch.where(q.abs() <= 0.425, centre, torch.where(q < 0, -tail, tail))


def normals(words: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    """Normal numbers in float32 from 32-bit words.

    A word, read as a signed integer `s`, stands for the probability `1/2 + (s + 1/2) / 2^32`; the result is
    `quantile * std + mean`, two roundings in float64 and one to float32. Without `std` and `mean` it is the float32
    nearest to the quantile but for one word in 10^7, where it is its neighbour; `|result| <= 6.34`.

    Args:
        words: int32, one dimension.
        mean: the mean.
        std: the standard deviation.

    Returns:
        float32, of the shape of `words`.
    """
    if compiled.usable(words):
        out = torch.empty(words.shape, dtype=torch.float32)
        compiled.run(kernels.normals, words.numel(), words.numpy(), mean, std, out.numpy(), weight=4)
        return out
    z = quantile(offsets(words))
    return (z * std + mean).to(torch.float32)


def offsets(words: torch.Tensor) -> torch.Tensor:
    """`q = (s + 1/2) / 2^32` of 32-bit words (int32) read as signed integers: exact in float64, odd, never 0."""
    return (words.to(torch.float64) + 0.5) * 2.0**-32


def offsets64(words: torch.Tensor) -> torch.Tensor:
    """`q = (s + 1/2) / 2^53` of the upper 53 bits of 64-bit words (int64), read as a signed integer `s`: exact."""
    return ((words >> 11).to(torch.float64) + 0.5) * 2.0**-53


def logarithm(x: torch.Tensor) -> torch.Tensor:
    """The natural logarithm, within 1 ulp of float64.

    Args:
        x: float64, positive and normal.

    Returns:
        float64.
    """
    if compiled.usable(x):
        out = torch.empty_like(x)
        compiled.run(kernels.logarithms, x.numel(), x.reshape(-1).numpy(), out.reshape(-1).numpy(), weight=2)
        return out
    bits = x.contiguous().view(torch.int64)
    m = ((bits & 0xFFFFFFFFFFFFF) | 0x3FF0000000000000).view(torch.float64)
    big = m > 1.4142135623730951
    f = torch.where(big, m * 0.5, m) - 1.0
    k = ((bits >> 52) - 1023).to(torch.float64) + big.to(torch.float64)
    s = f / (f + 2.0)
    z = s * s
    r = _horner(LOG, z)
    h = f * f * 0.5
    return k * LN2_HIGH - ((h - (s * (h + r) + k * LN2_LOW)) - f)


def _horner(coefficients: tuple[float, ...], x: torch.Tensor) -> torch.Tensor:
    """The polynomial at `x`, highest power first; a product and a sum for each further coefficient."""
    first, second, *rest = coefficients
    y = x * first + second
    for c in rest:
        y = y * x
        y = y + c
    return y


def _ratio(
    piece: tuple[tuple[float, ...], tuple[float, ...]], r: torch.Tensor, factor: torch.Tensor | None = None
) -> torch.Tensor:
    """`factor * numerator / denominator` at `r`."""
    numerator = _horner(piece[0], r)
    return (numerator if factor is None else factor * numerator) / _horner(piece[1], r)
