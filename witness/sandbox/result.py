"""What became of a job, as the kernel and the zygote saw it: nothing here is the job's word, save where it says so."""

from dataclasses import dataclass
from enum import StrEnum

OUT_OF_MEMORY_STATUS = 79
"""Exit status of a job whose target ended with an allocation failure."""


class End(StrEnum):
    """Why a job is over."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    WALL_TIME = "wall-time"
    CPU_TIME = "cpu-time"
    OUTPUT = "output"
    THREADS = "threads"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class JobResult:
    """The end of one job.

    A job that ends well may still have written nonsense: what it left in its folder is a stranger's claim.

    Attributes:
        end: why it is over. OUTPUT, THREADS and WALL_TIME: the zygote killed it over that limit. CPU_TIME: the kernel
            did. FORBIDDEN: the filter killed it (a call of a foreign convention), or it made refused calls without end.
        exit_status: its exit status, if it exited.
        signal: the signal that killed it, if one did.
        refused: names of the system calls that were refused, in the order of their first use. Python and libraries try
            some of them in good faith, so they explain a failure and do not by themselves prove malice.
        cpu_seconds: processor time, user and system, of all threads.
        max_rss_bytes: peak resident memory, the pages it shares with the zygote included.
        wall_seconds: from start to end.
        stderr_tail: the last 16 KiB of its standard output and error, unprintable characters replaced.
        layers: the layers of confinement that were on while it ran.
    """

    end: End
    exit_status: int | None
    signal: int | None
    refused: tuple[str, ...]
    cpu_seconds: float
    max_rss_bytes: int
    wall_seconds: float
    stderr_tail: str
    layers: tuple[str, ...]

    @property
    def succeeded(self) -> bool:
        """Whether the target returned. It says nothing about what the job computed."""
        return self.end is End.EXITED and self.exit_status == 0

    @property
    def timed_out(self) -> bool:
        """Whether it was stopped over its time, by the wall or by the processor."""
        return self.end in (End.WALL_TIME, End.CPU_TIME)

    @property
    def killed_by_filter(self) -> bool:
        """Whether the seccomp filter was its end."""
        return self.end is End.FORBIDDEN

    @property
    def out_of_memory(self) -> bool:
        """Whether the target ended with an allocation failure. The job's own word: never take it as an excuse."""
        return self.end is End.EXITED and self.exit_status == OUT_OF_MEMORY_STATUS
