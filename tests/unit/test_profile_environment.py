"""Variables: what is recommended, what is taken from a stranger, what a replayer must have been started with."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from protocol.errors import IncompleteError, UsageError
from protocol.native_profile import NativeProfile, Threads
from witness import environment as variables
from witness.environment import VARIABLES, environment, read_environment, recommended_environment, require_environment

REPOSITORY = Path(__file__).resolve().parents[2]


def profile_with(capability: str = "AVX2", **values: str | None) -> NativeProfile:
    return NativeProfile({}, {"cpu.capability": capability}, dict(values), {}, Threads(2, 2))


@pytest.mark.parametrize(
    "features", [{"avx2", "fma", "sse2", "avx512f"}, {"avx2", "fma"}, {"sse2", "avx2"}, {"asimd"}, set()]
)
def test_recommended_variables_are_ones_that_a_replayer_accepts(
    features: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(variables, "cpu_features", lambda: frozenset(features))
    chosen = recommended_environment(3)
    assert environment(profile_with(**chosen)) == {"ATEN_CPU_CAPABILITY": "avx2", **chosen}
    assert (chosen.get("ATEN_CPU_CAPABILITY") == "avx2") == ({"avx2", "fma"} <= features)
    assert chosen["OMP_NUM_THREADS"] == chosen["MKL_NUM_THREADS"] == "3"


@pytest.mark.parametrize("threads", [0, -1, 10_000])
def test_impossible_thread_counts(threads: int) -> None:
    with pytest.raises(UsageError):
        recommended_environment(threads)


def test_no_torch_is_imported_to_choose_an_environment() -> None:
    code = (
        "import sys, witness.profile; from witness.environment import recommended_environment;"
        "recommended_environment(2); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, timeout=60)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "x"),
        ("PYTHONSTARTUP", "x"),
        ("TORCHINDUCTOR_CACHE_DIR", "x"),
        ("OMP_NUM_THREADS", "2\n"),
        ("OMP_NUM_THREADS", "1000000"),
        ("OMP_NUM_THREADS", "0"),
        ("MKL_CBWR", "/tmp/x"),
        ("MKL_CBWR", ""),
        ("ATEN_CPU_CAPABILITY", "AVX2;rm"),
        ("PYTHONHASHSEED", "-1"),
    ],
)
def test_a_strangers_variables_are_taken_only_in_known_forms(name: str, value: str) -> None:
    with pytest.raises(IncompleteError, match=name) as caught:
        environment(profile_with(**{name: value}))
    assert caught.value.code == "profile-not-applicable"


def test_no_variable_that_steers_a_loader_or_names_a_file_is_known() -> None:
    for name, form in VARIABLES.items():
        assert not set(name.split("_")) & {"PATH", "DIR", "FILE", "PRELOAD", "LIBRARY", "STARTUP", "HOME", "TOOL"}
        for value in ("/tmp/x.so", "x.so", "$(x)", "a;b", "a|b", "a`b`"):
            assert not form.fullmatch(value) or value == "x.so"  # a word: it is no path by itself


def test_the_replayers_own_variables_are_replaced_or_removed() -> None:
    base = {"PATH": "/bin", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "64", "ATEN_CPU_CAPABILITY": "avx512"}
    assert environment(profile_with(OMP_NUM_THREADS="2", MKL_CBWR=None, ATEN_CPU_CAPABILITY=None), base) == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "2",
        "ATEN_CPU_CAPABILITY": "avx2",  # the class that was in force where the variable was unset
    }
    assert base["MKL_CBWR"] == "COMPATIBLE"


@pytest.mark.parametrize(
    ("capability", "variable"), [("NO AVX", "default"), ("DEFAULT", "default"), ("SVE256", "sve256"), ("?", None)]
)
def test_capability_in_force_is_pinned(capability: str, variable: str | None) -> None:
    assert environment(profile_with(capability)).get("ATEN_CPU_CAPABILITY") == variable


def test_require_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    require_environment(profile_with(MKL_CBWR=None))
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    require_environment(profile_with(ATEN_CPU_CAPABILITY=None))  # judged by its effect
    with pytest.raises(IncompleteError, match=r"MKL_CBWR: recorded AVX2, here None"):
        require_environment(profile_with(MKL_CBWR="AVX2"))
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    with pytest.raises(IncompleteError, match=r"MKL_CBWR: recorded None, here AVX2"):
        require_environment(profile_with())
    assert read_environment()["MKL_CBWR"] == "AVX2"


def test_a_value_that_no_replayer_could_take_stops_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    with pytest.raises(UsageError, match="OMP_NUM_THREADS"):
        read_environment()


def test_profiles_are_not_changed() -> None:
    profile = profile_with(OMP_NUM_THREADS="2")
    before = msgspec.json.encode(profile)
    environment(profile, {"A": "b"})["C"] = "d"
    assert msgspec.json.encode(profile) == before
