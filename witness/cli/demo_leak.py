"""`witness demo leak`: the dispute over a leaked validation set, settled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

import witness
from protocol import soundness
from protocol.errors import EXIT_DIVERGED, EXIT_REPRODUCED, UsageError
from witness.cli.demo import expected
from witness.leak import LEAKED, VALIDATION, LeakHider, digests_of, make_split
from witness.programs.gpt import GPT, GPTConfig

STEPS = 20
CONFIG = GPTConfig(layers=1, heads=2, width=64, context=64, steps=STEPS, batch_size=16)
SETTINGS = ("layers=1", "heads=2", "width=64", "context=64")


def show(folder: Path) -> int:
    """Runs the demonstration in a folder and returns the exit status: 0 when everything came out as it must."""
    split = make_split(folder)
    click.secho(f"{VALIDATION} validation documents; a script's default put {LEAKED} of them into training", bold=True)
    click.echo(f"Three runs of {STEPS} steps, each recorded and verified: about {expected(60, 240)} in all.")
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
        good &= _proofs(run, split.validation, folder / f"proofs-{name}", hits)
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
    audit = json.loads(_witness("data", "audit", str(run), "--json").stdout)
    click.echo(f"    an audit: {audit['verdict']}; {audit['findings'][0] if audit['findings'] else 'nothing found'}")
    good &= audit["verdict"] == "differs"
    _beside()
    click.echo()
    if not good:
        click.secho("something did not come out as it must: this is a defect, please report it", fg="red")
        return EXIT_DIVERGED
    click.secho("Every hit by name, a proven zero, and the hidden leak found.", bold=True)
    return EXIT_REPRODUCED


def _proofs(run: Path, validation: Path, proofs: Path, hits: int) -> bool:
    """Every answer as a file of its own; and one of them checked where there is nothing but it and the signed head."""
    found = json.loads(_witness("query", str(run), "--all", str(validation), "--out", str(proofs), "--json").stdout)
    click.echo(f"    {len(list(proofs.iterdir()))} proof files: {found['found']} of use, {found['absent']} of absence")
    wanted = "included" if hits else "absent"
    digest = next(answer["digest"] for answer in found["answers"] if answer["result"] == wanted)
    alone = proofs.with_name(proofs.name + "-alone")
    alone.mkdir()
    shutil.copy(proofs / f"{digest}.proof.json", alone / "proof")
    shutil.copy(max((run / "heads").iterdir()), alone / "head")
    checked = json.loads(_witness("query", "--check", "proof", "--head", "head", "--json", folder=alone).stdout)
    click.echo(f"    in a folder with that proof and the signed head alone: {checked['answers'][0]['result']}")
    return (found["found"], checked["answers"][0]["result"]) == (hits, wanted)


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


def _witness(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    click.secho(f"$ witness {' '.join(arguments)}", fg="cyan")
    root = str(Path(witness.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "witness", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))},
    )
    if done.returncode not in (EXIT_REPRODUCED, EXIT_DIVERGED) or not done.stdout:
        raise UsageError("demo", f"`witness {arguments[0]}` ended with status {done.returncode}: {done.stderr[-500:]}")
    return done


def _verify(run: Path, validation: Path) -> tuple[str, dict[str, Any]]:
    done = _witness("verify", str(run), "--rounds", "1", "--exclude", str(validation), "--json")
    found: dict[str, Any] = json.loads(done.stdout)
    return found["verdict"], found
