"""`witness demo`: the whole product in a few minutes, on this machine, with nothing but what is installed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protocol.errors import EXIT_DIVERGED, EXIT_REPRODUCED, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from witness.demonstration import Cheat

CONFIDENCE, BAD_FRACTION = "0.95", "0.1"
THREADS = 1
"""Small models gain little from a second thread, and lose much where another process wants the core."""
_START_SECONDS = 120.0
_VERIFYING, _CHEATING = (25.0, 90.0), (30.0, 80.0)
"""Seconds that a part takes on two cores, idle and busy; recording is `_recording`."""


def _recording(steps: int) -> tuple[float, float]:
    return 5 + 0.4 * steps, 10 + 1.5 * steps


@click.group("demo", invoke_without_command=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for what the demo makes; default: runs/demo-<number>."
)
@click.option("--steps", type=click.IntRange(20), default=200, show_default=True, help="Steps to train the GPT for.")
@click.pass_context
def command(ctx: click.Context, out: Path | None, steps: int) -> None:
    """Train a GPT of a million parameters, serve the run, challenge it over HTTP, and catch six cheats.

    `witness demo leak` shows the other demonstration: validation documents in the training data.
    """
    if ctx.invoked_subcommand is not None:
        return
    from witness.environment import recommended_environment
    from witness.pinning import restart_in

    restart_in(recommended_environment(THREADS))
    folder = out or _free(Path("runs"))
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("run-exists", f"{folder} exists and is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    parts = (_recording(steps), _VERIFYING, _CHEATING)
    whole = expected(sum(low for low, _ in parts), sum(high for _, high in parts))
    click.echo(f"In all about {whole}, most of it for recording {steps} steps; fewer with --steps.")
    _honest(folder, steps)
    failures = _cheats(folder)
    click.echo()
    if failures:
        click.secho(
            f"{failures} of 6 cheats were not caught as they must be: this is a defect, please report it", fg="red"
        )
        ctx.exit(EXIT_DIVERGED)
    click.secho(
        f"One honest run reproduced, six cheats caught by name, in {time.monotonic() - began:.0f} s.", bold=True
    )
    click.echo(f"Look around: witness inspect {folder / 'gpt'} --html {folder / 'gpt.html'}")


@command.command("leak")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for what the demo makes; default: runs/leak-<number>."
)
@click.pass_context
def leak(ctx: click.Context, out: Path | None) -> None:
    """A script's split leaks 80% of the validation documents: named hits, a proven zero, and a trainer who hides it."""
    from witness.environment import recommended_environment
    from witness.pinning import restart_in

    restart_in(recommended_environment(THREADS))
    from witness.cli.demo_leak import show

    folder = out or _free(Path("runs"), "leak")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError("run-exists", f"{folder} exists and is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    ctx.exit(show(folder))


def _free(parent: Path, name: str = "demo") -> Path:
    number = 1
    while (parent / f"{name}-{number}").exists():
        number += 1
    return parent / f"{name}-{number}"


def expected(low: float, high: float) -> str:
    """How long a part takes, in words: from an idle machine to a busy one, in seconds."""
    if high < 90:
        return f"{low:.0f} to {high:.0f} s"
    return f"{max(1, round(low / 60))} to {round(high / 60)} min"


def _title(text: str, seconds: tuple[float, float] | None = None) -> None:
    click.echo()
    click.secho(f"== {text}" + ("" if seconds is None else f" (about {expected(*seconds)})"), bold=True)


def _run(*arguments: str, expect: int = EXIT_REPRODUCED, show: bool = True) -> None:
    """Runs one command of ours, showing it as a person would type it.

    Raises:
        UsageError: `demo`, when it ends otherwise than it must.
    """
    click.secho(f"$ witness {' '.join(arguments)}", fg="cyan")
    done = subprocess.run(
        [sys.executable, "-m", "witness", *arguments], check=False, stdout=None if show else subprocess.PIPE
    )
    if done.returncode != expect:
        raise UsageError("demo", f"`witness {arguments[0]}` ended with status {done.returncode}; {expect} was due")


def _honest(folder: Path, steps: int) -> None:
    run, certificate = folder / "gpt", folder / "gpt.cert"
    _title("1. Two parties make their keys")
    _run("keygen", str(folder / "trainer.key"), "--name", "trainer")
    _run("keygen", str(folder / "verifier.key"), "--name", "verifier")
    _title(f"2. The trainer records {steps} steps of a GPT on the text that every Python carries", _recording(steps))
    _run(
        "train",
        "gpt",
        "--out",
        str(run),
        "--steps",
        str(steps),
        "--key",
        str(folder / "trainer.key"),
        "--checkpoint-every",
        "10",
        "--profile",
        "exact",
        "--threads",
        str(THREADS),
    )
    _title("3. The trainer serves the run; the verifier challenges it over HTTP", _VERIFYING)
    with _served(run, folder / "trainer.key") as url:
        options = ["--confidence", CONFIDENCE, "--bad-fraction", BAD_FRACTION, "--key", str(folder / "verifier.key")]
        _run("verify", url, *options, "--out", str(certificate))
    _title("4. Anybody checks the certificate, without torch and without replaying")
    _run("check", str(certificate), "--run", str(run), "--released", str(run / "model.safetensors"), show=False)
    click.echo("signatures, draws, probabilities, verdict, log and released weights: as they must be")


@contextmanager
def _served(run: Path, key: Path) -> Iterator[str]:
    arguments = ["serve", str(run), "--port", "0", "--key", str(key)]
    click.secho(f"$ witness {' '.join(arguments)} &", fg="cyan")
    process = subprocess.Popen(
        [sys.executable, "-m", "witness", *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout else ""
        if not line:
            raise UsageError("demo", f"the server did not start (status {process.wait(_START_SECONDS)})")
        yield json.loads(line)["url"]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def _cheats(folder: Path) -> int:
    """Records six dishonest runs and shows what catches each; returns how many were not caught as they must be."""
    from witness.demonstration import CHEATS

    _title("5. Six cheating trainers, each with a key, a log and every state it committed to", _CHEATING)
    failures = 0
    for number, cheat in enumerate(CHEATS, 1):
        click.secho(f"\n({number}) {cheat.attack}: {cheat.story}", bold=True)
        path = folder / f"cheat-{cheat.attack}"
        cheat.commit(path)
        failures += _report(cheat, _verify(path))
    click.secho("\n(6) A10: Changes one bit of one weight in the published file, after the run has ended.", bold=True)
    return failures + _released(folder)


def _verify(path: Path) -> list[dict[str, Any]]:
    """Verifies a run of the demonstration, drawing every step, so that the outcome does not hang on luck."""
    from witness.demonstration import STEPS

    arguments = ["verify", str(path), "--rounds", "1", "--round-size", str(STEPS), "--keep-going", "--json"]
    click.secho(f"$ witness {' '.join(arguments)}", fg="cyan")
    done = subprocess.run([sys.executable, "-m", "witness", *arguments], check=False, capture_output=True, text=True)
    if done.returncode != EXIT_DIVERGED:
        return []
    failed: list[dict[str, Any]] = json.loads(done.stdout)["failed"]
    return sorted((row for row in failed if row["outcome"] == "diverged"), key=lambda row: row["step"] or 0)


def _report(cheat: Cheat, failed: list[dict[str, Any]]) -> int:
    found = failed[0] if failed else {"code": "nothing", "evidence": {}, "step": None}
    evidence = found["evidence"]
    step = evidence.get("first_differing_step", found["step"])
    click.echo(f"    caught: {found['code']} at step {step}")
    if "tensor" in evidence:
        click.echo(
            f"    tensor {evidence['tensor']}, element {evidence.get('element')}: committed "
            f"{evidence.get('committed')}, replayed {evidence.get('replayed')}"
        )
    if found["code"] == cheat.code and step == cheat.step:
        return 0
    click.secho(f"    expected {cheat.code} at step {cheat.step}", fg="red")
    return 1


def _released(folder: Path) -> int:
    from witness.demonstration import alter_released_weights, caught
    from witness.holding import hold_weights

    run = folder / "gpt"
    original = (run / "model.safetensors").read_bytes()
    alter_released_weights(run)
    click.secho(f"$ witness check {folder / 'gpt.cert'} --run {run} --released {run / 'model.safetensors'}", fg="cyan")
    try:
        error = caught(lambda: hold_weights(run / "model.safetensors", run))
    except AssertionError:
        click.secho("    not caught", fg="red")
        return 1
    finally:
        (run / "model.safetensors").write_bytes(original)
    click.echo(f"    caught: {error.code}: {error}")
    return 0 if error.code == "released-weights" else 1
