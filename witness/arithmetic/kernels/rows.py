"""What compiled kernels do with one row: sum it, find its largest element. Compiled into the kernels that use it.

Rows are given as an array and the index at which they begin. All counts and indices are `uint64`: with signed ones
numba checks each for being negative, and a slice of an array would be counted as a reference, atomically, each time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from witness.arithmetic import compiled

_0, _1, _2, _3, _4, _5, _6, _7, _8 = (np.uint64(i) for i in range(9))
_16, _128 = np.uint64(16), np.uint64(128)
ONE = _1
ROOM = np.uint64(16)
"""How much longer than half a row a buffer has to be: the last sums read beyond what they use."""
ABSENT = np.float32(-0.0)
"""What may be added to any number, either zero included, without changing it."""


def inlined(function: Callable[..., Any]) -> Any:
    """Makes a function one that kernels can call; it has no compiled form of its own."""
    if not compiled.on():
        return function
    return compiled.numba.njit(**compiled.OPTIONS)(function)


@inlined
def space(n):  # type: ignore[no-untyped-def]
    """A buffer for sums of rows of n."""
    return np.zeros((n >> _1) + ROOM, np.float32)


@inlined
def _last(a, b, c, d, e, f, g, h, n):  # type: ignore[no-untyped-def]
    """The sum of the first n of eight numbers, by halving."""
    if n == _8:
        return ((a + e) + (c + g)) + ((b + f) + (d + h))
    if n == _7:
        return ((a + e) + (c + g)) + ((b + f) + d)
    if n == _6:
        return ((a + d) + (c + f)) + (b + e)
    if n == _5:
        return ((a + d) + c) + (b + e)
    if n == _4:
        return (a + c) + (b + d)
    if n == _3:
        return (a + c) + b
    if n == _2:
        return a + b
    return a


@inlined
def halve(x, n):  # type: ignore[no-untyped-def]
    """The sum of the first n elements of a buffer by halving, in place."""
    while n > _16:
        h = (n + _1) >> _1
        for i in range(n - h):
            x[i] += x[h + i]
        n = h
    if n > _8:
        h = (n + _1) >> _1
        k = n - h
        return _last(
            x[_0] + x[h],
            x[_1] + x[h + _1],
            x[_2] + x[h + _2],
            x[_3] + x[h + _3],
            x[_4] + (x[h + _4] if _4 < k else ABSENT),
            x[_5] + (x[h + _5] if _5 < k else ABSENT),
            x[_6] + (x[h + _6] if _6 < k else ABSENT),
            x[_7] + (x[h + _7] if _7 < k else ABSENT),
            h,
        )
    return _last(x[_0], x[_1], x[_2], x[_3], x[_4], x[_5], x[_6], x[_7], n)


@inlined
def total(x, at, n, buffer):  # type: ignore[no-untyped-def]
    """The sum of the row of n that begins at `at`, by halving; the buffer is from `space(n)`."""
    if n & _7 == _0 and n >= _128:  # three levels in one pass
        q = n >> _3
        b = at + q
        c = b + q
        d = c + q
        e = d + q
        f = e + q
        g = f + q
        h = g + q
        for i in range(q):
            buffer[i] = ((x[at + i] + x[e + i]) + (x[c + i] + x[g + i])) + (
                (x[b + i] + x[f + i]) + (x[d + i] + x[h + i])
            )
        return halve(buffer, q)
    h = (n + _1) >> _1
    for i in range(n - h):
        buffer[i] = x[at + i] + x[at + h + i]
    if n - h < h:
        buffer[h - _1] = x[at + h - _1]
    return halve(buffer, h)


@inlined
def total_of_products(x, at, y, begin, n, buffer):  # type: ignore[no-untyped-def]
    """The sum of `x[at + i] * y[begin + i]` over a row of n, by halving; each product rounds first."""
    h = (n + _1) >> _1
    for i in range(n - h):
        buffer[i] = x[at + i] * y[begin + i] + x[at + h + i] * y[begin + h + i]
    if n - h < h:
        buffer[h - _1] = x[at + h - _1] * y[begin + h - _1]
    return halve(buffer, h)


@inlined
def largest(bits, at, n):  # type: ignore[no-untyped-def]
    """The pattern of the largest float32 of a row that is given as patterns; NaN may be passed over.

    The pattern's order is that of the numbers once the magnitude bits of negative ones are flipped, and the maximum of
    integers, unlike that of floats, may be taken in any order without changing it.
    """
    most = np.int32(-0x80000000)
    for i in range(n):
        most = max(most, bits[at + i] ^ ((bits[at + i] >> np.int32(31)) & np.int32(0x7FFFFFFF)))
    return most ^ ((most >> np.int32(31)) & np.int32(0x7FFFFFFF))
