"""Seccomp: which system calls a job may make, as a classic BPF program that the kernel runs before each of them.

The list is of what is allowed, so that what nobody thought of is refused. Landlock guards paths; the filter guards the
rest: the network, other processes (signals, debuggers, limits, affinity, `fcntl` that sends signals), new programs and
processes, file attributes (which Landlock does not cover) and the kernel's rarely used doors. A refused call returns
EPERM; where the kernel offers it, the refusal is first reported to the zygote, which records the call's name - evidence
that the job can neither forge nor hide. A call of a foreign convention (x32, 32-bit) kills: it could mean anything.

See Linux, Documentation/userspace-api/seccomp_filter.rst, and seccomp_unotify(2).
"""

import ctypes
import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from fcntl import ioctl

from witness.sandbox import kernel
from witness.sandbox.syscalls import Architecture

KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
NOTIFY = 0x7FC00000  # SECCOMP_RET_USER_NOTIF
ERROR = 0x00050000  # SECCOMP_RET_ERRNO, the errno in the low bits
ALLOW = 0x7FFF0000
EPERM, ENOSYS, ENOTTY = ERROR | errno.EPERM, ERROR | errno.ENOSYS, ERROR | errno.ENOTTY

_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_FLAG_NEW_LISTENER = 1 << 3
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")  # struct seccomp_notif
_RESPONSE = struct.Struct("=QqiI")  # struct seccomp_notif_resp
_RECEIVE = 0xC0002100 | _NOTIFICATION.size << 16  # SECCOMP_IOCTL_NOTIF_RECV
_SEND = 0xC0002101 | _RESPONSE.size << 16  # SECCOMP_IOCTL_NOTIF_SEND

_ALLOWED = """
    read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2 dup3
    creat ftruncate fsync fdatasync fadvise64 readahead flock sendfile copy_file_range
    pipe pipe2 eventfd eventfd2 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
    poll ppoll select pselect6
    stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2 readlink readlinkat
    getdents getdents64 getcwd chdir fchdir umask
    rename renameat renameat2 mkdir mkdirat rmdir unlink unlinkat link linkat
    mmap munmap mprotect mremap madvise msync mincore brk get_mempolicy membarrier
    futex futex_waitv set_robust_list set_tid_address rseq arch_prctl restart_syscall exit exit_group
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack pause
    alarm getitimer setitimer nanosleep clock_gettime clock_getres clock_nanosleep gettimeofday time times
    wait4 waitid getrlimit getrusage sysinfo uname getrandom getcpu
    getpid gettid getppid getpgid getpgrp getsid getuid geteuid getgid getegid getresuid getresgid getgroups capget
    sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min
    sched_rr_get_interval getpriority
"""
ALLOWED = frozenset(_ALLOWED.split())
"""Calls allowed with any arguments. Those that take a path are Landlock's to judge. `truncate` is not among them:
Landlock judges it from ABI 3 on only. `ftruncate` needs a descriptor that was opened for writing."""

ABSENT = frozenset({"clone3", "openat2", "mbind"})
"""Calls that do not exist for a job. The flags of `clone3` and `openat2` lie behind a pointer, and callers fall back on
the older call; OpenBLAS tries `mbind` everywhere and does without it on kernels that have none."""

_THREAD = 0x00010000  # CLONE_THREAD
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_TRUNCATE = 0o1000  # O_TRUNC
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)  # F_DUPFD .. F_SETLKW, F_OFD_*, F_DUPFD_CLOEXEC, F_GETPIPE_SZ
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS TIOCGWINSZ FIONREAD FIONBIO FIONCLEX FIOCLEX
_PRCTL = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Rule:
    """A call whose fate hangs on one argument: `matched` if `argument & mask` is one of `values`, else `otherwise`.

    Only the low 32 bits are looked at: all arguments judged here are 32 bits wide to the kernel.
    """

    argument: int
    mask: int
    values: tuple[int, ...]
    matched: int
    otherwise: int


def rules(pid: int, channel: int, refused: int) -> Mapping[str, Rule]:
    """The calls that are allowed with some arguments only.

    Args:
        pid: the job's own process; signals and limits may concern no other.
        channel: the socket on which the job hands over its listener; the only one it ever holds, closed before it runs.
        refused: the filter's action for a refused call.
    """

    def only(argument: int, *values: int, otherwise: int = refused, mask: int = _WORD) -> Rule:
        return Rule(argument, mask, values, ALLOW, otherwise)

    def opening(argument: int) -> Rule:
        # O_TRUNC with a mode that does not write truncates all the same, and Landlock before ABI 3 asks for no right.
        return Rule(argument, _TRUNCATE | 3, (_TRUNCATE, _TRUNCATE | 3), refused, ALLOW)

    return {
        "open": opening(1),
        "openat": opening(2),
        "clone": only(0, _THREAD, mask=_THREAD | _NEW_NAMESPACES),
        "fcntl": only(1, *_FCNTL),  # not F_SETOWN, F_SETSIG, F_SETLEASE, F_NOTIFY: they send signals to others
        "ioctl": only(1, *_IOCTL, otherwise=ENOTTY),
        "prctl": only(0, *_PRCTL),
        "prlimit64": only(0, 0, pid),
        "kill": only(0, pid),
        "tgkill": only(0, pid),
        "sched_setaffinity": only(0, 0),
        "sendmsg": only(0, channel),
    }


def program(machine: Architecture, *, pid: int, channel: int, refused: int) -> bytes:
    """The filter for one job as an array of `struct sock_filter`.

    Args:
        machine: whose numbers to use.
        pid: the process that will run under it.
        channel: see `rules`.
        refused: the action for a refused call, `NOTIFY` or `EPERM`.
    """
    code = [_load(4), _jump(_EQUAL, machine.audit, 1, 0), _return(KILL), _load(0)]
    if machine.foreign_from is not None:
        code += [_jump(_AT_LEAST, machine.foreign_from, 0, 1), _return(KILL)]
    code += [_jump(_GREATER, machine.last, 0, 1), _return(ENOSYS)]
    for names, action in ((ALLOWED, ALLOW), (ABSENT, ENOSYS)):
        for number in sorted(machine.numbers[name] for name in names if name in machine.numbers):
            code += [_jump(_EQUAL, number, 0, 1), _return(action)]
    for name, rule in rules(pid, channel, refused).items():
        if name in machine.numbers:
            body = [_load(16 + 8 * rule.argument), _instruction(_AND, 0, 0, rule.mask)]
            for value in rule.values:
                body += [_jump(_EQUAL, value, 0, 1), _return(rule.matched)]
            body.append(_return(rule.otherwise))
            code += [_jump(_EQUAL, machine.numbers[name], 0, len(body)), *body]
    return b"".join([*code, _return(refused)])


_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_AND|BPF_K, BPF_RET|BPF_K
_EQUAL, _GREATER, _AT_LEAST = 0x15, 0x25, 0x35  # BPF_JMP|BPF_K with BPF_JEQ, BPF_JGT, BPF_JGE


def _instruction(code: int, yes: int, no: int, operand: int) -> bytes:
    return struct.pack("=HBBI", code, yes, no, operand)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, 0, 0, offset)


def _jump(code: int, operand: int, yes: int, no: int) -> bytes:
    return _instruction(code, yes, no, operand)


def _return(action: int) -> bytes:
    return _instruction(_RETURN, 0, 0, action)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def supported() -> bool:
    """Whether this kernel runs filters that kill and refuse as ours does."""
    try:
        for action in (KILL, ERROR):
            kernel.call("seccomp", _GET_ACTION_AVAIL, 0, ctypes.c_uint32(action))
    except OSError:
        return False
    return True


def install(machine: Architecture, *, pid: int, channel: int) -> int | None:
    """Puts the calling thread under the filter. There is no way back.

    Returns:
        The descriptor on which refused calls are reported, or None where the kernel offers none (an outer sandbox
        holds the one listener there can be): refused calls then fail unrecorded.

    Raises:
        OSError: no filter could be installed; the caller must not go on.
    """
    try:
        return _install(program(machine, pid=pid, channel=channel, refused=NOTIFY), _FLAG_NEW_LISTENER)
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.EINVAL):
            raise
    _install(program(machine, pid=pid, channel=channel, refused=EPERM), 0)
    return None


def _install(code: bytes, flags: int) -> int:
    return kernel.call("seccomp", _SET_MODE_FILTER, flags, _Program(len(code) // 8, code))


def refuse(listener: int) -> int | None:
    """Answers one reported call with EPERM.

    Returns:
        The number of the call, or None if its caller has died meanwhile.
    """
    notification = bytearray(_NOTIFICATION.size)
    try:
        ioctl(listener, _RECEIVE, notification)
        identity, _, _, number, *_ = _NOTIFICATION.unpack(notification)
        ioctl(listener, _SEND, _RESPONSE.pack(identity, 0, -errno.EPERM, 0))
    except OSError:
        return None
    return int(number)
