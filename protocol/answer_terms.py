"""The words of an answer: what each result means, exactly, and what it does not say. Readers rely on the difference."""

from typing import Any

from protocol.answer import MAX_LISTED
from protocol.answering import CheckedAnswer, CheckedReply, Found
from protocol.ledger_claim import RAW
from protocol.usage import steps_of
from protocol.winnowing import Winnowing


def compared(tier: str) -> str:
    """What counts as the same in a tier."""
    if tier == RAW:
        return "a document with exactly these bytes (SHA-256)"
    if tier.startswith("t1-"):
        return f"a document that the normaliser {tier.removeprefix('t1-')} makes equal to this one"
    parameters = Winnowing.of_tier(tier)
    return f"a gram of {parameters.k} {_units(parameters)} chosen by winnowing (k={parameters.k}, w={parameters.w})"


def meaning(tier: str, result: str) -> str:
    """What a result about a digest says."""
    if tier.startswith("t2-"):
        if result == "absent":
            return "no document has this gram among its chosen ones: a span that must choose it is in no document"
        return f"the corpus holds {compared(tier)} with this digest, in the documents named: no proof of a span"
    if result == "absent":
        return f"the committed corpus lists no {compared(tier)[2:]}"
    return f"the committed corpus lists {compared(tier)}, in the places named; steps follow from the committed schedule"


def span_meaning(tier: str, result: str) -> str:
    """What a result about a span says."""
    parameters = Winnowing.of_tier(tier)
    units = f"{parameters.guarantee} or more {_units(parameters)}"
    if result == "absent":
        return f"no document of the corpus holds this span ({units}) word for word: it would have to choose these grams"
    if result == "included":
        return "the span stands word for word in the document that is opened"
    return "not proven absent: documents hold all the grams shown, which does not prove that one holds the span"


def not_covered(tier: str) -> tuple[str, ...]:
    """What no answer in a tier says anything about."""
    common = (
        "paraphrases and translations of the text, and other encodings of it",
        "data that is not in the committed corpus: unlogged data, and what initial weights were pretrained on",
        "other tiers: absent in one says nothing about another",
    )
    if tier == RAW:
        return ("near-duplicates: one byte more, less or other is another document here", *common)
    if tier.startswith("t1-"):
        return (
            "near-duplicates beyond what the normaliser evens out: they are other documents",
            *common,
        )
    parameters = Winnowing.of_tier(tier)
    return (
        f"spans that were altered, and verbatim ones shorter than {parameters.guarantee} {_units(parameters)}",
        "a span that was cut by the borders of two documents: each document is indexed by itself",
        *common,
    )


def influence_words(influence: str, steps: int, shown: int) -> str:
    """What the records say about influence."""
    if steps == 0:
        return "no recorded step read it"
    if influence == "none":
        return (
            f"without influence, as recorded: all {steps} steps that read it had a learning rate of 0 (what optimiser "
            "moments and running statistics took in is not undone by that)"
        )
    missing = "" if shown == steps else f"; records of {shown} of {steps} steps are shown, the others' weight is not"
    return f"weight: sum of learning rate times tokens, the loss mask being unknown to the log{missing}"


def facts(checked: CheckedAnswer) -> dict[str, Any]:
    """A verified answer as plain data, with stable keys."""
    return {
        "run": checked.manifest.run_id.hex(),
        "trainer": checked.manifest.key,
        "head": {"size": checked.head.size, "root": checked.head.root.hex()},
        "steps": checked.steps,
        "answers": [reply_facts(reply) for reply in checked.replies],
    }


def reply_facts(reply: CheckedReply) -> dict[str, Any]:
    """One of its answers."""
    occurrences = reply.occurrences
    said = span_meaning(reply.tier, reply.result) if reply.of_span else meaning(reply.tier, reply.result)
    return {
        "tier": reply.tier,
        "question": "span" if reply.of_span else "digest",
        "digest": reply.digest.hex(),
        "result": reply.result,
        "meaning": said,
        "not_covered": list(not_covered(reply.tier)),
        "completeness": {"level": reply.completeness.level, "words": reply.completeness.words()},
        "occurrences": None
        if occurrences is None
        else {"count": occurrences.count, "documents": len(occurrences.documents), "listed": len(reply.found)},
        "candidates": list(reply.candidates[:MAX_LISTED]),
        "documents": [found_facts(found) for found in reply.found],
    }


def found_facts(found: Found) -> dict[str, Any]:
    """One of the documents found, and its uses."""
    leaf, uses, weight = found.leaf, found.uses, found.weight
    facts: dict[str, Any] = {"document": leaf.index, "bytes": leaf.length, "sha256": leaf.digest.hex()}
    if uses is None or weight is None:
        return {**facts, "uses": "too many to list"}
    value = None if weight.weight is None else float(weight.weight)
    return {
        **facts,
        "times": len(uses),
        "tokens": sum(use.tokens for use in uses),
        "steps": steps_of(uses)[:MAX_LISTED],
        "distinct_steps": weight.steps,
        "influence": weight.influence,
        "influence_words": influence_words(weight.influence, weight.steps, weight.shown),
        "weight": None if value is None else repr(value),
        "records_shown": weight.shown,
        "steps_at_rate_zero": weight.without,
    }


def _units(parameters: Winnowing) -> str:
    return {"bytes": "bytes", "u16": "tokens", "u32": "tokens"}[parameters.unit]
