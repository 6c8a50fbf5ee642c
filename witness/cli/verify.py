"""`witness verify`."""

from __future__ import annotations

import json
import re
import secrets
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.errors import CODES, ProtocolError, UsageError
from protocol.messages import MAX_ANSWER_SECONDS, MAX_SESSION_SECONDS
from witness.cli.damage import advising
from witness.cli.progress import Progress
from witness.report.wording import many

if TYPE_CHECKING:
    from protocol.certificate import Evidence, Exclusion
    from protocol.manifest import Manifest
    from protocol.required import Result
    from protocol.session import Challenge
    from witness.listening import Plan

_TIMES = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _seconds(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    del ctx
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhd])", value)
    if match is None:
        raise click.BadParameter("write a time like 90s, 10m or 2h", param=parameter)
    return float(match[1]) * _TIMES[match[2]]


@click.command("verify")
@click.argument("target", metavar="RUN_OR_URL")
@click.option(
    "--confidence", default="0.99", show_default=True, help="Reject a bad run with at least this probability..."
)
@click.option(
    "--bad-fraction", default="0.01", show_default=True, help="...where a run is bad if this part of its steps is."
)
@click.option("--rounds", type=click.IntRange(1), help="Make this many rounds of draws instead.")
@click.option("--round-size", type=click.IntRange(1), default=8, show_default=True, help="Draws a round.")
@click.option(
    "--budget",
    callback=_seconds,
    help="Time for all challenges, like 10m; fewer draws are made when they would take longer.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the signed certificate here.")
@click.option(
    "--key", type=click.Path(path_type=Path), help="The verifier's signing key; default: one made for this session."
)
@click.option(
    "--trust-program", "trust", default="", metavar="DIGEST", help="Consent to run this program in the sandbox."
)
@click.option(
    "--save-program",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the program's files here, a missing or empty folder, to be read before you consent.",
)
@click.option(
    "--known-head",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A signed head of this run seen elsewhere; may be repeated.",
)
@click.option(
    "--answer-seconds",
    type=click.IntRange(1, MAX_ANSWER_SECONDS),
    default=600,
    show_default=True,
    help="Time the prover has for each answer.",
)
@click.option(
    "--patience",
    default="7d",
    show_default=True,
    callback=_seconds,
    help="Time the prover has for all answers together, like 12h; what is unanswered then counts as diverged.",
)
@click.option(
    "--outliers",
    type=click.IntRange(0, 1024),
    default=2,
    show_default=True,
    help="Largest updates and loss rises to challenge besides.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Where the corpus of a run folder lies now, if it moved.")
@click.option(
    "--exclude",
    type=click.Path(path_type=Path),
    help="A file or folder of documents to ask about: named hits, or a proven zero, on the certificate.",
)
@click.option("--keep-going", is_flag=True, help="Replay on after the first divergence.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, /, target: str, as_json: bool, out: Path | None, **options: Any) -> None:
    """Challenge a run, replay what is drawn bit for bit, and sign a certificate.

    RUN_OR_URL is a run folder that you hold, or the address of a `witness serve`. Exit status: 0 reproduced, 1
    diverged, 2 incomplete.
    """
    from protocol.certificate import open_certificate
    from protocol.errors import EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_REPRODUCED
    from protocol.messages import Policy
    from witness import keys
    from witness.verifier import Options, Verification

    if out is not None and out.exists():
        raise UsageError("certificate-exists", f"{out} exists; a certificate is never overwritten")
    if out is not None and not out.parent.is_dir():
        action = f"make the folder {out.parent}, or name a file in one that exists"
        raise UsageError("disk", f"there is no folder {out.parent} for the certificate", next_action=action)
    if options["exclude"] is not None and not options["exclude"].exists():
        raise UsageError("file-unreadable", f"--exclude: there is no {options['exclude']}")
    _require_empty(options["save_program"])
    draws = options["rounds"] * options["round_size"] if options["rounds"] else 0
    policy = Policy(
        confidence=options["confidence"],
        bad_fraction=options["bad_fraction"],
        draws=draws,
        outliers=options["outliers"],
        answer_seconds=options["answer_seconds"],
        session_seconds=max(1, min(int(options["patience"]), MAX_SESSION_SECONDS)),
    )
    _check(policy)
    key = keys.named_key(options["key"]) if options["key"] else keys.generate("verifier")
    known = [_read(path) for path in options["known_head"]]
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(quiet=as_json))
        remote = target.startswith(("http://", "https://"))
        transport = _transport(stack, target, remote, options)
        verification = Verification(
            transport,
            policy,
            key,
            secrets.token_bytes(32),
            Options(
                trust=options["trust"].lower(),
                budget=options["budget"],
                round_size=options["round_size"],
                keep_going=options["keep_going"],
                known_heads=known,
                held=not remote,
                exclude=options["exclude"],
                save_program=options["save_program"],
            ),
            _listener(progress, None if remote else Path(target) / "program"),
        )
        certificate = verification.run()
    evidence = open_certificate(certificate)
    if out is not None:
        _keep(out, certificate)
    _show(evidence, out, made_key=not options["key"], as_json=as_json, trust=options["trust"].lower())
    ctx.exit(
        {"reproduced": EXIT_REPRODUCED, "diverged": EXIT_DIVERGED, "incomplete": EXIT_INCOMPLETE}[evidence.verdict]
    )


def _keep(out: Path, certificate: bytes) -> None:
    """Writes the certificate; hours of replay do not get lost for want of space, if there is some elsewhere."""
    from witness.statefile import write_bytes

    try:
        write_bytes(out, certificate)
    except UsageError as error:
        elsewhere = Path(tempfile.mkdtemp(prefix="witness-")) / out.name
        write_bytes(elsewhere, certificate)
        error.next_action = f"the certificate lies at {elsewhere}: move it where you want it"
        raise


def _require_empty(folder: Path | None) -> None:
    try:
        if folder is not None and folder.exists() and any(folder.iterdir()):
            raise UsageError("usage", f"--save-program: {folder} is not empty", next_action="name another folder")
    except OSError as error:
        raise UsageError("usage", f"--save-program: {folder}: {error.strerror}") from None


def _check(policy: Any) -> None:
    from protocol.required import draw_count

    try:
        draw_count(policy, 1)
    except ProtocolError as error:  # here it is not a stranger's
        action = "write fractions like 0.01, 1% or 1/100; or ask for a number of draws with --rounds"
        raise UsageError("usage", str(error), next_action=action) from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()[: 1 << 16]
    except OSError as error:
        raise UsageError("file-unreadable", f"cannot read {path}: {error.strerror}") from None


def _transport(stack: ExitStack, target: str, remote: bool, options: dict[str, Any]) -> Any:
    if remote:
        import logging

        from witness.http.client import HttpTransport

        logging.getLogger("stamina").setLevel(logging.ERROR)  # retries are ours to report

        return stack.enter_context(HttpTransport(target, answer_seconds=options["answer_seconds"]))
    from witness.prover import RunArchive, local_transport
    from witness.rundir import RunDir

    with advising(Path(target)):
        archive = stack.enter_context(RunArchive(RunDir.open(Path(target)), data=options["data"], block=True))
    return local_transport(archive, secrets.token_bytes(16))


def _listener(progress: Progress, program: Path | None) -> Any:
    """Shows a person what happens; `program` is where the program lies that a run folder came with."""
    from witness.listening import Listener

    class Terminal(Listener):
        """Tells a person what happens."""

        total = 0
        done = 0

        def stage(self, text: str) -> None:
            progress.stage(text)

        def advance(self, done: int, total: int) -> None:
            progress.advance(done, total)

        def waiting(self, done: int, total: int) -> None:
            progress.advance(self.done, self.total, f"the prover is rebuilding a state, {done} of {total} steps")

        def consent(self, manifest: Manifest, digest: str, saved: Path | None) -> None:
            progress.line("The run's own program would be executed here, in the sandbox:")
            for file in manifest.program.files:
                progress.line(f"  {file.path}  {file.length} bytes  sha256 {file.digest}")
            progress.line(f"  entry {manifest.program.entry}")
            where = saved or program
            if where is None:
                progress.line("To read it, verify once more with --save-program DIR, which writes these files there.")
            else:
                progress.line(f"The files are in {where}.")
            progress.line(f"Read it, then consent with --trust-program {digest}")

        def planned(self, plan: Plan) -> None:
            self.total = plan.mandatory + plan.draws
            data = self.total * plan.state_bytes / 1e6
            progress.line(
                f"{plan.mandatory} mandatory challenges and {plan.draws} random draws of {plan.steps} steps "
                "(a step that is both is replayed once): "
                f"about {data:.0f} MB of states, about {_duration(plan.seconds)}"
            )
            if plan.draws < plan.owed:
                progress.line(
                    f"the budget allows {plan.draws} of the {plan.owed} draws that the confidence needs: more "
                    "rounds can be added later"
                )
            progress.line(
                "when all is done, a run with that fraction of bad steps would be rejected with probability "
                f"{plan.detection}"
            )

        def challenged(self, challenge: Challenge, result: Result) -> None:
            self.done += 1
            progress.advance(self.done, self.total, f"step {challenge.step} {result.outcome}")
            if result.outcome != "reproduced":
                progress.line(
                    f"step {challenge.step} ({challenge.reason}) {result.outcome}: {result.code}: "
                    f"{_clean(result.message)}"
                )

        def round_done(self, draws: int, detection: str) -> None:
            if draws:
                progress.line(
                    f"{many(draws, 'draw')} clean: such a run would have been rejected by now with probability "
                    f"{detection}"
                )

    return Terminal()


def _clean(text: str) -> str:
    """Hostile text without anything that could command a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _awaits_consent(failed: list[dict[str, Any]]) -> bool:
    """Whether nothing is amiss but that a person must read a program first."""
    return {row["code"] for row in failed} - {"not-run"} == {"program-not-trusted"}


def _ask_consent(evidence: Evidence, trust: str) -> None:
    """The short page of a session that ended before anything could be said; the listener showed program and digest."""
    click.echo()
    click.secho("INCOMPLETE", bold=True, fg="yellow")
    click.echo(f"run          {evidence.predicate.run}")
    if trust:
        click.echo(f"consent      {_clean(trust)[:64]!r} is not its digest")
    click.echo("executed     nothing: the program waits for consent")
    click.echo("next         read it, then give the same command with the --trust-program above")


def _show(evidence: Evidence, out: Path | None, *, made_key: bool, as_json: bool, trust: str = "") -> None:
    from protocol.certificate import facts

    document = {**facts(evidence), "certificate": str(out) if out else None, "notes": list(evidence.predicate.notes)}
    document["failed"] = failed(evidence)
    if as_json:
        click.echo(json.dumps(document, sort_keys=True))
        return
    if _awaits_consent(document["failed"]):
        _ask_consent(evidence, trust)
    else:
        describe(evidence)
    if out is not None:
        click.echo(f"certificate  {out} (check it with `witness check {out}`)")
    if made_key:
        click.echo("key          made for this session: it names nobody (use --key and `witness keygen`)")


def show_exclusion(found: Exclusion) -> None:
    """What became of a set of documents that was asked about."""
    hits = found.asked - found.absent
    word = f"{hits or 'none'} of them {'are' if hits > 1 else 'is'} in the corpus"
    click.echo(f"exclusion    asked about {many(found.asked, 'document')} of {_clean(found.name)}: {word}")
    for hit in found.included[:20]:
        places = ", ".join(map(str, hit.documents[:5]))
        click.echo(f"             {_clean(hit.name)} is document {places} ({hit.tier})")
    if len(found.included) > 20:
        click.echo(f"             and {found.asked - found.absent - 20} more, in the certificate")


def failed(evidence: Evidence) -> list[dict[str, Any]]:
    """Everything that did not come out as reproduced, with its code and evidence."""
    p = evidence.predicate
    rows: list[dict[str, Any]] = [{"check": c.name, "step": None, "result": c.result} for c in p.checks]
    rows += [{"check": None, "step": c.step, "result": c.result} for c in p.challenges]
    return [
        {
            "check": row["check"],
            "step": row["step"],
            "outcome": row["result"].outcome,
            "code": row["result"].code,
            "message": row["result"].message,
            "evidence": row["result"].evidence,
        }
        for row in rows
        if row["result"].outcome != "reproduced"
    ]


def describe(evidence: Evidence) -> None:
    """Verdict, figures, what is claimed and what is not, for a person."""
    from protocol import soundness

    p = evidence.predicate
    click.echo()
    click.secho(
        f"{evidence.verdict.upper()}",
        bold=True,
        fg={"reproduced": "green", "diverged": "red"}.get(evidence.verdict, "yellow"),
    )
    click.echo(f"run          {p.run}")
    click.echo(f"trainer      {p.trainer}")
    click.echo(f"final state  {p.final_state_root}")
    click.echo(f"head         {evidence.head.size} entries, root {evidence.head.root.hex()}")
    challenged = len({c.step for c in p.challenges if c.step})
    click.echo(
        f"challenged   {challenged} of {many(p.steps, 'step')} ({len(p.mandatory)} mandatory, {p.draws} drawn at "
        "random; some may be both)"
    )
    click.echo(f"arithmetic   {_clean(p.profile)[:80]}")
    for row in failed(evidence):
        where = f"step {row['step']}" if row["check"] is None else f"check {row['check']}"
        if row["code"] == "not-run":
            continue
        click.echo(f"{row['outcome']:<12} {where}: {row['code']}: {_clean(row['message'])}")
        for name, value in row["evidence"].items():
            text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            click.echo(f"             {name}: {_clean(text)[:200]}")
        if row["code"] in CODES:
            click.echo(f"             next: {CODES[row['code']].next_action}")
    checked = f"{p.data.checked} of {many(p.data.documents, 'document')} opened whole"
    click.echo(f"data         {checked}; ledgers: {', '.join(p.data.tiers) or 'none'}")
    if p.data.exclusion is not None:
        show_exclusion(p.data.exclusion)
    for note in p.notes:
        click.echo(f"note         {_clean(note)}")
    if p.steps and not evidence.failures:
        click.echo()
        click.echo(soundness.say(p.steps, evidence.draws, p.policy.bad_fraction, confidence=p.policy.confidence))
    click.echo()
    if p.challenges:  # without one, what the certificate claims of them is empty
        click.echo("Claimed:")
        for claim in p.claims:
            click.echo(f"  + {claim}")
    click.echo("Not claimed:")
    for claim in p.not_claimed:
        click.echo(f"  - {claim}")
    click.echo()
