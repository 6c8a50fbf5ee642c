"""Charts as geometry: paths, ticks and marks in the coordinates of one SVG, for the template to draw.

Nothing here is text of the run but the names of lines, which the template escapes like every other
text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from witness.report import wording
from witness.report.scale import Point, Scale, floats, label, round_numbers, thin

MAX_LINES, MAX_MARKS = 6, 200


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a drawing and of the plot within it, in units that come out as pixels on a wide screen."""

    width: int
    height: int
    left: int = 62
    top: int = 10

    @property
    def right(self) -> int:
        """Where the plot ends."""
        return self.width - 12

    @property
    def bottom(self) -> int:
        """Where the plot ends; the axis's texts stand below."""
        return self.height - 44

    def across(self, step: int, steps: int) -> float:
        """Where a step stands."""
        return round(self.left + (self.right - self.left) * (step - 1) / max(1, steps - 1), 1)

    def down(self, value: float, scale: Scale) -> float:
        """Where a value stands."""
        return round(self.bottom - (self.bottom - self.top) * scale.at(value), 1)


_TITLE, _DIGIT = 30, 7
"""Room for the title of a vertical axis, and for each character of a tick label."""
WIDE, NARROW = Frame(940, 270), Frame(450, 220)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart: its name, and its path in SVG's notation."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis and what is written there."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A place along the steps where something happened."""

    at: float
    kind: Literal["gap", "resume", "fault"]
    text: str


_MEANINGS = {
    "gap": "crosses: not a finite number",
    "resume": "grey dashes: stopped and continued",
    "fault": "red dashes: a declared fault",
}


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        key: unique on the page.
        frame: it is drawn in.
        title: what is shown.
        summary: the same in words, for those who do not see it.
        caption: stands below it.

        axis: what stands beside the vertical axis.
        lines: at most `MAX_LINES`.
        rows: ticks of the vertical axis.
        columns: ticks of the horizontal axis.
        marks: gaps, resumes and faults.
        hidden: lines that are not drawn.
        dense: there are more steps than the plot is wide.

    """

    key: str
    frame: Frame
    title: str
    summary: str
    caption: str
    axis: str

    lines: tuple[Line, ...]
    rows: tuple[Tick, ...]
    columns: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    hidden: int
    dense: bool


def charts(document: dict[str, Any]) -> list[Chart]:
    """The charts of the full form of an inspection, the loss first and wide; none for what has no finite value."""
    losses, gradients, updates = document["losses"], document["gradient_norms"], document["update_norms"]
    groups = {f"parameter group {number}": norms["values"] for number, norms in enumerate(updates)}
    course = " ".join(
        f"Parameter group {number}: {wording.course(norms)}." for number, norms in enumerate(updates[:MAX_LINES])
    )
    caption = None if len(updates) <= 2 else wording.many(len(updates), "parameter group")

    found = [
        _chart(document, WIDE, "loss", "Loss", "loss", {"loss": losses["values"]}, wording.course(losses)),
        _chart(
            document,
            NARROW,
            "gradient",
            "Gradient norm",
            "2-norm",
            {"": gradients["values"]},
            wording.course(gradients),
        ),
        _chart(document, NARROW, "updates", "Update norm of each parameter group", "2-norm", groups, course, caption),
    ]
    for number, name in enumerate(_shown_hyperparameters(document)):
        values = document["hyperparameters"]["values"][name]
        course = f"first {wording.figure(values[0])}, last {wording.figure(values[-1])}"
        found.append(_chart(document, NARROW, f"hyperparameter-{number}", name, "value", {name: values}, course))
    return [chart for chart in found if chart is not None]


def _shown_hyperparameters(document: dict[str, Any]) -> list[str]:
    """Numbers that change, and the learning rate even if it does not."""
    hyper = document["hyperparameters"]

    def shown(name: str) -> bool:
        value = hyper["first"][name]
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        return numeric and (name in hyper["changing"] or name in ("learning_rate", "lr"))

    return [name for name in hyper["first"] if shown(name)][:MAX_LINES]


def _chart(
    document: dict[str, Any],
    frame: Frame,
    key: str,
    title: str,
    axis: str,
    series: Mapping[str, Sequence[Any]],
    summary: str,
    caption: str | None = None,
) -> Chart | None:

    columns = {name: floats(values) for name, values in list(series.items())[:MAX_LINES]}
    scale = Scale.over(value for values in columns.values() for value in values)
    if scale is None:
        return None
    caption = summary if caption is None else caption
    wide, frame = frame is WIDE, _roomy(frame, scale)
    steps = max(map(len, columns.values()))
    thinned = {name: thin(values, (frame.right - frame.left) // 2) for name, values in columns.items()}
    gaps = sorted({step for points in thinned.values() for step, value in points if math.isnan(value)})
    marks = _events(document, frame, steps)
    marks += [
        Mark(frame.across(step, steps), "gap", f"not a finite number at or near step {step:,}")
        for step in gaps[:MAX_MARKS]
    ]
    if wide:
        caption = "; ".join([caption, *dict.fromkeys(_MEANINGS[mark.kind] for mark in marks)])

    return Chart(
        key=key,
        frame=frame,
        title=title,
        summary=summary,
        caption=caption,
        axis=f"{axis} (logarithmic)" if scale.logarithmic else axis,
        lines=tuple(Line(name, _path(frame, points, scale, steps)) for name, points in thinned.items()),
        rows=tuple(Tick(frame.down(tick, scale), label(tick)) for tick in scale.ticks(6)),
        columns=tuple(Tick(frame.across(step, steps), f"{step:,}") for step in _step_ticks(steps)),
        marks=tuple(marks),
        dense=steps > frame.right - frame.left,
        hidden=len(series) - len(columns),
    )


def _roomy(frame: Frame, scale: Scale) -> Frame:
    """The frame, its plot so far to the right that the widest tick label ends beside the axis's title, not on it."""
    widest = max((len(label(tick)) for tick in scale.ticks(6)), default=0)
    return replace(frame, left=max(frame.left, _TITLE + _DIGIT * widest))


def _events(document: dict[str, Any], frame: Frame, steps: int) -> list[Mark]:
    resumed, faults = document["resumes"][:MAX_MARKS], document["faults"][:MAX_MARKS]
    found = [
        Mark(frame.across(max(1, event["step"]), steps), "resume", f"continued after step {event['step']:,}")
        for event in resumed
    ]
    found += [Mark(frame.across(event["step"], steps), "fault", f"fault at step {event['step']:,}") for event in faults]
    return found


def _path(frame: Frame, points: Sequence[Point], scale: Scale, steps: int) -> str:
    parts: list[str] = []
    pen_down = False
    for place, (step, value) in enumerate(points):
        if math.isnan(value):
            pen_down = False
            continue
        parts.append(f"{'L' if pen_down else 'M'}{frame.across(step, steps)} {frame.down(value, scale)}")
        alone = place + 1 == len(points) or math.isnan(points[place + 1][1])
        if alone and not pen_down:
            parts.append("h0")  # a point between two gaps: a stroke without length, which round ends make a dot
        pen_down = True
    return "".join(parts)


def _step_ticks(steps: int) -> list[int]:
    inner = [int(tick) for tick in round_numbers(1, steps, 6) if tick >= 1 and tick == int(tick)]
    return sorted({1, *(tick for tick in inner if tick >= steps / 20)})
