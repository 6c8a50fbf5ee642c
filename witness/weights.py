"""A file of published weights as a state table, so that its root can be held to the one the run released.

The container is safetensors as everybody writes it: one tensor an entry, under its name, with a
dtype. Needs no torch.
"""

from __future__ import annotations

from pathlib import Path

import safetensors

from protocol.errors import ProtocolError
from protocol.statetree import Entry, Pieces, Table, validate
from witness.hashing import hash_state
from witness.statefile import read_file

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}
"""Dtypes of state entries by the names that safetensors gives them."""


def read_weights(path: Path, pieces: Pieces) -> Table:
    """The table over the tensors of a weights file of unknown origin. Nothing is trusted: compare the root.

    Args:
        path: of the file.
        pieces: how the run cuts states.

    Raises:
        ProtocolError: `state-file`, `state-table`.
    """
    try:
        found = dict(safetensors.deserialize(read_file(path, follow=True)))  # type: ignore[no-untyped-call]
    except (safetensors.SafetensorError, ValueError, MemoryError) as error:
        raise ProtocolError("state-file", f"{path.name} cannot be read: {error}") from error
    entries = []
    for name in sorted(found, key=str.encode):
        dtype = DTYPES.get(found[name]["dtype"])
        if dtype is None:
            raise ProtocolError("state-file", f"{path.name}: {name[:80]} has the unknown dtype {found[name]['dtype']}")
        entries.append(Entry(name, dtype, tuple(found[name]["shape"])))
    validate(entries, pieces)
    return hash_state(entries, lambda name: memoryview(found[name]["data"]), pieces)
