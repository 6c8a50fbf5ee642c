"""The server on loopback: what it answers, and what strangers cannot make it do."""

import json
import logging
import socket
import threading
import time

import pytest
from http_support import DONE, FRAME, HELLO, Clock, StubSession, ask_head, open_session, post, serving

from protocol import messages as m
from protocol.errors import CODES, UsageError
from witness.http.server import Listener, ServerLimits, make_app

NOWHERE = "f" * 32


@pytest.fixture(scope="module")
def shared_port():
    with serving() as port:
        yield port


def refused(session: bytes, code: str) -> StubSession:
    return StubSession(session, lambda _: m.pack(m.Refusal(code, "no")))


def get(port: int, target: str, method: str = "GET") -> tuple[bytes, bytes]:
    """Head and body of a reply to a request without a body."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def alive(connection: socket.socket) -> bool:
    """Whether the server answers a request on this connection."""
    connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n")
    data = b""
    while not data.endswith(b"}"):
        more = connection.recv(4096)
        if not more:
            return False
        data += more
    return b" 200 OK" in data


def closed_within(connection: socket.socket, seconds: float) -> bool:
    """Whether the server ends the connection in time; what it sends before is thrown away."""
    connection.settimeout(seconds)
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            if not connection.recv(1 << 20):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return False


def test_frames_go_to_the_session_they_belong_to():
    with serving(lambda s: StubSession(s, lambda _: m.pack(m.Part(0, 1), s))) as port:
        one, other = open_session(port), open_session(port)
        assert one != other
        for session in (one, other, one):
            status, headers, reply = post(port, f"/v1/sessions/{session}", ask_head(session))
            assert status == 200
            assert headers["content-type"] == "application/octet-stream"
            assert m.unpack_reply(reply, m.Part)[1] == bytes.fromhex(session)


@pytest.mark.parametrize("code", sorted({"session", "nonce-mismatch", "state-root", "too-large", "profile-differs"}))
def test_a_refusal_has_the_status_of_its_code(code):
    with serving(lambda s: refused(s, code)) as port:
        session = open_session(port)
        status, _, reply = post(port, f"/v1/sessions/{session}", ask_head(session))
        assert status == CODES[code].http_status
        assert m.unpack_reply(reply, m.Done)[0] == m.Refusal(code, "no")


def test_a_refusal_with_a_code_of_another_version_is_a_bad_request():
    with serving(lambda s: refused(s, "code-from-the-future")) as port:
        session = open_session(port)
        assert post(port, f"/v1/sessions/{session}", ask_head(session))[0] == 400


def test_pending_is_accepted_and_says_when_to_come_back():
    with serving(lambda s: StubSession(s, lambda _: m.pack(m.Pending(1, 2)))) as port:
        session = open_session(port)
        status, headers, reply = post(port, f"/v1/sessions/{session}", ask_head(session))
        assert (status, headers["retry-after"]) == (202, "2")
        assert m.unpack_reply(reply, m.Done)[0] == m.Pending(1, 2)


def test_head_and_health_are_for_everybody():
    facts = {"run": "ab", "steps": 3, "head_size": 5}
    with serving(describe=lambda: facts, head=lambda: "a head\n\n\u2014 key sig\n".encode()) as port:
        head, body = get(port, "/v1/head")
        assert b"200 OK" in head
        assert b"text/plain; charset=utf-8" in head
        assert body == "a head\n\n\u2014 key sig\n".encode()
        _, body = get(port, "/v1/health")
        assert facts.items() <= json.loads(body).items()
        assert json.loads(body)["version"]


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("POST", f"/v1/sessions/{NOWHERE}", 404, "not-found"),
        ("POST", "/v1/sessions/../../etc/passwd", 404, "not-found"),
        ("POST", "/v1/sessions/", 404, "not-found"),
        ("POST", f"/v1/sessions/{NOWHERE.upper()}", 404, "not-found"),
        ("POST", f"/v1/sessions/{NOWHERE}%0a", 404, "not-found"),
        ("GET", "/", 404, "not-found"),
        ("GET", "/v1/sessions", 405, "method"),
        ("POST", "/v1/head", 405, "method"),
    ],
)
def test_wrong_addresses_are_told_nothing(shared_port, method, target, status, code):
    head, body = get(shared_port, target, method)
    assert f" {status} ".encode() in head.split(b"\r\n")[0] + b" "
    assert json.loads(body) == {"code": code, "message": CODES[code].meaning}


def test_a_session_that_is_refused_leaves_nothing_behind():
    with serving(lambda s: StubSession(s), sessions=1) as port:
        for body in (b"", b"\0\0\0\2{}", ask_head(NOWHERE), m.pack(m.Close(NOWHERE))):
            # The stub raises on garbage and is no Welcome on the others; either way the one place stays free.
            post(port, "/v1/sessions", body)
        closed = open_session(port)
        assert post(port, "/v1/sessions", HELLO)[0] == 503
        post(port, f"/v1/sessions/{closed}", m.pack(m.Close(closed)))
        open_session(port)


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_failure_is_logged_with_its_traceback_and_not_sent(caplog):
    def fail(_: bytes) -> bytes:
        raise RuntimeError("/home/trainer/secret.sqlite is locked")

    with caplog.at_level(logging.INFO, "witness.http"), serving(lambda s: StubSession(s, fail)) as port:
        session = open_session(port)
        status, _, reply = post(port, f"/v1/sessions/{session}", ask_head(session))
        assert status == 500
        assert json.loads(reply) == {"code": "internal", "message": CODES["internal"].meaning}
    assert "secret.sqlite" in caplog.text
    assert "Traceback" in caplog.text


def test_an_error_of_the_run_says_its_code_and_none_of_our_paths():
    def missing() -> bytes:
        raise UsageError("run-missing", "/home/trainer/run is gone")

    with serving(head=missing) as port:
        head, body = get(port, "/v1/head")
        assert b" 400 " in head
        assert json.loads(body)["code"] == "run-missing"
        assert b"/home" not in head + body


def test_one_line_is_logged_for_each_request_without_the_id_that_opens_the_session(caplog):
    with caplog.at_level(logging.INFO, "witness.http"), serving() as port:
        session = open_session(port)
        post(port, f"/v1/sessions/{session}", ask_head(session))
        get(port, "/v1/%0d%0aforged%20line")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[0].startswith(f"127.0.0.1 POST /v1/sessions 200 in={len(HELLO)} out=")
    assert f"POST /v1/sessions/{session[:8]} 200 in={len(ask_head(session))} out={len(DONE)} " in lines[1]
    assert session not in caplog.text
    assert "\\r\\nforged line 404" in lines[2]


# -- bodies -----------------------------------------------------------------------------------------------------------


def test_the_largest_request_is_read_and_one_byte_more_is_not():
    seen: list[int] = []

    class Measuring(StubSession):
        def handle(self, frame: bytes) -> bytes:
            seen.append(len(frame))
            return m.pack(m.Refusal("session", "no"))

    with serving(Measuring) as port:
        assert post(port, "/v1/sessions", bytes(m.MAX_REQUEST))[0] == 400
        assert post(port, "/v1/sessions", bytes(m.MAX_REQUEST + 1))[0] == 413
    assert seen == [m.MAX_REQUEST]


def test_a_body_declared_too_large_is_refused_before_it_is_sent():
    with serving() as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        assert b" 413 " in connection.recv(4096)
        assert closed_within(connection, 3)


def test_an_endless_body_is_cut():
    with serving() as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 1 << 27:
                sent += connection.send(b"1000\r\n" + bytes(4096) + b"\r\n")
        assert sent < 1 << 24  # socket buffers, and no more


def test_an_endless_body_to_a_wrong_address_is_cut_too():
    with serving() as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(1 << 15):
                connection.sendall(b"1000\r\n" + bytes(4096) + b"\r\n")


# -- slow clients -----------------------------------------------------------------------------------------------------


def drip(connection: socket.socket, data: bytes, pause: float) -> bool:
    """Sends byte after byte; whether the server ended the connection."""
    connection.settimeout(pause)
    for byte in data:
        try:
            connection.sendall(bytes([byte]))
            if connection.recv(4096) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


def test_headers_that_drip_are_cut_however_steadily():
    with serving(header_seconds=0.5) as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        assert drip(connection, b"GET /v1/health HTTP/1.1\r\nX: " + b"x" * 40, 0.05)


def test_a_silent_connection_is_cut():
    with serving(header_seconds=0.3) as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        assert closed_within(connection, 3)


def test_headers_that_drip_on_a_kept_connection_are_cut():
    limits = {"header_seconds": 0.5, "keepalive_seconds": 30}
    with serving(**limits) as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        for _ in range(2):
            assert alive(connection)
            time.sleep(0.7)  # idle between requests, which is allowed
        assert drip(connection, b"GET /v1/health HTTP/1.1\r\nX: " + b"x" * 40, 0.05)


def test_headers_without_end_are_cut():
    with serving(header_bytes=4096) as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nX: " + b"x" * 70000)
        assert closed_within(connection, 3)


def test_a_body_that_drips_gets_a_timeout_reply():
    with serving(body_seconds=0.3) as port, socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nab")
        reply = connection.recv(4096)
        assert b" 408 " in reply
        assert closed_within(connection, 3)


def test_a_client_that_takes_no_reply_is_cut_and_its_place_is_free_again():
    big = m.pack(m.Part(0, 1), bytes(m.PART))
    limits = {"exchanges": 1, "write_seconds": 0.5, "queue_seconds": 5}
    with serving(lambda s: StubSession(s, lambda _: big), **limits) as port:
        session, other = open_session(port), open_session(port)
        with socket.create_connection(("127.0.0.1", port), 5) as greedy:
            frame = ask_head(session)
            head = f"POST /v1/sessions/{session} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(frame)}\r\n\r\n"
            greedy.sendall(head.encode() + frame)
            time.sleep(0.2)
            assert post(port, f"/v1/sessions/{other}", ask_head(other))[2] == big


def test_a_client_that_takes_a_reply_steadily_and_far_too_slowly_loses_its_place():
    big = m.pack(m.Part(0, 1), bytes(m.PART))
    limits = {"exchanges": 1, "write_seconds": 30, "reply_seconds": 1, "queue_seconds": 8}
    with serving(lambda s: StubSession(s, lambda _: big), **limits) as port, socket.socket() as slow:
        session, other = open_session(port), open_session(port)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", port))
        slow.settimeout(5)
        frame = ask_head(session)
        head = f"POST /v1/sessions/{session} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(frame)}\r\n\r\n"
        slow.sendall(head.encode() + frame)
        slow.recv(1)
        reading = threading.Event()
        reading.set()

        def read() -> None:  # 200 KB a second: 40 seconds for all of it
            while reading.is_set() and slow.recv(4096):
                time.sleep(0.02)

        thread = threading.Thread(target=read)
        thread.start()
        began = time.monotonic()
        assert post(port, f"/v1/sessions/{other}", ask_head(other))[2] == big
        assert time.monotonic() - began < 5
        reading.clear()
        thread.join(10)


# -- room -------------------------------------------------------------------------------------------------------------


def test_a_full_table_refuses_new_sessions_until_one_has_been_silent_too_long():
    clock = Clock()
    with serving(clock=clock, sessions=2, idle_seconds=100) as port:
        first, second = open_session(port), open_session(port)
        status, headers, reply = post(port, "/v1/sessions", HELLO)
        assert (status, json.loads(reply)["code"]) == (503, "busy")
        assert int(headers["retry-after"]) > 0
        clock.now += 60
        assert post(port, f"/v1/sessions/{second}", ask_head(second))[0] == 200
        clock.now += 50
        third = open_session(port)
        assert post(port, f"/v1/sessions/{first}", ask_head(first))[0] == 404
        assert post(port, f"/v1/sessions/{second}", ask_head(second))[0] == 200
        assert post(port, f"/v1/sessions/{third}", ask_head(third))[0] == 200


def test_an_address_that_opens_too_many_sessions_is_told_when_to_come_back():
    clock = Clock()
    with serving(clock=clock, opened_per_minute=2) as port:
        kept = open_session(port)
        clock.now += 15
        open_session(port)
        status, headers, reply = post(port, "/v1/sessions", HELLO)
        assert (status, json.loads(reply)["code"]) == (429, "rate")
        assert 45 <= int(headers["retry-after"]) <= 46
        assert post(port, f"/v1/sessions/{kept}", ask_head(kept))[0] == 200
        clock.now += 46
        open_session(port)


@pytest.mark.parametrize(("proxies", "counted_apart"), [((), False), (("127.0.0.1",), True)])
def test_a_client_behind_a_proxy_counts_by_itself_if_the_proxy_is_believed(proxies, counted_apart):
    with serving(proxies=proxies, opened_per_minute=1) as port:

        def status(client: str) -> int:
            return post(port, "/v1/sessions", HELLO, headers={**FRAME, "X-Forwarded-For": client})[0]

        assert status("192.0.2.1") == 200
        assert status("192.0.2.1") == 429
        assert status("192.0.2.2") == (200 if counted_apart else 429)


class Gate:
    """Sessions that work until they are let go, and count who is at work."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.at_work, self.most, self._lock = 0, 0, threading.Lock()

    def session(self, session: bytes) -> StubSession:
        return StubSession(session, self._work)

    def _work(self, _: bytes) -> bytes:
        with self._lock:
            self.at_work += 1
            self.most = max(self.most, self.at_work)
        assert self.open.wait(10)
        with self._lock:
            self.at_work -= 1
        return DONE


def test_a_session_answers_one_request_at_a_time_and_others_wait_their_turn():
    gate = Gate()
    with serving(gate.session) as port:
        session = open_session(port)
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(post(port, f"/v1/sessions/{session}", ask_head(session))[0]))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        assert (gate.at_work, found) == (1, [])
        gate.open.set()
        for thread in threads:
            thread.join(10)
        assert found == [200] * 4
        assert gate.most == 1


def test_a_request_that_waits_too_long_for_its_session_is_told_to_come_back():
    gate = Gate()
    with serving(gate.session, queue_seconds=0.2) as port:
        session, other = open_session(port), open_session(port)
        first = threading.Thread(target=post, args=(port, f"/v1/sessions/{session}", ask_head(session)))
        first.start()
        while not gate.at_work:
            time.sleep(0.01)
        status, headers, reply = post(port, f"/v1/sessions/{session}", ask_head(session))
        assert (status, json.loads(reply)["code"]) == (503, "busy")
        assert headers["retry-after"]
        assert post(port, f"/v1/sessions/{other}", m.pack(m.Close(other)))[0] == 200
        gate.open.set()
        first.join(10)
        assert post(port, f"/v1/sessions/{session}", ask_head(session))[0] == 200


def test_exchanges_beyond_the_cap_are_told_to_come_back():
    gate = Gate()
    with serving(gate.session, exchanges=2, workers=4, queue_seconds=0.3) as port:
        sessions = [open_session(port) for _ in range(5)]
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda s=s: found.append(post(port, f"/v1/sessions/{s}", ask_head(s))[0]))
            for s in sessions
        ]
        for thread in threads:
            thread.start()
        while len(found) < 3:
            time.sleep(0.01)
        gate.open.set()
        for thread in threads:
            thread.join(10)
        assert sorted(found) == [200, 200, 503, 503, 503]
        assert gate.most == 2


def test_connections_beyond_the_cap_are_turned_away_and_the_others_are_served():
    with serving(connections=3, header_seconds=20) as port:
        idle = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(2)]
        with socket.create_connection(("127.0.0.1", port), 5) as third:
            assert alive(third)
            with socket.create_connection(("127.0.0.1", port), 5) as fourth:
                reply = fourth.recv(4096)
                assert b"503 Service Unavailable" in reply
                assert b"retry-after: 2" in reply
                assert json.loads(reply.partition(b"\r\n\r\n")[2])["code"] == "busy"
                assert closed_within(fourth, 3)
            assert alive(third)
        for connection in idle:
            connection.close()
        time.sleep(0.2)
        open_session(port)


def test_garbage_instead_of_http_does_not_harm_the_server():
    with serving() as port:
        for junk in (b"\x16\x03\x01\x02\x00", b"SSH-2.0-x\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", bytes(range(256)) * 99):
            with socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(junk)
                connection.shutdown(socket.SHUT_WR)
                closed_within(connection, 2)
        assert open_session(port)


def test_an_address_in_use_is_the_callers_mistake():
    app = make_app(StubSession, dict, bytes, limits=ServerLimits())
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError) as caught:
        Listener(app, "127.0.0.1", taken.getsockname()[1])
    assert caught.value.code == "listen"
    for host, port in (("no.such.host.invalid", 0), ("127.0.0.1", 99999), ("x" * 70, 0)):
        with pytest.raises(UsageError):
            Listener(app, host, port)
