"""Small exact products in one call: grid, sums and rounding of whole matrices, in scratch that stays in cache."""

from __future__ import annotations

import numpy as np

from witness.arithmetic.compiled import kernel

U = np.uint64
_MAGNITUDE = np.int32(0x7FFFFFFF)
_LOWEST = 300
_TWO = np.array([2.0**k for k in range(-_LOWEST, _LOWEST)])
_ROUND64 = 6755399441055744.0  # 1.5 * 2**52: added and taken away, it leaves |y| <= 2**51 rounded half to even


@kernel("void(float32[::1], int64, int64, int64, int64, int64, int64, float64[:, ::1], int64[::1])")
def _grid(x, offset, lines, length, line_stride, stride, bits, out, special):  # type: ignore[no-untyped-def]
    """`out[line, i]`: element i of a line on the grid of its line."""
    as_bits = x.view(np.int32)
    for line in range(lines):
        base = offset + line * line_stride
        largest = np.int32(0)
        for i in range(length):
            largest = max(largest, np.int32(as_bits[U(base + i * stride)] & _MAGNITUDE))
        field = largest >> 23
        if field == 255:
            special[0] = 1
        shift = _ROUND64 * _TWO[max(field, 1) - 126 - bits + _LOWEST]
        for i in range(length):
            out[line, i] = (np.float64(x[U(base + i * stride)]) + shift) - shift


@kernel(
    "void(int64, int64, float32[::1], int64, int64, int64, float32[::1], int64, int64, int64, int64, int64, int64,"
    " int64, float32[::1], int64[::1])"
)
def small(  # type: ignore[no-untyped-def]
    start,
    stop,
    a,
    a_batch,
    a_row,
    a_column,
    b,
    b_batch,
    b_row,
    b_column,
    rows,
    length,
    columns,
    bits,
    out,
    special,
):
    """Matrices `start .. stop` of a batch; sets `special[0]` if one of them holds an infinity or NaN.

    The order of the sums is whatever makes vector code: they are exact (see `matrix.engines.Float64`).
    """
    left, right = np.empty((rows, length)), np.empty((columns, length))
    down = np.empty((length, columns))
    total = np.empty(columns)
    for matrix in range(start, stop):
        _grid(a, matrix * a_batch, rows, length, a_row, a_column, bits, left, special)
        _grid(b, matrix * b_batch, columns, length, b_column, b_row, bits, right, special)
        for k in range(length):
            for c in range(columns):
                down[k, c] = right[c, k]
        for r in range(rows):
            total[:] = 0.0
            k = 0
            while k + 4 <= length:
                a0, a1, a2, a3 = left[r, k], left[r, k + 1], left[r, k + 2], left[r, k + 3]
                for c in range(U(columns)):
                    total[c] += (a0 * down[k, c] + a1 * down[k + 1, c]) + (a2 * down[k + 2, c] + a3 * down[k + 3, c])
                k += 4
            while k < length:
                a0 = left[r, k]
                for c in range(U(columns)):
                    total[c] += a0 * down[k, c]
                k += 1
            to = U((matrix * rows + r) * columns)
            for c in range(U(columns)):
                out[to + c] = np.float32(total[c] + 0.0)
