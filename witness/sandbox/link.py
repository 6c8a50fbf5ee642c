"""One running zygote, seen from the process that started it: lines of JSON out, lines of JSON back, within a time.

Both ends are our own code and no stranger's bytes cross the link unescaped, so the lines are parsed as plain JSON.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import protocol
import witness
from protocol.errors import IncompleteError
from witness.sandbox.output import printable

_BOOT = (
    "import sys; sys.path[:0] = [p for p in sys.argv[2:] if p not in sys.path]; "
    "from witness.sandbox.zygote import main; main()"
)


class Link:
    """Starts a zygote and speaks with it.

    The interpreter runs without user site and without the current folder on its path. It is not isolated from its
    environment (`-I`), because a pinned PYTHONHASHSEED must count; the environment is vetted instead.

    Args:
        environment: the whole environment of the zygote, vetted.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        roots = {str(Path(folder).parent) for package in (witness, protocol) for folder in package.__path__}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._buffer = b""
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-B", "-c", _BOOT, str(os.getpid()), *sorted(roots)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            bufsize=0,
            cwd="/proc",  # where no file can be created, and no library found, by a relative name
            env=dict(environment),
            start_new_session=True,  # a Ctrl-C at the terminal is for the client to handle
        )

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether the zygote still runs."""
        return self._process.poll() is None

    def ask(
        self, message: Mapping[str, Any], seconds: float, idle: Callable[[], None] | None = None
    ) -> Mapping[str, Any]:
        """Sends one line and waits for the answer.

        Args:
            message: what to send.
            seconds: how long to wait.
            idle: called about ten times a second while waiting, and once at the end.

        Raises:
            IncompleteError: `sandbox-unavailable`, if the zygote ended or did not answer in time.
        """
        if self._process.stdin is None or self._process.stdout is None:
            raise self._lost("it has no pipes")
        try:
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
        except BrokenPipeError:
            raise self._lost("it ended") from None
        source = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(source, select.POLLIN)
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            wait = deadline - time.monotonic()
            if wait <= 0:
                raise self._lost(f"it was silent for {seconds:.0f} s")
            if poll.poll(1000 * min(wait, 0.1 if idle else wait)):
                data = os.read(source, 1 << 16)
                if not data:
                    raise self._lost("it ended")
                self._buffer += data
            if idle is not None:
                idle()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)  # type: ignore[no-any-return]

    def end(self) -> None:
        """Kills the zygote; the kernel kills the job it may be running."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._log):
            if file is not None:
                file.close()

    def _lost(self, what: str) -> IncompleteError:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 4096))
        evidence = {"standard error": printable(self._log.read())}
        return IncompleteError("sandbox-unavailable", f"the sandbox's process was lost: {what}", evidence=evidence)
