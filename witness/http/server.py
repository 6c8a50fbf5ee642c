"""The trainer's server: hands each frame to the session it belongs to, within fixed limits.

`make_app` is an ASGI application for any server; `serve` runs it in this process with the connection-level limits that
an application cannot keep (`witness.http.listener`).
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
from witness.http import DIGEST_BYTES, FRAME_TYPE, extra_missing
from witness.http.limits import AnswerRate, OpeningRate, ServerLimits, network_of
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
_DIGEST = re.compile("[0-9a-f]{64}")
_TIER = re.compile("[a-z0-9.-]{1,80}")
MAX_ANSWERED = 1 << 24
"""Bytes of an answer to a stranger; only one about millions of equal documents is longer."""


def make_app(
    open_session: Callable[[bytes], ProverSession],
    describe: Callable[[], Mapping[str, Any]],
    head: Callable[[], bytes],
    *,
    ledgers: Callable[[], bytes] | None = None,
    answer: Callable[[str, Sequence[bytes]], bytes] | None = None,
    limits: ServerLimits = ServerLimits(),  # noqa: B008 - frozen
    clock: Callable[[], float] = time.monotonic,
) -> Starlette:
    """The server as an ASGI application.

    The functions, and the sessions, are called in worker threads, different sessions at the same time.

    Args:
        open_session: makes the prover's end of a session from its 16 random bytes.
        describe: what /v1/health shows besides the versions: run id, steps, head size.
        head: the latest signed head.
        ledgers: the claims of the run's ledgers, as JSON; None to answer no questions about the data.
        answer: the answer about digests in a tier, or the first of them where they are too many; None likewise.
        limits: caps and time limits.
        clock: seconds, monotonic; decides when sessions are idle and addresses too eager.
    """
    desk = _Desk(open_session, describe, head, limits, clock)
    asking = []
    if ledgers is not None and answer is not None:
        library = _Library(desk, ledgers, answer, clock)
        asking = [
            Route("/v1/ledger", _Endpoint(desk, library.claims), methods=["GET"]),
            Route("/v1/ledger/{tier}", _Endpoint(desk, library.answers), methods=["POST"]),
            Route("/v1/ledger/{tier}/{digest}", _Endpoint(desk, library.answer), methods=["GET"]),
        ]

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
            *asking,
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


class _Chunked(Response):
    """A reply that is sent in chunks: a client that does not read then keeps its place among the exchanges."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        view = memoryview(self.body)
        for start in range(0, len(view), CHUNK):
            more = start + CHUNK < len(view)
            await send({"type": "http.response.body", "body": bytes(view[start : start + CHUNK]), "more_body": more})


class _Frame(_Chunked):
    """A frame as a reply."""

    media_type = FRAME_TYPE

    def __init__(self, frame: bytes, retry_seconds: int) -> None:
        status = _status(frame)
        super().__init__(frame, status, {"Retry-After": str(retry_seconds)} if status == 202 else None)


class _Json(_Chunked):
    """JSON that is encoded already."""

    media_type = "application/json"


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
        self.exchanges = asyncio.Semaphore(limits.exchanges)

    @asynccontextmanager
    async def create(self, request: Request) -> AsyncIterator[Response]:
        """Opens a session for a Hello frame; one that is refused leaves nothing behind."""
        frame = await self.body(request)
        address = network_of(request.client.host if request.client else "")
        wait = self._rate.wait(address)
        if wait:
            raise IncompleteError("rate", "too many new sessions", evidence={"retry_seconds": wait})
        session = secrets.token_bytes(16)
        seat = self._table.reserve(session.hex(), address)
        try:
            async with self.patiently(self.exchanges):
                yield _Frame(await self.work(partial(self._welcome, seat, session, frame)), self.limits.retry_seconds)
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
        frame = await self.body(request)
        identity = request.path_params["id"]
        seat = self._table.find(identity) if _SESSION.fullmatch(identity) else None
        if seat is None or seat.session is None:
            raise UsageError("not-found", "no such session")
        async with AsyncExitStack() as until_sent:
            async with self.patiently(seat.lock):
                await until_sent.enter_async_context(self.patiently(self.exchanges))
                reply = await self.work(partial(seat.session.handle, frame))
            self._table.touch(seat)
            yield _Frame(reply, self.limits.retry_seconds)

    @asynccontextmanager
    async def head(self, _: Request) -> AsyncIterator[Response]:
        """The latest signed head."""
        async with self.patiently(self.exchanges):
            yield PlainTextResponse(await self.work(self._head))

    @asynccontextmanager
    async def health(self, _: Request) -> AsyncIterator[Response]:
        """Versions, and what the run is."""
        async with self.patiently(self.exchanges):
            facts = await self.work(self._describe)
            yield JSONResponse({**facts, "version": __version__, "protocol": PROTOCOL_VERSION})

    def refuse(self, request: Request, error: Exception) -> Response:
        """The JSON reply that an error means."""
        if isinstance(error, WitnessError):
            logger.debug("%s refused: %s", request.method, error)
            code = error.code
            later = error.evidence.get("retry_seconds", self.limits.retry_seconds)
            return error_reply(code, float(str(later)) if code in {"busy", "rate"} else None)
        return error_reply("method" if getattr(error, "status_code", 404) == 405 else "not-found")

    async def body(self, request: Request) -> bytes:
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
    async def patiently(self, gate: asyncio.Lock | asyncio.Semaphore) -> AsyncIterator[None]:
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

    async def work(self, job: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, job)


class _Library:
    """Answers questions about the run's data: cheap, without a session, so many to an address."""

    def __init__(
        self,
        desk: _Desk,
        ledgers: Callable[[], bytes],
        answer: Callable[[str, Sequence[bytes]], bytes],
        clock: Callable[[], float],
    ) -> None:
        self._desk, self._ledgers, self._answer = desk, ledgers, answer
        self._rate = AnswerRate(desk.limits.answers_per_second, desk.limits.answers_at_once, clock)
        self._many = AnswerRate(desk.limits.questions_per_second, desk.limits.questions_at_once, clock)

    @asynccontextmanager
    async def claims(self, _: Request) -> AsyncIterator[Response]:
        """What ledgers there are."""
        async with self._desk.patiently(self._desk.exchanges):
            yield _Json(await self._desk.work(self._ledgers))

    @asynccontextmanager
    async def answer(self, request: Request) -> AsyncIterator[Response]:
        """The answer about one digest."""
        tier, digest = request.path_params["tier"], request.path_params["digest"]
        if _TIER.fullmatch(tier) is None or _DIGEST.fullmatch(digest) is None:
            raise UsageError("not-found", "no tier and digest")
        async with self._answered(request, self._rate, tier, [bytes.fromhex(digest)]) as response:
            yield response

    @asynccontextmanager
    async def answers(self, request: Request) -> AsyncIterator[Response]:
        """The answer about many digests: about the first of them, where it would grow too large."""
        tier = request.path_params["tier"]
        if _TIER.fullmatch(tier) is None:
            raise UsageError("not-found", "no tier")
        body = await self._desk.body(request)
        if not body or len(body) % DIGEST_BYTES:
            raise ProtocolError("not-canonical", f"{len(body)} bytes are no digests")
        digests = [body[at : at + DIGEST_BYTES] for at in range(0, len(body), DIGEST_BYTES)]
        async with self._answered(request, self._many, tier, digests) as response:
            yield response

    @asynccontextmanager
    async def _answered(
        self, request: Request, rate: AnswerRate, tier: str, digests: Sequence[bytes]
    ) -> AsyncIterator[Response]:
        wait = rate.wait(network_of(request.client.host if request.client else ""), len(digests))
        if wait:
            raise IncompleteError("rate", "too many questions", evidence={"retry_seconds": wait})
        async with self._desk.patiently(self._desk.exchanges):
            data = await self._desk.work(partial(self._answer, tier, digests))
            if len(data) > MAX_ANSWERED:
                raise ProtocolError("too-large", f"an answer of {len(data)} bytes")
            yield _Json(data)
