"""From documents to questions, on the asker's side: only digests leave it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from protocol.answer import Answer
from protocol.errors import UsageError
from protocol.ledger_claim import RAW
from protocol.normaliser import document_digest
from witness.ledgers import known_tiers

_DIGEST = re.compile(r"[0-9a-f]{64}")
MAX_LIST = 1 << 28


class Question(NamedTuple):
    """A digest to ask a ledger about, and what the asker calls it."""

    name: str
    tier: str
    digest: bytes


class Keeper(Protocol):
    """Whoever answers: `witness.query.Answerer` or `witness.http.keeper.RemoteKeeper`."""

    @property
    def head(self) -> bytes:
        """The signed head under which it answers."""

    @property
    def tiers(self) -> list[str]:
        """Of the run's ledgers."""

    def digests(self, questions: Iterable[tuple[str, bytes]], evidence: Sequence[bytes] = ()) -> Answer:
        """Answers about digests."""

    def spans(self, tier: str, spans: Iterable[bytes], evidence: Sequence[bytes] = ()) -> Answer:
        """Answers about spans."""


def tiers_asked(kept: Sequence[str], wanted: str | None) -> list[str]:
    """The tiers of whole documents to ask about: the one that is wanted, or all that the run has and we can compute.

    Raises:
        UsageError: `ledger-tier`.
        IncompleteError: `unicode-version`.
    """
    documents = [tier for tier in kept if not tier.startswith("t2-")]
    if wanted is not None:
        if wanted not in documents:
            raise UsageError("ledger-tier", f"the run has no ledger {wanted[:80]!r} of documents; it has {documents}")
        document_digest(wanted, b"")  # refuses what this Python cannot compute
        return [wanted]
    asked = [tier for tier in documents if tier in known_tiers()]
    if not asked:
        raise UsageError("ledger-tier", f"the run has no ledger of documents that can be asked here; it has {kept}")
    return asked


def document_questions(name: str, data: bytes, tiers: Sequence[str]) -> list[Question]:
    """The questions about one document."""
    return [Question(name, tier, document_digest(tier, data)) for tier in tiers]


def digest_question(text: str, tier: str | None) -> Question:
    """The question about a digest that somebody else computed; of raw bytes unless a tier is named.

    Raises:
        UsageError: `usage`, for anything but 64 hexadecimal digits.
    """
    found = text.strip().lower()
    if _DIGEST.fullmatch(found) is None:
        raise UsageError("usage", f"{text[:80]!r} is not a digest: 64 hexadecimal digits")
    return Question(found, tier or RAW, bytes.fromhex(found))


def set_questions(path: Path, tiers: Sequence[str], tier: str | None) -> list[Question]:
    """The questions about every document of a set.

    Args:
        path: a folder or file of documents, in any format that a corpus may have (JSON lines: their field `text`); or a
            `.txt` file with a digest a line.
        tiers: to ask about, for documents.
        tier: of the digests in a list.

    Raises:
        UsageError: when the set cannot be read.
    """
    listed = _list_of_digests(path)
    if listed is not None:
        return [digest_question(line, tier) for line in listed]
    from witness.documents import asked_documents

    return [
        Question(name, one, digest) for name, digests in asked_documents(path, tiers) for one, digest in digests.items()
    ]


def span_tier(kept: Sequence[str], wanted: str | None) -> str:
    """The tier of spans to ask about.

    Raises:
        UsageError: `ledger-tier`.
    """
    spans = [tier for tier in kept if tier.startswith("t2-")]
    if wanted is not None and wanted in spans:
        return wanted
    if wanted is None and len(spans) == 1:
        return spans[0]
    said = f"name one with --tier: {', '.join(spans)}" if spans else "it has none of spans"
    raise UsageError("ledger-tier", f"the run has no such ledger; {said}")


def _list_of_digests(path: Path) -> list[str] | None:
    """The lines of a file that holds nothing but digests."""
    if path.suffix.lower() != ".txt" or not path.is_file() or path.stat().st_size > MAX_LIST:
        return None
    lines = path.read_bytes().split()
    texts = [line.decode("ascii", "replace") for line in lines]
    return texts if texts and all(_DIGEST.fullmatch(text.lower()) for text in texts) else None
