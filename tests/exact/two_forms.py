"""For tests of definitions that exist twice: as tensor operations and compiled."""

from collections.abc import Callable, Iterable
from contextlib import contextmanager

import torch

from witness.arithmetic import compiled


def bits(x: torch.Tensor) -> list[int]:
    """Patterns, in row-major order; every NaN has one."""
    x = x.detach()
    if x.dtype == torch.float64:
        return torch.where(x.isnan(), torch.full_like(x, torch.nan), x).reshape(-1).view(torch.int64).tolist()
    x = x.float()
    return torch.where(x.isnan(), torch.full_like(x, torch.nan), x).reshape(-1).view(torch.int32).tolist()


def same(found: Iterable[torch.Tensor | None], expected: Iterable[torch.Tensor | None]) -> bool:
    """Whether tensors agree in bits, dtypes and shapes."""
    for a, b in zip(found, expected, strict=True):
        if a is None or b is None:
            if a is not b:
                return False
        elif (a.dtype, a.shape) != (b.dtype, b.shape) or bits(a) != bits(b):
            return False
    return True


@contextmanager
def tensors_only():
    """Compiled kernels off."""
    compiled.switch(False)
    try:
        yield
    finally:
        compiled.switch(True)


def both(compute: Callable[[], Iterable[torch.Tensor | None]]) -> list[torch.Tensor | None]:
    """The value, which both forms must agree on."""
    fast = list(compute())
    with tensors_only():
        slow = list(compute())
    assert same(fast, slow)
    return fast


def gradients(function: Callable[..., torch.Tensor], *operands: torch.Tensor, salt: int = 0) -> list[torch.Tensor]:
    """The value, and the gradients of all floating operands, for a made-up gradient of the value."""
    leaves = [t.detach().clone().requires_grad_() if t.is_floating_point() else t for t in operands]
    value = function(*leaves)
    up = torch.sin(torch.arange(1, value.numel() + 1, dtype=torch.float64) * (0.7 + salt))  # of one element: not zero
    up = up.reshape(value.shape).to(torch.float32).to(value.dtype)
    wanted = [t for t in leaves if t.is_floating_point()]
    return [value.detach(), *torch.autograd.grad(value, wanted, up, allow_unused=True)]


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, as a part of the largest expected magnitude."""
    if not expected.numel():
        return 0.0
    return ((found.double() - expected).abs().max() / (expected.abs().max() + 1e-30)).item()
