"""The order in which a job gives up its powers, before it imports the first line of a stranger's code.

Resource limits, privileges, files, system calls: each step still needs a power that the next one takes. Any failure
raises, and the caller ends the process: there is no half-confined job.
"""

import errno
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from socket import send_fds, socket

import protocol
import witness
from witness.sandbox import kernel, landlock, limits, seccomp
from witness.sandbox.landlock import READ, Access

LISTENER = b"listener"
"""The message that carries the descriptor on which refused calls are reported."""

_SYSTEM = (
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib"),
    *("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"),
    *("/proc/cpuinfo", "/proc/sys/vm/overcommit_memory", "/sys/devices/system/cpu", "/sys/devices/system/node"),
    *("/dev/zero", "/dev/random", "/dev/urandom"),
)


@dataclass(frozen=True, slots=True)
class Policy:
    """What every job of one sandbox may do.

    Attributes:
        landlock: the Landlock ABI to use; 0 for none, where the caller has said so explicitly.
        readable: what may be read besides the job folder.
        limits: resource limits.
    """

    landlock: int
    readable: tuple[Path, ...]
    limits: limits.Limits


def interpreter_paths() -> list[Path]:
    """What a Python process must be able to read: system libraries, the interpreter, its packages and this project."""
    packages = [Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    places = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    prefixes = [Path(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)]
    ours = [Path(folder) for package in (protocol, witness) for folder in package.__path__]
    found = {path.resolve() for path in (*map(Path, _SYSTEM), *packages, *places, *prefixes, *ours)}
    return sorted(found - {Path("/")})


def confine(job: Path, policy: Policy, channel: socket) -> tuple[str, ...]:
    """Confines this process, which must have one thread, for good.

    Args:
        job: the only folder it may write to.
        policy: what else it may do.
        channel: a socket to the zygote, over which the seccomp listener is handed; the caller closes it.

    Returns:
        The layers that are now on.

    Raises:
        OSError: a layer could not be put on; the caller must end this process.
    """
    machine = kernel.architecture()
    if machine is None:
        raise OSError(errno.ENOSYS, "no table of system calls for this machine")
    layers = ["rlimits", "no-new-privileges", "no-capabilities"]
    limits.impose(policy.limits)
    # Non-dumpable, as the zygote is, would hide this process's counters from a zygote that is not root.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    Path("/proc/self/oom_score_adj").write_text("1000")  # the kernel's first choice when the machine runs out
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.drop_capabilities()
    if policy.landlock:
        rules = [(path, READ) for path in policy.readable]
        rules += [(job, landlock.WRITE), (Path("/dev/null"), Access.READ_FILE | Access.WRITE_FILE)]
        landlock.restrict(policy.landlock, rules)
        layers.append(f"landlock-{policy.landlock}")
    listener = seccomp.install(machine, pid=os.getpid(), channel=channel.fileno())
    layers.append("seccomp")
    if listener is not None:
        send_fds(channel, [LISTENER], [listener])
        os.close(listener)
        layers.append("refusals-recorded")
    return tuple(layers)
