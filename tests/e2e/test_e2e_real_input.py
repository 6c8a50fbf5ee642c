"""Data as it comes: empty, tiny, odd, huge, changed underneath; a loss that is no number; a disk that is full."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from e2e import programs, recording
from e2e.command import SMALL_GPT, witness
from e2e.lab import Lab
from e2e.verifying import verify

from protocol.errors import WitnessError
from witness.fsck import fsck, open_run
from witness.holding import audit_run
from witness.rundir import RunDir

pytestmark = pytest.mark.usefixtures("warm")


# -- small ---------------------------------------------------------------------------------------


def test_nothing_to_draw_from_is_one_clear_error(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "files").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "files" / name).touch()
    (tmp_path / "short.txt").write_bytes(b"sixteen bytes...")  # a window is the context and one more
    for name in ("empty.txt", "folder", "files", "short.txt"):
        report = lab.run(recording.run_on, tmp_path / name, tmp_path / "run")
        assert report.error == "empty-corpus", (name, report)
        assert not (tmp_path / "run").exists(), name
    ended = witness("train", "gpt", "--data", tmp_path / "short.txt", "--out", tmp_path / "run", "--json", *SMALL_GPT)
    assert ended.told() == (64, "empty-corpus")
    assert ended.error["evidence"] == {"documents": 1, "tokens": 16, "window": 33}
    assert "next" in ended.error


@pytest.mark.parametrize(
    ("data", "kind", "options"),
    [
        pytest.param("one.txt", "gpt", {}, id="one document, of one window"),
        pytest.param("three.txt", "gpt", {"batch_size": 8}, id="fewer samples than a batch"),
        pytest.param("folder", "gpt", {}, id="a folder with an empty file in it"),
        pytest.param([[9, 8, 7, 6, 1]], "mlp", {}, id="one row, with BatchNorm"),
        pytest.param([[i, 2, 3, 4, i % 5] for i in range(9)], "mlp", {}, id="a last batch of one row, with BatchNorm"),
    ],
)
def test_little_data_is_trained_on_and_verified(
    data: object, kind: str, options: dict[str, int], lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "one.txt").write_bytes(b"seventeen bytes..")
    (tmp_path / "three.txt").write_bytes(b"some forty-nine bytes, which are just 3 windows..")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").touch()
    (tmp_path / "folder" / "b.txt").write_bytes(b"the second document of this corpus")
    named = tmp_path / data if isinstance(data, str) else data
    report = lab.run(recording.run_on, named, tmp_path / "run", kind=kind, steps=6, **options)
    assert len(report.value["losses"]) == 6, report
    outcome = verify(tmp_path / "run", draws=6)
    assert outcome.verdict == "reproduced", outcome.found
    assert set(outcome.challenged) == set(range(7))
    assert fsck(open_run(tmp_path / "run")).exit_status == 0


# -- large, and changing -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A document of 200 MB, most of which is nothing."""
    path = tmp_path_factory.mktemp("large") / "large.txt"
    with path.open("wb") as file:
        file.write(b"the first line of a long document\n" * 40)
        file.truncate(200 << 20)
    return path


@pytest.fixture(scope="module")
def on_large(large: Path, lab: Lab) -> Path:
    """A run on it, which names the file instead of copying it; in no more memory than a run on a small one takes."""
    steps = {"kind": "long", "steps": 3, "checkpoint_every": 3}
    little = lab.run(recording.run_on, [list(text) for text in recording.TEXTS], large.parent / "little", **steps)
    report = lab.run(recording.run_on, large, large.parent / "run", **steps)
    assert report.value, report
    assert report.value["peak"] - little.value["peak"] < 150 << 20
    return large.parent / "run"


@contextmanager
def changed(path: Path, how: str) -> Iterator[None]:
    """The corpus in another state, for a while."""
    times, length = (path.stat().st_atime_ns, path.stat().st_mtime_ns), path.stat().st_size
    moved = path.with_name("moved.txt")
    if how == "gone":
        path.rename(moved)
    elif how == "shorter":
        os.truncate(path, length - 1)
    else:
        with path.open("r+b") as file:
            file.write(b"THE")
    if how == "edited, with its old time":
        os.utime(path, ns=times)
    try:
        yield
    finally:
        if how == "gone":
            moved.rename(path)
        else:
            os.truncate(path, length)
            with path.open("r+b") as file:
                file.write(b"the")
            os.utime(path, ns=times)


def test_a_large_document_is_verified(on_large: Path) -> None:
    assert (on_large / "corpus" / "corpus.json").stat().st_size < 2000
    assert not (on_large / "corpus" / "data").exists()
    outcome = verify(on_large, draws=3)
    assert outcome.verdict == "reproduced", outcome.found


@pytest.mark.parametrize(
    ("how", "code", "status"),
    [
        ("gone", "corpus-missing", 64),
        ("shorter", "corpus-changed", 1),
        ("edited", "corpus-changed", 1),
        ("edited, with its old time", "corpus-changed", 1),
    ],
)
def test_data_that_changed_is_named_before_anything_is_served(
    how: str, code: str, status: int, on_large: Path, large: Path
) -> None:
    with changed(large, how):
        if not how.startswith("edited"):  # an edit that keeps the length shows when the data is read
            assert witness("serve", on_large, "--port", 0, "--json").told() == (status, code)
            assert witness("verify", on_large, "--json").told() == (status, code)
        else:
            outcome = verify(on_large, draws=3)
            assert outcome.verdict == "diverged"
            assert [result.evidence["prover_code"] for _, result in outcome.found] == [code]
        report = fsck(open_run(on_large))
        assert report.exit_status == 1
    assert verify(on_large, draws=1).verdict == "reproduced"


# -- a loss that is no number --------------------------------------------------------------------


def test_a_nan_is_recorded_shown_and_verified(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", after='if state.step == 2: return loss * float("nan")')
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "", report
    audit = audit_run(tmp_path / "run")
    assert [loss != loss for loss in audit.losses] == [False, True, False, False]
    outcome = verify(tmp_path / "run", draws=1, trust=report.value["digest"])
    assert outcome.verdict == "reproduced", outcome.found
    assert outcome.challenged[2] == "outlier"  # whatever is drawn
    assert "the loss is NaN at 1 steps, first at step 2" in outcome.notes
    said = witness("inspect", tmp_path / "run", "--json", status=0).json
    assert (said["losses"]["nan"], said["losses"]["first_nan_step"]) == (1, 2)
    assert "NaN" in witness("inspect", tmp_path / "run", status=0).out


def test_weights_that_are_no_numbers_are_verified(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", loss='loss = loss * float("inf" if state.step == 2 else 1)')
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "", report
    outcome = verify(tmp_path / "run", draws=4, trust=report.value["digest"])
    assert outcome.verdict == "reproduced", outcome.found
    assert any(note.startswith("the loss is NaN at 2 steps, first at step 3") for note in outcome.notes)


# -- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def resize(disk: Path, kilobytes: int) -> None:
    """Makes it smaller or larger; its content stays."""
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", str(disk)], check=True)


def test_a_full_disk_costs_nothing_but_time(disk: Path, lab: Lab, tmp_path: Path) -> None:
    options = {"kind": "command", "steps": 12, "batch_size": 4}
    whole = lab.run(recording.run_to_end, tmp_path / "whole", **options).value["root"]
    resize(disk, 1500)
    train = ("train", "gpt", "--steps", 12, "--checkpoint-every", 2, "--json", *SMALL_GPT)
    ended = witness(*train, "--out", disk / "run")
    assert ended.told() == (64, "disk-full")
    assert "--resume" in ended.error["next"]
    recorded = audit_run(disk / "run").steps
    assert 0 < recorded < 12
    assert lab.run(recording.run_to_end, disk / "run", resume=True, **options).error == "disk-full"
    resize(disk, 64 << 10)
    said = witness("train", "gpt", "--out", disk / "run", "--resume", "--json", status=0).json
    assert said["final"]["state_root"] == whole
    assert audit_run(disk / "run").final is not None
    assert fsck(open_run(disk / "run")).exit_status == 0


def test_a_disk_that_is_full_at_any_point_costs_nothing_but_time(disk: Path, lab: Lab, tmp_path: Path) -> None:
    options = {"kind": "mlp", "steps": 4, "checkpoint_every": 1}
    whole = lab.run(recording.run_to_end, tmp_path / "whole", **options).value["root"]
    ends = set()
    for kilobytes in range(8, 280, 16):
        run = disk / f"{kilobytes}"
        resize(disk, kilobytes)
        report = lab.run(recording.run_to_end, run, **options)
        if report.error:
            assert report.error in ("disk-full", "disk"), report
            ends.add(RunDir(run).kept_steps()[-1:] != [] and RunDir(run).kept_steps()[-1])
            report = lab.run(recording.run_to_end, run, resume=is_begun(run), **options)
            if report.error:  # there is no space yet; but the death of a process sets a little free
                assert report.error in ("disk-full", "disk"), report
                resize(disk, 64 << 10)
                report = lab.run(recording.run_to_end, run, resume=is_begun(run), **options)
        assert report.value == {"root": whole, "steps": 4}, (kilobytes, report)
        assert audit_run(run).final is not None
        subprocess.run(["rm", "-r", str(run)], check=True)
    assert len(ends) > 2, "the sizes do not meet every part of a recording"


def is_begun(run: Path) -> bool:
    """Whether the log holds a manifest."""
    try:
        return bool(RunDir.open(run).manifest())
    except WitnessError:
        return False


def test_files_that_may_not_grow_cost_nothing_but_time(lab: Lab, tmp_path: Path) -> None:
    options = {"kind": "gpt", "steps": 4, "checkpoint_every": 2}
    whole = lab.run(recording.run_to_end, tmp_path / "whole", **options).value["root"]
    for number, limit in enumerate((10_000, 60_000, 120_000, 200_000)):
        run = tmp_path / str(number)
        report = lab.run(recording.run_on_small_disk, run, limit, **options)
        assert report.error in ("disk", "disk-full"), report
        report = lab.run(recording.run_to_end, run, resume=is_begun(run), **options)
        assert report.value == {"root": whole, "steps": 4}, (limit, report)


def test_a_key_that_cannot_be_written_leaves_none(disk: Path) -> None:
    resize(disk, 4)
    (disk / "filler").write_bytes(b"\0" * 4096)
    assert witness("keygen", disk / "key", "--json").told() == (64, "disk-full")
    assert not (disk / "key").exists()


def test_a_certificate_that_cannot_be_written_is_not_lost(disk: Path, lab: Lab, tmp_path: Path) -> None:
    lab.run(recording.run_to_end, tmp_path / "run", kind="mlp")
    resize(disk, 4)
    (disk / "filler").write_bytes(b"\0" * 4096)
    ended = witness("verify", tmp_path / "run", "--rounds", 1, "--out", disk / "cert", "--json")
    assert ended.told() == (64, "disk-full")
    assert not (disk / "cert").exists()
    kept = Path(ended.error["next"].partition(" lies at ")[2].partition(":")[0])
    witness("check", kept, status=0)
    kept.unlink()
    kept.parent.rmdir()
    ended = witness("verify", tmp_path / "run", "--out", tmp_path / "no" / "cert", "--json", seconds=2)
    assert ended.told() == (64, "disk")
