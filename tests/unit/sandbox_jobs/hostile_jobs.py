"""Targets that try to break out. Each writes what came of every attempt to `report.json` in its job folder.

The attempts are chosen so that one that succeeds (a defect of the sandbox) does no harm to the machine of the tests.
"""

# The attempts are made through the plainest calls.
# ruff: noqa: PTH102, PTH104, PTH208, S604, S605, S606, SIM115

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: Any) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def _inputs(job: Path) -> dict[str, Any]:
    return json.loads((job / "inputs.json").read_text())


def _attempt(job: Path, **actions: Callable[[], object]) -> None:
    report = {}
    for name, action in actions.items():
        try:
            report[name] = f"done: {action()!r}"[:200]
        except OSError as error:
            report[name] = errno.errorcode.get(error.errno, str(error.errno))
        except subprocess.SubprocessError as error:
            report[name] = type(error).__name__
    (job / "report.json").write_text(json.dumps(report))


def network(job: Path) -> None:
    unix = socket.AF_UNIX
    _attempt(
        job,
        ipv4=lambda: socket.create_connection(("127.0.0.1", 9)),
        udp=lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        ipv6=lambda: socket.socket(socket.AF_INET6),
        unix=lambda: socket.socket(unix),
        pair=socket.socketpair,
        netlink=lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        raw_connect=lambda: _libc_connect(),
        uring=lambda: _call(425, 8, ctypes.create_string_buffer(256)),
    )


def _libc_connect() -> int:
    if _libc.connect(0, ctypes.create_string_buffer(16), 16) < 0:
        raise OSError(ctypes.get_errno(), "")
    return 0


def descriptors(job: Path) -> None:
    held = []
    for number in range(1024):
        with contextlib.suppress(OSError):
            os.fstat(number)
            held.append(number)
    (job / "report.json").write_text(json.dumps(held))


def reading(job: Path) -> None:
    secret, parent = Path(_inputs(job)["secret"]), _inputs(job)["parent"]
    relative = job / ".." / os.path.relpath(secret, job.parent)
    _attempt(
        job,
        absolute=secret.read_bytes,
        dotted=relative.read_bytes,
        listing=lambda: os.listdir(secret.parent),
        through_root=lambda: Path(f"/proc/self/root{secret}").read_bytes(),
        hard_link=lambda: os.link(secret, job / "link"),
        planted_link=lambda: (job / "planted").read_bytes(),
        moved=lambda: os.rename(secret, job / "moved"),
        path_only=lambda: os.read(os.open(secret, os.O_PATH), 1),
        passwords=lambda: Path("/etc/passwd").read_bytes(),
        parent_memory=lambda: Path(f"/proc/{parent}/mem").open("rb"),
        parent_environment=lambda: Path(f"/proc/{parent}/environ").read_bytes(),
        zygote_memory=lambda: Path(f"/proc/{os.getppid()}/mem").open("rb"),
        zygote_maps=lambda: Path(f"/proc/{os.getppid()}/maps").read_bytes(),
        processes=lambda: os.listdir("/proc"),
    )


def memory_of_others(job: Path) -> None:
    parent = _inputs(job)["parent"]
    machine = os.uname().machine
    ptrace = 101 if machine == "x86_64" else 117
    readv = 310 if machine == "x86_64" else 270
    _attempt(
        job,
        ptrace=lambda: _call(ptrace, 16, parent, 0, 0),
        traceme=lambda: _call(ptrace, 0, 0, 0, 0),
        process_vm_readv=lambda: _call(readv, parent, 0, 0, 0, 0, 0),
        pidfd_open=lambda: os.pidfd_open(parent),
    )


def writing(job: Path) -> None:
    outside, readable = Path(_inputs(job)["outside"]), Path(_inputs(job)["readable"])
    victim = outside / "victim"
    mine = job / "mine"
    mine.write_text("mine")
    mounted = 0o1000 | 3  # O_TRUNC with the access mode that is neither reading nor writing
    _attempt(
        job,
        absolute=lambda: victim.write_text("overwritten"),
        created=lambda: (outside / "new").write_text("x"),
        dotted=lambda: (job / ".." / outside.name / "new").write_text("x"),
        planted_link=lambda: (job / "planted_folder" / "new").write_text("x"),
        made_link=lambda: (job / "made").symlink_to(outside),
        moved=lambda: mine.rename(outside / "new"),
        linked=lambda: os.link(mine, outside / "new"),
        truncated=lambda: os.truncate(victim, 0),
        folder=lambda: (outside / "folder").mkdir(),
        unlinked=victim.unlink,
        unfoldered=lambda: (outside / "empty").rmdir(),
        mode=lambda: victim.chmod(0o777),
        owner=lambda: os.chown(victim, os.getuid(), os.getgid()),
        times=lambda: os.utime(victim, (0, 0)),
        attribute=lambda: os.setxattr(victim, "user.x", b"x"),
        readable=lambda: (readable / "public").write_text("x"),
        readable_truncated=lambda: os.open(readable / "public", os.O_RDONLY | os.O_TRUNC),
        readable_truncated_oddly=lambda: os.open(readable / "public", mounted),
        pipe=lambda: os.mkfifo(job / "pipe"),
        device=lambda: os.mknod(job / "device", 0o020666, os.makedev(1, 3)),
        shared_memory=lambda: Path("/dev/shm/new").write_text("x"),
        temporary=lambda: Path("/tmp/training-witness-escape").write_text("x"),
        memory_file=lambda: os.memfd_create("x"),
        sysctl=lambda: os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY),
    )


def processes(job: Path) -> None:
    unshare = 272 if os.uname().machine == "x86_64" else 97
    clone = 56 if os.uname().machine == "x86_64" else 220
    _attempt(
        job,
        fork=os.fork,
        clone=lambda: _call(clone, int(signal.SIGCHLD), 0, 0, 0, 0),
        clone3=lambda: _call(435, ctypes.create_string_buffer(88), 88),
        shell=lambda: subprocess.run(["/bin/sh", "-c", "true"], check=True),
        spawn=lambda: os.posix_spawn(sys.executable, [sys.executable, "-V"], {}),
        execute=lambda: os.execv("/bin/true", ["true"]),
        system=lambda: _succeeded(os.system("true")),
        unshare=lambda: _call(unshare, 0x10000000),
    )


def _succeeded(status: int) -> int:
    if status:
        raise PermissionError(errno.EPERM, "")
    return status


def signals(job: Path) -> None:
    parent, zygote = _inputs(job)["parent"], os.getppid()
    prlimit, tgkill = (302, 234) if os.uname().machine == "x86_64" else (261, 131)
    reading, writing = os.pipe()
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    os.kill(os.getpid(), signal.SIGUSR1)  # its own affair
    assert seen
    _attempt(
        job,
        parent=lambda: os.kill(parent, signal.SIGURG),
        zygote=lambda: os.kill(zygote, signal.SIGURG),
        everybody=lambda: os.kill(-1, 0),
        group=lambda: os.killpg(os.getpgid(zygote), 0),
        thread=lambda: _call(tgkill, parent, parent, int(signal.SIGURG)),
        limit=lambda: _call(prlimit, parent, 0, 0, ctypes.create_string_buffer(16)),
        affinity=lambda: os.sched_setaffinity(parent, os.sched_getaffinity(0)),
        priority=lambda: os.setpriority(os.PRIO_PROCESS, parent, 0),
        owner=lambda: fcntl.fcntl(reading, fcntl.F_SETOWN, parent),
        signal=lambda: fcntl.fcntl(reading, 10, int(signal.SIGKILL)),
        deathsig=lambda: _call(157 if os.uname().machine == "x86_64" else 167, 1, 0, 0, 0, 0),
    )
    os.close(writing)


def memory(job: Path) -> None:
    held = []
    while True:
        held.append(b"\1" * (16 << 20))


def tensors(job: Path) -> None:
    import torch

    torch.ones(1 << 33)


def threads_with_memory(job: Path) -> None:
    held: list[bytes] = []

    def grow() -> None:
        with contextlib.suppress(MemoryError):
            while True:
                held.append(b"\1" * (1 << 20))

    workers = [threading.Thread(target=grow) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    raise MemoryError


def shared_memory(job: Path) -> None:
    """Memory that RLIMIT_DATA does not count."""
    _attempt(job, shared=lambda: mmap.mmap(-1, 8 << 30))


def spinning(job: Path) -> None:
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True:
        pass


def sleeping(job: Path) -> None:
    (job / "pid").write_text(str(os.getpid()))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(60)


def stopped(job: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def huge_file(job: Path) -> None:
    with (job / "huge").open("wb") as file:
        while True:
            file.write(b"\0" * (1 << 20))


def many_bytes(job: Path) -> None:
    while True:
        path = job / "again"
        path.write_bytes(b"\0" * (1 << 20))
        path.unlink()


def many_entries(job: Path) -> None:
    for number in range(100_000):
        (job / str(number)).write_bytes(b"")


def deep_folders(job: Path) -> None:
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")


def many_descriptors(job: Path) -> None:
    held = []
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))


def many_threads(job: Path) -> None:
    threading.stack_size(1 << 16)
    for _ in range(2000):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    time.sleep(60)


def lingering_threads(job: Path) -> None:
    def linger() -> None:
        while True:
            (job / "alive").write_text(str(time.monotonic()))
            time.sleep(0.001)

    threading.Thread(target=linger, daemon=True).start()
    threading.Thread(target=linger).start()


def endless_output(job: Path) -> None:
    while True:
        os.write(2, b"x" * 65536)


def terminal_commands(job: Path) -> None:
    sys.stderr.write("\x1b]0;owned\x07\x1b[2Jhello \u202egnp.exe\n\xff")
    with (job / "progress").open("ab", buffering=0) as file:
        file.write(b"\x1b[31mstep 1\n" + b"y" * 5000 + b"\nstep 3\n\xff\xfe\n")


def refusals(job: Path) -> None:
    while True:
        with contextlib.suppress(OSError):
            os.pidfd_open(os.getpid())


def foreign_convention(job: Path) -> None:
    _call(0x40000000 | 39)


def clutching(job: Path) -> None:
    """Tries not to end: no exit, an exception that fights being shown, an exit handler that lies."""

    class Clutch(BaseException):
        def __str__(self) -> str:
            raise Clutch

    def stay(*_: object) -> None:
        raise Clutch

    os._exit = sys.exit = stay  # type: ignore[assignment]
    sys.stderr = sys.stdout = None  # type: ignore[assignment]
    raise Clutch
