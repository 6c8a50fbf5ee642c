"""Questions about a run's data to whoever serves it.

Only tiers and digests are sent. Nothing that comes back is believed here: `protocol.answering` checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from types import TracebackType
from typing import Annotated, Self, cast

import msgspec

from protocol.answer import MAX_SHOWN_GRAMS, Answer, Reply, merge, parse_answer
from protocol.encoding import Hex32, Struct, decode
from protocol.errors import IncompleteError, ProtocolError
from protocol.ledger_claim import LedgerClaim, Occurrences
from protocol.manifest import MAX_LEDGERS
from witness.http import DIGESTS_AT_ONCE
from witness.http.client import MAX_TEXT, HttpTransport
from witness.spans import grams_of, span_reply

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
        IncompleteError: `unreachable`, `not-a-prover`.
        ProtocolError: `not-canonical`.
    """

    def __init__(self, url: str) -> None:
        self._transport = HttpTransport(url)
        self._head: bytes | None = None
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
        whole, found = self._ask(asked)
        replies = tuple(found[question] for question in asked)
        return _with(msgspec.structs.replace(whole, replies=replies), evidence)

    def spans(self, tier: str, spans: Iterable[bytes], evidence: Sequence[bytes] = ()) -> Answer:
        """One answer to questions about spans; their text is not sent, so a span is absent or possible, never shown.

        Raises:
            UsageError: `span-length`, `span-units`.
            IncompleteError: `unreachable`, `head-moved`.
            ProtocolError: malformed.
        """
        listed = list(spans)
        grams = [gram.digest for span in listed for gram in grams_of(tier, span)[:MAX_SHOWN_GRAMS]]
        whole, found = self._ask([(tier, gram) for gram in grams])

        def ask(gram: bytes) -> tuple[str, Occurrences | None]:
            reply = found[tier, gram]
            places = reply.occurrences
            return reply.proof, None if places is None else Occurrences.from_bytes(bytes.fromhex(places))

        replies = tuple(span_reply(tier, span, ask, at_most=MAX_SHOWN_GRAMS)[0] for span in listed)
        return _with(msgspec.structs.replace(whole, replies=replies, records=()), evidence)

    def _ask(self, questions: Sequence[tuple[str, bytes]]) -> tuple[Answer, dict[tuple[str, bytes], Reply]]:
        """What the server answers under one head: merged, and the reply to each question."""
        distinct = list(dict.fromkeys(questions))
        answers: dict[tuple[str, bytes], Answer] = {}
        replies: dict[tuple[str, bytes], Reply] = {}
        waiting = distinct
        for _ in range(_ROUNDS):
            for answer in self._answers(waiting):
                for reply in cast("tuple[Reply, ...]", answer.replies):
                    question = reply.tier, bytes.fromhex(reply.digest)
                    answers[question], replies[question] = answer, reply
            waiting = [question for question in distinct if answers[question].head != answer.head]
            if not waiting:
                self._head = answer.head.encode()
                return merge(list({id(one): one for one in answers.values()}.values())), replies
        raise IncompleteError("head-moved", "the run's head moves on faster than the server answers")

    def _answers(self, questions: Sequence[tuple[str, bytes]]) -> Iterator[Answer]:
        """Answers that hold a reply to every question; no other replies."""
        for tier, group in groupby(sorted(questions, key=itemgetter(0)), itemgetter(0)):
            digests, at_once = [digest for _, digest in group], DIGESTS_AT_ONCE
            while digests:
                asked = digests[:at_once]
                answer = parse_answer(self._transport.answers(tier, asked))
                for reply, digest in zip_longest(answer.replies, asked[: len(answer.replies)]):
                    if (
                        digest is None
                        or not isinstance(reply, Reply)
                        or (reply.tier, reply.digest) != (tier, digest.hex())
                    ):
                        raise ProtocolError("answer-malformed", "the server answers another question than it was asked")
                yield answer
                count = len(answer.replies)
                del digests[:count]
                # Every digest that is sent counts with the server, answered or not.
                at_once = count if count < len(asked) else min(DIGESTS_AT_ONCE, at_once + at_once // 4 + 1)


def _with(answer: Answer, evidence: Sequence[bytes]) -> Answer:
    return msgspec.structs.replace(answer, evidence=tuple(data.decode("utf-8", "replace") for data in evidence))
