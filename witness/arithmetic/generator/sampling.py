"""From random bits to numbers: every distribution as a function of a key and a position.

Element `i` of a draw of `count` elements uses word `i` of the key's stream (`generator.philox`), or words
`2 i` (low half) and `2 i + 1` (high half) where 64 bits are wanted. Integers and comparisons decide wherever they can;
what needs a logarithm is computed in float64 and rounded once.

| draw | from | exactness |
| --- | --- | --- |
| uniform | 24 bits (float32), 11 (float16), 8 (bfloat16); 53 of 64 (float64), the upper ones | `k / 2^bits` |
| integers below n | 32 bits (n <= 2^31), else 64 | unbiased: biased words are rejected |
| coins | 32 bits | heads if word < floor(p 2^32): less than 2^-32 below p |
| permutation | 64 bits | stable sort of the words: biased by ties only, less than n^2 / 2^65 |
| normal | 32 bits; float64: 53 of 64 | see `witness.arithmetic.generator.quantile` |
| exponential | 32 bits; float64: 52 of 64 | `-log((k + 1/2) / 2^bits) / rate`, within 2 ulp of float64, then rounded |
"""

from __future__ import annotations

import torch

from protocol.errors import UsageError
from witness.arithmetic import compiled
from witness.arithmetic.generator import philox
from witness.arithmetic.generator.quantile import logarithm, normals, offsets, offsets64, quantile
from witness.arithmetic.kernels import sampling as kernels

DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8, torch.float64: 53}
"""Bits of a floating-point type's significand."""

_LOW = (1 << 32) - 1
_SIGN = -(1 << 63)


def uniform(
    key: int, count: int, dtype: torch.dtype, device: torch.device, low: float = 0.0, high: float = 1.0
) -> torch.Tensor:
    """Uniform numbers in [low, high).

    `low + (high - low) * u` in float64, then rounded to `dtype`; a number that rounds to `high` becomes `low`.

    Args:
        key: 64 bits.
        count: how many.
        dtype: one of `DIGITS`.
        device: where.
        low: the least.
        high: above the greatest, unless equal to `low`.

    Returns:
        Shape (count,).
    """
    bits = digits(dtype)
    last, first = (torch.tensor(v, dtype=torch.float64).to(dtype).item() for v in (high, low))
    if bits > 32:
        u = ((_words64(key, count, device) >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
    else:
        w = philox.words(key, count, device)
        if dtype == torch.float32 and compiled.usable(w):
            out = torch.empty(count, dtype=dtype)
            array = w.numpy().view("uint32")
            compiled.run(kernels.uniforms, count, array, low, high - low, first, last, out.numpy(), weight=2)
            return out
        u = ((w >> (32 - bits)) & ((1 << bits) - 1)).to(torch.float64) * 2.0**-bits
    x = rounded(u * (high - low) + low, dtype)
    return torch.where(x >= last, torch.full_like(x, first), x)


def normal(
    key: int, count: int, dtype: torch.dtype, device: torch.device, mean: float = 0.0, std: float = 1.0
) -> torch.Tensor:
    """Normal numbers, shape (count,); in half precision, those of float32 rounded."""
    if digits(dtype) > 32:
        return standard(key, count, dtype, device) * std + mean
    return normals(philox.words(key, count, device), mean, std).to(dtype)


def standard(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Standard normal numbers in float64 from as many bits as `normal` uses for `dtype`, shape (count,)."""
    if digits(dtype) > 32:
        return quantile(offsets64(_words64(key, count, device)))
    return quantile(offsets(philox.words(key, count, device)))


def exponential(key: int, count: int, dtype: torch.dtype, device: torch.device, rate: float = 1.0) -> torch.Tensor:
    """Exponential numbers with mean 1 / rate, shape (count,); never 0 in float32 and float64."""
    x = -logarithm(_open(key, count, dtype, device)) / torch.full((), rate, dtype=torch.float64, device=device)
    return rounded(x, dtype)


def geometric(key: int, count: int, p: float, device: torch.device) -> torch.Tensor:
    """Numbers of trials up to the first success, at least 1: `ceil(log(u) / log(1 - p))` in float64, shape (count,)."""
    u = logarithm(_open(key, count, torch.float64, device))
    if p == 1.0:
        return torch.ones_like(u)
    failure = logarithm(torch.full((), 1.0 - p, dtype=torch.float64, device=device))
    return torch.ceil(u / failure).clamp_(min=1.0)


def cauchy(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Standard Cauchy numbers in float64: the quotient of two normal numbers, of elements `2 i` and `2 i + 1`."""
    z = standard(key, 2 * count, dtype, device)
    return z[0::2] / z[1::2]


def integers(key: int, count: int, low: int, size: int, device: torch.device) -> torch.Tensor:
    """Unbiased integers in [low, low + size).

    Up to 2^31 by Lemire's product (ACM TOMACS 29(1), 2019) of the word with `size`: the high half, unless the low half
    is below `2^32 mod size`. Above, the upper bits of a 64-bit word, as many as `size - 1` has, unless they reach
    `size`. A rejected position draws again with the next attempt.

    Args:
        key: 64 bits.
        count: how many.
        low: the least.
        size: how many values, 1 to 2^64.
        device: where.

    Returns:
        int64 of shape (count,).
    """
    value, rejected = _candidates(philox.words(key, (1 if size <= 1 << 31 else 2) * count, device), size)
    attempt = 0
    if rejected is not None:
        pending = rejected.nonzero()[:, 0]
        while len(pending):
            attempt += 1
            again, rejected = _candidates(_further(key, pending, size, attempt), size)
            value[pending] = again
            pending = pending[rejected]
    if size > 1 << 63:  # as 64-bit patterns the values go beyond int64; `low` brings them back
        return (value ^ _SIGN) + (low - _SIGN)
    return value + low if low else value


def _further(key: int, positions: torch.Tensor, size: int, attempt: int) -> torch.Tensor:
    if size <= 1 << 31:
        return philox.words_at(key, positions, attempt)
    both = torch.stack((2 * positions, 2 * positions + 1), -1)
    return philox.words_at(key, both, attempt).reshape(-1)


def _candidates(words: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What words stand for, and which of them are rejected (None: none can be)."""
    if size <= 1 << 31:
        product = philox.unsigned(words) * size
        threshold = (1 << 32) % size
        return product >> 32, ((product & _LOW) < threshold if threshold else None)
    bits = (size - 1).bit_length()
    wide = philox.pairs(words)
    if bits == 64:
        return wide, ((wide ^ _SIGN) >= size + _SIGN if size < 1 << 64 else None)
    value = (wide >> (64 - bits)) & ((1 << bits) - 1)
    return value, (value >= size if size < 1 << bits else None)


def permutation(key: int, count: int, device: torch.device) -> torch.Tensor:
    """A permutation of 0 to `count` - 1 (int64): the order of the 64-bit words as signed integers, ties by position."""
    return torch.sort(_words64(key, count, device), stable=True).indices


def coins(key: int, count: int, p: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Heads (true) with probability `p`.

    Args:
        key: 64 bits.
        count: how many.
        p: a number, or float64 of shape (count,).
        device: where.

    Returns:
        bool of shape (count,): word < floor(p * 2^32).
    """
    w = philox.unsigned(philox.words(key, count, device))
    limit = threshold(p) if isinstance(p, float) else torch.floor(p * 2.0**32).to(torch.int64)
    return w < limit


def threshold(p: float) -> int:
    """`floor(p * 2^32)`: exact, since the product only moves the exponent."""
    return int(p * 2.0**32)


def choices(key: int, weights: torch.Tensor, count: int) -> torch.Tensor:
    """Draws with replacement, in proportion to weights.

    Each row's weights become integers: scaled by a power of two so that the greatest has as many bits as the sum can
    bear in 62, and cut off. An integer below their sum, unbiased to 2^-64 of it, picks the category in whose stretch of
    the running sum it lies. A weight of 0 is never picked; one below 2^-36 of the greatest may be lost.

    Args:
        key: 64 bits.
        weights: float64 of shape (rows, categories), finite, not negative, each row with a positive number.
        count: draws from each row.

    Returns:
        int64 of shape (rows, count).
    """
    rows, n = weights.shape
    weights = torch.where(weights.amax(1, keepdim=True) < 2.0**-960, weights * 2.0**64, weights)  # none subnormal
    bits = 62 - n.bit_length()
    exponent = ((weights.amax(1, keepdim=True).view(torch.int64) >> 52) & 0x7FF).clamp(min=1) - 1022
    half = exponent // 2  # 2^-exponent itself may be no float64
    scaled = weights * _power(-half) * _power(half - exponent) * float(1 << bits)
    running = torch.cumsum(torch.floor(scaled).to(torch.int64), 1)
    u = _words64(key, rows * count, weights.device).reshape(rows, count)
    return torch.searchsorted(running, _share(u, running[:, -1:]), right=True)


def _share(words: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """`floor(word * sum / 2^64)` of unsigned 64-bit words and sums below 2^62, in products that fit int64."""
    w1, w0 = (words >> 32) & _LOW, words & _LOW
    s1, s0 = sums >> 31, sums & ((1 << 31) - 1)
    # word * sum = w1 s1 2^63 + (w1 s0 2^32 + w0 s1 2^31) + w0 s0
    low = (w0 * s0) >> 31  # in units of 2^31
    middle = 2 * (w1 * s0 & _LOW) + (w0 * s1 & _LOW) + low  # carries of the units that stay below 2^63
    units = 2 * (w1 * s0 >> 32) + (w0 * s1 >> 32) + (middle >> 32)  # in units of 2^63
    return (w1 * s1 + units) >> 1


def race(key: int, weights: torch.Tensor, count: int) -> torch.Tensor:
    """Draws without replacement: the largest of `weight / exponential`, in order (Efraimidis and Spirakis, 2006).

    Args:
        key: 64 bits.
        weights: float64 of shape (rows, categories).
        count: draws from each row.

    Returns:
        int64 of shape (rows, count).
    """
    e = exponential(key, weights.numel(), torch.float64, weights.device).reshape(weights.shape)
    return torch.sort(weights / e, dim=1, descending=True, stable=True).indices[:, :count]


def digits(dtype: torch.dtype) -> int:
    """`DIGITS` of a type.

    Raises:
        UsageError: `exact-refused`, for a type that has none.
    """
    if dtype not in DIGITS:
        raise UsageError("exact-refused", f"random numbers of type {dtype} have no exact definition: draw float32")
    return DIGITS[dtype]


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 to `dtype`, by way of float32 where that is narrower: torch's own conversion is, on some devices."""
    return x.to(torch.float32).to(dtype) if dtype.itemsize < 4 else x.to(dtype)


def _open(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`(k + 1/2) / 2^bits` in float64: inside (0, 1)."""
    if digits(dtype) > 32:
        k = (_words64(key, count, device) >> 12) & ((1 << 52) - 1)
        return (k.to(torch.float64) + 0.5) * 2.0**-52
    return (philox.unsigned(philox.words(key, count, device)).to(torch.float64) + 0.5) * 2.0**-32


def _words64(key: int, count: int, device: torch.device) -> torch.Tensor:
    return philox.pairs(philox.words(key, 2 * count, device))


def _power(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent as float64, from its bits."""
    return ((exponent + 1023) << 52).view(torch.float64)
