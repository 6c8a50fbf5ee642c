"""`witness check`: no replay, no torch, no network, no numpy unless a run is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from protocol.certificate import MAX_CERTIFICATE, Evidence, Sum, add, facts, open_certificate
from protocol.errors import EXIT_DIVERGED, EXIT_INCOMPLETE, EXIT_REPRODUCED, ProtocolError, UsageError
from witness.cli.named import require_kind, vkey
from witness.cli.verify import describe, failed


@click.command("check")
@click.argument("certificates", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CERT...")
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    help="The run folder: hold head, checks and mandatory challenges to its log.",
)
@click.option(
    "--key", "keys", multiple=True, metavar="VKEY", help="Accept only certificates of these verifiers; may be repeated."
)
@click.option(
    "--released", type=click.Path(path_type=Path), help="A weights file: is it the one that the run in --run released?"
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context,
    certificates: tuple[Path, ...],
    run: Path | None,
    keys: tuple[str, ...],
    released: Path | None,
    as_json: bool,
) -> None:
    """Check certificates without replaying: signatures, draws, probabilities, verdict; several over one head add up.

    Exit status: that of the sum: 0 reproduced, 1 diverged, 2 incomplete.
    """
    accepted = [vkey(text) for text in keys]
    evidence = [open_certificate(_read(path), keys=accepted) for path in certificates]
    total = add(evidence)
    if released is not None and run is None:
        raise UsageError("usage", "--released needs --run, whose log says what was released")
    if run is not None:
        from witness.holding import hold_to_run, hold_weights

        for one in evidence:
            hold_to_run(one, run)
        if released is not None:
            hold_weights(released, run, evidence[0].head.size)
    if as_json:
        click.echo(json.dumps(_document(certificates, evidence, total, run, released), sort_keys=True))
    else:
        _show(certificates, evidence, total, run, released)
    ctx.exit({"reproduced": EXIT_REPRODUCED, "diverged": EXIT_DIVERGED}.get(total.verdict, EXIT_INCOMPLETE))


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CERTIFICATE + 1)
    except OSError as error:
        raise UsageError("file-unreadable", f"cannot read {path}: {error.strerror}") from None
    if len(data) > MAX_CERTIFICATE:
        raise ProtocolError("too-large", f"{path} is larger than a certificate may be ({MAX_CERTIFICATE} bytes)")
    return require_kind(path, data, "a certificate of `witness verify`", "payload")


def _document(
    paths: tuple[Path, ...], evidence: list[Evidence], total: Sum, run: Path | None, released: Path | None
) -> dict[str, Any]:
    return {
        "certificates": [
            {**facts(one), "file": str(path), "failed": failed(one)} for path, one in zip(paths, evidence, strict=True)
        ],
        "sum": {
            "verdict": total.verdict,
            "sessions": total.sessions,
            "draws": list(total.draws),
            "detection": total.miss.detection_down(6),
            "bad_fraction": total.bad_fraction,
            "confidence": total.confidence,
        },
        "held_to_run": run is not None,
        "released_weights": "as committed" if released is not None else None,
    }


def _show(
    paths: tuple[Path, ...], evidence: list[Evidence], total: Sum, run: Path | None, released: Path | None
) -> None:
    for path, one in zip(paths, evidence, strict=True):
        click.echo(f"{path}: signatures, draws, probabilities and verdict are as they must be")
        describe(one)
    if len(paths) > 1:
        draws = " + ".join(map(str, total.draws))
        click.echo(f"sum of {total.sessions} sessions over one head: {total.verdict}")
        click.echo(
            f"{draws} draws: a run with at least {total.bad_fraction} of its steps bad would have been rejected "
            "with probability "
            f"{total.miss.detection_down(4)}"
        )
    if run is not None:
        click.echo(f"the log in {run} is the one that was certified")
    if released is not None:
        click.echo(f"{released} holds the weights that the run released, bit for bit")
