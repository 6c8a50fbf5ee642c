"""Peers that send a gigabyte, garbage, nothing, or the truth but for one bit."""

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from e2e import programs, recording
from e2e.command import serve, start, witness
from e2e.lab import Lab
from e2e.verifying import Transport, verify
from http_support import Hostile, answering, http_reply

from protocol import messages as m
from protocol.errors import CODES, WitnessError

pytestmark = pytest.mark.usefixtures("warm")
FRAME = "application/octet-stream"
GIGABYTE = 1 << 30
SENT_AT_MOST = 64 << 20


# -- what answers is no prover -------------------------------------------------------------------


class Flood:
    """Sends a gigabyte, and counts what was taken."""

    def __init__(self, kind: str) -> None:
        self.kind, self.sent = kind, 0

    def __call__(self, server: Hostile, connection: socket.socket) -> None:
        server.read_request(connection)
        connection.sendall(http_reply(b"", kind=self.kind, length=GIGABYTE))
        block = bytes(1 << 20)
        while self.sent < GIGABYTE:
            connection.sendall(block)
            self.sent += len(block)


def garbage(server: Hostile, connection: socket.socket) -> None:
    connection.sendall(b"\0\xff" * 5000)


def silent(server: Hostile, connection: socket.socket) -> None:
    server.read_request(connection)
    server.stopped.wait(60)


def closing(server: Hostile, connection: socket.socket) -> None:
    server.read_request(connection)


@pytest.mark.parametrize(
    ("script", "codes"),
    [
        pytest.param(garbage, {"unreachable", "not-a-prover"}, id="garbage"),
        pytest.param(answering(http_reply(b"<html>", kind="text/html")), {"not-a-prover"}, id="a page"),
        pytest.param(answering(http_reply(b"\xff" * 3000)), {"frame"}, id="a garbled frame"),
        pytest.param(answering(http_reply(m.pack(m.Done()))), {"frame"}, id="another reply"),
        pytest.param(
            answering(http_reply(b"", "302 Found", extra="Location: http://0/\r\n")), {"not-a-prover"}, id="moved"
        ),
        pytest.param(closing, {"unreachable"}, id="a closed connection"),
        pytest.param(silent, {"unreachable"}, id="nothing"),
    ],
)
def test_what_answers_is_no_prover(
    script: Callable[[Hostile, socket.socket], None], codes: set[str], tmp_path: Path
) -> None:
    with Hostile(script) as server:
        ended = witness(
            *("verify", server.url, "--answer-seconds", 2, "--out", tmp_path / "cert", "--json"), seconds=20
        )
    status, code = ended.told()
    assert code in codes
    assert status == CODES[code].exit_status != 0
    assert ended.out == ""
    assert not (tmp_path / "cert").exists()


@pytest.mark.parametrize("kind", [FRAME, "text/html"])
def test_a_gigabyte_is_not_read(kind: str) -> None:
    flood = Flood(kind)
    with Hostile(flood) as server:
        status, code = witness("verify", server.url, "--answer-seconds", 5, "--json", seconds=20).told()
    assert code in ("too-large", "not-a-prover")
    assert status in (1, 2)
    assert flood.sent < SENT_AT_MOST


def test_an_address_where_nobody_is(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    ended = witness("verify", f"http://127.0.0.1:{port}", "--answer-seconds", 2, "--json", seconds=20)
    assert ended.told() == (2, "unreachable")


# -- the truth but for one bit -------------------------------------------------------------------


class Flipping:
    """A transport that flips one bit in the reply to each request of a kind.

    Args:
        transport: an honest prover.
        kind: of the requests; empty for none.
        place: which byte of the reply; a part of its length.

    Attributes:
        kinds: of all requests that were made.
    """

    def __init__(self, transport: Transport, kind: str = "", place: float = 0.0) -> None:
        self._transport, self._kind, self._place = transport, kind, place
        self.kinds: list[str] = []

    def __call__(self, frame: bytes) -> bytes:
        reply = bytearray(self._transport(frame))
        kind = type(m.unpack_request(frame)).__name__
        if kind == "GetLog" and "GetLog" not in " ".join(self.kinds):
            kind = "GetLog for the manifest"
        self.kinds.append(kind)
        used = len(reply)
        if kind == "GetLog for the manifest":  # only the first entry is taken from that reply
            entries = 4 + int.from_bytes(reply[:4], "big")
            used = entries + 4 + int.from_bytes(reply[entries : entries + 4], "big")
        if kind == self._kind:
            reply[int(self._place * (used - 1))] ^= 0x04
        return bytes(reply)


@pytest.fixture(scope="module")
def honest(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a reference program."""
    folder = tmp_path_factory.mktemp("honest") / "run"
    lab.run(recording.run_to_end, folder, kind="mlp", checkpoint_every=1)
    return folder


def asked(run: Path, trust: str = "") -> list[str]:
    """The kinds of requests of an undisturbed session, in order."""
    seen: list[Flipping] = []

    def wrap(transport: Transport) -> Transport:
        seen.append(Flipping(transport))
        return seen[0]

    assert verify(run, trust=trust, wrap=wrap).verdict == "reproduced"
    return list(dict.fromkeys(seen[0].kinds))


def flip(run: Path, kind: str, place: float, trust: str = "") -> None:
    """A session with one bit wrong in every answer of a kind; it ends as diverged, or with an error that says so."""
    try:
        outcome = verify(run, trust=trust, wrap=lambda t: Flipping(t, kind, place), answer_seconds=1)
    except WitnessError as error:
        assert error.exit_status == 1, (kind, place, error)
        return
    assert outcome.verdict == "diverged", (kind, place, outcome.found)
    assert set(outcome.codes) <= CODES.keys()


def test_a_session_asks_every_kind_of_question(honest: Path) -> None:
    assert {
        *("Hello", "GetLog for the manifest", "GetHeads", "GetLeaves", "GetLog", "Reveal"),
        *("OpenState", "ReadPieces", "OpenRecords"),
    } <= set(asked(honest))


@pytest.mark.parametrize("place", [0.0, 0.3, 0.97, 1.0])
def test_no_flipped_bit_is_a_pass(place: float, honest: Path) -> None:
    for kind in asked(honest):
        if kind != "Close":  # all was said before it
            flip(honest, kind, place)


def test_no_flipped_bit_of_a_source_is_a_pass(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source")
    digest = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run").value["digest"]
    assert "GetSource" in asked(tmp_path / "run", digest)
    for place in (0.0, 0.3, 1.0):
        flip(tmp_path / "run", "GetSource", place, digest)


# -- who asks is no verifier ---------------------------------------------------------------------


@pytest.fixture
def hammered(lab: Lab, tmp_path: Path) -> Iterator[str]:
    """A server at which strangers throw garbage, headers without end, bodies that are too long, and silence."""
    lab.run(recording.run_to_end, tmp_path / "run", kind="gpt", steps=6, checkpoint_every=6)
    over = threading.Event()

    def garbage(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"\x16\x03\x01\xff" * 500)
            connection.recv(100)

    def long_header(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"GET /v1/head HTTP/1.1\r\nX: " + b"x" * (1 << 20))
            connection.recv(100)

    def long_body(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("POST", "/v1/sessions", bytes(m.MAX_REQUEST + 1), {"Content-Type": FRAME})
        assert connection.getresponse().status == 413
        connection.close()

    def wrong_frame(port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("POST", "/v1/sessions/" + "0" * 32, b"\xff" * 100, {"Content-Type": FRAME})
        assert connection.getresponse().status in (400, 404)
        connection.close()

    def slow(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            for byte in b"POST /v1/sessions HTTP/1.1\r\nContent-Length: 99\r\n" * 5:
                connection.sendall(bytes([byte]))
                if over.wait(0.2):
                    return

    def again(act: Callable[[int], None], port: int) -> None:
        while not over.wait(0.02):
            with suppress(OSError, http.client.HTTPException):
                act(port)

    with serve(tmp_path / "run") as url:
        port = int(url.rpartition(":")[2])
        threads = [
            threading.Thread(target=again, args=(act, port), daemon=True)
            for act in (garbage, long_header, long_body, wrong_frame, slow, slow)
        ]
        for thread in threads:
            thread.start()
        yield url
        over.set()
        for thread in threads:
            thread.join(10)


def test_an_honest_session_goes_on_among_hostile_ones(hammered: str) -> None:
    with start("verify", hammered, "--rounds", 1, "--round-size", 3, "--json") as running:
        ended = running.wait(90)
    assert ended.status == 0, ended.err
    assert ended.json["verdict"] == "reproduced"
