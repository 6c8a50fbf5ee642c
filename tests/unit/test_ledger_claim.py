"""Keys, occurrences and claims: one encoding each, and nothing impossible is said."""

import hashlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.corpus import MAX_DOCUMENTS
from protocol.encoding import MAX_INTEGER, decode, encode
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.ledger import build
from protocol.ledger_claim import (
    MAX_OCCURRENCES,
    RAW,
    LedgerClaim,
    Occurrences,
    document_key,
    grouped,
)

T1, T2 = "t1-nfc-lf-strip-unicode14", "t2-winnow-bytes-k32-w19"
DIGEST = hashlib.sha256(b"a document").digest()


def test_what_checks_a_proof_imports_nothing_heavy():
    code = "import sys, protocol.ledger_claim as c; print({'numpy', 'torch', 'pymerkle'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def field(data):
    return len(data).to_bytes(8, "big") + data


def test_keys_and_values_to_the_byte():
    tag = field(b"training-witness/v1/ledger/key")
    assert document_key(T1, DIGEST) == hashlib.sha256(tag + field(T1.encode()) + field(DIGEST)).digest()
    tag = field(b"training-witness/v1/ledger/value")
    encoded = bytes([0x83, 0x01, 2, 0xAC, 0x02, 4])  # 131 times, in 2 documents: 300, and 305 after leaving out 4
    assert Occurrences(131, (300, 305)).to_bytes() == encoded
    assert Occurrences(131, (300, 305)).value == hashlib.sha256(tag + field(encoded)).digest()


def test_a_digest_has_another_key_in_every_tier():
    tiers = [RAW, T1, "t1-nfc-lf-strip-unicode15", T2, "t2-winnow-bytes-k32-w1", "t2-winnow-u16-k32-w19"]
    assert len({document_key(tier, DIGEST) for tier in tiers}) == len(tiers)


@pytest.mark.parametrize("digest", [b"", DIGEST[:31], DIGEST + b"\x00", DIGEST.hex().encode()])
def test_a_digest_is_32_bytes(digest):
    with pytest.raises(UsageError) as caught:
        document_key(RAW, digest)
    assert caught.value.code == "ledger-key"


@given(st.sets(st.integers(0, MAX_DOCUMENTS - 1), min_size=1, max_size=40), st.integers(0, MAX_INTEGER - 40))
def test_occurrences_come_back(documents, more):
    found = Occurrences(len(documents) + more, tuple(sorted(documents)))
    assert Occurrences.from_bytes(found.to_bytes()) == found


@given(st.binary(max_size=12))
def test_no_two_encodings_of_occurrences(data):
    try:
        found = Occurrences.from_bytes(data)
    except ProtocolError as error:
        assert error.code == "not-canonical"
    else:
        assert found.to_bytes() == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        b"\x01\x01",  # no document
        b"\x01\x00",
        b"\x00\x01\x05",  # no occurrence
        b"\x01\x02\x05\x00",  # two documents, one occurrence
        b"\x02\x02\x05",  # one document missing
        b"\x01\x01\x05\x00",  # one too many
        b"\x01\x01\x85\x00",  # a byte more than needed
        b"\x81\x00\x01\x05",
        b"\x01\x01\x85",  # cut short within a number
        b"\x01\x01\x80\x80\x80\x08",  # document 2^24
        b"\x01\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x80\x80\x80\x80\x80\x80\x80\x10\x01\x05",  # 2^53 times
    ],
)
def test_other_spellings_of_occurrences_are_refused(data):
    with pytest.raises(ProtocolError) as caught:
        Occurrences.from_bytes(data)
    assert caught.value.code == "not-canonical"


def test_occurrences_above_their_cap_are_refused_unread():
    with pytest.raises(ProtocolError) as caught:
        Occurrences.from_bytes(bytes(MAX_OCCURRENCES + 1))
    assert caught.value.code == "too-large"
    with pytest.raises(ProtocolError) as caught:
        Occurrences.from_bytes(b"\x01\x01\x05", limit=2)
    assert caught.value.code == "too-large"


def test_a_document_in_every_place_takes_a_byte_a_place():
    assert len(Occurrences(10_000, tuple(range(10_000))).to_bytes()) == 10_004
    # Halves of the documents, one left out between any two, take a byte each too: the cap holds for every list.
    assert len(Occurrences(5_000, tuple(range(0, 10_000, 2))).to_bytes()) == 5_004


@pytest.mark.parametrize(
    ("count", "documents"),
    [
        (0, ()),
        (1, ()),
        (0, (1,)),
        (1, (1, 2)),
        (2, (2, 1)),
        (2, (1, 1)),
        (1, (-1,)),
        (1, (MAX_DOCUMENTS,)),
        (2**53, (1,)),
    ],
)
def test_impossible_occurrences_are_refused(count, documents):
    with pytest.raises(ProtocolError) as caught:
        Occurrences(count, documents)
    assert caught.value.code == "not-canonical"


def test_equal_documents_become_one_entry():
    a, b, c = sorted(document_key(RAW, hashlib.sha256(text).digest()) for text in (b"a", b"b", b"c"))
    places = [(b, 0), (a, 1), (b, 2), (c, 3), (b, 4)]
    assert list(grouped(sorted(places))) == [
        (a, Occurrences(1, (1,))),
        (b, Occurrences(3, (0, 2, 4))),
        (c, Occurrences(1, (3,))),
    ]
    # A gram that a document holds three times counts three times, in one document.
    assert list(grouped([(a, 7), (a, 7), (a, 7), (a, 9)])) == [(a, Occurrences(4, (7, 9)))]
    assert list(grouped([])) == []


def ledger_of(tier, digests):
    """A ledger and its claim over documents (or grams, one each) by their digests."""
    places = sorted((document_key(tier, digest), index) for index, digest in enumerate(digests))
    entries = dict(grouped(places))
    ledger = build((key, found.value) for key, found in entries.items())
    return ledger, entries, LedgerClaim(tier, ledger.root.hex(), len(ledger), len(digests))


def test_a_claim_answers_by_digest():
    digests = [hashlib.sha256(b"%d" % (i % 30)).digest() for i in range(100)]
    ledger, entries, claim = ledger_of(RAW, digests)
    assert (claim.entries, claim.documents) == (30, 100)
    for index, digest in enumerate(digests[:30]):
        key = document_key(RAW, digest)
        found = claim.check_inclusion(digest, entries[key], ledger.prove(key))
        assert found.documents == tuple(range(index, 100, 30)) and found.count == len(found.documents)
    claim.check_absence(DIGEST, ledger.prove(document_key(RAW, DIGEST)))


def test_other_occurrences_than_the_committed_ones_are_refused():
    digests = [hashlib.sha256(b"%d" % (i % 3)).digest() for i in range(9)]
    ledger, _, claim = ledger_of(RAW, digests)
    proof = ledger.prove(document_key(RAW, digests[0]))
    claim.check_inclusion(digests[0], Occurrences(3, (0, 3, 6)), proof)
    for said in [
        Occurrences(2, (0, 3)),  # one left out
        Occurrences(4, (0, 3, 6, 8)),
        Occurrences(3, (1, 4, 7)),
        Occurrences(4, (0, 3, 6)),  # no document occurs twice at one index
        Occurrences(3, (0, 3, 9)),  # there is no document 9
    ]:
        with pytest.raises(VerificationError) as caught:
            claim.check_inclusion(digests[0], said, proof)
        assert caught.value.code == "ledger-inclusion"


def test_a_ledger_that_commits_to_impossible_occurrences_proves_none():
    """The value is the trainer's; what it says must be possible in a corpus of this size."""
    for said in (Occurrences(2, (0,)), Occurrences(1, (5,))):
        ledger = build([(document_key(RAW, DIGEST), said.value)])
        claim = LedgerClaim(RAW, ledger.root.hex(), 1, 5)
        with pytest.raises(VerificationError) as caught:
            claim.check_inclusion(DIGEST, said, ledger.prove(document_key(RAW, DIGEST)))
        assert caught.value.code == "ledger-inclusion"
    ledger = build([(document_key(T2, DIGEST), Occurrences(2, (0,)).value)])
    claim = LedgerClaim(T2, ledger.root.hex(), 1, 5)
    claim.check_inclusion(DIGEST, Occurrences(2, (0,)), ledger.prove(document_key(T2, DIGEST)))


def test_a_claim_travels():
    _, _, claim = ledger_of(T1, [DIGEST])
    assert decode(encode(claim), LedgerClaim, limit=1000) == claim


ZERO, SOME = "00" * 32, "11" * 32


@pytest.mark.parametrize(
    ("tier", "root", "entries", "documents"),
    [
        (RAW, ZERO, 1, 1),  # a root of nothing would prove every document absent
        (RAW, SOME, 0, 0),
        (RAW, ZERO, 0, 1),  # every document has an entry
        (RAW, SOME, 2, 1),
        (RAW, SOME, 1, 0),
        (T2, SOME, 1, 0),
        (T2, ZERO, 3, 1),
        (RAW, SOME, 1, MAX_DOCUMENTS + 1),
        ("t0-md5", SOME, 1, 1),
        ("t0-sha256\n", SOME, 1, 1),
        ("t1-", SOME, 1, 1),
        ("t1-NFC", SOME, 1, 1),
        ("t2-winnow-bytes-k032-w19", SOME, 1, 1),
        ("t2-winnow-bytes-k0-w19", SOME, 1, 1),
        ("t2-winnow-u64-k32-w19", SOME, 1, 1),
        ("t3-minhash", SOME, 1, 1),
        (RAW, "11" * 31, 1, 1),
        (RAW, "AA" * 32, 1, 1),
    ],
)
def test_impossible_claims_are_refused(tier, root, entries, documents):
    said = {"tier": tier, "root": root, "entries": entries, "documents": documents}
    with pytest.raises(ProtocolError) as caught:
        decode(encode(said), LedgerClaim, limit=1000)
    assert caught.value.code == "not-canonical"


@pytest.mark.parametrize(("tier", "documents"), [(RAW, 0), (T1, 0), (T2, 0), (T2, 5)])
def test_empty_claims(tier, documents):
    claim = LedgerClaim(tier, ZERO, 0, documents)
    claim.check_absence(DIGEST, build([]).prove(document_key(tier, DIGEST)))
