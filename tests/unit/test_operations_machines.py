"""Recording in one process and comparing in others: the same environment agrees, another one is told what differs.

Three processes, because torch reads its variables once. The machine that is not the recorded one is simulated by
torch's baseline vector class and one thread.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.comparison import Comparison
from protocol.encoding import decode, encode
from protocol.native_profile import NativeProfile
from protocol.operations import OperationProbe
from witness.environment import VARIABLES, environment, recommended_environment

TESTS = Path(__file__).resolve().parents[1]
BASE = {name: value for name, value in os.environ.items() if name not in VARIABLES} | {
    "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]),
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin make small operations slow on a busy machine
}


def process(action: str, folder: Path, variables: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, TESTS / "training_steps.py", action, folder],
        env=variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("recorded")
    process("record", made, {**BASE, **recommended_environment(2)})
    return made


@pytest.fixture(scope="module")
def recorded(folder: Path) -> NativeProfile:
    return decode((folder / "profile").read_bytes(), NativeProfile, limit=1 << 20)


def test_the_recorded_environment_is_the_recommended_one(recorded: NativeProfile) -> None:
    wanted = recommended_environment(2)
    assert {name: value for name, value in recorded.environment.items() if value is not None} == wanted
    assert recorded.threads.intra == 2
    assert recorded.switches["deterministic.algorithms"] == 2


def test_a_fresh_process_with_the_recorded_environment_is_comparable(folder: Path, recorded: NativeProfile) -> None:
    # Whoever replays has settings of their own; the recorded ones must win.
    own = {**BASE, "OMP_NUM_THREADS": "5", "MKL_CBWR": "COMPATIBLE", "ATEN_CPU_CAPABILITY": "default"}
    found = process("compare", folder, environment(recorded, own))
    probe = decode((folder / "probe").read_bytes(), OperationProbe, limit=1 << 20)
    assert found["apply"] == ["fine", "null"]
    assert found["compare"] == [
        "fine",
        encode(Comparison(len(probe.operations))).decode(),
    ]
    assert found["differences"] == []
    assert found["recorded again"] is True
    assert probe.unprobed == ()


def test_another_vector_class_and_thread_count_are_named(folder: Path, recorded: NativeProfile) -> None:
    variables = environment(recorded, BASE) | {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    found = process("foreign", folder, variables)
    code, message, _ = found["apply"]
    assert code == "profile-not-applicable"
    assert "environment." in message
    code, message, lines = found["compare"]
    assert code == "profile-differs"
    expected = {"environment.OMP_NUM_THREADS", "threads.intra"}
    if recorded.device["cpu.capability"] != "DEFAULT":
        expected |= {"environment.ATEN_CPU_CAPABILITY", "device.cpu.capability"}
    assert expected <= set(lines)
    # The probe finds the same without looking at any line: split reductions (threads) and vector classes.
    assert any(
        operation.startswith("aten.native_batch_norm.default(float32[1000,70]") for operation in found["differences"]
    )
    if "device.cpu.capability" in lines:
        assert any(operation.startswith("aten.addcmul_.default(") for operation in found["differences"])
