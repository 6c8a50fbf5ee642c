"""The zygote's watch over one running job: its messages, its output, its counters, its end.

One poll loop, and one rule: whatever the job does, it is dead and reaped when the watch is over.
"""

import math
import os
import select
import signal
import time
from pathlib import Path
from socket import recv_fds, socket

from witness.sandbox import kernel, limits, seccomp
from witness.sandbox.child import CONFINED, UNUSABLE
from witness.sandbox.confine import LISTENER
from witness.sandbox.output import printable
from witness.sandbox.result import End, JobResult

_INTERVAL = 0.05
_INSPECTIONS_PER_CENSUS = 10
_CHUNK = 1 << 16
_TAIL = 16 << 10
_FLOOD = 16 << 20
"""Standard output and error together, in bytes; a job that says more is stopped."""
_REFUSALS = 10_000
"""A job that makes more refused calls is stopped: each costs the zygote some work."""


class UnconfinedError(Exception):
    """The job could not confine itself, and did not run."""


class UnusableError(Exception):
    """The target could not be imported, and did not run."""


class AbandonedError(Exception):
    """Nobody waits for the result any more."""


class Watch:
    """Watches one job, which has just been forked.

    Args:
        pid: the job's process, our child.
        job: its folder.
        existing: entries and bytes that the folder held before.
        caps: its limits.
        channel: our end of its socket.
        output: our end of its standard output and error.
        client: descriptors whose hang-up, or readiness, means that nobody waits for the result any more.
    """

    def __init__(
        self,
        pid: int,
        *,
        job: Path,
        existing: tuple[int, int],
        caps: limits.Limits,
        channel: socket,
        output: int,
        client: tuple[tuple[int, int], ...],
    ) -> None:
        self._pid = pid
        self._job = job
        self._entries = existing[0] + caps.output_entries
        self._bytes = existing[1] + caps.output_bytes
        self._caps = caps
        self._channel = channel
        self._output = output
        self._client = dict(client)
        self._process = os.pidfd_open(pid)
        self._poll = select.poll()
        self._listener: int | None = None
        self._cause: End | None = None
        self._layers: tuple[str, ...] | None = None
        self._error: Exception | None = None
        self._tail = bytearray()
        self._said = 0
        self._refused: dict[int, None] = {}
        self._refusals = 0

    def result(self) -> JobResult:
        """Waits for the end of the job, brings it about where a limit says so, and reaps it.

        Raises:
            UnconfinedError: it could not confine itself.
            UnusableError: its target could not be had.
            AbandonedError: the client is gone; the job is dead.
        """
        start = time.monotonic()
        try:
            self._follow(start + self._caps.wall_seconds)
            self._inspect(census=True)
        finally:
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
            _, status, usage = os.wait4(self._pid, 0)
            for descriptor in (self._process, self._listener):
                if descriptor is not None:
                    os.close(descriptor)
        wall = time.monotonic() - start
        if self._error is not None:
            raise self._error
        if self._layers is None:
            raise UnconfinedError(f"it ended while confining itself: {printable(bytes(self._tail))}")
        cpu = usage.ru_utime + usage.ru_stime
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        machine = kernel.architecture()
        names = machine.names if machine else {}
        return JobResult(
            end=self._cause or self._natural_end(number, cpu),
            exit_status=os.WEXITSTATUS(status) if number is None else None,
            signal=number,
            refused=tuple(names.get(call, f"call-{call}") for call in self._refused),
            cpu_seconds=cpu,
            max_rss_bytes=usage.ru_maxrss * 1024,
            wall_seconds=wall,
            stderr_tail=printable(bytes(self._tail)),
            layers=self._layers,
        )

    def _natural_end(self, number: int | None, cpu: float) -> End:
        if number is None:
            return End.EXITED
        if number == signal.SIGSYS:
            return End.FORBIDDEN
        # The kernel compares whole ticks, and wait4 may round the last one down.
        return End.CPU_TIME if number == signal.SIGKILL and cpu > self._caps.cpu_seconds - 0.1 else End.SIGNALLED

    def _follow(self, deadline: float) -> None:
        for descriptor in (self._process, self._output, self._channel.fileno()):
            self._poll.register(descriptor, select.POLLIN)
        for descriptor, events in self._client.items():
            self._poll.register(descriptor, events)
        inspections, due = 0, time.monotonic() + _INTERVAL
        while True:
            ready = self._poll.poll(1000 * max(0.0, min(deadline, due) - time.monotonic()))
            if not all(self._serve(descriptor, events) for descriptor, events in ready):
                return
            now = time.monotonic()
            if now >= deadline:
                self._kill(End.WALL_TIME)
                deadline = math.inf
            if now >= due:
                inspections += 1
                self._inspect(census=inspections % _INSPECTIONS_PER_CENSUS == 0)
                due = time.monotonic() + _INTERVAL

    def _serve(self, descriptor: int, events: int) -> bool:
        """Handles one ready descriptor; False once the job has ended."""
        if descriptor in self._client:
            raise AbandonedError
        if descriptor == self._process:
            while self._drain():
                pass
            while self._receive():
                pass
            return False
        if descriptor == self._output:
            open_still = self._drain()
        elif descriptor == self._channel.fileno():
            open_still = self._receive()
        else:
            open_still = bool(events & select.POLLIN) and self._refuse()
        if not open_still:
            self._poll.unregister(descriptor)
        return True

    def _drain(self) -> bool:
        data = os.read(self._output, _CHUNK)
        self._said += len(data)
        self._tail = (self._tail + data)[-_TAIL:]
        if self._said > _FLOOD:
            self._kill(End.OUTPUT)
        return bool(data)

    def _receive(self) -> bool:
        data, descriptors, _, _ = recv_fds(self._channel, _CHUNK, 1)
        if data == LISTENER and descriptors:
            self._listener = descriptors[0]
            self._poll.register(self._listener, select.POLLIN)
        elif data.startswith(CONFINED):
            self._layers = tuple(data.removeprefix(CONFINED).decode().split())
        elif data:
            head, _, reason = data.decode(errors="replace").partition(" ")
            kind = UnusableError if head.encode() + b" " == UNUSABLE else UnconfinedError
            self._error = kind(reason)
        return bool(data)

    def _refuse(self) -> bool:
        if self._listener is not None:
            call = seccomp.refuse(self._listener)
            if call is not None:
                self._refused[call] = None
                self._refusals += 1
            if self._refusals > _REFUSALS:
                self._kill(End.FORBIDDEN)
        return True

    def _inspect(self, *, census: bool) -> None:
        if limits.threads(self._pid) > self._caps.threads:
            self._kill(End.THREADS)
        elif limits.written(self._pid) > self._caps.output_bytes:
            self._kill(End.OUTPUT)
        elif census:
            count, size = limits.entries(self._job, self._entries)
            if count > self._entries or size > self._bytes:
                self._kill(End.OUTPUT)

    def _kill(self, cause: End) -> None:
        self._cause = self._cause or cause
        signal.pidfd_send_signal(self._process, signal.SIGKILL)
