"""Documents as a verifier meets them: opened whole at challenged steps, or asked about as a set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from protocol.certificate import MAX_ASKED, Asked, Exclusion
from protocol.corpus import Packing
from protocol.errors import VerificationError
from protocol.leaves import Document
from protocol.ledger_claim import RAW, document_key
from protocol.normaliser import document_digest
from protocol.places import Places
from witness.data import open_corpus
from witness.data.files import readable
from witness.ledgers import keys_of


def check_document(leaf: Document, data: bytes, places: Mapping[str, Places], step: int) -> None:
    """Holds a document that a step read to its leaf and to every ledger.

    Args:
        leaf: from the committed corpus.
        data: all of its bytes.
        places: checked lists, by tier.
        step: that read it.

    Raises:
        VerificationError: `document-digest`, `ledger-omission`.
    """
    evidence = {"step": step, "document": leaf.index}
    if hashlib.sha256(data).digest() != leaf.digest:
        raise VerificationError(
            "document-digest",
            f"document {leaf.index}, which step {step} read, is not the one its leaf names",
            evidence=evidence,
        )
    for tier, listed in places.items():
        for key in keys_of(tier, iter([data]), len(data)):
            if leaf.index not in listed.find(key):
                raise VerificationError(
                    "ledger-omission",
                    f"document {leaf.index}, which step {step} read, is missing from the ledger {tier}",
                    evidence={**evidence, "tier": tier},
                )


def asked_documents(path: Path, tiers: Iterable[str]) -> list[tuple[str, dict[str, bytes]]]:
    """Names and digests, by tier, of the documents of a set: a file, or a folder, as for a corpus.

    Only digests are computed; the texts stay where they are. No two documents have one name.
    """
    corpus = open_corpus(path, Packing("documents"))
    wanted = [tier for tier in tiers if not tier.startswith("t2-")]
    folder = readable(str(path.resolve())) + "/"
    asked, known = [], set[str]()
    for leaf in corpus.documents.leaves:
        data = b"".join(corpus.chunks(leaf.index)) if any(tier != RAW for tier in wanted) else b""
        digests = {tier: leaf.digest if tier == RAW else document_digest(tier, data) for tier in wanted}
        label = _label(corpus.name(leaf.index), folder)
        asked.append((label if label not in known else f"{label} (document {leaf.index})", digests))
        known.add(asked[-1][0])
    return asked


def _label(name: str, folder: str) -> str:
    """A document's name below the set it belongs to: where the set lies is nobody's business."""
    return name.replace(folder, "", 1) if folder in name else name.rpartition("/")[2] if name[:1] == "/" else name


def exclusion(name: str, asked: list[tuple[str, dict[str, bytes]]], places: Mapping[str, Places]) -> Exclusion:
    """Which documents of a set are in the ledgers, from their checked lists."""
    included: list[Asked] = []
    hits = 0
    for label, digests in asked:
        found = [(tier, places[tier].find(document_key(tier, d))) for tier, d in digests.items() if tier in places]
        present = [(tier, documents) for tier, documents in found if documents]
        hits += bool(present)
        if present and len(included) < MAX_ASKED:
            tier, documents = present[0]
            included.append(Asked(label[:4000], tier, tuple(documents[:MAX_ASKED])))
    return Exclusion(name[:4000], len(asked), len(asked) - hits, tuple(included))
