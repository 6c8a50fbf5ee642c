"""A verifier that has little time, is stopped, or waits for a prover that never comes to an end."""

import socket
from pathlib import Path

import pytest
from e2e import recording
from e2e.command import start, witness
from e2e.lab import Lab
from e2e.verifying import Transport, verify
from http_support import Hostile, http_reply

from protocol import messages as m
from protocol.certificate import open_certificate
from witness import keys
from witness.asking import Clock
from witness.prover import RunArchive, serving_session
from witness.rundir import RunDir
from witness.verifier import Listener

pytestmark = pytest.mark.usefixtures("warm")
STEPS = 150


@pytest.fixture(scope="module")
def long(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of many steps, all of whose states are kept."""
    folder = tmp_path_factory.mktemp("long") / "run"
    lab.run(recording.run_to_end, folder, kind="mlp", steps=STEPS, checkpoint_every=1)
    return folder


# -- budget --------------------------------------------------------------------------------------


def test_what_the_budget_does_not_allow_is_not_drawn(long: Path, tmp_path: Path) -> None:
    """Fewer draws than the policy asks for are no pass, and count for what they are; later ones are added to them."""
    verify_it = ("verify", long, "--confidence", "0.9", "--bad-fraction", "0.2", "--json")
    none = witness(*verify_it, "--budget", "0s", "--out", tmp_path / "none", status=2).json
    assert none["verdict"] == "incomplete"
    assert none["draws"] == {"made": 0, "owed": 10, "counted": 0}
    assert none["detection"] == "0.000000"
    assert none["failed"] == []
    assert none["challenges"] >= 3, "the mandatory challenges are made all the same"
    all_of_them = witness(*verify_it, "--budget", "1h", "--out", tmp_path / "all", status=0).json
    assert all_of_them["draws"] == {"made": 10, "owed": 10, "counted": 10}
    assert witness("check", tmp_path / "none", "--json", status=2).json["sum"]["draws"] == [0]
    said = witness("check", tmp_path / "none", tmp_path / "all", "--json", status=0).json["sum"]
    assert (said["verdict"], said["sessions"], said["draws"]) == ("reproduced", 2, [0, 10])
    assert said["detection"] == all_of_them["detection"]


@pytest.mark.parametrize("budget", [0.0, 0.9, 600.0])
def test_the_budget_decides_how_much_is_drawn(budget: float, long: Path) -> None:
    outcome = verify(long, draws=12, budget=budget)
    made = outcome.evidence.predicate.draws
    assert outcome.found == []
    assert outcome.evidence.draws == made, "all that was drawn was replayed"
    assert outcome.verdict == ("reproduced" if made == 12 else "incomplete")
    assert made == {0.0: 0, 600.0: 12}.get(budget, made)


def test_a_clock_that_stands_still_or_runs_changes_no_verdict(long: Path) -> None:
    class Jumping:
        """Each look at it is an hour later."""

        now = 0.0

        def __call__(self) -> float:
            self.now += 3600.0
            return self.now

    for now in (lambda: 0.0, Jumping()):
        outcome = verify(long, draws=1, clock=Clock(now, lambda _: None))
        assert outcome.verdict == "reproduced", outcome.found


# -- stopped -------------------------------------------------------------------------------------


def test_a_stopped_verifier_leaves_a_certificate_that_counts_for_nothing(long: Path, tmp_path: Path) -> None:
    cert = tmp_path / "cert"
    with start("verify", long, "--rounds", 1, "--round-size", STEPS, "--out", cert) as running:
        running.until(lambda: "replaying the random draws" in running.err)
        running.interrupt()
        ended = running.wait(20)
    assert ended.status == 2
    assert "INCOMPLETE" in ended.out
    evidence = open_certificate(cert.read_bytes())
    assert evidence.verdict == "incomplete"
    assert evidence.predicate.draws == STEPS
    assert evidence.draws == 0
    assert evidence.detection == 0
    assert 0 < len(evidence.predicate.challenges) < STEPS
    assert any("was stopped" in note for note in evidence.predicate.notes)
    said = witness("check", cert, "--run", long, "--json", status=2).json
    assert said["sum"]["draws"] == [0]
    whole = tmp_path / "whole"
    witness("verify", long, "--rounds", 1, "--round-size", 3, "--out", whole, status=0)
    said = witness("check", cert, whole, "--json", status=0).json["sum"]
    assert (said["verdict"], said["draws"]) == ("reproduced", [0, 3])


@pytest.mark.parametrize("stage", ["reading the corpus", "comparing this machine", "replaying the mandatory"])
def test_stopping_is_no_divergence_at_any_stage(stage: str, long: Path) -> None:
    class Stopping(Listener):
        """Ctrl-C, as this process feels it, when a stage begins."""

        def stage(self, text: str) -> None:
            if text.startswith(stage):
                raise KeyboardInterrupt

    outcome = verify(long, draws=3, listener=Stopping())
    assert outcome.verdict == "incomplete"
    assert outcome.evidence.draws == 0
    assert outcome.evidence.failures == ()


def test_a_server_ends_when_it_is_told_to(long: Path) -> None:
    with start("serve", long, "--port", 0, "--json") as running:
        running.until(lambda: running.out.endswith("\n"))
        running.interrupt()
        assert running.wait(15).status == 0


# -- a prover that stalls ------------------------------------------------------------------------


class Time:
    """Time that passes when somebody waits."""

    def __init__(self) -> None:
        self.seconds, self.waits = 0.0, 0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        self.waits += 1


@pytest.mark.parametrize("kind", [m.OpenState, m.ReadPieces, m.OpenRecords, m.GetLog])
def test_an_answer_that_never_comes_is_a_divergence(kind: type[m.Struct], long: Path) -> None:
    time = Time()

    def wrap(transport: Transport) -> Transport:
        def stall(frame: bytes) -> bytes:
            seen.append(type(m.unpack_request(frame)))
            manifest = seen[-1] is m.GetLog and seen.count(m.GetLog) == 1  # without it there is no run to speak of
            return m.pack(m.Pending(1, 10)) if seen[-1] is kind and not manifest else transport(frame)

        return stall

    seen: list[type] = []
    outcome = verify(long, draws=2, wrap=wrap, answer_seconds=30, clock=Clock(time.now, time.sleep))
    assert outcome.verdict == "diverged"
    _, result = outcome.found[0]
    assert result.code == "unanswered"
    assert float(str(result.evidence["seconds"])) == 30
    assert (result.evidence["rebuilt"], result.evidence["owed"]) == (1, 10)
    assert 5 < time.waits < 20, "it neither gives up at once nor asks all the time"


def test_an_answer_that_takes_its_time_is_waited_for(long: Path) -> None:
    time, left = Time(), {}

    def wrap(transport: Transport) -> Transport:
        def slow(frame: bytes) -> bytes:
            if isinstance(m.unpack_request(frame), m.OpenState):
                left[frame] = left.get(frame, 4) - 1
                if left[frame] > 0:
                    return m.pack(m.Pending(4 - left[frame], 4))
            return transport(frame)

        return slow

    outcome = verify(long, draws=2, wrap=wrap, answer_seconds=30, clock=Clock(time.now, time.sleep))
    assert outcome.verdict == "reproduced", outcome.found
    assert time.waits > 5


def test_a_server_that_falls_silent_once_it_is_bound_has_diverged(long: Path, tmp_path: Path) -> None:
    """Over HTTP, in real time: it answers until the nonce is revealed, and then nothing any more."""
    with RunArchive(RunDir.open(long)) as archive:
        session = serving_session(archive, bytes(range(16)), keys.read_key(long / "key"))

        def falling_silent(server: Hostile, connection: socket.socket) -> None:
            while True:
                frame = server.read_request(connection)
                if isinstance(m.unpack_request(frame), m.Reveal):
                    server.stopped.wait(60)
                    return
                connection.sendall(http_reply(session.handle(frame)))

        with Hostile(falling_silent) as server:
            ended = witness(
                *("verify", server.url, "--answer-seconds", 1, "--rounds", 1, "--out", tmp_path / "cert", "--json"),
                status=1,
                seconds=60,
            )
    assert ended.json["verdict"] == "diverged"
    assert {row["code"] for row in ended.json["failed"]} == {"unanswered"}
    assert ended.json["draws"] == {"made": 8, "owed": 8, "counted": 8}
    assert witness("check", tmp_path / "cert", "--json", status=1).json["sum"]["verdict"] == "diverged"
