"""Answers questions about a run's data from its folder: the keeper's side. Needs no torch.

What it gives is checked by `protocol.answering` on the asker's side, also where both are one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from protocol import merkle
from protocol.answer import MAX_LISTED, MAX_RECORDS, MAX_SHOWN, MAX_TAIL, Answer, Logged, Reply, SpanReply
from protocol.answering import steps_said
from protocol.corpus import token_bytes
from protocol.errors import ProtocolError, VerificationError
from protocol.leaves import Document, Leaves
from protocol.ledger_claim import Occurrences
from protocol.notes import open_head
from protocol.records import FaultEvent, StepRecord, parse_entry
from protocol.replies import part_of
from protocol.usage import steps_of, usage
from witness.books import Books
from witness.logreader import LogReader
from witness.rundir import RunDir, trainer_key
from witness.spans import opened, span_reply


class Answerer:
    """Answers about one run under one of its heads; safe to call from several threads.

    Args:
        run: the directory.
        size: of the head; the newest when None.
        data: where the corpus lies now, if it moved; spans are opened only where it can be read.
        books: ledgers opened before, for the same run.

    Raises:
        ProtocolError, VerificationError: when log, head or corpus leaves do not hold together.
    """

    def __init__(
        self, run: RunDir, *, size: int | None = None, data: Path | None = None, books: Books | None = None
    ) -> None:
        self.head = run.latest_head() if size is None else run.read_head(size)
        self._log_path = run.log_path
        self.manifest = run.manifest()
        head = open_head(self.head, [trainer_key(self.manifest)], self.manifest.origin)
        with LogReader(run.log_path) as log:
            self._tree = merkle.Tree(merkle.leaf_hash(entry) for entry in log.entries(0, head.size))
        if self._tree.size != head.size or self._tree.root() != head.root:
            raise VerificationError("head-root", f"the head over {head.size} entries is not one of this log")
        self.books = books or Books(run, self.manifest, data)
        self._size = head.size
        self._tail, self.steps = self._last_entries()

    @property
    def tiers(self) -> list[str]:
        """Of the run's ledgers."""
        return self.books.tiers

    def digests(self, questions: Iterable[tuple[str, bytes]], evidence: Sequence[bytes] = ()) -> Answer:
        """One answer to many questions, each a tier and a digest.

        Raises:
            UsageError: `ledger-tier`, for a tier that the run has no ledger of.
        """
        return self._answer([self._reply(tier, digest) for tier, digest in questions], evidence)

    def spans(self, tier: str, spans: Iterable[bytes], evidence: Sequence[bytes] = ()) -> Answer:
        """One answer to questions about spans whose text is at hand; what holds them is opened, where it can be.

        Raises:
            UsageError: `ledger-tier`; `span-length`, for a span below the tier's guarantee, or above `MAX_SPAN`.
        """
        return self._answer([self._span_reply(tier, span) for span in spans], evidence)

    def _answer(
        self, drafts: Sequence[tuple[Reply | SpanReply, Sequence[Document]]], evidence: Sequence[bytes]
    ) -> Answer:
        parts = [part for _, parts in drafts for part in parts]
        wanted: dict[int, None] = {}
        for uses in usage(self.manifest, self.steps, parts):
            wanted.update(dict.fromkeys(steps_of(uses or ())[:MAX_SHOWN]))
        with LogReader(self._log_path) as log:
            records = [self._record(log, step) for step in sorted(list(wanted)[:MAX_RECORDS])]
        return Answer(
            head=self.head.decode(),
            manifest=self.manifest,
            manifest_proof=self._path(0),
            tail=self._tail,
            replies=tuple(reply for reply, _ in drafts),
            records=tuple(record for record in records if record is not None),
            evidence=tuple(data.decode() for data in evidence),
        )

    def _reply(self, tier: str, digest: bytes) -> tuple[Reply, Sequence[Document]]:
        book = self.books.of(tier)
        proof, found = book.answer(digest)
        if found is None:
            return Reply(tier, digest.hex(), "absent", proof.to_bytes().hex(), None, ()), ()
        documents = () if book.claim.of_spans else found.documents[:MAX_LISTED]
        listed = tuple(self.books.listed(index) for index in documents)
        leaves = [self.books.leaf(index) for index in documents]
        places = found.to_bytes()
        return Reply(tier, digest.hex(), "included", proof.to_bytes().hex(), places.hex(), listed), leaves

    def _span_reply(self, tier: str, span: bytes) -> tuple[SpanReply, Sequence[Document]]:
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
        """The record of a step: events before it push it down the log, so it is found by halving."""
        low, high = step + 1, self._size
        while low < high:
            at = middle = (low + high) // 2
            while at < high:
                entry = parse_entry(next(log.entries(at, at + 1)))
                if isinstance(entry, StepRecord):
                    break
                at += 1
            else:
                high = middle
                continue
            if entry.step == step:
                return Logged(at, entry, self._path(at))
            if entry.step < step:
                low = at + 1
            else:
                high = middle
        return None

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
