"""Token files as nanoGPT, modded-nanogpt and llm.c write them: little-endian integers, with or without a header.

The header is 256 int32: a magic number, a version, the number of tokens, zeros. Documents are parted at a delimiter
token, which belongs to the document that it begins or ends, so that the concatenation of all documents is the token
stream that training reads. Nothing is converted: a document is a range of its file.
"""

import struct
from collections.abc import Iterator

import numpy as np

from protocol.corpus import token_bytes
from protocol.errors import UsageError
from witness.data.files import DataFile, Layout
from witness.data.options import DataOptions, damaged
from witness.data.reader import Chunk, InPlace, whole

HEADER_BYTES = 1024
HEADERS = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Magic and version of a header, and the tokens after it: llm.c's for GPT-2 (modded-nanogpt's too) and for Llama 3."""
MAGICS = frozenset(magic for magic, _ in HEADERS)


class TokenReader(InPlace):
    """The documents of token files.

    Args:
        options: `tokens`, `header`, `delimiter`, `delimiter_at`.
        first: a file to look at, for what the options leave open; all files must be like it.
    """

    def __init__(self, options: DataOptions, first: DataFile) -> None:
        options.require_only("format", "tokens", "header", "delimiter", "delimiter_at")
        self._looks = options.header is not False
        found = read_header(first) if self._looks else None
        if options.header and found is None:
            raise damaged(first, "not a token file with a header: its magic number is not known")
        self.header = found is not None
        self.tokenizer = found or options.tokens or "uint16"
        if options.tokens not in (None, self.tokenizer):
            raise UsageError("data-option", f"{first} holds {self.tokenizer} tokens, as its header says")
        self._dtype = np.dtype(f"<u{token_bytes(self.tokenizer)}")
        self._delimiter = options.delimiter
        self._after = (options.delimiter_at or ("start" if self.header else "end")) == "end"
        if self._delimiter is None:
            if options.delimiter_at is not None:
                raise UsageError("data-option", "delimiter_at needs a delimiter")
        elif not 0 <= self._delimiter < 256**self._dtype.itemsize:
            raise UsageError("data-option", f"no {self.tokenizer} token is {self._delimiter}")

    def layout(self, file: DataFile) -> Layout:
        """Where the tokens stand."""
        if self._looks and read_header(file) != (self.tokenizer if self.header else None):
            raise damaged(file, f"its header is not like that of the first file, which has {self.tokenizer} tokens")
        offset = HEADER_BYTES if self.header else 0
        length = file.stamp.length - offset
        if length % self._dtype.itemsize:
            raise damaged(file, f"{length} bytes of tokens, which are no whole number of {self.tokenizer}")
        if self.header:
            _, _, count = struct.unpack("<3i", file.read(0, 12)[0])
            if count * self._dtype.itemsize != length:
                raise damaged(file, f"{length} bytes of tokens where its header tells of {count} tokens")
        return Layout(offset, length, 1 if self._delimiter is None else None)

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The documents."""
        found = self.layout(file)
        if self._delimiter is None:
            return whole(file, opened, found.offset, found.offset + found.length)
        return self._parted(file, opened, found)

    def _parted(self, file: DataFile, opened: int, found: Layout) -> Iterator[Chunk]:
        width = self._dtype.itemsize
        seen = at = 0
        data = b""
        for data in file.chunks(opened, found.offset, found.offset + found.length):
            tokens = np.frombuffer(data, self._dtype, len(data) // width)
            at = 0
            for cut in ((np.flatnonzero(tokens == self._delimiter) + self._after) * width).tolist():
                if seen + cut:  # a delimiter that begins the file parts nothing
                    yield Chunk(data[at:cut], True, cut - at)
                at = cut
            if at < len(data):
                yield Chunk(data[at:], False, len(data) - at)
            seen += len(data)
        if at < len(data):
            yield Chunk(b"", True, 0)


def read_header(file: DataFile) -> str | None:
    """The tokens that a header announces; None where there is no header.

    Raises:
        UsageError: `data-file`, for a header that is cut short or of an unknown version.
    """
    start = file.read(0, 8)[0]
    if len(start) < 8:
        return None
    magic, version = struct.unpack("<2i", start)
    if magic not in MAGICS:
        return None
    if (magic, version) not in HEADERS or file.stamp.length < HEADER_BYTES:
        raise damaged(file, f"a token file's header of version {version}, which is not known, or cut short")
    return HEADERS[magic, version]
