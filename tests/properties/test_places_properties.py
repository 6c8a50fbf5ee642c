"""The list behind a ledger: complete, ordered, and worth exactly the root it is claimed to have."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import places as places_module
from protocol.errors import ProtocolError, VerificationError
from protocol.leaves import MAX_DOCUMENTS, describe
from protocol.ledger import build
from protocol.ledger_claim import RAW, Occurrences, document_key, grouped
from protocol.places import PLACE_BYTES, Places, document_keys, raw_places, values_alone
from witness.ledgers import Book

SPANS = "t2-winnow-bytes-k32-w19"
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


KEYS = st.sampled_from([hashlib.sha256(b"%d" % i).digest() for i in range(6)] + [bytes(32), b"\xff" * 32])


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, st.integers(0, 40)), max_size=60), st.integers(1, 7))
def test_spans_in_bulk_are_spans_one_by_one(found: list[tuple[bytes, int]], block: int) -> None:
    """Keys that come often, in many documents and several times in one; blocks that end anywhere."""
    places = Places.of(found)
    assert list(places) == sorted(found)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places_module, "_BLOCK", block)
        claim = places.claim(SPANS, 41)
        places.check(claim)
        ledger = places.ledger(claim)
    expected = [(key, occurrences.value) for key, occurrences in grouped(sorted(found))]
    assert list(ledger) == expected
    assert (claim.root, claim.entries) == (build(expected).root.hex(), len(expected))


@settings(deadline=None)
@given(st.lists(st.tuples(KEYS, st.integers(0, 9)), min_size=2, max_size=20), st.integers(1, 5), st.data())
def test_a_list_out_of_order_is_refused_wherever_blocks_end(
    found: list[tuple[bytes, int]], block: int, data: st.DataObject
) -> None:
    ordered = sorted(found)
    at = data.draw(st.integers(1, len(ordered) - 1))
    ordered[at - 1], ordered[at] = ordered[at], ordered[at - 1]
    places = Places(b"".join(key + document.to_bytes(4, "big") for key, document in ordered))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places_module, "_BLOCK", block)
        if ordered == sorted(found):
            places.claim(SPANS, 10)
            return
        with pytest.raises(ProtocolError, match=f"place {at - 1} "):
            places.claim(SPANS, 10)
        with pytest.raises(ProtocolError, match="no document"):
            Places.of(found).claim(SPANS, max(document for _, document in found))


@given(st.lists(st.one_of(st.integers(0, 2**32 - 1), st.sampled_from([127, 128, 16383, 16384, 2**21 - 1, 2**21]))))
def test_values_in_bulk_are_values_one_by_one(documents: list[int]) -> None:
    within = [document for document in documents if document < MAX_DOCUMENTS]
    found = values_alone(np.array(within, dtype=np.int64))
    assert [row.tobytes() for row in found] == [Occurrences(1, (document,)).value for document in within]


@given(st.lists(st.binary(min_size=32, max_size=32)), st.sampled_from([RAW, SPANS]))
def test_keys_in_bulk_are_keys_one_by_one(digests: list[bytes], tier: str) -> None:
    found = document_keys(tier, np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 32))
    assert [row.tobytes() for row in found] == [document_key(tier, digest) for digest in digests]


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
