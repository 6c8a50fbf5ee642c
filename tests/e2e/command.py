"""`witness` as people start it: real processes, and what they left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from witness.environment import VARIABLES

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL_GPT = (
    *("--threads", "1", "--batch-size", "4", "--set", "layers=1", "--set", "width=32", "--set", "heads=2"),
    *("--set", "context=32"),
)
"""A GPT of 24,000 parameters, on one thread."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that came to its end, without a traceback."""

    arguments: tuple[str, ...] = field(repr=False)
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON object on standard output."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """The one JSON object on standard error, of a command that was called with --json and failed."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        return json.loads(lines[0])

    def told(self) -> tuple[int, str]:
        """Exit status and error code: what a script would act on."""
        return self.status, self.error["error"]


def environment(**more: str) -> dict[str, str]:
    """A user's environment, in which nothing that decides bits is set."""
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES and name != "WITNESS_PINNED"}
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return plain | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | more


def require_calm(arguments: tuple[str, ...], out: str, err: str) -> None:
    """No command may ever show a traceback, whatever it was given."""
    for text in (out, err):
        assert "Traceback (most recent call last)" not in text, f"{' '.join(arguments)}\n{text}"
        assert "unforeseen" not in text, f"{' '.join(arguments)}\n{text}"


class Running:
    """A started command.

    Attributes:
        process: its own group, so that a signal to it reaches its children as Ctrl-C at a terminal does.
    """

    def __init__(self, arguments: tuple[str, ...], cwd: Path | None, env: Mapping[str, str]) -> None:
        self.arguments = arguments
        self.process = subprocess.Popen(
            [sys.executable, "-m", "witness", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._parts: dict[str, str] = {"out": "", "err": ""}
        self._threads = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str, stream: Any) -> None:
        for line in stream:
            self._parts[name] += line

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._parts["out"]

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._parts["err"]

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """kill -9, of the one process."""
        self.process.kill()

    def wait(self, seconds: float = 120) -> Ended:
        """What it ended with."""
        status = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(10)
        require_calm(self.arguments, self.out, self.err)
        return Ended(self.arguments, status, self.out, self.err)

    def until(self, reached: Callable[[], bool], seconds: float = 60) -> None:
        """Waits for something that shows from outside; the command must still be running then."""
        done = threading.Event()
        for _ in range(int(seconds / 0.005)):
            if reached():
                return
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.out}{self.err}"
            done.wait(0.005)
        raise AssertionError(f"nothing happened in {seconds} seconds: {self.out}{self.err}")

    def end(self) -> None:
        """Ends the whole group, whatever it does."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


@contextmanager
def start(*arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A command in the background; it does not outlive the block."""
    running = Running(tuple(map(str, arguments)), cwd, environment() if env is None else env)
    try:
        yield running
    finally:
        running.end()


def witness(
    *arguments: object,
    status: int | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = 120,
) -> Ended:
    """Runs one command to its end.

    Args:
        arguments: after `witness`.
        status: the exit status that is due; None for any.
        cwd: where.
        env: its environment; None for a plain user's.
        seconds: that it may take.
    """
    with start(*arguments, cwd=cwd, env=env) as running:
        ended = running.wait(seconds)
    assert status is None or ended.status == status, f"{ended.status}: {ended.out}{ended.err}"
    return ended


@contextmanager
def serve(run: Path, *options: object, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """`witness serve` on a free port; gives its URL. It must end as it was told to."""
    with start("serve", run, "--port", "0", "--json", *options, env=env) as running:
        running.until(lambda: running.out.endswith("\n"))
        yield json.loads(running.out)["url"]
        running.interrupt()
        assert running.wait(20).status == 0, running.err
