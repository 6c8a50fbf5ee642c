"""Distinct elements, by a stable sort: ascending, asked for or not; a zero is +0, and each NaN is one more.

torch leaves the order of unsorted results to hashing, and which of two equal zeros stands for both to the device.
"""

from __future__ import annotations

import torch

from witness.arithmetic.registry import operator


@operator("_unique2", halves=True)
def unique(
    x: torch.Tensor,
    sorted: bool = True,  # noqa: A002 - torch's name
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct elements; the place among them of each element; and how often each occurs, or nothing."""
    del sorted
    values, order = torch.sort(x.reshape(-1), stable=True)
    first = torch.ones_like(order, dtype=torch.bool)
    torch.ne(values[1:], values[:-1], out=first[1:])
    inverse = counts = order.new_empty(0)
    if return_inverse:
        inverse = torch.empty_like(order)
        inverse[order] = first.cumsum(0) - 1
        inverse = inverse.reshape(x.shape)
    if return_counts:
        begins = torch.cat([first.nonzero()[:, 0], order.new_tensor([order.numel()])])
        counts = begins[1:] - begins[:-1]
    return _positive_zero(values[first]), inverse, counts


@operator("_unique", halves=True)
def unique_without_counts(
    x: torch.Tensor,
    sorted: bool = True,  # noqa: A002, ARG001 - torch's name
    return_inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The distinct elements, and the place among them of each."""
    return unique(x, return_inverse=return_inverse)[:2]


@operator("unique_dim", halves=True)
def unique_dim(
    x: torch.Tensor,
    dim: int,
    sorted: bool = True,  # noqa: A002, ARG001 - torch's name
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The distinct slices, ascending."""
    values, *rest = torch.ops.aten.unique_dim.default(x, dim, True, return_inverse, return_counts)
    return _positive_zero(values), *rest


def _positive_zero(x: torch.Tensor) -> torch.Tensor:
    return x + 0.0 if x.is_floating_point() else x
