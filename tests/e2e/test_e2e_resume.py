"""A run that stops goes on with the same bits, however often it stops and however it was stopped."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from e2e import recording
from e2e.command import SMALL_GPT, start, witness
from e2e.lab import KILLED, Lab

from witness.holding import audit_run
from witness.logreader import LogReader
from witness.rundir import RunDir

TEN = {"kind": "gpt", "steps": 10, "checkpoint_every": 4}


@pytest.fixture(scope="session")
def undisturbed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps that nothing disturbs."""
    folder = tmp_path_factory.mktemp("ten") / "run"
    lab.run(recording.run_to_end, folder, **TEN)
    return folder


@pytest.fixture(scope="session")
def ten(undisturbed: Path) -> str:
    """The final state root of them."""
    return audit_run(undisturbed).state_root(10).hex()


def steps_of(run: Path) -> list[bytes]:
    """The step records of a run, as logged."""
    with LogReader(run / "log.sqlite") as log:
        return [entry for entry in log.entries() if json.loads(entry)["type"] == "step"]


@pytest.mark.parametrize("closes", [True, False], ids=["stopped", "killed"])
def test_a_run_that_stops_after_every_step_leaves_the_same_records(
    closes: bool, lab: Lab, undisturbed: Path, ten: str, tmp_path: Path
) -> None:
    assert lab.run(recording.resumed_at_every_step, tmp_path / "run", closes=closes, **TEN).value == ten
    assert steps_of(tmp_path / "run") == steps_of(undisturbed)
    audit = audit_run(tmp_path / "run")
    assert audit.final is not None
    assert [event.step for event in audit.resumes] == list(range(1, 10))
    kept = [event.checkpoint for event in audit.resumes]
    assert kept == (list(range(1, 10)) if closes else [0, 0, 0, 4, 4, 4, 4, 8, 8])


def test_roots_that_are_committed_now_and_then_do_not_hinder(
    lab: Lab, undisturbed: Path, ten: str, tmp_path: Path
) -> None:
    sparse = {"kind": "gpt", "steps": 10, "checkpoint_every": 4, "commit_every": 2}
    assert lab.run(recording.run_to_end, tmp_path / "whole", **sparse).value["root"] == ten
    assert lab.run(recording.resumed_at_every_step, tmp_path / "run", closes=True, **sparse).value == ten
    assert steps_of(tmp_path / "run") == steps_of(tmp_path / "whole") != steps_of(undisturbed)
    assert audit_run(tmp_path / "run").final is not None


def test_what_the_disk_refused_is_not_signed(lab: Lab, ten: str, tmp_path: Path) -> None:
    """An entry is lost, the next one would be taken: the state that belongs to the lost one must not be kept."""
    for failing in (3, 5, 7, 14):  # the first step, the third, the kept state after the fourth, the end
        folder = tmp_path / str(failing)
        report = lab.run(recording.run_with_failing_append, folder, failing, **TEN)
        assert report.error == "disk-full"
        assert audit_run(folder).size <= failing - 1
        report = lab.run(recording.run_to_end, folder, resume=True, **TEN)
        assert report.value == {"root": ten, "steps": 10}, report
        assert audit_run(folder).final is not None


def test_a_damaged_kept_state_is_passed_over_for_an_older_one(lab: Lab, ten: str, tmp_path: Path) -> None:
    assert lab.run(recording.run_to_step, tmp_path / "run", 9, closes=False, **TEN).status == KILLED
    state = RunDir(tmp_path / "run").checkpoint_path(8)
    data = bytearray(state.read_bytes())
    data[-5] ^= 1
    state.write_bytes(data)
    assert lab.run(recording.run_to_end, tmp_path / "run", resume=True, **TEN).value["root"] == ten
    assert [(event.step, event.checkpoint) for event in audit_run(tmp_path / "run").resumes] == [(9, 4)]


def test_only_the_same_run_is_continued(lab: Lab, tmp_path: Path) -> None:
    assert lab.run(recording.run_to_step, tmp_path / "run", 5, closes=False, **TEN).status == KILLED
    for change, told in (({"steps": 11}, "program arguments"), ({"kind": "mlp"}, "program entry")):
        report = lab.run(recording.run_to_end, tmp_path / "run", resume=True, **TEN | change)
        assert report.error == "resume-mismatch"
        assert told in report.message
    key = tmp_path / "other.key"
    witness("keygen", key, status=0)
    report = lab.run(recording.run_to_end, tmp_path / "run", resume=True, key=str(key), **TEN)
    assert (report.error, "key" in report.message) == ("resume-mismatch", True)
    witness("train", "gpt", "--out", tmp_path / "run", "--resume", "--steps", "12", status=64)


def test_a_run_is_written_by_one_process(lab: Lab, tmp_path: Path) -> None:
    run, options = tmp_path / "run", {"kind": "command", "steps": 100_000, "batch_size": 4}
    with start("train", "gpt", "--out", run, "--steps", options["steps"], *SMALL_GPT) as running:
        running.until(lambda: entries_of(run) > 4)
        assert lab.run(recording.run_to_end, run, resume=True, **options).error == "run-locked"
        assert lab.run(recording.run_to_end, run, **options).error == "run-exists"


# -- power cuts


@pytest.fixture(scope="module")
def stopped(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run killed after its ninth step: heads cover two kept states, and step 9 is under no head."""
    folder = tmp_path_factory.mktemp("cut") / "run"
    assert lab.run(recording.run_to_step, folder, 9, closes=False, **TEN).status == KILLED
    return folder


def test_a_power_cut_takes_only_what_no_head_covers(lab: Lab, ten: str, stopped: Path, tmp_path: Path) -> None:
    """Write-ahead frames that were not flushed are gone: all of them, or from some frame on, or in its middle."""
    wal = stopped / "log.sqlite-wal"
    lengths = {None, 0, 32, *range(32 + 24 + 4096, wal.stat().st_size, 3 * (24 + 4096)), wal.stat().st_size - 100}
    signed = RunDir(stopped).head_sizes()[-1]
    for length in sorted(lengths, key=lambda n: -1 if n is None else n):
        folder = Path(shutil.copytree(stopped, tmp_path / str(length)))
        (folder / "log.sqlite-shm").unlink(missing_ok=True)
        if length is None:
            (folder / wal.name).unlink()
        else:
            with (folder / wal.name).open("r+b") as file:
                file.truncate(length)
        report = lab.run(recording.run_to_end, folder, resume=True, **TEN)
        assert report.value == {"root": ten, "steps": 10}, (length, report)
        audit = audit_run(folder)  # with the heads that were signed before the cut
        assert audit.final is not None
        assert RunDir(folder).read_head(signed) == RunDir(stopped).read_head(signed)


def test_no_second_history_is_signed_where_covered_entries_are_gone(lab: Lab, stopped: Path, tmp_path: Path) -> None:
    signed = RunDir(stopped).head_sizes()[-1]
    for entries in (signed - 1, signed - 2, 1):
        folder = Path(shutil.copytree(stopped, tmp_path / str(entries)))
        lab.run(recording.truncate_log, folder, entries)
        heads = RunDir(folder).head_sizes()
        report = lab.run(recording.run_to_end, folder, resume=True, **TEN)
        assert report.error == "log-truncated", report
        assert report.evidence["signed"] == signed
        assert RunDir(folder).head_sizes() == heads
        assert entries_of(folder) == entries


@pytest.mark.parametrize(("step", "error"), [(2, "head-root"), (9, "resume-diverged")])
def test_no_head_is_signed_over_altered_entries(step: int, error: str, lab: Lab, stopped: Path, tmp_path: Path) -> None:
    """Under a head, and after the last one."""
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    with closing(sqlite3.connect(folder / "log.sqlite")) as connection, connection:
        stored = connection.execute("SELECT id, entry FROM leaf WHERE id > 2").fetchall()
        number, entry = next((n, e) for n, e in stored if json.loads(e).get("step") == step)
        at = entry.index(b'"batch":"') + 9
        altered = entry[:at] + (b"0" if entry[at : at + 1] != b"0" else b"1") + entry[at + 1 :]
        connection.execute("DROP TRIGGER leaf_no_update")
        connection.execute("UPDATE leaf SET entry = ? WHERE id = ?", (altered, number))
    report = lab.run(recording.run_to_end, folder, resume=True, **TEN)
    assert report.error == error, report
    assert RunDir(folder).head_sizes() == RunDir(stopped).head_sizes()


# -- real signals


def entries_of(run: Path) -> int:
    """Entries that the log shows to other processes."""
    try:
        connection = sqlite3.connect(f"file:{run / 'log.sqlite'}?mode=ro", uri=True)
        try:
            return connection.execute("SELECT count(*) FROM leaf").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.OperationalError:
        return 0


def test_kill_9_and_ctrl_c_leave_a_run_that_goes_on(lab: Lab, tmp_path: Path) -> None:
    run, steps = tmp_path / "run", 300
    first = ("train", "gpt", "--out", run, "--steps", steps, "--checkpoint-every", 40, *SMALL_GPT)
    again = ("train", "gpt", "--out", run, "--resume")
    whole = {"kind": "command", "steps": steps, "batch_size": 4}
    assert lab.run(recording.run_to_end, tmp_path / "whole", **whole).value["steps"] == steps
    with start(*first) as running:
        running.until(lambda: entries_of(run) > 60)
        running.kill()
        assert running.wait().status == -KILLED
    with start(*again, "--json") as running:
        running.until(lambda: entries_of(run) > 120)
        running.interrupt()
        ended = running.wait()
    assert ended.status == 2
    assert not ended.json["finished"]
    stopped_at = ended.json["steps"]["recorded"]
    assert 0 < stopped_at < steps
    with start(*again) as running:
        running.until(lambda: entries_of(run) > stopped_at + 60)
        running.interrupt()
        running.interrupt()
        ended = running.wait()
    assert ended.status == 2
    ended = witness(*again, "--json", status=0)
    audit, other = audit_run(run), audit_run(tmp_path / "whole")
    assert bytes(audit.roots) == bytes(other.roots)
    assert audit.losses.tobytes() == other.losses.tobytes()
    assert ended.json["final"]["state_root"] == audit.state_root(steps).hex()
    assert audit.final is not None
    assert other.final is not None
    assert audit.final.released == other.final.released
    assert len(audit.resumes) == 3
    assert stopped_at in [event.step for event in audit.resumes]
    # the steps after each resume are challenged, always
    ended = witness("verify", run, "--rounds", "1", "--round-size", "2", "--out", tmp_path / "cert", "--json", status=0)
    assert ended.json["verdict"] == "reproduced"
    assert any("resumed after steps" in note for note in ended.json["notes"])
    from protocol.certificate import open_certificate

    challenged = {c.step: c for c in open_certificate((tmp_path / "cert").read_bytes()).predicate.challenges}
    for event in audit.resumes:
        assert challenged[event.step + 1].reason == "resume"
        assert challenged[event.step + 1].result.outcome == "reproduced"
