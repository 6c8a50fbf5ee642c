"""The system calls that Python has no name for: a thin, checked door to `syscall(2)` and `prctl(2)`.

Landlock and seccomp have no wrapper in the C library nor in the standard library, and a sandbox should not rest on a
compiled extension of its own. Nothing here knows what the calls are for.
"""

import ctypes
import errno
import functools
import os
import platform
import sys
from typing import Any

from witness.sandbox.syscalls import AARCH64, X86_64, Architecture

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

_CAPABILITY_VERSION_3 = 0x20080522


def architecture() -> Architecture | None:
    """The architecture of this process, or None where the sandbox has no table of system calls for it."""
    if sys.platform != "linux" or sys.maxsize < 2**32:
        return None
    return {"x86_64": X86_64, "aarch64": AARCH64}.get(platform.machine())


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: Any) -> int:
    """Makes one system call.

    Args:
        name: the kernel's name of the call.
        arguments: integers (passed as machine words) or ctypes objects to pass by reference.

    Returns:
        What the kernel returned, never negative.

    Raises:
        OSError: the call failed, or this machine is no Linux with a known table (`ENOSYS`).
    """
    machine = architecture()
    if machine is None:
        raise OSError(errno.ENOSYS, "no table of system calls for this machine")
    result = _libc().syscall(ctypes.c_long(machine.numbers[name]), *map(_word, arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return int(result)


def _word(argument: Any) -> Any:
    if argument is None:
        return ctypes.c_void_p(None)
    return ctypes.c_long(argument) if isinstance(argument, int) else ctypes.byref(argument)


def prctl(option: int, *arguments: int) -> None:
    """Sets one attribute of this process.

    Raises:
        OSError: the kernel refused.
    """
    padded = (*arguments, 0, 0, 0, 0)[:4]
    call("prctl", option, *padded)


def drop_capabilities() -> None:
    """Gives up every capability of this process, for good once no program can be executed.

    The bounding set is left alone: it only matters to `execve`, which the filter refuses.

    Raises:
        OSError: the kernel refused.
    """
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    call("capset", header, nothing)
