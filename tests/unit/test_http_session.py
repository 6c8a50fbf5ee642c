"""Whole sessions over HTTP, many at a time, and the server as a process."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from http_support import POLICY, ask_head, open_session, post, serving
from memory_run import KEY, SOURCE, MemoryRun

from protocol import messages as m
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.proving import ProverSession
from protocol.verifying import VerifierSession
from witness.http.client import HttpTransport, ask

TESTS = Path(__file__).resolve().parents[1]


def converse(run: MemoryRun, transport: Callable[[bytes], bytes], progress: list[tuple[int, int]]) -> VerifierSession:
    """A verifier's whole session, with every opening it may ask for."""

    def until_complete(request: Callable[[], bytes], take: Callable[[bytes], bool]) -> None:
        while not put(request(), take):
            pass

    def put(frame: bytes, take: Callable[[bytes], object]) -> object:
        deadline = time.monotonic() + 20
        return ask(transport, frame, take, deadline=deadline, progress=lambda *step: progress.append(step))

    session = VerifierSession(POLICY, secrets.token_bytes(32))
    put(session.hello(), session.welcome)
    manifest = put(session.log_request(), session.take_manifest)
    until_complete(session.heads_request, session.take_heads)
    until_complete(session.leaves_request, session.take_leaves)
    session.begin(manifest)
    until_complete(session.log_request, session.take_log)
    assert put(session.source_request("invented.py"), lambda reply: session.take_source("invented.py", reply)) == SOURCE
    drawn = put(session.reveal_request(2), session.revealed)
    for step in sorted({challenge.step for challenge in drawn}):
        opening = session.opening(step)
        until_complete(opening.table_request, opening.take_table)
        state, complete = b"", False
        while not complete:
            pieces, complete = put(opening.pieces_request(), opening.take_pieces)
            state += b"".join(data for _, data in pieces)
        assert state == run.states[step]
        if step:
            records = session.records(step)
            until_complete(records.request, records.take)
    put(session.close_request(), lambda reply: m.unpack_reply(reply, m.Done))
    return session


def test_a_whole_session_over_http_opens_what_was_committed():
    run, progress = MemoryRun(steps=6, state_bytes=100_000, pending=1), []
    with (
        serving(lambda session: ProverSession(run, session, KEY), head=lambda: run.head) as port,
        HttpTransport(f"http://127.0.0.1:{port}") as transport,
    ):
        session = converse(run, transport, progress)
        assert transport.head() == session.head_note.encode()
        assert len(session.challenges) >= 3
        assert progress
        with pytest.raises(VerificationError) as caught:  # the session is closed
            ask(transport, session.heads_request(), session.take_heads, deadline=time.monotonic() + 5)
        assert caught.value.code == "refused"


def test_a_lost_reply_to_reveal_is_recovered_by_asking_again():
    """A proxy between the two cuts the connection after the prover has taken the Reveal."""
    run, cut = MemoryRun(), []

    class Forgetful(ProverSession):
        def handle(self, data: bytes) -> bytes:
            reply = super().handle(data)
            if isinstance(m.unpack_request(data), m.Reveal) and not cut:
                cut.append(reply)
                raise OSError("the reply is lost")
            return reply

    with (
        serving(lambda session: Forgetful(run, session, KEY)) as port,
        HttpTransport(f"http://127.0.0.1:{port}") as transport,
    ):
        again: list[bytes] = []

        def send(frame: bytes) -> bytes:
            try:
                return transport(frame)
            except ProtocolError as error:  # the server's 500 stands for the lost reply
                assert (error.code, cut != []) == ("http-reply", True)
                again.append(frame)
                return transport(frame)

        assert converse(run, send, []).challenges
    assert len(again) == len(cut) == 1
    assert len(run.expected) == 1


def test_sixty_sessions_at_once_are_all_answered():
    run = MemoryRun(steps=4, state_bytes=20_000)
    limits = {"opened_per_minute": 1000, "sessions_per_address": 60, "exchanges": 4, "workers": 2, "connections": 100}
    with serving(lambda session: ProverSession(run, session, KEY), **limits) as port:

        def one(_: int) -> str:
            with HttpTransport(f"http://127.0.0.1:{port}", pause_seconds=0.05) as transport:
                return converse(run, transport, []).id

        with ThreadPoolExecutor(60) as pool:
            ids = list(pool.map(one, range(60)))
    assert len(set(ids)) == 60


# -- the server as a process -----------------------------------------------------------------------------------------

SERVER = """
import sys, time
from http_support import StubSession
from protocol import messages as m
from witness.http.server import ServerLimits, make_app, serve

size, delay = int(sys.argv[1]), float(sys.argv[2])

def answer(frame):
    print("working\\n", end="", flush=True)
    time.sleep(delay)
    return m.pack(m.Part(0, 1), bytes(size))

many = {"opened_per_minute": 1000, "sessions_per_address": 100, "exchanges": 8}
limits = ServerLimits(**many, shutdown_seconds=5, queue_seconds=30, write_seconds=20)
app = make_app(lambda s: StubSession(s, answer), dict, bytes, limits=limits)
serve(app, "127.0.0.1", 0, ready=lambda port: print(port, flush=True))
print("over", flush=True)
"""


@contextmanager
def process(size: int = 0, delay: float = 0.0):
    """A server process: the process and its port."""
    command = [sys.executable, "-c", SERVER, str(size), str(delay)]
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    try:
        yield child, int(child.stdout.readline())
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate(timeout=10)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_running_request_end_and_then_ends_the_server_quietly(number):
    with process(size=1000, delay=1.0) as (child, port):
        session, found = open_session(port), []
        request = threading.Thread(
            target=lambda: found.append(post(port, f"/v1/sessions/{session}", ask_head(session)))
        )
        request.start()
        assert child.stdout.readline() == "working\n"
        child.send_signal(number)
        request.join(10)
        output, errors = child.communicate(timeout=10)
        assert found[0][0] == 200
        assert len(found[0][2]) > 1000
        assert (child.returncode, output, errors) == (0, "over\n", "")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 2)


def test_idle_and_half_sent_connections_do_not_hold_up_the_end():
    with (
        process() as (child, port),
        socket.create_connection(("127.0.0.1", port)),
        socket.create_connection(("127.0.0.1", port)) as half,
    ):
        half.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Le")
        time.sleep(0.2)
        began = time.monotonic()
        child.send_signal(signal.SIGTERM)
        child.wait(10)
        assert time.monotonic() - began < 5
        assert child.returncode == 0


def peak_memory(child: subprocess.Popen) -> int:
    """Peak resident bytes of a process."""
    text = Path(f"/proc/{child.pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("VmHWM"))


def test_sixty_clients_that_do_not_read_their_replies_do_not_fill_the_memory():
    reply = m.PART
    with process(size=reply) as (child, port):
        sessions = [open_session(port) for _ in range(60)]
        before = peak_memory(child)
        idle = []
        for session in sessions:
            connection = socket.socket()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", port))
            frame = ask_head(session)
            head = f"POST /v1/sessions/{session} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(frame)}\r\n\r\n"
            connection.sendall(head.encode() + frame)
            idle.append(connection)
        for _ in range(8):
            assert child.stdout.readline() == "working\n"
        time.sleep(1)
        grown = peak_memory(child) - before
        for connection in idle:
            connection.close()
        # 8 exchanges with a reply each, its copy while it is packed, and slack; 60 replies would be 480 MiB.
        assert reply < grown < 24 * reply
        session = open_session(port)
        assert len(post(port, f"/v1/sessions/{session}", ask_head(session), 30)[2]) > reply


# -- imports ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("witness.http.client", {"torch", "starlette", "uvicorn"}),
        ("witness.http.server", {"torch", "httpx2"}),
        ("witness.asking", {"torch", "starlette", "uvicorn", "httpx2", "stamina"}),
    ],
)
def test_imports_are_no_wider_than_needed(module, forbidden):
    code = f"import sys, {module}; print(*sorted(set({sorted(forbidden)!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize(
    ("module", "missing"),
    [
        ("witness.http.client", "httpx2"),
        ("witness.http.client", "stamina"),
        ("witness.http.server", "starlette"),
        ("witness.http.server", "uvicorn"),
    ],
)
def test_a_missing_extra_is_named_with_the_way_to_install_it(monkeypatch, module, missing):
    import importlib

    for name in [n for n in sys.modules if n.startswith("witness.http.") or n.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(UsageError) as caught:
        importlib.import_module(module)
    assert caught.value.code == "extra-missing"
    assert missing in str(caught.value)
    assert "pip install 'training-witness[http]'" in str(caught.value)
