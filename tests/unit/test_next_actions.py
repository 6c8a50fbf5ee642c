"""What a person is told to do next helps: it names the slip, and can be pasted where it is a command."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from protocol.errors import EXIT_USAGE, WitnessError
from witness import training
from witness.cli import group
from witness.cli.train import _again
from witness.cli.train import command as train
from witness.ledgers import keys_of
from witness.programs.gpt import GPT
from witness.rundir import RunDir
from witness.statefile import write_bytes


def refused(*arguments: object) -> WitnessError:
    error = CliRunner().invoke(group, list(map(str, arguments))).exception
    assert isinstance(error, WitnessError), error
    return error


def test_a_missing_folder_is_to_be_made(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for error in (refused("keygen", gone / "a.key"), refused("verify", "run", "--out", gone / "a.cert")):
        assert (error.code, error.exit_status) == ("disk", EXIT_USAGE)
        assert str(gone) in error.next_action and "resume" not in error.next_action
    with pytest.raises(WitnessError) as caught:
        write_bytes(gone / "page.html", b"")
    assert f"make the folder {gone}" in caught.value.next_action
    (tmp_path / "taken").mkdir()
    with pytest.raises(WitnessError) as other:
        write_bytes(tmp_path / "taken", b"")  # a disk that refuses for another reason
    assert "make the folder" not in other.value.next_action


@pytest.mark.parametrize(
    "slip",
    [["--piece", "5"], ["--piece", "6000"], ["--ledger", "t2-foo"], ["--set", "layers"]],
    ids=lambda slip: " ".join(slip),
)
def test_options_of_train_are_usage(slip: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(group, ["train", "gpt", "--out", str(tmp_path / "run"), *slip])
    assert isinstance(done.exception, SystemExit) and "Usage:" in done.output
    assert not (tmp_path / "run").exists()


def test_a_policy_that_cannot_be_is_usage() -> None:
    error = refused("verify", "run", "--confidence", "2")
    assert error.exit_status == EXIT_USAGE and "0.01" in error.next_action


@pytest.mark.parametrize(
    ("name", "example"), [("char.py", "char.py:Char"), ("char:Small", "char.py:Small"), ("chars", "char.py:Char")]
)
def test_an_example_names_file_and_class(name: str, example: str) -> None:
    with pytest.raises(WitnessError) as caught:
        training.find_program(name)
    assert example in caught.value.next_action


def test_tiers_are_listed_where_there_is_no_run_yet() -> None:
    with pytest.raises(WitnessError) as caught:
        list(keys_of("foo", iter([b"text"]), 4))
    assert "t0-sha256" in caught.value.next_action and "inspect" not in caught.value.next_action


def test_data_that_is_not_there(tmp_path: Path) -> None:
    action = refused("data", "commit", tmp_path / "nope").next_action
    assert "path" in action and "list" not in action


def test_which_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(WitnessError) as caught:
        RunDir.open(tmp_path / "nope")
    assert "witness train --out FOLDER" in caught.value.next_action


def test_a_program_that_raises(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "from witness import Program\nclass Small(Program):\n    def build(self): 1 / 0\n"
    )
    kind = training.find_program(f"{tmp_path}/broken.py:Small")
    try:
        kind.build(None)  # type: ignore[arg-type]
    except ZeroDivisionError as error:
        told = [training.of_program(error, kind, {}, begun=begun) for begun in (False, True)]
    first, later = (one.next_action for one in told if one is not None)
    assert "--resume" not in first and "start again" in first
    assert "--resume" in later


def test_a_setting_that_does_not_fit_is_not_the_programs_fault() -> None:
    with pytest.raises(AttributeError) as caught:
        GPT(SimpleNamespace())  # type: ignore[arg-type]
    found = training.of_program(caught.value, GPT, {"layers": "x"}, begun=False)
    assert found is not None and "layers=x" in found.next_action and "mend" not in found.next_action


def test_what_continues_a_run_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = [
        "a b.py:Small",
        "--out",
        "runs/c 2",
        "--steps",
        "30",
        "--set",
        "x=[1, 2]",
        "--set",
        "y=1",
        "--key",
        "k",
        "--json",
    ]
    seen: list[Any] = []
    monkeypatch.setattr(train, "callback", click.pass_context(lambda ctx, **_: seen.append(_again(ctx))))
    train.main(typed, standalone_mode=False)
    words = shlex.split(seen[0])
    assert words[:2] == ["witness", "train"] and words[-1] == "--resume"
    assert sorted(words[2:-1]) == sorted(typed[:-1])
    context = train.make_context("train", words[2:])
    assert (context.params["resume"], context.params["settings"]) == (True, {"x": "[1, 2]", "y": "1"})
