"""The trainer's server: hands each frame to the session it belongs to, within fixed limits.

`make_app` is an ASGI application for any server; `serve` runs it in this process with the connection-level limits that
an application cannot keep (`witness.http.listener`).
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from protocol import PROTOCOL_VERSION
from protocol import messages as m
from protocol.encoding import Struct
from protocol.errors import CODES, IncompleteError, ProtocolError, UsageError, WitnessError
from protocol.proving import ProverSession
from witness import __version__
from witness.http import FRAME_TYPE, extra_missing
from witness.http.limits import OpeningRate, ServerLimits, network_of
from witness.http.sessions import Seat, SessionTable

try:
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send

    from witness.http.journal import Journal, error_reply, logger
    from witness.http.listener import Listener, serve
except ModuleNotFoundError as error:
    raise extra_missing(error) from None

__all__ = ["Listener", "ServerLimits", "make_app", "serve"]

T = TypeVar("T")
CHUNK = 1 << 16
SMALL_HEADER = 1 << 13
"""No Pending or Refusal has a longer header; longer ones need not be read to know the status."""
_SESSION = re.compile("[0-9a-f]{32}")


def make_app(
    open_session: Callable[[bytes], ProverSession],
    describe: Callable[[], Mapping[str, Any]],
    head: Callable[[], bytes],
    *,
    limits: ServerLimits = ServerLimits(),  # noqa: B008 - frozen
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """The server as an ASGI application.

    The three functions, and the sessions, are called in worker threads, different sessions at the same time.

    Args:
        open_session: makes the prover's end of a session from its 16 random bytes.
        describe: what /v1/health shows besides the versions: run id, steps, head size.
        head: the latest signed head.
        limits: caps and time limits.
        clock: seconds, monotonic; decides when sessions are idle and addresses too eager.
    """
    desk = _Desk(open_session, describe, head, limits, clock)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            desk.pool.shutdown(wait=False, cancel_futures=True)

    app = Starlette(
        routes=[
            Route("/v1/sessions", _Endpoint(desk, desk.create), methods=["POST"]),
            Route("/v1/sessions/{id}", _Endpoint(desk, desk.answer), methods=["POST"]),
            Route("/v1/head", _Endpoint(desk, desk.head), methods=["GET"]),
            Route("/v1/health", _Endpoint(desk, desk.health), methods=["GET"]),
        ],
        middleware=[Middleware(Journal)],
        exception_handlers={WitnessError: desk.refuse, HTTPException: desk.refuse},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.limits = limits
    return app


class _Endpoint:
    """An ASGI endpoint around an answer that keeps its place among the exchanges until the client has the reply."""

    def __init__(self, desk: _Desk, answer: Callable[[Request], AbstractAsyncContextManager[Response]]) -> None:
        self._desk, self._answer = desk, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._answer(Request(scope, receive)) as response, asyncio.timeout(self._desk.limits.reply_seconds):
            await response(scope, receive, send)


class _Frame(Response):
    """A frame as a reply, sent in chunks: a client that does not read then keeps its place among the exchanges."""

    media_type = FRAME_TYPE

    def __init__(self, frame: bytes, retry_seconds: int) -> None:
        status = _status(frame)
        super().__init__(frame, status, {"Retry-After": str(retry_seconds)} if status == 202 else None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        for start in range(0, len(view), CHUNK):
            more = start + CHUNK < len(view)
            await send({"type": "http.response.body", "body": bytes(view[start : start + CHUNK]), "more_body": more})


def _status(frame: bytes) -> int:
    """The HTTP status of a reply frame: its refusal's, 202 for Pending, else 200."""
    stop = 4 + int.from_bytes(frame[:4], "big")
    if stop > SMALL_HEADER:
        return 200
    reply, _ = m.unpack_reply(frame[:stop], Struct)
    if isinstance(reply, m.Refusal):
        return CODES[reply.code].http_status if reply.code in CODES else 400
    return 202 if isinstance(reply, m.Pending) else 200


class _Desk:
    """What the endpoints share: the sessions, the threads, and the limits."""

    def __init__(
        self,
        open_session: Callable[[bytes], ProverSession],
        describe: Callable[[], Mapping[str, Any]],
        head: Callable[[], bytes],
        limits: ServerLimits,
        clock: Callable[[], float],
    ) -> None:
        self._open_session, self._describe, self._head, self.limits = open_session, describe, head, limits
        self.pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="witness-http")
        self._table = SessionTable(limits.sessions, limits.sessions_per_address, limits.idle_seconds, clock)
        self._rate = OpeningRate(limits.opened_per_minute, clock)
        self._exchanges = asyncio.Semaphore(limits.exchanges)

    @asynccontextmanager
    async def create(self, request: Request) -> AsyncIterator[Response]:
        """Opens a session for a Hello frame; one that is refused leaves nothing behind."""
        frame = await self._body(request)
        address = network_of(request.client.host if request.client else "")
        wait = self._rate.wait(address)
        if wait:
            raise IncompleteError("rate", "too many new sessions", evidence={"retry_seconds": wait})
        session = secrets.token_bytes(16)
        seat = self._table.reserve(session.hex(), address)
        try:
            async with self._patiently(self._exchanges):
                yield _Frame(await self._work(partial(self._welcome, seat, session, frame)), self.limits.retry_seconds)
        finally:
            if seat.session is None:
                self._table.release(seat)

    def _welcome(self, seat: Seat, session: bytes, frame: bytes) -> bytes:
        prover = self._open_session(session)
        reply = prover.handle(frame)
        if isinstance(m.unpack_reply(reply, Struct)[0], m.Welcome):
            seat.session = prover
        return reply

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[Response]:
        """Lets a session answer a frame, after it has answered the one before."""
        frame = await self._body(request)
        identity = request.path_params["id"]
        seat = self._table.find(identity) if _SESSION.fullmatch(identity) else None
        if seat is None or seat.session is None:
            raise UsageError("not-found", "no such session")
        async with AsyncExitStack() as until_sent:
            async with self._patiently(seat.lock):
                await until_sent.enter_async_context(self._patiently(self._exchanges))
                reply = await self._work(partial(seat.session.handle, frame))
            self._table.touch(seat)
            yield _Frame(reply, self.limits.retry_seconds)

    @asynccontextmanager
    async def head(self, _: Request) -> AsyncIterator[Response]:
        """The latest signed head."""
        async with self._patiently(self._exchanges):
            yield PlainTextResponse(await self._work(self._head))

    @asynccontextmanager
    async def health(self, _: Request) -> AsyncIterator[Response]:
        """Versions, and what the run is."""
        async with self._patiently(self._exchanges):
            facts = await self._work(self._describe)
            yield JSONResponse({**facts, "version": __version__, "protocol": PROTOCOL_VERSION})

    def refuse(self, request: Request, error: Exception) -> Response:
        """The JSON reply that an error means."""
        if isinstance(error, WitnessError):
            logger.debug("%s refused: %s", request.method, error)
            code = error.code
            later = error.evidence.get("retry_seconds", self.limits.retry_seconds)
            return error_reply(code, float(str(later)) if code in {"busy", "rate"} else None)
        return error_reply("method" if getattr(error, "status_code", 404) == 405 else "not-found")

    async def _body(self, request: Request) -> bytes:
        """The body, read no further than the cap, and no longer than `body_seconds`."""
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > m.MAX_REQUEST:
            raise ProtocolError("too-large", f"a request of {declared} bytes")
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > m.MAX_REQUEST:
                        raise ProtocolError("too-large", f"a request of more than {m.MAX_REQUEST} bytes")
        except TimeoutError:
            raise IncompleteError("slow-request", f"{len(body)} bytes in {self.limits.body_seconds} seconds") from None
        return bytes(body)

    @asynccontextmanager
    async def _patiently(self, gate: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
        """Passes a gate that opens within `queue_seconds`."""
        try:
            async with asyncio.timeout(self.limits.queue_seconds):
                await gate.acquire()
        except TimeoutError:
            raise IncompleteError("busy", "too many requests are being worked on") from None
        try:
            yield
        finally:
            gate.release()

    async def _work(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, job)
