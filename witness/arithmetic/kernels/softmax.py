"""Compiled softmax and its kin: the exponentials of a row are computed once and stay in cache."""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.elements import number32
from witness.arithmetic.kernels.functions import decay, log
from witness.arithmetic.kernels.rows import ONE, largest, space, total, total_of_products

_ZERO = np.float32(0.0)
_START = np.uint64(0)


@kernel("void(uint64, uint64, uint64, float32[::1], float32[::1])")
def forward(start, stop, n, x, out):  # type: ignore[no-untyped-def]
    """Rows of n: `e / total(e)` with `e = exp(x - max)`."""
    bits = x.view(np.int32)
    e, buffer = np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at = r * n
        m = number32(largest(bits, at, n)) + _ZERO
        for i in range(n):
            e[i] = decay(x[at + i] - m)
        s = total(e, _START, n, buffer)
        for i in range(n):
            out[at + i] = e[i] / s


@kernel("void(uint64, uint64, uint64, float32[::1], float32[::1])")
def log_forward(start, stop, n, x, out):  # type: ignore[no-untyped-def]
    """Rows of n: `(x - max) - log(total(exp(x - max)))`."""
    bits = x.view(np.int32)
    e, buffer = np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at = r * n
        m = number32(largest(bits, at, n)) + _ZERO
        for i in range(n):
            e[i] = decay(x[at + i] - m)
        s = log(total(e, _START, n, buffer))
        for i in range(n):
            out[at + i] = (x[at + i] - m) - s


@kernel("void(uint64, uint64, uint64, float32[::1], float32[::1], float32[::1])")
def backward(start, stop, n, g, y, out):  # type: ignore[no-untyped-def]
    """Rows of n: `(g - total(g * y)) * y`."""
    buffer = space(n)
    for r in range(start, stop):
        at = r * n
        s = total_of_products(g, at, y, at, n, buffer)
        for i in range(n):
            out[at + i] = (g[at + i] - s) * y[at + i]


@kernel("void(uint64, uint64, uint64, float32[::1], float32[::1], float32[::1])")
def log_backward(start, stop, n, g, y, out):  # type: ignore[no-untyped-def]
    """Rows of n: `g - exp(y) * total(g)`."""
    buffer = space(n)
    for r in range(start, stop):
        at = r * n
        s = total(g, at, n, buffer)
        for i in range(n):
            out[at + i] = g[at + i] - decay(y[at + i]) * s


@kernel(
    "void(uint64, uint64, uint64, float32[::1], int64[::1], float32[::1], float32[::1], float32[::1], float32[::1])"
)
def picked(start, stop, n, x, target, largest_of, log_of, weights, out):  # type: ignore[no-untyped-def]
    """`-(y * weight)` for the element y of each row's log_softmax that is its target, and what made y of x."""
    bits = x.view(np.int32)
    e, buffer = np.empty(n, np.float32), space(n)
    for r in range(start, stop):
        at = r * n
        m = number32(largest(bits, at, n)) + _ZERO
        for i in range(n):
            e[i] = decay(x[at + i] - m)
        s = log(total(e, _START, n, buffer))
        largest_of[r], log_of[r] = m, s
        out[r] = -(((x[at + np.uint64(target[r])] - m) - s) * weights[r])


@kernel(
    "void(uint64, uint64, uint64, float32[::1], int64[::1], float32[::1], float32[::1], float32[::1], float32[::1])"
)
def picked_backward(start, stop, n, x, target, largest_of, log_of, shares, out):  # type: ignore[no-untyped-def]
    """`log_backward` of a gradient that is `shares[r]` at the target of row r and 0 elsewhere."""
    for r in range(start, stop):
        at = r * n
        m, s, share = largest_of[r], log_of[r], shares[r]
        whole = share if n == ONE else share + _ZERO
        for i in range(n):
            out[at + i] = _ZERO - decay((x[at + i] - m) - s) * whole
        here = at + np.uint64(target[r])
        out[here] = share - decay((x[here] - m) - s) * whole
