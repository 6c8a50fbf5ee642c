"""gzip and zstd, a bounded amount at a time, to the last byte or not at all.

A file that stops early is refused: whoever commits to what could be read of it commits to less than was meant, and the
one who reads it with another tool gets an error. Both formats may hold several members (frames) one after another.
"""

import zlib
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal

from witness.data.corpus import CHUNK
from witness.data.files import DataFile
from witness.data.options import Allowance, damaged, extra_missing

Compression = Literal["gzip", "zstd"]
MAGIC: dict[bytes, Compression] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""First bytes of a file. No JSON text and no UTF-8 begins with them."""
SUFFIXES: dict[str, Compression] = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
MAX_WINDOW = 1 << 27
"""Memory that a zstd frame may ask for: what its command line allows, too."""
_FEED = {"gzip": 1 << 16, "zstd": 1 << 11}
"""Compressed bytes given to the library at a time. A zstd call returns all that they expand to: 32768 times as many at
most (a block of 4 bytes may stand for 128 KiB)."""


def compression(file: DataFile) -> Compression | None:
    """What a file is compressed with, by its first bytes."""
    start, _ = file.read(0, 4)
    return next((found for magic, found in MAGIC.items() if start.startswith(magic)), None)


def expand(file: DataFile, opened: int, kind: Compression) -> Iterator[tuple[bytes, int]]:
    """The content of a compressed file, in parts, each with the number of compressed bytes that were read for it.

    Raises:
        UsageError: `data-file`, when the file is cut short or damaged; `data-expands`; `extra-missing`.
    """
    allowance = Allowance(file, file.stamp.length)
    steps = _gunzip(file, opened) if kind == "gzip" else _unzstd(file, opened)
    for data, read in steps:
        allowance.take(len(data))
        yield data, read


def _fed(file: DataFile, opened: int, size: int) -> Iterator[bytes]:
    for chunk in file.chunks(opened, 0, file.stamp.length):
        for at in range(0, len(chunk), size):
            yield chunk[at : at + size]


def _gunzip(file: DataFile, opened: int) -> Iterator[tuple[bytes, int]]:
    """RFC 1952; zlib checks each member's CRC and length. Zeros after the last member are padding, as for gzip(1)."""
    if file.stamp.length == 0:
        raise damaged(file, "empty, and so not gzip data")
    member: Any = None
    for fed in chain(_fed(file, opened, _FEED["gzip"]), [b""]):
        rest, read = fed, len(fed)
        while rest or (member is not None and not fed):  # at the end, output may still be held back
            if member is None:
                if not rest.strip(b"\0"):
                    break
                member = zlib.decompressobj(wbits=31)
            try:
                data = member.decompress(rest, CHUNK)
            except zlib.error as error:
                raise damaged(file, f"not gzip data, or damaged ({error})") from None
            rest = member.unconsumed_tail
            if member.eof:
                member, rest = None, member.unused_data
            elif not fed and not data:
                raise damaged(file, "the gzip data is cut short")
            yield data, read
            read = 0


def _unzstd(file: DataFile, opened: int) -> Iterator[tuple[bytes, int]]:
    """RFC 8878."""
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise extra_missing(error) from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
    if file.stamp.length == 0:
        raise damaged(file, "empty, and so not zstd data")
    frame: Any = None
    parts: list[bytes] = []
    read = held = 0
    for rest in _fed(file, opened, _FEED["zstd"]):
        read += len(rest)
        while rest:
            frame = frame or decompressor.decompressobj()
            try:
                parts.append(frame.decompress(rest))
            except zstandard.ZstdError as error:
                raise damaged(file, f"not zstd data, or damaged ({error})") from None
            held += len(parts[-1])
            rest, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
        if held >= CHUNK:
            yield b"".join(parts), read
            parts, read, held = [], 0, 0
    if frame is not None:
        raise damaged(file, "the zstd data is cut short")
    yield b"".join(parts), read
