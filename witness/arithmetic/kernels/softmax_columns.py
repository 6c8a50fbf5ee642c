"""Compiled softmax where the elements of a row lie apart in memory: many rows side by side, a block at a time.

Operands are (outer, n, inner), and rows run along n. Part p is one block of rows of one outer index.
"""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.functions import decay, log
from witness.arithmetic.kernels.rows import ONE, inlined

BLOCK = np.uint64(64)
"""Rows that are taken together."""

_ZERO, _LEAST, _FIRST = np.float32(0.0), np.float32(-np.inf), np.uint64(0)


@inlined
def halve_columns(x, n, width):  # type: ignore[no-untyped-def]
    """Leaves the halving sums over n rows of `width` numbers in the first row."""
    while n > ONE:
        h = (n + ONE) >> ONE
        tail = h * width
        for i in range((n - h) * width):
            x[i] += x[tail + i]
        n = h


@kernel("void(uint64, uint64, uint64, uint64, boolean, float32[::1], float32[::1])")
def forward(start, stop, n, inner, logarithm, x, out):  # type: ignore[no-untyped-def]
    """Softmax, or its logarithm."""
    blocks = (inner + BLOCK - ONE) // BLOCK
    e, sums = np.empty(n * BLOCK, np.float32), np.empty(n * BLOCK, np.float32)
    top = np.empty(BLOCK, np.float32)
    for p in range(start, stop):
        first = (p % blocks) * BLOCK
        width = min(BLOCK, inner - first)
        base = (p // blocks) * n * inner + first
        for j in range(width):
            top[j] = _LEAST
        for i in range(n):
            at = base + i * inner
            for j in range(width):
                top[j] = max(top[j], x[at + j])  # of a NaN whatever: its row is all NaN
        for j in range(width):
            top[j] += _ZERO
        for i in range(n):
            at, to = base + i * inner, i * width
            for j in range(width):
                e[to + j] = decay(x[at + j] - top[j])
        for i in range(n * width):
            sums[i] = e[i]
        halve_columns(sums, n, width)
        if logarithm:
            for j in range(width):
                sums[j] = log(sums[j])
            for i in range(n):
                at = base + i * inner
                for j in range(width):
                    out[at + j] = (x[at + j] - top[j]) - sums[j]
        else:
            for i in range(n):
                at, to = base + i * inner, i * width
                for j in range(width):
                    out[at + j] = e[to + j] / sums[j]


@kernel("void(uint64, uint64, uint64, uint64, boolean, float32[::1], float32[::1], float32[::1])")
def backward(start, stop, n, inner, logarithm, g, y, out):  # type: ignore[no-untyped-def]
    """The gradient of softmax, or of its logarithm."""
    blocks = (inner + BLOCK - ONE) // BLOCK
    sums = np.empty(n * BLOCK, np.float32)
    for p in range(start, stop):
        first = (p % blocks) * BLOCK
        width = min(BLOCK, inner - first)
        base = (p // blocks) * n * inner + first
        for i in range(n):
            at, to = base + i * inner, i * width
            if logarithm:
                for j in range(width):
                    sums[to + j] = g[at + j]
            else:
                for j in range(width):
                    sums[to + j] = g[at + j] * y[at + j]
        halve_columns(sums, n, width)
        for i in range(n):
            at = base + i * inner
            if logarithm:
                for j in range(width):
                    out[at + j] = g[at + j] - decay(y[at + j]) * sums[j]
            else:
                for j in range(width):
                    out[at + j] = (g[at + j] - sums[j]) * y[at + j]
