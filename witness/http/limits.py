"""What a server spends at most on strangers: connections, memory, time, and sessions per address.

Anybody may call a public prover, and a verifier that finds it silent reports the run as diverged. So every wait has an
end and every buffer a cap, and what is refused for lack of room is refused before any work is done, with a time to come
back. A live session is never dropped to make room for a new one: a stranger could otherwise make an honest trainer look
silent.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_ADDRESSES = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Caps and time limits of one server; times in seconds.

    Memory for strangers is bounded by `exchanges` replies (`protocol.messages.MAX_REPLY`) and `connections` requests
    (`protocol.messages.MAX_REQUEST`), besides what `sessions` sessions hold.

    Attributes:
        sessions: live sessions.
        idle_seconds: a session that asks nothing for so long is forgotten; between two requests a verifier may replay.
        sessions_per_address: live sessions of one address (one /64 for IPv6), so that nobody takes every place.
        opened_per_minute: new sessions from one address.
        answers_per_second: answers about the data to one address, on average.
        answers_at_once: how many of them it may ask for after a pause.
        questions_per_second: digests in requests about many, from one address, on average.
        questions_at_once: how many of them it may ask about after a pause: a whole validation set.
        exchanges: requests that are worked on, or whose reply is under way, at one time.
        workers: threads that do the work.
        queue_seconds: wait for a place among the exchanges, or for the session's previous request; then `busy`.
        connections: open connections; further ones are turned away.
        header_bytes: request line and headers together.
        header_seconds: for a request's headers to arrive, from their first byte, or from the connection's start.
        body_seconds: for a request's body to arrive.
        write_seconds: for a client to take the next 64 KiB of a reply.
        reply_seconds: for a client to take a whole reply.
        keepalive_seconds: an idle connection is kept for so long.
        shutdown_seconds: for running requests to end when the server is told to stop.
        retry_seconds: what Retry-After says.
    """

    sessions: int = 1024
    idle_seconds: float = 3600.0
    sessions_per_address: int = 32
    opened_per_minute: int = 30
    answers_per_second: float = 50.0
    answers_at_once: int = 500
    questions_per_second: float = 2000.0
    questions_at_once: int = 1 << 16
    exchanges: int = 16
    workers: int = 4
    queue_seconds: float = 10.0
    connections: int = 256
    header_bytes: int = 1 << 14
    header_seconds: float = 10.0
    body_seconds: float = 20.0
    write_seconds: float = 30.0
    reply_seconds: float = 300.0
    keepalive_seconds: float = 75.0
    shutdown_seconds: float = 10.0
    retry_seconds: int = 2


class OpeningRate:
    """Counts new sessions by client address over a sliding minute.

    It remembers the times of at most `per_minute` sessions of each of `MAX_ADDRESSES` addresses; beyond that, the
    address that was quiet longest is forgotten early.

    Args:
        per_minute: sessions an address may open in 60 seconds.
        clock: seconds, monotonic.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._per_minute, self._clock = per_minute, clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str) -> float:
        """Counts a session, and returns 0; or, where the address has had its share, the seconds until its next one."""
        now = self._clock()
        times = self._times.setdefault(address, deque())
        self._times.move_to_end(address)
        while times and times[0] <= now - 60.0:
            times.popleft()
        if len(times) >= self._per_minute:
            return times[0] + 60.0 - now
        times.append(now)
        if len(self._times) > MAX_ADDRESSES:
            self._times.popitem(last=False)
        return 0.0


class AnswerRate:
    """Counts cheap questions by client address, as a bucket that refills: two numbers an address, however many it asks.

    It remembers `MAX_ADDRESSES` addresses; beyond that, the one that was quiet longest is forgotten early.

    Args:
        per_second: questions an address may ask on average.
        at_once: questions it may ask after a pause.
        clock: seconds, monotonic.
    """

    def __init__(self, per_second: float, at_once: int, clock: Callable[[], float]) -> None:
        self._per_second, self._at_once, self._clock = per_second, at_once, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str, questions: int = 1) -> float:
        """Counts questions, and returns 0; or, where the address has had its share, the seconds until it may ask them.

        Who has been quiet long enough may always ask once.
        """
        now = self._clock()
        needed = min(questions, self._at_once)
        left, then = self._left.get(address, (float(self._at_once), now))
        left = min(float(self._at_once), left + (now - then) * self._per_second)
        if left < needed:
            return (needed - left) / self._per_second
        self._left[address] = (left - needed, now)
        self._left.move_to_end(address)
        if len(self._left) > MAX_ADDRESSES:
            self._left.popitem(last=False)
        return 0.0


def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 one, which is what one customer is given."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
