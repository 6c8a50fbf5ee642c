"""Compiled loops over the definitions of `elementary.functions`, and those definitions as scalar functions.

The scalar functions (`exp`, `decay`, `sigmoid`, ...) are for the kernels of other modules, which put them into their
own loops: float32 in, float32 out, no branches.
"""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.elementary import functions, powers, trigonometry
from witness.arithmetic.kernels.elements import scalar

exp = scalar(functions.exp)
decay = scalar(functions.decay)
sigmoid = scalar(functions.sigmoid)
log = scalar(functions.log)
log1p = scalar(functions.log1p)
tanh = scalar(functions.tanh)
erf = scalar(functions.erf)
sin_of_moderate = scalar(trigonometry.sin_of_moderate)
sin_of_large = scalar(trigonometry.sin_of_large)
cos_of_moderate = scalar(trigonometry.cos_of_moderate)
cos_of_large = scalar(trigonometry.cos_of_large)
is_large = scalar(trigonometry.is_large)
pow_ = scalar(powers.pow_)
rsqrt = scalar(powers.rsqrt)

UNARY = "void(uint64, uint64, float32[::1], float32[::1])"


@kernel(UNARY)
def exps(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = exp(x)`."""
    for i in range(start, stop):
        out[i] = exp(x[i])


@kernel(UNARY)
def logs(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = log(x)`."""
    for i in range(start, stop):
        out[i] = log(x[i])


@kernel(UNARY)
def log1ps(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = log1p(x)`."""
    for i in range(start, stop):
        out[i] = log1p(x[i])


@kernel(UNARY)
def tanhs(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = tanh(x)`."""
    for i in range(start, stop):
        out[i] = tanh(x[i])


@kernel(UNARY)
def sigmoids(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = sigmoid(x)`."""
    for i in range(start, stop):
        out[i] = sigmoid(x[i])


@kernel(UNARY)
def erfs(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = erf(x)`."""
    for i in range(start, stop):
        out[i] = erf(x[i])


@kernel(UNARY)
def sins(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = sin(x)`: all as if moderate, then the large ones again."""
    large = 0
    for i in range(start, stop):
        out[i] = sin_of_moderate(x[i])
        large += is_large(x[i])
    if large:
        for i in range(start, stop):
            if is_large(x[i]):
                out[i] = sin_of_large(x[i])


@kernel(UNARY)
def coss(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = cos(x)`: all as if moderate, then the large ones again."""
    large = 0
    for i in range(start, stop):
        out[i] = cos_of_moderate(x[i])
        large += is_large(x[i])
    if large:
        for i in range(start, stop):
            if is_large(x[i]):
                out[i] = cos_of_large(x[i])


@kernel(UNARY)
def roots(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = sqrt(x)`."""
    for i in range(start, stop):
        out[i] = np.sqrt(x[i])


@kernel(UNARY)
def inverse_roots(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = rsqrt(x)`."""
    for i in range(start, stop):
        out[i] = rsqrt(x[i])


@kernel("void(uint64, uint64, float32[::1], float64, float32[::1])")
def pows(start, stop, x, exponent, out):  # type: ignore[no-untyped-def]
    """`out = x ** exponent`."""
    for i in range(start, stop):
        out[i] = pow_(x[i], exponent)
