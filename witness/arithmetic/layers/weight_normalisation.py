"""Weight normalisation: a direction and a length (Salimans, Kingma, 2016), as torch dispatches it where it is fused.

For each index of dimension `dim`, over all other dimensions:

    norm = sqrt(total(v * v)),  w = v * (g / norm)
    dot = total(dw * v),  dg = dot / norm,  dv = (dw - v * (dot / (norm * norm))) * (g / norm)

Norms are held below a bound (`renorm`, `max_norm` of embeddings) by a factor `bound / (norm + 1e-7)` where they exceed
it.
"""

from __future__ import annotations

import torch

from witness.arithmetic.elementary.elements import root
from witness.arithmetic.layers.derivatives import widened
from witness.arithmetic.registry import operator
from witness.arithmetic.summation import sums
from witness.arithmetic.summation.reductions import vector_norm


def _over_others(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The total over every dimension but one; with size 1 in those."""
    shape = [size if place == dim % x.dim() else 1 for place, size in enumerate(x.shape)]
    return sums.total(x.movedim(dim, 0).reshape(x.shape[dim], -1), 1).view(shape)


@operator("_weight_norm_interface", halves=True)
def weight_norm(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight, and the norms of its directions (of the shape of `g`, wide)."""
    wide = widened(v)
    norm = root(_over_others(wide * wide, dim)).view(g.shape)
    return (wide * (widened(g) / norm)).to(v.dtype), norm


@operator("_weight_norm_interface_backward", halves=True)
def weight_norm_backward(
    grad: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norm: torch.Tensor, dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of direction and length."""
    wide, up, norm = widened(v), widened(grad), widened(norm)
    dot = _over_others(up * wide, dim).view(g.shape)
    by_v = (up - wide * (dot / (norm * norm))) * (widened(g) / norm)
    return by_v.to(v.dtype), (dot / norm).to(g.dtype)


def _held(rows: torch.Tensor, p: float, bound: float) -> torch.Tensor:
    """Rows (n, m) whose norms are within the bound."""
    norm = vector_norm(rows, p, 1, True)
    most = torch.full_like(norm, bound)
    factor = torch.where(norm > most, most / (norm + 1e-7), torch.ones_like(norm))
    return torch.where(norm > most, rows * factor, rows)


@operator("renorm", halves=True)
def renorm(x: torch.Tensor, p: float, dim: int, maxnorm: float) -> torch.Tensor:
    """Slices along a dimension with norms of at most `maxnorm`."""
    slices = widened(x).movedim(dim, 0)
    held = _held(slices.reshape(slices.shape[0], -1), p, maxnorm).reshape(slices.shape)
    return torch.empty_like(x).copy_(held.movedim(0, dim))


@operator("embedding_renorm_", halves=True, in_place=True)
def embedding_renorm_(table: torch.Tensor, index: torch.Tensor, max_norm: float, norm_type: float) -> torch.Tensor:
    """Holds the rows that are used, in place."""
    used = index.reshape(-1).unique()  # type: ignore[no-untyped-call]
    return table.index_copy_(0, used, _held(widened(table[used]), norm_type, max_norm).to(table.dtype))
