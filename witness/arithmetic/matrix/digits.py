"""Engines that count in int32: 8-bit integer products of the base-256 digits of the integers.

`Digits` writes q in base 256 with digits in -128 .. 127 (the highest one: in -64 .. 64), D = 2 of them for p <= 14,
D = 3 for p <= 22, and multiplies the planes of digits with 8-bit integer products, whose sums are 32-bit. The planes
lie side by side along K, low to high in one operand and high to low in the other, so that all pairs of digits of one
weight are one product of a window of planes: 2D - 1 calls. A window of w <= D planes sums `w * K` terms of magnitude at
most `2**14`, so `D * K * 2**14 < 2**31` keeps every int32 sum exact; wrapping inside the sum does no harm, saturating
would, and the trial finds it out. The weights are put together in float64, highest first. A partial result is a sum of
K products of two numbers whose digits, taken without signs, weigh at most `W = 2**p + 256 + ... + 256**(D - 1)` (each
lower digit weighs at most half a unit of the next one, and the highest at most `|q|` plus all the lower ones):
`W**2 * K <= 2**53` keeps every partial result exact.

`Stacked` puts the planes below one another on the left and beside one another on the right: all pairs of digits in one
call, D * D outputs for each element of the result. For small matrices, where calls cost more than memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import pad

from witness.arithmetic import compiled
from witness.arithmetic.kernels import products as kernels
from witness.arithmetic.matrix.engines import Engine
from witness.arithmetic.matrix.operands import Form, Memory
from witness.arithmetic.matrix.scaling import NOT_FINITE, exponents, largest_fields, power_of_two

SCRATCH = 3 << 19
"""int32 sums that are held at a time on a CPU: 6 MB, in cache."""
BLOCK = 512, 1024
"""Rows and columns of the result that are made at a time on a CPU."""
DEVICE_BLOCK = 4096, 4096
"""The same on other devices."""


class Digits(Engine):
    """8-bit integer products of windows of planes of digits.

    Args:
        padded: whether shapes are padded to what CUDA's kernels take; if not said, wherever the device is not a CPU.
    """

    name = "digits"
    stacked = False

    def __init__(self, padded: bool | None = None) -> None:
        self._padded = padded

    def longest(self, bits: int) -> int:
        """`D * K * 2**14 < 2**31` and `W**2 * K <= 2**53`."""
        digits = count(bits)
        weight = (1 << bits) + sum(1 << 8 * i for i in range(1, digits))
        return min(((1 << 17) - 1) // digits, (1 << 53) // weight**2)

    def form(self, x: torch.Tensor, axis: int, bits: int) -> Form:
        """See `Engine.form`: the planes of digits, along K or (stacked) along the other dimension."""
        digits = count(bits)
        along = (-3 - axis) if self.stacked else axis
        downwards = axis == -1 and not self.stacked
        padded = x.device.type != "cpu" if self._padded is None else self._padded
        if compiled.on() and x.device.type == "cpu" and not padded:
            memory = Memory.of(x, axis)
            batch, rows, columns = memory.shape
            beside = (along == -1) != memory.transposed
            plane = columns if beside else rows * columns
            to_row = digits * columns if beside else columns
            first = (digits - 1) * plane if downwards else 0
            out = torch.empty((batch, rows, to_row) if beside else (batch, digits * rows, columns), dtype=torch.int8)
            places = digits, first, digits * rows * columns, to_row, -plane if downwards else plane
            return memory.fill(kernels.digits_rows, kernels.digits_columns, bits, places, out)
        fields = largest_fields(x, axis)
        q = torch.round(x.to(torch.float64) * power_of_two(bits - exponents(fields)))
        planes = _planes(torch.where(fields == NOT_FINITE, 0.0, q).to(torch.int32), digits)
        steps = power_of_two(exponents(fields) - bits)
        if padded:
            m, n = x.shape[-2:]
            below = -m % 16 if axis == -2 else max(17 - m, 0)
            beyond = -n % 16
            planes = [pad(plane, (0, beyond, 0, below)) for plane in planes]
        data = torch.cat(planes[::-1] if downwards else planes, dim=along)
        return Form(data, steps, bool((fields == NOT_FINITE).any()))

    def product(self, a: Form, b: Form, bits: int) -> torch.Tensor:
        """See `Engine.product`."""
        digits, (batch, m, n) = count(bits), _result_shape(a, b)
        k, height, width = a.data.shape[2] // digits, a.data.shape[1], b.data.shape[2]
        windows = []
        for weight in range(2 * digits - 2, -1, -1):
            length = k * min(weight + 1, 2 * digits - 1 - weight)
            left, right = k * max(0, digits - 1 - weight), k * max(0, weight - digits + 1)
            windows.append((a.data[:, :, left : left + length], b.data[:, right : right + length]))
        out = torch.empty((batch, m, n), dtype=torch.float32, device=a.data.device)
        rows, columns = _steps(a, b, batch)
        for matrices, i, j in _blocks(batch, height, width, 2 * digits - 1, a.data.device.type == "cpu"):
            shape = len(matrices), len(i), len(j)
            sums = torch.empty((2 * digits - 1, *shape), dtype=torch.int32, device=a.data.device)
            for (x, y), into in zip(windows, sums.unbind(0), strict=True):
                lefts = _some(x, matrices)[:, i.start : i.stop].unbind(0)
                rights = _some(y, matrices)[:, :, j.start : j.stop].unbind(0)
                for left_plane, right_plane, s in zip(lefts, rights, into.unbind(0), strict=True):
                    torch._int_mm(left_plane, right_plane, out=s)  # noqa: SLF001
            some = slice(matrices.start, matrices.stop)
            row_steps, column_steps = rows[some, i.start : i.stop], columns[some, :, j.start : j.stop]
            to = out[some, i.start : i.stop, j.start : j.stop]
            if compiled.usable(sums) and (height, width) == (m, n):
                compiled.run(
                    kernels.combine,
                    shape[0] * shape[1],
                    digits,
                    *shape[1:],
                    sums[0].numel(),
                    sums.view(-1).numpy(),
                    row_steps.reshape(-1).numpy(),
                    column_steps.reshape(-1).numpy(),
                    n,
                    out.view(-1)[to.storage_offset() :].numpy(),
                    weight=shape[2],
                )
                continue
            total = sums[0].to(torch.float64)
            for s in sums[1:]:
                total = total * 256.0 + s
            to.copy_(total[:, : to.shape[1], : to.shape[2]] * row_steps * column_steps)
        return out


class Stacked(Digits):
    """8-bit integer products of all pairs of planes in one call."""

    name = "stacked"
    stacked = True

    def __init__(self) -> None:
        super().__init__(padded=False)

    def product(self, a: Form, b: Form, bits: int) -> torch.Tensor:
        """See `Engine.product`."""
        digits, (batch, m, n) = count(bits), _result_shape(a, b)
        out = torch.empty((batch, m, n), dtype=torch.float32, device=a.data.device)
        rows, columns = _steps(a, b, batch)
        together = max(1, SCRATCH // (digits * digits * m * n))
        for start in range(0, batch, together):
            matrices = range(start, min(batch, start + together))
            sums = torch.empty((len(matrices), digits * m, digits * n), dtype=torch.int32, device=a.data.device)
            lefts, rights = _some(a.data, matrices).unbind(0), _some(b.data, matrices).unbind(0)
            for left, right, s in zip(lefts, rights, sums.unbind(0), strict=True):
                torch._int_mm(left, right, out=s)  # noqa: SLF001
            some = slice(matrices.start, matrices.stop)
            row_steps, column_steps = rows[some], columns[some]
            if compiled.usable(sums):
                arrays = (t.reshape(-1).numpy() for t in (sums, row_steps, column_steps, out[some]))
                compiled.run(kernels.combine_stacked, len(matrices) * m, digits, m, n, *arrays, weight=n)
                continue
            pairs = sums.view(-1, digits, m, digits, n).to(torch.float64)
            total = torch.zeros((len(matrices), m, n), dtype=torch.float64, device=a.data.device)
            for weight in range(2 * digits - 2, -1, -1):
                total = total * 256.0
                for p in range(max(0, weight - digits + 1), min(digits, weight + 1)):
                    total = total + pairs[:, p, :, weight - p]
            out[some] = total * row_steps * column_steps
        return out


def count(bits: int) -> int:
    """Digits of a magnitude of up to `2**bits`, the highest digit at most 64."""
    return 2 if bits <= 14 else 3


def _planes(q: torch.Tensor, digits: int) -> list[torch.Tensor]:
    """Digits of integers, the lowest first."""
    planes = []
    for _ in range(digits - 1):
        low = ((q + 128) & 255) - 128
        planes.append(low.to(torch.int8))
        q = (q - low) >> 8
    return [*planes, q.to(torch.int8)]


def _result_shape(a: Form, b: Form) -> tuple[int, int, int]:
    return max(a.data.shape[0], b.data.shape[0]), a.steps.shape[1], b.steps.shape[2]


def _steps(a: Form, b: Form, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return a.steps.expand(batch, -1, 1), b.steps.expand(batch, 1, -1)


def _some(x: torch.Tensor, matrices: range) -> torch.Tensor:
    """These matrices of a batch, or the only one as often as needed."""
    return x[matrices.start : matrices.stop] if x.shape[0] > 1 else x.expand(len(matrices), -1, -1)


def _blocks(batch: int, rows: int, columns: int, planes: int, cpu: bool) -> Iterator[tuple[range, range, range]]:
    """Cuts a batch of results into blocks: several small matrices, or parts of one large matrix."""
    high, wide = BLOCK if cpu else DEVICE_BLOCK
    if rows * columns <= high * wide:
        together = max(1, (SCRATCH if cpu else planes * high * wide) // (planes * rows * columns))
        for start in range(0, batch, together):
            yield range(start, min(batch, start + together)), range(rows), range(columns)
        return
    high = -(-rows // -(-rows // high))  # parts of one height: a short last one would be below what CUDA takes
    for index in range(batch):
        for top in range(0, rows, high):
            for left in range(0, columns, wide):
                yield (
                    range(index, index + 1),
                    range(top, min(rows, top + high)),
                    range(left, min(columns, left + wide)),
                )


DIGITS = Digits()
STACKED = Stacked()
