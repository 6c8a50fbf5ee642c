"""Arrays in safetensors files: one document a row of one tensor, read where it stands.

The format is a length (8 bytes, little-endian), that many bytes of JSON, and the tensors' bytes: little-endian,
row-major, back to back. Its own library maps files; here the header is read and the rows are ranges of the file.
"""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from protocol.corpus import token_bytes
from protocol.errors import UsageError
from witness.data.arrays import row_layout
from witness.data.files import DataFile, Layout
from witness.data.options import DataOptions, damaged
from witness.data.reader import Chunk, InPlace, rows

MAX_HEADER = 100_000_000
"""The cap of the format's own library."""
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}
_TOKENS = {"uint16": "U16", "uint32": "U32"}
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


class TensorReader(InPlace):
    """The rows of one tensor.

    Args:
        options: `tensor`, and `tokens`.
    """

    def __init__(self, options: DataOptions) -> None:
        options.require_only("format", "tensor", "tokens")
        self._tensor, self.tokenizer = options.tensor, options.tokens or "bytes"

    def layout(self, file: DataFile) -> Layout:
        """Where the rows stand, from the header."""
        tensors, base = read_header(file)
        name = self._choose(file, tensors)
        tensor = tensors[name]
        if self.tokenizer != "bytes" and tensor.dtype != _TOKENS[self.tokenizer]:
            raise UsageError("corpus-data", f"{file}: {name!r} holds {tensor.dtype}, not {self.tokenizer} tokens")
        if not tensor.shape:
            raise UsageError("corpus-data", f"{file}: {name!r} is a single number and has no rows")
        begin, end = tensor.data_offsets
        found = row_layout(file, base + begin, tensor.shape, end - begin, file.stamp.length - base - end)
        if (found.each or 0) % token_bytes(self.tokenizer):
            raise damaged(file, f"the rows of {name!r} end within a token")
        return found

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The rows."""
        found = self.layout(file)
        return rows(file, opened, found.offset, found.documents or 0, found.each or 0)

    def _choose(self, file: DataFile, tensors: dict[str, _Tensor]) -> str:
        name = next(iter(tensors)) if self._tensor is None and len(tensors) == 1 else self._tensor
        if name is None or name not in tensors:
            listed = ", ".join(sorted(tensors)[:8]) + (", ..." if len(tensors) > 8 else "")
            raise UsageError(
                "data-option",
                f"{file} has no tensor {name!r}" if name is not None else f"{file} has {len(tensors)} tensors",
                evidence={"tensors": listed},
                next_action="name one of its tensors",
            )
        return name


def read_header(file: DataFile) -> tuple[dict[str, Any], int]:
    """The tensors of a file by name, and where their bytes begin.

    Raises:
        UsageError: `data-file`, when the header is not one, or does not account for every byte.
    """
    size = int.from_bytes(file.read(0, 8)[0], "little")
    if not 2 <= size <= min(MAX_HEADER, file.stamp.length - 8):
        raise damaged(file, "not a safetensors file, or cut short")
    try:
        entries = _decoder.decode(file.read(8, 8 + size)[0])
        entries.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(entry, type=_Tensor) for name, entry in entries.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(file, f"its header is not that of a safetensors file ({error})") from None
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        length = ITEM_BYTES.get(tensor.dtype)
        if length is None:
            raise damaged(file, f"{name!r} has elements of an unknown type {tensor.dtype[:20]!r}")
        for extent in tensor.shape:
            length *= extent
        if tensor.data_offsets != (at, at + length):
            raise damaged(file, f"{name!r} does not stand where its header says")
        at += length
    if 8 + size + at != file.stamp.length:
        raise damaged(file, f"{file.stamp.length} bytes where its header tells of {8 + size + at}")
    return tensors, 8 + size
