"""The long-lived process from which jobs are forked: it imports what jobs need and runs no stranger's code.

Importing torch costs a second; forking a process that has done it costs milliseconds. That is sound only while no
thread pool has been started (a forked OpenMP pool hangs), so the zygote imports and never computes.

It speaks lines of JSON with the process that started it: a configuration, then one request at a time on standard input;
one reply each on what was its standard output. When that process closes the pipe, or dies, the zygote kills what runs
and ends; when the zygote dies, the kernel kills the job.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from witness.sandbox import child, kernel
from witness.sandbox.confine import Policy, interpreter_paths
from witness.sandbox.limits import Limits, entries
from witness.sandbox.watch import AbandonedError, UnconfinedError, UnusableError, Watch

UNCONFINED, UNUSABLE, UNREADY = "unconfined", "unusable", "unready"
"""Kinds of error in a reply."""
_CANARY_SECONDS = 5


class _Requests:
    """The lines that the client sends, until it is gone."""

    def __init__(self, client: int) -> None:
        self._buffer = b""
        self.parent = os.pidfd_open(client)
        self._poll = select.poll()
        self._poll.register(0, select.POLLIN)
        self._poll.register(self.parent, select.POLLIN)

    def next(self) -> Any:
        """The next request, or None at the end."""
        while b"\n" not in self._buffer:
            ready = dict(self._poll.poll())
            data = os.read(0, 1 << 16) if 0 in ready else b""
            if not data or self.parent in ready:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)


def _fork(job: Path, target: str, policy: Policy, parent: int) -> dict[str, Any]:
    """Runs one job in a child of this process.

    Returns:
        The reply.

    Raises:
        AbandonedError: the client is gone.
    """
    existing = entries(job, 1 << 20)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    zygote = os.getpid()
    pid = os.fork()
    if pid == 0:
        child.run(job, target, policy, zygote=zygote, channel=theirs, output=writing)
    theirs.close()
    os.close(writing)
    client = ((0, 0), (parent, select.POLLIN))
    watch = Watch(pid, job=job, existing=existing, caps=policy.limits, channel=ours, output=reading, client=client)
    try:
        return {"result": asdict(watch.result())}
    except UnconfinedError as error:
        return {"error": UNCONFINED, "message": str(error)}
    except UnusableError as error:
        return {"error": UNUSABLE, "message": str(error)}
    finally:
        ours.close()
        os.close(reading)


def _can_compute_after_fork() -> bool:
    """Whether a child of this process can use torch's threads: it cannot once this process has used them.

    Without this check every job would hang, and each would be blamed on its program.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return True
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(_CANARY_SECONDS)
            torch.ones(1 << 20).sum()  # large enough to be shared out among threads
            os._exit(0)
        finally:
            os._exit(1)
    return os.wait4(pid, 0)[1] == 0


def main() -> None:
    """Serves one client, the process that started this one, until it is gone."""
    replies = os.dup(1)
    os.dup2(2, 1)  # what a preloaded module prints must not pass for a reply
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    requests = _Requests(int(sys.argv[1]))

    def reply(message: dict[str, Any]) -> None:
        os.write(replies, json.dumps(message).encode() + b"\n")

    config = requests.next()
    if config is None or os.getppid() != int(sys.argv[1]):
        return
    sys.path += config["import_paths"]
    pinned = dict(os.environ)
    try:
        for module in config["preload"]:
            importlib.import_module(module)
    except ImportError as error:
        reply({"error": UNREADY, "message": f"cannot import {error.name}: {error}"})
        return
    readable = (*interpreter_paths(), *map(Path, config["readable"]), *map(Path, config["import_paths"]))
    # torch's compiler sets variables when it is imported, such as a cache folder that no job may write to.
    os.environ.clear()
    os.environ.update(pinned)
    # BLAS may hold an idle pool that its own fork handlers put to rest; the warning is about that.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork.*")
    gc.collect()
    gc.freeze()  # keeps the collector of a child from touching, and so copying, every page
    if not _can_compute_after_fork():
        reply({"error": UNREADY, "message": "a preloaded module computes when imported, so no fork could use torch"})
        return
    reply({"ready": True})
    while (request := requests.next()) is not None:
        try:
            policy = Policy(config["landlock"], readable, Limits(**request["limits"]))
            reply(_fork(Path(request["job"]), request["target"], policy, requests.parent))
        except AbandonedError:
            return
