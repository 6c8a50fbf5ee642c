"""What a forked job does: confine itself, import the target, call it, and end without a trace of the zygote's work.

Up to the call, this process runs only our own code and reports over a socket; the socket is closed before the target is
called, so a stranger's code has no channel to the zygote but its exit and its standard output.
"""

import importlib
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from socket import socket
from typing import Any, NoReturn

from witness.sandbox import kernel
from witness.sandbox.confine import Policy, confine
from witness.sandbox.result import OUT_OF_MEMORY_STATUS

CONFINED, UNCONFINED, UNUSABLE = b"confined ", b"unconfined ", b"unusable "
"""Heads of the messages to the zygote: the layers that are on; why confinement failed; why the target cannot be had."""


def run(job: Path, target: str, policy: Policy, *, zygote: int, channel: socket, output: int) -> NoReturn:
    """Turns this freshly forked process into a job, and ends it.

    Args:
        job: the job folder, absolute.
        target: `module:function`, our own code.
        policy: the confinement.
        zygote: the process id of the zygote.
        channel: to the zygote, until the target is called.
        output: the pipe for standard output and error.
    """
    end = os._exit
    status = 1
    try:
        try:
            _detach(job, zygote, channel, output)
            layers = confine(job, policy, channel)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the job must not start
            _report(channel, UNCONFINED + repr(error).encode()[:1000])
            end(status)
        try:
            function = _load(target)
        except Exception as error:  # noqa: BLE001 - our own target, so our own mistake: say what it was
            _report(channel, UNUSABLE + repr(error).encode()[:1000])
            end(status)
        _report(channel, CONFINED + " ".join(layers).encode())
        channel.close()
        status = _call(function, job)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        end(status)


def _detach(job: Path, zygote: int, channel: socket, output: int) -> None:
    os.setsid()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:  # it died before the line above took effect
        os._exit(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for source, standard in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, standard)
    keep = channel.fileno()
    os.closerange(3, keep)
    os.closerange(keep + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(job)
    os.environ["HOME"] = os.environ["TMPDIR"] = str(job)
    tempfile.tempdir = None


def _report(channel: socket, message: bytes) -> None:
    os.write(channel.fileno(), message)  # not `send`: the filter refuses all calls that are only for sockets


def _load(target: str) -> Callable[[Path], Any]:
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise TypeError(f"{target} is not a function")
    return function  # type: ignore[no-any-return]


def _call(function: Callable[[Path], Any], job: Path) -> int:
    try:
        function(job)
    except MemoryError:
        os.write(2, b"out of memory\n")
        return OUT_OF_MEMORY_STATUS
    except SystemExit as ending:
        return ending.code & 0xFF if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException as error:  # noqa: BLE001 - the stranger's, of any kind; it ends with this process
        traceback.print_exc()
        return OUT_OF_MEMORY_STATUS if isinstance(error, RuntimeError) and allocation_failed(error) else 1
    return 0


def allocation_failed(error: RuntimeError) -> bool:
    """Whether torch says in this error that memory was not to be had."""
    text = str(error)
    return "can't allocate memory" in text or "not enough memory" in text
