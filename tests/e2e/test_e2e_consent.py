"""A program that comes with a run: read first, run by consent; of many files; and what is missing blames nobody."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from e2e import programs, recording
from e2e.command import environment, require_calm, start, witness
from e2e.lab import Lab
from e2e.verifying import verify

from witness.rundir import RunDir

pytestmark = pytest.mark.usefixtures("warm")

SCRIPT = """
with witness.record("runs/small", Small(), {rows}, key=None) as run:
    for batch in run:
        loss = run.step(batch)
print("done", run.step_number)
"""


def test_a_program_is_run_after_consent_only(lab: Lab, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    mark = f"import contextlib, pathlib\nwith contextlib.suppress(OSError): pathlib.Path({str(marker)!r}).touch()"
    source = programs.write(tmp_path / "source", above=mark)
    digest = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run").value["digest"]
    assert marker.exists(), "it marks where it runs freely"
    marker.unlink()
    command = ("verify", tmp_path / "run", "--rounds", 1, "--round-size", 2)
    for trust in ((), ("--trust-program", "0" * 64)):
        ended = witness(*command, *trust, "--json", status=2)
        assert ended.json["verdict"] == "incomplete"
        assert ended.json["draws"]["counted"] == 0
        found = [row for row in ended.json["failed"] if row["code"] != "not-run"]
        assert [row["code"] for row in found] == ["program-not-trusted"]
        assert found[0]["evidence"] == {"program": "small:Small", "digest": digest, "files": ["small.py"]}
        ended = witness(*command, *trust, status=2)
        assert f"--trust-program {digest}" in ended.err
        assert f"small.py  {source.stat().st_size} bytes" in ended.err
        assert "INCOMPLETE" in ended.out and len(ended.out.splitlines()) < 12
        assert (ended.out + ended.err).count(digest) == 1, "once, where it is to be copied"
        assert (f"{'0' * 64!r} is not its digest" in ended.out) == bool(trust)
        assert f"The files are in {tmp_path / 'run' / 'program'}" in ended.err
    assert witness(*command, "--trust-program", digest, "--json", status=0).json["verdict"] == "reproduced"
    assert not marker.exists(), "with consent it runs too, but only where it can leave no mark"


def test_a_program_behind_http_can_be_read_before_it_is_run(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source")
    lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    with start("serve", tmp_path / "run", "--port", 0, "--json") as server:
        server.until(lambda: "url" in server.out)
        command = ("verify", json.loads(server.out)["url"], "--rounds", 1, "--round-size", 1)
        assert "--save-program DIR" in witness(*command, status=2).err
        saved = tmp_path / "saved"
        ended = witness(*command, "--save-program", saved, status=2)
        assert f"The files are in {saved}" in ended.err
        assert {path.name: path.read_bytes() for path in saved.iterdir()} == {"small.py": source.read_bytes()}
        assert witness(*command, "--save-program", saved, "--json").told() == (64, "usage")  # it is read, not mixed


def test_a_missing_set_to_exclude_is_named_at_once(tmp_path: Path) -> None:
    ended = witness("verify", tmp_path / "no-run", "--exclude", tmp_path / "nope", "--json")
    assert ended.told() == (64, "file-unreadable")
    assert str(tmp_path / "nope") in ended.error["message"]


def test_a_script_that_trains_is_a_program(tmp_path: Path) -> None:
    """The loop of the README: a class, then the recording, at the top level of one file."""
    rows = [list(row) for row in recording.ROWS]
    script = programs.write(tmp_path, "small.py", below=SCRIPT.format(rows=f"[bytes(row) for row in {rows}]"))
    done = subprocess.run(
        [sys.executable, str(script)],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1"),
    )
    require_calm((str(script),), done.stdout, done.stderr)
    assert (done.returncode, done.stdout) == (0, "done 4\n"), done.stderr
    run = tmp_path / "runs" / "small"
    head = RunDir(run).latest_head()
    digest = RunDir(run).manifest().program.digest.hex()
    assert verify(run, trust=digest).verdict == "reproduced"
    # the command line takes the class and leaves the recording in the file alone
    (tmp_path / "data").mkdir()
    for number, row in enumerate(recording.ROWS):
        (tmp_path / "data" / f"{number:03}").write_bytes(row)
    train = ("train", f"{script}:Small", "--threads", 1, "--data", tmp_path / "data", "--out", tmp_path / "again")
    said = witness(*train, "--json", status=0, cwd=tmp_path).json
    assert said["steps"]["recorded"] == 4
    assert RunDir(run).latest_head() == head
    assert RunDir(tmp_path / "again").manifest().program.digest.hex() == digest


def test_a_program_may_be_many_files(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "source"
    source = programs.write(
        folder,
        above="import losses\nfrom parts.deep import scale\nimport parts.more as more",
        loss="loss = losses.weighted(loss) * scale.FACTOR * more.FACTOR",
    )
    (folder / "losses.py").write_text("from parts.deep.scale import FACTOR\ndef weighted(loss): return loss * FACTOR\n")
    (folder / "parts" / "deep").mkdir(parents=True)
    (folder / "parts" / "__init__.py").touch()
    (folder / "parts" / "more.py").write_text("from . import deep\nFACTOR = deep.FACTOR\n")
    (folder / "parts" / "deep" / "__init__.py").write_text("FACTOR = 0.5\n")
    (folder / "parts" / "deep" / "scale.py").write_text("FACTOR = 2.0\n")
    (folder / "unrelated.py").write_text("raise SystemExit('nobody imports this')\n")
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "", report
    listed = [file.path for file in RunDir(tmp_path / "run").manifest().program.files]
    assert listed == [
        *("losses.py", "parts/__init__.py", "parts/deep/__init__.py", "parts/deep/scale.py", "parts/more.py"),
        "small.py",
    ]
    outcome = verify(tmp_path / "run", trust=report.value["digest"])
    assert outcome.verdict == "reproduced", outcome.found


@pytest.mark.parametrize(
    "parts",
    [{"above": "import somebodys_package"}, {"step": "import somebodys_package"}],
    ids=["imported at the top", "imported in a step"],
)
def test_a_package_that_the_verifier_lacks_accuses_nobody(parts: dict[str, str], lab: Lab, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "somebodys_package.py").touch()
    source = programs.write(tmp_path / "source", **parts)
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run", search=[str(site)])
    assert report.error == "", report
    outcome = verify(tmp_path / "run", trust=report.value["digest"])
    assert outcome.verdict == "incomplete", outcome.found
    assert set(outcome.codes) == {"program-load"}
    assert all("somebodys_package" in result.message for _, result in outcome.found)
    assert not outcome.evidence.draws


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ({"step": "raise ValueError('a mistake')"}, "ValueError at small.py:"),
        ({"build": "model.weight.no_such_method()"}, "AttributeError at small.py:"),
        ({"above": "import no_such_module"}, "ModuleNotFoundError"),
        ({"above": "def f(:"}, "SyntaxError"),
        ({"above": "raise SystemExit(0)"}, "SystemExit"),
    ],
)
def test_a_program_that_fails_is_shown_its_own_line(parts: dict[str, str], where: str, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", **parts)
    (tmp_path / "data").write_bytes(b"seven bytes" * 9)
    ended = witness("train", f"{source}:Small", "--data", tmp_path / "data", "--out", tmp_path / "run", "--json")
    assert ended.told() == (64, "program")
    assert where in ended.error["message"]
