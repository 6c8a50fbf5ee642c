"""`witness query`: was this used in training, when, how often - or is it in no ledger? Needs no torch."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.errors import EXIT_INCOMPLETE, EXIT_REPRODUCED, UsageError
from witness.cli.answers import document, groups_of, show
from witness.cli.damage import advising
from witness.cli.named import require_kind
from witness.cli.progress import Progress

if TYPE_CHECKING:
    from protocol.answer import Answer
    from protocol.answering import CheckedAnswer
    from protocol.keys import PublicKey
    from protocol.usage import Orders
    from witness.questions import Keeper, Question
    from witness.sets import Part


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
    help="Ask about every document of a folder or file (JSON lines, parquet...), or every digest of a .txt list; "
    "each in one ledger after another, until one holds it.",
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
    help="A certificate over the same head, as evidence of completeness, also with --check; may be repeated.",
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
    from witness.cli.named import vkey

    accepted = [vkey(text) for text in keys]
    asked = [name for name in ("document", "digest", "span", "many") if options[name] is not None]
    if options["check"] is not None:
        checked = _check({**options, "target": target}, accepted, asked)
        names = [options["document"] or options["span"] or reply.digest.hex() for reply in checked.replies]
    else:
        if target is None or len(asked) != 1:
            raise UsageError("usage", "name a run, and one of --document, --digest, --span and --all")
        # Answers about a set are millions of small values without cycles; looking for cycles takes a tenth of the time.
        gc.set_threshold(100_000, 50, 50)
        with ExitStack() as stack:
            progress = stack.enter_context(Progress(quiet=as_json))
            checked, names = _ask(stack, progress, target, options, accepted)
    if as_json:
        click.echo(json.dumps(document(checked, names, options), sort_keys=True))
    else:
        show(checked, names, options)
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
    for name in ("target", "tier", "out", "data"):
        if options[name] is not None:
            what = "a run" if name == "target" else f"--{name}"
            raise UsageError("usage", f"--check reads a proof and a head only: {what} has no part in it")
    proof, evidence = _read(options["check"], MAX_ANSWER), _evidence(options)
    require_kind(options["check"], proof, "a proof that `witness query --out` wrote", "replies")
    head = _read(options["head"], 1 << 20)
    checked = _held(lambda: check_answer(proof, head, keys=accepted, evidence=evidence), proof, head)
    _require_use(accepted, checked)
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
    from protocol.usage import Orders
    from witness.query import ORDERS_ROOM
    from witness.sets import ask_set

    def check(answer: Answer) -> CheckedAnswer:
        head, data = keeper.head if named is None else named, answer.to_bytes()
        checked = _held(lambda: check_answer(data, head, keys=accepted, orders=orders), data, named)
        _require_use(accepted, checked)
        return checked

    orders = Orders(ORDERS_ROOM)
    evidence = _evidence(options)
    named = _read(options["head"], 1 << 20) if options["head"] else None
    progress.stage("opening the ledgers")
    keeper = _keeper(stack, target, options, orders)
    if options["span"] is not None:
        from witness.questions import span_tier

        answer = keeper.spans(span_tier(keeper.tiers, options["tier"]), [_input(options["span"])], evidence)
        return _kept(options, check(answer), [options["span"]])
    progress.stage("reading the documents")
    questions = _questions(keeper, options)
    if options["many"] is None:
        answer = keeper.digests([(question.tier, question.digest) for question in questions], evidence)
        return _kept(options, check(answer), [question.name for question in questions])
    return _ask_set(progress, options, ask_set(keeper, questions, check, evidence, _at_once(options, questions)))


def _evidence(options: dict[str, Any]) -> list[bytes]:
    from protocol.certificate import MAX_CERTIFICATE
    from protocol.data_audit import MAX_AUDIT

    def named(path: Path, limit: int, kind: str) -> bytes:
        return require_kind(path, _read(path, limit), kind, "payload")

    evidence = [named(path, MAX_CERTIFICATE, "a certificate of `witness verify`") for path in options["evidence"]]
    return evidence + [named(path, MAX_AUDIT, "an audit of `witness data audit`") for path in options["audits"]]


def _held(check: Callable[[], CheckedAnswer], proof: bytes, head: bytes | None) -> CheckedAnswer:
    """A check whose failure says, where that is it, that the head named is another run's: it accuses nobody."""
    from protocol.answer import parse_answer
    from protocol.errors import VerificationError
    from protocol.keys import parse_vkey
    from protocol.notes import open_head

    try:
        return check()
    except VerificationError:
        if head is None:
            raise
        manifest = parse_answer(proof).manifest
        try:
            open_head(head, [parse_vkey(manifest.key)], manifest.origin)
        except VerificationError as error:
            raise VerificationError(
                error.code,
                f"--head is not a head of the run that the proof is about: {error}",
                evidence={"run": manifest.run_id.hex(), "trainer": manifest.key},
                next_action="name a signed head of that run; if this head is the right one, the proof is about "
                "another run: believe nothing in it",
            ) from error
        raise


def _require_use(accepted: list[PublicKey], checked: CheckedAnswer) -> None:
    """Refuses --key where there is nothing that it could choose among."""
    complete = [reply.completeness for reply in checked.replies]
    if accepted and not any(one.audits or one.spot for one in complete):
        raise UsageError(
            "usage",
            "--key says whose certificates and audits count, and none came with the answer that bears on it",
            next_action="name one with --cert or --audit, or leave --key out",
        )


def _ask_set(progress: Progress, options: dict[str, Any], parts: Iterator[Part]) -> tuple[CheckedAnswer, list[str]]:
    from witness.sets import Part, together

    def told() -> Iterator[Part]:
        done = 0
        progress.stage("asking about the documents")
        for checked, names in parts:
            done += len(set(names))
            progress.stage(f"asking about the documents: {done} done")
            yield Part(*_kept(options, checked, names))

    return together(told())


def _at_once(options: dict[str, Any], questions: list[Question]) -> int:
    """Documents in one answer: all of them, where one file is to hold it."""
    from witness.sets import AT_ONCE

    return AT_ONCE if options["out"] is None or _is_folder(options["out"]) else len(questions)


def _keeper(stack: ExitStack, target: str, options: dict[str, Any], orders: Orders) -> Keeper:
    if target.startswith(("http://", "https://")):
        from witness.http.keeper import RemoteKeeper

        return stack.enter_context(RemoteKeeper(target))
    from witness.query import Answerer
    from witness.rundir import RunDir

    with advising(Path(target)):
        return Answerer(RunDir.open(Path(target)), data=options["data"], orders=orders)


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


def _kept(options: dict[str, Any], checked: CheckedAnswer, names: list[str]) -> tuple[CheckedAnswer, list[str]]:
    """Writes the proofs where they are wanted; gives back what it was given."""
    from witness.statefile import write_bytes

    out = options["out"]
    if out is not None and not (options["many"] is not None and _is_folder(out)):
        write_bytes(out, checked.answer.to_bytes())
    elif out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for numbers in groups_of(names).values():
            digest = checked.replies[numbers[0]].digest.hex()
            write_bytes(out / f"{digest}.proof.json", checked.alone(numbers).to_bytes())
    return checked, names


def _is_folder(out: Path) -> bool:
    return out.is_dir() or str(out).endswith("/") or out.suffix == ""
