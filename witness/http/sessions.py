"""The live sessions of a server: found by id, one request at a time each, forgotten after a long silence."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from protocol.errors import IncompleteError
from protocol.proving import ProverSession


class Seat:
    """A place in the table: a session, and the lock that lets one request at a time into it.

    Attributes:
        id: 32 hexadecimal digits.
        owner: the address it was opened from.
        session: None until the prover's end exists.
        lock: held while a request is worked on.
        used: when it was last asked for.
    """

    __slots__ = ("id", "lock", "owner", "session", "used")

    def __init__(self, identity: str, owner: str, used: float) -> None:
        self.id, self.owner, self.used = identity, owner, used
        self.lock = asyncio.Lock()
        self.session: ProverSession | None = None

    @property
    def closed(self) -> bool:
        """Whether the verifier said goodbye."""
        return self.session is not None and self.session.closed


class SessionTable:
    """Sessions in the order of their last use.

    Closed sessions keep their place until it is needed, so that a Close repeated for want of a reply is answered.

    Args:
        capacity: live sessions at most.
        share: of them, from one address.
        idle_seconds: silence after which a session is forgotten.
        clock: seconds, monotonic.
    """

    def __init__(self, capacity: int, share: int, idle_seconds: float, clock: Callable[[], float]) -> None:
        self._capacity, self._share, self._idle_seconds, self._clock = capacity, share, idle_seconds, clock
        self._seats: OrderedDict[str, Seat] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seats)

    def reserve(self, identity: str, owner: str) -> Seat:
        """Takes a place before any work is done for it.

        Raises:
            IncompleteError: `rate`: the address has its share; `busy`: every place is taken by a live session.
        """
        self._expire()
        if sum(seat.owner == owner and not seat.closed for seat in self._seats.values()) >= self._share:
            raise IncompleteError("rate", f"{self._share} sessions of {owner} are live")
        if len(self._seats) >= self._capacity:
            closed = next((seat.id for seat in self._seats.values() if seat.closed), None)
            if closed is None:
                raise IncompleteError("busy", f"{self._capacity} sessions are live")
            del self._seats[closed]
        seat = self._seats[identity] = Seat(identity, owner, self._clock())
        return seat

    def release(self, seat: Seat) -> None:
        """Gives a place back."""
        self._seats.pop(seat.id, None)

    def find(self, identity: str) -> Seat | None:
        """The place of a session, which counts as used now; None where there is none."""
        self._expire()
        seat = self._seats.get(identity)
        if seat is None or seat.session is None:
            return None
        self.touch(seat)
        return seat

    def touch(self, seat: Seat) -> None:
        """Counts a session as used now, unless it was forgotten."""
        if seat.id in self._seats:
            seat.used = self._clock()
            self._seats.move_to_end(seat.id)

    def _expire(self) -> None:
        now = self._clock()
        while self._seats:
            seat = next(iter(self._seats.values()))
            if seat.used > now - self._idle_seconds:
                return
            if seat.lock.locked() or seat.session is None:
                self.touch(seat)  # it is being worked on, however long that takes
            else:
                del self._seats[seat.id]
