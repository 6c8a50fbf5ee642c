"""Opened states and records as they arrive: each part is held to what was committed before the next is asked for.

Specified in spec/openings.md, sections 2 and 3.
"""

import hashlib

from protocol import checks
from protocol import messages as m
from protocol.corpus import check_piece
from protocol.errors import ProtocolError, VerificationError
from protocol.proving import StatePending
from protocol.session import needed_pieces
from protocol.statetree import MAX_TABLE, Table


def expect(reply: bytes, kind: type[m.S]) -> tuple[m.S, bytes]:
    """The reply, or the refusal as an error.

    Raises:
        StatePending: the prover is still at it.
        VerificationError: `refused`.
    """
    header, payload = m.unpack_reply(reply, kind)
    if isinstance(header, m.Pending):
        raise StatePending(header.done, header.total)
    if isinstance(header, m.Refusal):
        raise VerificationError(
            "refused", f"the prover refuses: {header.message}", evidence={"prover_code": header.code}
        )
    return header, payload


class StateOpening:
    """A state as it arrives: first its table, which must have the committed root, then its pieces.

    Args:
        session: id.
        step: the state after this step.
        audit: of the log.
    """

    def __init__(self, session: str, step: int, audit: checks.LogAudit) -> None:
        self._session, self.step = session, step
        self._root, self._pieces = audit.state_root(step), audit.manifest.pieces
        self._parts = bytearray()
        self.table: Table | None = None
        self._next = 0

    def table_request(self) -> bytes:
        """Asks for the table."""
        return m.pack(m.OpenState(self._session, self.step, len(self._parts)))

    def take_table(self, reply: bytes) -> bool:
        """Collects the table; True when it is there and has the committed root.

        Raises:
            VerificationError: `state-root`, `refused`.
        """
        part, payload = expect(reply, m.Part)
        if part.first != len(self._parts) or part.total > MAX_TABLE or not payload:
            raise ProtocolError("frame", "a state table does not go on where it stopped")
        self._parts += payload
        if len(self._parts) < part.total:
            return False
        self.table = Table.from_bytes(bytes(self._parts), self._pieces, root=self._root)
        self._parts.clear()
        return True

    def pieces_request(self, first: int | None = None) -> bytes:
        """Asks for bytes from the next piece on, or from piece `first` on."""
        if first is not None:
            self._next = first
        return m.pack(m.ReadPieces(self._session, self.step, self._next))

    def take_pieces(self, reply: bytes) -> tuple[list[tuple[str, bytes]], bool]:
        """The pieces that came, as `(entry name, bytes)` in order, each checked; and whether they were the last.

        Raises:
            VerificationError: `state-bytes`.
        """
        if self.table is None:
            raise RuntimeError("the table comes first")
        _, payload = expect(reply, m.Part)
        found: list[tuple[str, bytes]] = []
        at = 0
        while at < len(payload) or (self._next < len(self.table.digests) and self._size(self._next) == 0):
            if self._next >= len(self.table.digests):
                raise ProtocolError("frame", "more pieces than the state has")
            entry, start, stop = self.table.piece(self._next)
            piece = payload[at : at + stop - start]
            if hashlib.sha256(piece).digest() != self.table.digests[self._next] or len(piece) != stop - start:
                raise VerificationError(
                    "state-bytes",
                    f"bytes {start} to {stop} of {entry.name} are not the committed ones",
                    evidence={"step": self.step, "tensor": entry.name},
                )
            found.append((entry.name, piece))
            at += stop - start
            self._next += 1
        if not found:
            raise ProtocolError("frame", "an answer without pieces")
        return found, self._next == len(self.table.digests)

    def _size(self, index: int) -> int:
        if self.table is None:
            return 0
        _, start, stop = self.table.piece(index)
        return stop - start


class RecordsOpening:
    """The corpus pieces of one step as they arrive, each checked against its document's leaf.

    Args:
        session: id.
        step: whose records.
        audit: of the log.
    """

    def __init__(self, session: str, step: int, audit: checks.LogAudit) -> None:
        self._session, self.step, self._documents = session, step, audit.documents
        self._needed = needed_pieces(audit, step)
        self.pieces: dict[tuple[int, int], bytes] = {}

    def request(self) -> bytes:
        """Asks for the next pieces."""
        return m.pack(m.OpenRecords(self._session, self.step, len(self.pieces)))

    def take(self, reply: bytes) -> bool:
        """Collects pieces; True when all are there.

        Raises:
            VerificationError: `record-bytes`, `refused`.
        """
        header, payload = expect(reply, m.Records)
        done = len(self.pieces)
        wanted = self._needed[done : done + len(header.lengths)]
        fits = (
            header.first == done
            and header.total == len(self._needed)
            and len(wanted) == len(header.lengths) == len(header.proofs)
        )
        if not fits or sum(header.lengths) != len(payload) or not wanted:
            raise ProtocolError("frame", f"the opened records of step {self.step} are not the ones asked for")
        at = 0
        for (document, piece), length, proof in zip(wanted, header.lengths, header.proofs, strict=True):
            data = payload[at : at + length]
            check_piece(self._documents.leaves[document], piece, data, [bytes.fromhex(node) for node in proof])
            self.pieces[document, piece] = data
            at += length
        return len(self.pieces) == len(self._needed)
