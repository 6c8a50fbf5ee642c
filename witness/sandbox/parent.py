"""The caller's side: starts a zygote, asks it for jobs, and believes only the kernel.

The process that uses a `Sandbox` never imports, unpickles or executes anything of the stranger's. It prepares a folder,
names one of our own functions, and afterwards reads files from the folder as hostile bytes.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import protocol
import witness
from protocol.errors import IncompleteError, UsageError
from witness.sandbox import kernel, landlock, seccomp, zygote
from witness.sandbox.environment import vetted
from witness.sandbox.limits import Limits
from witness.sandbox.link import Link
from witness.sandbox.output import Progress, printable
from witness.sandbox.result import End, JobResult

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
PRELOAD = ("torch", "torch._dynamo")
"""What jobs that train import anyway: torch's optimizers import its compiler, at a second of processor time, when they
first step."""
_START_SECONDS = 180.0
_GRACE_SECONDS = 30.0


def missing_layers() -> list[str]:
    """The layers of confinement that this machine lacks, of `"linux"`, `"architecture"`, `"seccomp"`, `"landlock"`.

    Empty where a sandbox can run in full.
    """
    if sys.platform != "linux":
        return ["linux"]
    if kernel.architecture() is None:
        return ["architecture"]
    return [name for name, on in (("seccomp", seccomp.supported()), ("landlock", landlock.abi() > 0)) if not on]


class Sandbox:
    """A source of confined processes, which compute on the CPU; a context manager.

    One job runs at a time. Each is a new process, forked from one that has imported `preload`: it can read the
    interpreter, the system's libraries and `readable`, write below its own folder, and reach nothing else - no network,
    no other process, no new program. If the process underneath dies, the next job starts another.

    Args:
        environment: the whole environment of the jobs, but for PATH, LANG, HOME and TMPDIR. It may come from a
            stranger's manifest, so it is vetted.
        readable: files and folders that jobs may read, besides.
        limits: caps on each job, unless `run` is given others.
        preload: modules to import once, before any job; our own or installed, never a stranger's. They must not start
            computing when imported.
        import_paths: folders that are searched last for modules, and readable.
        allow_weaker: run without Landlock where the kernel has none. A job can then read what this user can read, and
            overwrite it; only the system calls are filtered. `JobResult.layers` says so.

    Raises:
        IncompleteError: `sandbox-unavailable`, if a layer is missing here; `sandbox-environment`, if a variable is one
            that could execute code outside the confinement.
        UsageError: `sandbox-misuse`, if a path does not exist.
    """

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        readable: Sequence[Path] = (),
        limits: Limits | None = None,
        preload: Sequence[str] = PRELOAD,
        import_paths: Sequence[Path] = (),
        allow_weaker: bool = False,
    ) -> None:
        missing = missing_layers()
        if missing and not (allow_weaker and missing == ["landlock"]):
            raise IncompleteError(
                "sandbox-unavailable",
                f"this machine cannot confine a stranger's program: it lacks {', '.join(missing)}",
                evidence={"missing": missing},
            )
        self._environment = vetted(environment)
        self._limits = limits or Limits()
        self._config = {
            "preload": list(preload),
            "readable": [str(_existing(path)) for path in readable],
            "import_paths": [str(_existing(path)) for path in import_paths],
            "landlock": landlock.abi(),
        }
        self._lock = threading.Lock()
        self._link: Link | None = None

    def __enter__(self) -> Self:
        with self._lock:
            if self._link is None:
                self._link = self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the zygote, and the job that it may be running. A later `run` starts another."""
        link, self._link = self._link, None
        if link is not None:
            link.end()

    def run(
        self,
        job: Path,
        target: str,
        *,
        limits: Limits | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> JobResult:
        """Runs one job to its end.

        Args:
            job: an existing folder with the inputs; the only one the job may write to. It may change what is in it, so
                nothing there is to be trusted afterwards, inputs included.
            target: `"module:function"`, a function of ours, called as `function(job)` in the confined process. What it
                returns is ignored.
            limits: caps on this job; the sandbox's own if None.
            progress: called with each line that the job appends to the file `progress` in its folder, cut and made
                printable; hostile text all the same.

        Raises:
            IncompleteError: `sandbox-unavailable`, if the job could not be confined, or the zygote was lost.
            UsageError: `sandbox-misuse`, if the folder is unfit or the target cannot be imported.
        """
        if not _TARGET.fullmatch(target):
            raise UsageError("sandbox-misuse", f"{target!r} is not of the form module:function")
        folder = _fit(job)
        caps = limits or self._limits
        follower = Progress(folder)

        def idle() -> None:
            for line in follower.lines():
                if progress is not None:
                    progress(line)

        with self._lock:
            if self._link is None or not self._link.alive():
                self.close()
                self._link = self._start()
            try:
                request = {"job": str(folder), "target": target, "limits": asdict(caps)}
                reply = self._link.ask(request, caps.wall_seconds + _GRACE_SECONDS, idle if progress else None)
            except BaseException:
                self.close()  # also on Ctrl-C: no job outlives the wait for it
                raise
        if "result" not in reply:
            message = f"the job did not run: {printable(reply['message'].encode())}"
            if reply["error"] == zygote.UNUSABLE:
                raise UsageError("sandbox-misuse", message, evidence={"target": target})
            raise IncompleteError("sandbox-unavailable", message)
        return _result(reply["result"])

    def _start(self) -> Link:
        link = Link(self._environment)
        try:
            reply = link.ask(self._config, _START_SECONDS)
        except BaseException:
            link.end()
            raise
        if "ready" not in reply:
            link.end()
            raise IncompleteError("sandbox-unavailable", f"the sandbox did not start: {reply['message']}")
        return link


def _existing(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except OSError as error:
        raise UsageError("sandbox-misuse", f"{path} cannot be made readable: {error.strerror}") from None


def _fit(job: Path) -> Path:
    folder = _existing(job)
    places = [*witness.__path__, *protocol.__path__, sys.prefix, os.environ.get("HOME", "/")]
    if not folder.is_dir() or any(Path(place).resolve().is_relative_to(folder) for place in places):
        raise UsageError("sandbox-misuse", f"{folder} is not a folder for a job: all of it will be writable")
    return folder


def _result(reply: Mapping[str, Any]) -> JobResult:
    tuples = {name: tuple(reply[name]) for name in ("refused", "layers")}
    return JobResult(**{**reply, **tuples, "end": End(reply["end"])})
