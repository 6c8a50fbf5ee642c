"""Runs that commit only every k-th state: a challenge replays a segment between two committed states."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from protocol.certificate import open_certificate
from protocol.checks import LogAudit
from protocol.errors import VerificationError
from protocol.messages import Policy
from protocol.session import segment
from witness import record
from witness.holding import audit_run, hold_to_run
from witness.keys import generate
from witness.programs.mlp import MLP, MLPConfig
from witness.prover import RunArchive, local_transport
from witness.rundir import RunDir
from witness.verifier import Options, Verification


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("segments") / "run"
    with record(
        folder, MLP(MLPConfig(steps=10, hidden=32)), steps=10, batch_size=16, commit_every=4, checkpoint_every=4
    ) as run:
        for batch in run:
            run.step(batch)
    return folder


def test_roots_stand_where_promised(run: Path) -> None:
    audit = audit_run(run)
    assert audit.checkpoints == [4, 8, 10]
    for step in range(1, 11):
        if step in (4, 8, 10):
            assert len(audit.state_root(step)) == 32
        else:
            with pytest.raises(VerificationError, match="no state root"):
                audit.state_root(step)


def test_segments_cover_every_step(run: Path) -> None:
    manifest = audit_run(run).manifest
    assert [segment(manifest, step) for step in range(11)] == [(0, 0), *[(0, 4)] * 4, *[(4, 8)] * 4, *[(8, 10)] * 2]


def test_a_run_of_segments_verifies(run: Path) -> None:
    with RunArchive(RunDir.open(run), block=True) as archive:
        transport = local_transport(archive, secrets.token_bytes(16))
        policy = Policy("0.9", "0.2", draws=5)
        certificate = Verification(transport, policy, generate("v"), secrets.token_bytes(32), Options(held=True)).run()
    evidence = open_certificate(certificate)
    assert evidence.verdict == "reproduced", evidence.predicate.notes
    assert evidence.draws == 5


def test_an_audit_without_its_corpus_does_not_finish(run: Path) -> None:
    audit = LogAudit()
    with RunDir.open(run).log() as log:
        for entry in log.entries():
            audit.read(entry)
    from protocol.notes import parse_checkpoint, parse_note

    head = parse_checkpoint(parse_note(RunDir.open(run).latest_head()).text.encode())
    with pytest.raises(VerificationError, match="without its corpus"):
        audit.finish(head)


@pytest.mark.parametrize("steps", [0, 6])
def test_a_run_that_stopped_between_committed_states_is_held_to_its_certificate(steps: int, tmp_path: Path) -> None:
    """No root is committed there: the certificate says so with zeros, and the log must not be asked for one."""
    with record(
        tmp_path / "run", MLP(MLPConfig(steps=10, hidden=32)), steps=10, batch_size=16, commit_every=4
    ) as recording:
        for batch in recording:
            if recording.step_number == steps:
                break
            recording.step(batch)
    with RunArchive(RunDir.open(tmp_path / "run"), block=True) as archive:
        transport = local_transport(archive, secrets.token_bytes(16))
        policy = Policy("0.9", "0.2", draws=2)
        certificate = Verification(transport, policy, generate("v"), secrets.token_bytes(32), Options(held=True)).run()
    evidence = open_certificate(certificate)
    assert evidence.verdict == ("reproduced" if steps else "incomplete"), evidence.predicate.notes
    assert (evidence.predicate.steps, evidence.predicate.final_state_root) == (steps, "00" * 32)
    hold_to_run(evidence, tmp_path / "run")
