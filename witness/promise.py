"""What a run promises: from the arguments of a caller to a manifest that lacks only the machine.

The numeric profile and the operation probe come from a step on a scratch copy; everything else is decided here, before
anything is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import witness
from protocol.errors import UsageError
from protocol.keys import PublicKey
from protocol.ledger_claim import LedgerClaim
from protocol.manifest import Manifest, ProgramClaim, Seed
from protocol.operations import OperationProbe
from protocol.places import Places
from protocol.profile import Profile, full_name
from protocol.schedule import Schedule
from protocol.statetree import Pieces
from witness import ledgers, profile, source
from witness.data import Corpus
from witness.program import Program, plain_arguments


@dataclass(frozen=True, slots=True)
class Settings:
    """What a caller may choose besides program, data and key; None leaves it to the program or to the defaults.

    Attributes:
        steps: how many steps are promised.
        batch_size: samples a step.
        seed: an integer, or 32 bytes.
        checkpoint_every: keep the state every so many steps.
        commit_every: commit the state root every so many steps.
        pieces: bytes of a state piece.
        ledgers: tiers of the ledgers over the corpus; `default` stands for every tier of documents that this Python can
            compute, or raw bytes alone where a document is too large for the others.
        profile: numeric profile: `native`, `exact`, or an arithmetic by its full name.
    """

    steps: int | None = None
    batch_size: int | None = None
    seed: int | bytes = 0
    checkpoint_every: int | None = None
    commit_every: int = 1
    pieces: int | None = None
    ledgers: Sequence[str] = ("default",)
    profile: str = profile.DEFAULT


class Promise:
    """A manifest in the making.

    Args:
        program: the run's.
        corpus: the run's.
        settings: of the caller.

    Raises:
        UsageError: `empty-corpus`, `schedule`, `program-source-missing`, `unencodable`, `ledger-tier`,
            `profile-unknown`.
    """

    def __init__(self, program: Program, corpus: Corpus, settings: Settings) -> None:
        self.corpus = corpus
        self.profile = full_name(settings.profile)
        self.steps = settings.steps if settings.steps is not None else program.steps
        self.batch_size = settings.batch_size if settings.batch_size is not None else program.batch_size
        self.commit_every = max(1, settings.commit_every)
        keep = settings.checkpoint_every or max(1, -(-self.steps // 20))
        self.checkpoint_every = -(-keep // self.commit_every) * self.commit_every
        self.seed = _seed(settings.seed)
        Schedule(self.seed, corpus.documents.samples, self.batch_size)  # refuses an empty corpus
        claim, self.files = source.collect(type(program))
        self.program = ProgramClaim(claim.entry, claim.kind, claim.files, plain_arguments(program))
        self.probe_samples = program.probe_samples if program.has_probe() else 0
        self.pieces = Pieces(settings.pieces) if settings.pieces else Pieces()
        tiers = [
            t for name in settings.ledgers for t in (ledgers.default_tiers(corpus) if name == "default" else [name])
        ]
        self.ledgers: list[tuple[LedgerClaim, Places]] = ledgers.commit(corpus, tiers)

    def manifest(self, key: PublicKey, numeric: Profile, operations: OperationProbe) -> Manifest:
        """The manifest, for a key and a machine."""
        return Manifest(
            key=key.vkey,
            program=self.program,
            corpus=self.corpus.claim(),
            seed=Seed(self.seed.hex()),
            batch_size=self.batch_size,
            steps=self.steps,
            commit_every=self.commit_every,
            checkpoint_every=self.checkpoint_every,
            probe_samples=self.probe_samples,
            pieces=self.pieces,
            profile=numeric,
            operations=operations,
            package=witness.__version__,
            ledgers=tuple(claim for claim, _ in self.ledgers),
        )


def _seed(seed: int | bytes) -> bytes:
    value = seed if isinstance(seed, bytes) else hashlib.sha256(f"training-witness own seed {seed}".encode()).digest()
    if len(value) != 32:
        raise UsageError("schedule", "a seed is an integer or 32 bytes")
    return value
