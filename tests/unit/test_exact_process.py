"""A process under the exact profile: what it captures, applies and refuses; and that all of a step is inside."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from training_steps import GPTRun, MLPRun

from protocol.encoding import decode, encode
from protocol.errors import IncompleteError, UsageError
from protocol.exact_profile import ExactProfile, differences
from protocol.operations import OperationProbe
from protocol.required import Result
from witness import exact_profile, profile, programs, replay, switches, worker
from witness.environment import VARIABLES
from witness.execute import build, run_step
from witness.keys import generate
from witness.outcomes import result_of
from witness.program import Program
from witness.programs.mlp import MLP, MLPConfig
from witness.promise import Promise, Settings
from witness.worker_files import Job, Trouble

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Puts every switch back."""
    before = switches.read_switches()
    yield
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)
    switches.apply_switches(before)


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that gives the defined bits, however often it is asked."""
    asked: list[str] = []
    monkeypatch.setattr(exact_profile, "_prove", lambda: asked.append("proven"))
    return asked


def test_capture_names_no_threads_no_variable_and_no_library_under_torch() -> None:
    run = GPTRun()
    captured = profile.capture("exact-14", {"optimizer": run.optimizer}, {"model": run.model})
    assert isinstance(captured, ExactProfile)
    assert decode(encode(captured), ExactProfile, limit=1 << 16) == captured
    assert set(captured.lines()) == {
        *("arithmetic", "definition", "device.byteorder", "device.used"),
        *("build.torch", "build.torch_git", "build.python", "build.numpy", "build.libm", "build.numpy_functions"),
        *("switches.default.dtype", "switches.autocast.cache", "switches.autocast.cpu", "switches.autocast.cpu.dtype"),
        *("switches.autocast.cuda", "switches.autocast.cuda.dtype"),
    }
    assert captured.device["used"] == "cpu"
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        torch.backends.cudnn.benchmark = True
        assert profile.capture("exact-14", {}) == captured
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda: torch.set_default_dtype(torch.float64), "switches.default.dtype"),
        (lambda: torch.set_autocast_enabled("cpu", True), "switches.autocast.cpu"),
        (lambda: torch.set_autocast_dtype("cpu", torch.float16), "switches.autocast.cpu.dtype"),
        (lambda: torch.set_autocast_dtype("cuda", torch.bfloat16), "switches.autocast.cuda.dtype"),
        (lambda: torch.set_autocast_cache_enabled(False), "switches.autocast.cache"),
    ],
)
def test_what_a_program_asks_for_is_recorded_and_applied(change: Any, line: str) -> None:
    before = profile.capture("exact-18", {})
    change()
    changed = profile.capture("exact-18", {})
    assert [d.path for d in differences(before, changed)] == [line]
    for wanted in (before, changed):
        profile.apply(wanted)
        assert profile.capture("exact-18", {}) == wanted
    profile.apply(before)


@pytest.mark.parametrize(
    ("line", "value"), [("default.dtype", "int8"), ("autocast.cpu", "yes"), ("mkldnn.enabled", True)]
)
def test_a_switch_that_cannot_be_applied_is_named(line: str, value: object) -> None:
    captured = profile.capture("exact-14", {})
    wanted = msgspec.structs.replace(captured, switches={**captured.switches, line: value})
    with pytest.raises(IncompleteError) as caught:
        profile.apply(wanted)
    assert caught.value.code == "profile-not-applicable"
    assert caught.value.evidence["line"] == f"switches.{line}"


def test_flushed_subnormals_are_refused_when_recording_and_undone_when_replaying(proven: list[str]) -> None:
    captured = profile.capture("exact-14", {})
    torch.set_flush_denormal(True)
    with pytest.raises(UsageError, match="in the main thread") as caught:
        profile.begin("exact-14")
    assert caught.value.code == "subnormals-flushed"
    assert proven == []
    profile.apply(captured)
    assert switches.subnormals()[0] == "kept"
    profile.begin("exact-14")
    assert proven == ["proven"]


def test_threads_that_flush_subnormals_cannot_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = profile.capture("exact-14", {})
    monkeypatch.setattr(switches, "subnormals", lambda: ("kept", "mixed"))
    with pytest.raises(IncompleteError, match=r"in torch's threads \(mixed\)") as caught:
        profile.apply(captured)
    assert caught.value.code == "profile-not-applicable"


def test_a_machine_proves_itself_before_it_is_compared_and_settles_no_operation(proven: list[str]) -> None:
    run = MLPRun()
    recorded = profile.capture("exact-14", {"optimizer": run.optimizer})
    comparison = profile.compare(recorded, OperationProbe(), {"optimizer": run.optimizer})
    assert (comparison.operations, comparison.settled, comparison.outside, comparison.notes) == (0, (), (), ())
    assert proven == ["proven"]
    with profile.operation_recorder(recorded) as watching:
        assert watching is None


def test_compiled_code_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"^model is compiled") as caught:
        profile.capture("exact-14", {}, {"model": torch.compile(MLPRun().model, backend="eager")})
    assert caught.value.code == "exact-refused"


def test_a_replay_gets_this_machines_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = profile.capture("exact-14", {})
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert profile.environment(recorded) == {"PYTHONHASHSEED": "0"}
    own = {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "WITNESS_KERNELS": "off"}
    kept_back = {"OPENBLAS_CORETYPE": "/tmp/x", "OMP_DYNAMIC": "perhaps", "LD_PRELOAD": "x.so", "PYTHONHASHSEED": "7"}
    for name, value in (own | kept_back).items():
        monkeypatch.setenv(name, value)
    assert profile.environment(recorded) == own | {"PYTHONHASHSEED": "0"}
    unknown = msgspec.structs.replace(recorded, arithmetic="exact-21")
    for call in (profile.environment, profile.apply):
        with pytest.raises(IncompleteError, match="exact-21") as caught:
            call(unknown)
        assert caught.value.code == "profile-not-applicable"


def test_native_runs_never_load_the_arithmetic() -> None:
    code = (
        "import sys, witness.recorder, witness.worker, witness.verifier;"
        "sys.exit(any(name == 'numba' or name.startswith('witness.arithmetic') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, timeout=60)
    assert done.returncode == 0


class Watching(Program):
    """A program that notes, wherever it is called, whether the run's arithmetic is active."""

    active = False
    seen: list[tuple[str, bool]]

    def note(self, where: str) -> None:
        self.seen.append((where, Watching.active))

    def build(self) -> dict[str, Any]:
        self.note("build")
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: self.note("after the optimiser"))
        return {"model": model, "optimizer": optimizer}

    def collate(self, samples: Any) -> torch.Tensor:
        self.note("collate")
        return torch.tensor([[float(byte) for byte in sample[:2]] for sample in samples])

    def step(self, state: Any, batch: torch.Tensor) -> torch.Tensor:
        self.note("step")
        loss = state.model(batch).square().mean()
        loss.backward()
        state.optimizer.step()
        return loss

    def hyperparameters(self, step: int) -> dict[str, float]:
        self.note("hyperparameters")
        return {"lr": 0.1}

    def probe(self, state: Any, batch: torch.Tensor) -> torch.Tensor:
        self.note("probe")
        return state.model(batch)


def test_everything_of_a_step_is_computed_under_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def arithmetic() -> Iterator[None]:
        monkeypatch.setattr(Watching, "active", True)
        yield
        monkeypatch.setattr(Watching, "active", False)

    program = Watching()
    program.seen = []
    norms: list[bool] = []
    real = torch._foreach_norm
    monkeypatch.setattr(torch, "_foreach_norm", lambda *args: norms.append(Watching.active) or real(*args))
    state = build(program, bytes(32), arithmetic=arithmetic)
    run_step(program, state, 1, bytes(32), [b"ab", b"cd"], [b"ef"], arithmetic=arithmetic)
    where = ["build", "hyperparameters", "collate", "step", "after the optimiser", "collate", "probe"]
    assert program.seen == [(name, True) for name in where]
    assert norms == [True, True]  # of the gradients, and of the update
    assert not Watching.active


def test_a_machine_that_is_not_proven_replays_nothing_and_accuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the job leaves behind is the error, and the parent takes it for *incomplete*."""

    def unproven() -> None:
        raise IncompleteError("arithmetic-unproven", "products: other bits", evidence={"case": "products"})

    program = MLP(MLPConfig(hidden=8, layers=1, steps=2))
    corpus = program.default_data()
    promise = Promise(program, corpus, Settings(profile="exact"))
    manifest = promise.manifest(generate("trainer").public, profile.capture(promise.profile, {}), OperationProbe())
    assert isinstance(manifest.profile, ExactProfile)
    (tmp_path / "manifest").write_bytes(encode(manifest))
    (tmp_path / "job").write_bytes(encode(Job("compare", "")))
    monkeypatch.setattr(exact_profile, "_prove", unproven)
    monkeypatch.setattr(exact_profile, "arithmetic", lambda _: nullcontext())
    worker.main(tmp_path)
    assert not (tmp_path / "comparison").exists()
    error = replay._trouble(decode((tmp_path / "error").read_bytes(), Trouble, limit=1 << 16))
    assert result_of(error) == Result("incomplete", "arithmetic-unproven", "products: other bits", {"case": "products"})


def test_reference_programs_use_no_numpy_so_that_it_cannot_excuse_them() -> None:
    folder = Path(programs.__file__).parent
    assert [p.name for p in folder.glob("*.py") if "numpy" in p.read_text() or "np." in p.read_text()] == []
    program = MLP(MLPConfig(hidden=8, layers=1))
    captured = exact_profile.capture("exact-14", {"program": program})
    assert captured.build["numpy_functions"] is None
    assert exact_profile.capture("exact-14", {"program": Watching()}).build["numpy_functions"] is not None
