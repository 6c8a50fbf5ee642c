"""The exact product of matrices: defined on integers, so that no order, blocking, vector width or device can matter.

Definition, for C = A @ B with p magnitude bits, A of (M, K), B of (K, N), float32:

1. Row i of A has the exponent `ea[i] = max(1, largest exponent field of the row) - 126`, so `|a| < 2**ea[i]` for each
   finite element a of it; column j of B has `eb[j]` alike.
2. `qa = round(a * 2**(p - ea[i]))` and `qb = round(b * 2**(p - eb[j]))`, half to even; `|q| <= 2**p`.
3. `S[i, j] = sum over k of qa[i, k] * qb[k, j]`, an exact integer; 0 where K = 0.
4. `C[i, j] = S * 2**(ea[i] + eb[j] - 2p)`, rounded once to float32, half to even, subnormals and overflow as IEEE says;
   S = 0 gives +0.

Where row i of A or column j of B holds an infinity or NaN, C[i, j] is what IEEE arithmetic gives in any order: NaN if a
term is NaN (an operand is NaN, or infinity times zero) or if there are infinite terms of both signs, else the infinity
of the terms' sign. Other rows and columns do not notice. (With such an element in row i, term k is infinite or NaN
whatever b is, so a finite result cannot be.)

bfloat16 and float16 operands are converted to float32 first, which is exact; the result is float32 and the caller
converts it. float64 operands are refused. Batch dimensions broadcast as for `torch.matmul`; each matrix of a batch, and
each row and column of a matrix, has the bits it would have alone.
"""

from __future__ import annotations

import torch

from protocol.errors import UsageError
from witness.arithmetic.matrix import trials
from witness.arithmetic.matrix.engines import FLOAT64
from witness.arithmetic.matrix.operands import Form, Operand, touched

_CONVERTED = (torch.float32, torch.bfloat16, torch.float16)


def prepare(x: torch.Tensor, axis: int, bits: int) -> Operand:
    """Makes an operand that several products may share.

    Args:
        x: float32, bfloat16 or float16 of at least two dimensions.
        axis: -1 if it will stand on the left, -2 on the right.
        bits: magnitude bits p, 8 .. 18.

    Raises:
        UsageError: `exact-refused` for any other dtype.
    """
    if x.dtype not in _CONVERTED:
        raise UsageError(
            "exact-refused",
            f"an exact product of {x.dtype} operands is not defined: convert them with .float(), or keep the model in"
            " float32 (bfloat16 and float16 work too)",
        )
    if x.dim() < 2 or not 8 <= bits <= 18:
        raise UsageError("exact-refused", f"a product needs matrices and 8 to 18 bits, not {tuple(x.shape)} and {bits}")
    return Operand(x.detach().resolve_neg().to(torch.float32), axis, bits)


def multiply(a: torch.Tensor | Operand, b: torch.Tensor | Operand, bits: int) -> torch.Tensor:
    """The exact product defined above.

    Args:
        a: (..., M, K), any strides.
        b: (..., K, N), any strides; batch dimensions broadcast.
        bits: magnitude bits p.

    Returns:
        float32 (..., M, N), contiguous.

    Raises:
        UsageError: `exact-refused` for float64 or integer operands.
        ValueError: if the shapes do not fit.
    """
    left = a if isinstance(a, Operand) else prepare(a, -1, bits)
    right = b if isinstance(b, Operand) else prepare(b, -2, bits)
    if (left.bits, left.axis, right.bits, right.axis) != (bits, -1, bits, -2):
        raise ValueError("an operand was prepared for another side or precision")
    x, y = left.values, right.values
    (m, k), (k2, n) = x.shape[-2:], y.shape[-2:]
    if k != k2:
        raise ValueError(f"shapes {tuple(x.shape)} and {tuple(y.shape)} cannot be multiplied")
    batch = x.shape[:-2]
    if batch != y.shape[:-2]:
        batch = torch.broadcast_shapes(batch, y.shape[:-2])  # type: ignore[no-untyped-call]
    if 0 in (*batch, m, n, k):
        return torch.zeros((*batch, m, n), dtype=torch.float32, device=x.device)
    if x.shape[:-2] != y.shape[:-2]:
        if y.shape[:-2].numel() == 1 and not isinstance(a, Operand):  # one right operand: the batch is more rows
            left = Operand(x.reshape(1, -1, k), -1, bits)
        elif x.shape[:-2] != batch and x.shape[:-2].numel() > 1:
            left = Operand(x.expand(*batch, m, k), -1, bits)
        if y.shape[:-2] != batch and y.shape[:-2].numel() > 1:
            right = Operand(y.expand(*batch, k, n), -2, bits)
    return _product(left, right, bits).reshape(*batch, m, n)


def _product(left: Operand, right: Operand, bits: int) -> torch.Tensor:
    if left.values.shape[-1] > FLOAT64.longest(bits):
        a, b = left.form(FLOAT64), right.form(FLOAT64)
        out, special = _long(a, b, bits), a.special or b.special
    else:
        out, special = trials.multiply(left, right, bits)
    return torch.where(touched(left, right), _without_order(left.matrices, right.matrices), out) if special else out


def _long(a: Form, b: Form, bits: int) -> torch.Tensor:
    """K beyond what one float64 sum holds: blocks of it, summed in int64, and still one rounding.

    `|S| <= 2**(2p) * K`, so int64 holds it for `K < 2**(63 - 2p)`, which is 2**27 for p = 18. From 2**53 on, S is first
    cut to 53 bits rounding to odd (whatever was cut off sets the last bit): the rounding to float32 that follows then
    equals the rounding of S itself, subnormals included, since 53 >= 24 + 2.
    """
    k, block = a.data.shape[-1], FLOAT64.longest(bits)
    if k >> (63 - 2 * bits):
        raise UsageError("exact-refused", f"a product over {k} terms is beyond 2**{63 - 2 * bits}: split it")
    total: torch.Tensor | None = None
    qa, qb = a.data / a.steps, b.data / b.steps
    for start in range(0, k, block):
        part = torch.matmul(qa[..., start : start + block], qb[..., start : start + block, :]).to(torch.int64)
        total = part if total is None else total + part
    assert total is not None  # noqa: S101
    odd = ((total >> 10) | ((total & 1023) != 0)) << 10
    exact = torch.where(total.abs() < (1 << 53), total, odd).to(torch.float64)
    return (exact * a.steps * b.steps).to(torch.float32)


def _without_order(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """NaN or an infinity for outputs that have a term of either kind; arbitrary elsewhere.

    Counts of terms, as float64 products of 0, 1 and -1: exact for any K.
    """
    sign_a, sign_b = _signs(a), _signs(b)
    inf_a, inf_b = a.isinf().double(), b.isinf().double()
    finite_a = 1.0 - inf_a
    # Terms with an infinity: the sum of their signs, and their number (zero times infinity counts as none).
    balance = torch.matmul(sign_a * inf_a, sign_b) + torch.matmul(sign_a * finite_a, sign_b * inf_b)
    number = torch.matmul(sign_a.abs() * inf_a, sign_b.abs()) + torch.matmul(
        sign_a.abs() * finite_a, sign_b.abs() * inf_b
    )
    invalid = torch.matmul(inf_a, (b == 0).double()) + torch.matmul((a == 0).double(), inf_b)
    nan = a.isnan().any(-1, keepdim=True) | b.isnan().any(-2, keepdim=True) | (invalid > 0) | (balance.abs() != number)
    infinity = torch.where(balance > 0, torch.inf, -torch.inf)
    return torch.where(nan, torch.nan, infinity).to(torch.float32)


def _signs(x: torch.Tensor) -> torch.Tensor:
    """-1, 0 or 1; 0 for NaN."""
    return (x > 0).double() - (x < 0).double()
