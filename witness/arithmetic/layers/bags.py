"""Bags of embeddings (`nn.EmbeddingBag`): sums and means of the rows of a table, accumulated as `placing` does.

    out[b] = the sum over the places i of bag b of table[index[i]] (* weight[i]), divided by their number for a mean
    by table: the sum over places of the gradient of their bag (* weight[i]), divided likewise
    by weight: total(g[b] * table[index[i]])

Places that hold the padding index count for nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from protocol.errors import UsageError
from witness.arithmetic.layers.derivatives import widened
from witness.arithmetic.registry import operator
from witness.arithmetic.summation import sums
from witness.arithmetic.summation.placing import accumulate

SUM, MEAN = 0, 1
"""Torch's numbers for what becomes of a bag."""

Optional = torch.Tensor | None


def _checked(mode: int, by_frequency: bool) -> None:
    if mode not in (SUM, MEAN) or by_frequency:
        raise UsageError(
            "exact-refused",
            "embedding bags with mode='max' or scale_grad_by_freq have no exact definition: sum or mean",
        )


def _weighted(rows: torch.Tensor, weights: Optional, used: torch.Tensor) -> torch.Tensor:
    if weights is not None:
        rows = rows * widened(weights)[:, None]
    return torch.where(used[:, None], rows, torch.zeros_like(rows))


@operator("_embedding_bag", "_embedding_bag_forward_only", halves=True)
def embedding_bag(
    table: torch.Tensor,
    index: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: Optional = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, ...]:
    """Sums or means by bag; the bag of each place, the sizes of bags, and zeros where torch has those of a maximum.

    Args:
        table: (rows, features).
        index: (places,).
        offsets: where each bag begins.
        scale_grad_by_freq: refused.
        mode: see `SUM` and `MEAN`.
        sparse: not looked at: the gradient is dense.
        per_sample_weights: (places,), for sums.
        include_last_offset: whether the last offset is where the last bag ends.
        padding_idx: the index that counts for nothing.
    """
    del sparse
    _checked(mode, scale_grad_by_freq)
    if index.numel() and bool(((index < 0) | (index >= table.shape[0])).any()):
        raise RuntimeError(f"an index of an embedding bag lies outside of {table.shape[0]} rows")
    if offsets.numel() and (int(offsets[0]) != 0 or int(offsets[-1]) > index.numel()):
        raise RuntimeError("offsets of bags begin with 0 and end within the indices")
    bags = offsets.numel() - include_last_offset
    places = torch.arange(index.numel(), device=index.device)
    bag = torch.searchsorted(offsets[:bags].to(torch.int64).contiguous(), places, right=True) - 1
    used = index != padding_idx
    sizes = torch.zeros(bags, dtype=torch.int64, device=index.device).index_add_(0, bag, used.to(torch.int64))
    rows = _weighted(widened(table)[index.to(torch.int64)], per_sample_weights, used)
    out = accumulate(bags, bag, rows)
    if mode == MEAN:
        out = out / sizes.clamp(min=1).to(out.dtype)[:, None]
    return out.to(table.dtype), bag.to(offsets), sizes.to(offsets), torch.zeros_like(sizes).to(offsets)


@operator("_embedding_bag_backward", halves=True)
def embedding_bag_backward(
    grad: torch.Tensor,
    index: torch.Tensor,
    offsets: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Optional,
    padding_idx: int = -1,
) -> torch.Tensor:
    """By the table, (num_weights, features)."""
    del offsets, maximum_indices
    _checked(mode, scale_grad_by_freq)
    if sparse:
        raise UsageError("exact-refused", "sparse gradients have no exact definition: sparse=False")
    bag, g = offset2bag.to(torch.int64), widened(grad)
    if mode == MEAN:
        g = g / bag_size.clamp(min=1).to(g.dtype)[:, None]
    rows = _weighted(g[bag], per_sample_weights, index != padding_idx)
    return accumulate(num_weights, index.to(torch.int64), rows).to(grad.dtype)


@operator("_embedding_bag_per_sample_weights_backward", halves=True)
def by_weights(
    grad: torch.Tensor, table: torch.Tensor, index: torch.Tensor, offsets: torch.Tensor, offset2bag: torch.Tensor,
    mode: int, padding_idx: int = -1,
) -> Any:  # fmt: skip
    """By the weights, (places,)."""
    del offsets, mode
    products = widened(grad)[offset2bag.to(torch.int64)] * widened(table)[index.to(torch.int64)]
    found = sums.total(products, 1, owned=True)
    return torch.where(index != padding_idx, found, torch.zeros_like(found)).to(grad.dtype)
