"""How far an examination is, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

Progress = Callable[[str, int, int], None]
"""Called with what is being read, bytes done and bytes in all."""

_TELL_BYTES = 1 << 20


class Meter:
    """Adds up bytes and tells about once a megabyte.

    Args:
        total: bytes in all, as far as that is known.
        progress: whom to tell; None for nobody.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total = 0, total
        self._progress, self._what, self._told = progress, "", 0

    @contextmanager
    def part(self, what: str, size: int) -> Iterator[None]:
        """A part of `size` bytes: when it ends, however it ends, they are done."""
        begin, self._what = self.done, what
        self._tell()
        try:
            yield
        finally:
            self.done = begin + size
            self._tell()

    def advance(self, count: int) -> None:
        """So many bytes more of the part are done."""
        self.done += count
        if self.done - self._told >= _TELL_BYTES:
            self._tell()

    def watch(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Passes chunks on and counts them."""
        for chunk in chunks:
            self.advance(len(chunk))
            yield chunk

    def _tell(self) -> None:
        self._told = self.done
        if self._progress is not None:
            self._progress(self._what, self.done, max(self.total, self.done))
