"""What `witness query` prints of verified answers: for readers, and as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from witness.report.wording import many

if TYPE_CHECKING:
    from protocol.answering import CheckedAnswer, CheckedReply

_SHOWN = 20


def document(checked: CheckedAnswer, names: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """The answers as one object, with stable keys."""
    from protocol.answer_terms import facts

    document = facts(checked)
    for one, name in zip(document["answers"], names, strict=True):
        one["name"] = name
    groups = groups_of(names)
    hits = [name for name, numbers in groups.items() if any(_hit(checked.replies[n]) for n in numbers)]
    document["asked"], document["found"], document["absent"] = len(groups), len(hits), len(groups) - len(hits)
    document["not_asked"] = _not_asked(checked)
    document["out"] = None if options["out"] is None else str(options["out"])
    return document


def _not_asked(checked: CheckedAnswer) -> list[str]:
    """Ledgers of the run that no question was put to: of spans, or of a normaliser that this Python cannot compute."""
    asked = {reply.tier for reply in checked.replies}
    return [claim.tier for claim in checked.manifest.ledgers if claim.tier not in asked]


def _hit(reply: CheckedReply) -> bool:
    return reply.result != "absent"


def groups_of(names: list[str]) -> dict[str, list[int]]:
    """The replies about each document, one for each tier that was asked."""
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    return groups


def show(checked: CheckedAnswer, names: list[str], options: dict[str, Any]) -> None:
    """The answers as text: in full about one document, a line a hit about a set."""
    from protocol.answer_terms import not_covered
    from witness.printable import printable

    groups = groups_of(names)
    # A proof that is checked without its question names digests only, and a document has another in each tier.
    blind = options["check"] is not None and options["document"] is None and options["span"] is None
    alone = len(groups) == 1 or (blind and len({reply.tier for reply in checked.replies}) == len(names))
    click.echo(f"run        {checked.manifest.run_id.hex()[:16]}, {many(checked.steps, 'step')} under the head")
    if alone:
        for reply, name in zip(checked.replies, names, strict=True):
            _describe(reply, printable(name))
    else:
        _table(checked, groups, "question" if blind else "document")
    tiers = {reply.tier: reply for reply in checked.replies}
    for tier, reply in tiers.items():
        click.echo(f"{tier}: {reply.completeness.words()}")
    for line in dict.fromkeys(line for tier in tiers for line in not_covered(tier)):
        click.echo(f"not covered: {line}")
    for tier in _not_asked(checked):
        click.echo(f"{tier}: not asked")
    if options["out"] is not None:
        click.echo(f"proof      {options['out']} (check it with `witness query --check PROOF --head HEAD`)")


def _describe(reply: CheckedReply, name: str) -> None:
    from protocol.answer_terms import reply_facts

    facts = reply_facts(reply)
    click.echo(f"{name}: {reply.result.upper()} in {reply.tier}: {facts['meaning']}")
    if reply.occurrences is not None:
        found = many(len(reply.occurrences.documents), "document")
        click.echo(f"  {many(reply.occurrences.count, 'time')}, in {found}")
    if reply.candidates and not reply.found:
        click.echo(f"  candidates: {', '.join(map(str, reply.candidates[:_SHOWN]))}")
    for found in facts["documents"][:_SHOWN]:
        click.echo(f"  document {found['document']}, {found['bytes']} bytes: {_uses(found)}")
        if "influence_words" in found:
            click.echo(f"    {_influence(found)}")


def _influence(found: dict[str, Any]) -> str:
    words: str = found["influence_words"]
    if found["weight"] is None:
        return words
    return words.replace("weight:", f"weight {float(found['weight']):.6g}:", 1)


def _uses(found: dict[str, Any]) -> str:
    if "times" not in found:
        return "read by more steps than are listed"
    if not found["times"]:
        return "read by no recorded step"
    steps = ", ".join(map(str, found["steps"][:_SHOWN])) + (", ..." if found["distinct_steps"] > _SHOWN else "")
    return f"read {many(found['times'], 'time')} ({many(found['tokens'], 'token')}), at steps {steps}"


def _table(checked: CheckedAnswer, groups: dict[str, list[int]], noun: str) -> None:
    from protocol.answer_terms import found_facts
    from witness.printable import printable

    hits = 0
    for name, numbers in groups.items():
        included = [checked.replies[n] for n in numbers if _hit(checked.replies[n])]
        hits += bool(included)
        if included and hits <= 1000:
            first = included[0]
            facts = [found_facts(found) for found in first.found]
            documents = ", ".join(str(found["document"]) for found in facts[:_SHOWN])
            tiers = ", ".join(reply.tier for reply in included)
            click.echo(f"{printable(name)}: INCLUDED as document {documents} ({tiers})")
            for found in facts[:3]:
                click.echo(f"    {_uses(found)}")
    click.echo(
        f"{many(len(groups), noun)} asked, {hits:,} included, {len(groups) - hits:,} proven absent in every tier asked"
    )
