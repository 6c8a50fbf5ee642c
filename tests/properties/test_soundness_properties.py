"""Laws of the detection figures: minimality, monotonicity, duality, and printing that never flatters."""

import re
from fractions import Fraction

from hypothesis import example, given
from hypothesis import strategies as st

from protocol.soundness import (
    bad_steps,
    combined_detection,
    decimal_down,
    detection_probability,
    draws_needed,
    grinding_detection,
    grinding_draws_needed,
    miss_probability,
    residual_bad_steps,
    rounds,
    say,
)

UNIT = st.fractions(0, 1, max_denominator=10**6)
STEPS = st.integers(1, 5000)


@st.composite
def cases(draw, steps=STEPS):
    total = draw(steps)
    return total, draw(st.integers(0, total)), draw(st.integers(0, total))


@given(STEPS, UNIT, UNIT, st.sampled_from([0, 0, 1, 10, 60]))
def test_needed_is_enough_and_one_less_is_not(steps, share, confidence, bits):
    needed, bad = grinding_draws_needed(steps, share, confidence, bits), bad_steps(steps, share)
    tail = 1 - confidence
    assert 2**bits * miss_probability(steps, bad, needed) <= tail
    assert needed == 0 or 2**bits * miss_probability(steps, bad, needed - 1) > tail


@given(st.integers(10**5, 10**6), st.integers(1, 2000), st.integers(1, 60))
def test_needed_is_minimal_for_long_runs(steps, bad, bits):
    tail = Fraction(1, 2**bits)
    needed = draws_needed(steps, Fraction(bad, steps), 1 - tail)
    # The product form, as integers, without the module's own binomials.
    few, many = sorted((bad, needed))
    upper, lower = 1, 1
    for i in range(few):
        upper *= steps - many - i
        lower *= steps - i
    assert upper * 2**bits <= lower
    # miss(needed - 1) = miss(needed) * (steps - needed + 1) / (steps - needed + 1 - bad)
    if steps - needed + 1 - bad > 0:
        assert upper * (steps - needed + 1) * 2**bits > lower * (steps - needed + 1 - bad)


@given(cases())
def test_more_draws_and_more_bad_steps_are_never_missed_more_often(case):
    steps, bad, draws = case
    miss = miss_probability(steps, bad, draws)
    assert 0 <= miss <= 1
    assert miss == miss_probability(steps, draws, bad)
    if draws < steps:
        assert miss_probability(steps, bad, draws + 1) <= miss
    if bad < steps:
        assert miss_probability(steps, bad + 1, draws) <= miss


@given(cases())
def test_drawing_one_by_one_multiplies(case):
    # The next draw, given that none was bad so far, is bad with probability bad / (what is left).
    steps, bad, draws = case
    if draws < steps and bad + draws <= steps:
        rest = Fraction(steps - draws - bad, steps - draws)
        assert miss_probability(steps, bad, draws + 1) == miss_probability(steps, bad, draws) * rest


@given(STEPS, UNIT, UNIT, UNIT)
def test_more_confidence_takes_more_draws_and_larger_cheats_fewer(steps, share, one, other):
    low, high = sorted((one, other))
    assert draws_needed(steps, share, low) <= draws_needed(steps, share, high)
    assert draws_needed(steps, low, share) >= draws_needed(steps, high, share)
    assert draws_needed(steps, share, low) <= grinding_draws_needed(steps, share, low, 1)


@given(cases(), UNIT, st.sampled_from([0, 0, 5, 40]))
def test_residual_is_the_last_number_that_is_not_excluded(case, confidence, bits):
    steps, _, draws = case
    left, tail = residual_bad_steps(steps, draws, confidence, grinding_bits=bits), 1 - confidence
    assert left == 0 or 2**bits * miss_probability(steps, left, draws) > tail
    assert left == steps or 2**bits * miss_probability(steps, left + 1, draws) <= tail


@given(cases(), UNIT)
def test_residual_and_needed_are_two_views_of_one_line(case, confidence):
    steps, bad, draws = case
    if bad:
        enough = draws_needed(steps, Fraction(bad, steps), confidence) <= draws
        assert enough == (bad > residual_bad_steps(steps, draws, confidence))


@given(cases(st.integers(1, 300)), st.lists(st.integers(0, 300), max_size=4))
def test_another_session_never_hurts_and_one_session_is_itself(case, others):
    steps, bad, draws = case
    sessions = [min(count, steps) for count in others]
    alone = detection_probability(steps, bad, draws)
    assert combined_detection(steps, bad, [draws]) == alone
    assert alone <= combined_detection(steps, bad, [draws, *sessions]) <= 1
    assert combined_detection(steps, bad, [draws, *sessions]) == combined_detection(steps, bad, [*sessions, draws])


@given(cases(st.integers(1, 300)), st.integers(0, 30))
def test_grinding_only_helps_the_cheater(case, bits):
    steps, bad, draws = case
    exact = detection_probability(steps, bad, draws)
    assert 0 <= grinding_detection(steps, bad, draws, bits + 1) <= grinding_detection(steps, bad, draws, bits) <= exact
    assert grinding_detection(steps, bad, draws, 0) == exact
    if bits <= 8:
        assert grinding_detection(steps, bad, draws, bits) <= exact ** (2**bits)


@given(cases(st.integers(1, 300)), st.integers(1, 40))
def test_rounds_tile_the_draw(case, size):
    steps, bad, draws = case
    found = rounds(draws, size, steps=steps, bad=bad)
    covered = [i for one in found for i in range(one.start, one.stop)]
    assert covered == list(range(draws))
    assert all(0 < one.stop - one.start <= size for one in found)
    assert all(one.stop - one.start == size for one in found[:-1])
    if found:
        assert found[-1].detection == detection_probability(steps, bad, draws)


@given(UNIT, st.integers(0, 12))
def test_printed_down_and_tightly(value, places):
    printed = Fraction(decimal_down(value, places))
    assert printed <= value < printed + Fraction(1, 10**places)


@given(cases(st.integers(1, 400)), st.sampled_from([None, 0, 8, 64]), st.integers(1, 8))
@example((4, 2, 3), 8, 4)
@example((4, 2, 1), None, 4)
@example((100, 50, 50), 8, 8)
@example((4, 1, 3), 1, 1)
def test_a_certificate_never_flatters(case, bits, places):
    steps, bad, draws = case
    if not bad:
        return
    text = say(steps, draws, Fraction(bad, steps), grinding_bits=bits, places=places)
    said = re.search(r"rejected by now with (no assured probability|probability (at least )?([0-9.]+))", text)
    assert said is not None
    true = grinding_detection(steps, bad, draws, bits or 0)
    if said[3] is None:
        assert true == 0
    else:
        printed = Fraction(said[3].rstrip("."))
        assert printed <= true < printed + Fraction(1, 10**places)
        # A bound is called one, a rounded figure too; only an exact figure and certainty stand alone.
        assert (said[2] is None) == (true == 1 or (not bits and printed == true))
    assert ("tries" in text) == (bits is not None)
