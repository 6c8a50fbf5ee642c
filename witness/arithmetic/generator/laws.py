"""Laws of random tensors: parameters, checked as torch checks them, and how a tensor's elements come from a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from protocol.errors import UsageError
from witness.arithmetic import registry
from witness.arithmetic.generator import sampling

Draw = Callable[[int, int, torch.dtype, torch.device], torch.Tensor]
"""From key, count, dtype and device to values of shape (count,), of that dtype or to be converted to it."""


def uniform(low: float, high: float) -> Draw:
    """Uniform in [low, high)."""
    if not low <= high:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")
    return lambda key, count, dtype, device: sampling.uniform(key, count, dtype, device, low, high)


def normal(mean: float, std: float) -> Draw:
    """Normal."""
    if not std >= 0.0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")
    return lambda key, count, dtype, device: sampling.normal(key, count, dtype, device, mean, std)


def integers(low: int, high: int) -> Draw:
    """Integers in [low, high), every one that likely."""
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")

    def draw(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        least, greatest = bounds(dtype)
        if low < least or high - 1 > greatest:
            raise RuntimeError(f"random integers from {low} to {high - 1} do not fit {dtype}")
        return sampling.integers(key, count, low, high - low, device)

    return draw


def bounds(dtype: torch.dtype) -> tuple[int, int]:
    """The integers that a type holds without gaps."""
    if dtype.is_floating_point:
        greatest = 1 << sampling.digits(dtype)
        return -greatest, greatest
    return (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, min(torch.iinfo(dtype).max, (1 << 63) - 1))


def exponential(rate: float) -> Draw:
    """Exponential, of mean 1 / rate."""
    if not rate > 0.0:
        raise RuntimeError(f"exponential_ expects lambda > 0.0, but found lambda={rate}")
    return lambda key, count, dtype, device: sampling.exponential(key, count, dtype, device, rate)


def coins(p: Any, shape: torch.Size) -> Draw:
    """True with probability `p`: a number, or a tensor that broadcasts to `shape`."""
    if not (bool(((p >= 0) & (p <= 1)).all()) if isinstance(p, torch.Tensor) else 0 <= p <= 1):
        raise RuntimeError("bernoulli expects all probabilities to be in [0, 1]")

    def draw(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        del dtype
        if not isinstance(p, torch.Tensor):
            return sampling.coins(key, count, float(p), device)
        return sampling.coins(key, count, p.to(device, torch.float64).expand(shape).reshape(-1), device)

    return draw


def log_normal(mean: float, std: float) -> Draw:
    """The exponential of a normal number."""
    if not std > 0.0:
        raise RuntimeError(f"log_normal_ expects std > 0.0, but found std={std}")

    def draw(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if dtype == torch.float64:
            raise UsageError("exact-refused", "log_normal_ in float64 has no exact definition: draw float32")
        exp: Callable[[torch.Tensor], torch.Tensor] = registry.OPERATORS["exp"]
        return exp(sampling.normal(key, count, torch.float32, device, mean, std))

    return draw


def geometric(p: float) -> Draw:
    """Trials up to the first success."""
    if not 2.0**-30 <= p <= 1.0:
        raise UsageError("exact-refused", f"geometric_ has an exact definition for 2^-30 <= p <= 1, not for p={p}")
    return lambda key, count, _, device: sampling.geometric(key, count, p, device)


def cauchy(median: float, sigma: float) -> Draw:
    """Cauchy."""
    if not sigma > 0.0:
        raise RuntimeError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")

    def draw(key: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return sampling.rounded(sampling.cauchy(key, count, dtype, device) * sigma + median, dtype)

    return draw
