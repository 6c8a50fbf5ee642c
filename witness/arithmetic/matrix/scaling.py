"""Powers of two and the exponent field: how values are put on a grid without rounding anything but the grid.

Everything here is made from bits. `pow`, `ldexp`, `frexp` and `exp2` are not the same bits in every library, and a
scaling factor that is off by one unit in the last place would not be a power of two.
"""

from __future__ import annotations

import torch

NOT_FINITE = 255
"""Exponent field of infinities and NaN in float32."""

_QUIET = {
    torch.float64: (torch.int64, 0x7FF8000000000000),
    torch.float32: (torch.int32, 0x7FC00000),
    torch.bfloat16: (torch.int16, 0x7FC0),
    torch.float16: (torch.int16, 0x7E00),
    torch.float8_e4m3fn: (torch.int8, 0x7F),
    torch.float8_e5m2: (torch.int8, 0x7E),
}


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """`2**exponent` in float64, exactly.

    Args:
        exponent: integers in -1022 .. 1023, any shape.
    """
    return ((exponent.to(torch.int64) + 1023) << 52).view(torch.float64)


def largest_fields(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The largest exponent field along one dimension: 0 for zeros and subnormals, `NOT_FINITE` for infinities and NaN.

    Works on the bits, because the maximum of floats treats NaN differently from one library to the next.

    Args:
        x: float32.
        dim: dimension to reduce; it is kept, with length 1, and must not be empty.

    Returns:
        int32 in 0 .. 255.
    """
    return ((x.view(torch.int32) & 0x7FFFFFFF) >> 23).amax(dim=dim, keepdim=True)


def exponents(fields: torch.Tensor) -> torch.Tensor:
    """The least e with `|x| < 2**e` for every finite x of that exponent field, and -125 below the normal range.

    Args:
        fields: what `largest_fields` returns.
    """
    return fields.clamp(min=1) - 126


def canonical_nan(x: torch.Tensor) -> torch.Tensor:
    """The same numbers, every NaN with the one pattern (0x7fc00000 in float32): devices disagree about NaN's bits.

    Args:
        x: any dtype; what is not floating point has no NaN and comes back as it is.

    Returns:
        `x` itself where it has no NaN, else a copy.
    """
    if x.dtype not in _QUIET:
        return x
    nan = torch.isnan(x.float() if x.element_size() == 1 else x)
    if not bool(nan.any()):
        return x
    integer, pattern = _QUIET[x.dtype]
    return x.view(integer).masked_fill(nan, pattern).view(x.dtype)
