"""Which environment variables a stranger's manifest may pin.

The pinned environment is set before the interpreter starts, outside any confinement, and some variables make a loader,
an interpreter or a library execute or write a file: LD_PRELOAD, PYTHONSTARTUP, OMP_TOOL_LIBRARIES, GCONV_PATH,
CUDA_INJECTION64_PATH... What a deterministic replay needs to pin are numbers and switches. So a variable must have an
ordinary name, none of the words that mean a place or a plug-in, and a value that names no path.
"""

import re
from collections.abc import Mapping

from protocol.errors import IncompleteError

_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
_PLACES = """
    PATH HOME ROOT PREFIX DIR DIRS DIRECTORY FILE FILES LIBRARY LIBRARIES PLUGIN PLUGINS TOOL TOOLS PRELOAD
    STARTUP MODULES EXEC SHELL CMD COMMAND PROXY SERVER HOST ADDR URL
"""
_VALUE_CAP = 1024


def vetted(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a zygote: the pinned variables and the few that the sandbox itself sets.

    Raises:
        IncompleteError: `sandbox-environment`, if a variable could do more than configure arithmetic.
    """
    for name, value in environment.items():
        reason = _objection(name, value)
        if reason:
            raise IncompleteError(
                "sandbox-environment",
                f"the pinned environment variable {name[:80]!r} cannot be set for a stranger's program: {reason}",
                evidence={"variable": name[:80], "value": value[:80]},
            )
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **environment}


def _objection(name: str, value: str) -> str | None:
    if not _NAME.fullmatch(name):
        return "not an upper-case name"
    if name.startswith("LD_") or (name.startswith("PYTHON") and name != "PYTHONHASHSEED"):
        return "it steers the loader or the interpreter"
    if set(_PLACES.split()) & set(re.split(r"[_0-9]+", name)):
        return "its name means a place or a plug-in"
    if len(value) > _VALUE_CAP or not (value.isascii() and value.isprintable()):
        return "its value is not short printable ASCII"
    if "/" in value or ".so" in value.lower():
        return "its value names a path or a library"
    return None
