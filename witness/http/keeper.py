"""Questions about a run's data to whoever serves it.

Only tiers and digests are sent. Nothing that comes back is believed here: `protocol.answering` checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Annotated, Self

import msgspec

from protocol.answer import MAX_SHOWN_GRAMS, Answer, Reply, merge, parse_answer
from protocol.encoding import Hex32, Struct, decode
from protocol.errors import IncompleteError, ProtocolError
from protocol.ledger_claim import LedgerClaim, Occurrences
from protocol.manifest import MAX_LEDGERS
from witness.http.client import MAX_TEXT, HttpTransport
from witness.spans import span_reply

_ROUNDS = 4
"""Times that questions are asked again because the run's head has moved on meanwhile."""


class _Kept(Struct, frozen=True):
    run: Hex32
    ledgers: Annotated[tuple[LedgerClaim, ...], msgspec.Meta(max_length=MAX_LEDGERS)]


class RemoteKeeper:
    """A `witness serve` that answers; a context manager.

    Args:
        url: of the server.

    Raises:
        UsageError: `address`.
        IncompleteError: `unreachable`.
        ProtocolError: `not-a-prover`, `not-canonical`.
    """

    def __init__(self, url: str) -> None:
        self._transport = HttpTransport(url)
        self._head: bytes | None = None
        self._first: Answer | None = None
        try:
            self._kept = decode(self._transport.ledgers(), _Kept, limit=MAX_TEXT)
        except BaseException:
            self._transport.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport.close()

    @property
    def tiers(self) -> list[str]:
        """Of the ledgers that the server says there are."""
        return [claim.tier for claim in self._kept.ledgers]

    @property
    def head(self) -> bytes:
        """The head under which the last answers stand; before there are any, the newest one that the server shows."""
        if self._head is None:
            self._head = self._transport.head()
        return self._head

    def digests(self, questions: Iterable[tuple[str, bytes]], evidence: Sequence[bytes] = ()) -> Answer:
        """One answer to many questions, each a tier and a digest; a run that is still being trained may take rounds.

        Raises:
            IncompleteError: `unreachable`; `head-moved`, when its head moves faster than it answers.
            ProtocolError: malformed.
        """
        asked = list(questions)
        answers = [self._ask(*question) for question in asked]
        for _ in range(_ROUNDS):
            head = answers[-1].head
            old = [number for number, answer in enumerate(answers) if answer.head != head]
            if not old:
                break
            for number in old:
                answers[number] = self._ask(*asked[number])
            answers[-1] = self._ask(*asked[-1])
        else:
            raise IncompleteError("head-moved", "the run's head moves on faster than the server answers")
        self._head = answers[0].head.encode()
        return _with(merge(answers), evidence)

    def spans(self, tier: str, spans: Iterable[bytes], evidence: Sequence[bytes] = ()) -> Answer:
        """One answer to questions about spans; their text is not sent, so a span is absent or possible, never shown.

        Raises:
            UsageError: `span-length`, `span-units`.
            IncompleteError: `unreachable`.
            ProtocolError: malformed.
        """
        last: list[Answer] = []

        def ask(gram: bytes) -> tuple[str, Occurrences | None]:
            answer = self._ask(tier, gram)
            last[:] = [answer]
            reply = answer.replies[0]
            if not isinstance(reply, Reply):
                raise ProtocolError("answer-malformed", "a span is answered where a gram was asked about")
            places = reply.occurrences
            return reply.proof, None if places is None else Occurrences.from_bytes(bytes.fromhex(places))

        replies = tuple(span_reply(tier, span, ask, at_most=MAX_SHOWN_GRAMS)[0] for span in spans)
        self._head = last[0].head.encode()
        return _with(msgspec.structs.replace(last[0], replies=replies, records=()), evidence)

    def _ask(self, tier: str, digest: bytes) -> Answer:
        answer = parse_answer(self._transport.answer(tier, digest))
        reply = answer.replies[0]
        if len(answer.replies) != 1 or (reply.tier, reply.digest) != (tier, digest.hex()):
            raise ProtocolError("answer-malformed", "the server answers another question than the one it was asked")
        first = self._first
        if first is None or (answer.head, answer.manifest) != (first.head, first.manifest):
            self._first = answer
            return answer
        # A manifest is larger than a reply: thousands of answers share one.
        return msgspec.structs.replace(
            answer, manifest=first.manifest, manifest_proof=first.manifest_proof, tail=first.tail
        )


def _with(answer: Answer, evidence: Sequence[bytes]) -> Answer:
    return msgspec.structs.replace(answer, evidence=tuple(data.decode("utf-8", "replace") for data in evidence))
