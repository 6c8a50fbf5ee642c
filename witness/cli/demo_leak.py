"""`witness demo leak`: the dispute over a leaked validation set, settled."""

from __future__ import annotations

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from protocol import soundness
from protocol.errors import EXIT_DIVERGED, EXIT_REPRODUCED, UsageError
from witness.leak import LEAKED, VALIDATION, LeakHider, digests_of, make_split
from witness.programs.gpt import GPT, GPTConfig

STEPS = 20
CONFIG = GPTConfig(layers=1, heads=2, width=64, context=64, steps=STEPS, batch_size=16)
SETTINGS = ("layers=1", "heads=2", "width=64", "context=64")


def show(folder: Path) -> int:
    """Runs the demonstration in a folder and returns the exit status: 0 when everything came out as it must."""
    split = make_split(folder)
    click.secho(f"{VALIDATION} validation documents; a script's default put {LEAKED} of them into training", bold=True)
    good = True
    for name, data, hits in (("leaky", split.leaky, LEAKED), ("clean", split.clean, 0)):
        _title(f"The {name} split")
        run = folder / f"run-{name}"
        train = [
            "train",
            "gpt",
            "--out",
            str(run),
            "--data",
            str(data),
            "--steps",
            str(STEPS),
            "--threads",
            "1",
            "--json",
        ]
        _witness(*train, *(word for setting in SETTINGS for word in ("--set", setting)))
        verdict, found = _verify(run, split.validation)
        exclusion = found["data"]["exclusion"]
        included = [row["name"] for row in exclusion["included"]]
        asked, absent = exclusion["asked"], exclusion["absent"]
        click.echo(f"    {verdict}; {asked} documents asked about, {absent} proven absent, {len(included)} found")
        for named in included[:3]:
            click.echo(f"    in training: {named}")
        if len(included) > 3:
            click.echo(f"    ... and {len(included) - 3} more by name, on the certificate")
        good &= verdict == "reproduced" and len(included) == hits
        good &= set(included) <= {path.name for path in split.validation.iterdir()}
    _title("A trainer who hides the leak: other documents stand in its ledgers")
    run = folder / "run-hidden"
    LeakHider.hidden = digests_of(split.validation)
    recorder = LeakHider.begin(
        run,
        GPT(CONFIG),
        split.leaky,
        steps=STEPS,
        batch_size=16,
        seed=0,
        key=None,
        checkpoint_every=1,
        commit_every=1,
        pieces=None,
    )
    with recorder:
        for batch in recorder:
            recorder.step(batch)
    verdict, found = _verify(run, split.validation)
    caught = next((row for row in found["failed"] if row["outcome"] == "diverged"), None)
    if caught is None:
        click.secho("    not caught", fg="red")
        return EXIT_DIVERGED
    click.echo(f"    {verdict}: caught by {caught['code']} (check {caught['check']}): {caught['message']}")
    good &= (verdict, caught["check"], caught["code"]) == ("diverged", "ledgers", "ledger-root")
    _beside()
    click.echo()
    if not good:
        click.secho("something did not come out as it must: this is a defect, please report it", fg="red")
        return EXIT_DIVERGED
    click.secho("Every hit by name, a proven zero, and the hidden leak found.", bold=True)
    return EXIT_REPRODUCED


def _beside() -> None:
    """What spot checks alone would have been worth, beside the audit of the whole list."""
    draws = 8
    one = soundness.decimal_down(Fraction(draws, STEPS), 3)
    click.echo("    the whole list behind a ledger is read, so this is found with certainty")
    click.echo(
        f"    (a document whose leaf itself lies is found where a challenged step reads it: one that a single step of "
        f"{STEPS} reads, by {draws} draws, with probability {one})"
    )


def _title(text: str) -> None:
    click.echo()
    click.secho(f"== {text}", bold=True)


def _witness(*arguments: str) -> subprocess.CompletedProcess[str]:
    click.secho(f"$ witness {' '.join(arguments)}", fg="cyan")
    done = subprocess.run([sys.executable, "-m", "witness", *arguments], check=False, capture_output=True, text=True)
    if done.returncode not in (EXIT_REPRODUCED, EXIT_DIVERGED) or not done.stdout:
        raise UsageError("demo", f"`witness {arguments[0]}` ended with status {done.returncode}: {done.stderr[-500:]}")
    return done


def _verify(run: Path, validation: Path) -> tuple[str, dict[str, Any]]:
    done = _witness("verify", str(run), "--rounds", "1", "--exclude", str(validation), "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found["verdict"], found
