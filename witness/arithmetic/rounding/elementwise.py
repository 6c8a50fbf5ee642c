"""Element-wise operations that torch may fuse or round its own way, taken apart into single IEEE operations.

torch contracts `x + alpha * y`, `lerp`, `addcmul` and `addcdiv` into fused multiply-adds where the CPU has them, and a
GPU divides by a Python number by multiplying with its reciprocal. Here each operation rounds once, in the order in
which the formula is written.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from protocol.errors import UsageError
from witness.arithmetic.matrix.scaling import canonical_nan, power_of_two
from witness.arithmetic.registry import OPERATORS, operator

Number = int | float
Operand = torch.Tensor | int | float


@operator("add")
def add(x: Operand, y: Operand, alpha: Number = 1) -> torch.Tensor:
    """`x + alpha * y`: the product rounds, then the sum."""
    return torch.add(x, y if alpha == 1 else _scaled(x, y, alpha))


@operator("sub")
def sub(x: Operand, y: Operand, alpha: Number = 1) -> torch.Tensor:
    """`x - alpha * y`."""
    return torch.sub(x, y if alpha == 1 else _scaled(x, y, alpha))


@operator("rsub")
def rsub(x: torch.Tensor, y: Operand, alpha: Number = 1) -> torch.Tensor:
    """`y - alpha * x`."""
    scaled = x if alpha == 1 else x * alpha
    return torch.sub(y, scaled) if isinstance(y, torch.Tensor) else torch.rsub(scaled, y)


def _scaled(x: Operand, y: Operand, alpha: Number) -> Operand:
    """`alpha * y` in the type that the sum is computed in."""
    if isinstance(y, torch.Tensor):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and not y.is_floating_point():
            y = y.to(x.dtype)
        return y * alpha
    return y * alpha


def as_divisor(x: torch.Tensor, y: Operand) -> Operand:
    """A Python number as a tensor where the device would multiply by its reciprocal instead."""
    if isinstance(y, torch.Tensor) or x.device.type == "cpu":
        return y
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    return torch.full((), float(y), dtype=torch.float32 if dtype.itemsize == 2 else dtype, device=x.device)


@operator("div")
def div(x: torch.Tensor, y: Operand, rounding_mode: str | None = None) -> torch.Tensor:
    """The IEEE quotient; with a rounding mode, of the quotient once rounded."""
    if rounding_mode is None:
        return torch.div(x, as_divisor(x, y))
    floats = x.is_floating_point() or (y.is_floating_point() if isinstance(y, torch.Tensor) else isinstance(y, float))
    if not floats:
        return torch.div(x, y, rounding_mode=rounding_mode)
    quotient = torch.div(x, as_divisor(x, y))
    return quotient.trunc() if rounding_mode == "trunc" else quotient.floor()


@operator("floor_divide")
def floor_divide(x: torch.Tensor, y: Operand) -> torch.Tensor:
    """Of the quotient once rounded: may differ by one from torch's where that quotient is nearly whole."""
    return div(x, y, "floor")


@operator("remainder")
def remainder(x: torch.Tensor, y: Operand) -> torch.Tensor:
    """`x - floor(x / y) * y`, each operation rounding once."""
    divisor = y if isinstance(y, torch.Tensor) else torch.full((), float(y), dtype=x.dtype, device=x.device)
    return x - torch.div(x, divisor).floor() * divisor


@operator("fmod")
def fmod(x: torch.Tensor, y: Operand) -> torch.Tensor:
    """`x - trunc(x / y) * y`, each operation rounding once."""
    divisor = y if isinstance(y, torch.Tensor) else torch.full((), float(y), dtype=x.dtype, device=x.device)
    return x - torch.div(x, divisor).trunc() * divisor


@operator("addcmul")
def addcmul(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, value: Number = 1) -> torch.Tensor:
    """`x + (value * y) * z`."""
    return x + (y if value == 1 else y * value) * z


@operator("addcdiv")
def addcdiv(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, value: Number = 1) -> torch.Tensor:
    """`x + value * (y / z)`."""
    quotient = y / z
    return x + (quotient if value == 1 else quotient * value)


@operator("lerp")
def lerp(x: torch.Tensor, y: torch.Tensor, weight: Operand) -> torch.Tensor:
    """`x + weight * (y - x)` for weights below 1/2, `y - (1 - weight) * (y - x)` otherwise, as torch has it."""
    difference = y - x
    if isinstance(weight, torch.Tensor):
        return torch.where(weight.abs() < 0.5, x + weight * difference, y - difference * (1 - weight))
    return x + difference * weight if abs(weight) < 0.5 else y - difference * (1 - weight)


@operator("round")
def round_(x: torch.Tensor, decimals: int = 0) -> torch.Tensor:
    """To the nearest whole number, ties to even; with decimals, scaled by a power of ten and back, each rounding."""
    if not decimals:
        return torch.round(x)
    power = torch.full((), 10.0 ** abs(decimals), dtype=x.dtype, device=x.device)
    return torch.round(x * power) / power if decimals > 0 else torch.round(x / power) * power


@operator("deg2rad")
def deg2rad(x: torch.Tensor) -> torch.Tensor:
    """Times pi / 180, rounded to the type."""
    return floating(x) * (math.pi / 180.0)


@operator("rad2deg")
def rad2deg(x: torch.Tensor) -> torch.Tensor:
    """Times 180 / pi, rounded to the type."""
    return floating(x) * (180.0 / math.pi)


def floating(x: torch.Tensor) -> torch.Tensor:
    """Integers and booleans in the default precision, as torch converts them; floats as they are."""
    return x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())


@operator("linalg_cross")
def cross(x: torch.Tensor, y: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    """The cross product: two products and a difference an element."""
    x, y = torch.broadcast_tensors(x, y)  # type: ignore[no-untyped-call]
    if x.shape[dim] != 3:
        raise RuntimeError(f"linalg.cross: inputs dimension {dim} must have length 3. Got {x.shape[dim]}")
    (a, b, c), (d, e, f) = x.unbind(dim), y.unbind(dim)
    return torch.stack([b * f - c * e, c * d - a * f, a * e - b * d], dim)


@operator("copysign")
def copysign(x: torch.Tensor, y: Operand) -> torch.Tensor:
    """The magnitude of `x` with the sign of `y`; that of a NaN, which differs between devices, counts as plus."""
    if not isinstance(y, torch.Tensor):
        return torch.copysign(x, 0.0 if y != y else y)
    return torch.copysign(x, y.masked_fill(y.isnan(), 0.0) if y.is_floating_point() else y)


@operator("signbit", halves=True)
def signbit(x: torch.Tensor) -> torch.Tensor:
    """Whether negative, or -0; false for NaN."""
    return torch.signbit(x) & ~x.isnan()


@operator("view.dtype", halves=True)
def view_as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same memory as another type: every NaN in it is first given its one pattern, in place."""
    if x.is_floating_point() and x.dtype != dtype:
        settled = canonical_nan(x)
        if settled is not x:
            x.copy_(settled)
    return torch.ops.aten.view.dtype(x, dtype)  # type: ignore[no-any-return]


@operator("frexp", halves=True)
def frexp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Fraction and exponent; the exponent of what is not finite, which C leaves open, is 0."""
    fraction, exponent = torch.frexp(x)
    return fraction, torch.where(x.isfinite(), exponent, torch.zeros_like(exponent))


@operator("ldexp")
def ldexp(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`x * 2**y`: the power rounds to the precision of the result, then the product, as in torch."""
    if y.is_floating_point() and bool(((y != y.trunc()) & y.isfinite()).any()):
        return x * OPERATORS["pow"](2.0, y)  # type: ignore[no-any-return]
    dtype = torch.result_type(x, y)
    dtype = dtype if dtype.is_floating_point else torch.get_default_dtype()
    n = torch.where(y.isnan(), torch.zeros_like(y), y).clamp(-1200, 1200).to(torch.int64)
    low = n.clamp(-1022, 1023)
    power = power_of_two(low) * power_of_two((n - low).clamp(-1022, 1))
    if y.is_floating_point():
        power = power.masked_fill(y.isnan(), torch.nan)
    return x.to(dtype) * power.to(dtype)


@operator("_to_copy", halves=True)
def to_copy(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """A conversion. From floats to integers it saturates and NaN becomes 0: C leaves both undefined.

    To half precision it goes by way of float32, and so may round twice.
    """
    dtype = kwargs.get("dtype") or x.dtype
    return torch.ops.aten._to_copy.default(_in_range(x, dtype), *args, **kwargs)  # type: ignore[no-any-return] # noqa: SLF001


@operator("copy_", halves=True, in_place=True)
def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """A conversion in place; see `to_copy`."""
    return torch.ops.aten.copy_.default(target, _in_range(source, target.dtype), non_blocking)  # type: ignore[no-any-return]


def _in_range(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What is to be converted, so that the conversion is the same everywhere: to half precision by way of float32."""
    if dtype.itemsize == 1 and dtype.is_floating_point and x.dtype != dtype:
        raise UsageError(
            "exact-refused", f"a conversion to {dtype} has no exact definition (releases of torch differ): use bfloat16"
        )
    if dtype.itemsize == 2 and dtype.is_floating_point and x.dtype.itemsize >= 4 and x.dtype != torch.float32:
        return x.float()
    if not x.is_floating_point() or dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return x
    info = torch.iinfo(dtype)
    wide = x.double()
    largest = float(info.max) if info.bits < 64 else 9223372036854774784.0  # the largest float64 that fits
    wide = torch.where(wide > largest, torch.full_like(wide, largest), wide)
    wide = torch.where(wide < float(info.min), torch.full_like(wide, float(info.min)), wide)
    return torch.where(wide.isnan(), torch.zeros_like(wide), wide)
