"""Lists that are longer than one reply, or than a verifier reads: what is cut, what is refused, and who is accused."""

import pytest
from memory_run import KEY, MemoryRun

from protocol import messages as m
from protocol import verifying
from protocol.errors import IncompleteError, VerificationError
from protocol.keys import SigningKey
from protocol.ledger_claim import LedgerClaim
from protocol.notes import Checkpoint, cosign, sign_head
from protocol.places import PLACE_BYTES, Places
from protocol.proving import ProverSession
from protocol.verifying import VerifierSession
from witness.outcomes import result_of

SPANS, DOCUMENTS = "t2-winnow-bytes-k32-w19", "t1-nfc-lf-strip-unicode14"
KEYS = [bytes([number]) * 32 for number in range(3)]


def bound() -> VerifierSession:
    session = VerifierSession(m.Policy("0.9", "0.5"), bytes(32), held=True)
    session.id = "ab" * 16
    return session


def take(session: VerifierSession, claim: LedgerClaim, places: Places, at_once: int = 4) -> None:
    """Asks for a list until it is there, from a prover that answers in small parts."""
    while True:
        request = m.unpack_request(session.places_request(claim))
        assert isinstance(request, m.GetPlaces)
        data = bytes(places.data[request.first * PLACE_BYTES : (request.first + at_once) * PLACE_BYTES])
        if session.take_places(claim, m.pack(m.Part(request.first, len(places)), data)):
            return


def spans(each: int) -> tuple[LedgerClaim, Places]:
    """Three keys, each with so many places in two documents."""
    places = Places.of((key, number % 2) for key in KEYS for number in range(each))
    return places.claim(SPANS, 2), places


# -- lists behind ledgers --------------------------------------------------------------------------


def test_a_list_within_the_cap_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    claim, places = spans(each=5)
    monkeypatch.setattr(verifying, "MAX_LISTED", 15)
    session = bound()
    take(session, claim, places)
    assert len(session.places[SPANS]) == 15


def test_more_places_than_a_verifier_reads_accuse_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three keys only, so the claim does not tell: an honest ledger of spans was called malformed for its length."""
    claim, places = spans(each=6)
    monkeypatch.setattr(verifying, "MAX_LISTED", 17)
    with pytest.raises(IncompleteError) as found:
        take(bound(), claim, places)
    assert found.value.code == "ledger-too-long"
    assert result_of(found.value).outcome == "incomplete"


def test_more_keys_than_a_verifier_reads_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    claim, _ = spans(each=1)
    monkeypatch.setattr(verifying, "MAX_LISTED", 2)
    with pytest.raises(IncompleteError) as found:
        bound().places_request(claim)
    assert found.value.code == "ledger-too-long"


def test_a_tier_of_documents_lists_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length is known: whoever says that it is longer cannot hide behind the cap."""
    places = Places.of((key, number) for number, key in enumerate(KEYS))
    claim = places.claim(DOCUMENTS, 3)
    monkeypatch.setattr(verifying, "MAX_LISTED", 3)
    take(bound(), claim, places)
    longer = Places.of([*((key, number) for number, key in enumerate(KEYS)), (KEYS[0], 1)])
    with pytest.raises(VerificationError) as found:
        take(bound(), claim, longer)
    assert found.value.code == "ledger-documents"


# -- signed heads ----------------------------------------------------------------------------------


def cosigned(size: int, times: int) -> bytes:
    """A head that so many cosigners have seen."""
    note = sign_head(Checkpoint("origin", size, bytes(32)), KEY)
    for number in range(times):
        note = cosign(note, SigningKey(f"cosigner-{number:03}.{'example' * 5}", bytes([number + 1]) * 32), size)
    return note


def test_heads_fill_as_many_replies_as_they_need() -> None:
    """512 notes of ten thousand bytes did not fit into a header: the session of an honest run ended as malformed."""
    run = MemoryRun()
    many = cosigned(7, 60)
    assert len(many) > 8 << 10
    run.heads = [sign_head(Checkpoint("origin", size, bytes(32)), KEY) for size in range(3)] + [many] * 900
    prover = ProverSession(run, bytes.fromhex("ab" * 16), KEY)
    session = VerifierSession(m.Policy("0.9", "0.5"), bytes(32))
    session.welcome(prover.handle(session.hello()))
    replies = 0
    while True:
        reply = prover.handle(session.heads_request())
        assert len(reply) <= m.MAX_HEADER + 4
        replies += 1
        if session.take_heads(reply):
            break
    assert session.heads == [note.decode() for note in run.heads]
    assert replies == 3
    empty = prover.handle(m.pack(m.GetHeads(session.id, len(run.heads))))
    assert m.unpack_reply(empty, m.Heads)[0] == m.Heads(len(run.heads), len(run.heads), ())
