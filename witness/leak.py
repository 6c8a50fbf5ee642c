"""A dispute, rebuilt small: a script's default split puts most of the validation documents into training.

Public contests have had this one: tens of thousands of validation documents in the training set, and reviewers who
argued from log lines. Here the three trainers commit to their corpora, so the question has an answer: the leaky split
gives every hit by name, the clean split a proven zero, and a trainer who hides the leak from the ledger is caught by
whoever reads the list behind it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from protocol.ledger_claim import document_key
from protocol.places import Places
from witness.data import Corpus
from witness.data.embedded import topics
from witness.ledgers import known_tiers, places_of
from witness.program import Program
from witness.promise import Promise, Settings
from witness.recorder import Recorder

TRAINING, VALIDATION, LEAKED = 200, 50, 40
_SHORTEST = 200


@dataclass(frozen=True, slots=True)
class Split:
    """Folders of text files.

    Attributes:
        validation: the held-out documents.
        leaky: the training documents of the script's default: most of the validation documents are among them.
        clean: the training documents as they should be.
    """

    validation: Path
    leaky: Path
    clean: Path


def make_split(folder: Path) -> Split:
    """Cuts the embedded text into paragraphs and writes them out, a document a file."""
    paragraphs = [p.strip() for text in topics() for p in text.split(b"\n\n") if len(p.strip()) >= _SHORTEST]
    distinct = sorted(set(paragraphs), key=lambda p: hashlib.sha256(p).digest())
    held, rest = distinct[:VALIDATION], distinct[VALIDATION : VALIDATION + TRAINING]
    split = Split(folder / "validation", folder / "training-leaky", folder / "training-clean")
    for where, documents in ((split.validation, held), (split.leaky, rest + held[:LEAKED]), (split.clean, rest)):
        where.mkdir(parents=True)
        for document in documents:
            (where / f"{hashlib.sha256(document).hexdigest()[:12]}.txt").write_bytes(document)
    return split


class LeakHider(Recorder):
    """Trains on the leaky split, and lists innocent documents in place of the validation documents in its ledgers."""

    hidden: frozenset[bytes] = frozenset()
    """SHA-256 of the documents to hide."""

    @classmethod
    def promise(cls, program: Program, corpus: Corpus, settings: Settings) -> Promise:
        """An honest promise, but for its ledgers."""
        promise = Promise(program, corpus, settings)
        secret = {leaf.index for leaf in corpus.documents.leaves if leaf.digest in cls.hidden}
        forged = []
        for tier in known_tiers():
            places = Places.of(
                (
                    document_key(tier, hashlib.sha256(b"innocent %d" % document).digest())
                    if document in secret
                    else key,
                    document,
                )
                for key, document in places_of(corpus, tier)
            )
            forged.append((places.claim(tier, len(corpus.documents.leaves)), places))
        promise.ledgers = forged
        return promise


def digests_of(folder: Path) -> frozenset[bytes]:
    """SHA-256 of every document in a folder."""
    return frozenset(hashlib.sha256(path.read_bytes()).digest() for path in folder.iterdir())


__all__ = ["LEAKED", "TRAINING", "VALIDATION", "LeakHider", "Split", "digests_of", "make_split"]
