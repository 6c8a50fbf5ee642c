"""Compiled passes over rows that share statistics by channel or group: batch and group normalisation.

Row r of n positions has the statistics number `r // per % many` (a channel's where `per` is 1 and `many` the number of
channels, a group's where `per` is the number of channels of one group), and weight and bias number `r % channels`.
"""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.rows import space, total

_START = np.uint64(0)


@kernel("void(uint64, uint64, uint64, uint64, uint64, float32[::1], float32[::1], float32[::1])")
def squares(start, stop, n, per, many, x, mean, out):  # type: ignore[no-untyped-def]
    """Totals of the squared distances from the mean."""
    row, buffer = np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at = r * n
        m = mean[r // per % many]
        for i in range(n):
            c = x[at + i] - m
            row[i] = c * c
        out[r] = total(row, _START, n, buffer)


@kernel(
    "void(uint64, uint64, uint64, uint64, float32[::1], float32[::1], float32[::1], float32[::1], float32[::1],"
    " float32[::1])"
)
def apply(start, stop, n, channels, x, mean, scale, weight, bias, out):  # type: ignore[no-untyped-def]
    """`(x - mean) * scale * weight + bias`, everything by channel."""
    for r in range(start, stop):
        at, c = r * n, r % channels
        m, s, w, b = mean[c], scale[c], weight[c], bias[c]
        for i in range(n):
            out[at + i] = (x[at + i] - m) * s * w + b


@kernel(
    "void(uint64, uint64, uint64, uint64, uint64, float32[::1], float32[::1], float32[::1], float32[::1], float32[::1],"
    " float32[::1])"
)
def gradient_totals(start, stop, n, per, many, g, x, mean, scale, by_weight, by_bias):  # type: ignore[no-untyped-def]
    """Totals of `g * normal` and of `g`."""
    row, buffer = np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at, k = r * n, r // per % many
        m, s = mean[k], scale[k]
        for i in range(n):
            row[i] = g[at + i] * ((x[at + i] - m) * s)
        by_weight[r] = total(row, _START, n, buffer)
        by_bias[r] = total(g, at, n, buffer)


@kernel(
    "void(uint64, uint64, uint64, uint64, float32[::1], float32[::1], float32[::1], float32[::1], float32[::1],"
    " float32[::1], float32[::1], float32[::1])"
)
def backward(start, stop, n, channels, g, x, mean, scale, weight, a, b, out):  # type: ignore[no-untyped-def]
    """`(g - a - normal * b) * scale * weight`, everything by channel."""
    for r in range(start, stop):
        at, c = r * n, r % channels
        m, s, w, first, second = mean[c], scale[c], weight[c], a[c], b[c]
        for i in range(n):
            out[at + i] = (g[at + i] - first - (x[at + i] - m) * s * second) * s * w
