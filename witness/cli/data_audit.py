"""`witness data audit`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from protocol.errors import EXIT_DIVERGED, EXIT_REPRODUCED, UsageError
from witness.cli.progress import Progress


@click.command("audit")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), help="The auditor's signing key; default: one made for this.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the signed audit here.")
@click.option("--data", type=click.Path(path_type=Path), help="Where the corpus lies now, if it moved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    ctx: click.Context, run: Path, key: Path | None, out: Path | None, data: Path | None, as_json: bool
) -> None:
    """Read every document of RUN again, compute corpus and ledgers again, and sign the result.

    Only an audit shows that a ledger leaves no document of the corpus out. Give it to those who ask (`witness query
    --audit`). Exit status: 0 complete, 1 the data is not what the manifest commits to, 2 it could not be told.
    """
    from protocol.data_audit import open_audit
    from witness import keys
    from witness.auditing import audit_data
    from witness.printable import printable
    from witness.rundir import RunDir
    from witness.statefile import write_bytes

    if out is not None and out.exists():
        raise UsageError("certificate-exists", f"{out} exists; an audit is never overwritten")
    signer = keys.named_key(key) if key else keys.generate("auditor")
    with Progress(quiet=as_json) as progress:
        stage = ""

        def tell(what: str, done: int, total: int) -> None:
            nonlocal stage
            if what != stage:
                stage = what
                progress.stage(f"reading {what}" if what == "documents" else f"computing {what}")
            progress.advance(done, total)

        signed = audit_data(RunDir.open(run), signer, data=data, progress=tell)
    if out is not None:
        write_bytes(out, signed)
    audit = open_audit(signed).predicate
    if as_json:
        document = {
            "run": audit.run,
            "auditor": audit.auditor,
            "verdict": audit.verdict,
            "findings": list(audit.findings),
            "corpus": audit.corpus,
            "documents": audit.documents,
            "bytes": audit.length,
            "ledgers": {ledger.tier: ledger.root for ledger in audit.ledgers},
            "time": audit.time,
            "audit": None if out is None else str(out),
        }
        click.echo(json.dumps(document, sort_keys=True))
    else:
        click.echo(f"verdict    {audit.verdict}: {audit.documents} documents, {audit.length} bytes")
        for finding in audit.findings:
            click.echo(f"  {printable(finding)}")
        click.echo(f"corpus     {audit.corpus}")
        for ledger in audit.ledgers:
            click.echo(f"ledger     {ledger.tier} {ledger.root} ({ledger.entries} entries)")
        click.echo(f"auditor    {audit.auditor}" + ("" if key else " (made for this: it names nobody)"))
        if out is not None:
            click.echo(f"audit      {out} (give it to `witness query --audit {out}`)")
    ctx.exit(EXIT_REPRODUCED if audit.verdict == "complete" else EXIT_DIVERGED)
