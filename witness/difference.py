"""Naming the first element in which two tensors differ, without torch."""

import struct

import numpy as np

from protocol.statetree import ITEM_BYTES, JSON, Entry

_NUMPY = frozenset(ITEM_BYTES) - {JSON, "bfloat16", "float8_e4m3fn", "float8_e5m2"}


def first_element(entry: Entry, start: int, left: bytes, right: bytes) -> tuple[int, str, str] | None:
    """The first differing element of two pieces of one tensor.

    Args:
        entry: of the tensor.
        start: byte offset of both pieces in it.
        left: bytes of the one.
        right: bytes of the other.

    Returns:
        Index of the element in the flattened tensor and both values as text (for `json`, the offset and both texts);
        None if equal.
    """
    size = ITEM_BYTES[entry.dtype]
    length = min(len(left), len(right))
    a, b = np.frombuffer(left[:length], np.uint8), np.frombuffer(right[:length], np.uint8)
    differing = np.flatnonzero(a != b)
    if not len(differing) and len(left) == len(right):
        return None
    at = int(differing[0]) if len(differing) else length
    if entry.dtype == JSON:
        return (
            start + at,
            left[max(0, at - 40) : at + 40].decode("utf-8", "replace"),
            right[max(0, at - 40) : at + 40].decode("utf-8", "replace"),
        )
    at -= at % size
    return (start + at) // size, value(entry.dtype, left[at : at + size]), value(entry.dtype, right[at : at + size])


def value(dtype: str, item: bytes) -> str:
    """One element as text: its value and, where that may hide a bit, its bits."""
    bits = item[::-1].hex()
    if dtype in _NUMPY:
        number = np.frombuffer(item, dtype=dtype)[0]
        return f"{number!s} (0x{bits})" if "float" in dtype or "complex" in dtype else str(number)
    if dtype == "bfloat16":
        return f"{struct.unpack('<f', bytes(2) + item)[0]!s} (0x{bits})"
    return f"0x{bits}"
