"""Operands of exact products: put on their grid once for each engine that asks, and read from where they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from witness.arithmetic import compiled
from witness.arithmetic.matrix.scaling import NOT_FINITE, largest_fields

if TYPE_CHECKING:
    from witness.arithmetic.matrix.engines import Engine


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """One operand as an engine wants it.

    Attributes:
        data: (B, rows, columns), the grid values or the planes of digits; a transposed view where the operand was one.
        steps: float64 `2**(e - p)`, (B, rows, 1) for the left operand, (B, 1, columns) for the right one.
        special: whether a row (column) of the operand holds an infinity or NaN; what `data` has there is arbitrary.
    """

    data: torch.Tensor
    steps: torch.Tensor
    special: bool


class Operand:
    """A matrix, or a batch of them, for one side of products that may share it.

    Do not write to the tensor while its operand is in use.

    Attributes:
        values: float32 (..., rows, columns).
        axis: the dimension summed over: -1 for a left operand, -2 for a right one.
        bits: p.
    """

    __slots__ = ("_forms", "axis", "bits", "values")

    def __init__(self, values: torch.Tensor, axis: int, bits: int) -> None:
        self.values, self.axis, self.bits = values, axis, bits
        self._forms: dict[str, Form] = {}

    @property
    def matrices(self) -> torch.Tensor:
        """The values with all batch dimensions in one: (B, rows, columns)."""
        return self.values if self.values.dim() == 3 else self.values.reshape(-1, *self.values.shape[-2:])

    def form(self, engine: Engine) -> Form:
        """This operand as an engine wants it."""
        form = self._forms.get(engine.name)
        if form is None:
            form = self._forms[engine.name] = engine.form(self.matrices, self.axis, self.bits)
        return form


def touched(left: Operand, right: Operand) -> torch.Tensor:
    """Which elements of the product, (B, M, N) or broadcast to it, have an infinity or NaN in their row or column."""
    rows = largest_fields(left.matrices, -1) == NOT_FINITE
    return rows | (largest_fields(right.matrices, -2) == NOT_FINITE)


def flat(x: torch.Tensor) -> np.ndarray:
    """The memory of a CPU tensor from its first element to its last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.as_strided((span,), (1,), x.storage_offset()).numpy()


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """An operand as kernels read it: flat memory and strides, in the order in which it lies there.

    Attributes:
        array: from the first element to the last.
        shape: batch, rows, columns, with the columns of one row together.
        strides: of batch and rows.
        transposed: whether rows and columns are those of the transposed operand.
        by_rows: whether exponents belong to rows.
    """

    array: np.ndarray
    shape: tuple[int, int, int]
    strides: tuple[int, int]
    transposed: bool
    by_rows: bool

    @classmethod
    def of(cls, x: torch.Tensor, axis: int) -> Memory:
        """Any float32 CPU tensor of three non-empty dimensions; copied only where neither of the last two is together.

        Args:
            x: (B, rows, columns).
            axis: -1 if exponents belong to rows of x, -2 if they belong to columns.
        """

        def together(t: torch.Tensor) -> bool:
            return t.stride(2) == 1 or t.shape[2] == 1

        transposed = not together(x) and together(x.mT)
        x = x.mT if transposed else x if together(x) else x.contiguous()
        batch, rows, columns = x.shape
        return cls(flat(x), (batch, rows, columns), (x.stride(0), x.stride(1)), transposed, (axis == -1) != transposed)

    def fill(
        self,
        rows_kernel: Callable[..., None],
        columns_kernel: Callable[..., None],
        bits: int,
        places: tuple[int, ...],
        out: torch.Tensor,
    ) -> Form:
        """Runs the kernel for this order of memory.

        Args:
            rows_kernel: for exponents that belong to rows of the memory.
            columns_kernel: for exponents that belong to its columns.
            bits: p.
            places: further arguments of the kernels, before the array that they fill.
            out: contiguous (B, rows, columns) in the order of the memory.
        """
        batch, rows, columns = self.shape
        lines = batch * (rows if self.by_rows else columns)
        fields, steps = np.empty(lines, np.int32), torch.empty(lines, dtype=torch.float64)
        compiled.run(
            rows_kernel if self.by_rows else columns_kernel,
            lines,
            self.array,
            rows,
            columns,
            *self.strides,
            bits,
            *places,
            out.view(-1).numpy(),
            fields,
            steps.numpy(),
            weight=columns if self.by_rows else rows,
        )
        steps = steps.view((batch, rows, 1) if self.by_rows else (batch, 1, columns))
        if self.transposed:
            return Form(out.mT, steps.mT, bool(fields.max() == NOT_FINITE))
        return Form(out, steps, bool(fields.max() == NOT_FINITE))
