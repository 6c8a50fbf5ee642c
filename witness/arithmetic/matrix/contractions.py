"""Products that torch takes apart one way or another, by strides, environment and release: here by shapes alone.

`F.linear` of more than two dimensions is sometimes one `addmm` and sometimes a product to which the bias is added: in
half precision that is one rounding or two, and the gradient of the bias is another sum. `tensordot` of two lines is a
product, or a sum of products where they are strided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from witness.arithmetic.layers.cross_entropy import cross_entropy
from witness.arithmetic.registry import function

Optional = torch.Tensor | None


@function(F.linear)
def linear(
    input: torch.Tensor,  # noqa: A002 - torch's name
    weight: torch.Tensor,
    bias: Optional = None,
    *,
    out: Optional = None,
) -> torch.Tensor:
    """`F.linear`: the leading dimensions of the input as one, `x @ weight.T`, then the bias, in one operator.

    Args:
        input: (..., features).
        weight: (outputs, features), or (features,).
        bias: (outputs,).
        out: as torch has it, undocumented.
    """
    if out is not None:
        found = linear(input, weight, bias)
        return out.resize_(found.shape).copy_(found)
    if input.dim() == 2 or weight.dim() != 2:
        return F.linear(input, weight, bias)
    flat = F.linear(input.reshape(input.shape[:-1].numel(), input.shape[-1]), weight, bias)
    return flat.reshape(*input.shape[:-1], weight.shape[0])


@function(torch.tensordot)
def tensordot(a: torch.Tensor, b: torch.Tensor, dims: Any = 2, out: Optional = None) -> torch.Tensor:
    """`torch.tensordot`: one product of matrices, the dimensions summed over in the order in which they are named."""
    if isinstance(dims, torch.Tensor):
        dims = dims.item() if dims.numel() == 1 else dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(a.dim(), b.dim()):
            raise RuntimeError(f"tensordot over {dims} dimensions of {tuple(a.shape)} and {tuple(b.shape)}")
        dims = list(range(a.dim() - dims, a.dim())), list(range(dims))
    over_a, over_b = ([d % t.dim() for d in _listed(places)] for t, places in zip((a, b), dims, strict=True))
    for d, e in zip(over_a, over_b, strict=True):  # a dimension of size 1 stands for all of the other's
        if a.shape[d] == 1 != b.shape[e]:
            b = b.sum(e, keepdim=True)
        elif b.shape[e] == 1 != a.shape[d]:
            a = a.sum(d, keepdim=True)
    if [a.shape[d] for d in over_a] != [b.shape[d] for d in over_b]:
        raise RuntimeError(f"tensordot of {tuple(a.shape)} over {over_a} and {tuple(b.shape)} over {over_b}")
    kept_a, kept_b = ([d for d in range(t.dim()) if d not in over] for t, over in ((a, over_a), (b, over_b)))
    k = torch.Size([a.shape[d] for d in over_a]).numel()
    rows, columns = torch.Size([a.shape[d] for d in kept_a]), torch.Size([b.shape[d] for d in kept_b])
    left = a.permute(kept_a + over_a).reshape(rows.numel(), k)
    right = b.permute(over_b + kept_b).reshape(k, columns.numel())
    product = torch.mm(left, right).reshape((*rows, *columns))
    return product if out is None else out.resize_(product.shape).copy_(product)


def _listed(places: int | Sequence[int]) -> list[int]:
    return [places] if isinstance(places, int) else list(places)


@function(torch.inner, torch.Tensor.inner)
def inner(input: torch.Tensor, other: torch.Tensor, *, out: Optional = None) -> torch.Tensor:  # noqa: A002
    """`torch.inner`: over the last dimension of both."""
    if input.dim() == 0 or other.dim() == 0:
        return torch.mul(input, other, out=out)
    return tensordot(input, other, ([-1], [-1]), out)


def linear_cross_entropy(
    input: torch.Tensor,  # noqa: A002
    linear_weight: torch.Tensor,
    target: torch.Tensor,
    *,
    linear_bias: Optional = None,
    options: Any = None,
    **named: Any,
) -> torch.Tensor:
    """`F.linear_cross_entropy`, by the two functions that it stands for; `options` only say how to save memory."""
    del options
    if linear_weight.dim() != 2 or named.get("ignore_index", 0) is None:
        whole: Any = F.linear_cross_entropy
        return whole(input, linear_weight, target, linear_bias=linear_bias, **named)  # type: ignore[no-any-return]
    return cross_entropy(linear(input, linear_weight, linear_bias), target, **named)


if hasattr(F, "linear_cross_entropy"):
    function(F.linear_cross_entropy)(linear_cross_entropy)
