"""Make a training run checkable by people who do not trust the trainer.

The names below load on first use, so that importing a verifier never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protocol.corpus import Packing as Packing
    from witness.program import Program as Program
    from witness.program import State as State
    from witness.recorder import record as record

__version__ = "0.1.0"
__all__ = ["Packing", "Program", "State", "__version__", "record"]

_HOMES = {
    "Packing": "protocol.corpus",
    "Program": "witness.program",
    "State": "witness.program",
    "record": "witness.recorder",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'witness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
