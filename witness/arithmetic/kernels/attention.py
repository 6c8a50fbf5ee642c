"""Compiled attention weights: scale, mask and softmax of one row of scores while it stays in cache, and back."""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.elements import number32
from witness.arithmetic.kernels.functions import decay
from witness.arithmetic.kernels.rows import ONE, largest, space, total

_ZERO, _NOTHING, _START = np.float32(0.0), np.float32(-np.inf), np.uint64(0)


@kernel(
    "void(uint64, uint64, uint64, uint64, boolean, float32, float32[::1], boolean, boolean, int64[::1], boolean[::1],"
    " float32[::1])"
)
def weights(start, stop, n, queries, causal, scale, scores, chosen, added, mask_row, allowed, bias):  # type: ignore[no-untyped-def]
    """Scores become weights, in place.

    Row r is of query `r % queries`, which, if `causal`, sees as many keys as its number and one more. Its row of the
    mask is `mask_row[r]`, in `allowed` where `chosen`, in `bias` where `added`.
    """
    row, buffer = np.empty(n, np.float32), space(n)
    bits = row.view(np.int32)
    for r in range(start, stop):
        at, seen = r * n, n
        if causal:
            seen = min(r % queries + ONE, n)
        if chosen:
            m = np.uint64(mask_row[r]) * n
            for i in range(seen):
                row[i] = scores[at + i] * scale if allowed[m + i] else _NOTHING
        elif added:
            m = np.uint64(mask_row[r]) * n
            for i in range(seen):
                row[i] = scores[at + i] * scale + bias[m + i]
        else:
            for i in range(seen):
                row[i] = scores[at + i] * scale
        top = number32(largest(bits, _START, seen)) + _ZERO
        if top == _NOTHING:  # nothing to attend to, unless a NaN was passed over
            found = False
            for i in range(seen):
                found = found or row[i] != row[i]
            if not found:
                scores[at : at + n] = _ZERO
                continue
        for i in range(seen):
            row[i] = decay(row[i] - top)
        for i in range(seen, n):
            row[i] = _ZERO
        s = total(row, _START, n, buffer)
        for i in range(seen):
            scores[at + i] = row[i] / s
        for i in range(seen, n):
            scores[at + i] = _ZERO


@kernel(
    "void(uint64, uint64, uint64, uint64, boolean, float32, boolean, float32, boolean[::1], float32[::1], float32[::1])"
)
def backward(start, stop, n, queries, causal, scale, dropped, factor, kept, y, g):  # type: ignore[no-untyped-def]
    """The gradient g of (dropped) weights y becomes that of the scores, in place."""
    row, product, buffer = np.empty(n, np.float32), np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at, seen = r * n, n
        if causal:
            seen = min(r % queries + ONE, n)
        if dropped:
            for i in range(seen):
                row[i] = g[at + i] * (factor if kept[at + i] else _ZERO)
        else:
            for i in range(seen):
                row[i] = g[at + i]
        for i in range(seen):
            product[i] = row[i] * y[at + i]
        for i in range(seen, n):
            product[i] = _ZERO
        s = total(product, _START, n, buffer)
        for i in range(seen):
            g[at + i] = (row[i] - s) * y[at + i] * scale
        for i in range(seen, n):
            g[at + i] = _ZERO
