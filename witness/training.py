"""Find the program and data that a person names on a command line, and run the loop."""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.errors import IncompleteError, UsageError

if TYPE_CHECKING:
    from protocol.manifest import Manifest
    from witness.program import Program
    from witness.recorder import Recorder


def find_program(name: str) -> type[Program]:
    """The class of a reference program (`gpt`) or of `PROGRAM.py:Class`.

    Raises:
        UsageError: `program`, naming what is there.
    """
    from witness import source
    from witness.program import Program
    from witness.programs import REFERENCE

    if name in REFERENCE:
        module, _, qualname = REFERENCE[name].partition(":")
        kind: type[Program] = getattr(importlib.import_module(module), qualname)
        return kind
    file, colon, qualname = name.rpartition(":")
    path = Path(file)
    if not colon or path.suffix != ".py":
        example = (
            f"{file}.py:{qualname}" if file and qualname else f"{name if name.endswith('.py') else 'char.py'}:Char"
        )
        raise UsageError(
            "program",
            f"{name!r} is neither PROGRAM.py:Class nor one of {', '.join(REFERENCE)}",
            next_action=f"name a file and the Program in it, like {example}, or one of {', '.join(REFERENCE)}",
        )
    if not path.is_file():
        raise UsageError("program", f"there is no file {path}", next_action="check the path of the program's file")
    try:
        namespace = source.execute(path.stem, path.resolve().parent)
    except IncompleteError as error:
        raise UsageError("program", str(error)) from error
    found = namespace.get(qualname)
    if not (isinstance(found, type) and issubclass(found, Program)):
        names = [k for k, v in namespace.items() if isinstance(v, type) and issubclass(v, Program) and v is not Program]
        action = f"name the class too, like {path}:{names[0]}" if names else None
        raise UsageError(
            "program", f"{path} has no Program {qualname!r}; it has {', '.join(names) or 'none'}", next_action=action
        )
    return found


def make_program(kind: type[Program], settings: Mapping[str, str], steps: int | None) -> Program:
    """The program with the settings of a command line.

    A reference program takes them as fields of its config, with `steps` among them because the schedule needs it; any
    other takes them as keyword arguments. Values are JSON where they parse as JSON, text otherwise.

    Raises:
        UsageError: `program`, for a setting that does not exist.
    """
    values = {name: _value(text) for name, text in settings.items()}
    config = getattr(sys.modules[kind.__module__], f"{kind.__name__}Config", None)
    try:
        if kind.__module__.startswith("witness.programs.") and is_dataclass(config) and isinstance(config, type):
            known = {f.name for f in fields(config)}
            if steps is not None and "steps" in known:
                values.setdefault("steps", steps)
            if values.keys() - known:
                raise UsageError(
                    "program",
                    f"{kind.__name__} has no setting {min(values.keys() - known)!r}; it has {', '.join(sorted(known))}",
                    next_action="name one of these settings with --set",
                )
            return kind(config(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}))
        return kind(**values)
    except TypeError as error:
        raise UsageError(
            "program",
            f"{kind.__name__} cannot be made with {dict(settings)}: {error}",
            next_action="give each setting that it needs, and none besides, as --set NAME=VALUE",
        ) from error


def remake_program(kind: type[Program], manifest: Manifest) -> Program:
    """The program of a run, with the arguments of its manifest.

    Raises:
        ProtocolError: `program-arguments`.
        UsageError: `resume-mismatch`, when another class is named.
    """
    from witness.program import instantiate

    if manifest.program.entry.rpartition(":")[2] != kind.__qualname__:
        raise UsageError("resume-mismatch", f"the run is one of {manifest.program.entry}, not of {kind.__qualname__}")
    return instantiate(kind, vars(sys.modules[kind.__module__]), manifest.program.arguments)


def of_program(error: Exception, kind: type[Program], settings: Mapping[str, str], *, begun: bool) -> UsageError | None:
    """What a person is told whose program raises: what, and where in their own files; None for any other error.

    Args:
        error: that came out of it.
        kind: the program.
        settings: of the command line: with a reference program, the likeliest reason.
        begun: whether the run's folder holds a run that can be continued.
    """
    folder = Path(sys.modules[kind.__module__].__file__ or ".").resolve().parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if folder in Path(frame.filename).resolve().parents]
    if not own:
        return None
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
    if kind.__module__.startswith("witness.programs."):
        given = ", ".join(f"{name}={value}" for name, value in settings.items())
        action = "check the data: it may not fit the program"
        if given:
            action = f"check what was set: {given} may be of another type or size than the program takes"
    elif begun:
        action = "mend the program; a changed program is a new run, the same one can be continued with --resume"
    else:
        action = "mend the program and start again: nothing was recorded yet"
    return UsageError(
        "program",
        f"{kind.__qualname__} raises {type(error).__name__} at {where}: {error}",
        evidence={"where": where},
        next_action=action,
    )


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def run_loop(recorder: Recorder, report: Callable[[int, float], None]) -> None:
    """Runs a recorder to its end, or until its `stopping` is set.

    Args:
        recorder: from `witness.record`.
        report: called with step number and loss after each step.
    """
    for batch in recorder:
        loss = recorder.step(batch)
        report(batch.step, loss)
