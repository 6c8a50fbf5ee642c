"""Servers for tests on loopback: a real one in a thread, and one that does whatever a test tells it to."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from protocol import messages as m
from protocol.messages import Policy
from protocol.randomness import commit_nonce
from witness.http.server import Listener, ServerLimits, make_app

NONCE = bytes(range(32))
POLICY = Policy("0.99", "0.5", draws=2)
HELLO = m.pack(m.Hello(POLICY, commit_nonce(NONCE).hex()))
DONE = m.pack(m.Done())
FRAME = {"Content-Type": "application/octet-stream"}


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class StubSession:
    """A prover's end that answers Hello with a Welcome and everything else with `reply`."""

    def __init__(self, session: bytes, reply: Callable[[bytes], bytes] = lambda _: DONE) -> None:
        self.id, self.closed, self._reply = session.hex(), False, reply

    def handle(self, frame: bytes) -> bytes:
        request = m.unpack_request(frame)
        if isinstance(request, m.Hello):
            return m.pack(m.Welcome(self.id, "head", None))
        if isinstance(request, m.Close):
            self.closed = True
            return DONE
        return self._reply(frame)


@contextmanager
def serving(
    open_session=StubSession,
    *,
    describe=lambda: {"run": "00"},
    head=lambda: b"a head\n",
    clock=None,
    proxies: tuple[str, ...] = (),
    **limits: float,
) -> Iterator[int]:
    """A server in a thread; gives its port."""
    ready = threading.Event()
    named = {} if clock is None else {"clock": clock}
    app = make_app(open_session, describe, head, limits=ServerLimits(**limits), **named)
    listener = Listener(app, "127.0.0.1", 0, ready=lambda _: ready.set(), proxies=proxies)
    thread = threading.Thread(target=listener.run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield listener.port
    finally:
        listener.stop()
        thread.join(10)
        assert not thread.is_alive()


def post(
    port: int, path: str, body: bytes, seconds: float = 10, headers: dict[str, str] = FRAME
) -> tuple[int, dict[str, str], bytes]:
    """One request with an independent client: status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("POST", path, body, headers)
        reply = connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def open_session(port: int) -> str:
    """Opens a session; gives its id."""
    status, _, reply = post(port, "/v1/sessions", HELLO)
    assert status == 200
    welcome, _ = m.unpack_reply(reply, m.Welcome)
    return welcome.session


def ask_head(session: str) -> bytes:
    """Any request frame of a session."""
    return m.pack(m.GetHeads(session, 0))


class Hostile:
    """A TCP server that runs `script` on each connection.

    Attributes:
        url: where it is.
        connections: how many came.
        requests: bodies that `read_request` read.
        heads: the heads before them, in lower case.
    """

    def __init__(self, script: Callable[["Hostile", socket.socket], None]) -> None:
        self._script = script
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.02)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.connections = 0
        self.requests: list[bytes] = []
        self.heads: list[bytes] = []
        self._open: list[socket.socket] = []
        self.stopped = threading.Event()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        self._socket.close()

    def _accept(self) -> None:
        while not self.stopped.is_set():
            with suppress(TimeoutError):
                connection, _ = self._socket.accept()
                self.connections += 1
                self._open.append(connection)
                thread = threading.Thread(target=self._run, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.settimeout(5)
            self._script(self, connection)

    def read_request(self, connection: socket.socket) -> bytes:
        """Reads one request to its end; gives its body."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                raise OSError("the client left")
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += connection.recv(65536)
        self.heads.append(head.lower())
        self.requests.append(body)
        return body


def http_reply(
    body: bytes,
    status: str = "200 OK",
    kind: str = "application/octet-stream",
    extra: str = "",
    length: int | None = None,
) -> bytes:
    """An HTTP reply in full."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n{extra}\r\n".encode() + body


def answering(*replies: bytes) -> Callable[[Hostile, socket.socket], None]:
    """A script that answers the first request with the first reply and so on; the last reply stays."""
    left = list(replies)

    def script(server: Hostile, connection: socket.socket) -> None:
        while True:
            server.read_request(connection)
            connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    return script
