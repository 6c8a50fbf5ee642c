"""The verifier's transport: one frame out, one frame back, from a server that may be slow, broken or hostile.

Every request but Hello can be repeated without changing anything (`protocol.proving`), and a repeated Hello only opens
another session; so whatever is lost on the way is sent again. Before a Welcome nobody has committed to anything: a
prover that cannot be reached is `unreachable`, which accuses nobody. After it the time for an answer is the policy's,
and silence to its end is `unanswered`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Self
from urllib.parse import quote

from protocol import messages as m
from protocol.errors import IncompleteError, ProtocolError, UsageError, VerificationError
from witness.asking import TimedTransport, ask
from witness.http import FRAME_TYPE, extra_missing
from witness.http.cutoff import Cutoff

try:
    import httpx2
    import stamina
except ModuleNotFoundError as error:
    raise extra_missing(error) from None

__all__ = ["HttpTransport", "TimedTransport", "ask"]

MAX_FRAME = m.MAX_REPLY + m.MAX_HEADER + 4
MAX_TEXT = 1 << 16
MAX_JSON = 1 << 24
"""Bytes of an answer about the data."""
LONGEST_RETRY_AFTER = 60.0
LEAST_SECONDS = 1.0
"""What the last try gets, however late it begins."""
_AGAIN = frozenset({429, 502, 503, 504})
"""Busy, and what a gateway says in place of a connection error."""


class _Lost(Exception):  # noqa: N818 - a state of affairs; it never leaves this module
    """An exchange that may be tried again, at the earliest after so many seconds."""

    def __init__(self, reason: str, after: float | None = None) -> None:
        super().__init__(reason)
        self.after = after


class _Unfit(Exception):  # noqa: N818 - as above
    """A complete HTTP reply that is not of the kind that was asked for."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(f"HTTP status {status}, {what}")
        self.status = status


class HttpTransport:
    """A transport to one prover, for one verifier session after another; a context manager; one exchange at a time.

    No redirect is followed, no cookie kept, nothing decompressed. Proxies of the environment are used for https only:
    under http they could read and change everything.

    Args:
        url: http or https, of the server, with the path under which `/v1` lies.
        answer_seconds: time for one answer, all tries together (`Policy.answer_seconds`).
        connect_seconds: time for a connection.
        read_seconds: time in which nothing at all arrives.
        hello_tries: how often a Hello is sent to a server that does not answer.
        hello_seconds: time for a Hello, all tries together.
        pause_seconds: before the first retry; later ones take up to 16 times as long.

    Raises:
        UsageError: `address`.
    """

    def __init__(
        self,
        url: str,
        *,
        answer_seconds: float = 600.0,
        connect_seconds: float = 10.0,
        read_seconds: float = 60.0,
        hello_tries: int = 4,
        hello_seconds: float = 60.0,
        pause_seconds: float = 0.25,
    ) -> None:
        self._base = _base(url)
        self._answer_seconds, self._pause = answer_seconds, pause_seconds
        self._hello_tries, self._hello_seconds = hello_tries, hello_seconds
        self._connect_seconds, self._read_seconds = connect_seconds, read_seconds
        self._cutoff = Cutoff()
        self._one_at_a_time = threading.Lock()
        try:
            self._client = httpx2.Client(
                headers={"Accept": FRAME_TYPE, "Accept-Encoding": "identity", "User-Agent": "training-witness"},
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
                follow_redirects=False,
                trust_env=self._base.startswith("https:"),
                limits=httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=30.0),
            )
        except (ImportError, ValueError, OSError) as error:
            raise UsageError(
                "address", f"a proxy or certificate file of the environment cannot be used: {error}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def __call__(self, frame: bytes) -> bytes:
        """`within` the policy's time for an answer."""
        return self.within(frame, self._answer_seconds)

    def within(self, frame: bytes, seconds: float) -> bytes:
        """Sends a request frame, and returns the frame that answers it, unread.

        Lost exchanges are repeated: a Hello some times, every other request until the time is over.

        Args:
            frame: one request.
            seconds: time for the answer.

        Raises:
            IncompleteError: `unreachable`: no answer to a Hello; `not-a-prover`: something else than a frame.
            VerificationError: `unanswered`: no answer to another request, or the prover has lost the session.
            ProtocolError: `too-large`; `http-reply`: something else than a frame answers another request.
        """
        request = m.unpack_request(frame)
        if isinstance(request, m.Hello):
            return self._reach("POST", "/v1/sessions", frame, FRAME_TYPE, min(seconds, self._hello_seconds))
        began = time.monotonic()
        try:
            return self._repeat(
                "POST", f"/v1/sessions/{quote(request.session)}", frame, FRAME_TYPE, seconds, tries=None
            )
        except _Lost as lost:
            waited = round(time.monotonic() - began, 1)
            raise VerificationError(
                "unanswered",
                f"the prover did not answer within {waited} seconds: {lost}",
                evidence={"seconds": waited, "request": type(request).__name__, "reason": str(lost)},
            ) from None
        except _Unfit as reply:
            if reply.status == 404:
                raise VerificationError(
                    "unanswered",
                    "the prover no longer knows the session it bound itself in",
                    evidence={"seconds": round(time.monotonic() - began, 1), "request": type(request).__name__},
                ) from None
            raise ProtocolError(
                "http-reply", f"instead of a frame: {reply}", evidence={"status": reply.status}
            ) from None

    def head(self, *, seconds: float = 30.0) -> bytes:
        """The latest signed head as the server shows it to anybody, unverified.

        Raises:
            IncompleteError: `unreachable`, `not-a-prover`.
            ProtocolError: `too-large`.
        """
        return self._reach("GET", "/v1/head", b"", "text/plain", seconds)

    def ledgers(self, *, seconds: float = 60.0) -> bytes:
        """The claims of the run's ledgers as the server shows them, unverified: canonical JSON.

        Raises:
            IncompleteError: `unreachable`, `not-a-prover`.
            ProtocolError: `too-large`.
        """
        return self._reach("GET", "/v1/ledger", b"", "application/json", seconds)

    def answer(self, tier: str, digest: bytes, *, seconds: float = 300.0) -> bytes:
        """The server's answer about a digest, unverified: see `protocol.answering.check_answer`.

        Only tier and digest are sent.

        Raises:
            IncompleteError: `unreachable`, `not-a-prover`.
            ProtocolError: `too-large`.
        """
        return self._reach("GET", f"/v1/ledger/{quote(tier)}/{digest.hex()}", b"", "application/json", seconds)

    def answers(self, tier: str, digests: Sequence[bytes], *, seconds: float = 300.0) -> bytes:
        """The server's answer about the first of many digests, unverified: as many as it puts into one answer.

        Only tier and digests are sent.

        Args:
            tier: of the ledger.
            digests: 32 bytes each, at most `witness.http.DIGESTS_AT_ONCE`.
            seconds: time for the answer.

        Raises:
            IncompleteError: `unreachable`, `not-a-prover`.
            ProtocolError: `too-large`.
        """
        return self._reach("POST", f"/v1/ledger/{quote(tier)}", b"".join(digests), "application/json", seconds)

    def _reach(self, method: str, path: str, content: bytes, kind: str, seconds: float) -> bytes:
        """An exchange with a server that has not bound itself: whatever goes wrong, nobody is accused."""
        try:
            return self._repeat(method, path, content, kind, seconds, tries=self._hello_tries)
        except _Lost as lost:
            raise IncompleteError(
                "unreachable",
                f"no prover answers at {self._base}: {lost}",
                evidence={"url": self._base, "reason": str(lost)},
            ) from None
        except _Unfit as reply:
            raise IncompleteError(
                "not-a-prover",
                f"{self._base} answers with {reply}",
                evidence={"url": self._base, "status": reply.status},
            ) from None

    def _repeat(self, method: str, path: str, content: bytes, kind: str, seconds: float, *, tries: int | None) -> bytes:
        """Exchanges until one is not lost, the tries are used up or the time is over."""
        deadline = time.monotonic() + seconds

        def again(error: Exception) -> bool | float:
            if isinstance(error, _Lost) and error.after is not None:
                return max(0.0, min(error.after, deadline - time.monotonic()))
            return isinstance(error, _Lost)

        pause = self._pause
        for attempt in stamina.retry_context(
            on=again, attempts=tries, timeout=seconds, wait_initial=pause, wait_max=16 * pause, wait_jitter=pause
        ):
            with attempt, self._one_at_a_time:
                return self._exchange(method, path, content, kind, max(deadline - time.monotonic(), LEAST_SECONDS))
        raise RuntimeError("the retries neither returned nor raised")

    def _exchange(self, method: str, path: str, content: bytes, kind: str, seconds: float) -> bytes:
        read = min(self._read_seconds, seconds)
        timeout = httpx2.Timeout(connect=min(self._connect_seconds, seconds), read=read, write=read, pool=read)
        try:
            with (
                self._cutoff.after(seconds) as trace,
                self._client.stream(
                    method,
                    self._base + path,
                    content=content or None,
                    headers={"Content-Type": FRAME_TYPE} if content else None,
                    timeout=timeout,
                    extensions={"trace": trace},
                ) as response,
            ):
                return _read(response, kind)
        except (httpx2.TimeoutException, httpx2.NetworkError, httpx2.RemoteProtocolError, httpx2.ProxyError) as error:
            raise _Lost(f"{type(error).__name__}: {error}"[:300]) from None
        except UnicodeError:
            raise UsageError("address", f"{self._base} names no host") from None


def _read(response: httpx2.Response, kind: str) -> bytes:
    """The body of a reply of the right kind, read up to its cap."""
    status = response.status_code
    found = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoded = response.headers.get("content-encoding", "identity").strip().lower() != "identity"
    fits = found == kind and not encoded and (status in {200, 202} or (kind == FRAME_TYPE and status >= 400))
    if status in _AGAIN and not fits:
        after = response.headers.get("retry-after", "")
        known = after.isascii() and after.isdigit() and len(after) < 9
        raise _Lost(f"HTTP status {status}", min(float(after), LONGEST_RETRY_AFTER) if known else None)
    if not fits:
        raise _Unfit(status, ascii(found[:80] or "of no kind") + (", encoded" if encoded else ""))
    cap = {FRAME_TYPE: MAX_FRAME, "application/json": MAX_JSON}.get(kind, MAX_TEXT)
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > cap:
            raise ProtocolError("too-large", f"a reply of more than {cap} bytes; the rest was not read")
    return bytes(body)


def _base(url: str) -> str:
    """The URL without a slash at its end.

    Raises:
        UsageError: `address`.
    """
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError):
        raise UsageError("address", f"{url[:200]!r} is not a URL") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.port == 0 or (parsed.port or 80) > 65535:
        raise UsageError("address", f"{url[:200]!r} is not an http or https URL")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise UsageError("address", "the URL of a prover has no user, query or fragment")
    return str(parsed).rstrip("/")
