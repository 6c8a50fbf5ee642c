"""Exact products, the passes around the engines: put an operand on its grid once, scale and round the result once.

Operands come as one flat array with strides, so that a transposed view costs no copy; the last of the three dimensions
(batch, rows, columns) is the one that lies together in memory. `..._rows` takes one exponent a row, `..._columns` one
a column. Indices are unsigned and 32-bit casts are written out because only then do the loops become vector code
(measured: 10 to 25 times faster): numba would look for negative indices, and widen every integer to 64 bits.
"""

from __future__ import annotations

import numpy as np

from witness.arithmetic.compiled import kernel

U = np.uint64
_MAGNITUDE = np.int32(0x7FFFFFFF)
_LOWEST = 300
_TWO = np.array([2.0**k for k in range(-_LOWEST, _LOWEST)])
"""Powers of two in float64, from `2.0**-300`."""
_ROUND32 = np.float32(12582912.0)  # 1.5 * 2**23: added and taken away, it leaves |y| <= 2**22 rounded half to even
_ROUND64 = 6755399441055744.0  # 1.5 * 2**52: the same for |y| <= 2**51
_ZERO = np.float32(0.0)
_HALF = np.int32(128)
_BYTE = np.int32(8)
_STRIP = 256
"""Columns whose largest elements are sought before they are put on their grid: a strip should still be in cache."""

_SOURCE = "int64, int64, float32[::1], int64, int64, int64, int64, int64"


@kernel(f"void({_SOURCE}, float64[::1], int32[::1], float64[::1])")
def grid_rows(start, stop, x, rows, columns, batch_stride, row_stride, bits, out, fields, steps):  # type: ignore[no-untyped-def]
    """Rows on their grid, as float64: `steps[r] * round(x / steps[r])`, and the steps."""
    as_bits = x.view(np.int32)
    for r in range(start, stop):
        base = U((r // rows) * batch_stride + (r % rows) * row_stride)
        largest = np.int32(0)
        for c in range(U(columns)):
            largest = max(largest, np.int32(as_bits[base + c] & _MAGNITUDE))
        field = largest >> 23
        step = _TWO[max(field, 1) - 126 - bits + _LOWEST]
        fields[r] = field
        steps[r] = step
        shift = _ROUND64 * step
        to = U(r * columns)
        for c in range(U(columns)):
            out[to + c] = (np.float64(x[base + c]) + shift) - shift


@kernel(f"void({_SOURCE}, float64[::1], int32[::1], float64[::1])")
def grid_columns(start, stop, x, rows, columns, batch_stride, row_stride, bits, out, fields, steps):  # type: ignore[no-untyped-def]
    """Columns on their grid; `start .. stop` counts the columns of all batches."""
    as_bits = x.view(np.int32)
    largest, shift = np.empty(_STRIP, np.int32), np.empty(_STRIP, np.float64)
    at = start
    while at < stop:
        batch, left = at // columns, at % columns
        width = min(columns - left, stop - at, _STRIP)
        largest[:] = 0
        for r in range(rows):
            base = U(batch * batch_stride + r * row_stride + left)
            for c in range(U(width)):
                largest[c] = max(largest[c], np.int32(as_bits[base + c] & _MAGNITUDE))
        for c in range(width):
            field = largest[c] >> 23
            step = _TWO[max(field, 1) - 126 - bits + _LOWEST]
            fields[at + c], steps[at + c], shift[c] = field, step, _ROUND64 * step
        for r in range(rows):
            base = U(batch * batch_stride + r * row_stride + left)
            to = U((batch * rows + r) * columns + left)
            for c in range(U(width)):
                out[to + c] = (np.float64(x[base + c]) + shift[c]) - shift[c]
        at += width


@kernel("void(int64, int64, float64[::1], float32[::1])")
def round_once(start, stop, exact, out):  # type: ignore[no-untyped-def]
    """The one rounding of the float64 engine; adding +0 makes every zero sum +0."""
    for i in range(U(start), U(stop)):
        out[i] = np.float32(exact[i] + 0.0)


@kernel(f"void({_SOURCE}, int64, int64, int64, int64, int64, int8[::1], int32[::1], float64[::1])")
def digits_rows(  # type: ignore[no-untyped-def]
    start,
    stop,
    x,
    rows,
    columns,
    batch_stride,
    row_stride,
    bits,
    digits,
    first,
    to_batch,
    to_row,
    plane,
    out,
    fields,
    steps,
):
    """Rows as base-256 digits: digit i of an element goes to `first + batch * to_batch + r * to_row + i * plane + c`.

    Scaling takes two steps, because `2**(bits - exponent)` may be beyond float32. It is exact wherever the product is
    at least 2**-126, and whatever is less rounds to 0. A row without a finite maximum is scaled by 0; the NaN that
    infinity makes of it becomes 0.
    """
    as_bits = x.view(np.int32)
    for r in range(start, stop):
        batch, i = r // rows, r % rows
        base = U(batch * batch_stride + i * row_stride)
        largest = np.int32(0)
        for c in range(U(columns)):
            largest = max(largest, np.int32(as_bits[base + c] & _MAGNITUDE))
        field = largest >> 23
        exponent = max(field, 1) - 126
        fields[r] = field
        steps[r] = _TWO[exponent - bits + _LOWEST]
        half = (bits - exponent) >> 1
        one = np.float32(_TWO[half + _LOWEST]) if field < 255 else _ZERO
        two = np.float32(_TWO[bits - exponent - half + _LOWEST])
        to = first + batch * to_batch + i * to_row
        low, high = U(to), U(to + (digits - 1) * plane)
        if digits == 2:
            for c in range(U(columns)):
                y = x[base + c] * one * two
                q = np.int32(((y if y == y else _ZERO) + _ROUND32) - _ROUND32)
                out[low + c] = np.int8(q)
                out[high + c] = np.int8(np.int32(q + _HALF) >> _BYTE)
        else:
            middle = U(to + plane)
            for c in range(U(columns)):
                y = x[base + c] * one * two
                q = np.int32(((y if y == y else _ZERO) + _ROUND32) - _ROUND32)
                out[low + c] = np.int8(q)
                q = np.int32(np.int32(q + _HALF) >> _BYTE)
                out[middle + c] = np.int8(q)
                out[high + c] = np.int8(np.int32(q + _HALF) >> _BYTE)


@kernel(f"void({_SOURCE}, int64, int64, int64, int64, int64, int8[::1], int32[::1], float64[::1])")
def digits_columns(  # type: ignore[no-untyped-def]
    start,
    stop,
    x,
    rows,
    columns,
    batch_stride,
    row_stride,
    bits,
    digits,
    first,
    to_batch,
    to_row,
    plane,
    out,
    fields,
    steps,
):
    """Columns as base-256 digits, to the same places; `start .. stop` counts the columns of all batches."""
    as_bits = x.view(np.int32)
    largest, ones, twos = np.empty(_STRIP, np.int32), np.empty(_STRIP, np.float32), np.empty(_STRIP, np.float32)
    at = start
    while at < stop:
        batch, left = at // columns, at % columns
        width = min(columns - left, stop - at, _STRIP)
        largest[:] = 0
        for r in range(rows):
            base = U(batch * batch_stride + r * row_stride + left)
            for c in range(U(width)):
                largest[c] = max(largest[c], np.int32(as_bits[base + c] & _MAGNITUDE))
        for c in range(width):
            field = largest[c] >> 23
            exponent = max(field, 1) - 126
            half = (bits - exponent) >> 1
            fields[at + c], steps[at + c] = field, _TWO[exponent - bits + _LOWEST]
            ones[c] = np.float32(_TWO[half + _LOWEST]) if field < 255 else _ZERO
            twos[c] = np.float32(_TWO[bits - exponent - half + _LOWEST])
        for r in range(rows):
            base = U(batch * batch_stride + r * row_stride + left)
            to = first + batch * to_batch + r * to_row + left
            low, high = U(to), U(to + (digits - 1) * plane)
            if digits == 2:
                for c in range(U(width)):
                    y = x[base + c] * ones[c] * twos[c]
                    q = np.int32(((y if y == y else _ZERO) + _ROUND32) - _ROUND32)
                    out[low + c] = np.int8(q)
                    out[high + c] = np.int8(np.int32(q + _HALF) >> _BYTE)
            else:
                middle = U(to + plane)
                for c in range(U(width)):
                    y = x[base + c] * ones[c] * twos[c]
                    q = np.int32(((y if y == y else _ZERO) + _ROUND32) - _ROUND32)
                    out[low + c] = np.int8(q)
                    q = np.int32(np.int32(q + _HALF) >> _BYTE)
                    out[middle + c] = np.int8(q)
                    out[high + c] = np.int8(np.int32(q + _HALF) >> _BYTE)
        at += width


@kernel("void(int64, int64, int64, int64, int64, int64, int32[::1], float64[::1], float64[::1], int64, float32[::1])")
def combine(start, stop, digits, rows, columns, plane, sums, row_steps, column_steps, stride, out):  # type: ignore[no-untyped-def]
    """Sums of one weight each, the highest weight first, put together, scaled and rounded once.

    Row r of the output is row `r % rows` of matrix `r // rows`; the sums of the next weight begin `plane` further on.
    """
    for r in range(start, stop):
        step, to, steps = row_steps[r], U(r * stride), U((r // rows) * columns)
        s0, s1, s2 = U(r * columns), U(r * columns + plane), U(r * columns + 2 * plane)
        if digits == 2:
            for c in range(U(columns)):
                exact = (np.float64(sums[s0 + c]) * 256.0 + np.float64(sums[s1 + c])) * 256.0 + np.float64(sums[s2 + c])
                out[to + c] = np.float32(exact * step * column_steps[steps + c])
        else:
            s3, s4 = U(r * columns + 3 * plane), U(r * columns + 4 * plane)
            for c in range(U(columns)):
                exact = (np.float64(sums[s0 + c]) * 256.0 + np.float64(sums[s1 + c])) * 256.0 + np.float64(sums[s2 + c])
                exact = (exact * 256.0 + np.float64(sums[s3 + c])) * 256.0 + np.float64(sums[s4 + c])
                out[to + c] = np.float32(exact * step * column_steps[steps + c])


@kernel("void(int64, int64, int64, int64, int64, int32[::1], float64[::1], float64[::1], float32[::1])")
def combine_stacked(start, stop, digits, rows, columns, sums, row_steps, column_steps, out):  # type: ignore[no-untyped-def]
    """The same from all pairs of planes: sums of a matrix are (digits * rows, digits * columns), low digits first."""
    n, below = U(columns), U(digits * rows * columns)
    for r in range(start, stop):
        step, to, steps = row_steps[r], U(r * columns), U((r // rows) * columns)
        s00 = U(((r // rows) * digits * rows + r % rows) * digits * columns)
        s01, s10 = s00 + n, s00 + below
        s11 = s10 + n
        if digits == 2:
            for c in range(n):
                middle = np.float64(sums[s01 + c]) + np.float64(sums[s10 + c])
                exact = (np.float64(sums[s11 + c]) * 256.0 + middle) * 256.0 + np.float64(sums[s00 + c])
                out[to + c] = np.float32(exact * step * column_steps[steps + c])
        else:
            s02, s20 = s01 + n, s10 + below
            s12, s21 = s11 + n, s20 + n
            s22 = s21 + n
            for c in range(n):
                third = np.float64(sums[s12 + c]) + np.float64(sums[s21 + c])
                second = np.float64(sums[s02 + c]) + np.float64(sums[s11 + c]) + np.float64(sums[s20 + c])
                first = np.float64(sums[s01 + c]) + np.float64(sums[s10 + c])
                exact = (np.float64(sums[s22 + c]) * 256.0 + third) * 256.0 + second
                exact = (exact * 256.0 + first) * 256.0 + np.float64(sums[s00 + c])
                out[to + c] = np.float32(exact * step * column_steps[steps + c])
