"""Processes for experiments on the recorder: forked from one that has imported torch and computed nothing.

A recording leaves marks on a process (deterministic switches, thread pools, imported programs) and many of the tests
here end it in the middle. So each runs in a process of its own; forking one costs milliseconds, where importing torch
costs seconds.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from e2e.command import REPOSITORY, environment

from witness.environment import recommended_environment

KILLED = 9
_PRELOAD = (
    *("torch", "torch._dynamo", "witness.recorder", "witness.programs.gpt", "witness.programs.mlp"),
    "e2e.recording",
)


@dataclass(frozen=True, slots=True)
class Report:
    """How an experiment ended.

    Attributes:
        status: exit status: 0, or `KILLED` where it was to end in the middle.
        value: what the function returned.
        error: code of the WitnessError that it raised, else empty.
        message: of the error.
        evidence: of the error.
    """

    status: int
    value: Any = None
    error: str = ""
    message: str = ""
    evidence: Any = None


class Lab:
    """A context manager; `run` calls a function of an importable module in a new process.

    Args:
        variables: of its processes, where they are not the recommended ones of a native run on one thread.
        preload: modules to import besides.
    """

    def __init__(self, variables: Mapping[str, str] | None = None, *preload: str) -> None:
        env = environment(**(recommended_environment(1) if variables is None else variables))
        env["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY / "tests"), env["PYTHONPATH"]])
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from e2e.lab import main; main({preload!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait(20)
        self._process.stdout.close()  # type: ignore[union-attr]

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Report:
        """What became of `function(*args, **kwargs)`; arguments and result are JSON (paths travel as text)."""
        request = {"target": [function.__module__, function.__qualname__], "args": args, "kwargs": kwargs}
        with self._lock:
            self._process.stdin.write(json.dumps(request, default=str) + "\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            line = self._process.stdout.readline()  # type: ignore[union-attr]
        report = Report(**json.loads(line))
        assert report.error != "crash", report.message
        return report


def main(preload: Sequence[str]) -> None:
    """Answers requests until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in (*_PRELOAD, *preload):
        importlib.import_module(name)
    for line in sys.stdin:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _child(json.loads(line), writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        report = json.loads(said) if said else {}
        print(json.dumps({"status": code, **report}), file=out, flush=True)
    os._exit(0)  # torch takes its time to say goodbye


def _child(request: dict[str, Any], writing: int) -> None:
    from protocol.errors import WitnessError

    signal.signal(signal.SIGINT, signal.default_int_handler)
    module, name = request["target"]
    try:
        value = getattr(importlib.import_module(module), name)(*request["args"], **request["kwargs"])
        report: dict[str, Any] = {"value": value}
    except WitnessError as error:
        report = {"error": error.code, "message": str(error), "evidence": error.evidence}
    except BaseException:  # noqa: BLE001 - the test shows it
        report = {"error": "crash", "message": traceback.format_exc()}
    os.write(writing, json.dumps(report, default=str).encode())
    os._exit(0)
