"""Scaled dot-product attention: one definition for every device, mask and precision.

For one head, with Q (L, E), K (S, E), V (S, Ev) and exact products (`products`):

    scores = (Q @ K.T) * scale + mask               (the product rounds, the scaling, the sum)
    weights = softmax(scores), as in `softmax`;      zeros where no key may be attended to
    out = (weights * noise) @ V                      (noise is of `dropout`; a key is drawn once a call)

Without a mask nothing is added. Where a boolean mask forbids a key its score is -infinity. Under `is_causal` a later
key has the weight 0, and the gradient 0, whatever its score. Queries that share a key head (grouped-query attention)
are rows of one product with it. With `g` the gradient of the result:

    dV = (weights * noise).T @ g,  dW = (g @ V.T) * noise
    dscores = (dW - total(dW * weights)) * weights,  dmask = dscores summed as it was broadcast
    dQ = (dscores * scale) @ K,  dK = (dscores * scale).T @ Q

Half precision is converted to float32 at the start and back at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from witness.arithmetic import compiled
from witness.arithmetic.generator import dropout
from witness.arithmetic.kernels import attention as kernels
from witness.arithmetic.layers.derivatives import array, cast, differentiable, plain, transformed
from witness.arithmetic.layers.softmax import safe_softmax
from witness.arithmetic.matrix.products import multiply
from witness.arithmetic.registry import function, product_bits
from witness.arithmetic.summation import sums

Optional = torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Scores:
    """What becomes of scores: (batch, rows, S), where rows are the queries of the heads that share keys.

    Attributes:
        shape: (..., heads, L, S), what a mask is broadcast to.
        causal: whether a query sees no later keys.
        scale: the factor of the products.
    """

    shape: torch.Size
    causal: bool
    scale: float

    def later(self, device: torch.device) -> torch.Tensor:
        """(L, S): the keys that a causal query does not see."""
        return torch.ones(self.shape[-2:], dtype=torch.bool, device=device).triu(1)

    def weights(self, scores: torch.Tensor, mask: Optional) -> torch.Tensor:
        """The softmax; `scores` may be overwritten."""
        if not scores.numel():
            return scores
        if compiled.usable(scores):
            rows, n, queries = scores.numel() // self.shape[-1], self.shape[-1], self.shape[-2]
            chosen, added = mask is not None and mask.dtype == torch.bool, mask is not None and mask.dtype != torch.bool
            which, allowed, bias = self._flat(mask)
            into = self.causal, self.scale, array(scores), chosen, added, array(which), array(allowed), array(bias)
            compiled.run(kernels.weights, rows, n, queries, *into, weight=4 * n)
            return scores
        x = scores.view(self.shape) * self.scale
        if mask is not None:
            x = x.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else x + mask
        if self.causal:
            x = x.masked_fill(self.later(x.device), -torch.inf)
        y = safe_softmax(x, -1)
        return (y.masked_fill(self.later(x.device), 0.0) if self.causal else y).view(scores.shape)

    def _flat(self, mask: Optional) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """For each row of scores the row of the mask, and the mask's rows, as booleans or as numbers."""
        if mask is None:
            return torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool), torch.zeros(1)
        mask = mask.view([1] * (len(self.shape) - mask.dim()) + list(mask.shape))
        outer = mask.shape[:-1]
        which = torch.arange(outer.numel()).view(outer).expand(self.shape[:-1]).reshape(-1).contiguous()
        rows = mask.expand(*outer, self.shape[-1]).contiguous()
        if mask.dtype == torch.bool:
            return which, rows, torch.zeros(1)
        return which, torch.ones(1, dtype=torch.bool), rows

    def backward(self, g: torch.Tensor, y: torch.Tensor, kept: Optional, factor: float, scale: float) -> torch.Tensor:
        """The gradient of the scores, times `scale`, from that of the weights; `g` may be overwritten."""
        if not g.numel():
            return g
        if compiled.usable(g, y):
            rows, n, queries = g.numel() // self.shape[-1], self.shape[-1], self.shape[-2]
            coins = array(torch.ones(1, dtype=torch.bool) if kept is None else kept)
            given = self.causal, scale, kept is not None, factor, coins, array(y), array(g)
            compiled.run(kernels.backward, rows, n, queries, *given, weight=4 * n)
            return g
        if kept is not None:
            g = g * (kept.to(g.dtype) * factor)
        g, weights = g.view(self.shape), y.view(self.shape)
        if self.causal:
            g = g.masked_fill(self.later(g.device), 0.0)
        x = (g - sums.total(g * weights, -1, True, owned=True)) * weights * scale
        return (x.masked_fill(self.later(g.device), 0.0) if self.causal else x).view(y.shape)

    def composed(self, kept: Optional, p: float) -> Callable[..., torch.Tensor]:
        """Attention of the same operands, in torch's operations.

        Args:
            kept: which weights are not dropped; None to draw again.
            p: the probability of dropping one.
        """

        def compose(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Optional) -> torch.Tensor:
            x = torch.matmul(q.float(), k.float().mT).view(self.shape) * self.scale
            if mask is not None:
                x = x.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else x + mask
            if self.causal:
                x = x.masked_fill(self.later(x.device), -torch.inf)
            y = torch.softmax(x.masked_fill((x == -torch.inf).all(-1, keepdim=True), 0.0), -1)
            y = y.masked_fill(x == -torch.inf, 0.0).view(q.shape[0], -1, k.shape[1])
            if kept is not None:
                y = y * (kept.to(y.dtype) * _factor(p))
            elif p > 0.0:
                y = torch.native_dropout(y, p, True)[0]
            return torch.matmul(y, v.float()).to(q.dtype)

        return compose


class _Attention(torch.autograd.Function):
    """Of queries (B, rows, E), keys (B, S, E) and values (B, S, Ev)."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Optional, scores: _Scores, p: float
    ) -> torch.Tensor:
        """See the module."""
        bits = product_bits()
        with plain():
            wide = mask if mask is None or mask.dtype == torch.bool else mask.float()
            weights = scores.weights(multiply(q, k.mT, bits), wide)
            used, kept = (weights, None) if p == 0.0 else dropout.native_dropout(weights, p, True)
            out = multiply(used, v, bits).to(q.dtype)
        ctx.save_for_backward(q, k, v, mask, weights, used, kept)
        ctx.scores, ctx.bits, ctx.p = scores, bits, p
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Optional, Optional, Optional, Optional, None, None]:
        """See the module."""
        q, k, v, mask, weights, used, kept = ctx.saved_tensors
        scores, bits = ctx.scores, ctx.bits
        if torch.is_grad_enabled() or transformed(grad):
            composed = differentiable(scores.composed(kept, ctx.p), grad, q, k, v, mask)
            return *composed, None, None  # type: ignore[return-value]
        by_q = by_k = by_v = by_mask = None
        with plain():
            factor = _factor(ctx.p)
            if ctx.needs_input_grad[2]:
                by_v = multiply(used.mT, grad, bits).to(v.dtype)
            if any(ctx.needs_input_grad[i] for i in (0, 1, 3)):
                masked = ctx.needs_input_grad[3]
                d = multiply(grad, v.mT, bits)
                d = scores.backward(d, weights, kept, factor, 1.0 if masked else scores.scale)
                if masked:
                    by_mask = _gathered(d.view(scores.shape), mask.shape).to(mask.dtype)
                    d = d * scores.scale
                by_q = multiply(d, k, bits).to(q.dtype) if ctx.needs_input_grad[0] else None
                by_k = multiply(d.mT, q, bits).to(k.dtype) if ctx.needs_input_grad[1] else None
        return by_q, by_k, by_v, by_mask, None, None


def _factor(p: float) -> float:
    """What a weight that is not dropped is multiplied by."""
    return 0.0 if p == 1.0 else dropout.noise(1.0 - p, torch.float32)


def _gathered(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Sums over what a tensor of that shape was broadcast along."""
    padded = [1] * (x.dim() - len(shape)) + list(shape)
    places = [d for d, size in enumerate(padded) if size == 1 and x.shape[d] != 1]
    return (sums.total(x, places, True) if places else x).reshape(shape)


@function(F.scaled_dot_product_attention)
def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Optional = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`F.scaled_dot_product_attention`.

    Args:
        query: (..., heads, L, E).
        key: (..., key heads, S, E).
        value: (..., key heads, S, Ev).
        attn_mask: broadcast to (..., heads, L, S); booleans allow, numbers are added.
        dropout_p: probability that a weight is dropped.
        is_causal: whether query i sees keys 0 .. i only.
        scale: factor of the products, `1 / sqrt(E)` if None.
        enable_gqa: whether heads may be a multiple of key heads.

    Raises:
        RuntimeError: for operands that do not fit, as torch does.
    """
    if attn_mask is not None and hasattr(attn_mask, "_materialize"):  # torch.nn.attention.bias: a shape, no values
        attn_mask = attn_mask._materialize(query.device)  # noqa: SLF001
    if attn_mask is not None and is_causal:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    query, key, value, attn_mask = cast(query.device.type, query, key, value, attn_mask)
    _checked(query, key, value, attn_mask, dropout_p)
    heads, group = (query.shape[-3], 1) if query.dim() > 2 else (1, 1)
    if enable_gqa and query.dim() > 2:
        group = heads // key.shape[-3]
        if key.shape[-3] * group != heads or value.shape[-3] != key.shape[-3]:
            raise RuntimeError("Number of heads in key and value must divide the number of heads in query")
    rows, keys = query.shape[-2], key.shape[-2]
    if group > 1:
        query = query.reshape(*query.shape[:-3], key.shape[-3], group * rows, query.shape[-1])
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])  # type: ignore[no-untyped-call]
    q, k, v = (t.expand(*batch, *t.shape[-2:]).reshape(batch.numel(), *t.shape[-2:]) for t in (query, key, value))
    outer = torch.Size((*batch[:-1], heads) if group > 1 else batch)
    scores = _Scores(
        torch.Size((*outer, rows, keys)), is_causal, 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    )
    if transformed():
        out = scores.composed(None, dropout_p)(q, k, v, attn_mask)
    else:
        out = _Attention.apply(q, k, v, attn_mask, scores, dropout_p)  # type: ignore[no-untyped-call]
    return out.view(*outer, rows, v.shape[-1])


def _checked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Optional, p: float) -> None:
    if min(q.dim(), k.dim(), v.dim()) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        raise RuntimeError(f"attention of shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}")
    if not q.dtype == k.dtype == v.dtype:
        raise RuntimeError(f"attention of {q.dtype}, {k.dtype} and {v.dtype}: expected one dtype")
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise RuntimeError(f"a mask of {mask.dtype} for queries of {q.dtype}: expected bool or the queries' dtype")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
