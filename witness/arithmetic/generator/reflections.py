"""QR decomposition by Householder reflections, for orthogonal initialisation.

Everything is computed in float64 from the matrix scaled by a power of two; inner products are sums by halving
(`summation.sums`). Signs are LAPACK's: a diagonal element of R has the opposite sign of the element that its
reflection started from, and the last row of a square matrix is not reflected.
"""

from __future__ import annotations

import math

import torch

from witness.arithmetic import compiled
from witness.arithmetic.elementary.elements import root
from witness.arithmetic.kernels import reflections as kernels
from witness.arithmetic.registry import operator
from witness.arithmetic.summation import sums


@operator("linalg_qr")
def qr(a: torch.Tensor, mode: str = "reduced") -> tuple[torch.Tensor, torch.Tensor]:
    """Q with orthonormal columns and upper triangular R, of product `a`, each element rounded once from float64.

    A column whose remainder is below 2^-500 of the largest element counts as zero.

    Args:
        a: (..., m, n), float32 or float64.
        mode: `reduced`, `complete` or `r`, as of `torch.linalg.qr`.

    Returns:
        Q (..., m, k), empty for `r`, and R (..., k, n); k is min(m, n), or m if complete.
    """
    *batch, m, n = a.shape
    k = m if mode == "complete" else min(m, n)
    work, scale = _scaled(a.to(torch.float64).reshape(math.prod(batch), m, n))
    q = torch.zeros(work.shape[0], m, k if mode != "r" else 0, dtype=torch.float64, device=a.device)
    q.diagonal(dim1=1, dim2=2).fill_(1.0)
    if work.numel() and compiled.usable(work, q):
        compiled.run(kernels.factor, work.shape[0], work.numpy(), q.numpy(), weight=m * n * k)
    elif work.numel():
        for matrix, basis in zip(work, q, strict=True):
            _factor(matrix, basis)
    r = (work[:, :k] / scale).to(a.dtype).reshape(*batch, k, n)
    return (q.to(a.dtype).reshape(*batch, m, k) if mode != "r" else q.new_empty(0, dtype=a.dtype)), r


def _factor(a: torch.Tensor, q: torch.Tensor) -> None:
    """Turns the matrix `a` into R, and `q`, zeros with a unit diagonal, into Q."""
    m, n = a.shape
    reflections = []
    for j in range(min(m - 1, n)):
        v = a[j:, j].clone()
        norm = root(sums.total(v * v, 0))
        alpha = a[j, j].clone()
        signed = torch.copysign(norm, alpha)
        v[0] = alpha + signed
        t = torch.where(norm == 0, torch.zeros_like(norm), torch.ones_like(norm) / (norm * (norm + alpha.abs())))
        reflections.append((v, t))
        _reflect(v, t, a[j:, j + 1 :])
        a[j, j] = -signed
        a[j + 1 :, j] = 0.0
    for j, (v, t) in reversed(list(enumerate(reflections))):
        _reflect(v, t, q[j:, j:])


def _reflect(v: torch.Tensor, t: torch.Tensor, w: torch.Tensor) -> None:
    """`w -= (t v) (v^T w)`."""
    if w.numel():
        inner = sums.total(v[:, None] * w, 0)
        w -= (t * v)[:, None] * inner


def _scaled(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each matrix times the power of two that brings its largest element to [1, 2), and those powers (1 for zeros)."""
    if a.numel() == 0:
        return a.contiguous(), a.new_ones(a.shape[0], 1, 1)
    largest = a.abs().amax((1, 2), keepdim=True)
    exponent = ((largest.view(torch.int64) >> 52) & 0x7FF).clamp(1023 - 1000, 1023 + 1000)
    power = ((2046 - exponent) << 52).view(torch.float64)
    return a * torch.where(largest == 0, torch.ones_like(power), power), power
