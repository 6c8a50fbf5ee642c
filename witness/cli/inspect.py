"""`witness inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from witness.cli.progress import Progress


@click.command("inspect")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--full", is_flag=True, help="Everything: with --json one value for each step, else all states and lines."
)
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page that needs only a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; its keys are stable.")
def command(run: Path, full: bool, html: Path | None, as_json: bool) -> None:
    """Show what RUN says of itself: program, data, losses, commitments, coverage, numeric profile.

    Nothing is derived again (`witness fsck` does that) and nothing is replayed (`witness verify`).
    """
    from witness.inspection import brief, inspect
    from witness.rundir import RunDir

    with Progress(quiet=as_json) as progress:
        begun = False

        def told(done: int, total: int) -> None:
            nonlocal begun
            if not begun:
                progress.stage("reading the log")
                begun = True
            progress.advance(done, total, "entries")

        document = inspect(RunDir.open(run), full=True, progress=told)
    if html is not None:
        from witness.report.page import render
        from witness.statefile import write_bytes

        write_bytes(html, render(document).encode())
        click.echo(f"wrote {html}", err=True)
    if as_json:
        click.echo(json.dumps(document if full else brief(document), sort_keys=True))
    else:
        from rich.console import Console

        from witness.report.terminal import show

        show(document, Console(highlight=False, emoji=False, markup=False), full=full)
