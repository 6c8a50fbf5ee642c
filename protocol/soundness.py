"""What draws are worth, exactly: the probability that a bad run would have been rejected, and what remains open.

A bad step is one whose committed state is not what the declared program makes of the state and records before it.
Replay finds a drawn bad step with certainty, so all that is left to chance is the draw: of `steps` steps, `bad` of them
bad, `draws` are drawn uniformly without replacement, and all bad ones are missed with the hypergeometric probability
C(steps - bad, draws) / C(steps, draws). Checks that run on every step, and mandatory challenges, only add to it.

Everything here is integers and fractions. A certificate quotes these figures, so they must be the same on every machine
and err on no side; a binary float is refused even as an argument, because 0.01 is not one hundredth.

Specified in spec/soundness.md.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import NamedTuple

from protocol.errors import UsageError

Exact = Fraction | Decimal | int | str
"""A number between 0 and 1, spelled exactly: `"0.01"`, `"1%"`, `"1/100"`, `"1e-2"`, Fraction(1, 100)."""

MAX_STEPS = 10**9
"""No run is longer."""
MAX_DRAWS = 1 << 14
"""No session draws more: so far the exact integers stay affordable, whatever a stranger's policy asks for."""
MAX_GRINDING_BITS = 256
# Digits are capped because the text can come from a stranger's policy: "1e-999999999" has a gigabit denominator.
_NUMBER = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,2})?)(%?)|([0-9]{1,40}/[0-9]{1,40})", re.ASCII)


def fraction(text: Exact) -> Fraction:
    """The exact value of a probability or a proportion.

    Raises:
        UsageError: `not-a-fraction`, for a float, any other spelling, or a value outside 0 to 1.
    """
    if isinstance(text, float):
        raise UsageError(
            "not-a-fraction", f"the float {text!r} is exactly {Decimal(text)}; write the number as a string"
        )
    if isinstance(text, bool) or not isinstance(text, Fraction | Decimal | int | str):
        raise UsageError("not-a-fraction", f"a {type(text).__name__} is not a number between 0 and 1")
    if isinstance(text, Fraction | int):
        value = Fraction(text)
    else:
        match = _NUMBER.fullmatch(str(text))
        if match is None:
            raise UsageError(
                "not-a-fraction", f"{str(text)[:40]!r} is not a number between 0 and 1, like 0.01, 1% or 1/100"
            )
        number, percent, ratio = match.groups()
        try:
            value = Fraction(ratio or number) / (100 if percent else 1)
        except ZeroDivisionError:
            raise UsageError("not-a-fraction", f"{ratio!r} divides by zero") from None
    if not 0 <= value <= 1:
        raise UsageError("not-a-fraction", "a number outside 0 to 1")
    return value


def bad_steps(steps: int, bad_fraction: Exact) -> int:
    """The least number of bad steps in a run of which at least that fraction is bad: rounded up, and at least one.

    Raises:
        UsageError: `impossible-count` or `not-a-fraction`.
    """
    _check_steps(steps)
    return max(1, math.ceil(fraction(bad_fraction) * steps))


class Miss(NamedTuple):
    """The probability that draws miss every bad step, as two integers that are not reduced.

    With ten thousand draws they have half a million bits: to reduce them takes longer than all else.
    """

    numerator: int
    denominator: int

    @property
    def detection(self) -> Fraction:
        """The probability of the contrary, in lowest terms."""
        return 1 - Fraction(self.numerator, self.denominator)

    def reaches(self, confidence: Fraction) -> bool:
        """Whether the detection is at least this."""
        caught = self.denominator - self.numerator
        return caught * confidence.denominator >= confidence.numerator * self.denominator

    def detection_down(self, places: int) -> str:
        """The detection in decimal, rounded down."""
        return _decimal(self.denominator - self.numerator, self.denominator, places)


NEVER = Miss(1, 1)
"""What no draws are worth: everything is missed."""


def miss(steps: int, bad: int, draws: int, *more: int) -> Miss:
    """The probability that none of several sessions over one head draws a bad step (hypergeometric, exact).

    Args:
        steps: of the run.
        bad: bad steps among them.
        draws: of the first session, without replacement.
        more: draws of further sessions, with independent nonces.

    Raises:
        UsageError: `impossible-count`, unless 0 <= bad, draws <= steps.
    """
    _check_steps(steps)
    _check_part("bad", bad, steps)
    numerator = denominator = 1
    for count in (draws, *more):
        _check_part("draws", count, steps)
        few, many = sorted((bad, count))  # the two can be exchanged: C(n-b, d) / C(n, d) = C(n-d, b) / C(n, b)
        numerator *= math.perm(steps - many, few)
        denominator *= math.perm(steps, few)
    return Miss(numerator, denominator)


def miss_probability(steps: int, bad: int, draws: int) -> Fraction:
    """The probability that `draws` draws without replacement contain none of the bad steps, in lowest terms.

    Raises:
        UsageError: `impossible-count`, unless 0 <= bad, draws <= steps.
    """
    return Fraction(*miss(steps, bad, draws))


def detection_probability(steps: int, bad: int, draws: int) -> Fraction:
    """The probability that the draws contain at least one of the bad steps: 1 - `miss_probability`.

    Raises:
        UsageError: `impossible-count`.
    """
    return 1 - miss_probability(steps, bad, draws)


def combined_detection(steps: int, bad: int, draws: Sequence[int]) -> Fraction:
    """The probability that at least one of several sessions over the same head finds a bad step.

    Holds for sessions with independent nonces, whoever ran them, if none is left out, or cut short by the trainer,
    because of what was drawn: a trainer that may stop answering at the first bad draw of every session is never caught.

    Args:
        steps: steps of the run.
        bad: bad steps among them.
        draws: number of draws of each session.

    Raises:
        UsageError: `impossible-count`.
    """
    return miss(steps, bad, *draws).detection if draws else Fraction(0)


def grinding_detection(steps: int, bad: int, draws: int, grinding_bits: int) -> Fraction:
    """A lower bound of the probability that a cheater with 2**grinding_bits tries at the seed is still caught.

    The union bound, 1 - tries * miss, or 0 where that is negative: it holds however the tries depend on each other.

    Raises:
        UsageError: `impossible-count`.
    """
    _check_bits(grinding_bits)
    return max(Fraction(0), 1 - (1 << grinding_bits) * miss_probability(steps, bad, draws))


def draws_needed(steps: int, bad_fraction: Exact, confidence: Exact, *, most: int | None = None) -> int:
    """The least number of draws that finds a run of which `bad_fraction` is bad with at least this confidence.

    Args:
        steps: steps of the run.
        bad_fraction: see `bad_steps`.
        confidence: probability of rejection; 1 means certainly, which takes all steps but `bad_steps` - 1.
        most: more than so many are not counted: for the policies of strangers, because counting takes time.

    Raises:
        UsageError: `impossible-count`, also where more than `most` are needed; `not-a-fraction`.
    """
    bad = bad_steps(steps, bad_fraction)
    tail = 1 - fraction(confidence)
    if most is None or most >= steps - bad + 1:
        return _least_count(steps, bad, tail)
    if tail == 0 or not _enough(steps, bad, tail, most):
        raise UsageError(
            "impossible-count",
            f"more than {most} draws of {steps} steps are needed",
            next_action="ask for less confidence, or name a number of draws: sessions over one head add up",
        )
    return _least_count(steps, bad, tail, most)


def grinding_draws_needed(steps: int, bad_fraction: Exact, confidence: Exact, grinding_bits: int) -> int:
    """`draws_needed` for a self-derived seed: enough draws even against a cheater who tries 2**grinding_bits seeds.

    A cheater who tries all it can is missed with probability at most tries * miss. Where no smaller draw is good
    enough, the answer is the number that cannot miss, steps - bad + 1: for a single bad step that is all of the steps,
    so `answer == steps` says "replay everything".

    Raises:
        UsageError: `impossible-count` or `not-a-fraction`.
    """
    _check_bits(grinding_bits)
    bad = bad_steps(steps, bad_fraction)
    return _least_count(steps, bad, (1 - fraction(confidence)) / (1 << grinding_bits))


def residual_bad_steps(steps: int, draws: int, confidence: Exact, *, grinding_bits: int = 0) -> int:
    """What can still be wrong after `draws` clean draws: the most bad steps that are not excluded at this confidence.

    A run with more bad steps would have been rejected with at least this confidence; one with this many would have been
    missed with a probability above 1 - confidence. (With `grinding_bits`: might have been, by the union bound.)

    Raises:
        UsageError: `impossible-count` or `not-a-fraction`.
    """
    _check_steps(steps)
    _check_part("draws", draws, steps)
    _check_bits(grinding_bits)
    tail = (1 - fraction(confidence)) / (1 << grinding_bits)
    if draws == 0:
        return steps if tail < 1 else 0
    return max(0, _least_count(steps, draws, tail) - 1)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a session: `drawn[start:stop]` of the draw, and what all rounds up to it are worth."""

    number: int
    start: int
    stop: int
    detection: Fraction


def rounds(draws: int, size: int, *, steps: int, bad: int) -> tuple[Round, ...]:
    """Splits a draw into rounds of `size` (the last may be smaller), with the detection probability after each.

    A verifier may stop after any round, provided the certificate quotes the figure of the round it stopped at, not of
    the rounds it had planned. The trainer may not: see `say`.

    Args:
        draws: number of draws in all.
        size: draws a round.
        steps: steps of the run.
        bad: number of bad steps for which the probability is computed.

    Raises:
        UsageError: `impossible-count`.
    """
    _check_steps(steps)
    _check_part("draws", draws, steps)
    if size < 1:
        raise UsageError("impossible-count", f"a round of {size} draws")
    stops = (min(start + size, draws) for start in range(0, draws, size))
    return tuple(
        Round(number, (number - 1) * size, stop, detection_probability(steps, bad, stop))
        for number, stop in enumerate(stops, start=1)
    )


def say(
    steps: int,
    draws: int,
    bad_fraction: Exact,
    *,
    confidence: Exact | None = None,
    grinding_bits: int | None = None,
    unit: str = "step",
    places: int = 4,
) -> str:
    """What clean draws say and do not say, in English, for a certificate. Probabilities are rounded down.

    Args:
        steps: how many there were to draw from.
        draws: how many replayed exactly: the first ones in the order of the draw, none left out. Where they end must
            not depend on the trainer: if it ended the session by leaving the next draw unanswered, that is a bad step
            found, not a shorter draw (attack A33).
        bad_fraction: the cheat that the verifier's policy is about, see `bad_steps`.
        confidence: if given, adds how many bad steps are not excluded at this confidence.
        grinding_bits: for a seed that the trainer could choose among 2**grinding_bits; None for an interactive session.
        unit: what is drawn, in the singular: a run that does not commit every step has "segment"s.
        places: decimals of the probabilities.

    Raises:
        UsageError: `impossible-count` or `not-a-fraction`.
    """
    bad, share, bits = bad_steps(steps, bad_fraction), fraction(bad_fraction), grinding_bits or 0

    def chance(count: int) -> str:
        detection = grinding_detection(steps, count, draws, bits)
        if detection == 0:
            return "with no assured probability"
        exact = bits == 0 and detection * 10**places % 1 == 0
        return f"with probability {'' if exact or detection == 1 else 'at least '}{decimal_down(detection, places)}"

    drawn = (
        f"{draws} of the {steps} {unit}s, drawn at random after all of them had been committed to, replayed exactly."
        if draws
        else f"None of the {steps} {unit}s has been drawn at random and replayed."
    )
    single = f"with probability {draws}/{steps}" if bits == 0 else chance(1)
    parts = [
        f"{drawn} A {unit} is bad if its replay does not give the committed state.",
        f"A run in which at least {_percent(share)} of the {unit}s are bad ({bad} or more) would have been rejected "
        f"by now {chance(bad)}; one single bad {unit} would have been found by these draws {single}.",
    ]
    if confidence is not None:
        left = residual_bad_steps(steps, draws, confidence, grinding_bits=bits)
        remains = f"up to {left} bad {unit}{'s' * (left > 1)} cannot be excluded" if left else f"no bad {unit} remains"
        parts.append(f"At confidence {_percent(fraction(confidence))}, {remains}.")
    if grinding_bits is not None:
        parts.append(
            "The draws follow from the trainer's own commitment, so it could have tried many commitments: "
            f"these figures allow it 2^{grinding_bits} tries."
        )
    parts.append("None of this is the probability that the run is honest.")
    return " ".join(parts)


def decimal_down(value: Fraction, places: int) -> str:
    """A non-negative number in decimal, rounded down, so that only certainty prints as 1.

    Raises:
        UsageError: `impossible-count`, for a negative value or number of places.
    """
    if value < 0 or places < 0:
        raise UsageError("impossible-count", f"cannot print {value} with {places} decimals")
    return _decimal(value.numerator, value.denominator, places)


def _decimal(numerator: int, denominator: int, places: int) -> str:
    whole, rest = divmod(numerator * 10**places // denominator, 10**places)
    return f"{whole}.{rest:0{places}d}" if places else str(whole)


def _percent(value: Fraction) -> str:
    for places in range(7):
        if value * 100 * 10**places % 1 == 0:
            return decimal_down(value * 100, places) + "%"
    return str(value)


def _enough(steps: int, other: int, tail: Fraction, count: int) -> bool:
    """Whether so many draws miss with at most this probability, compared without ever reducing a huge fraction."""
    missed = miss(steps, other, count)
    return missed.numerator * tail.denominator <= tail.numerator * missed.denominator


def _least_count(steps: int, other: int, tail: Fraction, sure: int | None = None) -> int:
    """The least count with miss_probability(steps, other, count) <= tail.

    `sure` is one that is enough; `other` >= 1, so steps - other + 1 is one.
    """
    if tail >= 1:
        return 0
    if tail == 0:
        return steps - other + 1
    if sure is None:
        sure = steps - other + 1
    enough = partial(_enough, steps, other, tail)

    # Floats only choose where to look; both neighbours of the answer are then tested in integers.
    log_tail = math.log(tail.numerator) - math.log(tail.denominator)
    guess = _bisect(lambda count: _log_miss(steps, other, count) <= log_tail, 0, sure)
    low, high, reach = 0, sure, 1
    if enough(guess):
        high = guess
        while guess - reach > 0 and enough(guess - reach):
            high, reach = guess - reach, 2 * reach
        low = max(0, guess - reach)
    else:
        low = guess
        while guess + reach < sure and not enough(guess + reach):
            low, reach = guess + reach, 2 * reach
        high = min(sure, guess + reach)
    return _bisect(enough, low, high)


def _bisect(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The least number above `low` for which a monotone `holds` is true, given that it is true at `high` > `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _log_miss(steps: int, other: int, count: int) -> float:
    """An estimate of log(miss_probability), for steps - other - count >= 0."""
    a, b = steps - other, steps - count
    return math.lgamma(a + 1) + math.lgamma(b + 1) - math.lgamma(steps + 1) - math.lgamma(a - count + 1)


def _check_steps(steps: int) -> None:
    if not 1 <= steps <= MAX_STEPS:
        raise UsageError("impossible-count", f"a run of {steps} steps; 1 to {MAX_STEPS} are possible")


def _check_part(name: str, count: int, steps: int) -> None:
    if not 0 <= count <= steps:
        raise UsageError("impossible-count", f"{name} = {count} of {steps} steps")


def _check_bits(grinding_bits: int) -> None:
    if not 0 <= grinding_bits <= MAX_GRINDING_BITS:
        raise UsageError("impossible-count", f"2^{grinding_bits} tries; 0 to {MAX_GRINDING_BITS} bits are possible")
