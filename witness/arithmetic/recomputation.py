"""Activation checkpointing runs the forward pass again in the backward pass, where torch has put function modes away.

So the segment itself is wrapped: when it finds no function mode, it brings its own. Both of torch's kinds of
checkpointing are reached through names of `torch.utils.checkpoint`, which are replaced while the arithmetic is active.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as target

GENERATORS = ("_checkpoint_without_reentrant_generator", "_checkpoint_without_reentrant_generator_impl")
FUNCTION = "CheckpointFunction"


def _wrapped(segment: Callable[..., Any], mode: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch._C._len_torch_function_stack():  # noqa: SLF001 - torch has no public question for it
            return segment(*args, **kwargs)
        with mode():
            return segment(*args, **kwargs)

    return call


@contextmanager
def under(mode: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """Lets checkpointed segments run under `mode` both times.

    Args:
        mode: makes the function mode.
    """
    originals = {name: getattr(target, name) for name in (*GENERATORS, FUNCTION) if hasattr(target, name)}

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def generator(segment: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return original(_wrapped(segment, mode), *args, **kwargs)

        return generator

    class Reentrant:
        """Stands for `CheckpointFunction`, of which torch only calls `apply`."""

        @staticmethod
        def apply(segment: Callable[..., Any], *args: Any) -> Any:
            """Wraps the segment."""
            return originals[FUNCTION].apply(_wrapped(segment, mode), *args)

    for name, original in originals.items():
        setattr(target, name, Reentrant if name == FUNCTION else wrap(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(target, name, original)
