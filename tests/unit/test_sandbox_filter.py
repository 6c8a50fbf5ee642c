"""The seccomp program, run instruction by instruction for both architectures, whatever this machine is."""

import errno
import functools
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from witness.sandbox import missing_layers, seccomp
from witness.sandbox.syscalls import AARCH64, X86_64, Architecture

PID, CHANNEL = 4242, 9
I386_AUDIT, ARM_AUDIT = 0x40000003, 0x40000028
BOTH = pytest.mark.parametrize("machine", [X86_64, AARCH64], ids=lambda machine: machine.name)
WORD = st.integers(0, 2**64 - 1)


@functools.cache
def instructions(machine: Architecture, refused: int) -> list[tuple[int, int, int, int]]:
    code = seccomp.program(machine, pid=PID, channel=CHANNEL, refused=refused)
    assert len(code) // 8 <= 4096  # BPF_MAXINSNS
    return list(struct.iter_unpack("<HBBI", code))


def verdict(
    machine: Architecture, number: int, *arguments: int, audit: int | None = None, refused: int = seccomp.EPERM
) -> int:
    """What the kernel's interpreter makes of one call: classic BPF over `struct seccomp_data` (bpf(4), seccomp(2))."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, machine.audit if audit is None else audit, 0, *padded)
    accumulator = position = 0
    code = instructions(machine, refused)
    while True:
        operation, yes, no, operand = code[position]
        position += 1
        if operation == 0x06:
            return operand
        if operation == 0x20:
            assert operand % 4 == 0
            (accumulator,) = struct.unpack_from("<I", data, operand)
        elif operation == 0x54:
            accumulator &= operand
        else:
            taken = {0x15: accumulator == operand, 0x25: accumulator > operand, 0x35: accumulator >= operand}[operation]
            position += yes if taken else no


@BOTH
def test_every_listed_name_is_a_system_call(machine: Architecture) -> None:
    known = X86_64.numbers.keys() | AARCH64.numbers.keys()
    judged = seccomp.rules(PID, CHANNEL, seccomp.EPERM).keys()
    assert seccomp.ALLOWED | seccomp.ABSENT | judged <= known
    assert not judged & seccomp.ALLOWED
    assert {"read", "openat", "futex", "exit_group", "clone3"} <= machine.numbers.keys()


def test_the_tables_agree_with_the_kernel() -> None:
    """Numbers copied by hand from the system call tables of Linux, spread over the blocks."""
    x86 = {"read": 0, "clone": 56, "ptrace": 101, "gettid": 186, "tgkill": 234, "prlimit64": 302, "rseq": 334}
    arm = {"io_setup": 0, "openat": 56, "ptrace": 117, "clone": 220, "recvmmsg": 243, "wait4": 260, "rseq": 293}
    common = {"pidfd_send_signal": 424, "clone3": 435, "landlock_restrict_self": 446, "futex_waitv": 449}
    assert (x86 | common).items() <= X86_64.numbers.items()
    assert (arm | common).items() <= AARCH64.numbers.items()


@BOTH
@pytest.mark.parametrize(
    "name",
    """
    socket socketpair connect bind listen accept accept4 sendto sendmmsg recvmsg setsockopt
    ptrace process_vm_readv process_vm_writev kcmp tkill rt_sigqueueinfo rt_tgsigqueueinfo
    pidfd_open pidfd_getfd pidfd_send_signal process_madvise
    mount umount2 pivot_root chroot move_mount open_tree fsopen fsconfig fsmount fspick mount_setattr
    unshare setns bpf perf_event_open keyctl add_key request_key userfaultfd
    io_uring_setup io_uring_enter io_uring_register io_setup execve execveat fork vfork
    chmod fchmod fchmodat chown fchownat utimensat setxattr removexattr truncate symlinkat mknodat
    memfd_create shmget msgget semget mq_open setrlimit sched_setscheduler setpriority ioprio_set
    init_module finit_module kexec_load reboot swapon acct quotactl settimeofday clock_settime
    open_by_handle_at name_to_handle_at inotify_init1 fanotify_init personality seccomp setuid setsid
    """.split(),  # noqa: SIM905
)
@settings(max_examples=10)
@given(arguments=st.lists(WORD, max_size=6))
def test_a_dangerous_call_is_refused_whatever_its_arguments(
    machine: Architecture, name: str, arguments: list[int]
) -> None:
    if name in machine.numbers:
        assert verdict(machine, machine.numbers[name], *arguments, refused=seccomp.NOTIFY) == seccomp.NOTIFY


@BOTH
def test_every_number_has_the_fate_of_its_name(machine: Architecture) -> None:
    judged = seccomp.rules(PID, CHANNEL, seccomp.EPERM)
    for number in range(1024):
        name = machine.names.get(number, "")
        action = verdict(machine, number, PID, 0x10000)
        if number > 450 or name in ("clone3", "openat2", "mbind"):
            assert action == seccomp.ERROR | errno.ENOSYS, number
        elif name in seccomp.ALLOWED:
            assert action == seccomp.ALLOW, name
        elif name not in judged:
            assert action == seccomp.ERROR | errno.EPERM, name


@given(number=st.integers(0, 2**30 - 1), arguments=st.lists(WORD, max_size=6))
def test_a_foreign_convention_kills(number: int, arguments: list[int]) -> None:
    assert verdict(X86_64, 0x40000000 | number, *arguments) == seccomp.KILL
    for machine, other in (
        (X86_64, I386_AUDIT),
        (X86_64, AARCH64.audit),
        (AARCH64, ARM_AUDIT),
        (AARCH64, X86_64.audit),
    ):
        assert verdict(machine, number, *arguments, audit=other) == seccomp.KILL


@BOTH
@given(flags=WORD)
def test_only_threads_are_cloned(machine: Architecture, flags: int) -> None:
    # CLONE_THREAD, and none of the namespaces: NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
    namespaces = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
    expected = bool(flags & 0x10000) and not any(flags & bit for bit in namespaces)
    assert (verdict(machine, machine.numbers["clone"], flags) == seccomp.ALLOW) == expected


@BOTH
def test_threads_of_glibc_and_musl_are_cloned(machine: Architecture) -> None:
    glibc = 0x3D0F00  # VM FS FILES SIGHAND THREAD SYSVSEM SETTLS PARENT_SETTID CHILD_CLEARTID
    musl = 0x7D0F00  # and DETACHED
    for flags in (glibc, musl):
        assert verdict(machine, machine.numbers["clone"], flags) == seccomp.ALLOW
    assert verdict(machine, machine.numbers["clone"], 17) == seccomp.EPERM  # fork: SIGCHLD
    assert verdict(machine, machine.numbers["clone"], 0x4111) == seccomp.EPERM  # vfork: VM, VFORK, SIGCHLD


@BOTH
@pytest.mark.parametrize("name", ["kill", "tgkill", "prlimit64"])
@given(target=WORD)
def test_only_the_job_itself_is_a_target(machine: Architecture, name: str, target: int) -> None:
    own = {PID} | ({0} if name == "prlimit64" else set())
    allowed = verdict(machine, machine.numbers[name], target, target) == seccomp.ALLOW
    assert allowed == (target % 2**32 in own)  # the kernel takes a 32-bit pid_t
    assert verdict(machine, machine.numbers[name], PID, 0) == seccomp.ALLOW
    for others in (2**32 - 1, 2**64 - 1, 2**32 - PID, PID + 1, 1):
        assert verdict(machine, machine.numbers[name], others, PID) == seccomp.EPERM


@BOTH
@given(target=WORD)
def test_affinity_is_set_for_the_calling_thread_only(machine: Architecture, target: int) -> None:
    allowed = verdict(machine, machine.numbers["sched_setaffinity"], target) == seccomp.ALLOW
    assert allowed == (target % 2**32 == 0)
    assert verdict(machine, machine.numbers["sched_setaffinity"], PID) == seccomp.EPERM


@BOTH
@pytest.mark.parametrize(("name", "argument"), [("open", 1), ("openat", 2)])
@given(flags=WORD)
def test_nothing_is_truncated_through_a_mode_that_does_not_write(
    machine: Architecture, name: str, argument: int, flags: int
) -> None:
    if name not in machine.numbers:
        return
    arguments = [0] * argument + [flags]
    refused = bool(flags & 0o1000) and flags & 3 in (0, 3)
    assert (verdict(machine, machine.numbers[name], *arguments) == seccomp.EPERM) == refused


@BOTH
def test_descriptors_send_no_signals(machine: Architecture) -> None:
    setown, setsig, setown_ex, setlease, notify = 8, 10, 15, 1024, 1026
    for command in (setown, setsig, setown_ex, setlease, notify):
        assert verdict(machine, machine.numbers["fcntl"], 3, command) == seccomp.EPERM
    fioasync, fiosetown, siocspgrp, tiocsti = 0x5452, 0x8901, 0x8902, 0x5412
    for request in (fioasync, fiosetown, siocspgrp, tiocsti):
        assert verdict(machine, machine.numbers["ioctl"], 3, request) == seccomp.ENOTTY


@pytest.mark.skipif("seccomp" in missing_layers() or sys.platform != "linux", reason="no seccomp here")
def test_under_an_outer_listener_calls_are_refused_unrecorded() -> None:
    """The kernel allows one listener. Inside a sandbox that has it, ours refuses all the same."""
    code = """if True:
        import os, socket, struct
        from witness.sandbox import kernel, seccomp
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        allow_all = struct.pack("=HBBI", 6, 0, 0, seccomp.ALLOW)
        seccomp._install(allow_all, seccomp._FLAG_NEW_LISTENER)
        assert seccomp.install(kernel.architecture(), pid=os.getpid(), channel=99) is None
        try:
            socket.socket()
        except PermissionError:
            print("refused")
    """
    root = Path(seccomp.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60)
    assert done.stdout == "refused\n", done.stderr
