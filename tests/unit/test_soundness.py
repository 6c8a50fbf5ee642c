"""Detection figures against enumeration, published tables and simulated cheaters."""

import itertools
import math
import os
import re
import subprocess
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from protocol import soundness
from protocol.errors import UsageError
from protocol.randomness import commit_nonce, draw, self_derived_seed
from protocol.soundness import (
    MAX_STEPS,
    bad_steps,
    combined_detection,
    decimal_down,
    detection_probability,
    draws_needed,
    fraction,
    grinding_detection,
    grinding_draws_needed,
    miss_probability,
    residual_bad_steps,
    rounds,
    say,
)

ROOT = Path(__file__).resolve().parents[2]


def miss_by_enumeration(steps: int, bad: int, draws: int) -> Fraction:
    samples = list(itertools.combinations(range(steps), draws))
    return Fraction(sum(all(step >= bad for step in sample) for sample in samples), len(samples))


@pytest.mark.parametrize("steps", range(1, 8))
def test_small_populations_by_enumeration(steps):
    for bad, draws in itertools.product(range(steps + 1), repeat=2):
        assert miss_probability(steps, bad, draws) == miss_by_enumeration(steps, bad, draws)


@pytest.mark.parametrize("steps", [1, 2, 5, 9, 10])
@pytest.mark.parametrize("confidence", ["0", "0.3", "1/2", "0.9", "0.99", "1"])
def test_needed_and_residual_by_trying_every_number(steps, confidence):
    tail = 1 - Fraction(confidence)
    for bad in range(1, steps + 1):
        missed = [miss_by_enumeration(steps, bad, draws) for draws in range(steps + 1)]
        share = Fraction(bad, steps)
        assert draws_needed(steps, share, confidence) == next(d for d, miss in enumerate(missed) if miss <= tail)
        ground = next(d for d, miss in enumerate(missed) if 8 * miss <= tail)
        assert grinding_draws_needed(steps, share, confidence, 3) == ground
    for draws in range(steps + 1):
        open_ones = [m for m in range(steps + 1) if miss_by_enumeration(steps, m, draws) > tail]
        assert residual_bad_steps(steps, draws, confidence) == max(open_ones, default=0)


# (bad fraction, bits of confidence, bits of grinding, draws) for draws WITH replacement: ceil((c + g) / -log2(1 - f)).
WITH_REPLACEMENT = [
    ("10%", (7, 0, 47), (20, 0, 132), (40, 0, 264), (40, 40, 527), (40, 60, 658)),
    ("5%", (7, 0, 95), (20, 0, 271), (40, 0, 541), (40, 40, 1_082), (40, 60, 1_352)),
    ("1%", (7, 0, 483), (20, 0, 1_380), (40, 0, 2_759), (40, 40, 5_518), (40, 60, 6_897)),
    ("0.1%", (7, 0, 4_850), (20, 0, 13_857), (40, 0, 27_713), (40, 40, 55_425), (40, 60, 69_281)),
]


@pytest.mark.parametrize(
    ("share", "bits", "grinding", "published"), [(share, *row) for share, *rows in WITH_REPLACEMENT for row in rows]
)
def test_the_published_table_is_the_limit_of_long_runs(share, bits, grinding, published):
    # Drawing without replacement needs at most as much, and less by about draws**2 / (2 * steps).
    needed = grinding_draws_needed(MAX_STEPS, share, 1 - Fraction(1, 2**bits), grinding)
    assert 0 <= published - needed <= 1 + published**2 // MAX_STEPS


def test_published_examples():
    assert decimal_down(detection_probability(10_000, 100, 100), 4) == "0.6358"
    assert decimal_down(detection_probability(10_000, 100, 300), 3) == "0.953"
    assert detection_probability(10_000, 1, 459) == Fraction(459, 10_000)
    # A01: every second step skipped. A29: 1 % bad, 2**40 tries, 99 %.
    assert decimal_down(detection_probability(10**6, 500_000, 7), 3) == "0.992"
    assert draws_needed(10**7, "0.01", "0.99") == 459
    assert 3_215 <= grinding_draws_needed(10**7, "0.01", "0.99", 40) <= 3_217
    assert grinding_detection(10**7, 10**5, 459, 40) == 0


def test_a_single_bad_step_under_grinding_needs_everything():
    assert grinding_draws_needed(200, "0.005", "0.99", 40) == 200
    assert grinding_detection(200, 1, 200, 40) == 1
    assert grinding_detection(200, 1, 199, 40) == 0


def test_bad_steps_are_counted_exactly():
    assert bad_steps(200, "0.01") == 2
    assert bad_steps(201, "0.01") == 3
    assert bad_steps(100, "0.07") == 7  # 0.07 * 100 is 7.000000000000001 in binary
    assert bad_steps(100, "0.29") == 29  # and 0.29 * 100 is 28.999999999999996
    assert bad_steps(10, "0") == bad_steps(10, "0.0001") == 1
    assert bad_steps(10, "1") == 10


@pytest.mark.parametrize(
    ("spelled", "value"),
    [
        ("0.01", (1, 100)),
        ("1%", (1, 100)),
        ("0.5%", (1, 200)),
        ("1/3", (1, 3)),
        ("1e-3", (1, 1000)),
        (Decimal("1E-7"), (1, 10**7)),
        (Fraction(2, 7), (2, 7)),
        (1, (1, 1)),
        ("0", (0, 1)),
        ("100%", (1, 1)),
    ],
)
def test_spellings_of_a_fraction(spelled, value):
    assert fraction(spelled) == Fraction(*value)


@pytest.mark.parametrize(
    "spelled",
    [
        0.01,
        True,
        None,
        "",
        "-0.1",
        "1.01",
        "101%",
        2,
        pytest.param(10**5000, id="huge"),
        Fraction(3, 2),
        " 0.1",
        "0.1\n",
        "0_1",
        ".5",
        "1/0",
        "1/2%",
        "nan",
        "1e-999999999",
        "\u0661",  # a digit, but not an ASCII one
        "0." + "1" * 41,
        Decimal("NaN"),
        Decimal("-0.1"),
    ],
)
def test_what_is_not_a_fraction(spelled):
    with pytest.raises(UsageError) as caught:
        fraction(spelled)
    assert caught.value.code == "not-a-fraction"


def test_a_float_is_told_what_it_really_is():
    with pytest.raises(UsageError, match=r"0\.01000000000000000020816681711721685"):
        fraction(0.01)


@pytest.mark.parametrize(
    "call",
    [
        lambda: miss_probability(10, 11, 1),
        lambda: miss_probability(10, -1, 1),
        lambda: miss_probability(10, 1, 11),
        lambda: miss_probability(10, 1, -1),
        lambda: miss_probability(0, 0, 0),
        lambda: combined_detection(10, 1, [3, 11]),
        lambda: draws_needed(MAX_STEPS + 1, "0.1", "0.9"),
        lambda: grinding_draws_needed(10, "0.1", "0.9", -1),
        lambda: grinding_draws_needed(10, "0.1", "0.9", 257),
        lambda: residual_bad_steps(10, 11, "0.9"),
        lambda: rounds(5, 0, steps=10, bad=1),
        lambda: rounds(11, 2, steps=10, bad=1),
        lambda: decimal_down(Fraction(-1, 2), 2),
        lambda: decimal_down(Fraction(1, 2), -1),
    ],
)
def test_impossible_counts(call):
    with pytest.raises(UsageError) as caught:
        call()
    assert caught.value.code == "impossible-count"


def test_a_long_run_is_fast():
    def seconds() -> float:
        start = time.perf_counter()
        assert 4_500 < draws_needed(10**6, "0.001", "0.99") < 4_603
        return time.perf_counter() - start

    assert min(seconds() for _ in range(3)) < 0.05


@pytest.mark.parametrize("estimate", [0.0, -math.inf, math.inf, -3.0], ids=str)
def test_a_wrong_float_changes_nothing(monkeypatch, estimate):
    # The logarithm only chooses where to look: with an estimate from nowhere, the exact search still finds the answer.
    def answers() -> list[int]:
        return [
            grinding_draws_needed(steps, share, confidence, 2)
            for steps in (1, 2, 17, 400, 3000)
            for share in ("0.001", "0.02", "0.5", "1")
            for confidence in ("0.1", "0.9", "0.999")
        ]

    right = answers()
    monkeypatch.setattr(soundness, "_log_miss", lambda *_: estimate)
    assert answers() == right


def test_certainty_and_no_confidence_at_all():
    assert draws_needed(100, "0.1", "1") == 91
    assert draws_needed(100, "0.1", "0") == 0
    assert residual_bad_steps(100, 0, "0.5") == 100
    assert residual_bad_steps(100, 0, "0") == 0
    assert residual_bad_steps(100, 100, "1") == 0


def test_sessions_multiply_their_misses():
    missed = miss_by_enumeration(8, 2, 3) * miss_by_enumeration(8, 2, 1)
    assert combined_detection(8, 2, [3, 1]) == 1 - missed
    assert combined_detection(8, 2, []) == 0


def test_rounds_cover_the_draw():
    found = rounds(7, 3, steps=20, bad=2)
    assert [(one.number, one.start, one.stop) for one in found] == [(1, 0, 3), (2, 3, 6), (3, 6, 7)]
    assert [one.detection for one in found] == [1 - miss_probability(20, 2, d) for d in (3, 6, 7)]
    assert rounds(0, 3, steps=20, bad=2) == ()


def test_printing_rounds_down():
    assert decimal_down(Fraction(2, 3), 4) == "0.6666"
    assert decimal_down(Fraction(10**9 - 1, 10**9), 3) == "0.999"
    assert decimal_down(Fraction(1), 3) == "1.000"
    assert decimal_down(Fraction(1, 1000), 2) == "0.00"
    assert decimal_down(Fraction(5, 2), 0) == "2"


def test_what_a_certificate_says():
    text = say(200, 27, "1%", confidence="0.95")
    # 1 - (173 * 172) / (200 * 199) = 0.25236...
    assert "at least 1% of the steps are bad (2 or more)" in text
    assert "rejected by now with probability at least 0.2523;" in text
    assert "one single bad step would have been found by these draws with probability 27/200." in text
    left = residual_bad_steps(200, 27, "0.95")
    assert f"up to {left} bad steps cannot be excluded" in text
    assert "None of this is the probability that the run is honest." in text
    assert "tries" not in text


def test_what_a_certificate_of_a_self_derived_seed_says():
    text = say(200, 120, "10%", grinding_bits=10, confidence="0.5")
    bound = 1 - 2**10 * miss_probability(200, 20, 120)
    assert 0 < bound < 1
    assert f"with probability at least {decimal_down(bound, 4)};" in text
    assert f"up to {residual_bad_steps(200, 120, '0.5', grinding_bits=10)} bad steps cannot be excluded" in text
    assert "one single bad step would have been found by these draws with no assured probability." in text
    assert "these figures allow it 2^10 tries" in text


def test_nothing_drawn_and_everything_drawn():
    nothing = say(200, 0, "1%", confidence="0.9", unit="segment")
    assert "None of the 200 segments has been drawn" in nothing
    assert "with no assured probability" in nothing
    assert "up to 200 bad segments cannot be excluded" in nothing
    everything = say(200, 200, "1/3", confidence="1", places=2)
    assert "at least 1/3 of the steps are bad (67 or more)" in everything
    assert "with probability 1.00;" in everything
    assert "no bad step remains" in everything
    assert "up to 1 bad step cannot" in say(200, 199, "1%", confidence="1")


def test_almost_certain_is_never_printed_as_certain():
    assert detection_probability(10_000, 5_000, 100) < 1
    figures = re.findall(r"with probability at least ([0-9.]+)", say(10_000, 100, "50%", places=3))
    assert figures == ["0.999"]


def test_the_module_is_light():
    # A verifier that only explains a certificate must not wait for numpy or torch.
    heavy = {"cryptography", "msgspec", "numpy", "torch"}
    code = f"import sys, protocol.soundness; print(sorted({heavy} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


def binomial_interval(trials: int, chance: float, outside: float) -> tuple[int, int]:
    """The central part of a binomial distribution: at most `outside` / 2 of its mass lies below it, and above it."""
    mass = [
        math.exp(
            math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
            + k * math.log(chance) + (trials - k) * math.log1p(-chance)
        )
        for k in range(trials + 1)
    ]  # fmt: skip
    upwards, downwards = list(itertools.accumulate(mass)), list(itertools.accumulate(reversed(mass)))
    assert math.isclose(upwards[-1], 1, rel_tol=1e-9)
    low = next(k for k, below in enumerate(upwards) if below > outside / 2)
    high = trials - next(k for k, above in enumerate(downwards) if above > outside / 2)
    return low, high


CHEATERS = [(200, 2, 27), (200, 1, 50), (100, 10, 7), (1000, 20, 60), (50, 25, 2)]


@pytest.mark.parametrize(("steps", "bad", "draws"), CHEATERS)
def test_a_simulated_cheater_is_rejected_as_often_as_stated(steps, bad, draws):
    # Exact binomial intervals that hold jointly with 95 %: 99 % for each of the five cheaters.
    trials = 4000
    cheated = set(range(steps - bad, steps))  # which ones does not matter to a uniform draw
    rejected = sum(
        not cheated.isdisjoint(draw(commit_nonce(trial.to_bytes(32, "little")), steps, draws))
        for trial in range(trials)
    )
    low, high = binomial_interval(trials, float(detection_probability(steps, bad, draws)), 0.05 / len(CHEATERS))
    assert low <= rejected <= high


def test_a_simulated_grinder_does_what_the_bound_allows_and_no_more():
    # A29: 2**5 heads that differ in a free field; the cheater publishes one whose draw misses its bad steps, if any.
    steps, bad, bits, trials = 60, 12, 5, 400
    cheated = set(range(bad))

    def caught(draws: int) -> int:
        heads = ([f"run {trial} salt {salt}".encode() for salt in range(2**bits)] for trial in range(trials))
        return sum(
            all(cheated & set(draw(self_derived_seed(policy=b"p", head=head), steps, draws)) for head in tries)
            for tries in heads
        )

    draws = grinding_draws_needed(steps, Fraction(bad, steps), "0.5", bits)
    measured = caught(draws)
    low, high = binomial_interval(trials, float(detection_probability(steps, bad, draws)) ** 2**bits, 0.05)
    assert low <= measured <= high
    assert measured / trials >= grinding_detection(steps, bad, draws, bits) >= Fraction(1, 2)
    # A draw sized for a nonce the trainer cannot choose catches this grinder practically never.
    assert caught(draws_needed(steps, Fraction(bad, steps), "0.5")) == 0
