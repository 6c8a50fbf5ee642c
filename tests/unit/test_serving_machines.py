"""Serving a run, or verifying one's own folder, on a machine that cannot give its bits: nobody is accused for it."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.verifying import warm_sandboxes

from protocol import messages as m
from protocol.certificate import open_certificate
from protocol.comparison import Comparison, Difference
from protocol.errors import IncompleteError
from protocol.messages import Policy
from protocol.proving import ProverSession
from protocol.randomness import commit_nonce
from witness import record
from witness.keys import generate
from witness.programs.mlp import MLP, MLPConfig
from witness.prover import RunArchive, local_transport
from witness.replay import ReplayedState, ReplayedStep, Replayer
from witness.rundir import RunDir
from witness.serving import Serving
from witness.verifier import Options, Verification

NONCE = bytes(range(32))
OUTSIDE = Comparison(0, outside=(Difference("build.torch", "2.12.0", "2.13.0", "outside"),))


@pytest.fixture(scope="module", autouse=True)
def warm() -> Iterator[None]:
    """One sandbox for all."""
    with warm_sandboxes():
        yield


def recorded(folder: Path, every: int) -> Path:
    with record(folder, MLP(MLPConfig(steps=6, hidden=8)), steps=6, batch_size=8, checkpoint_every=every) as run:
        for batch in run:
            run.step(batch)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Only every third state is kept."""
    return recorded(tmp_path_factory.mktemp("machines") / "run", 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All states are kept."""
    return recorded(tmp_path_factory.mktemp("machines") / "whole", 1)


@pytest.fixture
def other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine differs in a line that decides bits."""

    def differing(_: Replayer) -> Comparison:
        raise IncompleteError("profile-differs", "device.cpu.capability: recorded AVX512, here AVX2")

    monkeypatch.setattr(Replayer, "compare", differing)


@pytest.fixture
def other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replays give another state than the recorded one."""
    steps = Replayer.steps

    def altered(self: Replayer, *given: Any, **named: Any) -> list[ReplayedStep]:
        made = steps(self, *given, **named)
        for one in made:
            if one.state is not None:
                data = dict(one.state.buffers)
                name = next(name for name in data if "weight" in name)
                data[name] = bytes(len(data[name]))
                object.__setattr__(one, "state", ReplayedState(one.state.table, one.state.entries, data))
        return made

    monkeypatch.setattr(Replayer, "steps", altered)


# -- serving ---------------------------------------------------------------------------------------


def test_a_machine_that_cannot_rebuild_says_so_before_anybody_asks(run: Path, other_machine: None) -> None:
    """It served, and its honest trainer was found to refuse."""
    with pytest.raises(IncompleteError) as found:
        Serving(RunDir.open(run), None)
    assert found.value.code == "profile-differs" and "AVX512" in str(found.value)
    assert "serve the run where it was recorded" in found.value.next_action


def test_a_machine_that_need_not_rebuild_serves(whole: Path, other_machine: None) -> None:
    with Serving(RunDir.open(whole), None) as serving:
        assert serving.warnings == []


def test_a_state_that_is_lost_needs_the_machine_too(whole: Path, tmp_path: Path, other_machine: None) -> None:
    shutil.copytree(whole, tmp_path / "run")
    RunDir(tmp_path / "run").checkpoint_path(4).unlink()
    with pytest.raises(IncompleteError):
        Serving(RunDir.open(tmp_path / "run"), None)


def test_the_recording_machine_serves_and_rebuilds(run: Path) -> None:
    with Serving(RunDir.open(run), None) as serving:
        assert serving.warnings == []
        assert serving.archive.rebuilds()


def test_what_no_arithmetic_defines_is_a_warning(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replayer, "compare", lambda _: OUTSIDE)
    with Serving(RunDir.open(run), None) as serving:
        assert len(serving.warnings) == 1 and "build.torch" in serving.warnings[0]


def refusals(run: Path) -> set[str]:
    """What a prover's end answers when it is asked for states that were not kept."""
    with RunArchive(RunDir.open(run)) as archive:
        session = ProverSession(archive, bytes(16), None)
        session.handle(m.pack(m.Hello(Policy("0.9", "0.5"), commit_nonce(NONCE).hex())))
        session.handle(m.pack(m.Reveal("00" * 16, NONCE.hex(), 6)))
        found = set()
        for step in (1, 4):
            while isinstance(
                reply := m.unpack_reply(session.handle(m.pack(m.OpenState("00" * 16, step, 0))), m.Part)[0], m.Pending
            ):
                time.sleep(0.05)
            found.add(reply.code if isinstance(reply, m.Refusal) else "")
        return found


def test_a_prover_that_cannot_rebuild_names_its_machine(run: Path, other_machine: None) -> None:
    assert refusals(run) == {"profile-differs"}


def test_a_prover_that_rebuilds_other_bits_names_what_differs(
    run: Path, other_bits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusals(run) == {"rebuild-diverged"}
    monkeypatch.setattr(Replayer, "compare", lambda _: OUTSIDE)
    assert refusals(run) == {"outside-differs"}


# -- a folder in the verifier's hands --------------------------------------------------------------


def verified(run: Path) -> tuple[str, set[str]]:
    """Verdict, and codes of the challenges that did not reproduce."""
    with RunArchive(RunDir.open(run), block=True) as archive:
        certificate = Verification(
            local_transport(archive, bytes(16)),
            Policy("0.9", "0.2", draws=1, outliers=0),
            generate("v"),
            NONCE,
            Options(held=True, keep_going=True),
        ).run()
    evidence = open_certificate(certificate)
    results = [one.result for one in evidence.predicate.challenges]
    return evidence.verdict, {result.code for result in results if result.outcome != "reproduced"}


def test_ones_own_machine_that_rebuilds_other_bits_accuses_nobody(
    run: Path, other_bits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict, codes = verified(run)
    assert verdict == "diverged" and "refused" in codes
    compare = Replayer.compare
    monkeypatch.setattr(Replayer, "compare", lambda self: compare(self) and OUTSIDE)
    verdict, codes = verified(run)
    assert verdict == "incomplete" and codes == {"outside-differs"}


@pytest.mark.parametrize("code", ["replay-stopped", "sandbox-unavailable"])
def test_ones_own_machine_that_cannot_rebuild_accuses_nobody(
    run: Path, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise IncompleteError(code, "no memory")

    monkeypatch.setattr(RunArchive, "_rebuild", failing)
    verdict, codes = verified(run)
    assert verdict == "incomplete" and codes == {code}


def test_a_strangers_machine_that_cannot_rebuild_refuses(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever says so on exactly the bad draws is never caught (attack A33)."""

    def failing(*_: Any) -> None:
        raise IncompleteError("replay-stopped", "no memory")

    monkeypatch.setattr(RunArchive, "_rebuild", failing)
    with RunArchive(RunDir.open(run)) as archive:
        key = RunDir.open(run).read_key()
        session = ProverSession(archive, bytes(16), key)

        def patient(frame: bytes) -> bytes:
            return session.handle(frame)

        policy = Policy("0.9", "0.2", draws=1, outliers=0)
        certificate = Verification(patient, policy, generate("v"), NONCE, Options()).run()
    evidence = open_certificate(certificate)
    assert evidence.verdict == "diverged"
    codes = {one.result.code for one in evidence.predicate.challenges if one.result.outcome == "diverged"}
    assert codes == {"refused"}
