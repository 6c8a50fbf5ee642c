"""A12: pass a stolen model off as trained from scratch.

Everything after the start is honest training, so no draw can find it: the one false thing is the claim that the
initial state is what `build` makes from the seed. It is built again in every session.
"""

from pathlib import Path

import numpy as np
import pytest
from attacks import programs
from attacks.court import Seen, verify
from attacks.table import Row, caught
from attacks.trainers import Cheater, StolenStart, commit, entries_of

from protocol.manifest import Manifest

COMMITTED = Row(
    "A12", "the initial state is a stolen model", "mandatory", "initial state", "init-diverged", 0, draws=programs.STEPS
)
LOADED = Row(
    "A12", "build loads weights from outside the committed sources", "sandbox", "no such file there", "replay-failed"
)
ROWS = (COMMITTED, LOADED)


def test_the_initial_state_is_built_again_from_the_seed(tmp_path: Path, honest_mlp: Seen) -> None:
    run = commit(StolenStart, tmp_path / "run", programs.mlp())
    seen = verify(run)
    caught(seen, COMMITTED)
    assert seen.facts["tensor"] == "model/0.0.weight"
    assert honest_mlp.verdict == "reproduced"
    # Even a replay of every step finds nothing else: the rest of the run is honest.
    everything = verify(run, draws=COMMITTED.draws, keep_going=True)
    assert COMMITTED.by_draws == 0
    assert [step for step, _ in everything.found] == [0]


def test_a_build_that_reads_a_file_of_the_trainers_cannot_be_replayed(tmp_path: Path) -> None:
    weights = tmp_path / "pretrained.bin"
    weights.write_bytes(np.arange(12, dtype=np.float32).tobytes())
    thief = programs.stranger(tmp_path / "thief", str(weights), name="stranger_thief")
    run = commit(
        Cheater, tmp_path / "run", thief
    )  # the trainer's machine has the file, so that the recorder sees nothing wrong
    seen = verify(run, trust=digest_of(run))
    assert weights.exists()
    caught(seen, LOADED)
    assert "PermissionError" in seen.found[0][1].message or "FileNotFoundError" in seen.found[0][1].message


@pytest.mark.parametrize("trusted", [True, False])
def test_the_same_program_without_the_file_reproduces_with_consent_only(tmp_path: Path, trusted: bool) -> None:
    run = commit(Cheater, tmp_path / "run", programs.stranger(tmp_path / "own", name=f"stranger_{trusted}"))
    seen = verify(run, trust=digest_of(run) if trusted else "00" * 32)
    assert seen.verdict == ("reproduced" if trusted else "incomplete")
    assert seen.code == ("" if trusted else "program-not-trusted")


def digest_of(run: Path) -> str:
    """What a verifier consents to."""
    manifest = entries_of(run)[0]
    assert isinstance(manifest, Manifest)
    return manifest.program.digest.hex()
