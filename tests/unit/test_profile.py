"""Comparing two profiles: which lines block, which the probe settles, which are notes."""

import msgspec
import pytest

from protocol.comparison import require_attributable
from protocol.encoding import decode, encode
from protocol.errors import IncompleteError, ProtocolError, VerificationError
from protocol.native_profile import NativeProfile, OptimizerUse, Threads, differences, require_comparable
from protocol.operations import OperationProbe, OperationSpec, ProbedOperation, Unprobed

PROFILE = NativeProfile(
    build={
        "torch": "2.13.0+cpu",
        "torch_git": "cf30",
        "python": "3.11.7",
        "numpy": "2.4.6",
        "mkl": "2024.2",
        "libm": "aa",
    },
    device={"cpu.capability": "AVX2", "cpu.model": "17", "cpu.name": "EPYC", "cpu.features": "avx2 fma"},
    environment={"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": None},
    switches={"mkldnn.enabled": True, "compile": "eager", "default.dtype": "float32"},
    threads=Threads(2, 2),
    optimizers=(OptimizerUse("optimizer", "torch.optim.adamw.AdamW", ("loop",)),),
)
MM = OperationSpec("aten.mm.default", ("float32[4,4]{signed}", "float32[4,4]{signed}"), {})
GELU = OperationSpec("aten.gelu.default", ("float32[8]{signed}",), {})
PROBE = OperationProbe((ProbedOperation(MM, "a" * 64), ProbedOperation(GELU, "b" * 64)))


def altered(group: str, **lines: object) -> NativeProfile:
    values = {name.replace("__", "."): value for name, value in lines.items()}
    return msgspec.structs.replace(PROFILE, **{group: {**getattr(PROFILE, group), **values}})


def kinds(here: NativeProfile) -> dict[str, str]:
    return {difference.path: difference.kind for difference in differences(PROFILE, here)}


def test_a_profile_equals_itself_after_a_round_trip() -> None:
    again = decode(encode(PROFILE), NativeProfile, limit=10_000)
    assert again == PROFILE
    assert differences(PROFILE, again) == []
    assert b'"name":"native"' in encode(PROFILE)


@pytest.mark.parametrize(
    ("here", "path", "kind"),
    [
        (altered("build", torch="2.13.1+cpu"), "build.torch", "bits"),
        (altered("build", torch="2.13.0+cu130"), "build.torch", "kernel"),
        (altered("build", torch="2.13.0a0+git1234567"), "build.torch", "bits"),
        (altered("build", torch="2.14.0.dev20260901+cpu"), "build.torch", "bits"),
        (altered("build", torch_git="0000"), "build.torch_git", "kernel"),
        (altered("build", python="3.11.9"), "build.python", "note"),
        (altered("build", python="3.12.7"), "build.python", "bits"),
        (altered("build", python="3.110.7"), "build.python", "bits"),
        (altered("build", numpy="2.4.1"), "build.numpy", "note"),
        (altered("build", numpy="2.3.6"), "build.numpy", "bits"),
        (altered("build", libm="bb"), "build.libm", "bits"),
        (altered("build", mkl=None), "build.mkl", "kernel"),
        (altered("build", future_library="1"), "build.future_library", "kernel"),
        (altered("device", cpu__capability="AVX512"), "device.cpu.capability", "bits"),
        (altered("device", cpu__model="1"), "device.cpu.model", "kernel"),
        (altered("device", cpu__name="Xeon"), "device.cpu.name", "note"),
        (altered("environment", OMP_NUM_THREADS="3"), "environment.OMP_NUM_THREADS", "pinned"),
        (altered("environment", MKL_CBWR="AVX2"), "environment.MKL_CBWR", "pinned"),
        (altered("switches", mkldnn__enabled=False), "switches.mkldnn.enabled", "pinned"),
        (altered("switches", compile="compiled"), "switches.compile", "bits"),
        (msgspec.structs.replace(PROFILE, threads=Threads(1, 2)), "threads.intra", "pinned"),
        (msgspec.structs.replace(PROFILE, optimizers=()), "optimizers.optimizer", "bits"),
        (
            msgspec.structs.replace(
                PROFILE, optimizers=(OptimizerUse("optimizer", "torch.optim.adamw.AdamW", ("fused",)),)
            ),
            "optimizers.optimizer",
            "bits",
        ),
    ],
)
def test_kind_of_a_line(here: NativeProfile, path: str, kind: str) -> None:
    assert kinds(here).get(path) == kind
    if path != "device.cpu.capability":  # which also brings in the variable that sets it
        assert len(kinds(here)) == 1


def test_true_is_not_one() -> None:
    assert kinds(altered("switches", mkldnn__enabled=1)) == {"switches.mkldnn.enabled": "pinned"}


def test_vector_class_reached_by_variable_or_by_a_smaller_cpu_is_the_same() -> None:
    assert kinds(altered("environment", ATEN_CPU_CAPABILITY=None)) == {}
    wider = altered("device", cpu__capability="AVX512")
    unpinned = msgspec.structs.replace(wider, environment={**wider.environment, "ATEN_CPU_CAPABILITY": None})
    assert kinds(unpinned) == {"device.cpu.capability": "bits", "environment.ATEN_CPU_CAPABILITY": "pinned"}


@pytest.mark.parametrize(
    "here",
    [altered("build", torch="2.12.0"), altered("environment", MKL_CBWR="AVX2"), altered("device", cpu__capability="X")],
)
def test_a_blocking_line_is_incomplete_and_named_even_when_the_probe_agrees(here: NativeProfile) -> None:
    with pytest.raises(IncompleteError) as caught:
        require_comparable(PROFILE, here, PROBE, PROBE)
    assert caught.value.code == "profile-differs"
    assert caught.value.exit_status == 2
    assert set(caught.value.evidence) == {d.path for d in differences(PROFILE, here)}


def test_the_probe_settles_another_cpu() -> None:
    here = altered("device", cpu__model="1", cpu__name="Xeon")
    comparison = require_comparable(PROFILE, here, PROBE, PROBE)
    assert [d.path for d in comparison.settled] == ["device.cpu.model"]
    assert [d.path for d in comparison.notes] == ["device.cpu.name"]
    assert comparison.operations == 2


@pytest.mark.parametrize(
    ("recorded", "probe"),
    [
        (PROFILE, OperationProbe()),
        (PROFILE, OperationProbe(PROBE.operations, (Unprobed("mine.attention.default", "foreign operator"),))),
        (altered("switches", compile="compiled"), PROBE),
    ],
)
def test_what_the_probe_cannot_settle_is_incomplete(recorded: NativeProfile, probe: OperationProbe) -> None:
    other_cpu = msgspec.structs.replace(recorded, device={**recorded.device, "cpu.model": "1"})
    with pytest.raises(IncompleteError, match=r"device\.cpu\.model") as caught:
        require_comparable(recorded, other_cpu, probe, probe)
    assert caught.value.code == "operation-unprobed"
    assert require_comparable(recorded, recorded, probe, probe).settled == ()


def test_a_differing_operation_is_named_with_its_shapes() -> None:
    here = OperationProbe((PROBE.operations[0], ProbedOperation(GELU, "c" * 64)))
    with pytest.raises(IncompleteError) as caught:
        require_comparable(PROFILE, PROFILE, PROBE, here)
    assert caught.value.code == "operation-differs"
    assert "aten.gelu.default(float32[8])" in str(caught.value)
    assert "every line of the profile agrees" in str(caught.value)
    assert caught.value.evidence["operations that differ"] == "1 of 2"


def test_an_operation_that_could_not_be_run_here_blocks() -> None:
    here = OperationProbe(PROBE.operations[:1], (Unprobed(GELU.signature(), "RuntimeError: no kernel"),))
    with pytest.raises(IncompleteError, match="not run here: RuntimeError: no kernel"):
        require_comparable(PROFILE, PROFILE, PROBE, here)


def test_a_step_with_other_operations_cannot_be_blamed_on_a_machine_that_relies_on_the_probe() -> None:
    shorter = OperationSpec("aten.gelu.default", ("float32[7]{signed}",), {})
    same_machine = require_comparable(PROFILE, PROFILE, PROBE, PROBE)
    relying = require_comparable(PROFILE, altered("device", cpu__model="1"), PROBE, PROBE)
    diverged = VerificationError("replay-state", "step 3 replays differently")
    require_attributable(same_machine, PROBE, (shorter,), diverged)
    require_attributable(relying, PROBE, (GELU,), diverged)
    with pytest.raises(IncompleteError, match=r"float32\[7\]") as caught:
        require_attributable(relying, PROBE, (GELU, shorter), diverged)
    assert caught.value.code == "operation-unprobed"


@pytest.mark.parametrize(
    "mutation",
    [
        (b'"intra":2', b'"intra":0'),
        (b'"intra":2', b'"intra":5000'),
        (b'"intra":2', b'"intra":2.0'),
        (b'"AVX2"', b'"AVX\\n2"'),
        (b'"cpu.model":"17"', b'"cpu.model":17.5'),
        (b'"cpu.model":"17"', b'"cpu.model":["17"]'),
        (b'"cpu.model"', b'"cpu model"'),
        (b'"loop"', b'"lazy"'),
        (b'"name":"native"', b'"name":"exact"'),
        (b'"torch_git":"cf30"', b'"torch_git":"' + b"c" * 513 + b'"'),
        (b'"torch_git":"cf30"', b'"torch_git":9007199254740993'),
    ],
)
def test_hostile_profiles_are_refused(mutation: tuple[bytes, bytes]) -> None:
    data = encode(PROFILE)
    assert mutation[0] in data
    with pytest.raises(ProtocolError):
        decode(data.replace(*mutation), NativeProfile, limit=100_000)
