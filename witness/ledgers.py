"""Ledgers over a corpus: which documents (and spans) it holds, for questions about inclusion and exclusion.

Built once, before step 1, and committed to in the manifest. What is kept is the list of places, from which the tree is
built again when somebody asks; the list of the raw tier is not even kept, because it follows from the corpus leaves.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from protocol.corpus import Documents
from protocol.errors import ProtocolError, UsageError
from protocol.ledger import Ledger
from protocol.ledger_claim import RAW, LedgerClaim, Occurrences, document_key
from protocol.ledger_proof import Proof
from protocol.normaliser import NORMALISERS, document_digest
from protocol.places import Places, document_keys, joined_places, raw_places
from protocol.winnowing import Winnowing, select_many, select_stream, span_key
from witness.data import Corpus
from witness.statefile import write_bytes

MAX_NORMALISED = 1 << 26
"""Bytes of the largest document that a normaliser is applied to: it needs the whole of it at once."""
Progress = Callable[[int, int], None]


def known_tiers() -> list[str]:
    """The tiers of documents that this Python can compute: raw bytes, and each normaliser whose Unicode data it has."""
    import unicodedata

    return sorted([RAW, *(n.tier for n in NORMALISERS.values() if n.unicode == unicodedata.unidata_version)])


def default_tiers(corpus: Corpus) -> list[str]:
    """What is built where nobody chose: every known tier; raw bytes alone where a document is too large for others."""
    large = any(leaf.length > MAX_NORMALISED for leaf in corpus.documents.leaves)
    return [RAW] if large else known_tiers()


def places_of(corpus: Corpus, tier: str, progress: Progress | None = None) -> Places:
    """The list of places of a corpus in one tier.

    Args:
        corpus: read once, document after document.
        tier: its name.
        progress: called with the documents done and their number.

    Raises:
        UsageError: `ledger-tier`, for a tier that nobody knows or a document too large for it.
        IncompleteError: a normaliser that this Python cannot compute.
    """
    if tier == RAW:
        return raw_places(corpus.documents.leaves)
    total = len(corpus.documents.leaves)

    def tell(done: int) -> None:
        if progress is not None:
            progress(done, total)

    if tier.startswith("t2-"):
        return Places.joined(b"".join(_span_places(corpus, tier, tell)))

    def places() -> Iterator[tuple[bytes, int]]:
        for index in range(total):
            for key in keys_of(tier, corpus.chunks(index), corpus.documents.leaves[index].length):
                yield key, index
            tell(index + 1)

    return Places.of(places())


def _span_places(corpus: Corpus, tier: str, tell: Callable[[int], None]) -> Iterator[bytes]:
    """The places of a tier of spans, in the order of the documents."""

    def documents() -> Iterator[tuple[int, Iterator[bytes]]]:
        for index in range(len(corpus.documents.leaves)):
            yield index, corpus.chunks(index)
            tell(index + 1)

    for found in select_many(documents(), Winnowing.of_tier(tier)):
        yield joined_places(document_keys(tier, found.digests), found.documents)


def keys_of(tier: str, chunks: Iterator[bytes], length: int) -> Iterator[bytes]:
    """The ledger keys of one document that arrives in chunks.

    Raises:
        UsageError: `ledger-tier`.
    """
    if tier.startswith("t2-"):
        parameters = Winnowing.of_tier(tier)
        for gram in select_stream(chunks, parameters):
            yield span_key(parameters, gram.digest)
        return
    if tier != RAW and tier not in {n.tier for n in NORMALISERS.values()}:
        raise UsageError(
            "ledger-tier",
            f"there is no tier {tier[:80]!r}; there are {', '.join(known_tiers())} and t2-winnow-bytes-k<k>-w<w>",
            next_action=f"name one of {', '.join(known_tiers())}, or a ledger of passages: t2-winnow-bytes-k32-w19",
        )
    if tier != RAW and length > MAX_NORMALISED:
        raise UsageError(
            "ledger-tier", f"a document of {length} bytes is too large to normalise; leave the tier {tier} out"
        )
    yield document_key(tier, document_digest(tier, b"".join(chunks)))


def commit(corpus: Corpus, tiers: Sequence[str], progress: Progress | None = None) -> list[tuple[LedgerClaim, Places]]:
    """Claim and list of each tier, in tier order."""
    total = len(corpus.documents.leaves)
    made = []
    for tier in sorted(set(tiers)):
        places = places_of(corpus, tier, progress)
        made.append((places.claim(tier, total), places))
    return made


def path_of(folder: Path, tier: str) -> Path:
    """Where the list of a tier is kept in a run's corpus folder."""
    return folder / f"{tier}.places"


def store(folder: Path, made: Sequence[tuple[LedgerClaim, Places]]) -> None:
    """Keeps the lists that do not follow from the corpus leaves."""
    for claim, places in made:
        if claim.tier != RAW:
            write_bytes(path_of(folder, claim.tier), bytes(places.data[0 : len(places.data)]))


def open_places(folder: Path, claim: LedgerClaim, documents: Documents) -> Places:
    """The kept list of a tier, unchecked: `Places.check` compares it with the claim.

    Raises:
        ProtocolError: `places`.
    """
    if claim.tier == RAW:
        return raw_places(documents.leaves)
    try:
        with path_of(folder, claim.tier).open("rb") as file:
            empty = file.seek(0, 2) == 0
            return Places(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise ProtocolError("places", f"the list of the ledger {claim.tier} cannot be read: {error.strerror}") from None


class Book:
    """A ledger that answers: list and tree of one tier.

    Args:
        claim: from the manifest.
        places: the list behind it, which is checked.

    Raises:
        VerificationError: `ledger-root`, `ledger-documents`.
    """

    def __init__(self, claim: LedgerClaim, places: Places) -> None:
        self.claim, self.places = claim, places
        self.ledger: Ledger = places.ledger(claim)

    def answer(self, digest: bytes) -> tuple[Proof, Occurrences | None]:
        """The proof for a digest, and where it occurs if it does."""
        key = document_key(self.claim.tier, digest)
        proof = self.ledger.prove(key)
        if proof.kind != "inclusion":
            return proof, None
        found = self.places.find(key)
        return proof, Occurrences(len(found), tuple(dict.fromkeys(found)))
