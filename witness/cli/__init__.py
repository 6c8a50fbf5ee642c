"""The command line: parse, call one library function, render. It decides nothing.

One file a command. Commands load when they are called, so that `witness check` starts without torch, numpy or the
network stack. Exit status: 0 reproduced (or done), 1 diverged, 2 incomplete, 64 usage; an error's own status comes from
`protocol.errors`.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

import click

from protocol.errors import EXIT_INCOMPLETE, EXIT_USAGE, IncompleteError, UsageError, WitnessError
from witness import __version__

COMMANDS = {
    "keygen": "Make an Ed25519 key pair; print the public key.",
    "data": "Commit to data before a run: JSON lines, parquet, token files, arrays...",
    "train": "Record a training run: a program file or a reference program.",
    "inspect": "Show a run: manifest, coverage, losses.",
    "fsck": "Derive every root, signature, piece and record again from stored bytes.",
    "serve": "Answer challenge sessions over HTTP.",
    "verify": "Challenge a run, replay what is drawn, sign a certificate.",
    "check": "Check certificates without replaying; add them up.",
    "query": "Ask whether, when and how often documents were used, or prove that they were not.",
    "demo": "Train, serve, verify, and catch six cheats.",
}


class LazyGroup(click.Group):
    """A group whose commands are modules of this package, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of a first session."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported; its file is `witness/cli/<name>.py` and its object is `command`."""
        if cmd_name not in COMMANDS:
            return None
        del ctx
        command: click.Command = importlib.import_module(f"witness.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists commands from the table above, importing none of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="""Make a training run checkable by people who do not trust the trainer.

    \b
    witness train gpt --out runs/a          record a run
    witness verify runs/a                   challenge it
    witness serve runs/a                    let others challenge it
    """,
)
@click.version_option(__version__, prog_name="witness")
def group() -> None:
    """Runs one command; its help stands above, because a docstring with an escape would be a raw one."""


def main() -> None:
    """The console script: errors become one clear message and the exit status of their code."""
    try:
        # Not group.main(), which answers a closed pipe with exit status 1: here that says diverged.
        with group.make_context("witness", sys.argv[1:]) as context:
            status = group.invoke(context)
    except WitnessError as error:
        _complain(error)
        status = error.exit_status
    except click.exceptions.Exit as error:
        status = error.exit_code
    except click.UsageError as error:
        error.show()
        status = EXIT_USAGE
    except click.ClickException as error:
        error.show()
        status = EXIT_USAGE
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped", err=True)
        status = EXIT_INCOMPLETE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = EXIT_INCOMPLETE  # whoever closed the pipe has not read the verdict
    except Exception as error:  # noqa: BLE001 - one clear line, whatever it is; it says where
        found = _unforeseen(error)
        _complain(found)
        status = found.exit_status
    sys.exit(status if isinstance(status, int) else 0)


def _unforeseen(error: Exception) -> WitnessError:
    """The error for what no code here foresaw."""
    if isinstance(error, OSError) and error.strerror:
        from witness.statefile import DISK_FULL

        code = "disk-full" if error.errno in DISK_FULL else "disk"
        return UsageError(code, f"{error.filename or 'the disk'}: {error.strerror}")
    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(frame.filename).name}:{frame.lineno}"
    return IncompleteError("unforeseen", f"{type(error).__name__} at {where}: {error}")


def _complain(error: WitnessError) -> None:
    """On stderr: for people, or as one JSON object when the command was called with --json."""
    if "--json" in sys.argv:
        import json

        document = {"error": error.code, "message": str(error), "evidence": error.evidence, "next": error.next_action}
        click.echo(json.dumps(document, default=str, sort_keys=True), err=True)
    else:
        click.echo(error.diagnostics(), err=True)
