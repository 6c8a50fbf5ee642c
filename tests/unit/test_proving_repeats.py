"""A reply can be lost on its way. Then the verifier asks again, and the prover's end must answer as before."""

import pytest
from memory_run import KEY, MemoryRun

from protocol import messages as m
from protocol.proving import ProverSession
from protocol.randomness import commit_nonce

NONCE = bytes(range(32))
ID = "ab" * 16


@pytest.fixture
def bound() -> tuple[MemoryRun, ProverSession]:
    run = MemoryRun()
    session = ProverSession(run, bytes.fromhex(ID), KEY)
    welcome, _ = m.unpack_reply(
        session.handle(m.pack(m.Hello(m.Policy("0.9", "0.5"), commit_nonce(NONCE).hex()))), m.Welcome
    )
    assert welcome.session == ID
    return run, session


def refusal(reply: bytes) -> str | None:
    found, _ = m.unpack_reply(reply, m.Struct)
    return found.code if isinstance(found, m.Refusal) else None


def test_identical_reveal_is_answered_again_and_changes_nothing(bound):
    run, session = bound
    reveal = m.pack(m.Reveal(ID, NONCE.hex(), 2))
    first = session.handle(reveal)
    opened = session.handle(m.pack(m.OpenState(ID, 0, 0)))
    assert refusal(first) is None
    assert session.handle(reveal) == first
    assert session.handle(m.pack(m.OpenState(ID, 0, 0))) == opened
    assert len(run.expected) == 1


@pytest.mark.parametrize("nonce", [NONCE, bytes(32)], ids=["same nonce", "another nonce"])
def test_another_reveal_is_refused_after_the_first(bound, nonce):
    _, session = bound
    session.handle(m.pack(m.Reveal(ID, NONCE.hex(), 2)))
    assert refusal(session.handle(m.pack(m.Reveal(ID, nonce.hex(), 3)))) == "session"
    assert refusal(session.handle(m.pack(m.Reveal(ID, NONCE.hex(), 2)))) is None


def test_a_reveal_that_was_refused_may_be_corrected(bound):
    run, session = bound
    assert refusal(session.handle(m.pack(m.Reveal(ID, bytes(32).hex(), 2)))) == "nonce-mismatch"
    assert refusal(session.handle(m.pack(m.OpenState(ID, 0, 0)))) == "session"
    assert refusal(session.handle(m.pack(m.Reveal(ID, NONCE.hex(), 2)))) is None
    assert len(run.expected) == 1


def test_close_is_answered_again_and_nothing_else_is(bound):
    _, session = bound
    close = m.pack(m.Close(ID))
    assert session.handle(close) == session.handle(close)
    assert refusal(session.handle(close)) is None
    assert refusal(session.handle(m.pack(m.GetHeads(ID, 0)))) == "session"
    assert refusal(session.handle(m.pack(m.Close("cd" * 16)))) == "session"
