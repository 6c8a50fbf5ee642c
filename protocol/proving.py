"""The trainer's end of a session: answers what the session's rules allow, and nothing else.

Specified in spec/session.md, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from protocol import PROTOCOL_VERSION, checks
from protocol import messages as m
from protocol.binding import statement_text
from protocol.corpus import LEAF_BYTES
from protocol.encoding import encode
from protocol.errors import ProtocolError, WitnessError
from protocol.keys import SigningKey
from protocol.notes import parse_checkpoint, parse_note, sign_note
from protocol.places import PLACE_BYTES, Places
from protocol.randomness import check_nonce, session_seed
from protocol.required import draws_asked
from protocol.session import Challenge, challenges, needed_pieces, segment
from protocol.soundness import MAX_DRAWS
from protocol.statetree import Table, ranges


class StatePending(Exception):  # noqa: N818 - a state of affairs, not a failure
    """A state is still being rebuilt: `done` of `total` steps."""

    def __init__(self, done: int, total: int) -> None:
        super().__init__(f"{done} of {total}")
        self.done, self.total = done, total


class Archive(Protocol):
    """What a prover's end needs of a run; `witness.prover` implements it on a run directory."""

    audit: checks.LogAudit
    head: bytes
    heads: list[bytes]

    def entries(self, first: int, stop: int) -> Iterator[bytes]:
        """Log entries."""

    def source(self, path: str) -> bytes:
        """A source file."""

    def places(self, tier: str) -> Places:
        """The list behind the ledger of a tier."""

    def expect(self, steps: list[int]) -> None:
        """Announces the steps whose states will be asked for."""

    def table(self, step: int) -> Table:
        """The table of the state after `step`; raises `StatePending` while it is rebuilt."""

    def read(self, step: int, name: str) -> bytes:
        """The bytes of one entry of that state."""

    def piece(self, document: int, piece: int) -> tuple[bytes, list[bytes]]:
        """A piece of a document and its proof."""


class ProverSession:
    """The trainer's end: answers what the session's rules allow, and nothing else.

    Args:
        archive: of the run.
        session: 16 fresh random bytes.
        key: the trainer's; None when verifier and archive are on one machine and no statement is needed.
    """

    def __init__(self, archive: Archive, session: bytes, key: SigningKey | None) -> None:
        self.archive, self.id, self._key = archive, session.hex(), key
        self._head = parse_checkpoint(parse_note(archive.head).text.encode())
        self._hello: m.Hello | None = None
        self._reveal: m.Reveal | None = None
        self._challenges: list[Challenge] | None = None
        self.closed = False

    def handle(self, data: bytes) -> bytes:
        """Answers one request frame with one reply frame; errors become refusals, never exceptions."""
        try:
            return self._answer(m.unpack_request(data))
        except StatePending as pending:
            return m.pack(m.Pending(pending.done, pending.total))
        except WitnessError as error:
            return m.pack(m.Refusal(error.code, str(error)[:512]))

    def _answer(self, request: m.Request) -> bytes:
        if isinstance(request, m.Hello):
            return self._welcome(request)
        if self._hello is None or request.session != self.id or (self.closed and not isinstance(request, m.Close)):
            raise ProtocolError("session", "no such session")
        if isinstance(request, m.GetHeads):
            return self._heads(request.first)
        if isinstance(request, m.GetLog):
            return self._log(request.first)
        if isinstance(request, m.GetLeaves):
            leaves = self.archive.audit.documents.leaves
            chosen = leaves[request.first : request.first + m.PART // LEAF_BYTES]
            return m.pack(m.Part(request.first, len(leaves)), chosen.to_bytes())
        if isinstance(request, m.GetPlaces):
            places = self.archive.places(request.tier)
            step = m.PART // PLACE_BYTES
            data = bytes(places.data[request.first * PLACE_BYTES : (request.first + step) * PLACE_BYTES])
            return m.pack(m.Part(request.first, len(places)), data)
        if isinstance(request, m.GetSource):
            return m.pack(m.Part(0, 1), self.archive.source(request.path))
        if isinstance(request, m.Reveal):
            return self._revealed(request)
        if isinstance(request, m.Close):
            self.closed = True
            return m.pack(m.Done())
        return self._open(request)

    def _welcome(self, hello: m.Hello) -> bytes:
        if self._hello is not None:
            raise ProtocolError("session", "this session is already bound")
        if hello.version != PROTOCOL_VERSION:
            raise ProtocolError("session", f"this prover speaks {PROTOCOL_VERSION}")
        draws_asked(hello.policy, max(1, self.archive.audit.steps))  # refuses a policy that means nothing
        self._hello = hello
        statement = None
        if self._key is not None:
            text = statement_text(self.id, hello.policy, hello.commitment, self._head.body())
            statement = sign_note(text, self._key).decode()
        return m.pack(m.Welcome(self.id, self.archive.head.decode(), statement))

    def _heads(self, first: int) -> bytes:
        """Notes are of any length, because anybody may have cosigned; all of them stand in the header of the reply."""
        chosen: list[str] = []
        room = m.MAX_HEADER - m.HEADER_ROOM
        for note in self.archive.heads[first:]:
            text = note.decode()
            room -= len(encode(text)) + 1
            if room < 0:
                break
            chosen.append(text)
        return m.pack(m.Heads(first, len(self.archive.heads), tuple(chosen)))

    def _log(self, first: int) -> bytes:
        chosen: list[bytes] = []
        size = 0
        for entry in self.archive.entries(first, self._head.size):
            if chosen and size + len(entry) > m.PART:
                break
            chosen.append(entry)
            size += len(entry)
        return m.pack(m.Part(first, self._head.size), m.join_entries(chosen))

    def _revealed(self, request: m.Reveal) -> bytes:
        if request == self._reveal:
            return m.pack(m.Done())  # the reply to the first one was lost on its way: the same again changes nothing
        if self._hello is None or self._reveal is not None:
            raise ProtocolError("session", "the nonce was revealed before")
        if request.draws > min(self.archive.audit.steps, MAX_DRAWS):
            raise ProtocolError("session", f"{request.draws} draws of {self.archive.audit.steps} steps")
        nonce, commitment = bytes.fromhex(request.nonce), bytes.fromhex(self._hello.commitment)
        check_nonce(nonce, commitment)
        seed = session_seed(
            session=bytes.fromhex(self.id),
            policy=encode(self._hello.policy),
            commitment=commitment,
            head=self._head.body(),
            nonce=nonce,
        )
        self._challenges = challenges(self.archive.audit, self._hello.policy, seed, request.draws)
        self._reveal = request
        self.archive.expect(sorted(self._challenged()))
        return m.pack(m.Done())

    def _challenged(self) -> set[int]:
        """The steps whose states the challenges start from and end at."""
        return {step for c in self._challenges or () for step in segment(self.archive.audit.manifest, c.step)}

    def _open(self, request: m.OpenState | m.ReadPieces | m.OpenRecords) -> bytes:
        """States of challenged steps and kept ones, and the records of any step; nothing before the nonce is known."""
        if self._challenges is None:
            raise ProtocolError("session", "nothing is opened before the nonce is revealed")
        audit = self.archive.audit
        if isinstance(request, m.OpenRecords):
            if not 1 <= request.step <= audit.steps:
                raise ProtocolError("session", f"there is no step {request.step}")
            return self._records(request)
        if request.step not in self._challenged() | {0, *audit.checkpoints}:
            raise ProtocolError("session", f"step {request.step} was not drawn")
        table = self.archive.table(request.step)
        if isinstance(request, m.OpenState):
            data = table.to_bytes()
            return m.pack(m.Part(request.first, len(data)), data[request.first : request.first + m.PART])
        chosen: list[bytes] = []
        size = index = 0
        for entry in table.entries:
            data = b""
            for start, stop in ranges(entry, table.pieces):
                if index >= request.first:
                    if chosen and size + stop - start > m.PART:
                        return m.pack(m.Part(request.first, len(table.digests)), b"".join(chosen))
                    data = data or self.archive.read(request.step, entry.name)
                    chosen.append(data[start:stop])
                    size += stop - start
                index += 1
        return m.pack(m.Part(request.first, len(table.digests)), b"".join(chosen))

    def _records(self, request: m.OpenRecords) -> bytes:
        needed = needed_pieces(self.archive.audit, request.step)
        lengths: list[int] = []
        proofs: list[tuple[str, ...]] = []
        payload: list[bytes] = []
        for document, piece in needed[request.first :]:
            if len(lengths) >= 1024:
                break
            data, proof = self.archive.piece(document, piece)
            lengths.append(len(data))
            proofs.append(tuple(node.hex() for node in proof))
            payload.append(data)
        return m.pack(m.Records(request.first, len(needed), tuple(lengths), tuple(proofs)), b"".join(payload))
