"""Compiled Householder reflections: columns in blocks whose halving sums stay in cache."""

import numpy as np

from witness.arithmetic.compiled import kernel

BLOCK = 32
"""Columns that are reflected together."""


@kernel("void(int64, int64, float64[:, ::1])")
def _halve(n, width, p):  # type: ignore[no-untyped-def]
    """Sums the first `n` rows into the first one, in halving order."""
    while n > 1:
        half = (n + 1) // 2
        for i in range(n - half):
            for c in range(width):
                p[i, c] += p[half + i, c]
        n = half


@kernel("void(int64, float64[::1], float64, float64[:, ::1], float64[:, ::1], int64)")
def _reflect(row, v, t, w, p, first):  # type: ignore[no-untyped-def]
    """`w -= (t v) (v^T w)` in rows from `row` and columns from `first`; `p` is room to work in."""
    n = w.shape[0] - row
    for base in range(first, w.shape[1], BLOCK):
        width = min(BLOCK, w.shape[1] - base)
        for i in range(n):
            for c in range(width):
                p[i, c] = v[row + i] * w[row + i, base + c]
        _halve(n, width, p)
        for i in range(n):
            scaled = t * v[row + i]
            for c in range(width):
                w[row + i, base + c] -= scaled * p[0, c]


@kernel("void(int64, int64, float64[:, :, ::1], float64[:, :, ::1])")
def factor(start, stop, a, q):  # type: ignore[no-untyped-def]
    """Turns matrix i of `a` into R and of `q` (zeros with a unit diagonal) into Q, for i in [start, stop)."""
    m = a.shape[1]
    steps = min(m - 1, a.shape[2])
    p = np.empty((m, BLOCK), np.float64)
    v = np.zeros((steps, m), np.float64)
    t = np.zeros(steps, np.float64)
    for i in range(start, stop):
        for j in range(steps):
            for r in range(j, m):
                v[j, r] = a[i, r, j]
                p[r - j, 0] = v[j, r] * v[j, r]
            _halve(m - j, 1, p)
            norm = np.sqrt(p[0, 0])
            alpha = v[j, j]
            signed = np.copysign(norm, alpha)
            v[j, j] = alpha + signed
            t[j] = 0.0 if norm == 0.0 else 1.0 / (norm * (norm + abs(alpha)))
            _reflect(j, v[j], t[j], a[i], p, j + 1)
            a[i, j, j] = -signed
            for r in range(j + 1, m):
                a[i, r, j] = 0.0
        for j in range(steps - 1, -1, -1):
            _reflect(j, v[j], t[j], q[i], p, j)
