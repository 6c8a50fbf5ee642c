"""What a server tells of its sessions: one line an event, and none for a knock at the door."""

from http_support import POLICY
from memory_run import KEY, MemoryRun

from protocol import messages as m
from protocol.verifying import VerifierSession
from witness.visits import Visit

NONCE, SESSION = bytes(range(32)), bytes(range(16))


def visited(*, welcomed: bool = True) -> tuple[list[str], Visit]:
    lines: list[str] = []
    times = iter([10.0, 22.4])
    visit = Visit(MemoryRun(), SESSION, KEY, lines.append, lambda: next(times))
    if welcomed:
        visit.handle(VerifierSession(POLICY, NONCE).hello())
    return lines, visit


def test_a_session_is_told_in_three_lines() -> None:
    lines, visit = visited()
    name = SESSION.hex()
    for frame in (m.Reveal(name, NONCE.hex(), 2), m.Reveal(name, NONCE.hex(), 2), m.Close(name), m.Close(name)):
        visit.handle(m.pack(frame))  # each twice, as after a lost reply
    assert [line.split()[2] for line in lines] == ["began", "challenges", "ended"]
    assert all(line.startswith(f"session {name[:8]} ") and name not in line for line in lines)
    assert f"of {visit.archive.audit.steps} steps: " in lines[1]
    assert lines[2].endswith("ended after 12 s")


def test_a_session_that_is_refused_is_not_told() -> None:
    lines, visit = visited(welcomed=False)
    for frame in (b"", b"\0\0\0\2{}", m.pack(m.Close(SESSION.hex())), m.pack(m.Reveal(SESSION.hex(), "00" * 32, 2))):
        visit.handle(frame)
    assert lines == []


def test_a_wrong_nonce_challenges_nothing() -> None:
    lines, visit = visited()
    visit.handle(m.pack(m.Reveal(SESSION.hex(), "00" * 32, 2)))
    assert [line.split()[2] for line in lines] == ["began"]
