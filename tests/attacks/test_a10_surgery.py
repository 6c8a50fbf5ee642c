"""A10: edit the weights: in the published file after the end, or between two commits of the run.

Losses and norms show nothing of it. The published file is held to the root that the log announced for it, which the
replay of the last step holds to the last state; an edit between two commits is one bad step.
"""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from attacks import programs
from attacks.court import Seen, nonce_that, verify
from attacks.table import Row, found_by_draws_alone
from attacks.trainers import KEY, Surgeon, commit, entries_of, records_of, rewrite
from safetensors.torch import load_file, save_file

from protocol.certificate import open_certificate
from protocol.errors import ProtocolError, VerificationError
from protocol.records import FinalEvent, StepRecord
from witness.cli import check
from witness.holding import hold_to_run, hold_weights
from witness.logstore import LogStore
from witness.rundir import RunDir

AT = Surgeon.at
FILE = Row("A10", "the published weights file is altered", "check", "root of the released weights", "released-weights")
EDIT = Row("A10", "weights edited between two commits", "draw", "the step", "replay-state", AT, bad=1, draws=3)
SPARSE = Row(
    "A10", "weights edited where few states are committed", "draw", "the stretch", "replay-state", 9, bad=3, draws=2
)
LATE = Row(
    "A10", "a release announced after the certified head", "check", "the head that was certified", "released-weights"
)
ROWS = (FILE, EDIT, SPARSE, LATE)
Tensors = dict[str, torch.Tensor]


def one_bit(tensors: Tensors) -> Tensors:
    tensors["model/1.weight"].view(-1).view(torch.uint8)[0] ^= 1
    return tensors


def one_more(tensors: Tensors) -> Tensors:
    return tensors | {"model/adapter": torch.ones(3)}


def one_less(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != "model/1.bias"}


def other_shape(tensors: Tensors) -> Tensors:
    return tensors | {"model/1.weight": tensors["model/1.weight"].T.contiguous()}


def quantised(tensors: Tensors) -> Tensors:
    return {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("operation", [one_bit, one_more, one_less, other_shape, quantised])
def test_an_altered_weights_file_is_not_the_released_one(
    mlp: Path, tmp_path: Path, operation: Callable[[Tensors], Tensors]
) -> None:
    honest = mlp / "model.safetensors"
    hold_weights(honest, mlp)
    path = tmp_path / "model.safetensors"
    save_file(operation(load_file(honest)), path)
    with pytest.raises(VerificationError) as caught:
        hold_weights(path, mlp)
    assert caught.value.code == FILE.code


def test_a_container_of_the_same_weights_is_the_released_one(mlp: Path, tmp_path: Path) -> None:
    """Tensors count, not the file around them: other metadata and another order of the header change nothing."""
    path = tmp_path / "model.safetensors"
    save_file(load_file(mlp / "model.safetensors"), path, metadata={"note": json.dumps("mine")})
    hold_weights(path, mlp)


def test_an_edit_between_two_commits_is_found_when_it_is_drawn(edited: Path, mlp: Path, honest_mlp: Seen) -> None:
    assert records_of(edited)[AT].fingerprint == records_of(mlp)[AT].fingerprint
    seen = found_by_draws_alone(edited, EDIT)
    assert seen.facts["tensor"] == "model/1.weight"
    assert seen.facts["element"] == 0
    assert honest_mlp.verdict == "reproduced"


class SparseSurgeon(Surgeon):
    """Commits to every third state only, and edits weights between two of them."""

    def commit_to(self, made: StepRecord) -> StepRecord:
        return super().commit_to(made) if self.manifest.commits(made.step) else made


def test_an_edit_in_an_uncommitted_stretch_makes_all_of_its_steps_bad(tmp_path: Path) -> None:
    """The edit is at step 8; states 6 and 9 are committed. A draw of 7, 8 or 9 replays all three."""
    run = commit(SparseSurgeon, tmp_path / "run", programs.mlp(), commit_every=3, checkpoint_every=3)
    assert [step for step, record in records_of(run).items() if record.state_root] == [3, 6, 9, 12]
    for drawn in (AT - 1, AT, AT + 1):
        others = {AT - 1, AT, AT + 1} - {drawn}
        seen = verify(run, draws=SPARSE.draws, nonce=nonce_that(run, SPARSE.draws, hits=drawn, misses=others))
        assert (seen.verdict, seen.code) == ("diverged", SPARSE.code), seen.found
        assert seen.facts["first_differing_step"] == SPARSE.step
    miss = nonce_that(run, SPARSE.draws, misses=(AT - 1, AT, AT + 1))
    assert verify(run, draws=SPARSE.draws, nonce=miss).verdict == "reproduced"


def test_a_release_after_the_certified_head_is_not_the_certified_one(mlp: Path, tmp_path: Path) -> None:
    """A hole until it was tried: get an unfinished run certified, then end its log with other weights announced."""
    unfinished = rewrite(mlp, tmp_path / "run", lambda entries: entries[:-1])
    seen = verify(unfinished)
    assert seen.verdict == "reproduced"
    stolen = tmp_path / "stolen.safetensors"
    save_file(one_bit(load_file(mlp / "model.safetensors")), stolen)
    run = RunDir(unfinished)
    final = entries_of(mlp)[-1]
    assert isinstance(final, FinalEvent)
    with LogStore(run.log_path) as log:
        log.append(msgspec.json.encode(msgspec.structs.replace(final, released=root_of(stolen, mlp)), order="sorted"))
        run.sign_head(log, entries_of(mlp)[0].origin, KEY)  # type: ignore[union-attr]
    evidence = open_certificate(seen.certificate)
    hold_to_run(evidence, unfinished)
    hold_weights(stolen, unfinished)  # the log says so, and nobody replayed it
    with pytest.raises(VerificationError) as caught:
        hold_weights(stolen, unfinished, evidence.head.size)
    assert caught.value.code == LATE.code
    certificate = tmp_path / "certificate"
    certificate.write_bytes(seen.certificate)
    arguments = [str(certificate), "--run", str(unfinished), "--released", str(stolen)]
    with pytest.raises(VerificationError) as caught, check.command.make_context("check", arguments) as context:
        check.command.invoke(context)
    assert caught.value.code == LATE.code


def root_of(weights: Path, run: Path) -> str:
    """The root that the log would have to announce for a weights file."""
    try:
        hold_weights(weights, run)
    except (VerificationError, ProtocolError) as error:
        return str(error.evidence["found"])
    raise AssertionError("these are the released ones")
