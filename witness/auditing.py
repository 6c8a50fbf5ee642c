"""The audit of a run's data: every document read again, every root computed again, and the result signed.

It trusts nothing that the run keeps but the signed manifest: leaves and lists are made anew from the documents and then
compared. Memory holds the leaves and one list at a time; the data is read once for the leaves and once for each ledger
that does not follow from them. Needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import witness
from protocol import merkle
from protocol.corpus import CorpusClaim, Documents, token_bytes
from protocol.data_audit import MAX_FINDINGS, DataAudit, sign_audit
from protocol.errors import VerificationError
from protocol.keys import SigningKey
from protocol.leaves import Document, Leaves, describe
from protocol.ledger_claim import RAW, LedgerClaim
from protocol.manifest import Manifest
from protocol.notes import open_head
from protocol.places import Places, raw_places
from witness.data import Corpus, open_stored
from witness.ledgers import keys_of
from witness.logreader import LogReader
from witness.rundir import RunDir, trainer_key

Progress = Callable[[str, int, int], None]
"""Called with what is read, the documents done and their number."""


def audit_data(
    run: RunDir,
    key: SigningKey,
    *,
    data: Path | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
) -> bytes:
    """Audits a run's data, and signs what came of it.

    Args:
        run: the directory.
        key: the auditor's.
        data: where the corpus lies now, if it moved.
        progress: told as the work goes on.
        clock: POSIX seconds.

    Returns:
        The signed audit (`protocol.data_audit`), also when the data is not what the manifest commits to.

    Raises:
        UsageError, ProtocolError: when log or data cannot be read.
        VerificationError: `head-root`; `corpus-changed`, when the data cannot even be read as what it was.
        IncompleteError: a ledger of a normaliser that this Python cannot compute.
    """
    manifest, head = run.manifest(), run.latest_head()
    opened = open_head(head, [trainer_key(manifest)], manifest.origin)
    log_root = merkle.Frontier()
    with LogReader(run.log_path) as log:
        for entry in log.entries(0, opened.size):
            log_root.append(entry)
    if (log_root.size, log_root.root()) != (opened.size, opened.root):
        raise VerificationError("head-root", f"the head over {opened.size} entries is not one of this log")
    corpus = open_stored(run.corpus, data)
    tell = progress or (lambda _what, _done, _total: None)
    findings = _Findings()
    claim = manifest.corpus
    documents = _documents(corpus, claim, findings, tell)
    found = documents.claim(claim.source)
    if found != claim:
        findings.add(f"corpus: the manifest commits to {claim.root}, the documents give {found.root}")
    ledgers = tuple(_ledger(corpus, documents, one, tell) for one in manifest.ledgers)
    for committed, computed in zip(manifest.ledgers, ledgers, strict=True):
        if committed != computed:
            findings.add(
                f"ledger {committed.tier}: the manifest commits to {committed.root} over {committed.entries} entries, "
                f"the documents give {computed.root} over {computed.entries}"
            )
    return sign_audit(_statement(manifest, head, key, documents, ledgers, findings, int(clock())), key)


class _Findings:
    """What differs: the first of it by name, the rest counted."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._more = 0

    def add(self, text: str) -> None:
        if len(self._texts) < MAX_FINDINGS - 1:
            self._texts.append(text)
        else:
            self._more += 1

    def texts(self) -> tuple[str, ...]:
        return (*self._texts, *([f"and {self._more} more"] if self._more else []))


def _documents(corpus: Corpus, claim: CorpusClaim, findings: _Findings, tell: Progress) -> Documents:
    """The corpus, from its documents alone."""
    total = len(corpus.documents.leaves)

    def leaves() -> Iterator[Document]:
        start = 0
        for kept in corpus.documents.leaves:
            leaf = describe(kept.index, start, corpus.chunks(kept.index), token_bytes(claim.tokenizer))
            if leaf != kept:
                findings.add(f"document {kept.index}: its bytes are not those of the committed leaf")
            start += leaf.token_length
            tell("documents", kept.index + 1, total)
            yield leaf

    return Documents(Leaves.of(leaves()), claim.packing, claim.tokenizer)


def _ledger(corpus: Corpus, documents: Documents, claim: LedgerClaim, tell: Progress) -> LedgerClaim:
    """The claim of a ledger, from the documents alone."""
    total = len(documents.leaves)
    if claim.tier == RAW:
        return raw_places(documents.leaves).claim(RAW, total)

    def places() -> Iterator[tuple[bytes, int]]:
        for leaf in documents.leaves:
            for place in keys_of(claim.tier, corpus.chunks(leaf.index), leaf.length):
                yield place, leaf.index
            tell(f"ledger {claim.tier}", leaf.index + 1, total)

    return Places.of(places()).claim(claim.tier, total)


def _statement(
    manifest: Manifest,
    head: bytes,
    key: SigningKey,
    documents: Documents,
    ledgers: tuple[LedgerClaim, ...],
    findings: _Findings,
    now: int,
) -> DataAudit:
    texts = findings.texts()
    return DataAudit(
        run=manifest.run_id.hex(),
        trainer=manifest.key,
        auditor=key.public.vkey,
        head=head.decode(),
        corpus=documents.root.hex(),
        documents=len(documents.leaves),
        length=documents.size,
        ledgers=ledgers,
        time=now,
        verdict="differs" if texts else "complete",
        findings=texts,
        package=witness.__version__,
    )
