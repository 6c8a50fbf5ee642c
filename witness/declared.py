"""What a program declares as hyperparameters, beside what its optimisers really use.

`Program.hyperparameters` is a declaration: a verifier derives it again from the program and never compares it with the
optimisers. Where a name is one of an optimiser's own and the values differ, somebody made a mistake that every reader
of the run would inherit; so it is said, while recording and in `witness inspect`. It is no refusal: a program may mean
something else by the name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

_MEANT = {"learning_rate": "lr", "wd": "weight_decay"}
_PAIRS = {"beta1": 0, "beta2": 1}
_CLOSE = 1e-6
"""Relative: a rate that is kept as a float32 tensor is the declared one."""


def differing(declared: Mapping[str, Any], groups: Iterable[Mapping[str, Any]]) -> list[tuple[str, Any, list[Any]]]:
    """Declared values that no parameter group uses, though groups have something of the name.

    Args:
        declared: by name, as Python values.
        groups: of all optimisers, as plain values: `lr`, `betas`...

    Returns:
        Name, declared value and the values in use, each once.
    """
    listed, found = list(groups), []
    for name, value in declared.items():
        used = [one for group in listed for one in _used(name, group)]
        if used and not any(_equal(value, one) for one in used):
            found.append((name, value, sorted(set(used))))
    return found


def sentence(step: int, name: str, value: Any, used: Iterable[Any]) -> str:
    """A difference, for a person."""
    return (
        f"The program declares {name} {value} at step {step}, and its optimisers use {', '.join(map(str, used))}: "
        "records show what is declared."
    )


def _used(name: str, group: Mapping[str, Any]) -> list[Any]:
    value = group.get(_MEANT.get(name, name))
    if name in _PAIRS and isinstance(group.get("betas"), list | tuple) and len(group["betas"]) == 2:
        value = group["betas"][_PAIRS[name]]
    return [value] if isinstance(value, int | float) else []


def _equal(left: Any, right: Any) -> bool:
    return isinstance(left, int | float) and (left == right or math.isclose(left, right, rel_tol=_CLOSE))
