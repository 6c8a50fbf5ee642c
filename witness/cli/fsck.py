"""`witness fsck`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from witness.cli.progress import Progress
from witness.printable import printable
from witness.report.wording import many

if TYPE_CHECKING:
    from witness.fsck import Report

_MEGABYTE = 1e6
_COLOURS = {"damage": "red", "unreadable": "yellow", "note": None}


@click.command("fsck")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--data", type=click.Path(path_type=Path), help="Where the corpus lies now, if it moved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(ctx: click.Context, run: Path, data: Path | None, as_json: bool) -> None:
    """Derive every root, signature, piece and record of RUN again from stored bytes, and list all damage.

    Nothing is written and nothing of the run is executed. Exit status: 0 clean, 1 damage, 2 no damage seen, but
    something may not be read.

    """
    from witness.fsck import fsck, open_run

    with Progress(quiet=as_json) as progress:
        stage = ""

        def told(what: str, done: int, total: int) -> None:
            nonlocal stage
            if what != stage:
                stage = what
                progress.stage(f"reading {what}")
            progress.advance(round(done / _MEGABYTE), round(total / _MEGABYTE), "MB")

        report = fsck(open_run(run), told, data)
    if as_json:
        click.echo(json.dumps(report.document(), sort_keys=True))
    else:
        _show(report)
    ctx.exit(report.exit_status)


def _show(report: Report) -> None:
    for finding in report.findings:
        where = f" step {finding.step}" if finding.step is not None else ""
        where += f" entry {finding.entry}" if finding.entry is not None else ""
        click.secho(f"{finding.kind:<11}", fg=_COLOURS[finding.kind], bold=finding.kind == "damage", nl=False)
        click.echo(f"{printable(finding.file)}{where}: {finding.code}")
        click.echo(f"           {printable(finding.message, 2000)}")
        click.echo(f"           next: {finding.next}")
    for code, count in sorted(report.omitted.items()):
        click.echo(f"and {count} more of {code}")
    for line in report.unchecked:
        click.echo(f"unchecked  {printable(line)}")
    if report.findings or report.unchecked:
        click.echo()
    counts = report.counts
    unsigned = f" ({counts.unsigned_entries} of them under no signed head yet)" if counts.unsigned_entries else ""
    click.echo(f"run        {report.run or 'unknown: the manifest cannot be read'}")
    click.echo(f"log        {counts.entries} entries{unsigned}, {counts.heads} signed heads over them")
    click.echo(f"states     {counts.checkpoints} kept, {counts.pieces} pieces")
    click.echo(f"corpus     {counts.documents} documents")
    click.echo(f"program    {counts.program_files} files")
    click.echo(f"read       {counts.bytes / _MEGABYTE:.1f} MB")
    if report.exit_status == 0:
        click.secho("CLEAN", bold=True, fg="green", nl=False)
        click.echo(": what is stored is what was committed to. Whether training led there is for `witness verify`.")
    else:
        damage = sum(finding.kind == "damage" for finding in report.findings) + sum(report.omitted.values())
        unread = sum(finding.kind == "unreadable" for finding in report.findings)
        click.secho("DAMAGED" if damage else "UNREADABLE", bold=True, fg="red" if damage else "yellow", nl=False)
        parts = [many(damage, "finding")] if damage else []
        parts += [f"{many(unread, 'file')} that this user may not read"] if unread else []
        click.echo(f": {', '.join(parts)}")
