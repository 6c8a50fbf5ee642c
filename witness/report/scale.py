"""From many numbers to a few marks on an axis: thinning that keeps every spike, and ticks at round numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Point = tuple[int, float]
"""Step, counted from 1, and value."""
_NARROW = 1e-4
"""Part of a value below which differences are not drawn."""


def floats(values: Iterable[Any]) -> list[float]:
    """The values of an inspection's list as floats; what is no number becomes NaN."""
    found = []
    for value in values:
        try:
            found.append(float(value))
        except (TypeError, ValueError, OverflowError):
            found.append(math.nan)
    return found


def thin(values: Sequence[float], columns: int) -> list[Point]:
    """First, smallest, largest and last value of each of `columns`, and a gap where something in it is not finite.

    A line through them covers the same pixels as a line through all (the M4 aggregation of Jugel et al., VLDB 2014).

    Args:
        values: one a step.
        columns: of the drawing.

    Returns:
        Points in order; NaN stands for a gap.
    """
    count = len(values)
    if count <= 2 * columns:
        return [(step, value if math.isfinite(value) else math.nan) for step, value in enumerate(values, 1)]
    found: list[Point] = []
    for column in range(columns):
        start, stop = column * count // columns, (column + 1) * count // columns
        finite = [step for step in range(start, stop) if math.isfinite(values[step])]
        kept: set[int] = set()
        if finite:
            kept = {finite[0], finite[-1], min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < stop - start:
            kept.add(next(step for step in range(start, stop) if not math.isfinite(values[step])))
        found += [(step + 1, values[step] if math.isfinite(values[step]) else math.nan) for step in sorted(kept)]
    return found


def same(low: float, high: float) -> bool:
    """Whether a range is so narrow that a drawing of it would show rounding: a clipped norm is one number."""
    return high / 2 - low / 2 <= _NARROW * max(abs(low), abs(high)) / 2  # halves: the whole can exceed any float


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to the unit interval.

    Attributes:
        low: value at 0.
        high: value at 1.
        logarithmic: powers of ten are equally far apart.
    """

    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def over(cls, values: Iterable[float]) -> Scale | None:
        """A scale over all finite values, logarithmic where they are positive and span two orders of magnitude."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        low, high = min(finite), max(finite)
        if low > 0 and high / low >= 100:
            return cls(low, high, logarithmic=True)
        margin = (abs(low) / 2 or 1.0) if same(low, high) else high / 20 - low / 20
        bottom = max(low - margin, -sys.float_info.max)
        return cls(0.0 if bottom < 0 <= low else bottom, min(high + margin, sys.float_info.max))

    def at(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        if self.logarithmic:
            return (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        half = self.high / 2 - self.low / 2  # halves, because the whole of a range can be larger than any float
        return (value / 2 - self.low / 2) / half

    def ticks(self, count: int) -> list[float]:
        """About `count` round values within the scale."""
        if self.logarithmic:
            powers = range(math.ceil(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            every = max(1, -(-len(powers) // count))
            return [10.0**power for power in powers if power % every == 0]
        return round_numbers(self.low, self.high, count)


def round_numbers(low: float, high: float, count: int) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten from `low` to `high`."""
    rough = (high / count) - (low / count)
    if not (rough > 0 and math.isfinite(rough)):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= rough), power * 10)
    if step == 0 or abs(low) / step > 1e12:
        return [low, high]
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def label(value: float) -> str:
    """A number for people: four significant digits."""
    shown = f"{value:.4g}"
    return "0" if shown in ("-0", "0") else shown
