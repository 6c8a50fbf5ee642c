"""The list behind a ledger: complete, ordered, and worth exactly the root it is claimed to have."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ProtocolError, VerificationError
from protocol.leaves import describe
from protocol.ledger import build
from protocol.ledger_claim import RAW, document_key, grouped
from protocol.places import PLACE_BYTES, Places, raw_places
from witness.ledgers import Book

TEXTS = st.lists(st.binary(max_size=4), min_size=1, max_size=20)


def leaves(texts: list[bytes]) -> list:
    found, at = [], 0
    for index, text in enumerate(texts):
        found.append(describe(index, at, [text]))
        at += len(text)
    return found


@settings(deadline=None)
@given(TEXTS)
def test_every_document_is_found_under_its_digest(texts: list[bytes]) -> None:
    documents = leaves(texts)
    places = raw_places(documents)
    claim = places.claim(RAW, len(texts))
    book = Book(claim, places)
    assert claim.root == build((k, o.value) for k, o in grouped(places)).root.hex()
    for leaf in documents:
        proof, occurrences = book.answer(leaf.digest)
        assert occurrences is not None
        assert occurrences.documents == tuple(i for i, text in enumerate(texts) if text == texts[leaf.index])
        claim.check_inclusion(leaf.digest, occurrences, proof)
        assert places.find(document_key(RAW, leaf.digest)) == list(occurrences.documents)
    absent, nothing = book.answer(b"\x00" * 32)
    assert nothing is None
    claim.check_absence(b"\x00" * 32, absent)


@settings(deadline=None)
@given(TEXTS, st.data())
def test_no_other_list_passes_for_the_claimed_one(texts: list[bytes], data: st.DataObject) -> None:
    places = raw_places(leaves(texts))
    claim = places.claim(RAW, len(texts))
    places.check(claim)
    changed = bytearray(places.data[0 : len(places.data)])
    change = data.draw(st.sampled_from(["flip", "drop", "repeat", "swap"]))
    at = data.draw(st.integers(0, len(texts) - 1)) * PLACE_BYTES
    if change == "flip":
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    elif change == "drop":
        del changed[at : at + PLACE_BYTES]
    elif change == "repeat":
        changed[at:at] = changed[at : at + PLACE_BYTES]
    else:
        first = bytes(changed[:PLACE_BYTES])
        changed[:PLACE_BYTES], changed[at : at + PLACE_BYTES] = changed[at : at + PLACE_BYTES], first
    if bytes(changed) == bytes(places.data):
        return
    with pytest.raises((ProtocolError, VerificationError)):
        Places(bytes(changed)).check(claim)


def test_a_trainer_cannot_leave_a_document_out_and_list_another_twice() -> None:
    """The claim is recomputed honestly over a dishonest list: the root agrees, and the list is still refused."""
    documents = leaves([b"a", b"b", b"c"])
    forged = Places.of(
        [
            (document_key(RAW, documents[0].digest), 0),
            (document_key(RAW, documents[0].digest), 1),
            (document_key(RAW, documents[2].digest), 2),
        ]
    )
    claim = forged.claim(RAW, 3)
    forged.check(claim)  # as a list it is whole...
    with pytest.raises(VerificationError, match="not the one"):
        raw_places(documents).check(claim)  # ...but it is not the list that the corpus leaves give
    missing = Places.of([(document_key(RAW, documents[0].digest), 0), (document_key(RAW, documents[2].digest), 2)])
    with pytest.raises(VerificationError, match="every document"):
        missing.check(missing.claim(RAW, 3))


def test_lists_that_are_no_lists_are_refused() -> None:
    with pytest.raises(ProtocolError):
        Places(bytes(PLACE_BYTES + 1))
    one = raw_places(leaves([b"a"]))
    with pytest.raises(ProtocolError, match="no document"):
        one.claim(RAW, 0)
    claim = one.claim(RAW, 1)
    with pytest.raises((ProtocolError, VerificationError)):
        Places(b"").check(claim)
    with pytest.raises(VerificationError):
        one.check(msgspec.structs.replace(claim, root="11" * 32))
