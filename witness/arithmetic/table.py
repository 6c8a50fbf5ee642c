"""What the exact profile thinks of every aten operator: the list is data (operators.toml); the rest is refused.

An operator is one of four things.

| class | meaning |
| --- | --- |
| moves | places values, compares them, or computes on integers and booleans: nothing is rounded |
| rounds | IEEE 754 element-wise with one rounding (or a conversion): every device gives the same bits |
| replaced | has a definition of ours (`registry.OPERATORS`), made of the first two and of exact integer sums |
| refused | everything else, by name, with what to use instead where there is something |

In-place (`name_`), `out=` and `_foreach_` variants follow the operator that they are variants of.
"""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Any

_DATA: dict[str, Any] = tomllib.loads(files(__package__).joinpath("operators.toml").read_text())

MOVES, ROUNDS, INTEGER = (frozenset(_DATA[kind].split()) for kind in ("moves", "rounds", "integers"))


def base(name: str) -> str:
    """The operator of which `name` (without overload) is a variant.

    >>> base("add_"), base("_foreach_mul_"), base("expand_copy")
    ('add', 'mul', 'expand')
    """
    name = name.removeprefix("_foreach_")
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name.removesuffix("_copy") if name not in ("index_copy", "_to_copy") else name


def advice(name: str) -> str:
    """What to use instead of a refused operator."""
    for row in _DATA["advice"]:
        if re.fullmatch(row["operators"], name):
            return str(row["instead"])
    return "write it with operations that the profile defines, or record with --profile native"
