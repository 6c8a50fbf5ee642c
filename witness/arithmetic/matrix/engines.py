"""Engines: ways to compute the integer sums of an exact product, and the bounds within which each is exact.

All engines put the operands on the same grid (see `matrix.products`) and give the same bits; they differ
in speed only. Here are those that count in float64; those that count in int32 are in `matrix.digits`.

`Float64` keeps `q * 2**(e - p)` as float64 and uses the machine's float64 product. Every partial sum, in whatever
order, is a multiple of `2**(ea + eb - 2p)`, and at most `2**(2p) * K` times that; with `2p + log2 K <= 53` nothing is
ever rounded, and with `|ea + eb - 2p| < 400` nothing underflows or overflows. `Small` writes the same sums out in one
compiled call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from witness.arithmetic import compiled
from witness.arithmetic.kernels import products as kernels
from witness.arithmetic.kernels.small_products import small
from witness.arithmetic.matrix.operands import Form, Memory, Operand, flat
from witness.arithmetic.matrix.scaling import NOT_FINITE, exponents, largest_fields, power_of_two


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

    def multiply(self, left: Operand, right: Operand, bits: int) -> tuple[torch.Tensor, bool]:
        """The product of two operands, and whether one of them holds an infinity or NaN.

        Returns:
            float32 (B, M, N); rows and columns with an infinity or NaN are arbitrary.
        """
        a, b = left.form(self), right.form(self)
        return self.product(a, b, bits), a.special or b.special

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
        if compiled.on() and x.device.type == "cpu":
            memory = Memory.of(x, axis)
            out = torch.empty(memory.shape, dtype=torch.float64)
            return memory.fill(kernels.grid_rows, kernels.grid_columns, bits, (), out)
        fields = largest_fields(x, axis)
        steps = power_of_two(exponents(fields) - bits)
        data = torch.round(x.to(torch.float64) * power_of_two(bits - exponents(fields))) * steps
        return Form(data, steps, bool((fields == NOT_FINITE).any()))

    def product(self, a: Form, b: Form, bits: int) -> torch.Tensor:  # noqa: ARG002  (the steps are in the grid values)
        """See `Engine.product`."""
        exact = torch.matmul(a.data, b.data)
        if not compiled.usable(exact):
            return (exact + 0.0).to(torch.float32)
        out = torch.empty(exact.shape, dtype=torch.float32)
        compiled.run(kernels.round_once, exact.numel(), exact.view(-1).numpy(), out.view(-1).numpy())
        return out


class Small(Float64):
    """Grid, sums and rounding of small matrices in one compiled call, from the operands as they lie."""

    name = "small"

    def multiply(self, left: Operand, right: Operand, bits: int) -> tuple[torch.Tensor, bool]:
        """See `Engine.multiply`."""
        a, b = left.matrices, right.matrices
        batch, m, k, n = max(a.shape[0], b.shape[0]), a.shape[1], a.shape[2], b.shape[2]
        out, special = torch.empty((batch, m, n), dtype=torch.float32), np.zeros(1, np.int64)
        compiled.run(
            small,
            batch,
            flat(a),
            a.stride(0) if a.shape[0] > 1 else 0,
            *a.stride()[1:],
            flat(b),
            b.stride(0) if b.shape[0] > 1 else 0,
            *b.stride()[1:],
            m,
            k,
            n,
            bits,
            out.view(-1).numpy(),
            special,
            weight=m * k * n // 8,
        )
        return out, bool(special[0])


FLOAT64 = Float64()
SMALL = Small()
