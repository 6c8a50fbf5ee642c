"""The whole path as a trainer, a verifier and a reader walk it: real processes, exit statuses, the keys of --json."""

import json
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from e2e.command import SMALL_GPT, environment, require_calm, serve, witness

from witness.cli import COMMANDS

STEPS = 12


@dataclass(frozen=True, slots=True)
class Walked:
    """What a trainer and two verifiers made."""

    folder: Path
    keys: dict[str, str]
    trained: Any
    sessions: list[Any]

    @property
    def run(self) -> Path:
        return self.folder / "run"

    def certificate(self, number: int) -> Path:
        return self.folder / f"{number}.cert"


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    """keygen, train, serve, and two verifications of the address by two verifiers."""
    folder = tmp_path_factory.mktemp("path")
    keys = {}
    for name in ("trainer", "first", "second"):
        made = witness("keygen", folder / name, "--name", name, "--json", status=0).json
        assert made == {"public": made["public"], "private_file": str(folder / name), "name": name}
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
        keys[name] = made["public"]
    train = ("train", "gpt", "--out", folder / "run", "--steps", STEPS, "--key", folder / "trainer", *SMALL_GPT)
    trained = witness(*train, "--checkpoint-every", 5, "--json", status=0).json
    sessions = []
    with serve(folder / "run", "--key", folder / "trainer") as url:
        for number, verifier in enumerate(("first", "second")):
            draws = ("--rounds", 1, "--round-size", 3, "--key", folder / verifier)
            sessions.append(witness("verify", url, *draws, "--out", folder / f"{number}.cert", "--json", status=0).json)
    return Walked(folder, keys, trained, sessions)


def test_what_train_says(walked: Walked) -> None:
    said = walked.trained
    assert set(said) == {"run", "folder", "steps", "finished", "final", "head", "loss", "key", "seconds", "warnings"}
    assert said["steps"] == {"promised": STEPS, "recorded": STEPS}
    assert said["finished"] is True
    assert said["key"] == walked.keys["trainer"]
    assert said["head"].startswith(f"training-witness/v1/{said['run']}\n")
    assert not (walked.run / "key").exists(), "a key that was named is not copied into the run"


def test_what_inspect_and_fsck_say(walked: Walked, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    said = witness("inspect", walked.run, "--html", page, "--json", status=0).json
    for key in ("run", "steps", "key"):
        assert said[key] == walked.trained[key]
    assert said["final"]["state_root"] == walked.trained["final"]["state_root"]
    assert said["head"]["note"] == walked.trained["head"]
    assert said["losses"]["count"] == STEPS
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    said = witness("fsck", walked.run, "--json", status=0).json
    assert said["findings"] == []
    assert said["counts"]["entries"] == int(walked.trained["head"].splitlines()[1])
    assert said["counts"]["checkpoints"] == 4  # before step 1, after 5, 10 and 12


def test_what_verify_says(walked: Walked) -> None:
    for said, verifier in zip(walked.sessions, ("first", "second"), strict=True):
        assert said["verdict"] == "reproduced"
        assert said["bound_by"] == "statement"
        assert said["run"] == walked.trained["run"]
        assert said["final"] == walked.trained["final"]
        assert said["trainer"] == walked.keys["trainer"]
        assert said["verifier"] == walked.keys[verifier]
        assert said["steps"] == STEPS
        assert said["draws"] == {"made": 3, "owed": 3, "counted": 3}
        assert said["detection"] == "0.250000"  # one bad step of twelve, three draws
        assert said["missing"] == said["failures"] == said["failed"] == []
    assert walked.sessions[0]["head"] == walked.sessions[1]["head"]


def test_what_check_says(walked: Walked) -> None:
    both = (walked.certificate(0), walked.certificate(1))
    held = ("--run", walked.run, "--released", walked.run / "model.safetensors")
    said = witness("check", *both, *held, "--json", status=0).json
    assert said["held_to_run"] is True
    assert said["released_weights"] == "as committed"
    assert said["sum"] == {
        "verdict": "reproduced",
        "sessions": 2,
        "draws": [3, 3],
        "detection": "0.437500",  # two independent sessions of 1/4
        "bad_fraction": "0.01",
        "confidence": "0.99",
    }
    assert [c["verdict"] for c in said["certificates"]] == ["reproduced", "reproduced"]
    # one certificate given twice is one session
    assert witness("check", both[0], both[0], "--json", status=0).json["sum"]["draws"] == [3]
    # only from verifiers whom the reader knows
    witness("check", both[0], "--key", walked.keys["first"], status=0)
    assert witness("check", both[0], "--key", walked.keys["second"], "--json").told() == (1, "envelope-unsigned")
    text = witness("check", *both, *held, status=0).out
    assert "REPRODUCED" in text
    assert "Not claimed:" in text


def test_what_the_commands_tell_people(walked: Walked) -> None:
    ended = witness("verify", walked.run, "--rounds", 1, "--round-size", 2, status=0)
    assert "REPRODUCED" in ended.out
    assert "mandatory challenges and 2 random draws of 12 steps" in ended.err
    assert "would have been rejected by now with probability" in ended.err
    assert "Claimed:" in ended.out
    assert "Not claimed:" in ended.out
    assert walked.trained["run"] in witness("inspect", walked.run, status=0).out
    assert "CLEAN" in witness("fsck", walked.run, status=0).out


def test_another_file_than_the_released_one_is_refused(walked: Walked, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    data = bytearray((walked.run / "model.safetensors").read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    check = ("check", walked.certificate(0), "--run", walked.run, "--json")
    assert witness(*check, "--released", other).told() == (1, "released-weights")
    other.write_bytes(b"")
    assert witness(*check, "--released", other).told() == (1, "state-file")
    assert witness("check", walked.certificate(0), "--released", other, "--json").told() == (64, "usage")


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    ended = witness(command, "--help", status=0)
    assert "Usage:" in ended.out
    assert ended.err == ""


def test_help_lists_every_command() -> None:
    assert {"keygen", "train", "inspect", "fsck", "serve", "verify", "check", "demo"} <= COMMANDS.keys()
    listed = witness("--help", status=0).out
    assert all(f"  {command}" in listed for command in COMMANDS)
    assert witness("--version", status=0).out.startswith("witness, version ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("keygen",),
        ("train", "gpt"),
        ("train", "missing.py:Class", "--out", "{tmp}/r"),
        ("train", "gpt", "--out", "{tmp}/r", "--steps", "0"),
        ("train", "gpt", "--out", "{tmp}/r", "--set", "no-equals-sign"),
        ("train", "gpt", "--out", "{tmp}/r", "--set", "no_such_setting=1"),
        ("train", "gpt", "--out", "{tmp}/r", "--data", "{tmp}/none"),
        ("train", "gpt", "--out", "{tmp}/r", "--resume"),
        ("inspect", "{tmp}/none"),
        ("fsck", "{tmp}/none"),
        ("serve", "{tmp}/none"),
        ("verify", "{tmp}/none"),
        ("verify", "{tmp}", "--budget", "soon"),
        ("verify", "{tmp}", "--confidence", "certain"),
        ("verify", "http://"),
        ("verify", "ftp://host/"),
        ("check",),
        ("check", "{tmp}/none"),
        ("no-such-command",),
        ("verify", "--no-such-option"),
    ],
    ids=lambda arguments: " ".join(arguments)[:50],
)
def test_usage_errors(arguments: tuple[str, ...], tmp_path: Path) -> None:
    ended = witness(*(part.format(tmp=tmp_path) for part in arguments), status=64)
    assert ended.out == ""
    assert "next: " in ended.err or "Usage:" in ended.err
    assert not (tmp_path / "r").exists() or not list((tmp_path / "r").glob("log*"))


def test_nothing_is_overwritten(walked: Walked) -> None:
    assert witness("keygen", walked.folder / "first", "--json").told() == (64, "key-exists")
    assert witness("train", "gpt", "--out", walked.run, "--json").told() == (64, "run-exists")
    resume = ("train", "gpt", "--out", walked.run, "--resume", "--key", walked.folder / "trainer", "--json")
    assert witness(*resume).told() == (64, "run-finished")
    verify = ("verify", walked.run, "--out", walked.certificate(0), "--json")
    assert witness(*verify).told() == (64, "certificate-exists")


def test_a_run_is_served_with_its_own_key_only(walked: Walked) -> None:
    assert witness("serve", walked.run, "--key", walked.folder / "first", "--json").told() == (64, "other-key")
    assert witness("serve", walked.run, "--json").told() == (64, "key-missing")


def test_the_console_script_is_the_module(walked: Walked, tmp_path: Path) -> None:
    """Also where the command starts its interpreter again, in the environment of the profile."""
    script = Path(sys.executable).with_name("witness")
    start = [str(script)] if script.exists() else [sys.executable, "-c", "from witness.cli import main; main()"]

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*start, *map(str, arguments)], check=False, capture_output=True, text=True, env=environment(), cwd=tmp_path
        )
        require_calm(tuple(map(str, arguments)), done.stdout, done.stderr)
        return done

    check = ("check", walked.certificate(0), "--run", walked.run, "--json")
    done = run(*check)
    assert (done.returncode, done.stdout) == (0, witness(*check).out)
    assert run("check", tmp_path / "none").returncode == 64
    done = run("train", "gpt", "--out", "run", "--steps", STEPS, *SMALL_GPT, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["final"] == walked.trained["final"]


def test_a_reader_who_hangs_up_is_told_no_verdict(walked: Walked) -> None:
    """`witness check CERT | head -0`: exit status 0 would say reproduced, 1 diverged."""
    reading = subprocess.Popen(
        [sys.executable, "-m", "witness", "check", str(walked.certificate(0))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    reading.stdout.close()  # type: ignore[union-attr]
    err = reading.stderr.read()  # type: ignore[union-attr]
    assert reading.wait(20) == 2
    assert err == ""
    reading.stderr.close()  # type: ignore[union-attr]


def test_a_copied_run_is_the_same_run(walked: Walked, tmp_path: Path) -> None:
    copy = shutil.copytree(walked.run, tmp_path / "elsewhere")
    said = witness("check", walked.certificate(0), "--run", copy, "--json", status=0).json
    assert said["held_to_run"] is True
