"""The limited process in which a stranger's training program is replayed.

A replay executes code that its author may have written against us. It runs in a process of its own, with no network,
no files but its folder and what Python needs, no way to another process, and caps on memory, time and output, all
enforced by the kernel (rlimits, Landlock, seccomp) before the first line of it is imported. The caller gets a
`JobResult`, made of the kernel's facts, and reads the job's files as hostile bytes. Where the kernel cannot confine,
nothing runs: the verdict is incomplete.
"""

from witness.sandbox.limits import Limits
from witness.sandbox.output import discard, read_output
from witness.sandbox.parent import Sandbox, missing_layers
from witness.sandbox.result import End, JobResult

__all__ = ["End", "JobResult", "Limits", "Sandbox", "discard", "missing_layers", "read_output"]
