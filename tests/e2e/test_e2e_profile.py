"""The numeric profile, end to end: pinned where it can be; where it cannot, incomplete and named, never diverged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from e2e import programs, recording
from e2e.command import SMALL_GPT, environment, witness
from e2e.lab import Lab
from e2e.verifying import verify

from witness.machine import cpu_features
from witness.rundir import RunDir

pytestmark = pytest.mark.usefixtures("warm")
OPTIONS = {"kind": "mlp", "steps": 4}


def test_the_surroundings_of_trainer_and_verifier_do_not_matter(lab: Lab, tmp_path: Path) -> None:
    """Threads, hash seed and vector class are the run's, whatever the shell says; nothing more than that is asked."""
    train = ("train", "gpt", "--steps", 4, *SMALL_GPT, "--json")
    plain = lab.run(recording.run_to_end, tmp_path / "plain", kind="command", batch_size=4).value["root"]
    other = environment(OMP_NUM_THREADS="2", MKL_NUM_THREADS="2", PYTHONHASHSEED="7", ATEN_CPU_CAPABILITY="default")
    said = witness(*train, "--out", tmp_path / "other", env=other, status=0).json
    assert said["final"]["state_root"] == plain
    environments = [RunDir(tmp_path / name).manifest().profile.environment for name in ("plain", "other")]
    assert environments[0] == environments[1]
    assert environments[0]["OMP_NUM_THREADS"] == "1"
    verify_it = ("verify", tmp_path / "plain", "--rounds", 1, "--round-size", 4, "--json")
    assert witness(*verify_it, env=other, status=0).json["verdict"] == "reproduced"


@pytest.mark.skipif("avx2" not in cpu_features(), reason="one vector class is all there is")
def test_a_run_of_an_older_vector_class_is_replayed_in_that_class(tmp_path: Path) -> None:
    rows = f"[bytes(row) for row in {[list(row) for row in recording.ROWS]}]"
    below = f"with witness.record('run', Small(), {rows}) as run:\n    for batch in run: run.step(batch)\n"
    script = programs.write(tmp_path, below=below)
    env = environment(OMP_NUM_THREADS="1", ATEN_CPU_CAPABILITY="default")
    subprocess.run([sys.executable, script], check=True, cwd=tmp_path, env=env)
    manifest = RunDir(tmp_path / "run").manifest()
    assert manifest.profile.device["cpu.capability"] == "DEFAULT"
    outcome = verify(tmp_path / "run", draws=4, trust=manifest.program.digest.hex())
    assert outcome.verdict == "reproduced", outcome.found


@pytest.mark.parametrize(
    ("line", "value"),
    [("torch", "2.5.0"), ("numpy", "1.26.4"), ("libm", "another"), ("python", "3.10.1")],
)
def test_a_machine_that_cannot_match_accuses_nobody(line: str, value: str, lab: Lab, tmp_path: Path) -> None:
    report = lab.run(recording.run_with_build, tmp_path / "run", {line: value}, **OPTIONS)
    assert report.error == "", report
    outcome = verify(tmp_path / "run", draws=4)
    assert outcome.verdict == "incomplete", outcome.found
    assert outcome.codes == ["profile-differs"]
    result = outcome.found[0][1]
    assert list(result.evidence) == [f"build.{line}"]
    assert value in result.message
    assert not outcome.evidence.draws
    assert not outcome.evidence.predicate.challenges


def test_another_build_of_one_release_is_settled_by_its_operations(lab: Lab, tmp_path: Path) -> None:
    changes = {"torch_git": "0" * 40, "onednn": "0.0.1", "mkl": "another"}
    assert lab.run(recording.run_with_build, tmp_path / "run", changes, **OPTIONS).error == ""
    assert verify(tmp_path / "run", draws=4).verdict == "reproduced"


def test_an_operation_that_gives_other_bits_is_named(lab: Lab, tmp_path: Path) -> None:
    assert lab.run(recording.run_with_operation_digest, tmp_path / "run", "aten.mm", **OPTIONS).error == ""
    outcome = verify(tmp_path / "run", draws=4)
    assert outcome.verdict == "incomplete", outcome.found
    assert outcome.codes == ["operation-differs"]
    assert "aten.mm" in str(outcome.found[0][1].evidence["operation"])
    assert not outcome.evidence.predicate.challenges


def test_a_resume_under_other_settings_is_refused_by_name(lab: Lab, tmp_path: Path) -> None:
    assert lab.run(recording.run_to_step, tmp_path / "run", 2, closes=True, **OPTIONS).value == 2
    log = (tmp_path / "run" / "log.sqlite").read_bytes()
    for changes, line in (
        ({"OMP_NUM_THREADS": "2"}, "environment.OMP_NUM_THREADS"),
        ({"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}, "environment.ONEDNN_DEFAULT_FPMATH_MODE"),
    ):
        report = lab.run(recording.run_in_environment, tmp_path / "run", changes, resume=True, **OPTIONS)
        assert report.error == "resume-diverged", report
        assert line in report.message
    report = lab.run(recording.run_with_build, tmp_path / "run", {"torch": "2.5.0"}, resume=True, **OPTIONS)
    assert (report.error, "build.torch" in report.message) == ("resume-diverged", True)
    assert (tmp_path / "run" / "log.sqlite").read_bytes() == log
    # the command line sets what the run was recorded with, whatever the shell says
    env = environment(OMP_NUM_THREADS="2", ONEDNN_DEFAULT_FPMATH_MODE="BF16")
    said = witness("train", "mlp", "--out", tmp_path / "run", "--resume", "--json", env=env, status=0).json
    whole = lab.run(recording.run_to_end, tmp_path / "whole", **OPTIONS).value["root"]
    assert said["final"]["state_root"] == whole
    assert json.dumps(said["steps"]) == '{"promised": 4, "recorded": 4}'
