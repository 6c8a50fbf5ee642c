"""Sets the numeric environment before torch is imported, and shares what is slow: honest runs, and one warm sandbox."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from witness.environment import recommended_environment

if "torch" not in sys.modules:  # libraries read these once; a run that is recorded under others replays under those
    os.environ.update(recommended_environment(1))

from attacks import programs
from attacks.court import Seen, verify
from attacks.trainers import Cheater, Surgeon, commit

from witness import sandbox


@pytest.fixture(scope="session", autouse=True)
def _warm_sandbox() -> Iterator[None]:
    """One sandbox for all runs of one environment: each job is a new process of it, as always; torch loads once."""
    made = sandbox.Sandbox
    warm: dict[str, sandbox.Sandbox] = {}

    class Lasting(made):
        def close(self) -> None:
            """Stays: the next verification uses it."""

    def shared(**how: object) -> sandbox.Sandbox:
        if how.get("readable"):
            return made(**how)
        return warm.setdefault(repr(sorted(how.items())), Lasting(**how))

    patch = pytest.MonkeyPatch()
    patch.setattr(sandbox, "Sandbox", shared)
    yield
    patch.undo()
    for one in warm.values():
        made.close(one)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs lie that several files use."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def gpt(folder: Path) -> Path:
    """The honest run of the small GPT (AdamW): the twin of every cheat on it."""
    return commit(Cheater, folder / "gpt", programs.gpt())


@pytest.fixture(scope="session")
def mlp(folder: Path) -> Path:
    """The honest run of the small perceptron (SGD with momentum)."""
    return commit(Cheater, folder / "mlp", programs.mlp())


@pytest.fixture(scope="session")
def edited(folder: Path) -> Path:
    """The honest perceptron's run with one bad step that stands out in nothing: what a prover would like to hide."""
    return commit(Surgeon, folder / "edited", programs.mlp())


@pytest.fixture(scope="session")
def honest_gpt(gpt: Path) -> Seen:
    """What a verifier sees of the honest GPT: the tests that compare a cheat with it can fail."""
    return verify(gpt, draws=4)


@pytest.fixture(scope="session")
def honest_mlp(mlp: Path) -> Seen:
    """What a verifier sees of the honest perceptron."""
    return verify(mlp, draws=4)
