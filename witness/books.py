"""What a keeper needs to answer questions about a run's data: its ledgers and document leaves, opened when first used.

They follow from the manifest, so they serve every head of the run. The data itself is read only to open a span.
"""

from __future__ import annotations

import threading
from pathlib import Path

from protocol import merkle
from protocol.answer import Listed
from protocol.corpus import Documents
from protocol.errors import UsageError
from protocol.leaves import Document, parse_leaves
from protocol.manifest import Manifest
from witness.data import Corpus, open_stored
from witness.data.stored import LEAVES
from witness.ledgers import Book, open_places
from witness.rundir import RunDir
from witness.statefile import naming, read_file


class Books:
    """The ledgers and leaves of one run; safe to use from several threads.

    Args:
        run: the directory.
        manifest: of the run.
        data: where the corpus lies now, if it moved.

    Raises:
        ProtocolError: `state-file`, `corpus-leaves`.
        VerificationError: `corpus-root`.
    """

    def __init__(self, run: RunDir, manifest: Manifest, data: Path | None = None) -> None:
        self._run, self._data, self.manifest = run, data, manifest
        claim = manifest.corpus
        with naming(run.corpus / LEAVES):
            leaves = parse_leaves(read_file(run.corpus / LEAVES))
            self.documents = Documents(leaves, claim.packing, claim.tokenizer)
            self.documents.check(claim)
        self._lock = threading.RLock()
        self._books: dict[str, Book] = {}
        self._tree: merkle.Tree | None = None
        self._corpus: Corpus | None = None

    @property
    def tiers(self) -> list[str]:
        """Of the run's ledgers."""
        return [claim.tier for claim in self.manifest.ledgers]

    def of(self, tier: str) -> Book:
        """The ledger of a tier.

        Raises:
            UsageError: `ledger-tier`.
            ProtocolError, VerificationError: its list is damaged, or not the committed one.
        """
        with self._lock:
            if tier not in self._books:
                claim = next((claim for claim in self.manifest.ledgers if claim.tier == tier), None)
                if claim is None:
                    kept = ", ".join(self.tiers) or "none"
                    raise UsageError("ledger-tier", f"the run has no ledger {tier[:80]!r}; it has {kept}")
                self._books[tier] = Book(claim, open_places(self._run.corpus, claim, self.documents))
            return self._books[tier]

    def leaf(self, document: int) -> Document:
        """The leaf of a document."""
        return self.documents.leaves[document]

    def listed(self, document: int) -> Listed:
        """A document's leaf with its proof."""
        with self._lock:
            if self._tree is None:
                self._tree = merkle.Tree.packed(self.documents.leaf_hashes)
        path = self._tree.inclusion_proof(document)
        return Listed(self.leaf(document).to_bytes().hex(), tuple(part.hex() for part in path))

    def corpus(self) -> Corpus:
        """The corpus with its bytes.

        Raises:
            UsageError: `corpus-missing`, and what else `open_stored` raises.
        """
        with self._lock:
            if self._corpus is None:
                self._corpus = open_stored(self._run.corpus, self._data)
                self._corpus.documents.check(self.manifest.corpus)
            return self._corpus
