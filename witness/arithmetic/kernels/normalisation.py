"""Compiled row normalisation: each row is read once and stays in cache until its results are written."""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.rows import ONE, space, total, total_of_products

BLOCK = np.uint64(256)
"""Columns that are summed together."""

_ONE, _ZERO, _START = np.float32(1.0), np.float32(0.0), np.uint64(0)


@kernel(
    "void(uint64, uint64, uint64, uint64, boolean, float32[::1], float32[::1], float32[::1], float32, float32[::1],"
    " float32[::1], float32[::1])"
)
def forward(start, stop, n, groups, centred, x, weight, bias, eps, out, mean, scale):  # type: ignore[no-untyped-def]
    """Rows of n: `(x - mean) * scale * weight + bias`; row r has part `r % groups` of weight and bias."""
    count = np.float32(n)
    c, buffer = np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at, part = r * n, (r % groups) * n
        m = _ZERO
        if centred:
            m = total(x, at, n, buffer) / count
        for i in range(n):
            c[i] = x[at + i] - m
        s = _ONE / np.sqrt(total_of_products(c, _START, c, _START, n, buffer) / count + eps)
        for i in range(n):
            out[at + i] = c[i] * s * weight[part + i] + bias[part + i]
        mean[r], scale[r] = m, s


@kernel(
    "void(uint64, uint64, uint64, uint64, boolean, float32[::1], float32[::1], float32[::1], float32[::1],"
    " float32[::1], float32[::1])"
)
def backward(start, stop, n, groups, centred, g, x, weight, mean, scale, out):  # type: ignore[no-untyped-def]
    """Gradients of the rows: `(g * w - a - normal * b) * scale`, a and b the means of `g * w` and `g * w * normal`."""
    count = np.float32(n)
    normal, weighted, buffer = np.empty(n, np.float32), np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at, part = r * n, (r % groups) * n
        m, s = mean[r], scale[r]
        for i in range(n):
            normal[i] = (x[at + i] - m) * s
            weighted[i] = g[at + i] * weight[part + i]
        a = _ZERO
        if centred:
            a = total(weighted, _START, n, buffer) / count
        b = total_of_products(weighted, _START, normal, _START, n, buffer) / count
        for i in range(n):
            out[at + i] = (weighted[i] - a - normal[i] * b) * s


@kernel(
    "void(uint64, uint64, uint64, uint64, float32[::1], float32[::1], float32[::1], float32[::1], float32[::1],"
    " float32[::1])"
)
def backward_affine(start, stop, rows, n, g, x, mean, scale, by_weight, by_bias):  # type: ignore[no-untyped-def]
    """Sums over all rows of `g * normal` and of `g`; part p is one block of columns."""
    h = (rows + ONE) >> ONE
    first, second = np.empty(h * BLOCK, np.float32), np.empty(h * BLOCK, np.float32)
    for p in range(start, stop):
        at = p * BLOCK
        width = min(BLOCK, n - at)
        for i in range(h):
            row, to = i * n + at, i * width
            m, s = mean[i], scale[i]
            if i + h < rows:
                other = row + h * n
                other_m, other_s = mean[i + h], scale[i + h]
                for j in range(width):
                    first[to + j] = g[row + j] * ((x[row + j] - m) * s) + g[other + j] * (
                        (x[other + j] - other_m) * other_s
                    )
                    second[to + j] = g[row + j] + g[other + j]
            else:
                for j in range(width):
                    first[to + j] = g[row + j] * ((x[row + j] - m) * s)
                    second[to + j] = g[row + j]
        left = h
        while left > ONE:
            half = (left + ONE) >> ONE
            tail = half * width
            for j in range((left - half) * width):
                first[j] += first[tail + j]
                second[j] += second[tail + j]
            left = half
        by_weight[at : at + width] = first[:width]
        by_bias[at : at + width] = second[:width]
