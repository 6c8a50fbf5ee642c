"""`witness train`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import time
import warnings
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from protocol.errors import EXIT_INCOMPLETE, ProtocolError, UsageError, WitnessError
from protocol.profile import NAMES, NATIVE, full_name
from witness.cli.progress import Progress
from witness.exact_profile import announce_compilation

if TYPE_CHECKING:
    from protocol.manifest import Manifest


def _settings(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    del ctx
    pairs = [value.partition("=") for value in values]
    if any(not equals for _, equals, _ in pairs):
        raise click.BadParameter("write NAME=VALUE", param=parameter)
    return {name: value for name, _, value in pairs}


def _piece(ctx: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
    from protocol.statetree import MAX_PIECE, MIN_PIECE

    del ctx
    if value is not None and (not MIN_PIECE <= value <= MAX_PIECE or value & (value - 1)):
        raise click.BadParameter(f"write a power of two from {MIN_PIECE} to {MAX_PIECE}", param=parameter)
    return value


def _tiers(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    from protocol.winnowing import Winnowing

    del ctx
    try:
        for value in values:
            if value.startswith("t2-"):
                Winnowing.of_tier(value)
    except ProtocolError as error:
        message = f"{error}: write one like t2-winnow-bytes-k32-w19"
        raise click.BadParameter(message, param=parameter) from None
    return values


def _again(ctx: click.Context) -> str:
    """The command that continues this run, as it can be pasted."""
    words = ["witness", "train"]
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if parameter.name in ("resume", "as_json") or not given:
            continue
        value = ctx.params[parameter.name or ""]
        values = [f"{name}={text}" for name, text in value.items()] if isinstance(value, dict) else value
        for one in values if isinstance(values, list | tuple) else [values]:
            words += ([] if isinstance(parameter, click.Argument) else [parameter.opts[0]]) + [str(one)]
    return shlex.join([*words, "--resume"])


@click.command("train")
@click.argument("program")
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Folder of the run; missing or empty, unless --resume.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="File or folder of data, or a folder made by `witness data commit`; default: the embedded corpus.",
)
@click.option("--steps", type=click.IntRange(1), help="Steps to promise; default: the program's.")
@click.option("--batch-size", type=click.IntRange(1), help="Samples a step; default: the program's.")
@click.option(
    "--key",
    type=click.Path(path_type=Path),
    help="Signing key (see keygen); default: one made inside the run's folder.",
)
@click.option(
    "--profile",
    type=click.Choice(NAMES),
    help="Numeric profile: `exact` gives bits that any machine can replay; default: `native`, those of machines like "
    "this one. A run that is continued keeps its own.",
)
@click.option(
    "--ledger",
    "ledgers",
    multiple=True,
    callback=_tiers,
    metavar="TIER",
    help="A ledger besides the default ones, like t2-winnow-bytes-k32-w19 for passages; may be repeated.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Everything random derives from it.")
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="Compute threads; the native profile pins them. Default: the cores at hand.",
)
@click.option(
    "--checkpoint-every", type=click.IntRange(1), help="Keep the state every so many steps; default: about 20 a run."
)
@click.option(
    "--commit-every",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Commit the state root every so many steps.",
)
@click.option("--piece", type=int, callback=_piece, help="Bytes of a state piece: a power of two from 4096 to 1048576.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="NAME=VALUE",
    help="A setting of the program; may be repeated.",
)
@click.option(
    "--resume", is_flag=True, help="Continue the run in --out, with the same bits as if it had never stopped."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    program: str,
    out: Path,
    resume: bool,
    as_json: bool,
    settings: dict[str, str],
    **options: Any,
) -> None:
    """Record a training run of PROGRAM: `gpt`, `mlp`, or PROGRAM.py:Class.

    Ctrl-C once ends after the current step; the run can then be continued with --resume.
    """
    _prepare(out, resume, options["threads"], options["profile"])
    began = time.monotonic()
    # Standard output is for the one JSON object, whatever the program prints.
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        recorder = _run(program, out, resume, as_json, settings, options)
    _show(ctx, recorder, out, time.monotonic() - began, as_json)


def _run(
    program: str, out: Path, resume: bool, as_json: bool, settings: dict[str, str], options: dict[str, Any]
) -> Any:
    """Finds the program and records it; gives back the recorder, which is closed."""
    from witness.training import find_program, make_program, of_program, remake_program

    kind = find_program(program)
    try:
        if resume and not settings:
            made = remake_program(kind, _as_before(out, options["steps"]))
        else:
            steps = _as_before(out, options["steps"]).steps if resume else options["steps"]
            made = make_program(kind, settings, steps)
        return _record(made, out, resume, as_json, options)
    except WitnessError:
        raise
    except Exception as error:
        found = of_program(error, kind, settings, begun=(out / "log.sqlite").is_file())
        if found is None:
            raise
        raise found from error


def _record(made: Any, out: Path, resume: bool, as_json: bool, options: dict[str, Any]) -> Any:
    from witness.keys import named_key
    from witness.profile import DEFAULT
    from witness.recorder import RecordingWarning, record
    from witness.training import run_loop

    with Progress(quiet=as_json) as progress:
        if (options["profile"] or "").startswith("exact"):
            announce_compilation(progress.stage)
        native = full_name(options["profile"] or DEFAULT) == NATIVE
        ready = "" if native or resume else "proving the arithmetic (compiled at its first use on a machine), "
        progress.stage(f"{ready}trying the program on a scratch copy")
        with warnings.catch_warnings(action="ignore", category=RecordingWarning):  # shown below, in our own way
            recorder = record(
                out,
                made,
                options["data"],
                steps=options["steps"],
                batch_size=options["batch_size"],
                seed=options["seed"],
                key=named_key(options["key"]) if options["key"] else None,
                checkpoint_every=options["checkpoint_every"],
                commit_every=options["commit_every"],
                pieces=options["piece"],
                ledgers=["default", *options["ledgers"]],
                profile=options["profile"],
                resume=resume,
            )
        for text in recorder.warnings:
            progress.line(f"warning: {text}")
        total = recorder.manifest.steps
        progress.stage(f"recording {total} steps" + (f", from step {recorder.step_number + 1}" if resume else ""))
        _stop_softly(recorder, progress)
        with recorder:
            run_loop(recorder, lambda step, loss: progress.advance(step, total, f"loss {loss:.4f}"))
    return recorder


def _prepare(out: Path, resume: bool, threads: int | None, profile: str | None) -> None:
    """Starts again in the environment of the profile, before torch is there.

    Exact arithmetic does with any, but not the program: where it walks a set, Python's hash seed decides the order.
    """
    from protocol.native_profile import NativeProfile
    from witness.environment import VARIABLES, environment, recommended_environment
    from witness.pinning import restart_in
    from witness.profile import DEFAULT

    recorded = None
    if resume:
        from witness.rundir import RunDir

        recorded = RunDir.open(out).manifest().profile
    if isinstance(recorded, NativeProfile):
        restart_in(environment(recorded), frozenset(n for n in VARIABLES if recorded.environment.get(n) is None))
    elif recorded is None and full_name(profile or DEFAULT) == NATIVE:
        restart_in(recommended_environment(threads or len(os.sched_getaffinity(0))))
    else:
        restart_in({"PYTHONHASHSEED": "0"})
        if threads is not None:
            import torch

            torch.set_num_threads(threads)


def _as_before(out: Path, steps: int | None) -> Manifest:
    """The manifest of a run that is resumed: it fixes the steps, and the settings where none are named."""
    from witness.rundir import RunDir

    manifest = RunDir.open(out).manifest()
    if steps not in (None, manifest.steps):
        raise UsageError("resume-mismatch", f"the run promises {manifest.steps} steps; a promise cannot be changed")
    return manifest


def _stop_softly(recorder: Any, progress: Progress) -> None:
    def stop(*_: object) -> None:
        recorder.stopping = True
        progress.stage("ending after this step (Ctrl-C again to stop at once)")
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)


def _show(ctx: click.Context, recorder: Any, out: Path, seconds: float, as_json: bool) -> None:
    from witness.rundir import RunDir

    manifest = recorder.manifest
    finished = recorder.step_number == manifest.steps
    document = {
        "run": manifest.run_id.hex(),
        "folder": str(out),
        "steps": {"promised": manifest.steps, "recorded": recorder.step_number},
        "finished": finished,
        "final": {"state_root": recorder.last_root.hex()},
        "head": RunDir.open(out).latest_head().decode(),
        "loss": repr(recorder.losses[-1]) if recorder.losses else None,
        "key": manifest.key,
        "seconds": round(seconds, 3),
        "warnings": recorder.warnings,
    }
    if as_json:
        click.echo(json.dumps(document, sort_keys=True))
    else:
        click.echo(f"run         {document['run']}")
        click.echo(f"state root  {recorder.last_root.hex()} after step {recorder.step_number} of {manifest.steps}")
        if recorder.losses:
            click.echo(f"loss        {recorder.losses[0]:.4f} -> {recorder.losses[-1]:.4f} in {seconds:.0f} s")
        if recorder.own_key:
            click.echo("key         made for this run, in its folder: it names nobody (use --key and `witness keygen`)")
        click.echo(f"next        {shlex.join(['witness', 'verify', str(out)]) if finished else _again(ctx)}")
    if not finished:
        ctx.exit(EXIT_INCOMPLETE)
