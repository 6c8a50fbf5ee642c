"""What runs inside the sandbox: build, restore, execute steps, and write down what came out. It compares nothing.

A job is a folder. The parent puts in `manifest`, `job` and, for steps, `before.state` and the samples; the worker
leaves `<step>.state`, `<step>.batch` and `<step>.record` for the steps to keep, or `error`. The parent hashes what it
finds and holds it to what was committed; the committed roots are nowhere in the sandbox.
"""

from __future__ import annotations

import traceback
from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch

from protocol.encoding import decode, encode
from protocol.errors import WitnessError
from protocol.manifest import Manifest, parse_manifest
from protocol.messages import split_entries
from witness import profile, source
from witness.execute import build, hyperparameter_forms, run_step
from witness.program import Program, State, instantiate
from witness.restore import restore
from witness.state import Census
from witness.statefile import read_state, write_state
from witness.worker_files import Job, Shown, Trouble


def main(folder: Path) -> None:
    """Runs the job in `folder`; the sandbox calls it."""
    try:
        manifest = parse_manifest((folder / "manifest").read_bytes())
        job = decode((folder / "job").read_bytes(), Job, limit=1 << 20)
        profile.apply(manifest.profile)
        program = load_program(manifest, Path(job.program) if job.program else None)
        act = {"compare": _compare, "hyperparameters": _hyperparameters, "init": _init, "steps": _steps}[job.kind]
        with profile.operation_recorder(manifest.profile) if job.trace else nullcontext() as operations:
            act(folder, manifest, job, program)
        if operations is not None:
            (folder / "operations").write_bytes(encode(operations.specs))
    except WitnessError as error:
        _report(folder, error.code, str(error), error.evidence)
    except MemoryError:
        raise  # the sandbox tells this apart
    except ModuleNotFoundError as error:  # even in a step: what is missing is missing here, and accuses nobody
        _report(folder, "program-load", f"the program needs a module that is not installed here: {error}", {})
    except Exception as error:  # noqa: BLE001 - whatever a stranger's program raises is a finding, not our crash
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {error}"
        if type(error).__module__.startswith(("torch._inductor.", "torch._dynamo.")):
            # A compiler that needs other programs (as the default one needs a C++ compiler) finds none in a sandbox.
            _report(folder, "replay-stopped", f"torch.compile fails in the sandbox: {where}", {})
        else:
            _report(folder, "replay-failed", f"the program raised {where}", {})


def _report(folder: Path, code: str, message: str, evidence: dict[str, object]) -> None:
    plain = {k: v if isinstance(v, str | int | bool | None) else str(v) for k, v in evidence.items()}
    (folder / "error").write_bytes(msgspec.json.encode(Trouble(code[:64], message[:2000], plain), order="sorted"))


def load_program(manifest: Manifest, folder: Path | None) -> Program:
    """The program that the manifest names, made with its arguments."""
    kind, namespace = source.load(manifest.program, folder)
    return instantiate(kind, namespace, manifest.program.arguments)


def _build(manifest: Manifest, program: Program) -> State:
    return build(program, bytes.fromhex(manifest.seed.value), arithmetic=profile.arithmetic(manifest.profile))


def _compare(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    del job
    state = _build(manifest, program)
    optimizers = {name: c for name, c in state.items() if isinstance(c, torch.optim.Optimizer)}
    comparison = profile.compare(manifest.profile, manifest.operations, optimizers, {**state, "program": program})
    (folder / "comparison").write_bytes(encode(comparison))


def _hyperparameters(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    with profile.arithmetic(manifest.profile)():
        rows = [hyperparameter_forms(program, step) for step in range(job.first, job.last + 1)]
    (folder / "hyperparameters").write_bytes(encode(rows))


def _init(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    del job
    census = Census(program, _build(manifest, program))
    write_state(folder / "0.state", census.entries(), census.data, durable=False)


def _steps(folder: Path, manifest: Manifest, job: Job, program: Program) -> None:
    seed, arithmetic = bytes.fromhex(manifest.seed.value), profile.arithmetic(manifest.profile)
    state = _build(manifest, program)
    restore(program, state, *read_state(folder / "before.state", manifest.pieces))
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
