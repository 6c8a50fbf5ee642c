"""Truncated normal initialisation by inverting the distribution function, the same in every torch release.

`torch.nn.init.trunc_normal_` draws by rejection in some releases and by `erfinv` in others, and asks no function mode
first; but each of them calls a private function by its name in the module, which `substituted` replaces for a while.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from protocol.errors import UsageError
from witness.arithmetic.generator import sampling
from witness.arithmetic.generator.quantile import quantile
from witness.arithmetic.generator.randomness import draw_key, unwatched

PROBES = 63
"""Points at which the search for the ends of an interval looks at a time."""


def trunc_normal_(
    tensor: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """Fills a tensor with normal numbers conditioned on lying in [a, b].

    The normal numbers of float64 are `v(s) = quantile((s + 1/2) / 2^53) * std + mean` for the integers `s` from -2^52
    to 2^52 - 1. An element is `v` of one of those between the first with `v >= a` and the last with `v <= b`, each as
    likely (64 bits of the stream), rounded to the tensor's type and held to `a` and `b` in that type.

    Raises:
        UsageError: `exact-refused`, where no `v` lies in the interval: it is empty, or beyond 8.2 deviations.
    """
    if tensor.device.type == "meta":
        return tensor
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect.",
            stacklevel=3,
        )
    if not std >= 0.0:
        raise RuntimeError(f"trunc_normal_ expects std >= 0.0, but found std {std}")
    with torch.no_grad(), unwatched():
        first, last = ends(float(mean), float(std), float(a), float(b))
        if first > last:
            raise UsageError(
                "exact-refused", f"trunc_normal_ on [{a}, {b}] has no exact definition: the interval holds no number"
            )
        key = draw_key(generator)
        s = sampling.integers(key, tensor.numel(), first, last - first + 1, tensor.device)
        low, high = (torch.tensor(v, dtype=torch.float64).to(tensor.dtype).item() for v in (a, b))
        values = sampling.rounded(_value(s, mean, std), tensor.dtype).clamp_(low, high)
        return tensor.copy_(values.reshape(tensor.shape))


@contextmanager
def substituted() -> Iterator[None]:
    """Makes `torch.nn.init.trunc_normal_` this definition, however it was imported."""
    before = torch.nn.init._no_grad_trunc_normal_
    torch.nn.init._no_grad_trunc_normal_ = trunc_normal_
    try:
        yield
    finally:
        torch.nn.init._no_grad_trunc_normal_ = before


@functools.lru_cache(256)
def ends(mean: float, std: float, a: float, b: float) -> tuple[int, int]:
    """The first `s` with `v(s) >= a`, and the last with `v(s) <= b`; found on the CPU."""
    return _first(mean, std, a, False), _first(mean, std, b, True) - 1


def _first(mean: float, std: float, bound: float, beyond: bool) -> int:
    """The first `s` with `v(s) >= bound`, or `> bound`; 2^52 if there is none. `v` rises, so it can be searched for."""
    low, high = -(1 << 52), 1 << 52  # the answer is in [low, high]
    while low < high:
        step = (high - low) // PROBES + 1
        s = torch.arange(low, high, step)
        v = _value(s, mean, std)
        count = int((v <= bound if beyond else v < bound).sum())  # so many probes lie before the answer
        low, high = (low + (count - 1) * step + 1 if count else low), min(high, low + count * step)
    return low


def _value(s: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    return quantile((s.to(torch.float64) + 0.5) * 2.0**-53) * std + mean
