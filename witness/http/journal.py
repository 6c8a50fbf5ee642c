"""The outermost layer of the server: a log line for each request, no traceback for anybody, no half-read request."""

from __future__ import annotations

import logging
import time

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from protocol.errors import CODES

logger = logging.getLogger("witness.http")


def error_reply(code: str, retry_seconds: float | None = None) -> JSONResponse:
    """A small JSON error. It gives the table's meaning of the code, never the message: that could name our files."""
    headers = {} if retry_seconds is None else {"Retry-After": str(max(1, round(retry_seconds + 0.5)))}
    row = CODES[code]
    return JSONResponse({"code": code, "message": row.meaning}, row.http_status, headers)


class Journal:
    """ASGI middleware; see the module.

    Where a reply starts before the request was read to its end, the connection is closed after it: reading on, only to
    keep the connection, would read whatever an endless request sends.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, and writes its line."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.note = "client left"
        except Exception as error:
            # A reply that has begun cannot become another one; left incomplete, it ends with the connection.
            if exchange.status is not None and isinstance(error, TimeoutError):
                exchange.note = "client too slow"
                return
            logger.exception("%s %s failed", exchange.client, exchange.endpoint)
            if exchange.status is None:
                await error_reply("internal")(scope, exchange.receive, exchange.send)
        finally:
            exchange.write()


class _Exchange:
    """Watches one request and its reply pass."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        names = {name for name, _ in scope["headers"]}
        self._unread = b"content-length" in names or b"transfer-encoding" in names
        self._began = time.perf_counter()
        self._read = self._written = 0
        self.status: int | None = None
        self.note = ""
        self.client = scope["client"][0] if scope.get("client") else "-"
        self._scope = scope

    @property
    def endpoint(self) -> str:
        """Method and path, printable.

        Of a session's id, which whoever holds it can use, only the beginning; of what somebody asks about, nothing.
        """
        path = self._scope["path"]
        start, slash, identity = path.rpartition("/")
        if start == "/v1/sessions":
            path = start + slash + identity[:8]
        elif path.startswith("/v1/ledger/"):
            path = "/v1/ledger/..."
        return ascii(f"{self._scope['method']} {path[:64]}")[1:-1]

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            self._unread = bool(message.get("more_body", False))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self._unread:
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
        elif message["type"] == "http.response.body":
            self._written += len(message.get("body", b""))
        await self._send(message)

    def write(self) -> None:
        logger.info(
            "%s %s %s in=%d out=%d %.3fs%s",
            self.client,
            self.endpoint,
            "-" if self.status is None else self.status,
            self._read,
            self._written,
            time.perf_counter() - self._began,
            f" {self.note}" if self.note else "",
        )
