"""Every file of a run in turn: gone, empty, cut short, altered, replaced. One clear error, and never a false pass."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from e2e import programs, recording
from e2e.command import witness
from e2e.lab import KILLED, Lab
from e2e.verifying import Outcome, verify

from protocol.errors import WitnessError
from witness.cli import group
from witness.fsck import fsck, open_run
from witness.holding import audit_run
from witness.rundir import RunDir
from witness.serving import Serving

pytestmark = pytest.mark.usefixtures("warm")
OPTIONS = {"kind": "mlp", "steps": 4, "checkpoint_every": 2}


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0")


def flip(path: Path) -> None:
    flip_at(path, path.stat().st_size // 2)


def flip_at(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def swap_for_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap_for_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def swap_for_link(path: Path) -> None:
    target = path.with_name("." + path.name)
    path.rename(target)
    path.symlink_to("/dev/zero")


DAMAGES = (remove, empty, cut, lengthen, flip, swap_for_folder, swap_for_pipe, swap_for_link)
DAMAGED = (
    *("log.sqlite", "heads/000000000001.note", "heads/000000000009.note", "corpus/corpus.json", "corpus/leaves"),
    *("corpus/data", "checkpoints/0000000002.state", "checkpoints/0000000004.state"),
)
NAMES = [damage.__name__ for damage in DAMAGES]


@pytest.fixture(scope="module")
def original(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    lab.run(recording.run_to_end, folder, **OPTIONS)
    return folder


@pytest.fixture(scope="module")
def unfinished(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its third step."""
    folder = tmp_path_factory.mktemp("damage") / "run"
    assert lab.run(recording.run_to_step, folder, 3, closes=False, **OPTIONS).status == KILLED
    return folder


@pytest.fixture(scope="module")
def honest(original: Path) -> Outcome:
    """What a verifier says of the finished run as it is."""
    outcome = verify(original)
    assert outcome.verdict == "reproduced"
    return outcome


def attempt(act: Callable[[], Outcome]) -> tuple[str, Outcome | None]:
    """The code of the error, or the outcome; any other exception fails the test, as does waiting."""
    try:
        return "", act()
    except WitnessError as error:
        assert str(error)
        assert error.next_action
        return error.code, None


def copied(run: Path, folder: Path, name: str) -> Path:
    return Path(shutil.copytree(run, folder / name.replace("/", "-")))


@pytest.mark.parametrize("damage", DAMAGES, ids=NAMES)
def test_no_damage_is_a_false_pass(
    damage: Callable[[Path], None], original: Path, honest: Outcome, tmp_path: Path
) -> None:
    for name in DAMAGED:
        run = copied(original, tmp_path, name)
        damage(run / name)
        code, outcome = attempt(lambda run=run: verify(run))
        about = f"{damage.__name__} {name}: {code or (outcome.codes if outcome else '')}"
        passed = outcome is not None and outcome.verdict == "reproduced"
        if outcome is not None and passed:
            now, then = outcome.evidence.predicate, honest.evidence.predicate
            assert (now.run, now.final_state_root) == (then.run, then.final_state_root), about
        report = fsck(open_run(run)) if (run / "log.sqlite").is_file() else None
        if name.startswith("checkpoints/"):
            assert passed, about  # rebuilt from an older one, or from the seed
        elif name.startswith("heads/") and damage is remove:
            assert passed, about  # one head less to contradict; the one before covers every step, but not the end
            unfinished = any("the run is not finished" in note for note in outcome.notes)  # type: ignore[union-attr]
            assert unfinished == name.endswith("9.note")
            continue
        elif name == "log.sqlite" and damage is lengthen:
            assert passed, about  # less than a page at the end is nothing to a database
            continue
        else:
            assert not passed, about
        assert report is None or report.exit_status == 1, about


def test_no_flipped_bit_of_the_log_is_a_false_pass(original: Path, honest: Outcome, tmp_path: Path) -> None:
    """Wherever it is: a session passes only where every entry is the one that the head covers."""
    size = (original / "log.sqlite").stat().st_size
    refused = 0
    for place in range(0, size, size // 24):
        run = copied(original, tmp_path, str(place))
        flip_at(run / "log.sqlite", place)
        _, outcome = attempt(lambda run=run: verify(run, draws=1, budget=0.0))
        if outcome is not None and not outcome.found:
            now, then = outcome.evidence.predicate, honest.evidence.predicate
            assert (now.head, now.final_state_root) == (then.head, then.final_state_root), place
        else:
            refused += 1
    assert refused > 5


def test_a_session_reads_nothing_else(original: Path, lab: Lab, tmp_path: Path) -> None:
    """A reference program is replayed from this installation, and the weights are checked by whoever uses them."""
    run = copied(original, tmp_path, "run")
    for name in ("model.safetensors", "key", *(f"program/{file.name}" for file in (run / "program").iterdir())):
        flip(run / name)
    (run / "lock").unlink()
    assert verify(run).verdict == "reproduced"
    code, _ = attempt(lambda: Serving(RunDir.open(run), None))  # type: ignore[arg-type,return-value]
    assert code in ("key-malformed", "other-key")
    report = fsck(open_run(run))
    assert {finding.file for finding in report.findings} >= {"model.safetensors", "program/mlp.py"}


def test_changed_sources_are_not_run(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source")
    digest = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run").value["digest"]
    file = tmp_path / "run" / "program" / "small.py"
    file.write_text(file.read_text() + "\n# one more line\n")
    _, outcome = attempt(lambda: verify(tmp_path / "run", trust=digest))
    assert outcome is not None
    assert outcome.verdict != "reproduced"
    assert [result.evidence.get("prover_code", result.code) for _, result in outcome.found][:1] == ["program-source"]


@pytest.mark.parametrize("damage", [remove, empty, cut, flip, swap_for_pipe], ids=lambda damage: damage.__name__)
def test_a_damaged_run_goes_on_right_or_not_at_all(
    damage: Callable[[Path], None], lab: Lab, unfinished: Path, honest: Outcome, tmp_path: Path
) -> None:
    heads = RunDir(unfinished).head_sizes()
    names = ("log.sqlite", f"heads/{heads[0]:012}.note", f"heads/{heads[-1]:012}.note", *DAMAGED[3:7], "key")
    for name in names:
        run = copied(unfinished, tmp_path, name)
        damage(run / name)
        report = lab.run(recording.run_to_end, run, resume=True, **OPTIONS)
        about = f"{damage.__name__} {name}: {report.error} {report.message}"
        if report.error:
            assert RunDir(run).head_sizes() in (heads, [size for size in heads if f"{size:012}" not in name]), about
        else:
            assert report.value["root"] == honest.evidence.predicate.final_state_root, about
            for size in heads:  # the heads that were signed before are heads of the log as it is now
                shutil.copy(unfinished / "heads" / f"{size:012}.note", run / "heads")
            assert audit_run(run).final is not None, about
        if name.startswith("checkpoints/"):
            assert not report.error, about  # the states before it are there


def test_the_commands_say_it_in_one_line(original: Path, tmp_path: Path) -> None:
    run = copied(original, tmp_path, "run")
    flip(run / "heads" / "000000000009.note")
    for command in (("verify", run), ("serve", run, "--port", 0)):
        status, code = witness(*command, "--json").told()
        assert (status, code) in [(1, "bad-signature"), (1, "head-malformed"), (1, "note-malformed")]
    said = witness("fsck", run, "--json", status=1).json
    assert [finding["file"] for finding in said["findings"]] == ["heads/000000000009.note"]


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", ["corpus/corpus.json", "corpus/leaves", "heads/000000000009.note"])
def test_whoever_holds_a_damaged_run_is_told_the_file_and_sent_to_fsck(
    name: str, place: float, original: Path, tmp_path: Path
) -> None:
    run = copied(original, tmp_path, "run")
    flip_at(run / name, int(place * (run / name).stat().st_size))
    for command in (["verify", run], ["serve", run, "--port", "0"]):
        error = CliRunner().invoke(group, [str(part) for part in command]).exception
        assert isinstance(error, WitnessError) and error.exit_status == 1
        assert name in str(error)
        assert error.next_action.startswith(f"`witness fsck {run}`")
