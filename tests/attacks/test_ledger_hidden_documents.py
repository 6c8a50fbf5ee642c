"""A trainer hides a document that it trains on: from the ledger, from the list behind it, or behind another digest.

The root and the list are held to each other for every document; whether a leaf's digest is its document's is seen
where a challenged step reads the document, and opens it from end to end. So a single lie about a single document is
found with the probability that one of its steps is challenged, and the certificate counts the documents that were
opened.
"""

import hashlib
from pathlib import Path

import pytest
from attacks import programs
from attacks.court import audit_of, nonce_that, verify
from attacks.trainers import Cheater, commit

from protocol.corpus import Documents
from protocol.ledger_claim import RAW, document_key
from protocol.places import Places, raw_places
from protocol.session import touched_documents
from witness import ledgers, recorder
from witness.data import Corpus
from witness.program import Program
from witness.programs.mlp import MLP, MLPConfig

HIDDEN = 3


def program() -> MLP:
    return MLP(MLPConfig(columns=4, hidden=8, layers=1, classes=5, steps=programs.STEPS, batch_size=4, halve_every=5))


def steps_that_read(run: Path, hidden: int = HIDDEN) -> list[int]:
    audit = audit_of(run)
    return [step for step in range(1, audit.steps + 1) if hidden in touched_documents(audit, step)]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return commit(Cheater, tmp_path_factory.mktemp("hidden") / "honest", program())


def test_the_honest_run_opens_its_documents(honest: Path) -> None:
    seen = verify(honest, draws=programs.STEPS)
    assert seen.verdict == "reproduced", seen.found
    data = seen.evidence.predicate.data
    audit = audit_of(honest)
    read = {d for step in range(1, audit.steps + 1) for d in touched_documents(audit, step)}
    assert data.checked == len(read) > 3
    assert data.tiers == tuple(ledgers.known_tiers())


def test_a_leaf_with_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leaf names an innocent document; pieces, batches and states are the real one's."""
    honest_data, honest_store = programs.data, recorder.store

    def lie(corpus: Corpus) -> Documents:
        leaves = list(corpus.documents.leaves)
        leaves[HIDDEN] = leaves[HIDDEN]._replace(digest=hashlib.sha256(b"innocent").digest())
        return Documents(leaves, corpus.documents.packing)

    def lying(made: Program) -> Corpus:
        corpus = honest_data(made)
        corpus.documents = lie(corpus)
        return corpus

    def keep(corpus: Corpus, folder: Path) -> None:
        """Keeps the real documents under the lying leaves: the package itself would refuse to."""
        real = honest_data(program())
        honest_store(real, folder)
        (folder / "leaves").write_bytes(b"".join(leaf.to_bytes() for leaf in corpus.documents.leaves))
        index = (folder / "corpus.json").read_bytes()
        (folder / "corpus.json").write_bytes(
            index.replace(real.documents.root.hex().encode(), corpus.documents.root.hex().encode())
        )

    monkeypatch.setattr(programs, "data", lying)
    monkeypatch.setattr(recorder, "store", keep)
    run = commit(Cheater, tmp_path / "run", program(), ledgers=[RAW])
    claim = audit_of(run).manifest.ledgers[0]
    assert raw_places(audit_of(run).documents.leaves).find(document_key(RAW, hashlib.sha256(b"innocent").digest())) == [
        HIDDEN
    ]
    assert claim.documents == audit_of(run).manifest.corpus.documents
    reading = steps_that_read(run)
    hit = verify(run, draws=3, nonce=nonce_that(run, 3, hits=reading[0]))
    assert (hit.verdict, hit.code) == ("diverged", "document-digest"), hit.found
    assert hit.step in reading
    assert hit.found[0][1].evidence["document"] == HIDDEN


def omit(monkeypatch: pytest.MonkeyPatch, change: str, hidden: int = HIDDEN) -> None:
    honest_places = ledgers.places_of

    def forged(corpus: Corpus, tier: str, progress: object = None) -> Places:
        places = list(honest_places(corpus, tier))
        innocent = document_key(tier, hashlib.sha256(b"innocent").digest())
        if change == "left out":
            places = [(key, document) for key, document in places if document != hidden]
        else:
            places = [(innocent if document == hidden else key, document) for key, document in places]
        return Places.of(places)

    monkeypatch.setattr(ledgers, "places_of", forged)


@pytest.mark.parametrize(("change", "code"), [("left out", "ledger-root"), ("replaced", "ledger-root")])
def test_a_raw_ledger_that_does_not_follow_from_the_leaves(
    change: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        omit(patch, change)
        run = commit(Cheater, tmp_path / "run", program(), ledgers=[RAW])
    seen = verify(run)
    assert (seen.verdict, seen.found[0][0], seen.code) == ("diverged", "ledgers", code), seen.found


@pytest.mark.parametrize(("change", "code"), [("left out", "ledger-documents"), ("replaced", "ledger-omission")])
def test_a_ledger_of_normalised_text_that_hides_a_document(
    change: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = next(t for t in ledgers.known_tiers() if t != RAW)
    with monkeypatch.context() as patch:
        omit(patch, change)
        run = commit(Cheater, tmp_path / "run", program(), ledgers=[tier])
    reading = steps_that_read(run)
    seen = verify(run, draws=3, nonce=nonce_that(run, 3, hits=reading[0]))
    assert (seen.verdict, seen.code) == ("diverged", code), seen.found
    if code == "ledger-omission":
        assert seen.step in reading


def test_spans_that_are_left_out_are_missed_where_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = "t2-winnow-bytes-k4-w3"
    honest = commit(Cheater, tmp_path / "honest", programs.gpt(), ledgers=[tier])
    assert verify(honest, draws=3).verdict == "reproduced"
    audit = audit_of(honest)
    hidden = touched_documents(audit, 5)[0]
    assert audit.documents.leaves[hidden].length >= 6
    with monkeypatch.context() as patch:
        omit(patch, "left out", hidden)
        run = commit(Cheater, tmp_path / "run", programs.gpt(), ledgers=[tier])
    reading = steps_that_read(run, hidden)
    seen = verify(run, draws=3, nonce=nonce_that(run, 3, hits=reading[0]))
    assert (seen.verdict, seen.code) == ("diverged", "ledger-omission"), seen.found
    assert seen.found[0][1].evidence["tier"] == tier
