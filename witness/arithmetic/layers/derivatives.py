"""What functions that bring their own derivative have in common.

A handler of the function mode that needs autograd is a `torch.autograd.Function`. The dispatch mode is on inside it and
would see every step of a definition that is exact already, so it computes inside `plain`. What depends on the active
profile (`registry.product_bits`) is read in the forward pass and kept: a backward pass may run when the profile is no
longer active. A gradient that is to be differentiated again (`create_graph=True`) is that of the same function composed
of torch's operations, each by its own definition: `differentiable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from witness.arithmetic import registry
from witness.arithmetic.generator.randomness import unwatched

plain = unwatched
"""Runs torch's own operations as they are, both modes off."""
HALVES = (torch.bfloat16, torch.float16)


def differentiable(
    compose: Callable[..., torch.Tensor], grad: torch.Tensor, *operands: torch.Tensor | None
) -> list[torch.Tensor | None]:
    """Gradients that have derivatives.

    Args:
        compose: the function, of the operands, in torch's operations.
        grad: the gradient of its result.
        operands: as they were given to the function.

    Returns:
        One for each operand; None where there is none.
    """
    with torch.enable_grad():
        value = compose(*operands)
    wanted = [t for t in operands if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(value, wanted, grad, create_graph=True, allow_unused=True))
    return [next(found) if t is not None and t.requires_grad else None for t in operands]


def transformed(*tensors: torch.Tensor | None) -> bool:
    """Whether `torch.func`, batched gradients or forward-mode differentiation are at work: they need the composition.

    Args:
        tensors: gradients, which may be batched.
    """
    functorch = torch._C._functorch  # noqa: SLF001 - torch has no public question for it
    batched = any(t is not None and functorch.is_legacy_batchedtensor(t) for t in tensors)
    return batched or functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0  # noqa: SLF001


def array(x: torch.Tensor) -> Any:
    """The memory of a contiguous CPU tensor as a flat numpy array, which shares it."""
    return x.detach().reshape(-1).numpy()


def value(name: str, x: torch.Tensor) -> torch.Tensor:
    """An elementary function by the name of its operator, in the precision of `x`."""
    return registry.OPERATORS[name](x)  # type: ignore[no-any-return]


def widened(x: torch.Tensor) -> torch.Tensor:
    """Half precision in float32; other tensors as they are."""
    return x.float() if x.dtype in HALVES else x


def laid_out(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`y` with channels innermost in memory where `x` has them so, as torch's convolutions and pools expect."""
    for layout, rank in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        if x.dim() == rank and not x.is_contiguous() and x.is_contiguous(memory_format=layout):
            return y.contiguous(memory_format=layout)
    return y


def cast(device_type: str, *tensors: torch.Tensor | None, to: torch.dtype | None = None) -> list[Any]:
    """What autocast does to the operands of a function, where it is on.

    Args:
        device_type: as `cuda`.
        tensors: operands; float64 and integers stay, as torch has it.
        to: the precision; autocast's own when None.
    """
    if not torch.is_autocast_enabled(device_type):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device_type) if to is None else to
    return [t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]
