"""Exact products, the passes around the engines: put an operand on its grid once, scale and round the result once.

Operands come as one flat array with strides, so that a transposed view costs no copy; the last of the three dimensions
(batch, rows, columns) is the one that lies together in memory. `..._rows` takes one exponent a row, `..._columns` one
a column. Arrays of results are contiguous.
"""

from __future__ import annotations

import numpy as np

from witness.arithmetic.compiled import kernel

_MAGNITUDE = np.int32(0x7FFFFFFF)
_LOWEST = 300
_TWO = np.array([2.0**k for k in range(-_LOWEST, _LOWEST)])
"""Powers of two in float64, from `2.0**-300`."""
_ROUND32 = np.float32(12582912.0)  # 1.5 * 2**23: added and taken away, it leaves |y| <= 2**22 rounded half to even
_ROUND64 = 6755399441055744.0  # 1.5 * 2**52: the same for |y| <= 2**51
_ZERO = np.float32(0.0)

_SOURCE = "int64, int64, float32[::1], int64, int64, int64, int64, int64"


@kernel(f"void({_SOURCE}, float64[::1], int32[::1], float64[::1])")
def grid_rows(start, stop, x, rows, columns, batch_stride, row_stride, bits, out, fields, steps):
    """Rows on their grid, as float64: `steps[r] * round(x / steps[r])`, and the steps."""
    as_bits = x.view(np.int32)
    for r in range(start, stop):
        base = (r // rows) * batch_stride + (r % rows) * row_stride
        largest = np.int32(0)
        for c in range(columns):
            largest = max(largest, as_bits[base + c] & _MAGNITUDE)
        field = largest >> 23
        step = _TWO[max(field, 1) - 126 - bits + _LOWEST]
        fields[r] = field
        steps[r] = step
        shift = _ROUND64 * step
        to = r * columns
        for c in range(columns):
            out[to + c] = (np.float64(x[base + c]) + shift) - shift


@kernel(f"void({_SOURCE}, float64[::1], int32[::1], float64[::1])")
def grid_columns(start, stop, x, rows, columns, batch_stride, row_stride, bits, out, fields, steps):
    """Columns on their grid; `start .. stop` counts the columns of all batches."""
    as_bits = x.view(np.int32)
    at = start
    while at < stop:
        batch, first = at // columns, at % columns
        width = min(columns - first, stop - at)
        mine, step = fields[at : at + width], steps[at : at + width]
        mine[:] = 0
        for r in range(rows):
            base = batch * batch_stride + r * row_stride + first
            for c in range(width):
                mine[c] = max(mine[c], as_bits[base + c] & _MAGNITUDE)
        shift = np.empty(width, np.float64)
        for c in range(width):
            mine[c] >>= 23
            step[c] = _TWO[max(mine[c], 1) - 126 - bits + _LOWEST]
            shift[c] = _ROUND64 * step[c]
        for r in range(rows):
            base = batch * batch_stride + r * row_stride + first
            to = (batch * rows + r) * columns + first
            for c in range(width):
                out[to + c] = (np.float64(x[base + c]) + shift[c]) - shift[c]
        at += width


@kernel("void(int64, int64, float64[::1], float32[::1])")
def round_once(start, stop, exact, out):
    """The one rounding of the float64 engine; adding +0 makes every zero sum +0."""
    for i in range(start, stop):
        out[i] = np.float32(exact[i] + 0.0)


@kernel(f"void({_SOURCE}, int64, int64, int8[::1], int32[::1], float64[::1])")
def digits_rows(start, stop, x, rows, columns, batch_stride, row_stride, bits, digits, lowest, out, fields, steps):
    """Rows as base-256 digits, each digit's plane beside the next: `out[r, plane, c]`.

    `lowest` is the plane of the lowest digit, 0 or `digits - 1`; the highest one is at the other end.
    """
    as_bits = x.view(np.int32)
    for r in range(start, stop):
        base = (r // rows) * batch_stride + (r % rows) * row_stride
        largest = np.int32(0)
        for c in range(columns):
            largest = max(largest, as_bits[base + c] & _MAGNITUDE)
        field = largest >> 23
        exponent = max(field, 1) - 126
        fields[r] = field
        steps[r] = _TWO[exponent - bits + _LOWEST]
        half = (bits - exponent) >> 1
        one = np.float32(_TWO[half + _LOWEST])
        two = np.float32(_TWO[bits - exponent - half + _LOWEST])
        if field == 255:
            one = _ZERO
        low = r * digits * columns + lowest * columns
        high = r * digits * columns + (digits - 1 - lowest) * columns
        if digits == 2:
            for c in range(columns):
                y = x[base + c] * one * two
                y = y if y == y else _ZERO
                q = np.int32((y + _ROUND32) - _ROUND32) + np.int32(128)
                out[high + c] = np.int8(q >> 8)
                out[low + c] = np.int8((q & 255) - 128)
        else:
            middle = r * digits * columns + columns
            for c in range(columns):
                y = x[base + c] * one * two
                y = y if y == y else _ZERO
                q = np.int32((y + _ROUND32) - _ROUND32) + np.int32(128)
                t = (q >> 8) + np.int32(128)
                out[high + c] = np.int8(t >> 8)
                out[middle + c] = np.int8((t & 255) - 128)
                out[low + c] = np.int8((q & 255) - 128)


@kernel(f"void({_SOURCE}, int64, int64, int8[::1], int32[::1], float64[::1])")
def digits_columns(start, stop, x, rows, columns, batch_stride, row_stride, bits, digits, lowest, out, fields, steps):
    """Columns as base-256 digits, each digit's matrix after the next: `out[batch, plane, r, c]`."""
    as_bits = x.view(np.int32)
    at = start
    while at < stop:
        batch, first = at // columns, at % columns
        width = min(columns - first, stop - at)
        mine, step = fields[at : at + width], steps[at : at + width]
        mine[:] = 0
        for r in range(rows):
            base = batch * batch_stride + r * row_stride + first
            for c in range(width):
                mine[c] = max(mine[c], as_bits[base + c] & _MAGNITUDE)
        one, two = np.empty(width, np.float32), np.empty(width, np.float32)
        for c in range(width):
            mine[c] >>= 23
            exponent = max(mine[c], 1) - 126
            step[c] = _TWO[exponent - bits + _LOWEST]
            half = (bits - exponent) >> 1
            one[c] = np.float32(_TWO[half + _LOWEST]) if mine[c] < 255 else _ZERO
            two[c] = np.float32(_TWO[bits - exponent - half + _LOWEST])
        plane = rows * columns
        for r in range(rows):
            base = batch * batch_stride + r * row_stride + first
            to = batch * digits * plane + r * columns + first
            low, high = to + lowest * plane, to + (digits - 1 - lowest) * plane
            if digits == 2:
                for c in range(width):
                    y = x[base + c] * one[c] * two[c]
                    y = y if y == y else _ZERO
                    q = np.int32((y + _ROUND32) - _ROUND32) + np.int32(128)
                    out[high + c] = np.int8(q >> 8)
                    out[low + c] = np.int8((q & 255) - 128)
            else:
                middle = to + plane
                for c in range(width):
                    y = x[base + c] * one[c] * two[c]
                    y = y if y == y else _ZERO
                    q = np.int32((y + _ROUND32) - _ROUND32) + np.int32(128)
                    t = (q >> 8) + np.int32(128)
                    out[high + c] = np.int8(t >> 8)
                    out[middle + c] = np.int8((t & 255) - 128)
                    out[low + c] = np.int8((q & 255) - 128)
        at += width


@kernel(
    "void(int64, int64, int64, int32[::1], int32[::1], int32[::1], float64[::1], float64[::1], float32[::1])",
)
def combine_two(start, stop, columns, s2, s1, s0, row_steps, column_steps, out):
    """`(s2 * 2**16 + s1 * 2**8 + s0) * step * step`, rounded once."""
    for r in range(start, stop):
        step, base = row_steps[r], r * columns
        for c in range(columns):
            i = base + c
            exact = (np.float64(s2[i]) * 256.0 + np.float64(s1[i])) * 256.0 + np.float64(s0[i])
            out[i] = np.float32(exact * step * column_steps[c])


@kernel(
    "void(int64, int64, int64, int32[::1], int32[::1], int32[::1], int32[::1], int32[::1], float64[::1],"
    " float64[::1], float32[::1])",
)
def combine_three(start, stop, columns, s4, s3, s2, s1, s0, row_steps, column_steps, out):
    """`(s4 * 2**32 + s3 * 2**24 + s2 * 2**16 + s1 * 2**8 + s0) * step * step`, rounded once."""
    for r in range(start, stop):
        step, base = row_steps[r], r * columns
        for c in range(columns):
            i = base + c
            high = (np.float64(s4[i]) * 256.0 + np.float64(s3[i])) * 256.0 + np.float64(s2[i])
            exact = (high * 256.0 + np.float64(s1[i])) * 256.0 + np.float64(s0[i])
            out[i] = np.float32(exact * step * column_steps[c])
