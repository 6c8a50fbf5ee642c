"""Answers that take a while: a prover says Pending until a state is rebuilt; the policy says how long that may be.

It says so twice: for one answer, and for all of them together. A prover that may take its time for every answer could
give its states byte by byte, and hold a verifier for years.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

from protocol.errors import VerificationError
from protocol.messages import Policy
from protocol.proving import StatePending

T = TypeVar("T")
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
LAST_CALL = 5.0
"""Seconds that the last exchange gets, however late it begins: a network needs some."""


@runtime_checkable
class TimedTransport(Protocol):
    """A transport that can be told how long one exchange may take."""

    def within(self, frame: bytes, seconds: float) -> bytes:
        """The reply frame to a request frame, or `unanswered` after so many seconds."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as an argument: a monotonic clock in seconds, and how to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Ask:
    """Asks one prover under one policy.

    What counts is the time in which somebody waits for the prover: exchanges, and pauses between them. What the
    verifier does with an answer takes none of it.

    Args:
        transport: to the prover.
        policy: its times for one answer, and for all.
        clock: time.
        progress: called with the steps done and owed, each time an answer is Pending.
    """

    def __init__(
        self,
        transport: Callable[[bytes], bytes] | TimedTransport,
        policy: Policy,
        clock: Clock,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._transport, self._policy, self._clock, self._progress = transport, policy, clock, progress
        self.waited = 0.0
        """Seconds in which the prover was waited for."""

    def __call__(self, request: bytes, take: Callable[[bytes], T]) -> T:
        """What `take` makes of the reply; see `ask`.

        Raises:
            VerificationError: `unanswered`, also where nothing is left of the session's time.
        """
        left = self._policy.session_seconds - self.waited
        if left <= 0:
            raise VerificationError(
                "unanswered",
                f"the prover has taken {round(self.waited, 1)} seconds for its answers; the policy gives "
                f"{self._policy.session_seconds} to all of them together",
                evidence={"seconds": round(self.waited, 1), "session_seconds": self._policy.session_seconds},
            )
        return ask(
            self,
            request,
            take,
            deadline=self._clock.now() + min(self._policy.answer_seconds, left),
            clock=self._clock.now,
            sleep=lambda seconds: self._count(lambda: self._clock.sleep(seconds)),
            progress=self._progress,
        )

    def within(self, frame: bytes, seconds: float) -> bytes:
        """One exchange; what it takes is counted."""
        return self._count(lambda: exchange(self._transport, frame, seconds))

    def _count(self, wait: Callable[[], T]) -> T:
        began = self._clock.now()
        try:
            return wait()
        finally:
            self.waited += self._clock.now() - began


def ask(
    transport: Callable[[bytes], bytes] | TimedTransport,
    frame: bytes,
    take: Callable[[bytes], T],
    *,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[int, int], None] | None = None,
) -> T:
    """Sends a request until its answer is more than Pending.

    Args:
        transport: to the prover; a `TimedTransport` is held to the deadline within an exchange too.
        frame: the request; it is sent unchanged each time.
        take: reads the reply; raises `StatePending` to be asked again (as every `VerifierSession` method does).
        deadline: by the clock: when the policy's `answer_seconds` are over.
        clock: seconds, monotonic.
        sleep: waits.
        progress: called with the steps done and owed, each time the answer is Pending.

    Returns:
        What `take` returns.

    Raises:
        VerificationError: `unanswered`, with the seconds waited; or whatever `take` finds.
    """
    began, pause = clock(), FIRST_PAUSE
    while True:
        left = deadline - clock()
        try:
            return take(exchange(transport, frame, max(left, LAST_CALL)))
        except StatePending as pending:
            state = pending
        except VerificationError as error:
            if error.code == "unanswered":
                error.evidence["seconds"] = round(clock() - began, 1)
            raise
        if progress is not None:
            progress(state.done, state.total)
        left = deadline - clock()
        if left <= 0:
            waited = round(clock() - began, 1)
            raise VerificationError(
                "unanswered",
                f"after {waited} seconds the prover is still rebuilding the state: {state.done} of {state.total} steps",
                evidence={"seconds": waited, "rebuilt": state.done, "owed": state.total},
            )
        sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def exchange(transport: Callable[[bytes], bytes] | TimedTransport, frame: bytes, seconds: float) -> bytes:
    """One exchange, held to a time where the transport can be."""
    if isinstance(transport, TimedTransport):
        return transport.within(frame, seconds)
    return transport(frame)
