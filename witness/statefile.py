"""States and batches on disk: safetensors, and never anything that executes.

One file holds one state: a tensor for each entry, under its name, and under `@entries` the canonical list of entries,
because a container's own header is not canonical and does not know scalars or aliases. Whoever reads a file hashes what
it read and compares with a committed root; the container itself is never hashed. Needs no torch.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import safetensors
from safetensors.numpy import load, save_file

from protocol.encoding import decode, encode
from protocol.errors import ProtocolError, UsageError, VerificationError
from protocol.statetree import MAX_TABLE, Entry, Pieces, validate

_INDEX = "@entries"
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_state(
    path: Path, entries: Iterable[Entry], data: Callable[[str], memoryview | bytes], *, durable: bool = True
) -> None:
    """Writes a state file atomically: a crash leaves the old file or none.

    Args:
        path: of the file.
        entries: of the state.
        data: gives the little-endian bytes of an entry by name.
        durable: flush to the disk; False for files that another process reads at once and nobody keeps.

    Raises:
        UsageError: `disk-full` or `disk`.
    """
    entries = tuple(entries)
    tensors = {entry.name: np.frombuffer(data(entry.name), dtype=np.uint8) for entry in entries}
    tensors[_INDEX] = np.frombuffer(encode(entries), dtype=np.uint8)
    try:
        if durable:
            atomic_write(path, lambda temporary: save_file(tensors, temporary))
        else:
            save_file(tensors, path)
    except safetensors.SafetensorError as error:
        raise disk_error(path, OSError(28, str(error))) from error


def read_state(path: Path, pieces: Pieces) -> tuple[list[Entry], dict[str, bytes]]:
    """Reads a state file of unknown origin; see `parse_state`.

    Raises:
        ProtocolError: `state-file`.
    """
    return parse_state(read_file(path), pieces, path.name)


def read_file(path: Path, *, follow: bool = False) -> bytes:
    """The bytes of a file that a stranger may have put there: no pipe is waited for, no memory filled.

    Args:
        path: of the file.
        follow: whether it may be a link; only for a path that a person named.

    Raises:
        ProtocolError: `state-file`.
    """
    try:
        with open_regular(path, follow=follow) as file:
            size, memory = os.fstat(file.fileno()).st_size, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            if size > memory:
                raise ProtocolError("state-file", f"{path.name} is {size} bytes, more than this machine has")
            return file.read()
    except OSError as error:
        raise ProtocolError("state-file", f"{path.name} cannot be read: {error.strerror}") from None


def open_regular(path: Path, *, follow: bool = False) -> BinaryIO:
    """Opens a regular file for reading; nothing else can take its place and make us wait.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW))

    file = open(path, "rb", opener=opener)  # noqa: SIM115 - the caller's to close
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def parse_state(data: bytes, pieces: Pieces, name: str) -> tuple[list[Entry], dict[str, bytes]]:
    """The state in the bytes of a state file.

    Returns:
        The entries, and the little-endian bytes of each by name. Nothing is trusted: compare the root.

    Raises:
        ProtocolError: `state-file`.
    """
    try:
        found = load(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ProtocolError("state-file", f"{name} cannot be read: {error}") from None
    index = found.pop(_INDEX, None)
    if index is None:
        raise ProtocolError("state-file", f"{name} has no list of entries")
    entries = decode(index.tobytes(), tuple[Entry, ...], limit=MAX_TABLE)
    validate(entries, pieces)
    buffers = {}
    for entry in entries:
        part = found.pop(entry.name, None)
        if part is None or part.dtype != np.uint8 or part.nbytes != entry.size:
            raise ProtocolError("state-file", f"{name} does not hold {entry.name} as its entry says")
        buffers[entry.name] = part.tobytes()
    if found:
        raise ProtocolError("state-file", f"{name} holds {min(found)}, which no entry names")
    return list(entries), buffers


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Writes through a temporary file, flushes it to disk and renames it into place.

    Raises:
        UsageError: `disk-full`, `disk`.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(path, error) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a small file atomically."""
    atomic_write(path, lambda temporary: temporary.write_bytes(data))


@contextmanager
def naming(*paths: Path) -> Iterator[None]:
    """Within it, an error about what a file of a run holds says which file it is, or which of them may be."""
    try:
        yield
    except (ProtocolError, VerificationError) as error:
        name = " or ".join(f"{path.parent.name}/{path.name}" for path in paths)
        if name in str(error):
            raise
        raise type(error)(
            error.code, f"{name}: {error}", evidence=error.evidence, next_action=error.next_action
        ) from error


def disk_error(path: Path, error: OSError) -> UsageError:
    """The error for a disk that refuses: nothing that was written before is lost."""
    code = "disk-full" if error.errno in DISK_FULL else "disk"
    action = None
    if not path.parent.is_dir():  # nothing is wrong with the disk
        action = f"make the folder {path.parent}, or name a file in one that exists"
    evidence = {"path": str(path)}
    return UsageError(code, f"cannot write {path}: {error.strerror or error}", evidence=evidence, next_action=action)
