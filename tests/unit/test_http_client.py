"""The verifier's transport against servers that are slow, broken or hostile."""

import datetime
import ipaddress
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import stamina
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from http_support import DONE, HELLO, Hostile, answering, ask_head, http_reply

from protocol import messages as m
from protocol.errors import EXIT_INCOMPLETE, IncompleteError, ProtocolError, UsageError, VerificationError
from protocol.opening import expect
from witness.http.client import MAX_FRAME, HttpTransport

ID = "ab" * 16
WELCOME = m.pack(m.Welcome(ID, "head", None))
ASK = ask_head(ID)
JSON = "application/json"
BUSY = http_reply(b'{"code":"busy"}', "503 Service Unavailable", JSON)


def transport(url: str, **named: float) -> HttpTransport:
    settings = {"answer_seconds": 3.0, "hello_seconds": 3.0, "pause_seconds": 0.01, "connect_seconds": 1.0, **named}
    return HttpTransport(url, **settings)


def test_hello_goes_to_the_sessions_and_the_rest_to_the_session_named_in_the_frame():
    with (
        Hostile(answering(http_reply(WELCOME), http_reply(DONE))) as server,
        transport(server.url + "/prefix/") as send,
    ):
        assert send(HELLO) == WELCOME
        assert send(ASK) == DONE
    assert server.heads[0].startswith(b"post /prefix/v1/sessions http/1.1\r\n")
    assert server.heads[1].startswith(f"post /prefix/v1/sessions/{ID} http/1.1\r\n".encode())
    assert server.requests == [HELLO, ASK]
    assert server.connections == 1  # kept
    assert b"content-type: application/octet-stream" in server.heads[0]
    assert b"gzip" not in server.heads[0]


@pytest.mark.parametrize("status", ["200 OK", "202 Accepted", "400 Bad Request", "413 X", "422 X", "503 X", "429 X"])
def test_a_frame_is_an_answer_whatever_its_status_and_is_not_asked_for_again(status):
    refusal = m.pack(m.Refusal("session", "no"))
    with Hostile(answering(http_reply(refusal, status))) as server, transport(server.url) as send:
        assert send(ASK) == refusal
        assert send(HELLO) == refusal
    assert len(server.requests) == 2


# -- what is no answer ------------------------------------------------------------------------------------------------

NO_ANSWERS = {
    "html": http_reply(b"<html>hello</html>", kind="text/html"),
    "json": http_reply(b"{}", kind=JSON),
    "no type": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
    "redirect": http_reply(DONE, "307 Temporary Redirect", extra="Location: http://127.0.0.1:1/\r\n"),
    "moved": http_reply(DONE, "301 Moved", extra="Location: /elsewhere\r\n"),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "partial": http_reply(DONE, "206 Partial Content"),
    "failed": http_reply(b'{"code":"internal"}', "500 Internal Server Error", JSON),
    "forbidden": http_reply(b"no", "403 Forbidden", "text/plain"),
    "compressed": http_reply(DONE, extra="Content-Encoding: gzip\r\n"),
}


@pytest.mark.parametrize("reply", NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_something_else_than_a_frame_is_malformed_once_the_prover_is_bound_and_no_prover_before(reply):
    with Hostile(answering(reply)) as server, transport(server.url) as send:
        with pytest.raises(ProtocolError) as caught:
            send(ASK)
        assert caught.value.code == "http-reply"
        with pytest.raises(IncompleteError) as caught:
            send(HELLO)
        assert caught.value.code == "not-a-prover"
        assert caught.value.exit_status == EXIT_INCOMPLETE  # who bound itself to nothing is accused of nothing
    assert len(server.requests) == 2  # nothing was asked again, no redirect followed


def test_a_session_that_the_prover_forgot_is_unanswered():
    lost = http_reply(b'{"code":"not-found"}', "404 Not Found", JSON)
    with Hostile(answering(lost)) as server, transport(server.url) as send:
        with pytest.raises(VerificationError) as caught:
            send(ASK)
        assert caught.value.code == "unanswered"
        with pytest.raises(IncompleteError) as caught:
            send(HELLO)
        assert caught.value.code == "not-a-prover"


@pytest.mark.parametrize("frame", [b"", DONE[:3], DONE[:-1], b"\xff\xff\xff\xff", b"\0\0\0\2{}", DONE + b"\0" * 9])
def test_truncated_and_garbled_frames_are_carried_and_refused_by_their_reader(frame):
    with Hostile(answering(http_reply(frame))) as server, transport(server.url) as send:
        reply = send(ASK)
        assert reply == frame
        if frame.startswith(DONE):
            return
        with pytest.raises(ProtocolError) as caught:
            expect(reply, m.Done)
        assert caught.value.code in {"frame", "not-canonical"}


# -- size and time ----------------------------------------------------------------------------------------------------


def endless(head: bytes, chunk: bytes):
    def script(server, connection):
        server.read_request(connection)
        connection.sendall(head)
        server.sent = 0
        while not server.stopped.is_set():
            connection.sendall(chunk)
            server.sent += len(chunk)

    return script


@pytest.mark.parametrize(
    ("head", "chunk"),
    [
        (f"Content-Length: {1 << 30}\r\n\r\n".encode(), bytes(1 << 16)),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
        (b"Connection: close\r\n\r\n", bytes(1 << 16)),
    ],
    ids=["a declared gigabyte", "endless chunks", "until it closes"],
)
@pytest.mark.parametrize("frame", [HELLO, ASK], ids=["hello", "later"])
def test_an_endless_reply_is_cut_at_the_cap(head, chunk, frame):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n" + head
    with Hostile(endless(head, chunk)) as server, transport(server.url) as send:
        with pytest.raises(ProtocolError) as caught:
            send(frame)
        assert caught.value.code == "too-large"
        assert server.sent < MAX_FRAME + (1 << 24)  # what the socket buffers hold
    assert server.connections == 1


def test_the_largest_frame_passes():
    with Hostile(answering(http_reply(bytes(MAX_FRAME)))) as server, transport(server.url) as send:
        assert len(send(ASK)) == MAX_FRAME


@pytest.mark.parametrize(
    "chunk",
    [b"X-Drip: 1\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"1\r\nx\r\n"],
    ids=["headers", "informational replies", "body"],
)
def test_a_reply_that_drips_for_ever_is_cut_at_the_deadline_though_every_read_is_in_time(chunk):
    start = {
        b"X": b"HTTP/1.1 200 OK\r\n",
        b"H": b"",
        b"1": b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    }[chunk[:1]]

    def script(server, connection):
        server.read_request(connection)
        connection.sendall(start)
        until = time.monotonic() + 8
        while not server.stopped.wait(0.05) and time.monotonic() < until:
            connection.sendall(chunk)

    with Hostile(script) as server, transport(server.url) as send:
        began = time.monotonic()
        with pytest.raises(VerificationError) as caught:
            send.within(ASK, 1.0)
        assert caught.value.code == "unanswered"
        assert 1.0 <= time.monotonic() - began < 4.0
        assert caught.value.evidence["request"] == "GetHeads"
        began = time.monotonic()
        with pytest.raises(IncompleteError) as caught:
            send.within(HELLO, 1.0)
        assert caught.value.code == "unreachable"
        assert 1.0 <= time.monotonic() - began < 4.0


def test_silence_after_the_welcome_is_unanswered_at_the_deadline_and_not_before():
    def script(server, connection):
        if b"hello" in server.read_request(connection):
            connection.sendall(http_reply(WELCOME))
            server.read_request(connection)
        server.stopped.wait(10)

    with Hostile(script) as server, transport(server.url, read_seconds=0.4) as send:
        assert send(HELLO) == WELCOME
        began = time.monotonic()
        with pytest.raises(VerificationError) as caught:
            send.within(ASK, 1.5)
        waited = time.monotonic() - began
        assert caught.value.code == "unanswered"
        assert 1.5 <= waited < 5
        assert caught.value.evidence["seconds"] == pytest.approx(waited, abs=0.2)
    assert server.requests.count(ASK) >= 3  # asked again whenever nothing came for a while


def test_a_server_that_is_not_there_is_unreachable_and_accuses_nobody():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", f"https://127.0.0.1:{port}", "http://no-such-host.invalid"):
        with transport(url) as send, pytest.raises(IncompleteError) as caught:
            send(HELLO)
        assert caught.value.code == "unreachable"
        assert caught.value.exit_status == EXIT_INCOMPLETE
        assert caught.value.evidence["url"] == url


def test_a_server_that_is_gone_after_the_welcome_is_unanswered_at_the_deadline():
    with Hostile(answering(http_reply(WELCOME))) as server, transport(server.url) as send:
        assert send(HELLO) == WELCOME
        server.__exit__()
        began = time.monotonic()
        with pytest.raises(VerificationError) as caught:
            send.within(ASK, 1.0)
        assert caught.value.code == "unanswered"
        assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize(
    "junk",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"\0" * 4096,
        b"X" * 300_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
    ids=["ssh", "status", "zeros", "no end", "upgrade"],
)
def test_what_speaks_no_http_is_no_prover(junk):
    def script(server, connection):
        server.read_request(connection)
        connection.sendall(junk)

    with Hostile(script) as server, transport(server.url) as send, pytest.raises(IncompleteError) as caught:
        send(HELLO)
    assert caught.value.code == "unreachable"


# -- trying again -----------------------------------------------------------------------------------------------------


def dropping(times: int, part: bytes = b""):
    """Drops the first connections after the request was read, having sent a part of a reply."""

    def script(server, connection):
        while True:
            server.read_request(connection)
            if len(server.requests) <= times:
                connection.sendall(part)
                return
            connection.sendall(http_reply(DONE))

    return script


@pytest.mark.parametrize(
    "part", [b"", b"HTTP/1.1 200", http_reply(DONE[:5], length=len(DONE))], ids=["nothing", "status", "half a body"]
)
def test_a_dropped_connection_is_tried_again_with_the_same_frame(part):
    with Hostile(dropping(2, part)) as server, transport(server.url) as send:
        assert send(ASK) == DONE
    assert server.requests == [ASK] * 3


@pytest.mark.parametrize("status", ["503 Service Unavailable", "429 Too Many Requests", "502 Bad Gateway", "504 X"])
@pytest.mark.parametrize("kind", [JSON, "text/html"])
def test_a_busy_server_is_asked_again(status, kind):
    busy = http_reply(b"busy", status, kind)
    with Hostile(answering(busy, busy, http_reply(DONE))) as server, transport(server.url) as send:
        assert send(ASK) == DONE
    assert server.requests == [ASK] * 3


def test_hello_is_sent_a_few_times_and_no_more():
    with (
        Hostile(answering(BUSY)) as server,
        transport(server.url, hello_tries=3) as send,
        pytest.raises(IncompleteError) as caught,
    ):
        send(HELLO)
    assert caught.value.code == "unreachable"
    assert "503" in str(caught.value)
    assert server.requests == [HELLO] * 3


def test_retry_after_is_respected_within_reason():
    busy = http_reply(b"", "503 X", JSON, extra="Retry-After: 1\r\n")
    with Hostile(answering(busy, http_reply(DONE))) as server, transport(server.url) as send:
        began = time.monotonic()
        assert send(ASK) == DONE
        assert 0.9 < time.monotonic() - began < 3
    assert len(server.requests) == 2


@pytest.mark.parametrize("after", ["86400", "Wed, 21 Oct 2099 07:28:00 GMT", "-5", "9" * 400, "\u0661"])
def test_retry_after_cannot_keep_us_beyond_our_own_deadline(after):
    busy = http_reply(b"", "503 X", JSON, extra=f"Retry-After: {after}\r\n")
    with Hostile(answering(busy)) as server, transport(server.url) as send:
        began = time.monotonic()
        with pytest.raises(VerificationError):
            send.within(ASK, 0.6)
        assert 0.6 <= time.monotonic() - began < 3
    assert server.requests


def test_without_retries_one_exchange_decides():
    stamina.set_active(False)
    try:
        with Hostile(answering(BUSY)) as server, transport(server.url) as send, pytest.raises(VerificationError):
            send(ASK)
        assert len(server.requests) == 1
    finally:
        stamina.set_active(True)


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:80",
        "ftp://a/",
        "file:///etc/passwd",
        "http://",
        "http://user@host/",
        "http://h/?a=1",
        "http://h/#x",
        "http://\x00/",
        "http://h:99999/",
        "http://h:0/",
        "unix:///socket",
        "http://[::1",
    ],
)
def test_only_plain_addresses_of_the_web_are_taken(url):
    with pytest.raises(UsageError) as caught:
        HttpTransport(url)
    assert caught.value.code == "address"


def test_a_name_that_cannot_be_a_host_is_the_callers_mistake():
    with transport(f"http://{'x' * 70}.example") as send, pytest.raises((UsageError, IncompleteError)) as caught:
        send(HELLO)
    assert caught.value.code in {"address", "unreachable"}


def test_proxies_of_the_environment_are_not_used_for_plain_http(monkeypatch):
    with Hostile(answering(http_reply(WELCOME))) as server, Hostile(answering(http_reply(DONE))) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with transport(server.url) as send:
            assert send(HELLO) == WELCOME
    assert proxy.connections == 0


def test_proxies_of_the_environment_are_used_for_https(monkeypatch):
    with Hostile(answering(http_reply(b"", "403 Forbidden", "text/plain"))) as proxy:
        for name in ("HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        with transport("https://prover.invalid") as send, pytest.raises(IncompleteError):
            send(HELLO)
    assert proxy.connections >= 1


def test_cookies_are_not_kept():
    with Hostile(answering(http_reply(DONE, extra="Set-Cookie: a=b\r\n"))) as server, transport(server.url) as send:
        send(ASK)
        send(ASK)
    assert len(server.heads) == 2
    assert b"cookie" not in server.heads[1]


def test_threads_take_turns_on_one_connection():
    with Hostile(answering(http_reply(DONE))) as server, transport(server.url) as send:
        found: list[bytes] = []
        threads = [threading.Thread(target=lambda: found.append(send(ASK))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert found == [DONE] * 8
    assert server.connections == 1


# -- heads ------------------------------------------------------------------------------------------------------------


def test_the_head_is_fetched_as_text():
    note = http_reply(b"a head\n", kind="text/plain; charset=utf-8")
    with Hostile(answering(note)) as server, transport(server.url) as send:
        assert send.head() == b"a head\n"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (http_reply(bytes(1 << 20), kind="text/plain"), "too-large"),
        (http_reply(b"<html>", kind="text/html"), "not-a-prover"),
        (http_reply(b"a head\n"), "not-a-prover"),
        (http_reply(b"a head\n", "404 Not Found", "text/plain"), "not-a-prover"),
    ],
)
def test_a_head_that_is_none_accuses_nobody(reply, code):
    kind = ProtocolError if code == "too-large" else IncompleteError
    with Hostile(answering(reply)) as server, transport(server.url) as send, pytest.raises(kind) as caught:
        send.head()
    assert caught.value.code == code


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> Path:
    """A certificate for 127.0.0.1 that nobody has signed but itself, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "prover")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "prover.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + secret)
    return path


def over_tls(certificate: Path, script):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def wrapped(server, connection):
        with context.wrap_socket(connection, server_side=True) as secured:
            script(server, secured)

    return wrapped


def test_a_certificate_that_nobody_signed_is_refused(certificate):
    with Hostile(over_tls(certificate, answering(http_reply(WELCOME)))) as server:
        url = server.url.replace("http:", "https:")
        with transport(url, hello_tries=2) as send, pytest.raises(IncompleteError) as caught:
            send(HELLO)
    assert caught.value.code == "unreachable"
    assert "CERTIFICATE_VERIFY_FAILED" in str(caught.value)
    assert server.requests == []


def test_over_tls_answers_pass_and_drips_are_cut_at_the_deadline(certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    def script(server, connection):
        while b"hello" in server.read_request(connection):
            connection.sendall(http_reply(WELCOME))
        until = time.monotonic() + 8
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        while not server.stopped.wait(0.05) and time.monotonic() < until:
            connection.sendall(b"X-Drip: 1\r\n")

    with Hostile(over_tls(certificate, script)) as server, transport(server.url.replace("http:", "https:")) as send:
        assert send(HELLO) == WELCOME
        began = time.monotonic()
        with pytest.raises(VerificationError) as caught:
            send.within(ASK, 1.0)
        assert caught.value.code == "unanswered"
        assert 1.0 <= time.monotonic() - began < 4.0
