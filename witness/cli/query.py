"""`witness query`: was this used in training, when, how often - or is it in no ledger? Needs no torch."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.errors import EXIT_INCOMPLETE, EXIT_REPRODUCED, UsageError
from witness.cli.progress import Progress

if TYPE_CHECKING:
    from protocol.answering import CheckedAnswer, CheckedReply
    from protocol.keys import PublicKey
    from witness.questions import Keeper, Question

_SHOWN = 20


@click.command("query")
@click.argument("target", metavar="[RUN_OR_URL]", required=False)
@click.option("--document", metavar="FILE|-", help="Ask about this document, in every tier that can be computed here.")
@click.option("--digest", metavar="HEX", help="Ask about a digest; of raw bytes, unless --tier says otherwise.")
@click.option("--span", metavar="FILE|-", help="Ask whether this passage stands in any document.")
@click.option(
    "--all",
    "many",
    type=click.Path(path_type=Path),
    metavar="SET",
    help="Ask about every document of a folder or file (JSON lines, parquet...), or every digest of a .txt list.",
)
@click.option("--tier", help="Ask this ledger only.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the proof: a file, or (--all) a folder for one each."
)
@click.option(
    "--cert",
    "evidence",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A certificate over the same head, as evidence of completeness; may be repeated.",
)
@click.option(
    "--audit", "audits", type=click.Path(path_type=Path), multiple=True, help="A signed data audit; may be repeated."
)
@click.option(
    "--key", "keys", multiple=True, metavar="VKEY", help="Accept only these verifiers and auditors; may be repeated."
)
@click.option("--head", type=click.Path(path_type=Path), help="The signed head to hold answers to.")
@click.option("--check", type=click.Path(path_type=Path), metavar="PROOF", help="Check a proof, offline; needs --head.")
@click.option("--data", type=click.Path(path_type=Path), help="Where the corpus of a run folder lies now, if it moved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, /, target: str | None, keys: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Ask which documents a run was trained on, and prove the answer.

    RUN_OR_URL is a run folder, or the address of a `witness serve`. Exit status: 0 answered (whatever the answer), 1 a
    proof does not hold, 2 incomplete (a passage is neither proven absent nor shown), 64 usage.
    """
    from protocol.keys import parse_vkey

    accepted = [parse_vkey(text) for text in keys]
    asked = [name for name in ("document", "digest", "span", "many") if options[name] is not None]
    if options["check"] is not None:
        checked = _check(options, accepted, asked)
        names = [options["document"] or options["span"] or reply.digest.hex() for reply in checked.replies]
    else:
        if target is None or len(asked) != 1:
            raise UsageError("usage", "name a run, and one of --document, --digest, --span and --all")
        with ExitStack() as stack:
            progress = stack.enter_context(Progress(quiet=as_json))
            checked, names = _ask(stack, progress, target, options, accepted)
    if as_json:
        click.echo(json.dumps(_document(checked, names, options), sort_keys=True))
    else:
        _show(checked, names, options)
    possible = any(reply.result == "possible" for reply in checked.replies)
    ctx.exit(EXIT_INCOMPLETE if possible else EXIT_REPRODUCED)


def _check(options: dict[str, Any], accepted: list[PublicKey], asked: list[str]) -> CheckedAnswer:
    """A proof held to a head; and to the question, where that is at hand."""
    from protocol.answer import MAX_ANSWER, SpanReply
    from protocol.answering import check_answer, check_digest, check_grams
    from protocol.ledger_claim import RAW
    from protocol.normaliser import document_digest
    from witness.questions import digest_question

    if options["head"] is None or len(asked) > 1 or asked == ["many"]:
        raise UsageError("usage", "--check needs --head, and the question at most once: --document, --digest or --span")
    checked = check_answer(_read(options["check"], MAX_ANSWER), _read(options["head"], 1 << 20), keys=accepted)
    document = None if options["document"] is None else _input(options["document"])
    span = None if options["span"] is None else _input(options["span"])
    for reply, carried in zip(checked.replies, checked.answer.replies, strict=True):
        if span is not None:
            check_digest(reply, hashlib.sha256(span).digest())
            if isinstance(carried, SpanReply):
                check_grams(carried, span)
        elif document is not None:
            check_digest(reply, document_digest(RAW if reply.of_span else reply.tier, document))
        elif options["digest"] is not None:
            check_digest(reply, digest_question(options["digest"], reply.tier).digest)
    return checked


def _ask(
    stack: ExitStack, progress: Progress, target: str, options: dict[str, Any], accepted: list[PublicKey]
) -> tuple[CheckedAnswer, list[str]]:
    from protocol.answering import check_answer
    from protocol.certificate import MAX_CERTIFICATE
    from protocol.data_audit import MAX_AUDIT

    progress.stage("opening the ledgers")
    keeper = _keeper(stack, target, options)
    evidence = [_read(path, MAX_CERTIFICATE) for path in options["evidence"]]
    evidence += [_read(path, MAX_AUDIT) for path in options["audits"]]
    if options["span"] is not None:
        from witness.questions import span_tier

        answer = keeper.spans(span_tier(keeper.tiers, options["tier"]), [_input(options["span"])], evidence)
        names = [options["span"]]
    else:
        progress.stage("reading the documents")
        questions = _questions(keeper, options)
        progress.stage(f"asking {len(questions)} questions")
        answer = keeper.digests([(question.tier, question.digest) for question in questions], evidence)
        names = [question.name for question in questions]
    head = _read(options["head"], 1 << 20) if options["head"] else keeper.head
    checked = check_answer(answer.to_bytes(), head, keys=accepted)
    if options["out"] is not None:
        _keep(options["out"], checked, names, each=options["many"] is not None)
    return checked, names


def _keeper(stack: ExitStack, target: str, options: dict[str, Any]) -> Keeper:
    if target.startswith(("http://", "https://")):
        from witness.http.keeper import RemoteKeeper

        return stack.enter_context(RemoteKeeper(target))
    from witness.query import Answerer
    from witness.rundir import RunDir

    return Answerer(RunDir.open(Path(target)), data=options["data"])


def _questions(keeper: Keeper, options: dict[str, Any]) -> list[Question]:
    from witness import questions as q

    tier = options["tier"]
    if options["digest"] is not None:
        return [q.digest_question(options["digest"], tier)]
    tiers = q.tiers_asked(keeper.tiers, tier)
    if options["document"] is not None:
        name = "standard input" if options["document"] == "-" else Path(options["document"]).name
        return q.document_questions(name, _input(options["document"]), tiers)
    found = q.set_questions(options["many"], tiers, tier)
    if not found:
        raise UsageError("usage", f"{options['many']} holds no document")
    return found


def _input(name: str) -> bytes:
    from protocol.answer import MAX_ANSWER

    if name != "-":
        return _read(Path(name), MAX_ANSWER)
    data = sys.stdin.buffer.read(MAX_ANSWER + 1)
    if len(data) > MAX_ANSWER:
        raise UsageError("usage", f"standard input holds more than {MAX_ANSWER} bytes")
    return data


def _read(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise UsageError("file-unreadable", f"cannot read {path}: {error.strerror}") from None
    if len(data) > limit:
        raise UsageError("file-unreadable", f"{path} is larger than {limit} bytes")
    return data


def _groups(names: list[str]) -> dict[str, list[int]]:
    """The replies about each document: neighbours, one for each tier."""
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    return groups


def _keep(out: Path, checked: CheckedAnswer, names: list[str], *, each: bool) -> None:
    from witness.statefile import write_bytes

    if not (each and (out.is_dir() or str(out).endswith("/") or out.suffix == "")):
        write_bytes(out, checked.answer.to_bytes())
        return
    out.mkdir(parents=True, exist_ok=True)
    for numbers in _groups(names).values():
        digest = checked.replies[numbers[0]].digest.hex()
        write_bytes(out / f"{digest}.proof.json", checked.alone(numbers).to_bytes())


def _document(checked: CheckedAnswer, names: list[str], options: dict[str, Any]) -> dict[str, Any]:
    from protocol.answer_terms import facts

    document = facts(checked)
    for one, name in zip(document["answers"], names, strict=True):
        one["name"] = name
    groups = _groups(names)
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


def _show(checked: CheckedAnswer, names: list[str], options: dict[str, Any]) -> None:
    from protocol.answer_terms import not_covered
    from witness.printable import printable

    groups = _groups(names)
    click.echo(f"run        {checked.manifest.run_id.hex()[:16]}, {checked.steps} steps under the head")
    if len(groups) > 1:
        _table(checked, groups)
    else:
        for reply in checked.replies:
            _describe(reply, printable(names[0]))
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
        click.echo(f"  {reply.occurrences.count} times, in {len(reply.occurrences.documents)} documents")
    if reply.candidates and not reply.found:
        click.echo(f"  candidates: {', '.join(map(str, reply.candidates[:_SHOWN]))}")
    for found in facts["documents"][:_SHOWN]:
        click.echo(f"  document {found['document']}, {found['bytes']} bytes: {_uses(found)}")
        if "influence_words" in found:
            value = f" {found['weight']}" if found["weight"] is not None else ""
            click.echo(f"    {found['influence']}{value}: {found['influence_words']}")


def _uses(found: dict[str, Any]) -> str:
    if "times" not in found:
        return "read by more steps than are listed"
    if not found["times"]:
        return "read by no recorded step"
    steps = ", ".join(map(str, found["steps"][:_SHOWN])) + (", ..." if found["distinct_steps"] > _SHOWN else "")
    return f"read {found['times']} times ({found['tokens']} tokens), at steps {steps}"


def _table(checked: CheckedAnswer, groups: dict[str, list[int]]) -> None:
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
        f"{len(groups)} documents asked, {hits} included, {len(groups) - hits} proven absent in every tier asked"
    )
