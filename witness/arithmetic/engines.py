"""Engines: ways to compute the integer sums of an exact product, and the bounds within which each is exact.

Both engines put the operands on the same grid (see `witness.arithmetic.products`) and give the same bits; they differ
in speed only.

`Float64` keeps `q * 2**(e - p)` as float64 and uses the machine's float64 product. Every partial sum, in whatever
order, is a multiple of `2**(ea + eb - 2p)` of magnitude at most `2**(2p) * K` multiples, so with `2p + log2 K <= 53`
nothing is ever rounded, and with `|ea + eb - 2p| < 400` nothing underflows or overflows.

`Digits` writes q in base 256 with digits in -128 .. 127 (the highest one: in -64 .. 64), D = 2 of them for p <= 14,
D = 3 for p <= 22, and multiplies the planes of digits with 8-bit integer products, whose sums are 32-bit. The planes
lie side by side along K, low to high in one operand and high to low in the other, so that all pairs of digits of one
weight are one product of a window of planes: 2D - 1 calls. A window of w <= D planes sums `w * K` terms of magnitude at
most `2**14`, so `D * K * 2**14 < 2**31` keeps every int32 sum exact; wrapping inside the sum does no harm, saturating
would, and the trial finds it out. The weights are put together in float64: all partial results are integers of
magnitude at most `2**(2p + 1) * K <= 2**53`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import pad

from witness.arithmetic import compiled
from witness.arithmetic.kernels import products as kernels
from witness.arithmetic.scaling import NOT_FINITE, exponents, largest_fields, power_of_two


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """One operand as an engine wants it.

    Attributes:
        data: (B, rows, columns), the grid values or the planes of digits; a transposed view where the operand was one.
        steps: float64 `2**(e - p)`, (B, rows, 1) for the left operand, (B, 1, columns) for the right one.
        special: whether a row (column) of the operand holds an infinity or NaN; what `data` has there is arbitrary.
        marks: bool, of the shape of `steps`, which ones.
    """

    data: torch.Tensor
    steps: torch.Tensor
    special: bool
    marks: torch.Tensor


class Engine(ABC):
    """A way to multiply; `name` says which."""

    name: str

    @abstractmethod
    def longest(self, bits: int) -> int:
        """The largest K that one call sums exactly."""

    @abstractmethod
    def form(self, x: torch.Tensor, axis: int, bits: int) -> Form:
        """Puts an operand on its grid.

        Args:
            x: float32 (B, rows, columns), any strides.
            axis: the dimension that will be summed over: -1 for the left operand, -2 for the right one.
            bits: p.
        """

    @abstractmethod
    def product(self, a: Form, b: Form, bits: int) -> torch.Tensor:
        """The rounded product of (B or 1, M, K) and (B or 1, K, N) with K <= `longest(bits)`: float32 (B, M, N)."""


class Float64(Engine):
    """The machine's float64 matrix product on grid values."""

    name = "float64"

    def longest(self, bits: int) -> int:
        """`2p + log2 K <= 53`."""
        return 1 << (53 - 2 * bits)

    def form(self, x: torch.Tensor, axis: int, bits: int) -> Form:
        """See `Engine.form`."""
        source = _Source.of(x, axis) if compiled.usable() and x.device.type == "cpu" else None
        if source is None:
            fields = largest_fields(x, axis)
            steps = power_of_two(exponents(fields) - bits)
            wide = x.to(torch.float64)
            data = torch.round(wide * power_of_two(bits - exponents(fields))) * steps
            return _form(data, steps, fields)
        out = torch.empty(source.shape, dtype=torch.float64)
        return source.fill(kernels.grid_rows, kernels.grid_columns, bits, (), out)

    def product(self, a: Form, b: Form, bits: int) -> torch.Tensor:  # noqa: ARG002  (the steps are in the grid values)
        """See `Engine.product`."""
        exact = torch.matmul(a.data, b.data)
        if compiled.usable(exact):
            out = torch.empty(exact.shape, dtype=torch.float32)
            compiled.run(kernels.round_once, exact.numel(), exact.view(-1).numpy(), out.view(-1).numpy())
            return out
        return (exact + 0.0).to(torch.float32)


class Digits(Engine):
    """8-bit integer products of digits.

    Attributes:
        padded: whether shapes are padded to what CUDA's kernels take.
    """

    name = "digits"

    def __init__(self, padded: bool | None = None) -> None:
        self.padded = padded

    def longest(self, bits: int) -> int:
        """`D * K * 2**14 < 2**31` and `2p + 1 + log2 K <= 53`."""
        return min(((1 << 17) - 1) // _count(bits), 1 << (52 - 2 * bits))

    def form(self, x: torch.Tensor, axis: int, bits: int) -> Form:
        """See `Engine.form`."""
        count = _count(bits)
        padded = x.device.type != "cpu" if self.padded is None else self.padded
        source = _Source.of(x, axis) if compiled.usable() and x.device.type == "cpu" and not padded else None
        if source is not None:
            batch, rows, columns = source.shape
            shape = (batch, rows, count * columns) if source.by_rows else (batch, count * rows, columns)
            lowest = count - 1 if axis == -1 else 0
            out = torch.empty(shape, dtype=torch.int8)
            return source.fill(kernels.digits_rows, kernels.digits_columns, bits, (count, lowest), out)
        fields = largest_fields(x, axis)
        q = torch.round(x.to(torch.float64) * power_of_two(bits - exponents(fields)))
        planes = _planes(torch.where(fields == NOT_FINITE, 0.0, q).to(torch.int32), count)
        steps = power_of_two(exponents(fields) - bits)
        if padded:
            m, n = x.shape[-2:]
            below = -m % 16 if axis == -2 else max(17 - m, 0)
            beside = -n % 16 if axis == -1 else -n % 8
            planes = [pad(plane, (0, beside, 0, below)) for plane in planes]
        return _form(torch.cat(planes[::-1] if axis == -1 else planes, dim=axis), steps, fields)

    def product(self, a: Form, b: Form, bits: int) -> torch.Tensor:
        """See `Engine.product`."""
        count = _count(bits)
        batch = max(a.data.shape[0], b.data.shape[0])
        m, n = a.steps.shape[1], b.steps.shape[2]
        k = a.data.shape[2] // count
        out = torch.empty((batch, m, n), dtype=torch.float32, device=a.data.device)
        for i in range(batch):
            left, right = a.data[i if a.data.shape[0] > 1 else 0], b.data[i if b.data.shape[0] > 1 else 0]
            sums = []
            for weight in range(2 * count - 2, -1, -1):
                first, last = max(0, count - 1 - weight), min(count, 2 * count - 1 - weight)
                there = max(0, weight - count + 1)
                window = slice(there * k, (there + last - first) * k)
                sums.append(torch._int_mm(left[:, first * k : last * k], right[window]))  # noqa: SLF001
            row_steps, column_steps = a.steps[i if len(a.steps) > 1 else 0], b.steps[i if len(b.steps) > 1 else 0]
            if compiled.usable(*sums) and sums[0].shape == (m, n):
                arrays = [s.view(-1).numpy() for s in sums]
                steps = row_steps.view(-1).numpy(), column_steps.view(-1).numpy()
                combine = kernels.combine_two if count == 2 else kernels.combine_three
                compiled.run(combine, m, n, *arrays, *steps, out[i].view(-1).numpy(), weight=n)
                continue
            total = sums[0].to(torch.float64)
            for s in sums[1:]:
                total = total * 256.0 + s
            out[i] = total[:m, :n] * row_steps * column_steps
        return out


def _count(bits: int) -> int:
    """Digits of a magnitude of up to `2**bits`, the highest digit at most 64."""
    return 2 if bits <= 14 else 3


def _planes(q: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Digits of integers, the lowest first."""
    planes = []
    for _ in range(count - 1):
        low = ((q + 128) & 255) - 128
        planes.append(low.to(torch.int8))
        q = (q - low) >> 8
    return [*planes, q.to(torch.int8)]


def _form(data: torch.Tensor, steps: torch.Tensor, fields: torch.Tensor) -> Form:
    marks = fields == NOT_FINITE
    return Form(data, steps, bool(marks.any()), marks)


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """An operand as the kernels read it: flat memory and strides, in the order in which it lies there."""

    flat: np.ndarray
    shape: tuple[int, int, int]
    strides: tuple[int, int]
    by_rows: bool
    transposed: bool

    @classmethod
    def of(cls, x: torch.Tensor, axis: int) -> _Source:
        """Any float32 tensor of three dimensions; copied only where neither of the last two lies together."""
        transposed = False
        if x.stride(2) != 1 and x.shape[2] > 1:
            if x.stride(1) == 1 or x.shape[1] == 1:
                transposed = True
                x = x.mT
                if x.stride(2) != 1 and x.shape[2] > 1:
                    x = x.contiguous()
            else:
                x = x.contiguous()
        batch, rows, columns = x.shape
        span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
        flat = x.as_strided((span,), (1,), x.storage_offset()).numpy()
        by_rows = (axis == -1) != transposed
        return cls(flat, (batch, rows, columns), (x.stride(0), x.stride(1)), by_rows, transposed)

    def fill(self, by_rows, by_columns, bits: int, extra: tuple[int, ...], out: torch.Tensor) -> Form:  # type: ignore[no-untyped-def]
        """Runs the kernel for this order of memory."""
        batch, rows, columns = self.shape
        lines = batch * (rows if self.by_rows else columns)
        fields, steps = torch.empty(lines, dtype=torch.int32), torch.empty(lines, dtype=torch.float64)
        compiled.run(
            by_rows if self.by_rows else by_columns,
            lines,
            self.flat,
            rows,
            columns,
            *self.strides,
            bits,
            *extra,
            out.view(-1).numpy(),
            fields.numpy(),
            steps.numpy(),
            weight=columns if self.by_rows else rows,
        )
        each = (batch, rows, 1) if self.by_rows else (batch, 1, columns)
        parts = out, steps.view(each), fields.view(each)
        return _form(*(part.mT if self.transposed else part for part in parts))


FLOAT64 = Float64()
DIGITS = Digits()
