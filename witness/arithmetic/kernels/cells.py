"""Compiled loops over the definitions of `witness.arithmetic.layers.cells`: one step of all rows.

Arrays are flat. Of each row `i` and `s` hold the gates one after the other, `n` numbers each, `kept` what the way back
needs, `carried` the state that a step reads besides its products.
"""

import numpy as np

from witness.arithmetic.compiled import kernel
from witness.arithmetic.kernels.elements import scalar
from witness.arithmetic.kernels.functions import tanh
from witness.arithmetic.layers import cells

tanh_step = scalar(cells.tanh_step)
tanh_step_backward = scalar(cells.tanh_step_backward)
gate = scalar(cells.gate)
gru_candidate = scalar(cells.gru_candidate)
gru_state = scalar(cells.gru_state)
gru_step_backward = scalar(cells.gru_step_backward)
lstm_cell = scalar(cells.lstm_cell)
lstm_step_backward = scalar(cells.lstm_step_backward)

_2, _3, _4, _5, _6 = (np.uint64(i) for i in (2, 3, 4, 5, 6))
STEP = (
    "void(uint64, uint64, uint64, float32[::1], float32[::1], float32[::1], float32[::1], float32[::1], float32[::1])"
)


@kernel(STEP)
def tanhs(start, stop, n, i, s, bias, carried, kept, out):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """A step of an RNN; `kept` is the result."""
    for r in range(start, stop):
        at = r * n
        for j in range(n):
            y = tanh_step(i[at + j], s[at + j] + bias[j])
            kept[at + j] = y
            out[at + j] = y


@kernel(STEP)
def tanhs_backward(start, stop, n, g, carried, kept, before, by_i, by_s):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Its derivative."""
    for r in range(start, stop):
        at = r * n
        for j in range(n):
            by_i[at + j] = tanh_step_backward(g[at + j], kept[at + j])


@kernel(STEP)
def grus(start, stop, n, i, s, bias, carried, kept, out):  # type: ignore[no-untyped-def]
    """A step of a GRU; `carried` is the old state, `kept` reset, update, new and the state's part of new."""
    for r in range(start, stop):
        at, x, reset = r * n, r * n * _3, r * n * _4
        update, new, inner, z = reset + n, reset + n * _2, reset + n * _3, n * _2
        for j in range(z):
            kept[reset + j] = gate(i[x + j], s[x + j] + bias[j])
        for j in range(n):
            kept[inner + j] = s[x + z + j] + bias[z + j]
        for j in range(n):
            out[at + j] = gru_candidate(i[x + z + j], kept[inner + j], kept[reset + j])
        for j in range(n):
            kept[new + j] = out[at + j]
        for j in range(n):
            out[at + j] = gru_state(carried[at + j], kept[new + j], kept[update + j])


@kernel(STEP)
def grus_backward(start, stop, n, g, carried, kept, before, by_i, by_s):  # type: ignore[no-untyped-def]
    """Its derivative; `carried` takes what goes to the old state directly."""
    for r in range(start, stop):
        at, gate, keep = r * n, r * n * _3, r * n * _4
        for j in range(n):
            reset, update, new = kept[keep + j], kept[keep + n + j], kept[keep + n * _2 + j]
            inner = kept[keep + n * _3 + j]
            a, b, c, d, along = gru_step_backward(g[at + j], reset, update, new, inner, before[at + j])
            by_i[gate + j] = a
            by_s[gate + j] = a
            by_i[gate + n + j] = b
            by_s[gate + n + j] = b
            by_i[gate + n * _2 + j] = c
            by_s[gate + n * _2 + j] = d
            carried[at + j] = along


@kernel(STEP)
def lstms(start, stop, n, i, s, bias, carried, kept, out):  # type: ignore[no-untyped-def]
    """A step of an LSTM; `carried` is the cell, `kept` the four gates, the old cell and the tanh of the new one."""
    for r in range(start, stop):
        at, x, take = r * n, r * n * _4, r * n * _6
        keep, new, give, old, squashed = take + n, take + n * _2, take + n * _3, take + n * _4, take + n * _5
        y, z = n * _2, n * _3
        for j in range(y):
            kept[take + j] = gate(i[x + j], s[x + j] + bias[j])
        for j in range(n):
            kept[new + j] = tanh_step(i[x + y + j], s[x + y + j] + bias[y + j])
        for j in range(n):
            kept[give + j] = gate(i[x + z + j], s[x + z + j] + bias[z + j])
        for j in range(n):
            kept[old + j] = carried[at + j]
        for j in range(n):
            carried[at + j] = lstm_cell(kept[take + j], kept[keep + j], kept[new + j], kept[old + j])
        for j in range(n):
            kept[squashed + j] = tanh(carried[at + j])
        for j in range(n):
            out[at + j] = kept[give + j] * kept[squashed + j]


@kernel(STEP)
def lstms_backward(start, stop, n, g, carried, kept, before, by_i, by_s):  # type: ignore[no-untyped-def]  # noqa: ARG001
    """Its derivative; `carried` is the gradient of the cell."""
    for r in range(start, stop):
        at, gate, keep = r * n, r * n * _4, r * n * _6
        for j in range(n):
            a, b, c, d, by_c = lstm_step_backward(
                g[at + j],
                carried[at + j],
                kept[keep + j],
                kept[keep + n + j],
                kept[keep + n * _2 + j],
                kept[keep + n * _3 + j],
                kept[keep + n * _4 + j],
                kept[keep + n * _5 + j],
            )
            by_i[gate + j] = a
            by_i[gate + n + j] = b
            by_i[gate + n * _2 + j] = c
            by_i[gate + n * _3 + j] = d
            carried[at + j] = by_c
