"""Compiled conversions from random words: uniform numbers, coins, dropout."""

import numpy as np

from witness.arithmetic.compiled import kernel


@kernel("void(int64, int64, uint32[::1], float64, float64, float32, float32, float32[::1])")
def uniforms(start, stop, words, low, span, first, last, out):  # type: ignore[no-untyped-def]
    """`out[i] = low + span * u`, u from the upper 24 bits of word i; `first` where that rounds to `last` or beyond."""
    for i in range(start, stop):
        u = np.float64(words[i] >> np.uint32(8)) * 5.9604644775390625e-08
        x = np.float32(u * span + low)
        out[i] = first if x >= last else x


@kernel("void(int64, int64, uint32[::1], uint32, float32, float32[::1], float32[::1], boolean[::1])")
def dropout(start, stop, words, last, scale, x, out, mask):  # type: ignore[no-untyped-def]
    """`mask[i]` = word i is at most `last`; `out[i]` = x[i] times `scale` there, times zero elsewhere."""
    for i in range(start, stop):
        kept = words[i] <= last
        mask[i] = kept
        out[i] = x[i] * (scale if kept else np.float32(0.0))


@kernel("void(int64, int64, boolean[::1], float32, float32[::1], float32[::1])")
def dropout_backward(start, stop, mask, scale, gradient, out):  # type: ignore[no-untyped-def]
    """`out[i]` = the gradient times `scale` where the mask is set, times zero elsewhere."""
    for i in range(start, stop):
        out[i] = gradient[i] * (scale if mask[i] else np.float32(0.0))
