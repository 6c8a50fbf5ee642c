"""What whoever serves a run is told of its sessions: that one began, what it challenged, and that it ended.

Only of sessions that were bound, so that knocking at the door writes nothing. Of a session's id, which whoever holds it
can use, only the beginning is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.keys import SigningKey
from protocol.proving import Archive, ProverSession

Tell = Callable[[str], None]


class Visit(ProverSession):
    """A prover's end that tells its three events, each once.

    Args:
        archive: of the run.
        session: 16 fresh random bytes.
        key: the trainer's.
        tell: called with a line, from the thread that handles the request.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        archive: Archive,
        session: bytes,
        key: SigningKey,
        tell: Tell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(archive, session, key)
        self._tell, self._clock, self._told = tell, clock, 0
        self._began = clock()

    def handle(self, data: bytes) -> bytes:
        """Answers a frame, and tells what it brought about."""
        reply = super().handle(data)
        events = [self._hello is not None, self._challenges is not None, self.closed]
        for number, happened in enumerate(events):
            if happened and number >= self._told:
                self._told = number + 1
                self._tell(f"session {self.id[:8]} {self._event(number)}")
        return reply

    def _event(self, number: int) -> str:
        if number == 0:
            return "began"
        if number == 2:
            return f"ended after {self._clock() - self._began:.0f} s"
        steps = self.archive.audit.steps
        challenged = sorted({challenge.step for challenge in self._challenges or () if challenge.step})
        shown = ", ".join(map(str, challenged[:12])) + (", ..." if len(challenged) > 12 else "")
        return f"challenges {len(challenged)} of {steps} steps: {shown or 'the initial state only'}"
