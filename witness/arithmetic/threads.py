"""A mode belongs to a thread: threads that a program starts, and tasks that it gives to pools, are put under it too.

torch hands its modes on to the threads of autograd and of `torch.jit.fork`, but not to those of Python. So while the
arithmetic is active, `Thread.start` and `ThreadPoolExecutor.submit` are replaced. Whatever is started from a thread
under the arithmetic computes under it for as long as it is active, and as it likes afterwards. A forked process has the
modes of the thread that forked; one that is spawned has none, and is refused. Threads that were running before, and
that the program talks to through queues of its own, cannot be seen from here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import thread as pools
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_start_method
from multiprocessing.process import BaseProcess
from typing import Any

from protocol.errors import UsageError


@dataclass(slots=True)
class Scope:
    """One activation.

    Attributes:
        active: whether it lasts.
        members: the threads that are under it.
    """

    active: bool = True
    members: set[int] = field(default_factory=lambda: {threading.get_ident()})

    def covers(self) -> bool:
        """Whether the calling thread is under it."""
        return self.active and threading.get_ident() in self.members

    def wrapped(
        self, function: Callable[..., Any], modes: Callable[[Scope], AbstractContextManager[Any]]
    ) -> Callable[..., Any]:
        """`function`, under the modes in whichever thread it is called."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            me = threading.get_ident()
            if not self.active or me in self.members:
                return function(*args, **kwargs)
            self.members.add(me)
            try:
                with modes(self):
                    return function(*args, **kwargs)
            finally:
                self.members.discard(me)

        return call


_open: list[Scope] = []


@contextmanager
def under(modes: Callable[[Scope], AbstractContextManager[Any]]) -> Iterator[Scope]:
    """Puts what is started meanwhile under `modes`.

    Args:
        modes: makes the modes of one thread; they must let everything pass when the scope is no longer active.

    Raises:
        UsageError: `exact-refused`, where the arithmetic is active in another thread: what is replaced for it, and its
            precision, are the process's.
    """
    outer = _open[-1] if _open else None
    if outer is not None and not outer.covers():
        raise UsageError("exact-refused", "exact arithmetic is active in another thread of this process: one at a time")
    scope = Scope()
    _open.append(scope)
    start, given, spawn = threading.Thread.start, ThreadPoolExecutor.submit, BaseProcess.start

    def started(self: threading.Thread) -> None:
        if scope.covers() and getattr(self, "_target", None) is not pools._worker:  # noqa: SLF001
            self.run = scope.wrapped(self.run, modes)  # type: ignore[method-assign]
        start(self)

    def submitted(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return given(self, scope.wrapped(fn, modes) if scope.covers() else fn, *args, **kwargs)

    def spawned(self: BaseProcess) -> None:
        method = getattr(self, "_start_method", None) or get_start_method()
        if scope.covers() and method != "fork":
            raise UsageError(
                "exact-refused",
                f"a process that is started by {method} has arithmetic of its own: start it by fork, or before",
            )
        spawn(self)

    threading.Thread.start = started  # type: ignore[method-assign]
    ThreadPoolExecutor.submit = submitted  # type: ignore[method-assign, assignment]
    BaseProcess.start = spawned  # type: ignore[method-assign]
    try:
        yield scope
    finally:
        scope.active = False
        _open.remove(scope)
        threading.Thread.start, ThreadPoolExecutor.submit = start, given  # type: ignore[method-assign]
        BaseProcess.start = spawn  # type: ignore[method-assign]
