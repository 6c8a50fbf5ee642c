"""Compiled attention weights: scale, mask and softmax of one row of scores while it stays in cache, and back."""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.elements import number32
from witness.arithmetic.kernels.functions import decay
from witness.arithmetic.kernels.rows import ONE, inlined, largest, space, total

_ZERO, _NOTHING, _START = np.float32(0.0), np.float32(-np.inf), np.uint64(0)
_SHORT = np.uint64(16)


@inlined
def wide_enough(seen, n):  # type: ignore[no-untyped-def]
    """The least n of a halving tree whose upper levels only add zeros, when all but the first `seen` elements are 0."""
    while n > _SHORT and seen <= (n + ONE) >> ONE:
        n = (n + ONE) >> ONE
    return n


@inlined
def numbered(n):  # type: ignore[no-untyped-def]
    """0, 1, ... in 32 bits: comparing these with a number is vector code, comparing the index of a loop is not."""
    places = np.empty(n, np.int32)
    for i in range(n):
        places[i] = np.int32(i)
    return places


@kernel(
    "void(uint64, uint64, uint64, uint64, boolean, float32, float32[::1], boolean, boolean, int64[::1], boolean[::1],"
    " float32[::1])"
)
def weights(start, stop, n, queries, causal, scale, scores, chosen, added, mask_row, allowed, bias):  # type: ignore[no-untyped-def]
    """Scores become weights, in place.

    Row r is of query `r % queries`, which, if `causal`, sees as many keys as its number and one more. Its row of the
    mask is `mask_row[r]`, in `allowed` where `chosen`, in `bias` where `added`.
    """
    row, buffer, places = np.empty(n, np.float32), space(n), numbered(n)
    bits = row.view(np.int32)
    for r in range(start, stop):
        at, seen, width = r * n, n, n
        if causal:
            seen = min(r % queries + ONE, n)
            width = wide_enough(seen, n)
        last = np.int32(seen)
        if causal:
            first = scores[at] * scale
            for i in range(width):  # in unseen places no larger one, and no exponential that underflows: that is slow
                x = scores[at + i] * scale
                row[i] = x if places[i] < last else first
        elif chosen:
            m = np.uint64(mask_row[r]) * n
            for i in range(n):
                row[i] = scores[at + i] * scale if allowed[m + i] else _NOTHING
        elif added:
            m = np.uint64(mask_row[r]) * n
            for i in range(n):
                row[i] = scores[at + i] * scale + bias[m + i]
        else:
            for i in range(n):
                row[i] = scores[at + i] * scale
        top = number32(largest(bits, _START, width)) + _ZERO
        if top == _NOTHING:  # nothing to attend to, unless a NaN was passed over
            found = False
            for i in range(seen):
                found = found or row[i] != row[i]
            if not found:
                for i in range(n):
                    scores[at + i] = _ZERO
                continue
        for i in range(width):
            x = row[i] - top
            e = decay(_ZERO if x == _NOTHING else x)
            row[i] = _ZERO if x == _NOTHING or places[i] >= last else e
        s = total(row, _START, width, buffer)
        for i in range(width):
            y = row[i] / s
            scores[at + i] = y if places[i] < last else _ZERO
        for i in range(width, n):
            scores[at + i] = _ZERO


@kernel(
    "void(uint64, uint64, uint64, uint64, boolean, float32, boolean, float32, boolean[::1], float32[::1], float32[::1])"
)
def backward(start, stop, n, queries, causal, scale, dropped, factor, kept, y, g):  # type: ignore[no-untyped-def]
    """The gradient g of (dropped) weights y becomes that of the scores, in place."""
    row, product, buffer = np.empty(n, np.float32), np.empty(n, np.float32), space(n)
    places = numbered(n)
    for r in range(start, stop):
        at, seen, width = r * n, n, n
        if causal:
            seen = min(r % queries + ONE, n)
            width = wide_enough(seen, n)
        last = np.int32(seen)
        if dropped:
            for i in range(width):
                row[i] = g[at + i] * (factor if kept[at + i] else _ZERO)
        else:
            for i in range(width):
                row[i] = g[at + i]
        for i in range(width):
            x = row[i] * y[at + i]
            product[i] = x if places[i] < last else _ZERO
        s = total(product, _START, width, buffer)
        if width < n:
            s = s + _ZERO  # what the zeros would have made of -0
        for i in range(width):
            x = (row[i] - s) * y[at + i] * scale
            g[at + i] = x if places[i] < last else _ZERO
        for i in range(width, n):
            g[at + i] = _ZERO
