"""Questions about the data over HTTP: proven answers without a session, within limits, and nothing but digests sent."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from http_support import Clock, Hostile, StubSession
from made_run import KEY, SPANS, made_run
from starlette.testclient import TestClient

from protocol.answering import check_answer
from protocol.encoding import encode
from protocol.errors import IncompleteError, ProtocolError
from protocol.ledger_claim import RAW
from witness.cli import group
from witness.http.keeper import RemoteKeeper
from witness.http.limits import AnswerRate
from witness.http.server import Listener, ServerLimits, make_app
from witness.query import Answerer
from witness.rundir import RunDir
from witness.serving import ANSWER_ROOM

TEXTS = [b"document %d says that %d is not %d. " % (i, i, i + 1) * 4 for i in range(24)]


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def answers_of(keeper: Answerer, room: int = ANSWER_ROOM) -> Callable[[str, Sequence[bytes]], bytes]:
    """What `witness.serving` gives a server."""
    return lambda tier, digests: keeper.digests([(tier, digest) for digest in digests], room=room).to_bytes()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return made_run(tmp_path_factory.mktemp("served") / "run", TEXTS)


@contextmanager
def answering(run: RunDir, room: int = ANSWER_ROOM, **limits: float) -> Iterator[str]:
    """A server of answers alone, on loopback."""
    import threading

    keeper = Answerer(run)
    manifest = keeper.manifest
    ready = threading.Event()
    app = make_app(
        StubSession,
        dict,
        lambda: keeper.head,
        ledgers=lambda: encode({"run": manifest.run_id.hex(), "ledgers": manifest.ledgers}),
        answer=answers_of(keeper, room),
        limits=ServerLimits(**limits),
    )
    listener = Listener(app, "127.0.0.1", 0, ready=lambda _: ready.set())
    thread = threading.Thread(target=listener.run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        listener.stop()
        thread.join(10)


def test_answers_over_http_are_those_of_the_folder(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for number in (1, 2, 99):
        (tmp_path / f"set/{number}").with_suffix(".txt").write_bytes(TEXTS[number] if number < 24 else b"clean")
    with answering(run) as url:
        shown = [
            CliRunner().invoke(group, ["query", target, "--all", str(tmp_path / "set"), "--json"])
            for target in (url, str(run.path))
        ]
    assert [found.exit_code for found in shown] == [0, 0], shown[0].exception
    remote, local = (json.loads(found.stdout) for found in shown)
    assert remote == local and remote["found"] == 2


def test_a_passage_is_asked_about_by_its_grams_alone(run: RunDir) -> None:
    with answering(run) as url, RemoteKeeper(url) as keeper:
        assert keeper.tiers == [claim.tier for claim in run.manifest().ledgers]
        for span, result in ((TEXTS[5][7:107], "possible"), (b"unknown text, " * 9, "absent")):
            answer = keeper.spans(SPANS, [span])
            reply = check_answer(answer.to_bytes(), keeper.head).replies[0]
            assert reply.result == result
            assert (5 in reply.candidates) == (result == "possible")


def test_only_digests_leave_and_none_is_written_to_the_log(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[str, list[bytes]]] = []
    keeper = Answerer(run)
    app = make_app(
        StubSession,
        dict,
        bytes,
        ledgers=lambda: b"{}",
        answer=lambda tier, digests: seen.append((tier, digests)) or answers_of(keeper)(tier, digests),
    )
    with caplog.at_level(logging.INFO, "witness.http"), TestClient(app) as client:
        reply = client.get(f"/v1/ledger/{RAW}/{sha(TEXTS[3]).hex()}")
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/json"
    assert seen == [(RAW, [sha(TEXTS[3])])]
    assert check_answer(reply.content, keeper.head).replies[0].result == "included"
    assert sha(TEXTS[3]).hex()[:8] not in caplog.text and "/v1/ledger/..." in caplog.text


@pytest.mark.parametrize(
    "path",
    ["t0-sha256/00", "t0-sha256/" + "G" * 64, "T0/" + "0" * 64, "x" * 81 + "/" + "0" * 64, "t9-none/" + "0" * 64],
)
def test_questions_that_are_none_get_a_short_refusal(run: RunDir, path: str) -> None:
    keeper = Answerer(run)
    app = make_app(StubSession, dict, bytes, ledgers=lambda: b"{}", answer=answers_of(keeper))
    with TestClient(app) as client:
        reply = client.get(f"/v1/ledger/{path}")
    assert reply.status_code in (400, 404) and len(reply.content) < 300
    assert str(run.path) not in reply.text


def test_a_server_without_a_run_has_no_such_address() -> None:
    with TestClient(make_app(StubSession, dict, bytes)) as client:
        assert client.get("/v1/ledger").status_code == 404


def test_an_address_that_asks_too_much_is_told_when_to_come_back(run: RunDir) -> None:
    keeper = Answerer(run)
    clock = Clock()
    limits = ServerLimits(answers_per_second=1.0, answers_at_once=2)
    app = make_app(
        StubSession,
        dict,
        bytes,
        ledgers=lambda: b"{}",
        answer=answers_of(keeper),
        limits=limits,
        clock=clock,
    )
    path = f"/v1/ledger/{RAW}/{'0' * 64}"
    with TestClient(app) as client:
        assert [client.get(path).status_code for _ in range(3)] == [200, 200, 429]
        assert int(client.get(path).headers["retry-after"]) >= 1
        clock.now += 1.0
        assert [client.get(path).status_code for _ in range(2)] == [200, 429]


def test_the_rate_remembers_two_numbers_an_address_and_not_every_address() -> None:
    from witness.http.limits import MAX_ADDRESSES

    clock = Clock()
    rate = AnswerRate(2.0, 3, clock)
    assert [rate.wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 100
    assert [rate.wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
    for number in range(MAX_ADDRESSES):
        rate.wait(f"b{number}")
    assert len(rate._left) == MAX_ADDRESSES and rate.wait("a") == 0


def hostile(body: bytes, kind: str = "application/json") -> Hostile:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"

    def script(server, connection) -> None:
        connection.recv(1 << 14)
        connection.sendall(head.encode() + body)
        connection.close()

    return Hostile(script)


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"ledgers":[],"run":"00"}', b"\xff"])
def test_a_server_that_lists_no_ledgers_is_refused(body: bytes) -> None:
    with hostile(body) as server, pytest.raises(ProtocolError):
        RemoteKeeper(server.url)


def test_one_request_asks_about_a_whole_set(run: RunDir, caplog: pytest.LogCaptureFixture) -> None:
    keeper = Answerer(run)
    asked = [sha(text) for text in TEXTS] + [sha(b"clean %d" % i) for i in range(30)]
    app = make_app(StubSession, dict, bytes, ledgers=lambda: b"{}", answer=answers_of(keeper))
    with caplog.at_level(logging.INFO, "witness.http"), TestClient(app) as client:
        reply = client.post(f"/v1/ledger/{RAW}", content=b"".join(asked))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    checked = check_answer(reply.content, keeper.head)
    assert [one.digest for one in checked.replies] == asked
    assert [one.result for one in checked.replies] == ["included"] * 24 + ["absent"] * 30
    alone = keeper.digests([(RAW, digest) for digest in asked])
    assert reply.content == alone.to_bytes()
    assert "/v1/ledger/..." in caplog.text and asked[0].hex()[:8] not in caplog.text


def test_an_answer_stops_where_it_would_grow_too_large(run: RunDir) -> None:
    keeper = Answerer(run)
    asked = [(RAW, sha(text)) for text in TEXTS]
    whole = keeper.digests(asked)
    sizes = []
    for room in (0, 1000, 5000, 10_000, 20_000, 40_000, 1 << 22):
        answer = keeper.digests(asked, room=room)
        count = len(answer.replies)
        assert answer.replies == whole.replies[:count]
        check_answer(answer.to_bytes(), keeper.head)
        parts = [encode(part) for part in (*answer.replies, *answer.records)]
        assert count == 1 or sum(map(len, parts)) <= room + max(map(len, parts))
        sizes.append(count)
    assert sizes == sorted(sizes) and sizes[0] == 1 and 1 < sizes[3] < 24 and sizes[-1] == 24
    weights = [found.weight for one in check_answer(answer.to_bytes(), keeper.head).replies for found in one.found]
    assert all(weight is not None and weight.shown == weight.steps for weight in weights)
    little = check_answer(keeper.digests(asked, room=0).to_bytes(), keeper.head).replies[0].found[0]
    assert little.uses and little.weight is not None and little.weight.shown == 0


@pytest.mark.parametrize("room", [0, 3000, 1 << 22])
def test_a_set_is_asked_about_until_every_document_is_answered(run: RunDir, room: int) -> None:
    """Documents that come twice, and in two tiers, are answered where they were asked."""
    tiers = [claim.tier for claim in run.manifest().ledgers if claim.tier != SPANS]
    names = [3, 99, 3, 5, 23, 0]
    asked = [(tier, sha(TEXTS[n] if n < 24 else b"clean")) for n in names for tier in tiers]
    with answering(run, room=room) as url, RemoteKeeper(url) as keeper:
        answer = keeper.digests(asked)
        checked = check_answer(answer.to_bytes(), keeper.head)
    assert [(one.tier, one.digest) for one in checked.replies] == asked
    raw = [one for one in checked.replies if one.tier == RAW]
    assert [one.found[0].leaf.index if one.found else None for one in raw] == [3, None, 3, 5, 23, 0]


@pytest.mark.parametrize(("size", "status"), [(0, 400), (31, 400), (33, 400), (32 * 2049, 413), (32 * 2048, 200)])
def test_a_request_about_many_is_digests_and_not_too_many(run: RunDir, size: int, status: int) -> None:
    app = make_app(StubSession, dict, bytes, ledgers=lambda: b"{}", answer=answers_of(Answerer(run)))
    with TestClient(app) as client:
        assert client.post(f"/v1/ledger/{RAW}", content=bytes(size)).status_code == status
        assert client.post("/v1/ledger/T0", content=bytes(32)).status_code == 404
        assert client.post("/v1/ledger/t9-none", content=bytes(32)).status_code == 400
        assert client.get(f"/v1/ledger/{RAW}").status_code == 405


def test_questions_in_one_request_count_each(run: RunDir) -> None:
    clock = Clock()
    app = make_app(
        StubSession,
        dict,
        bytes,
        ledgers=lambda: b"{}",
        answer=answers_of(Answerer(run)),
        limits=ServerLimits(questions_per_second=10.0, questions_at_once=100),
        clock=clock,
    )

    def status(digests: int) -> int:
        return client.post(f"/v1/ledger/{RAW}", content=bytes(32 * digests)).status_code

    with TestClient(app) as client:
        assert [status(60), status(40), status(1)] == [200, 200, 429]
        clock.now += 3.0
        assert [status(31), status(30), status(1)] == [429, 200, 429]
        clock.now += 9.0
        assert status(1000) == 429
        clock.now += 1.0
        assert [status(1000), status(1)] == [200, 429]  # more than it may ever ask at once: all that it has
        single = f"/v1/ledger/{RAW}/{'0' * 64}"
        assert client.get(single).status_code == 200  # of another purse


def test_a_server_that_answers_another_question_is_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Answerer(run)
    asked = [(RAW, sha(TEXTS[3])), (RAW, sha(TEXTS[9]))]
    others = [asked[::-1], asked[1:], [*asked, asked[0]], [(own.tiers[1], digest) for _, digest in asked]]
    with answering(run) as url, RemoteKeeper(url) as keeper:
        for other in others:
            told = own.digests(other).to_bytes()
            monkeypatch.setattr(keeper._transport, "answers", lambda *_, told=told: told)
            with pytest.raises(ProtocolError, match="another question"):
                keeper.digests(asked)
        span = own.spans(SPANS, [TEXTS[5][7:107]]).to_bytes()
        monkeypatch.setattr(keeper._transport, "answers", lambda *_: span)
        with pytest.raises(ProtocolError, match="another question"):
            keeper.digests(asked)


def test_a_head_that_moves_while_it_is_asked_is_followed(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", TEXTS, final=False)
    old = Answerer(run)
    with run.log() as log:
        from protocol.records import FaultEvent

        log.append(encode(FaultEvent(1, "x")))
        run.sign_head(log, run.manifest().origin, KEY)
    new = Answerer(run, books=old.books)
    turns = [old, new, new, new]
    with answering(run) as url, RemoteKeeper(url) as keeper:
        keeper._transport.answers = lambda tier, digests: answers_of(turns.pop(0), room=0)(tier, digests)  # type: ignore[method-assign]
        answer = keeper.digests([(RAW, sha(TEXTS[1])), (RAW, sha(TEXTS[2]))])
        assert keeper.head == new.head
        assert [r.found[0].leaf.index for r in check_answer(answer.to_bytes(), new.head).replies] == [1, 2]
        turns[:] = [old, new] * 9
        with pytest.raises(IncompleteError, match="moves on"):
            keeper.digests([(RAW, sha(TEXTS[1])), (RAW, sha(TEXTS[2]))])
