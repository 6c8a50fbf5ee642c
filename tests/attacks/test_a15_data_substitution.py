"""A15: report the scheduled records, train on others.

What is reported is held to the schedule for every step; what was used shows in the replay. The more of the record
the cheat makes true, the less it can be caught by: in the end only the state is wrong.
"""

from pathlib import Path

import msgspec
import pytest
from attacks import programs
from attacks.court import Seen, audit_of, nonce_that, verify
from attacks.table import Row, caught, found_by_draws_alone
from attacks.trainers import Cheater, commit, rewrite

from protocol import checks
from protocol.errors import VerificationError
from protocol.records import StepRecord
from witness.execute import Outcome, flatten_batch, seed_everything
from witness.program import Program, State
from witness.prover import RunArchive
from witness.recorder import Batch
from witness.rundir import RunDir

AT = 8
NAMED = Row("A15", "other records are reported", "check", "records drawn, every step", "records-digest", AT)
TENSORS = Row(
    "A15",
    "scheduled records reported, the batch used is not made of them",
    "draw",
    "the step",
    "replay-batch",
    AT,
    bad=1,
    draws=3,
)
HIDDEN = Row(
    "A15",
    "records and batch reported as scheduled, others used",
    "draw",
    "the step",
    "replay-state",
    AT,
    bad=1,
    draws=3,
)
ROWS = (NAMED, TENSORS, HIDDEN)


class Substituter(Cheater):
    """At one step, trains on records that were not drawn."""

    shift = 1

    def _execute(
        self, program: Program, state: State, step: int, batch: Batch | None = None
    ) -> tuple[Outcome, list[int]]:
        if step != AT:
            return super()._execute(program, state, step, batch)
        others = [(i + self.shift) % self.corpus.documents.samples for i in self._schedule.indices(step)]
        return super()._execute(program, state, step, Batch(step, others, self.corpus.samples(others)))


class NamesTheScheduled(Substituter):
    def _execute(
        self, program: Program, state: State, step: int, batch: Batch | None = None
    ) -> tuple[Outcome, list[int]]:
        outcome, _ = super()._execute(program, state, step, batch)
        return outcome, self._schedule.indices(step)


class ShowsTheScheduled(NamesTheScheduled):
    def _execute(
        self, program: Program, state: State, step: int, batch: Batch | None = None
    ) -> tuple[Outcome, list[int]]:
        outcome, indices = super()._execute(program, state, step, batch)
        seed_everything(self._seed, step, 0, "batch")
        shown = flatten_batch(program.collate(self.corpus.samples(indices)))
        return Outcome(outcome.loss, outcome.fingerprint, shown, outcome.hyperparameters), indices


def unnoticed(kind: type[Substituter], folder: Path) -> Path:
    """The run with the first other records that make the step no outlier: the cheat knows that rule too (A05)."""
    for shift in range(1, 40):
        kind.shift = shift
        run = commit(kind, folder / f"run{shift}", programs.mlp())
        if AT not in dict(checks.mandatory(audit_of(run), 2)):
            return run
    raise AssertionError("all other records stand out")


def test_reported_records_are_held_to_the_schedule(tmp_path: Path, honest_mlp: Seen) -> None:
    run = commit(Substituter, tmp_path / "run", programs.mlp())
    seen = verify(run)
    caught(seen, NAMED)
    with pytest.raises(VerificationError) as refused:  # and our own software does not even serve it
        RunArchive(RunDir.open(run))
    assert refused.value.code == NAMED.code
    assert seen.found[0][0] == "records"
    assert not seen.evidence.predicate.challenges  # nothing had to be replayed
    assert honest_mlp.verdict == "reproduced"


@pytest.mark.parametrize(("kind", "row"), [(NamesTheScheduled, TENSORS), (ShowsTheScheduled, HIDDEN)])
def test_records_that_were_not_used_are_found_when_the_step_is_drawn(
    tmp_path: Path, kind: type[Substituter], row: Row
) -> None:
    seen = found_by_draws_alone(unnoticed(kind, tmp_path), row)
    assert ("batch" in seen.facts["fields"]) == (row is TENSORS)  # type: ignore[operator]
    assert "state_root" in seen.facts["fields"]  # type: ignore[operator]


def test_a_substituted_batch_is_reported_by_its_own_name(tmp_path: Path, mlp: Path) -> None:
    """The batch alone: states honest, and the batch digest of one record another."""

    def other(entry: object) -> object:
        if isinstance(entry, StepRecord) and entry.step == AT:
            return msgspec.structs.replace(entry, batch="cd" * 32)
        return entry

    run = rewrite(mlp, tmp_path / "run", lambda entries: [other(e) for e in entries])  # type: ignore[arg-type]
    seen = verify(run, draws=3, nonce=nonce_that(run, 3, hits=AT))
    caught(seen, TENSORS)
    assert seen.facts["fields"] == ["batch"]
