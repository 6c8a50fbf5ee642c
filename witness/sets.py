"""A whole set of documents put to a keeper, some thousands at a time: memory does not grow with the answers' size.

A document is asked about in one ledger after another, until one holds it. What is in the ledger of raw bytes is in
those of its normalisations too, and asking there again would only double the work; what is absent is proven absent in
all of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from protocol.answer import Answer, Reply, merge
from protocol.answering import CheckedAnswer
from protocol.errors import IncompleteError
from witness.questions import Keeper, Question

AT_ONCE = 1 << 13
"""Documents in one answer."""
_ROUNDS = 4


class Part(NamedTuple):
    """A verified answer about some of the documents, and the name of the document that each reply is about."""

    checked: CheckedAnswer
    names: list[str]


def ask_set(
    keeper: Keeper,
    questions: Sequence[Question],
    check: Callable[[Answer], CheckedAnswer],
    evidence: Sequence[bytes] = (),
    at_once: int = AT_ONCE,
) -> Iterator[Part]:
    """Asks about every document of a set.

    Args:
        keeper: who answers.
        questions: at least one; those about a document in the order of the ledgers.
        check: verifies an answer.
        evidence: of completeness.
        at_once: documents in one answer.

    Raises:
        IncompleteError: `head-moved`; and what keeper and check raise.
    """
    by_name: dict[str, list[Question]] = {}
    for question in questions:
        by_name.setdefault(question.name, []).append(question)
    names = list(by_name)
    for at in range(0, len(names), at_once):
        asked = [by_name[name] for name in names[at : at + at_once]]
        for _ in range(_ROUNDS):
            answers, said = _through_the_tiers(keeper, asked, evidence)
            if len({answer.head for answer in answers}) == 1:
                break
        else:
            raise IncompleteError("head-moved", "the run's head moves on faster than it is asked")
        yield Part(check(merge(answers)), said)


def together(parts: Iterator[Part]) -> Part:
    """All replies as one; the `answer` that comes with them is the first part's alone.

    Raises:
        IncompleteError: `head-moved`, when the parts do not stand under one head.
    """
    first, names = next(parts)
    replies = list(first.replies)
    names = list(names)
    for checked, more in parts:
        if checked.head != first.head:
            raise IncompleteError("head-moved", "the run's head moved on while the set was asked about")
        replies += checked.replies
        names += more
    return Part(dataclasses.replace(first, replies=tuple(replies)), names)


def _through_the_tiers(
    keeper: Keeper, asked: Sequence[list[Question]], evidence: Sequence[bytes]
) -> tuple[list[Answer], list[str]]:
    answers, names = list[Answer](), list[str]()
    waiting, tier = list(asked), 0
    while waiting:
        answer = keeper.digests([(group[tier].tier, group[tier].digest) for group in waiting], evidence)
        answers.append(answer)
        names += [group[tier].name for group in waiting]
        absent = [isinstance(reply, Reply) and reply.result == "absent" for reply in answer.replies]
        tier += 1
        waiting = [group for group, lacks in zip(waiting, absent, strict=True) if lacks and len(group) > tier]
    return answers, names
