"""How much a job may use, and what the kernel says it used.

Two kinds of limit, because no single one covers a resource: rlimits, which the kernel enforces at each allocation, and
counters, which the zygote reads a few times a second and answers by killing the job. Counters come from /proc and
`wait4`, never from the job.
"""

import os
import resource
from dataclasses import dataclass, fields
from pathlib import Path

from protocol.errors import UsageError

MIB = 1 << 20
ENTRY_DEPTH = 64
"""Folders may nest this deep below the job folder."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on one job.

    The memory cap is RLIMIT_DATA: private writable memory. RLIMIT_AS is set too, with room for what is reserved but
    never touched (64 MiB of malloc arena and a stack for each thread); alone it would be a poor measure, since torch
    maps much more than it uses. Both count on top of what the job inherits from the zygote.

    RLIMIT_NPROC counts the user's processes everywhere, not the job's: it is set far above the present count, as a last
    barrier only. A job cannot fork in the first place, and its threads are counted by the zygote.

    Attributes:
        memory_bytes: memory the job may allocate.
        cpu_seconds: processor time of all threads together.
        wall_seconds: time from start to end.
        file_bytes: size of any one file.
        open_files: descriptors open at once.
        output_bytes: bytes written, to all files and to standard output and error together.
        output_entries: files and folders the job may leave in its folder.
        threads: threads alive at once.
    """

    memory_bytes: int = 8192 * MIB
    cpu_seconds: int = 3600
    wall_seconds: float = 900.0
    file_bytes: int = 4096 * MIB
    open_files: int = 256
    output_bytes: int = 8192 * MIB
    output_entries: int = 4096
    threads: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise UsageError("sandbox-misuse", f"the limit {field.name} must be positive")


def impose(limits: Limits) -> None:
    """Sets the resource limits of this process, soft and hard alike, so that they can only go down from here.

    Raises:
        OSError: the kernel refused.
    """
    size, data = _own_memory()
    room = limits.threads * (64 + 8) * MIB
    wanted = {
        resource.RLIMIT_DATA: data + limits.memory_bytes,
        resource.RLIMIT_AS: size + limits.memory_bytes + room,
        resource.RLIMIT_STACK: 8 * MIB,
        resource.RLIMIT_CPU: limits.cpu_seconds,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_NPROC: _tasks_of_user() + limits.threads + 1024,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        # 1, not 0: only this value also stops a core_pattern that pipes to a program outside (core(5)).
        resource.RLIMIT_CORE: 1,
    }
    for name, value in wanted.items():
        _, hard = resource.getrlimit(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(name, (value, value))


def _own_memory() -> tuple[int, int]:
    """Address space and private writable memory of this process, in bytes (proc_pid_statm(5))."""
    size, _, _, _, _, data, _ = Path("/proc/self/statm").read_text().split()
    page = resource.getpagesize()
    return int(size) * page, int(data) * page


def _tasks_of_user() -> int:
    uid, tasks = os.getuid(), 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                tasks += (entry / "task").stat().st_nlink - 2 if entry.stat().st_uid == uid else 0
            except OSError:
                continue  # it has ended
    return tasks


def threads(pid: int) -> int:
    """Threads of a process; 0 once it has ended."""
    try:
        return Path(f"/proc/{pid}/task").stat().st_nlink - 2
    except OSError:
        return 0


def written(pid: int) -> int:
    """Bytes a process has written, by calls or through mappings; 0 where the kernel keeps no such account.

    Readable until the process is reaped, so that a job cannot write too much just before its end.
    """
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    counters = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
    return max(counters.get("wchar", 0), counters.get("write_bytes", 0))


def entries(folder: Path, cap: int) -> tuple[int, int]:
    """Counts what lies below a folder that a job may be changing meanwhile.

    Args:
        folder: where to count.
        cap: stop after this many entries.

    Returns:
        The entries (more than `cap` also if they nest too deep, or a folder cannot be read) and their bytes on disk.
    """
    count = size = 0
    pending = [(folder, 0)]
    while pending:
        path, depth = pending.pop()
        try:
            with os.scandir(path) as listing:
                for entry in listing:
                    count += 1
                    if count > cap:
                        return count, size
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((path / entry.name, depth + 1))
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
        except OSError:
            return cap + 1, size
        if depth > ENTRY_DEPTH:
            return cap + 1, size
    return count, size
