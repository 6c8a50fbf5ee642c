"""Compiled loops over the definitions of `witness.arithmetic.elementary.activations`."""

from witness.arithmetic.compiled import kernel
from witness.arithmetic.elementary import activations
from witness.arithmetic.kernels.elements import scalar
from witness.arithmetic.kernels.functions import UNARY

gelu = scalar(activations.gelu)
gelu_backward = scalar(activations.gelu_backward)
gelu_tanh = scalar(activations.gelu_tanh)
gelu_tanh_backward = scalar(activations.gelu_tanh_backward)
silu = scalar(activations.silu)
silu_backward = scalar(activations.silu_backward)
sigmoid_backward = scalar(activations.sigmoid_backward)
tanh_backward = scalar(activations.tanh_backward)
softplus = scalar(activations.softplus)
softplus_backward = scalar(activations.softplus_backward)

BINARY = "void(uint64, uint64, float32[::1], float32[::1], float32[::1])"


@kernel(UNARY)
def gelus(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = gelu(x)`."""
    for i in range(start, stop):
        out[i] = gelu(x[i])


@kernel(UNARY)
def gelu_tanhs(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = gelu_tanh(x)`."""
    for i in range(start, stop):
        out[i] = gelu_tanh(x[i])


@kernel(UNARY)
def silus(start, stop, x, out):  # type: ignore[no-untyped-def]
    """`out = silu(x)`."""
    for i in range(start, stop):
        out[i] = silu(x[i])


@kernel(BINARY)
def gelu_backwards(start, stop, g, x, out):  # type: ignore[no-untyped-def]
    """`out = gelu_backward(g, x)`."""
    for i in range(start, stop):
        out[i] = gelu_backward(g[i], x[i])


@kernel(BINARY)
def gelu_tanh_backwards(start, stop, g, x, out):  # type: ignore[no-untyped-def]
    """`out = gelu_tanh_backward(g, x)`."""
    for i in range(start, stop):
        out[i] = gelu_tanh_backward(g[i], x[i])


@kernel(BINARY)
def silu_backwards(start, stop, g, x, out):  # type: ignore[no-untyped-def]
    """`out = silu_backward(g, x)`."""
    for i in range(start, stop):
        out[i] = silu_backward(g[i], x[i])


@kernel(BINARY)
def sigmoid_backwards(start, stop, g, y, out):  # type: ignore[no-untyped-def]
    """`out = sigmoid_backward(g, y)`."""
    for i in range(start, stop):
        out[i] = sigmoid_backward(g[i], y[i])


@kernel(BINARY)
def tanh_backwards(start, stop, g, y, out):  # type: ignore[no-untyped-def]
    """`out = tanh_backward(g, y)`."""
    for i in range(start, stop):
        out[i] = tanh_backward(g[i], y[i])


@kernel("void(uint64, uint64, float32[::1], float32, float32, float64, float32[::1])")
def softpluses(start, stop, x, beta, threshold, inverse, out):  # type: ignore[no-untyped-def]
    """`out = softplus(x, beta, threshold, inverse)`."""
    for i in range(start, stop):
        out[i] = softplus(x[i], beta, threshold, inverse)


@kernel("void(uint64, uint64, float32[::1], float32[::1], float32, float32, float32[::1])")
def softplus_backwards(start, stop, g, x, beta, threshold, out):  # type: ignore[no-untyped-def]
    """`out = softplus_backward(g, x, beta, threshold)`."""
    for i in range(start, stop):
        out[i] = softplus_backward(g[i], x[i], beta, threshold)
