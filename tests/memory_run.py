"""A small run that exists in memory only: a valid log over invented states, for tests of sessions."""

import hashlib
from collections.abc import Iterator

from protocol import merkle
from protocol.checks import LogAudit
from protocol.corpus import Documents, Packing, describe, iterate_pieces, piece_leaf
from protocol.encoding import encode, f32
from protocol.errors import ProtocolError
from protocol.keys import SigningKey
from protocol.manifest import Manifest, ProgramClaim, Seed, SourceFile
from protocol.native_profile import NativeProfile, Threads
from protocol.notes import Checkpoint, sign_head
from protocol.operations import OperationProbe
from protocol.proving import StatePending
from protocol.records import CheckpointEvent, FinalEvent, Fingerprint, InitRecord, StepRecord
from protocol.schedule import Schedule
from protocol.statetree import Entry, Pieces, Table, digest_pieces

KEY = SigningKey("memory.example/run", bytes(range(32)))
SOURCE = b"class Invented:\n    pass\n"


class MemoryRun:
    """Implements `protocol.proving.Archive`.

    Args:
        steps: length of the run.
        state_bytes: size of a state.
        pending: how often each table is Pending before it is there.
    """

    def __init__(self, steps: int = 6, state_bytes: int = 10_000, pending: int = 0) -> None:
        self.texts = [b"one document, " * 400, b"", b"another"]
        starts = [sum(map(len, self.texts[:i])) for i in range(3)]
        documents = Documents(
            [describe(i, start, [text]) for i, (start, text) in enumerate(zip(starts, self.texts, strict=True))],
            Packing("windows", 64, 64),
        )
        self.pieces = Pieces(4096)
        self.manifest = Manifest(
            key=KEY.public.vkey,
            program=ProgramClaim(
                "invented:Invented",
                "files",
                (SourceFile("invented.py", hashlib.sha256(SOURCE).hexdigest(), len(SOURCE)),),
                [[], {}],
            ),
            corpus=documents.claim(),
            seed=Seed("11" * 32),
            batch_size=4,
            steps=steps,
            commit_every=1,
            checkpoint_every=steps,
            probe_samples=0,
            pieces=self.pieces,
            profile=NativeProfile({}, {}, {}, {}, Threads(1, 1)),
            operations=OperationProbe(),
            package="0",
        )
        self.states = [hashlib.shake_128(b"state %d" % step).digest(state_bytes) for step in range(steps + 1)]
        self._entry = Entry("model/weight", "uint8", (state_bytes,))
        self._pending = dict.fromkeys(range(steps + 1), pending)
        self._owed = pending
        self.expected: list[list[int]] = []
        self.log = self._record(documents)
        self.audit = LogAudit(documents)
        for entry in self.log:
            self.audit.read(entry)
        leaves = [merkle.leaf_hash(entry) for entry in self.log]
        head = Checkpoint(self.manifest.origin, len(leaves), merkle.root(leaves))
        self.head = sign_head(head, KEY)
        self.heads = [self.head]
        self.audit.finish(head)

    def _record(self, documents: Documents) -> list[bytes]:
        schedule = Schedule(bytes.fromhex("11" * 32), documents.samples, 4)
        roots = [self._table(step).root.hex() for step in range(len(self.states))]
        entries: list[object] = [self.manifest, InitRecord(roots[0])]
        for step in range(1, len(self.states)):
            records = documents.records_digest(step, schedule.indices(step)).hex()
            trace = Fingerprint(f32(1.0 / step), f32(1.0), (f32(1.0),), None)
            entries.append(StepRecord(step, records, "22" * 32, {"lr": 1}, trace, roots[step]))
        last = len(self.states) - 1
        entries += [CheckpointEvent(last, roots[last]), FinalEvent(last, roots[last], "33" * 32)]
        return [encode(entry) for entry in entries]

    def _table(self, step: int) -> Table:
        return Table([self._entry], digest_pieces(self._entry, self.pieces, self.states[step]), self.pieces)

    def entries(self, first: int, stop: int) -> Iterator[bytes]:
        return iter(self.log[first:stop])

    def source(self, path: str) -> bytes:
        if path != "invented.py":
            raise ProtocolError("program-source", f"no file {path}")
        return SOURCE

    def expect(self, steps: list[int]) -> None:
        self.expected.append(steps)

    def table(self, step: int) -> Table:
        if self._pending[step]:
            self._pending[step] -= 1
            raise StatePending(self._owed - self._pending[step], self._owed)
        return self._table(step)

    def read(self, step: int, name: str) -> bytes:
        assert name == self._entry.name
        return self.states[step]

    def piece(self, document: int, piece: int) -> tuple[bytes, list[bytes]]:
        cut = list(iterate_pieces(self.texts[document]))
        return cut[piece], merkle.Tree(piece_leaf(part) for part in cut).inclusion_proof(piece)
