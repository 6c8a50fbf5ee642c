"""Who is accused of a failing replay: the program, where it fails by itself; never our own code, nor this machine."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import witness
from protocol.encoding import decode, encode
from protocol.errors import CODES, IncompleteError, ProtocolError, VerificationError, WitnessError
from protocol.manifest import Manifest
from protocol.messages import join_entries
from protocol.operations import OperationProbe
from witness import profile, replay, source, worker
from witness.data import open_corpus
from witness.keys import generate
from witness.outcomes import result_of
from witness.promise import Promise, Settings
from witness.worker_files import Job, Trouble

PROGRAM = """
import torch
from torch import nn
from witness.program import Program


class Failing(Program):
    batch_size, steps = 2, 2

    def build(self):
        {build}
        model = nn.Linear(2, 2)
        return {{"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.5)}}

    def collate(self, samples):
        {collate}
        return torch.tensor([[float(byte) for byte in sample[:2]] for sample in samples])

    def step(self, state, batch):
        {step}
        loss = torch.relu(state.model(batch)).square().mean()
        loss.backward()
        state.optimizer.step()
        return loss

    def hyperparameters(self, step):
        {hyperparameters}
        return {{"lr": 0.5}}

    def probe(self, state, batch):
        {probe}
        return state.model(batch)
"""
RAISES = "raise ValueError('a mistake')"
Change = Callable[[Manifest], Manifest]


def run(
    tmp_path: Path,
    kind: Any,
    *,
    numeric: str = "native",
    change: Change = lambda m: m,
    trace: bool = False,
    **parts: str,
) -> WitnessError | None:
    """What the parent makes of a job whose program has these parts; None when the job came to its end."""
    folder = tmp_path / "source"
    folder.mkdir()
    name = f"failing_{abs(hash((str(tmp_path), kind)))}"
    places = dict.fromkeys(("build", "collate", "step", "hyperparameters", "probe"), "pass")
    (folder / f"{name}.py").write_text(PROGRAM.format(**places | parts))
    program = source.execute(name, folder)["Failing"]()
    promise = Promise(program, open_corpus([b"ab", b"cd", b"ef"], program.packing()), Settings(profile=numeric))
    captured = profile.capture(promise.profile, {})
    manifest = change(promise.manifest(generate("trainer").public, captured, OperationProbe()))
    job = tmp_path / "job"
    job.mkdir()
    (job / "manifest").write_bytes(encode(manifest))
    for number, step in enumerate(["init", kind] if kind == "steps" else [kind]):
        (job / "job").write_bytes(encode(Job(step, str(folder), 1, 1, trace=trace and number == 1)))
        if number:
            (job / "0.state").rename(job / "before.state")
            (job / "1.samples").write_bytes(join_entries([b"ab", b"cd"]))
            (job / "1.probe").write_bytes(join_entries([b"ef"]))
        try:
            worker.main(job)
        finally:
            sys.path.remove(str(folder))
    error = job / "error"
    return replay._trouble(decode(error.read_bytes(), Trouble, limit=1 << 16)) if error.exists() else None  # type: ignore[return-value]


def in_a_file_of_ours(line: str) -> Callable[..., Any]:
    """A function that stands, as tracebacks say, in the exact arithmetic."""
    file = Path(witness.__file__).parent / "arithmetic" / "made_up.py"
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(f"def made_up(*arguments, **named):\n    {line}\n", str(file), "exec"), namespace)  # noqa: S102 - our own line, under another name
    return namespace["made_up"]  # type: ignore[no-any-return]


# -- the program's own failures --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("compare", "build"),
        ("init", "build"),
        ("hyperparameters", "hyperparameters"),
        ("steps", "hyperparameters"),
        ("steps", "collate"),
        ("steps", "step"),
        ("steps", "probe"),
    ],
)
def test_a_program_that_raises_diverges_and_its_place_is_named(tmp_path: Path, kind: str, where: str) -> None:
    error = run(tmp_path, kind, **{where: RAISES})
    assert isinstance(error, VerificationError) and error.code == "replay-failed"
    assert "ValueError at failing_" in str(error) and "a mistake" in str(error)


@pytest.mark.parametrize("trace", [False, True])
def test_an_operation_that_torch_refuses_is_the_programs_failure(tmp_path: Path, trace: bool) -> None:
    """Also where a mode of ours hands the operation on."""
    error = run(tmp_path, "steps", step="torch.zeros(2) @ torch.zeros(3)", trace=trace)
    assert isinstance(error, VerificationError) and "RuntimeError" in str(error)


def test_a_program_that_does_not_fail_leaves_no_error(tmp_path: Path) -> None:
    assert run(tmp_path, "steps", numeric="exact") is None


def test_what_our_own_checks_say_of_a_program_is_its_failure(tmp_path: Path) -> None:
    error = run(tmp_path, "steps", step="return 'no loss'")
    assert isinstance(error, VerificationError) and error.evidence["found"] == "program"


# -- ours ------------------------------------------------------------------------------------------


def test_a_mistake_in_our_own_checks_accuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyError in the conformance of the arithmetic made a run diverge."""
    from witness.arithmetic import conformance

    monkeypatch.delitem(conformance.DIGESTS, "sums")
    error = run(tmp_path, "compare", numeric="exact")
    assert isinstance(error, IncompleteError) and error.code == "replay-stopped"
    assert "KeyError at conformance.py:" in str(error)


def test_a_mistake_in_our_arithmetic_accuses_nobody_whoever_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from witness.arithmetic import registry

    monkeypatch.setitem(registry.FUNCTIONS, torch.relu, in_a_file_of_ours("return {}['no such thing']"))
    error = run(tmp_path, "steps", numeric="exact")
    assert isinstance(error, IncompleteError) and error.code == "replay-stopped"
    assert "KeyError at made_up.py:2" in str(error)


def test_a_program_that_our_code_calls_back_is_still_the_programs_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from witness.arithmetic import registry

    monkeypatch.setitem(registry.FUNCTIONS, torch.relu, in_a_file_of_ours("return arguments[0].fail()"))
    fails = "def fail():\n            raise ValueError('a mistake')\n        torch.Tensor.fail = lambda self: fail()"
    try:
        error = run(tmp_path, "steps", numeric="exact", step=fails)
    finally:
        del torch.Tensor.fail  # type: ignore[attr-defined]
    assert isinstance(error, VerificationError)


@pytest.mark.parametrize("name", ["manifest", "job"])
def test_files_that_we_did_not_get_accuse_nobody(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifest").write_bytes(b"{}")
    (tmp_path / "job").write_bytes(b"{}")
    (tmp_path / name).unlink()
    worker.main(tmp_path)
    error = replay._trouble(decode((tmp_path / "error").read_bytes(), Trouble, limit=1 << 16))
    assert isinstance(error, IncompleteError)


# -- this machine's --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raised",
    [
        "raise MemoryError",
        "raise RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried')",
        "raise torch.OutOfMemoryError('CUDA out of memory')",
    ],
)
def test_memory_that_is_not_there_ends_the_job_without_a_finding(tmp_path: Path, raised: str) -> None:
    with pytest.raises((MemoryError, RuntimeError)):
        run(tmp_path, "steps", step=raised)
    assert not (tmp_path / "job" / "error").exists()


def test_a_stack_that_is_too_small_accuses_nobody(tmp_path: Path) -> None:
    error = run(tmp_path, "steps", step="again = lambda: again()\n        again()")
    assert isinstance(error, IncompleteError) and "RecursionError" in str(error)


def test_a_module_that_is_missing_here_accuses_nobody(tmp_path: Path) -> None:
    error = run(tmp_path, "steps", step="import somebodys_package")
    assert isinstance(error, IncompleteError) and error.code == "program-load"


def recorded_with(**lines: str | None) -> Change:
    def change(manifest: Manifest) -> Manifest:
        found = msgspec.structs.replace(manifest.profile, build={**manifest.profile.build, **lines})
        return msgspec.structs.replace(manifest, profile=found)

    return change


def recorded_on_a_gpu(manifest: Manifest) -> Manifest:
    found = msgspec.structs.replace(manifest.profile, device={**manifest.profile.device, "used": "cuda"})
    return msgspec.structs.replace(manifest, profile=found)


def recorded_by_another_release(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, package="999.0")


REFUSED = "torch.linalg.eigvals(state.model.weight)"


def test_what_the_arithmetic_refuses_was_not_recorded_under_it(tmp_path: Path) -> None:
    """The same definitions and the same torch would have refused it when it was recorded."""
    error = run(tmp_path, "steps", numeric="exact", step=REFUSED)
    assert isinstance(error, VerificationError) and error.code == "replay-failed"
    assert error.evidence["found"] == "exact-refused" and "linalg_eig" in str(error)


def test_a_line_that_was_not_recorded_is_no_excuse(tmp_path: Path) -> None:
    """As those of numpy, of a program that does not use it."""
    unused = recorded_with(numpy=None, numpy_functions=None)
    error = run(tmp_path, "steps", numeric="exact", step=REFUSED, change=unused)
    assert isinstance(error, VerificationError)


@pytest.mark.parametrize("kind", ["compare", "steps"])
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (recorded_with(torch="2.12.0"), "build.torch"),
        (recorded_on_a_gpu, "device.used"),
        (recorded_by_another_release, "package"),
    ],
)
def test_what_the_arithmetic_refuses_may_be_asked_by_another_torch_alone(
    tmp_path: Path, kind: str, change: Change, line: str
) -> None:
    refused = {"step": REFUSED} if kind == "steps" else {"build": "torch.linalg.eigvals(torch.eye(3))"}
    error = run(tmp_path, kind, numeric="exact", change=change, **refused)
    assert isinstance(error, IncompleteError) and error.code == "outside-differs"
    assert line in str(error) and line in error.evidence


@pytest.mark.parametrize(
    ("change", "line"), [(recorded_with(torch="2.12.0"), "build.torch"), (recorded_on_a_gpu, "device.used")]
)
@pytest.mark.parametrize("numeric", ["native", "exact"])
def test_a_program_that_cannot_be_built_on_another_machine_accuses_nobody(
    tmp_path: Path, numeric: str, change: Change, line: str
) -> None:
    """It fails before the machines are compared."""
    error = run(tmp_path, "compare", numeric=numeric, change=change, build=RAISES)
    assert isinstance(error, IncompleteError) and error.code == "outside-differs"
    assert line in error.evidence and "a mistake" in str(error)


# -- what the parent makes of it -------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_job_accuses_in_two_ways_only(code: str) -> None:
    error = replay._trouble(Trouble(code, "what happened", {"a": 1}))
    outcome = result_of(error).outcome  # type: ignore[arg-type]
    assert outcome == ("diverged" if code in ("replay-failed", "program-arguments") else "incomplete")
    assert "what happened" in str(error)


def test_a_report_that_means_nothing_is_malformed() -> None:
    assert isinstance(replay._trouble(Trouble("no-such-code", "")), ProtocolError)
