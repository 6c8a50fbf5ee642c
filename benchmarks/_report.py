"""What every experiment prints: a hardware line, the date, a table. Ratios within one run; the machines are noisy."""

from __future__ import annotations

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path


def heading(question: str) -> None:
    """The question, the machine and the day."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown CPU",
    )
    load = os.getloadavg()[0]
    print(f"### {question}\n")
    print(
        f"{datetime.datetime.now(tz=datetime.UTC).date()}; {len(os.sched_getaffinity(0))} cores of {model}; Python {platform.python_version()}; load {load:.1f} at the start.\n"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A Markdown table."""
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def percent(part: float, whole: float) -> str:
    """`part` as a percentage of `whole`."""
    return f"{100 * part / whole:.1f} %"


def middle(values: Sequence[float]) -> float:
    """Median seconds."""
    return statistics.median(values)
