"""kill -9 at every write of a recording: whatever was written by then, the run goes on, and ends with the same bits."""

import shutil
from pathlib import Path

import pytest
from e2e import recording
from e2e.lab import KILLED, Lab

from witness.holding import audit_run
from witness.logreader import LogReader
from witness.prover import RunArchive
from witness.rundir import RunDir

OPTIONS = {"kind": "mlp", "steps": 4, "checkpoint_every": 2}


@pytest.fixture(scope="session")
def whole(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final state root of a run that nothing disturbed."""
    return lab.run(recording.run_to_end, tmp_path_factory.mktemp("whole") / "run", **OPTIONS).value["root"]


@pytest.fixture(scope="session")
def writes(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every write of such a run, in order."""
    return lab.run(recording.run_with_write_points, tmp_path_factory.mktemp("writes") / "run", **OPTIONS).value


def test_the_writes_are_those_of_a_recording(writes: list[str]) -> None:
    def at(label: str) -> int:
        return writes.index(label)

    assert at("rename program/mlp.py") < at("rename corpus/corpus.json") < at("key key") < at("append manifest")
    assert at("append manifest") < at("rename heads/000000000001.note") < at("rename checkpoints/0000000000.state")
    assert at("rename checkpoints/0000000000.state") < at("append init") < at("append step")
    assert at("rename checkpoints/0000000002.state") < at("append checkpoint")
    assert at("rename run/model.safetensors") < at("append final")
    assert writes[-1] == "rename heads/000000000009.note"  # manifest, init, four steps, two kept states, the end
    assert writes.count("append step") == 4
    for place, label in enumerate(writes):  # no head is signed over entries that the disk may still lose
        assert not label.startswith("rename heads/") or writes[place - 1] == "flush"


@pytest.mark.parametrize("part", range(4))
def test_a_run_killed_at_any_write_ends_with_the_same_bits(
    part: int, lab: Lab, writes: list[str], whole: str, tmp_path: Path
) -> None:
    # Just after one write is just before the next, but for the part of a temporary file that is then there too.
    ends = [*((number, "before") for number in range(len(writes))), (len(writes) - 1, "after")]
    for number, side in ends[part::4]:
        where = f"{side} write {number}, {writes[number]}"
        folder = tmp_path / f"{number}-{side}"
        assert lab.run(recording.run_with_write_points, folder, number, side, **OPTIONS).status == KILLED, where
        report = lab.run(recording.run_to_end, folder, resume=number > writes.index("append manifest"), **OPTIONS)
        if side == "after":
            assert report.error == "run-finished"
        else:
            assert report.value == {"root": whole, "steps": 4}, (where, report)
        require_whole(folder, where)


def test_a_resume_killed_at_any_write_ends_with_the_same_bits(
    lab: Lab, writes: list[str], whole: str, tmp_path: Path
) -> None:
    third = [number for number, label in enumerate(writes) if label == "append step"][2]
    assert lab.run(recording.run_with_write_points, tmp_path / "killed", third, "after", **OPTIONS).status == KILLED
    shutil.copytree(tmp_path / "killed", tmp_path / "listed")
    again = lab.run(recording.run_with_write_points, tmp_path / "listed", resume=True, **OPTIONS).value
    assert again[0] == "append resume"
    for number, label in enumerate(again):
        folder = shutil.copytree(tmp_path / "killed", tmp_path / str(number))
        report = lab.run(recording.run_with_write_points, folder, number, "before", resume=True, **OPTIONS)
        assert report.status == KILLED, label
        report = lab.run(recording.run_to_end, folder, resume=True, **OPTIONS)
        assert report.value == {"root": whole, "steps": 4}, (label, report)
        require_whole(folder, label)


def require_whole(folder: Path, where: str) -> None:
    """The log passes every check that needs no gradient, ends the run, and stands under a head to its end."""
    audit = audit_run(folder)
    assert audit.final is not None, where
    with RunArchive(RunDir.open(folder)) as archive:
        assert archive.audit.size == audit.size, f"{where}: entries stand under no signed head"
    with LogReader(RunDir(folder).log_path) as log:
        assert log.size() == audit.size, f"{where}: entries stand under no signed head"
