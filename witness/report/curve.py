"""A curve in text: two by four dots in each character, so that eighty columns show a hundred and forty steps apart.

Where a value is not finite the curve has a gap, and the axis below it a mark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from witness.report.scale import Scale, label, thin

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800


def curve(values: Sequence[float], width: int = 78, height: int = 10, *, unicode: bool = True) -> list[str]:
    """Lines of text that show `values` over steps 1, 2, 3...

    Args:
        values: one a step.
        width: characters in all.
        height: lines of the plot; two more hold the axis.
        unicode: draw with braille dots and box characters; plain ASCII otherwise.
    """
    scale = Scale.over(values)
    if scale is None:
        return ["(no finite value)"]
    ticks = {height - 1 - min(height - 1, int(scale.at(tick) * height)): label(tick) for tick in scale.ticks(6)}
    margin = max(map(len, ticks.values()), default=1)
    columns = max(8, width - margin - 2)
    across, down = (2 * columns, 4 * height) if unicode else (columns, height)
    lit, gaps = _draw(values, scale, across, down)
    upright, tick_mark, corner, level, gap = ("\u2502", "\u2524", "\u2514", "\u2500", "\u00d7") if unicode else "||+-x"
    lines = []
    for row in range(height):
        cells = "".join(_cell(lit, row, column, unicode) for column in range(columns))
        lines.append(f"{ticks.get(row, ''):>{margin}} {tick_mark if row in ticks else upright}{cells.rstrip()}")
    marked = {place * columns // across for place in gaps}
    lines.append(" " * margin + f" {corner}" + "".join(gap if column in marked else level for column in range(columns)))
    last = str(len(values))
    inner = f"1{'step':^{max(4, columns - 1 - len(last))}}{last}" if len(values) > 1 else "1"
    lines.append(" " * (margin + 2) + inner)
    return lines


def _draw(values: Sequence[float], scale: Scale, across: int, down: int) -> tuple[set[tuple[int, int]], set[int]]:
    """The dots `(row, column)` of the curve, and the columns that hold something that is not finite."""
    lit: set[tuple[int, int]] = set()
    gaps: set[int] = set()
    before: tuple[int, int] | None = None
    for step, value in thin(values, across):
        column = (step - 1) * (across - 1) // max(1, len(values) - 1)
        if math.isnan(value):
            gaps.add(column)
            before = None
            continue
        row = down - 1 - min(down - 1, max(0, int(scale.at(value) * down)))
        lit.update(_segment(before or (row, column), (row, column)))
        before = row, column
    return lit, gaps


def _segment(start: tuple[int, int], stop: tuple[int, int]) -> list[tuple[int, int]]:
    rows, columns = stop[0] - start[0], stop[1] - start[1]
    length = max(abs(rows), abs(columns), 1)
    return [(start[0] + round(rows * i / length), start[1] + round(columns * i / length)) for i in range(length + 1)]


def _cell(lit: set[tuple[int, int]], row: int, column: int, unicode: bool) -> str:
    if not unicode:
        return "*" if (row, column) in lit else " "
    bits = 0
    for down in range(4):
        for right in range(2):
            if (4 * row + down, 2 * column + right) in lit:
                bits |= _DOTS[down][right]
    return chr(_BRAILLE + bits) if bits else " "
