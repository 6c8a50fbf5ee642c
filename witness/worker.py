"""What runs inside the sandbox: build, restore, execute steps, and write down what came out. It compares nothing.

A job is a folder. The parent puts in `manifest`, `job` and, for steps, `before.state` and the samples; the worker
leaves `<step>.state`, `<step>.batch` and `<step>.record` for the steps to keep, or `error`. The parent hashes what it
finds and holds it to what was committed; the committed roots are nowhere in the sandbox.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch

import witness
from protocol.comparison import Difference
from protocol.encoding import decode, encode
from protocol.errors import IncompleteError, ProtocolError, WitnessError
from protocol.manifest import Manifest, parse_manifest
from protocol.messages import split_entries
from witness import profile, source
from witness.attribution import accuses, first_line, is_of_a_compiler, is_of_memory, place_of
from witness.execute import build, hyperparameter_forms, run_step
from witness.program import Program, State, instantiate
from witness.restore import restore
from witness.state import Census
from witness.statefile import read_state, write_state
from witness.worker_files import Job, Shown, Trouble

BREACHES = frozenset({"program", "state-restore", "unbound-state", "exact-refused"})
"""Errors of ours that say what a program does, and that no recorder would have let pass."""


def main(folder: Path) -> None:
    """Runs the job in `folder`; the sandbox calls it."""
    try:
        manifest = parse_manifest((folder / "manifest").read_bytes())
        job = decode((folder / "job").read_bytes(), Job, limit=1 << 20)
        profile.apply(manifest.profile)
        program = load_program(manifest, Path(job.program) if job.program else None)
        try:
            _act(folder, manifest, job, program)
        except Exception as error:
            if is_of_memory(error):
                raise
            _report(folder, _trouble(error, manifest, job))
    except WitnessError as error:
        _report(folder, Trouble(error.code, str(error), error.evidence))
    except Exception as error:
        if is_of_memory(error):
            raise  # the sandbox tells this apart
        _report(folder, Trouble("replay-stopped", f"the replay failed, before the program ran: {place_of(error)}"))


def _act(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    act = {"compare": _compare, "hyperparameters": _hyperparameters, "init": _init, "steps": _steps}[job.kind]
    with profile.operation_recorder(manifest.profile) if job.trace else nullcontext() as operations:
        act(folder, manifest, job, program)
    if operations is not None:
        (folder / "operations").write_bytes(encode(operations.specs))


def _trouble(error: Exception, manifest: Manifest, job: Job) -> Trouble:
    """What an exception means: that the program fails on what was committed, or that nothing can be told here."""
    if isinstance(error, ModuleNotFoundError):  # even in a step: what is missing is missing here, and accuses nobody
        return Trouble("program-load", f"the program needs a module that is not installed here: {error}")
    if isinstance(error, WitnessError):
        message, evidence = str(error), {**error.evidence, "found": error.code}
        if error.code not in BREACHES:
            return Trouble(error.code, str(error), error.evidence)
    elif accuses(error, Path(job.program) if job.program else None):
        message, evidence = f"the program raised {place_of(error)}", {}
    elif is_of_a_compiler(error):
        return Trouble("compiler", f"torch.compile fails in the sandbox: {first_line(place_of(error))}")
    else:
        return Trouble("replay-stopped", f"the replay failed, and not in the program's own code: {place_of(error)}")
    try:
        excuses = profile.excuses(manifest.profile, compared=job.kind != "compare")
    except WitnessError as unread:  # this machine's lines cannot be read
        return Trouble(unread.code, f"{message}; but {unread}", {**evidence, **unread.evidence})
    if evidence.get("found") == "exact-refused" and manifest.package != witness.__version__:
        excuses.append(Difference("package", manifest.package[:512], witness.__version__, "outside"))
    if excuses:
        lines = {d.path: d.values() for d in excuses}
        return Trouble("outside-differs", f"{message}; but {excuses[0].text()}", {**evidence, **lines})
    return Trouble("replay-failed", message, evidence)


def _report(folder: Path, trouble: Trouble) -> None:
    plain = {k: v if isinstance(v, str | int | bool | None) else str(v) for k, v in trouble.evidence.items()}
    kept = Trouble(trouble.code[:64], trouble.message[:2000], plain)
    (folder / "error").write_bytes(msgspec.json.encode(kept, order="sorted"))


def load_program(manifest: Manifest, folder: Path | None) -> Program:
    """The program that the manifest names, made with its arguments.

    Raises:
        IncompleteError: `program-load`.
        ProtocolError: `program-arguments`.
    """
    try:
        kind, namespace = source.load(manifest.program, folder)
        return instantiate(kind, namespace, manifest.program.arguments)
    except WitnessError:
        raise
    except Exception as error:
        if is_of_memory(error):
            raise
        raise IncompleteError("program-load", f"the program cannot be made: {place_of(error)}") from error


def _build(manifest: Manifest, program: Program) -> State:
    return build(program, bytes.fromhex(manifest.seed.value), arithmetic=profile.arithmetic(manifest.profile))


def _compare(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    del job
    state = _build(manifest, program)
    optimizers = {name: c for name, c in state.items() if isinstance(c, torch.optim.Optimizer)}
    comparison = profile.compare(manifest.profile, manifest.operations, optimizers, {**state, "program": program})
    (folder / "comparison").write_bytes(encode(comparison))


def _hyperparameters(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    with profile.arithmetic(manifest.profile)() as exact:
        steps = range(job.first, job.last + 1)
        rows = [hyperparameter_forms(program, step, settles=bool(exact)) for step in steps]
    (folder / "hyperparameters").write_bytes(encode(rows))


def _init(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    del job
    census = Census(program, _build(manifest, program))
    write_state(folder / "0.state", census.entries(), census.data, durable=False)


def _steps(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    seed, arithmetic = bytes.fromhex(manifest.seed.value), profile.arithmetic(manifest.profile)
    state = _build(manifest, program)
    before = read_state(folder / "before.state", manifest.pieces)
    try:
        restore(program, state, *before)
    except ProtocolError as error:  # whatever it is, the committed state does not fit
        raise ProtocolError("state-restore", str(error), evidence=error.evidence) from error
    for step in range(job.first, job.last + 1):
        samples = split_entries((folder / f"{step}.samples").read_bytes())
        probe = split_entries((folder / f"{step}.probe").read_bytes())
        outcome = run_step(program, state, step, seed, samples, probe, arithmetic=arithmetic)
        entries, buffers = outcome.batch
        write_state(folder / f"{step}.batch", entries, buffers.__getitem__, durable=False)
        (folder / f"{step}.record").write_bytes(encode(Shown(outcome.fingerprint, outcome.hyperparameters)))
        if step in job.keep:
            census = Census(program, state)
            write_state(folder / f"{step}.state", census.entries(), census.data, durable=False)
        with (folder / "progress").open("a") as file:
            file.write(f"{step}\n")
