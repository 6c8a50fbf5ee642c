"""`witness demo leak`, from a copy of the sources alone, in an environment that knows of nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_leak_is_shown_by_name_with_proofs_that_hold_alone(tmp_path: Path) -> None:
    for package in ("protocol", "witness"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "witness", "demo", "leak", "--out", "leak"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert "reproduced; 50 documents asked about, 10 proven absent, 40 found" in lines
    assert "reproduced; 50 documents asked about, 50 proven absent, 0 found" in lines
    assert "50 proof files: 40 of use, 10 of absence" in lines
    alone = [line for line in lines if line.startswith("in a folder with that proof and the signed head alone: ")]
    assert [line.rpartition(" ")[2] for line in alone] == ["included", "absent"]
    assert any(line.startswith("diverged: caught by ledger-root") for line in lines)
    assert any(line.startswith("an audit: differs; ledger t0-sha256: ") for line in lines)
    assert any("by 8 draws, with probability 0.4" in line for line in lines)
    named = [line.removeprefix("in training: ") for line in lines if line.startswith("in training: ")]
    leaked = {path.name for path in (tmp_path / "leak/training-leaky").iterdir()}
    validation = {path.name for path in (tmp_path / "leak/validation").iterdir()}
    assert named and set(named) <= leaked & validation and len(leaked & validation) == 40
    assert sorted(path.name for path in (tmp_path / "leak/proofs-leaky-alone").iterdir()) == ["head", "proof"]
