"""Whole trainings end in the same bits under every setting that changes native bits, and native bits do change.

Each setting is a process of its own, because libraries read their variables once, at start. Every program of
benchmarks/exact_matrix.py runs at least 50 steps: parameters, buffers, moments and running averages are hashed after
each.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "exact_matrix.py"
LIBRARIES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "WITNESS_KERNELS")
SETTINGS = {
    "two threads": {"OMP_NUM_THREADS": "2"},
    "three threads, avx2, int8 without VNNI": {
        "OMP_NUM_THREADS": "3",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_CBWR": "AVX2",
    },
    "the oldest kernels": {
        "OMP_NUM_THREADS": "1",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_CBWR": "COMPATIBLE",
        "OPENBLAS_CORETYPE": "PRESCOTT",
    },
    "no compiled kernels, no oneDNN": {"OMP_NUM_THREADS": "2", "WITNESS_KERNELS": "off", "MATRIX_MKLDNN": "off"},
}
BASE = {"OMP_NUM_THREADS": "1"}
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}  # more threads than cores, beside another test process


def digests(folder: Path, settings: dict[str, str], *arguments: str) -> dict[str, list[str]]:
    """What every program ends in, step by step."""
    environment = {k: v for k, v in os.environ.items() if k not in LIBRARIES} | PATIENT | settings
    out = folder / "digests.json"
    subprocess.run(
        [sys.executable, str(SCRIPT), "--json", str(out), *arguments], env=environment, check=True, capture_output=True
    )
    found: dict[str, list[str]] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return digests(tmp_path_factory.mktemp("base"), BASE, "--steps", "50")


def test_every_program_trains(expected):
    assert len(expected) == 10
    for name, steps in expected.items():
        assert len(steps) == 50
        assert len(set(steps)) == 50, name


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_changes_a_bit(setting, expected, tmp_path):
    slow = ["--steps", "12"] if "WITNESS_KERNELS" in SETTINGS[setting] else ["--steps", "50"]
    found = digests(tmp_path, SETTINGS[setting], *slow)
    for name, steps in found.items():
        first = next((i for i, (a, b) in enumerate(zip(steps, expected[name], strict=False)) if a != b), None)
        assert first is None, f"{name} differs from step {first + 1} on"


def test_the_other_precision_is_another_arithmetic(expected, tmp_path):
    programs = ["--programs", "gpt-adamw", "cnn-adamw"]
    base = digests(tmp_path, BASE, "--steps", "5", "--arithmetic", "exact-18", *programs)
    other = digests(tmp_path, SETTINGS["the oldest kernels"], "--steps", "5", "--arithmetic", "exact-18", *programs)
    assert base == other
    assert all(base[name] != expected[name][:5] for name in base)


def test_native_arithmetic_does_differ(tmp_path):
    """Otherwise the settings above would show nothing."""
    base = digests(tmp_path, BASE, "--steps", "3", "--arithmetic", "native")
    for setting in ("three threads, avx2, int8 without VNNI", "the oldest kernels"):
        other = digests(tmp_path, SETTINGS[setting], "--steps", "3", "--arithmetic", "native")
        assert sum(base[name] != other[name] for name in base) >= 8, setting
