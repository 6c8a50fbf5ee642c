"""A run folder made by hand, in milliseconds: a true log, corpus and ledgers over invented states, for questions.

What a dishonest trainer would write is made by the same hands: other records, and ledgers over other documents.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from protocol.corpus import Packing
from protocol.encoding import encode, f32, f64
from protocol.keys import SigningKey
from protocol.ledger_claim import LedgerClaim
from protocol.manifest import Manifest, ProgramClaim, Seed, SourceFile
from protocol.native_profile import NativeProfile, Threads
from protocol.operations import OperationProbe
from protocol.places import Places
from protocol.records import CheckpointEvent, FaultEvent, FinalEvent, Fingerprint, InitRecord, StepRecord
from protocol.schedule import Schedule
from protocol.statetree import Pieces
from witness import ledgers
from witness.data import Corpus, open_corpus, store
from witness.rundir import RunDir

KEY = SigningKey("trainer.example", bytes(range(1, 33)))
SEED = "11" * 32
SPANS = "t2-winnow-bytes-k32-w19"
Made = list[tuple[LedgerClaim, Places]]


def _corpus(texts: Sequence[bytes], packing: Packing, tokens: str, folder: Path) -> Corpus:
    if tokens == "bytes":
        return open_corpus(list(texts), packing)
    path = folder.with_suffix(".npy")
    np.save(path, np.array([list(text) for text in texts], dtype=np.uint8).view("<u2"))
    return open_corpus(path, packing, tokens=tokens)


def made_run(
    folder: Path,
    texts: Sequence[bytes],
    *,
    packing: Packing = Packing("documents"),  # noqa: B008 - frozen
    steps: int = 8,
    batch: int = 4,
    tiers: Sequence[str] | None = None,
    rate: Callable[[int], float] = lambda _: 0.5,
    name: str = "learning_rate",
    change: Callable[[Made], Made] = lambda made: made,
    faults: int = 0,
    final: bool = True,
    tokens: str = "bytes",
) -> RunDir:
    """A run over texts.

    Args:
        folder: to make.
        texts: the documents.
        packing: how samples are cut.
        steps: recorded.
        batch: samples a step.
        tiers: of its ledgers; those of documents and one of spans by default.
        rate: learning rate of a step.
        name: under which it is recorded.
        change: makes other ledgers of the true ones.
        faults: declared at the end.
        final: whether the run ended.
        tokens: what a token is: `bytes`, or `uint16`, of texts of one length.
    """
    run = RunDir.create(folder)
    corpus = _corpus(texts, packing, tokens, folder)
    made = change(ledgers.commit(corpus, tiers if tiers is not None else [*ledgers.known_tiers(), SPANS]))
    source = b"class Invented: ...\n"
    manifest = Manifest(
        key=KEY.public.vkey,
        program=ProgramClaim(
            "invented:Invented",
            "files",
            (SourceFile("invented.py", hashlib.sha256(source).hexdigest(), len(source)),),
            [[], {}],
        ),
        corpus=corpus.claim(),
        seed=Seed(SEED),
        batch_size=batch,
        steps=steps,
        commit_every=1,
        checkpoint_every=steps,
        probe_samples=0,
        pieces=Pieces(4096),
        profile=NativeProfile({}, {}, {}, {}, Threads(1, 1)),
        operations=OperationProbe(),
        package="0",
        ledgers=tuple(claim for claim, _ in made),
    )
    store(corpus, run.corpus)
    ledgers.store(run.corpus, made)
    schedule = Schedule(bytes.fromhex(SEED), corpus.documents.samples, batch)
    with run.log() as log:
        log.append(encode(manifest))
        log.append(encode(InitRecord("44" * 32)))
        for step in range(1, steps + 1):
            records = corpus.documents.records_digest(step, schedule.indices(step)).hex()
            trace = Fingerprint(f32(1.0 / step), f32(1.0), (f32(1.0),), None)
            log.append(encode(StepRecord(step, records, "22" * 32, {name: f64(rate(step))}, trace, "33" * 32)))
            if step == steps // 2:
                log.append(encode(CheckpointEvent(step, "33" * 32)))
        for _ in range(faults):
            log.append(encode(FaultEvent(1, "a disk was full")))
        if final:
            log.append(encode(FinalEvent(steps, "33" * 32, "55" * 32)))
        run.sign_head(log, manifest.origin, KEY)
    run.write_program({"invented.py": source})
    (run.path / "key").write_text(KEY.secret_text + "\n")
    return run
