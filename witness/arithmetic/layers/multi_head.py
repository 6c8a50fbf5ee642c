"""Multi-head attention (`torch.nn.MultiheadAttention`), written out over the profile's own functions.

The function mode is off inside a handler, and torch's text would then choose kernels by device. With and without
`need_weights` the result has the same bits, except that a query which may attend to nothing gets NaN with, and zeros
without: torch's distinction.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from witness.arithmetic.generator.dropout import dropout
from witness.arithmetic.layers.attention import scaled_dot_product_attention
from witness.arithmetic.matrix.contractions import linear
from witness.arithmetic.registry import function

Optional = torch.Tensor | None


def _projected(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packed: Optional,
    separate: tuple[Optional, Optional, Optional],
    bias: Optional,
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values in the embedding dimension, from packed or separate weights."""
    biases: tuple[Optional, ...] = (None, None, None) if bias is None else bias.chunk(3)
    if packed is not None:
        if query is key and key is value:
            return linear(query, packed, bias).chunk(3, -1)
        weights: tuple[Optional, ...] = packed.chunk(3)
    else:
        weights = separate
    if any(w is None for w in weights):
        raise AssertionError("projection weights are missing")
    return tuple(linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True) if w is not None)


def _masks(
    query: torch.Tensor,
    key_padding_mask: Optional,
    attn_mask: Optional,
    is_causal: bool,
    need_weights: bool,
) -> tuple[Optional, Optional, bool]:
    """Both masks as numbers to add, and whether the hint `is_causal` stands for the second."""
    padding = F._canonical_mask(  # noqa: SLF001 - what the module calls as well
        mask=key_padding_mask,
        mask_name="key_padding_mask",
        other_type=F._none_or_dtype(attn_mask),  # noqa: SLF001
        other_name="attn_mask",
        target_type=query.dtype,
    )
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    if is_causal and padding is None and not need_weights:
        return None, None, True
    mask = F._canonical_mask(  # noqa: SLF001
        mask=attn_mask,
        mask_name="attn_mask",
        other_type=None,
        other_name="",
        target_type=query.dtype,
        check_other=False,
    )
    return padding, mask, is_causal and padding is None


def _longer(mask: Optional) -> Optional:
    """With one more key, which is not masked."""
    return None if mask is None else F.pad(mask, (0, 1))


@function(F.multi_head_attention_forward)
def multi_head_attention_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Optional,
    in_proj_bias: Optional,
    bias_k: Optional,
    bias_v: Optional,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: Optional,
    training: bool = True,
    key_padding_mask: Optional = None,
    need_weights: bool = True,
    attn_mask: Optional = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Optional = None,
    k_proj_weight: Optional = None,
    v_proj_weight: Optional = None,
    static_k: Optional = None,
    static_v: Optional = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[torch.Tensor, Optional]:
    """`F.multi_head_attention_forward`: arguments and results are torch's.

    Raises:
        AssertionError, RuntimeError: for operands that do not fit, as torch does.
    """
    batched = F._mha_shape_check(  # type: ignore[attr-defined] # noqa: SLF001
        query, key, value, key_padding_mask, attn_mask, num_heads
    )
    if not batched:
        same_keys, same_values = key is query, value is key
        query = query.unsqueeze(1)
        key = query if same_keys else key.unsqueeze(1)
        value = key if same_values else value.unsqueeze(1)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, width = query.shape
    head = width // num_heads
    if width != embed_dim_to_check or head * num_heads != width:
        raise AssertionError(f"an embedding of {width}, not {embed_dim_to_check}, for {num_heads} heads")
    padding, mask, causal = _masks(query, key_padding_mask, attn_mask, is_causal, need_weights)
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    packed = None if use_separate_proj_weight else in_proj_weight
    q, k, v = _projected(query, key, value, packed, separate, in_proj_bias)
    if mask is not None:
        mask = mask.unsqueeze(0) if mask.dim() == 2 else mask
        if tuple(mask.shape) not in ((1, length, key.shape[0]), (batch * num_heads, length, key.shape[0])):
            raise RuntimeError(f"The shape of the attn_mask is {tuple(mask.shape)}.")
    if bias_k is not None and bias_v is not None:
        if static_k is not None or static_v is not None:
            raise AssertionError("bias cannot be added to static key or value.")
        k, v = torch.cat([k, bias_k.repeat(1, batch, 1)]), torch.cat([v, bias_v.repeat(1, batch, 1)])
        mask, padding = _longer(mask), _longer(padding)
    elif bias_k is not None or bias_v is not None:
        raise AssertionError("bias_k and bias_v are set together or not at all")
    q = q.reshape(length, batch * num_heads, head).transpose(0, 1)
    k = k.reshape(k.shape[0], batch * num_heads, head).transpose(0, 1) if static_k is None else static_k
    v = v.reshape(v.shape[0], batch * num_heads, head).transpose(0, 1) if static_v is None else static_v
    if add_zero_attn:
        k, v = (torch.cat([t, t.new_zeros(t.shape[0], 1, t.shape[2])], 1) for t in (k, v))
        mask, padding = _longer(mask), _longer(padding)
    keys = k.shape[1]
    if padding is not None:
        if tuple(padding.shape) != (batch, keys):
            raise AssertionError(f"Expected key_padding_mask of shape {(batch, keys)}, but got {tuple(padding.shape)}")
        padding = padding.view(batch, 1, 1, keys).expand(-1, num_heads, -1, -1).reshape(batch * num_heads, 1, keys)
        mask = padding if mask is None else mask + padding
    p = dropout_p if training else 0.0
    weights: Optional = None
    if need_weights:
        scores = torch.bmm(q, k.transpose(1, 2)) * (1.0 / math.sqrt(head))
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        weights = dropout(weights, p, True)
        out = torch.bmm(weights, v)
    else:
        out = scaled_dot_product_attention(q, k, v, mask, p, causal)
    out = out.transpose(0, 1).reshape(length * batch, width)
    out = linear(out, out_proj_weight, out_proj_bias).view(length, batch, -1)
    if weights is not None:
        weights = weights.view(batch, num_heads, length, keys)
        weights = weights.mean(1) if average_attn_weights else weights
        weights = weights if batched else weights.squeeze(0)
    return (out if batched else out.squeeze(1)), weights
