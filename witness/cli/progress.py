"""Progress on stderr: a bar on a terminal, a line now and then elsewhere, nothing with --json."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

_EVERY_SECONDS = 10.0


class Progress:
    """Shows which stage runs and how far it is; a context manager.

    Args:
        quiet: show nothing.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._shown = 0.0
        if not quiet and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(30),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def stage(self, text: str) -> None:
        """A new part begins."""
        if self._quiet:
            return
        if self._bar is not None:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(text, total=None, note="")
        else:
            print(text, file=sys.stderr, flush=True)
        self._shown = time.monotonic()

    def advance(self, done: int, total: int, note: str = "") -> None:
        """The part is at `done` of `total`."""
        if self._quiet:
            return
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, note=note)
        elif time.monotonic() - self._shown >= _EVERY_SECONDS:
            self._shown = time.monotonic()
            print(f"  {done} of {total} {note}", file=sys.stderr, flush=True)

    def line(self, text: str) -> None:
        """One line that stays."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)
