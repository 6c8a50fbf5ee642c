"""Ask the prover until it answers, or until the policy's time is over: unanswered is diverged."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from protocol.errors import VerificationError
from protocol.proving import StatePending

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as an argument: a monotonic clock in seconds, and how to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Ask:
    """Sends a request and takes its reply, again while the prover says that it is rebuilding a state.

    Args:
        transport: moves a frame there and brings one back.
        answer_seconds: the policy's time for one answer.
        clock: time.
    """

    def __init__(self, transport: Callable[[bytes], bytes], answer_seconds: float, clock: Clock) -> None:
        self._transport, self._seconds, self._clock = transport, answer_seconds, clock

    def __call__(self, request: bytes, take: Callable[[bytes], T]) -> T:
        """What `take` makes of the reply.

        Raises:
            VerificationError: `unanswered`.
        """
        start = self._clock.now()
        pause = 0.02
        while True:
            reply = self._transport(request)
            try:
                return take(reply)
            except StatePending as pending:
                waited = self._clock.now() - start
                if waited + pause > self._seconds:
                    raise VerificationError(
                        "unanswered",
                        f"no answer within the policy's {self._seconds:g} seconds (the prover had rebuilt {pending} steps)",
                        evidence={"seconds": int(waited)},
                    ) from None
            self._clock.sleep(pause)
            pause = min(1.0, pause * 1.5)
