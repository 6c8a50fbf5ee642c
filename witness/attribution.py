"""Whose failure an exception in the sandbox is: the program's, or this package's or machine's.

A verdict rests on it. A program that fails on committed state and records was not what made them, and diverges; a
mistake of ours, a library that cannot be used here, or memory that is not there accuses nobody. What tells them apart
is where the exception passed: it accuses only if it came through the program's own code, and from there through nothing
but torch and other libraries. Code of ours that the program's operations go through (an exact arithmetic) is ours,
whoever called it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path

import protocol
import witness
from witness.sandbox.child import allocation_failed

_OURS = tuple(str(Path(file).resolve().parent) + "/" for file in (protocol.__file__, witness.__file__) if file)
_REFERENCE = _OURS[1] + "programs/"
_INHERITED = _OURS[1] + "program.py"
"""What a program does not define, `Program` does for it."""
_PASSING = frozenset({"__torch_dispatch__", "__torch_function__"})
"""Functions of ours that hand an operation on to torch, and are no part of it."""


def passed_through(error: BaseException) -> list[traceback.FrameSummary]:
    """Where an exception passed, from the outermost call to where it was raised."""
    return list(traceback.extract_tb(error.__traceback__))


def place_of(error: BaseException) -> str:
    """What was raised, and where: one line."""
    frames = passed_through(error)
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}: {error}"


def first_line(text: str) -> str:
    """What a long error begins with; compilers put whole reports into theirs."""
    return next((line for line in text.splitlines() if line.strip()), "")


def is_of_memory(error: BaseException) -> bool:
    """Whether memory was not to be had: torch says so in an error of its own kind, or in words."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or (
        isinstance(error, RuntimeError) and allocation_failed(error)
    )


def accuses(error: BaseException, program: Path | None) -> bool:
    """Whether an exception shows that the program fails on what was committed.

    Args:
        error: as caught.
        program: folder of the program's files; None for a reference program.
    """
    if isinstance(error, RecursionError) or is_of_memory(error) or is_of_a_compiler(error):
        return False
    files = [str(Path(frame.filename).resolve()) for frame in passed_through(error)]
    inside = [number for number, file in enumerate(files) if _is_programs(file, program)]
    if not inside:
        return False
    return not _pass_ours(passed_through(error)[inside[-1] + 1 :])


def _is_programs(file: str, program: Path | None) -> bool:
    if file == _INHERITED:
        return True
    return file.startswith(_REFERENCE if program is None else str(program.resolve()) + "/")


def _pass_ours(frames: Iterable[traceback.FrameSummary]) -> bool:
    return any(str(Path(frame.filename).resolve()).startswith(_OURS) and frame.name not in _PASSING for frame in frames)


def is_of_a_compiler(error: BaseException) -> bool:
    """Whether a compiler raised it: one that needs other programs (a C++ compiler, say) finds none in a sandbox."""
    return type(error).__module__.startswith(("torch._inductor.", "torch._dynamo."))
