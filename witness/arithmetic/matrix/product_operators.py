"""Every aten operator that is a matrix product, by the one product of `products.multiply`.

`beta * x + alpha * (a @ b)`: the product rounds, each scaling rounds, the sum rounds.
"""

from __future__ import annotations

import torch

from witness.arithmetic.matrix.products import multiply
from witness.arithmetic.registry import operator, product_bits
from witness.arithmetic.summation import sums

Number = int | float


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return multiply(a, b, product_bits())


def _combined(x: torch.Tensor, product: torch.Tensor, beta: Number, alpha: Number) -> torch.Tensor:
    if alpha != 1:
        product = product * alpha
    if beta == 0:  # as torch has it: what x holds is not looked at
        return product
    return (x if beta == 1 else x * beta) + product


@operator("mm", "bmm")
def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(M, K) @ (K, N), or a batch of them."""
    return _product(a, b)


@operator("addmm", "baddbmm")
def addmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Number = 1, alpha: Number = 1) -> torch.Tensor:
    """`beta * x + alpha * (a @ b)`."""
    return _combined(x, _product(a, b), beta, alpha)


@operator("_addmm_activation")
def addmm_activation(
    x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Number = 1, alpha: Number = 1, use_gelu: bool = False
) -> torch.Tensor:
    """`addmm`, then an activation."""
    from witness.arithmetic.registry import OPERATORS

    return OPERATORS["gelu" if use_gelu else "relu"](addmm(x, a, b, beta=beta, alpha=alpha))  # type: ignore[no-any-return]


@operator("addbmm")
def addbmm(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Number = 1, alpha: Number = 1) -> torch.Tensor:
    """The sum over the batch is part of the exact product: (B, M, K), (B, K, N) as (M, B K) @ (B K, N)."""
    joined = _product(a.transpose(0, 1).reshape(a.shape[1], -1), b.reshape(-1, b.shape[2]))
    return _combined(x, joined, beta, alpha)


@operator("mv")
def mv(a: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """(M, K) @ (K,)."""
    return _product(a, v[:, None])[:, 0]


@operator("addmv")
def addmv(x: torch.Tensor, a: torch.Tensor, v: torch.Tensor, *, beta: Number = 1, alpha: Number = 1) -> torch.Tensor:
    """`beta * x + alpha * (a @ v)`."""
    return _combined(x, mv(a, v), beta, alpha)


@operator("dot", "vdot")
def dot(v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A product of one row and one column, so that `dot` and `mm` agree."""
    return _product(v[None], w[:, None]).reshape(())


@operator("addr")
def addr(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor, *, beta: Number = 1, alpha: Number = 1) -> torch.Tensor:
    """`beta * x + alpha * outer(v, w)`: single products, each an IEEE one."""
    return _combined(x, v[:, None] * w, beta, alpha)


@operator("linear")
def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Where a device dispatches it whole: `x @ weight.T + bias`."""
    product = _product(x.reshape(-1, x.shape[-1]), weight.t()).reshape(*x.shape[:-1], weight.shape[0])
    return product if bias is None else product + bias


@operator("_trilinear")
def trilinear(
    a: torch.Tensor,
    b: torch.Tensor,
    c: torch.Tensor,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> torch.Tensor:
    """The product of three, expanded and summed over dimensions (nn.Bilinear)."""
    del unroll_dim
    for tensors, places in ((0, expand1), (1, expand2), (2, expand3)):
        for place in sorted(places):
            if tensors == 0:
                a = a.unsqueeze(place)
            elif tensors == 1:
                b = b.unsqueeze(place)
            else:
                c = c.unsqueeze(place)
    return sums.total(a * b * c, sumdim)
