"""`witness serve`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from witness.cli.damage import advising


def _tell(line: str) -> None:
    click.echo(f"{datetime.now(UTC):%H:%M:%S} UTC  {line}", err=True)


@click.command("serve")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8750, show_default=True, help="Port; 0 for any free one."
)
@click.option(
    "--key", type=click.Path(path_type=Path), help="The trainer's signing key; default: the one in the run's folder."
)
@click.option("--data", type=click.Path(path_type=Path), help="Where the corpus lies now, if it moved.")
@click.option(
    "--proxy",
    "proxies",
    multiple=True,
    metavar="ADDRESS",
    help="A reverse proxy in front (it speaks TLS), whose word on client addresses is believed; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Announce the address as one JSON object.")
def command(
    run: Path, host: str, port: int, key: Path | None, data: Path | None, proxies: tuple[str, ...], as_json: bool
) -> None:
    """Answer challenge sessions on RUN over HTTP, until Ctrl-C.

    States that were not kept are rebuilt in the sandbox when a session asks for them; a machine that cannot give their
    bits serves nothing. The run may still be in training. Each session's beginning, challenges and end are told on
    stderr, unless --json is given.
    """
    from witness.http.server import make_app, serve
    from witness.rundir import RunDir
    from witness.serving import Serving

    with advising(run):
        opened = Serving(RunDir.open(run), key, data, None if as_json else _tell)
    with opened as serving:
        for warning in serving.warnings:
            click.echo(f"warning: {warning}", err=True)
        app = make_app(
            serving.open_session, serving.describe, serving.head, ledgers=serving.ledgers, answer=serving.answer
        )

        def ready(bound: int) -> None:
            url = f"http://{host}:{bound}"
            facts = {**serving.describe(), "url": url}
            click.echo(
                json.dumps(facts, sort_keys=True)
                if as_json
                else f"serving run {facts['run'][:16]} ({facts['steps']} steps) at {url}"
            )

        serve(app, host, port, ready=ready, proxies=proxies)
