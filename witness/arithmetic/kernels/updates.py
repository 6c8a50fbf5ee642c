"""Compiled forms of what optimisers do to every parameter: `x + a y`, lerp, addcmul, addcdiv, in place."""

from witness.arithmetic.compiled import kernel


@kernel("void(uint64, uint64, float32[::1], float32[::1], float32)")
def add(start, stop, x, y, alpha):
    """`x += alpha * y`."""
    for i in range(start, stop):
        x[i] = x[i] + y[i] * alpha


@kernel("void(uint64, uint64, float32[::1], float32[::1], float32)")
def lerp_low(start, stop, x, y, weight):
    """`x += (y - x) * weight`, for weights below 1/2."""
    for i in range(start, stop):
        x[i] = x[i] + (y[i] - x[i]) * weight


@kernel("void(uint64, uint64, float32[::1], float32[::1], float32)")
def lerp_high(start, stop, x, y, rest):
    """`x = y - (y - x) * rest`, `rest` being 1 - weight."""
    for i in range(start, stop):
        x[i] = y[i] - (y[i] - x[i]) * rest


@kernel("void(uint64, uint64, float32[::1], float32[::1], float32[::1], float32)")
def addcmul(start, stop, x, y, z, value):
    """`x += (value * y) * z`."""
    for i in range(start, stop):
        x[i] = x[i] + (y[i] * value) * z[i]


@kernel("void(uint64, uint64, float32[::1], float32[::1], float32[::1], float32)")
def addcdiv(start, stop, x, y, z, value):
    """`x += value * (y / z)`."""
    for i in range(start, stop):
        x[i] = x[i] + (y[i] / z[i]) * value
