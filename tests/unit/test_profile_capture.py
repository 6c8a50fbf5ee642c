"""What a process is, captured, encoded, applied again; subnormals, optimisers, compiled functions."""

import math
from collections.abc import Iterator

import msgspec
import pytest
import torch
from training_steps import GPTRun, MLPRun

from protocol.encoding import decode, encode
from protocol.errors import IncompleteError, UsageError
from protocol.native_profile import NativeProfile, differences
from witness import compiled, machine, switches
from witness import native_profile as profile
from witness.operations import OperationRecorder


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Puts every switch back."""
    before = switches.read_switches()
    yield
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)
    switches.apply_switches(before)


def test_capture_round_trip_and_no_difference_from_itself() -> None:
    run = GPTRun()
    captured = profile.capture({"optimizer": run.optimizer}, {"model": run.model})
    again = decode(encode(captured), NativeProfile, limit=1 << 16)
    assert again == captured
    assert differences(captured, profile.capture({"optimizer": run.optimizer}, {"model": run.model})) == []
    assert captured.build["torch"] == torch.__version__
    assert captured.device["used"] == "cpu"
    assert captured.threads.intra == torch.get_num_threads()
    assert captured.switches["compile"] == "eager"
    assert [use.name for use in captured.optimizers] == ["optimizer"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda: torch.use_deterministic_algorithms(True, warn_only=True), "switches.deterministic.algorithms"),
        (lambda: torch.set_float32_matmul_precision("medium"), "switches.float32_matmul_precision"),
        (lambda: setattr(torch.backends.cudnn, "benchmark", True), "switches.cudnn.benchmark"),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), "switches.fp32_precision.cuda.conv"),
        (lambda: setattr(torch.backends.mkldnn, "enabled", False), "switches.mkldnn.enabled"),
        (lambda: torch.backends.cuda.enable_math_sdp(False), "switches.sdpa.math"),
        (lambda: torch.set_autocast_dtype("cpu", torch.float16), "switches.autocast.cpu.dtype"),
        (lambda: torch.set_default_dtype(torch.float64), "switches.default.dtype"),
        (lambda: torch.set_flush_denormal(True), "switches.subnormals.main"),
        (lambda: torch.backends.mha.set_fastpath_enabled(False), "switches.mha.fastpath"),
    ],
)
def test_a_changed_switch_is_seen_by_name_and_can_be_applied(change: object, line: str) -> None:
    before = profile.capture({})
    change()  # type: ignore[operator]
    changed = profile.capture({})
    if not hasattr(torch._C, "_get_fp32_precision_getter") and "fp32_precision" in line:
        pytest.skip("older torch")
    found = {difference.path: difference.kind for difference in differences(before, changed)}
    assert found[line] == "pinned"
    profile.apply(before)
    assert differences(before, profile.capture({})) == []
    profile.apply(changed)
    assert differences(changed, profile.capture({})) == []


def test_newer_precision_settings_make_the_older_ones_unreadable_and_are_applied_all_the_same() -> None:
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("older torch")
    before = switches.read_switches()
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    mixed = switches.read_switches()
    assert mixed["float32_matmul_precision"] == "mixed"
    switches.apply_switches(before)
    assert switches.read_switches() == before
    switches.apply_switches(mixed)
    assert switches.read_switches() == mixed


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("cudnn.enabled", "yes"),
        ("default.dtype", "load"),
        ("default.device", "nowhere"),
        ("deterministic.algorithms", 7),
        ("float32_matmul_precision", "lowest"),
        ("subnormals.pool", "mixed"),
        ("switch.of.the.future", True),
        ("mkldnn.enabled", None),
        ("mkldnn.enabled", 1),
    ],
)
def test_a_switch_that_cannot_be_applied_is_named(line: str, value: object) -> None:
    captured = profile.capture({})
    wanted = msgspec.structs.replace(captured, switches={**captured.switches, line: value})
    with pytest.raises(IncompleteError) as caught:
        profile.apply(wanted)
    assert caught.value.code == "profile-not-applicable"
    assert caught.value.evidence["line"] == f"switches.{line}"


def test_threads_are_applied() -> None:
    captured = profile.capture({})
    other = 3 if captured.threads.intra != 3 else 2
    # One thread has no pool, whatever other tests left; two and more have one, in which subnormal numbers are kept.
    lines = {**captured.switches, "subnormals.pool": "kept"}
    threads = msgspec.structs.replace(captured.threads, intra=other)
    try:
        profile.apply(msgspec.structs.replace(captured, threads=threads, switches=lines))
        assert torch.get_num_threads() == other
        assert profile.capture({}).threads.intra == other
    finally:
        torch.set_num_threads(captured.threads.intra)


def test_flushing_in_the_main_thread_is_told_from_flushing_in_the_pool() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert switches.subnormals() == ("kept", "kept")
        torch.set_flush_denormal(True)
        assert switches.subnormals() == ("flushed", "kept")
        torch.set_num_threads(1)
        assert switches.subnormals() == ("flushed", "none")
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("options", "expected"),
    [({}, "loop"), ({"foreach": True}, "foreach"), ({"fused": True}, "fused"), ({"foreach": False}, "loop")],
)
def test_the_recorded_algorithm_is_the_one_whose_operations_run(options: dict[str, bool], expected: str) -> None:
    run = GPTRun(**options)
    run.step()
    with OperationRecorder() as recorder:
        run.optimizer.step()
    names = {spec.operator.split(".")[1] for spec in recorder.specs}
    seen = "fused" if "_fused_adamw_" in names else "foreach" if "_foreach_addcdiv_" in names else "loop"
    assert (seen == "loop") == ("addcdiv_" in names)
    use = profile.optimizer_use("optimizer", run.optimizer)
    assert use.implementations == (seen,) == (expected,)
    assert use.kind == "torch.optim.adamw.AdamW"


def test_each_group_and_an_own_optimizer() -> None:
    class Plain(torch.optim.Optimizer):
        def step(self, closure: object = None) -> None:
            del closure

    first, second = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = torch.optim.SGD([{"params": [first]}, {"params": [second], "foreach": True}], lr=0.1)
    assert profile.optimizer_use("o", groups).implementations == ("loop", "foreach")
    assert profile.optimizer_use("o", Plain([first], {"lr": 1.0})).implementations == ("own",)


def test_host_functions_are_the_same_twice_and_see_a_changed_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    before = machine.libm_digest()
    assert machine.libm_digest() == before
    exact = math.cos
    monkeypatch.setattr(math, "cos", lambda x: math.nextafter(exact(x), 2.0) if 1.0 < x < 1.1 else exact(x))
    assert machine.libm_digest() != before
    assert machine.numpy_digest() == machine.numpy_digest()


def loss(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum()


class Holder:
    """A program whose step reaches a compiled function through a global."""

    def step(self) -> object:
        return COMPILED


COMPILED = loss


def test_compiled_functions_are_found_by_name() -> None:
    global COMPILED
    eager = {"gpt": GPTRun().model, "optimizer": MLPRun().optimizer, "program": Holder()}
    assert dict(compiled.find_compiled(eager)) == {}
    function = torch.compile(loss, backend="eager")
    assert dict(compiled.find_compiled(eager)) == {}
    inner = GPTRun().model
    inner.blocks[1].compile(backend="eager")
    holding = torch.nn.Linear(2, 2)
    holding.loss = function

    def closure() -> object:
        return function

    COMPILED = function
    try:
        found = compiled.find_compiled(
            {
                "whole": torch.compile(MLPRun().model, backend="eager"),
                "inner": inner,
                "holding": holding,
                "list": [{"deep": function}],
                "closure": closure,
                "program": Holder(),
            }
        )
        names = {name for name, _ in found}
    finally:
        COMPILED = loss
    # One function is named once, by the first way to it.
    assert names == {"whole", "inner.blocks.1", "holding.loss"}
    assert [name for name, _ in compiled.find_compiled({"list": [{"deep": function}]})] == ["list[0][deep]"]
    assert [name for name, _ in compiled.find_compiled({"closure": closure})] == ["closure.<function>"]
    COMPILED = function
    try:
        assert [name for name, _ in compiled.find_compiled({"program": Holder()})] == ["COMPILED"]
    finally:
        COMPILED = loss


def test_compiling_is_refused_without_deterministic_algorithms_and_recorded_with_them() -> None:
    model = torch.compile(MLPRun().model)
    for mode in ("default", "warn"):
        torch.set_deterministic_debug_mode(mode)
        with pytest.raises(UsageError, match=r"^model is compiled") as caught:
            profile.capture({}, {"model": model})
        assert caught.value.code == "compile-nondeterministic"
    torch.use_deterministic_algorithms(True)
    captured = profile.capture({}, {"model": model})
    assert captured.switches["compile"] == "compiled"
    other = profile.capture({}, {"model": torch.compile(MLPRun().model, options={"fallback_random": True})})
    assert captured.switches["compile.config"] != other.switches["compile.config"]
    assert profile.capture({}, {"model": torch.compile(MLPRun().model)}) == captured
