"""State where the root cannot see it, and chance that no seed decides: refused by name when the run is recorded.

Otherwise an honest run would fail its verification weeks later.
"""

import shutil
from pathlib import Path

import pytest
from e2e import programs, recording
from e2e.command import witness
from e2e.lab import Lab
from e2e.verifying import verify

from witness.rundir import RunDir

pytestmark = pytest.mark.usefixtures("warm")

DRIFTING = {
    "a global counter": {
        "above": "COUNT = [0]",
        "loss": "COUNT[0] += 1; loss = loss * COUNT[0]",
    },
    "the operating system's randomness": {
        "above": "import os",
        "loss": "loss = loss * (1 + os.urandom(1)[0])",
    },
    "a generator of its own, seeded by nobody": {
        "above": "import random\nOWN = random.Random()",
        "loss": "loss = loss * OWN.random()",
    },
    "a global tensor": {
        "above": "MEAN = torch.zeros(3, 4)",
        "after": "MEAN.mul_(0.9).add_(state.model.weight.detach())\n"
        "        with torch.no_grad(): state.model.weight.add_(MEAN)",
    },
    "a tensor in the closure of a hook": {
        "above": "def growing():\n"
        "    scale = torch.ones(1)\n"
        "    def hook(module, inputs):\n"
        "        scale.add_(1)\n"
        "        return inputs[0] * scale\n"
        "    return hook",
        "build": "model.register_forward_pre_hook(growing())",
    },
    "the clock": {
        "above": "import time",
        "loss": "loss = loss * (time.time_ns() % 1000003)",
    },
    "the state of a module that nobody returned": {
        "above": "HIDDEN = nn.BatchNorm1d(4)",
        "loss": "loss = loss + HIDDEN(batch[:, :4].float()).mean() + HIDDEN.running_mean[0] * state.model.bias.sum()",
    },
}
"""Refused because a step that is executed again comes out differently."""

UNBOUND = {
    "a closure over a tensor": (
        {
            "above": "def made():\n    scale = torch.ones(1)\n    return lambda x: x * scale.add_(1)",
            "build": "model.scaled = made()",
        },
        "model/@attributes",
    ),
    "numpy's generator": ({"above": "import numpy", "parts": ', "rng": numpy.random.default_rng(0)'}, "rng"),
    "an iterator": ({"parts": ', "order": {"of": iter([torch.ones(1)])}'}, "order/of"),
    "an open file": ({"parts": ', "file": open(__file__)'}, "file"),
    "a sparse tensor": ({"parts": ', "sparse": torch.eye(3).to_sparse()'}, "sparse"),
    "a parameter of nobody's": (
        {"parts": ', "second": torch.optim.SGD([torch.zeros(2, requires_grad=True)])'},
        "second",
    ),
}
"""Refused because the root could not bind it, by its place in the state."""


@pytest.mark.parametrize("parts", DRIFTING.values(), ids=DRIFTING.keys())
def test_what_decides_a_step_from_outside_is_found(parts: dict[str, str], lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", **parts)
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "not-self-contained", report
    assert report.evidence["step"] in (1, 2)
    assert report.evidence["tensor"].startswith(("model/", "optimizer/"))
    assert report.evidence["tensor"] in report.message


def test_a_refused_run_says_how_its_folder_is_had_again(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", **DRIFTING["a global counter"])
    command = ("train", f"{source}:Small", "--data", tmp_path / "data", "--out", tmp_path / "run", "--threads", 1)
    (tmp_path / "data").mkdir()
    for number, row in enumerate(recording.ROWS):
        (tmp_path / "data" / f"{number:03}").write_bytes(row)
    refused = witness(*command, "--json", status=64).error
    programs.write(tmp_path / "source")
    for more, code in (((), "run-exists"), (("--resume",), "resume-mismatch")):
        again = witness(*command, *more, "--json", status=64).error
        assert again["error"] == code
        assert f"delete {tmp_path / 'run'}" in refused["next"] and f"delete {tmp_path / 'run'}" in again["next"]
    shutil.rmtree(tmp_path / "run")
    programs.write(tmp_path / "source", above="print('loaded')", after="print('stepped')")
    ended = witness(*command, "--json", status=0)
    assert ended.json["finished"] and "loaded" in ended.err and "stepped" in ended.err
    assert f"delete {tmp_path}" not in witness(*command, status=64).err


@pytest.mark.parametrize(("parts", "place"), UNBOUND.values(), ids=UNBOUND.keys())
def test_what_the_root_cannot_bind_is_refused(parts: dict[str, str], place: str, lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", **parts)
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "unbound-state", report
    assert place in report.message
    # nothing was committed to, and the mended program takes the folder
    programs.write(tmp_path / "source")
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "", report


def test_what_is_seeded_or_part_of_the_state_is_welcome(lab: Lab, tmp_path: Path) -> None:
    """The global generators are seeded for each step; a generator, a counter and a mean in the state are bound."""
    source = programs.write(
        tmp_path / "source",
        above="import random\nimport numpy",
        build="generator = torch.Generator().manual_seed(3)",
        parts=', "generator": generator, "mean": torch.zeros(3, 4), "seen": {"rows": [0], "last": torch.zeros(())}',
        loss="state.seen['rows'][0] += len(batch); "
        "loss = loss * torch.rand(1, generator=state.generator).sum() * (random.random() + numpy.random.rand())",
        after="state.mean.mul_(0.5).add_(state.model.weight.detach()); state.seen['last'].copy_(loss.detach())",
    )
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "", report
    outcome = verify(tmp_path / "run", draws=4, trust=report.value["digest"])
    assert outcome.verdict == "reproduced", outcome.found


def test_what_shows_later_is_found_by_the_verifier(lab: Lab, tmp_path: Path) -> None:
    """The recorder tries two steps; state that works from the third on makes an honest run diverge, at that step."""
    source = programs.write(
        tmp_path / "source", above="COUNT = [0]", loss="COUNT[0] += 1; loss = loss * max(1, COUNT[0] - 3)"
    )
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "", report
    outcome = verify(tmp_path / "run", draws=4, trust=report.value["digest"])
    assert outcome.verdict == "diverged"
    assert outcome.found[0][1].evidence["first_differing_step"] == 3


COMPILED = "model = torch.compile(model, backend={backend!r})"


def test_compiling_without_determinism_is_refused_by_name(lab: Lab, tmp_path: Path) -> None:
    build = COMPILED.format(backend="eager") + "\n        torch.use_deterministic_algorithms(False)"
    source = programs.write(tmp_path / "source", build=build)
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run")
    assert report.error == "compile-nondeterministic", report
    assert report.evidence["compiled"] == "model"
    assert not (tmp_path / "run" / "log.sqlite").exists()


def test_a_compiled_program_is_recorded_and_replayed(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", build=COMPILED.format(backend="eager"))
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run", steps=2)
    assert report.error == "", report
    assert RunDir(tmp_path / "run").manifest().profile.switches["compile"] == "compiled"
    outcome = verify(tmp_path / "run", draws=1, trust=report.value["digest"])
    assert outcome.verdict == "reproduced", outcome.found


@pytest.mark.skipif(shutil.which("g++") is None, reason="the default back end needs a C++ compiler")
def test_a_compiler_that_a_sandbox_lacks_accuses_nobody(lab: Lab, tmp_path: Path) -> None:
    source = programs.write(tmp_path / "source", build=COMPILED.format(backend="inductor"))
    report = lab.run(recording.run_program, f"{source}:Small", tmp_path / "run", steps=2)
    assert report.error == "", report
    outcome = verify(tmp_path / "run", draws=1, trust=report.value["digest"])
    assert outcome.verdict == "incomplete", outcome.found
    assert "compiler" in outcome.codes
    assert "\n" not in outcome.found[0][1].message
    assert "torch.compile fails in the sandbox" in outcome.found[0][1].message
