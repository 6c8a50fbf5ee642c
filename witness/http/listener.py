"""The process side of a server: its socket, its signals, and the time limits only the connections' owner can keep."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from protocol.errors import CODES, UsageError
from witness.http.limits import ServerLimits

_BUSY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\nretry-after: %d\r\n"
    b"content-length: %d\r\n\r\n%s"
)


class BoundedConnection(H11Protocol):
    """An HTTP/1.1 connection that ends when its client is too slow.

    uvicorn by itself waits for ever for a request's headers and for a client to take its reply.

    Args:
        limits: of the server.
        arguments: uvicorn's own.
    """

    def __init__(self, *arguments: Any, limits: ServerLimits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._headers_due: asyncio.TimerHandle | None = None
        self._write_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a connection, or turns it away where there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that `pause_writing` means: something is unsent
        if len(self.connections) > self._limits.connections:
            body = b'{"code":"busy","message":"%s"}' % CODES["busy"].meaning.encode()
            transport.write(_BUSY % (self._limits.retry_seconds, len(body), body))
            transport.close()
            return
        self._headers_due = self.loop.call_later(self._limits.header_seconds, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Reads; the time for headers runs from their first byte, and more bytes do not prolong it."""
        super().data_received(data)
        waiting = self.cycle is None or self.cycle.response_complete
        if not waiting and self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None
        elif waiting and self._headers_due is None:
            self._headers_due = self.loop.call_later(self._limits.header_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        """The client does not keep up: it has `write_seconds` for what is buffered, closing or not."""
        super().pause_writing()
        if self._write_due is None:
            self._write_due = self.loop.call_later(self._limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client keeps up again."""
        super().resume_writing()
        if self._write_due is not None:
            self._write_due.cancel()
            self._write_due = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection and its time limits."""
        super().connection_lost(exc)
        for timer in (self._headers_due, self._write_due):
            if timer is not None:
                timer.cancel()
        self._headers_due = self._write_due = None


class _Server(uvicorn.Server):
    """Ends quietly on SIGINT and SIGTERM; uvicorn would raise the signal again, after everything is closed."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002 - the signature of a signal handler
        self.force_exit = self.should_exit
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()


class Listener:
    """A server on one address.

    Args:
        app: of `witness.http.server.make_app`.
        host: name or address to listen on.
        port: 0 for any free one.
        ready: called with the port as soon as requests are answered.
        proxies: addresses of reverse proxies whose X-Forwarded-For is believed. Without it, everybody behind a proxy
            counts as one address.

    Raises:
        UsageError: `listen`.
    """

    def __init__(
        self,
        app: Starlette,
        host: str,
        port: int,
        *,
        ready: Callable[[int], None] | None = None,
        proxies: Sequence[str] = (),
    ) -> None:
        limits: ServerLimits = app.state.limits
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
            self._socket = socket.create_server((host, port), family=family, backlog=limits.connections)
        except (OSError, OverflowError, UnicodeError) as error:
            raise UsageError("listen", f"cannot listen on {host} port {port}: {error}") from None
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=partial(BoundedConnection, limits=limits),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            server_header=False,
            backlog=limits.connections,
            timeout_keep_alive=limits.keepalive_seconds,  # type: ignore[arg-type]
            timeout_graceful_shutdown=limits.shutdown_seconds,  # type: ignore[arg-type]
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        self._server = _Server(config, lambda: ready(self.port) if ready else None)

    def run(self) -> None:
        """Answers requests until `stop`, SIGINT or SIGTERM; a second signal does not wait for running requests."""
        self._server.run([self._socket])

    def stop(self) -> None:
        """Makes `run` return; from any thread."""
        self._server.should_exit = True


def serve(
    app: Starlette,
    host: str,
    port: int,
    *,
    ready: Callable[[int], None] | None = None,
    proxies: Sequence[str] = (),
) -> None:
    """Answers requests until SIGINT or SIGTERM, lets the running ones end, and returns.

    Args:
        app: of `witness.http.server.make_app`.
        host: name or address to listen on.
        port: 0 for any free one.
        ready: called with the port as soon as requests are answered.
        proxies: addresses of reverse proxies whose X-Forwarded-For is believed.

    Raises:
        UsageError: `listen`.
    """
    Listener(app, host, port, ready=ready, proxies=proxies).run()
