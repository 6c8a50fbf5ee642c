"""A20: include data at a learning rate of zero, so that it counts as used and teaches nothing."""

from fractions import Fraction
from pathlib import Path

import pytest
from attacks.asking import ask
from attacks.table import Row
from made_run import made_run

from protocol.answer_terms import found_facts
from protocol.answering import Found
from witness.rundir import RunDir

TEXTS = [b"document %d, of the usual kind." % i for i in range(12)]
IDLE = Row(
    "A20", "the learning rate is zero at every step that reads it", "answer", "recorded learning rates", "included"
)
ROWS = (IDLE,)


def found(run: RunDir, text: bytes) -> Found:
    reply = ask(run, text)
    assert reply.result == "included"
    return reply.found[0]


@pytest.mark.parametrize("name", ["learning_rate", "lr"])
def test_a_document_read_at_rate_zero_only_is_reported_as_without_influence(tmp_path: Path, name: str) -> None:
    run = made_run(tmp_path / "run", TEXTS, steps=3, rate=lambda step: 0.0 if step == 2 else 0.25, name=name)
    idle = [one for text in TEXTS if (one := found(run, text)).uses[0].step == 2]
    assert len(idle) == 4
    for one in idle:
        assert IDLE.code == "included" and one.weight.influence == "none"
        assert (one.weight.weight, one.weight.without) == (0, 1)
        assert "without influence" in found_facts(one)["influence_words"]
    others = [one for text in TEXTS if (one := found(run, text)).uses[0].step != 2]
    assert {one.weight.influence for one in others} == {"some"}
    assert all(one.weight.weight == Fraction(1, 4) * one.leaf.token_length for one in others)


def test_one_step_with_a_rate_is_influence(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", TEXTS, steps=6, rate=lambda step: 0.0 if step <= 3 else 1e-3)
    one = found(run, TEXTS[0])
    assert (one.weight.steps, one.weight.without, one.weight.influence) == (2, 1, "some")


@pytest.mark.parametrize("rate", [float("nan"), float("inf")])
def test_a_rate_that_is_no_number_is_not_shown_rather_than_zero(tmp_path: Path, rate: float) -> None:
    one = found(made_run(tmp_path / "run", TEXTS, steps=3, rate=lambda _: rate), TEXTS[0])
    assert (one.weight.influence, one.weight.shown) == ("not shown", 0)


def test_a_rate_under_another_name_is_not_shown(tmp_path: Path) -> None:
    one = found(made_run(tmp_path / "run", TEXTS, steps=3, rate=lambda _: 0.0, name="eta"), TEXTS[0])
    assert (one.weight.influence, one.weight.weight) == ("not shown", None)


def test_rates_beyond_the_records_that_are_shown_stay_open(tmp_path: Path) -> None:
    """All records shown say zero; the ones that are not shown might not."""
    run = made_run(tmp_path / "run", TEXTS[:2], steps=200, batch=1, rate=lambda step: 0.0 if step < 150 else 1.0)
    one = found(run, TEXTS[0])
    assert one.weight.steps == 100 and one.weight.shown == one.weight.without == 64
    assert one.weight.influence == "not shown"
