"""Single operators have the same bits under every setting that changes native bits; native bits do change.

The cases are those of operator_cases.py: numbers of all kinds in arrays that wake threads and vectors, with strides and
without, ties, duplicates, layers and their gradients. Each setting is a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("operator_cases.py")
LIBRARIES = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "WITNESS_KERNELS")
OLDEST = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
SETTINGS = {
    "three threads, the oldest kernels": {"OMP_NUM_THREADS": "3", **OLDEST},
    "two threads, avx2": {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "no compiled kernels": {"OMP_NUM_THREADS": "2", "WITNESS_KERNELS": "off"},
}


def digests(folder: Path, settings: dict[str, str], *arguments: str) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in LIBRARIES} | settings
    out = folder / "digests.json"
    subprocess.run(
        [sys.executable, str(SCRIPT), str(out), *arguments], env=environment, check=True, capture_output=True
    )
    found: dict[str, str] = json.loads(out.read_text())
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return digests(tmp_path_factory.mktemp("base"), {"OMP_NUM_THREADS": "1"})


def test_strides_change_no_bit(expected):
    assert len(expected) > 150
    assert [name for name, found in expected.items() if found == "differs"] == []


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_setting_changes_a_bit_of_an_operator(setting, expected, tmp_path):
    found = digests(tmp_path, SETTINGS[setting])
    assert [name for name in expected if found[name] != expected[name]] == []


def test_settings_do_change_native_bits(tmp_path):
    """Or the tests above could not fail."""
    found = [
        digests(tmp_path, setting, "native") for setting in ({"OMP_NUM_THREADS": "1"}, SETTINGS["two threads, avx2"])
    ]
    assert sum(found[0][name] != found[1][name] for name in found[0]) > 20
