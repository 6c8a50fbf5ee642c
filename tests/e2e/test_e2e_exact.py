"""The exact profile, end to end: recorded on one machine, reproduced on another, and held to the same bits there.

The other machine is this one with other threads, the baseline vector classes of torch and oneDNN, and MKL's compatible
mode. Under the native profile its bits are others, as the tests show, so what they ask of the exact one could fail.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e import programs, recording
from e2e.command import environment, witness
from e2e.lab import Lab
from e2e.verifying import verify

from protocol.exact_profile import DEFAULT, ExactProfile
from witness import sandbox
from witness.environment import VARIABLES
from witness.exact_profile import MODE
from witness.keys import generate, write_key
from witness.rundir import RunDir

pytestmark = pytest.mark.usefixtures("warm")
HERE = {"OMP_NUM_THREADS": "1"}
THERE = {
    "OMP_NUM_THREADS": "2",
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
}
KINDS = ("gpt", "wide")
OPTIONS: dict[str, Any] = {"kind": "mlp", "steps": 4, "checkpoint_every": 1, "profile": "exact"}
WEIGHT = "model/0.0.weight"


@pytest.fixture(scope="module")
def here() -> Iterator[Lab]:
    with Lab(HERE, MODE) as lab:
        yield lab


@pytest.fixture(scope="module")
def there() -> Iterator[Lab]:
    with Lab(THERE, MODE) as lab:
        yield lab


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, here: Lab, there: Lab) -> Path:
    """Runs of four steps: `<here or there>-<kind>-<profile>`, all with one key."""
    made = tmp_path_factory.mktemp("exact")
    write_key(made / "key", generate("trainer"))
    for name, lab in (("here", here), ("there", there)):
        for kind in KINDS:
            for profile in ("exact", "native"):
                run = made / f"{name}-{kind}-{profile}"
                report = lab.run(
                    recording.run_to_end, run, kind=kind, steps=4, profile=profile, key=made / "key", checkpoint_every=3
                )
                assert report.error == "", report
    return made


@pytest.fixture(autouse=True)
def verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, which verifies, is on the machine `here`; its own libraries have read their variables before."""
    ones = torch.ones(32, 32, dtype=torch.int8)
    torch._int_mm(ones, ones)  # oneDNN looks once, and later tests of this process want the machine's own kernels
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sandbox is on the other machine, whatever environment the run's profile asks for."""

    shared: Any = sandbox.Sandbox

    def there(**how: Any) -> Any:
        return shared(**{**how, "environment": {**how["environment"], **THERE}})

    monkeypatch.setattr(sandbox, "Sandbox", there)


def final(run: Path) -> str:
    return (run / "model.safetensors").read_bytes().hex()


@pytest.mark.parametrize("kind", KINDS)
def test_both_machines_record_one_run(kind: str, folder: Path) -> None:
    exact, native = (
        [folder / f"{name}-{kind}-{profile}" for name in ("here", "there")] for profile in ("exact", "native")
    )
    assert final(native[0]) != final(native[1])
    assert final(exact[0]) == final(exact[1])
    manifests = [RunDir(run).manifest() for run in exact]
    assert isinstance(manifests[0].profile, ExactProfile)
    assert manifests[0].operations.operations == ()
    assert manifests[0] == manifests[1]  # nothing in it is of one machine


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_reproduces_on_the_other_machine_and_natively_is_incomplete(
    kind: str, folder: Path, elsewhere: None
) -> None:
    outcome = verify(folder / f"here-{kind}-exact", draws=4)
    assert outcome.verdict == "reproduced", outcome.found
    assert outcome.evidence.predicate.profile == DEFAULT
    assert set(outcome.challenged) == {0, 1, 2, 3, 4}
    if kind == "gpt":
        outcome = verify(folder / f"here-{kind}-native", draws=4)
        assert outcome.verdict == "incomplete", outcome.found
        assert outcome.codes == ["profile-not-applicable"]
        assert "environment." in outcome.found[0][1].message


def test_the_commands_take_the_environment_as_it_is(tmp_path: Path, folder: Path) -> None:
    train = ("train", "mlp", "--steps", 3, "--profile", "exact-18", "--threads", 1, "--out", tmp_path / "run", "--json")
    witness(*train, env=environment(**HERE), status=0)
    assert RunDir(tmp_path / "run").manifest().profile.full_name == "exact-18"
    verification = ("verify", tmp_path / "run", "--rounds", 1, "--round-size", 3, "--out", tmp_path / "cert", "--json")
    said = witness(*verification, env=environment(**THERE), status=0).json
    assert (said["verdict"], said["profile"]) == ("reproduced", "exact-18")
    said = witness("inspect", tmp_path / "run", "--json", status=0).json["profile"]
    assert said["name"] == "exact-18"
    assert not [line for line in said["lines"] if line.startswith(("environment", "threads"))]
    shown = witness("inspect", tmp_path / "run", status=0).out
    assert "arithmetic exact-18, definition 1" in shown
    assert "defined by exact-18, none probed" in shown
    assert "exact-18" in witness("check", tmp_path / "cert", status=0).out


def test_a_run_goes_on_with_the_same_bits_on_the_other_machine(here: Lab, folder: Path, tmp_path: Path) -> None:
    options = {"kind": "wide", "steps": 4, "profile": "exact", "key": folder / "key", "checkpoint_every": 3}
    assert here.run(recording.run_to_step, tmp_path / "run", 2, closes=True, **options).value == 2
    resume = ("train", "mlp", "--out", tmp_path / "run", "--key", folder / "key", "--resume", "--json")
    told = witness(*resume, "--profile", "native", env=environment(**THERE)).told()
    assert told == (64, "resume-mismatch")
    witness(*resume, "--threads", 2, env=environment(**THERE), status=0)
    assert final(tmp_path / "run") == final(folder / "here-wide-exact")


def test_one_changed_bit_is_named(here: Lab, tmp_path: Path) -> None:
    report = here.run(recording.run_with_flipped_bit, tmp_path / "run", 3, WEIGHT, **OPTIONS)
    assert report.error == "", report
    outcome = verify(tmp_path / "run", draws=4)
    assert outcome.verdict == "diverged", outcome.found
    result = outcome.found[0][1]
    assert result.code == "replay-state"
    assert (result.evidence["step"], result.evidence["tensor"], result.evidence["element"]) == (3, WEIGHT, 0)


OTHER = {"torch": "2.5.0", "libm": "another"}


def test_versions_that_may_matter_are_noted_while_the_bits_agree(here: Lab, tmp_path: Path) -> None:
    lines = {**OTHER, "python": "3.10.1"}  # and not numpy's, which a reference program does not use
    assert here.run(recording.run_with_build, tmp_path / "run", lines, **OPTIONS).error == ""
    outcome = verify(tmp_path / "run", draws=4)
    assert outcome.verdict == "reproduced", outcome.found
    for line, value in lines.items():
        assert any(f"build.{line}: recorded {value}" in note for note in outcome.notes), line


def test_where_they_differ_a_divergence_accuses_nobody(here: Lab, tmp_path: Path) -> None:
    report = here.run(recording.run_with_flipped_bit, tmp_path / "run", 3, WEIGHT, OTHER, **OPTIONS)
    assert report.error == "", report
    outcome = verify(tmp_path / "run", draws=4)
    assert outcome.verdict == "incomplete", outcome.found
    assert outcome.codes == ["outside-differs"]
    evidence = outcome.found[0][1].evidence
    assert {name: evidence[name] for name in ("step", "tensor", "found")} == {
        "step": 3,
        "tensor": WEIGHT,
        "found": "replay-state",
    }
    assert {name for name in evidence if name.startswith("build.")} == {"build.torch", "build.libm"}


def test_a_schedule_from_another_libm_accuses_nobody(here: Lab, tmp_path: Path) -> None:
    options = {**OPTIONS, "kind": "gpt", "steps": 6}
    assert here.run(recording.run_with_other_cosine, tmp_path / "run", **options).error == ""
    outcome = verify(tmp_path / "run", draws=4)
    assert outcome.verdict == "incomplete", outcome.found
    assert outcome.codes == ["outside-differs"]
    assert outcome.found[0][0] == "hyperparameters"
    assert "build.libm" in outcome.found[0][1].evidence


def test_an_operation_without_a_definition_is_refused_before_anything_is_recorded(here: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path, step="torch.linalg.svdvals(state.model.weight)")
    report = here.run(recording.run_program, f"{source}:Small", tmp_path / "run", profile="exact")
    assert report.error == "exact-refused", report
    assert "linalg_svd" in report.message
    assert not (tmp_path / "run" / "heads").exists() or not list((tmp_path / "run" / "heads").iterdir())
    assert here.run(recording.run_program, f"{source}:Small", tmp_path / "run", profile="native").error == ""
