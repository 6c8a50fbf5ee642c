"""A deadline for a whole exchange. Time limits for single reads are none: who drips a byte a minute is never late."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any


class Cutoff:
    """Shuts a connection down when an exchange takes too long, so that whoever reads from it stops reading.

    The socket is learned from httpcore's `trace` extension, which reports every connection and TLS layer that is
    made; a kept connection is the one that was reported last. For one connection, one exchange at a time.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    @contextmanager
    def after(self, seconds: float) -> Iterator[Callable[[str, Mapping[str, Any]], None]]:
        """Cuts the exchange in the block off after so many seconds; gives the `trace` extension for its request."""
        timer = threading.Timer(seconds, self._cut)
        timer.daemon = True
        timer.start()
        try:
            yield self._see
        finally:
            timer.cancel()

    def _see(self, _: str, facts: Mapping[str, Any]) -> None:
        stream = facts.get("return_value")
        if stream is not None and hasattr(stream, "get_extra_info"):
            self._socket = stream.get_extra_info("socket")

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                # Not SSLSocket.shutdown: it takes the TLS state away from under the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
