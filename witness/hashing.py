"""Hashing a live state into its table, on several threads: hashlib releases the GIL for more than 2 KiB."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from protocol.statetree import Entry, Pieces, Table, ranges

_TASK_BYTES = 1 << 21
_pool: ThreadPoolExecutor | None = None


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(min(8, len(os.sched_getaffinity(0))), thread_name_prefix="witness-hash")
    return _pool


def hash_state(entries: Sequence[Entry], data: Callable[[str], memoryview | bytes], pieces: Pieces) -> Table:
    """The table of a state: SHA-256 of every piece, and the root.

    Args:
        entries: in name order.
        data: gives the little-endian bytes of an entry by name.
        pieces: how bytes are cut.
    """
    tasks: list[list[memoryview]] = [[]]
    size = 0
    for entry in entries:
        view = memoryview(data(entry.name))
        for start, stop in ranges(entry, pieces):
            tasks[-1].append(view[start:stop])
            size += stop - start
            if size >= _TASK_BYTES:
                tasks.append([])
                size = 0
    if len(tasks) == 1:
        digests = _digest(tasks[0])
    else:
        digests = [digest for chunk in _threads().map(_digest, tasks) for digest in chunk]
    return Table(entries, digests, pieces)


def _digest(views: list[memoryview]) -> list[bytes]:
    sha256 = hashlib.sha256
    return [sha256(view).digest() for view in views]
