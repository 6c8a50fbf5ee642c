"""Answers questions about a run's data from its folder: the keeper's side. Needs no torch.

What it gives is checked by `protocol.answering` on the asker's side, also where both are one process.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from protocol import merkle
from protocol.answer import MAX_LISTED, MAX_RECORDS, MAX_SHOWN, MAX_TAIL, Answer, Logged, Reply, SpanReply
from protocol.answering import steps_said
from protocol.corpus import token_bytes
from protocol.encoding import encode_trusted
from protocol.errors import ProtocolError, VerificationError
from protocol.leaves import Document, Leaves
from protocol.ledger_claim import Occurrences
from protocol.notes import open_head
from protocol.records import FaultEvent, StepRecord, parse_entry
from protocol.replies import part_of
from protocol.usage import Orders, steps_of, usage
from witness.books import Books
from witness.logreader import LogReader
from witness.rundir import RunDir, trainer_key
from witness.spans import opened, span_reply
from witness.statefile import naming

ORDERS_ROOM = 1 << 27
"""Bytes of the orders of epochs that are kept between questions."""
_STEP = b'"type":"step"'
"""Stands in the record of a step and in no other entry: quotes within a string are escaped."""
Draft = tuple[Reply | SpanReply, Sequence[Document]]


class Answerer:
    """Answers about one run under one of its heads; safe to call from several threads.

    Args:
        run: the directory.
        size: of the head; the newest when None.
        data: where the corpus lies now, if it moved; spans are opened only where it can be read.
        books: ledgers opened before, for the same run.
        orders: kept between questions, also by who checks the answers.

    Raises:
        ProtocolError, VerificationError: when log, head or corpus leaves do not hold together.
    """

    def __init__(
        self,
        run: RunDir,
        *,
        size: int | None = None,
        data: Path | None = None,
        books: Books | None = None,
        orders: Orders | None = None,
    ) -> None:
        self.head = run.latest_head() if size is None else run.read_head(size)
        self._log_path = run.log_path
        self.manifest = run.manifest()
        with naming(run.heads / f"{size or run.head_sizes()[-1]:012}.note"):
            head = open_head(self.head, [trainer_key(self.manifest)], self.manifest.origin)
        hashes, self._skipped = list[bytes](), list[int]()
        """Of each entry that is no step's: how many steps are recorded before it."""
        with LogReader(run.log_path) as log:
            for index, entry in enumerate(log.entries(0, head.size)):
                hashes.append(merkle.leaf_hash(entry))
                if index == 0 or _STEP not in entry:
                    self._skipped.append(index - len(self._skipped))
        self._tree = merkle.Tree.packed(b"".join(hashes))
        if self._tree.size != head.size or self._tree.root() != head.root:
            raise VerificationError("head-root", f"the head over {head.size} entries is not one of this log")
        self.books = books or Books(run, self.manifest, data)
        self._size = head.size
        self._tail, self.steps = self._last_entries()
        self._orders = orders or Orders(ORDERS_ROOM)

    @property
    def tiers(self) -> list[str]:
        """Of the run's ledgers."""
        return self.books.tiers

    def digests(
        self, questions: Iterable[tuple[str, bytes]], evidence: Sequence[bytes] = (), *, room: int | None = None
    ) -> Answer:
        """One answer to many questions, each a tier and a digest.

        Args:
            questions: at least one.
            evidence: certificates and audits to come with it.
            room: bytes for replies and records; questions that do not fit are left out, from the end, but for one.

        Raises:
            UsageError: `ledger-tier`, for a tier that the run has no ledger of.
        """
        drafts, left = list[Draft](), room
        for question in questions:
            drafts.append(self._reply(*question))
            if left is not None:
                left -= _size(drafts[-1][0])
                if left < 0:
                    break
        return self._answer(drafts, evidence, room)

    def spans(self, tier: str, spans: Iterable[bytes], evidence: Sequence[bytes] = ()) -> Answer:
        """One answer to questions about spans whose text is at hand; what holds them is opened, where it can be.

        Raises:
            UsageError: `ledger-tier`; `span-length`, for a span below the tier's guarantee, or above `MAX_SPAN`.
        """
        return self._answer([self._span_reply(tier, span) for span in spans], evidence)

    def _answer(self, drafts: Sequence[Draft], evidence: Sequence[bytes], room: int | None = None) -> Answer:
        used = iter(usage(self.manifest, self.steps, [part for _, parts in drafts for part in parts], self._orders))
        records: dict[int, Logged | None] = {}
        replies, taken = list[Reply | SpanReply](), 0
        with LogReader(self._log_path) as log:
            for reply, parts in drafts:
                taken += 0 if room is None else _size(reply)
                for uses in islice(used, len(parts)):
                    for step in steps_of(uses or ())[:MAX_SHOWN]:
                        if step in records or len(records) >= MAX_RECORDS or (room is not None and taken > room):
                            continue
                        records[step] = logged = self._record(log, step)
                        taken += 0 if room is None or logged is None else _size(logged)
                if room is not None and taken > room and replies:
                    break
                replies.append(reply)
        return Answer(
            head=self.head.decode(),
            manifest=self.manifest,
            manifest_proof=self._path(0),
            tail=self._tail,
            replies=tuple(replies),
            records=tuple(logged for _, logged in sorted(records.items()) if logged is not None),
            evidence=tuple(data.decode() for data in evidence),
        )

    def _reply(self, tier: str, digest: bytes) -> Draft:
        book = self.books.of(tier)
        proof, found = book.answer(digest)
        if found is None:
            return Reply(tier, digest.hex(), "absent", proof.to_bytes().hex(), None, ()), ()
        documents = () if book.claim.of_spans else found.documents[:MAX_LISTED]
        listed = tuple(self.books.listed(index) for index in documents)
        leaves = [self.books.leaf(index) for index in documents]
        places = found.to_bytes()
        return Reply(tier, digest.hex(), "included", proof.to_bytes().hex(), places.hex(), listed), leaves

    def _span_reply(self, tier: str, span: bytes) -> Draft:
        book = self.books.of(tier)

        def ask(gram: bytes) -> tuple[str, Occurrences | None]:
            proof, found = book.answer(gram)
            return proof.to_bytes().hex(), found

        reply, candidates = span_reply(tier, span, ask)
        reply, start = opened(self.books, reply, span, candidates)
        if reply.opened is None or start is None:
            return reply, ()
        leaf = Leaves(bytes.fromhex(reply.opened.document.leaf))[0]
        return reply, [part_of(leaf, start, len(span), token_bytes(self.manifest.corpus.tokenizer))]

    def _record(self, log: LogReader, step: int) -> Logged | None:
        """The record of a step: other entries before it push it down the log."""
        at = step - 1 + bisect_right(self._skipped, step - 1)
        if at >= self._size:
            return None
        entry = parse_entry(next(log.entries(at, at + 1)))
        return Logged(at, entry, self._path(at)) if isinstance(entry, StepRecord) and entry.step == step else None

    def _last_entries(self) -> tuple[tuple[Logged, ...], int]:
        """The last entries that say how many steps the log records, and how many it does."""
        tail: list[Logged] = []
        with LogReader(self._log_path) as log:
            for index in range(self._size - 1, max(0, self._size - MAX_TAIL - 1), -1):
                entry = parse_entry(next(log.entries(index, index + 1)))
                tail.insert(0, Logged(index, entry, self._path(index)))
                if not isinstance(entry, FaultEvent):
                    return tuple(tail), steps_said(entry)
        if tail:
            raise ProtocolError("log-damaged", "the log ends in faults that nobody could declare")
        return (), 0

    def _path(self, index: int) -> tuple[str, ...]:
        return tuple(part.hex() for part in self._tree.inclusion_proof(index, self._size))


def _size(part: Reply | SpanReply | Logged) -> int:
    """Bytes that a part takes in an answer."""
    return len(encode_trusted(part))
