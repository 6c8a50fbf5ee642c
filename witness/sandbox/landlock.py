"""Landlock: which files a job may touch, enforced by the kernel for an unprivileged process.

A ruleset names the rights it handles; a handled right is denied everywhere except below the paths that a rule opens.
Older kernels know fewer rights (the ABI number says which), so the rights asked for are masked by the ABI; what an old
ABI cannot refuse - truncation before 3, TCP before 4, device ioctls before 5, signals and abstract sockets before 6 -
the seccomp filter refuses as well, on every kernel. See Linux, Documentation/userspace-api/landlock.rst.
"""

import ctypes
import os
import stat
from collections.abc import Iterable
from enum import IntFlag
from pathlib import Path

from witness.sandbox import kernel

_VERSION_QUERY = 1  # LANDLOCK_CREATE_RULESET_VERSION
_RULE_PATH_BENEATH = 1
_NET_BIND_AND_CONNECT = 0b11  # ABI 4
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11  # ABI 6


class Access(IntFlag):
    """Rights on files and folders (`LANDLOCK_ACCESS_FS_*`)."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13  # ABI 2; before, never granted
    TRUNCATE = 1 << 14  # ABI 3
    IOCTL_DEV = 1 << 15  # ABI 5


READ = Access.READ_FILE | Access.READ_DIR
"""Reading a tree. Without EXECUTE: libraries are mapped, which needs only reading, and no job starts a program."""

WRITE = (
    READ
    | Access.WRITE_FILE
    | Access.TRUNCATE
    | Access.MAKE_REG
    | Access.MAKE_DIR
    | Access.REMOVE_FILE
    | Access.REMOVE_DIR
    | Access.REFER
)
"""Regular files and folders only: a link, pipe, socket or device that a job left behind would trap whoever reads it."""

_ON_FILES = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The Landlock ABI of this kernel; 0 where it has none, or where it is switched off."""
    try:
        return kernel.call("landlock_create_ruleset", None, 0, _VERSION_QUERY)
    except OSError:
        return 0


def handled(version: int) -> Access:
    """The file rights that a kernel of this ABI can refuse."""
    rights = Access(2 * Access.MAKE_SYM - 1)
    for since, right in ((2, Access.REFER), (3, Access.TRUNCATE), (5, Access.IOCTL_DEV)):
        if version >= since:
            rights |= right
    return rights


def restrict(version: int, rules: Iterable[tuple[Path, Access]]) -> None:
    """Confines the calling thread, and every thread it starts, to the rules. There is no way back.

    Args:
        version: the ABI to use, from 1 up to `abi()`.
        rules: paths and the rights on them and all below. A path that does not exist grants nothing.

    Raises:
        OSError: the kernel refused; the caller must not go on.
    """
    rights = handled(version)
    # The structure grew with the ABIs, and a kernel refuses a size that it does not know.
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    attributes = _Ruleset(rights, _NET_BIND_AND_CONNECT if size > 8 else 0, 0)
    if size > 16:
        attributes.scoped = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS
    ruleset = kernel.call("landlock_create_ruleset", attributes, size, 0)
    try:
        for path, access in rules:
            _allow(ruleset, path, access & rights)
        kernel.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path, access: Access) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            access &= _ON_FILES
        rule = _PathBeneath(access, descriptor)
        kernel.call("landlock_add_rule", ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
