"""The stored corpus against the manifest, and every document's bytes against the stored corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.corpus import LEAF_BYTES, MAX_DOCUMENTS, CorpusClaim, Document, Documents, describe, parse_leaves
from protocol.encoding import decode
from protocol.errors import ProtocolError, UsageError, VerificationError, WitnessError
from protocol.ledger_claim import RAW, LedgerClaim
from witness.data import open_stored
from witness.data.files import DataFile, FileCorpus
from witness.data.stored import DATA, INDEX, LEAVES, MAX_INDEX, StoredCorpus
from witness.fsck.findings import Findings
from witness.fsck.meter import Meter
from witness.ledgers import open_places, path_of
from witness.logreader import require_file
from witness.rundir import RunDir

_COPY = "restore the file from a copy of the run"


def read_leaves(run: RunDir, claim: CorpusClaim, findings: Findings) -> Documents | None:
    """The stored leaves, if they are the committed ones.

    Args:
        run: the directory.
        claim: from the manifest.
        findings: hears what is wrong with them.
    """
    path = run.corpus / LEAVES
    try:
        if require_file(path) > LEAF_BYTES * MAX_DOCUMENTS:
            raise ProtocolError("corpus-leaves", f"{path.name} is longer than any list of leaves")
        documents = Documents(parse_leaves(path.read_bytes()), claim.packing, claim.tokenizer)
        documents.check(claim)
    except WitnessError as error:
        findings.add(error, path, action=_COPY)
        return None
    return documents


def check_ledgers(run: RunDir, claims: Sequence[LedgerClaim], documents: Documents | None, findings: Findings) -> None:
    """Holds the list behind every ledger to its claim; the list of raw documents follows from the leaves.

    Args:
        run: the directory.
        claims: from the manifest.
        documents: the committed leaves; None when they are damaged.
        findings: hears what is wrong.
    """
    for claim in claims:
        if documents is None:
            findings.unchecked.append(f"the ledger {claim.tier}: the leaves of the corpus are damaged")
            continue
        path = run.corpus / LEAVES if claim.tier == RAW else path_of(run.corpus, claim.tier)
        try:
            require_file(path)
            open_places(run.corpus, claim, documents).check(claim)
        except WitnessError as error:
            findings.add(error, path, action=_COPY)


def check_corpus(
    run: RunDir, claim: CorpusClaim, documents: Documents | None, data: Path | None, findings: Findings, meter: Meter
) -> None:
    """Reads the index, then every document.

    Args:
        run: the directory.
        claim: from the manifest.
        documents: the committed leaves; None when they are damaged.
        data: where the data lies now, if it was moved.
        findings: hears what is wrong.
        meter: counts the bytes of the documents.
    """
    whole = _check_index(run, claim, findings)
    if documents is None:
        findings.unchecked.append("the bytes of the corpus: its leaves are damaged")
        return
    try:
        if whole:
            corpus = open_stored(run.corpus, data)
        elif (run.corpus / DATA).is_file():  # what an undamaged index would say of a copy
            corpus = FileCorpus(documents, claim.source, [DataFile(str(run.corpus / DATA))], offset=0)
        else:
            findings.unchecked.append("the bytes of the corpus: the file that says where they are is damaged")
            return
    except WitnessError as error:
        at = error.evidence.get("path")
        path = Path(at) if isinstance(at, str) else run.corpus / INDEX
        findings.add(error, path, action=None if isinstance(error, UsageError) else _advice(run, path))
        findings.unchecked.append("the bytes of each document: the data as a whole is not what was committed")
        return
    if isinstance(corpus, FileCorpus):
        _check_documents(run, corpus, findings, meter)


def _check_index(run: RunDir, claim: CorpusClaim, findings: Findings) -> bool:
    path = run.corpus / INDEX
    try:
        require_file(path)
        with path.open("rb") as file:
            index = decode(file.read(MAX_INDEX + 1), StoredCorpus, limit=MAX_INDEX)
        if index.claim != claim:
            raise VerificationError("corpus-root", f"{path.name} describes another corpus than the manifest")
    except WitnessError as error:
        findings.add(error, path, action=_COPY)
        return False
    return True


def _leaf_again(corpus: FileCorpus, leaf: Document, meter: Meter) -> Document:
    return describe(leaf.index, leaf.token_start, meter.watch(corpus.chunks(leaf.index)), corpus.documents.width)


def _check_documents(run: RunDir, corpus: FileCorpus, findings: Findings, meter: Meter) -> None:
    with meter.part("the corpus", corpus.documents.size):
        for leaf in corpus.documents.leaves:
            path = Path(str(corpus.file_of(leaf.index)))
            try:
                if _leaf_again(corpus, leaf, meter) != leaf:
                    raise corpus.changed(leaf.index)
            except VerificationError as error:
                findings.add(error, path, action=_advice(run, path))
            except WitnessError as error:
                findings.add(error, path)
                if corpus.offset is not None:  # one file that cannot be read holds all the others
                    return
            else:
                findings.counts.documents += 1


def _advice(run: RunDir, path: Path) -> str | None:
    return _COPY if path.is_relative_to(run.path) else None
