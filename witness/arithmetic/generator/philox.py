"""Random bits as a pure function of a key and a position by Philox4x32-10 (Salmon et al., SC'11).

A generator with a state hands its numbers out in the order in which they are asked for, and that order belongs to the
device and its threads. Here word `i` under key `k` is `philox(k, counter = i // 4)[i % 4]`, whoever computes it, in
whatever order: 32-bit integer products and exclusive ors, the same on every machine.

The 128-bit counter is (block mod 2^32, block div 2^32, attempt, 0): `attempt` numbers the further draws of a position
whose earlier ones were rejected.
"""

from __future__ import annotations

import torch

from witness.arithmetic import compiled
from witness.arithmetic.kernels import philox as kernels

ROUNDS = 10
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85

_LOW = (1 << 32) - 1
_SIGN = 1 << 31
_SPAN = 1 << 20
"""Blocks that the tensor form computes at a time: it bounds the memory of the intermediate results."""


def words(key: int, count: int, device: torch.device, attempt: int = 0) -> torch.Tensor:
    """The words at positions 0 to `count` - 1.

    Args:
        key: 64 bits.
        count: how many.
        device: where.
        attempt: 32 bits, the third word of the counter.

    Returns:
        int32 of shape (count,): the bit patterns of the 32-bit words.
    """
    blocks = -(-count // 4)
    out = torch.empty(4 * blocks, dtype=torch.int32, device=device)
    if compiled.usable(out):
        array = out.numpy().view("uint32")
        compiled.run(kernels.fill, blocks, 0, key & _LOW, key >> 32, attempt, array, weight=4)
    else:
        for first in range(0, blocks, _SPAN):
            numbers = torch.arange(first, min(first + _SPAN, blocks), dtype=torch.int64, device=device)
            four = block(key, counter(numbers, attempt))
            out[4 * first : 4 * (first + len(numbers))] = _patterns(torch.stack(four, 1)).reshape(-1)
    return out[:count]


def words_at(key: int, positions: torch.Tensor, attempt: int = 0) -> torch.Tensor:
    """The words at some positions, as `words` has them.

    Args:
        key: 64 bits.
        positions: int64, any shape, not negative.
        attempt: 32 bits.

    Returns:
        int32 of the shape of `positions`.
    """
    four = torch.stack(block(key, counter(positions >> 2, attempt)), -1)
    return _patterns(four.gather(-1, (positions & 3).unsqueeze(-1)).squeeze(-1))


def counter(blocks: torch.Tensor, attempt: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The counters of some blocks (int64), as four int64 tensors of 32-bit words."""
    return blocks & _LOW, blocks >> 32, torch.full_like(blocks, attempt), torch.zeros_like(blocks)


def block(
    key: int, counters: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Philox4x32-10 itself, on int64 tensors that hold 32-bit words.

    A word times a multiplier may reach 2^64, which int64 does not hold. The multipliers are at least 2^31, so that
    `word * (multiplier - 2^32)` lies above -2^63; its low half is the product's, its high half is the product's less
    `word`.

    Args:
        key: 64 bits.
        counters: four words each, least significant first.

    Returns:
        Four words each.
    """
    c0, c1, c2, c3 = counters
    k0, k1 = key & _LOW, key >> 32
    for _ in range(ROUNDS):
        p0, p1 = c0 * (MULTIPLIERS[0] - (1 << 32)), c2 * (MULTIPLIERS[1] - (1 << 32))
        high0, high1 = (p0 >> 32) + c0, (p1 >> 32) + c2
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, p1 & _LOW, high0 ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return c0, c1, c2, c3


def _patterns(words64: torch.Tensor) -> torch.Tensor:
    """32-bit words in int64 as the int32 of the same bits."""
    return ((words64 ^ _SIGN) - _SIGN).to(torch.int32)


def unsigned(words32: torch.Tensor) -> torch.Tensor:
    """The int64 values, 0 to 2^32 - 1, of words given as int32 bit patterns."""
    return words32.to(torch.int64) & _LOW


def pairs(words32: torch.Tensor) -> torch.Tensor:
    """64-bit words as int64 bit patterns: word 2 i is the low half of number i, word 2 i + 1 the high half."""
    return (words32[..., 1::2].to(torch.int64) << 32) | unsigned(words32[..., 0::2])
