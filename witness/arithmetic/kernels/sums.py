"""Compiled halving sums: of rows, and of columns in blocks."""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.rows import space, total

BLOCK = 256
"""Columns that are summed together."""


@kernel("void(uint64, uint64, uint64, float32[::1], float32[::1])")
def rows(start, stop, n, x, out):
    """`out[r] = total(x[r * n : (r + 1) * n])` for r in [start, stop)."""
    buffer = space(n)
    for r in range(start, stop):
        out[r] = total(x, r * n, n, buffer)


@kernel("void(uint64, uint64, uint64, uint64, float32[::1], float32[::1])")
def columns(start, stop, n, inner, x, out):
    """Sums the middle dimension of x (outer, n, inner); part p is one block of columns of one outer index."""
    blocks = (inner + BLOCK - 1) // BLOCK
    h = (n + 1) // 2
    buffer = np.empty((h, BLOCK), np.float32)
    for p in range(start, stop):
        o = p // blocks
        c = (p % blocks) * BLOCK
        width = min(BLOCK, inner - c)
        base = o * n * inner + c
        for i in range(h):
            row = base + i * inner
            if h + i < n:
                other = base + (h + i) * inner
                for j in range(width):
                    buffer[i, j] = x[row + j] + x[other + j]
            else:
                for j in range(width):
                    buffer[i, j] = x[row + j]
        m = h
        while m > 1:
            half = (m + 1) // 2
            for i in range(m - half):
                for j in range(width):
                    buffer[i, j] = buffer[i, j] + buffer[half + i, j]
            m = half
        for j in range(width):
            out[o * inner + c + j] = buffer[0, j]
