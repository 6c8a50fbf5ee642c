"""Plain data maps to JSON and back without losing a bit, and nothing else decodes."""

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import decode, encode
from protocol.errors import ProtocolError, UsageError
from protocol.plain import from_plain, to_plain

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=40)
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.binary(max_size=8)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.lists(inner, max_size=4)
    return lists | lists.map(tuple) | st.dictionaries(HASHABLE, inner, max_size=4) | st.sets(HASHABLE, max_size=4)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack(">d", a) == struct.pack(">d", b)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    return bool(a == b)


@given(st.recursive(SCALARS, containers, max_leaves=12))
def test_round_trip(value: Any) -> None:
    try:
        data = encode(to_plain(value))
    except UsageError:  # lone surrogates have no UTF-8
        assert "\\ud" in ascii(value)
        return
    assert same(from_plain(decode(data, Any, limit=1 << 20)), value)


@given(st.floats())
def test_floats_keep_their_bits(value: float) -> None:
    again = from_plain(to_plain(value))
    assert struct.pack(">d", again) == struct.pack(">d", value)


@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 2), [1, 2]), (1, 1.0), (True, 1), ("f64:0", 0.0), ("1", 1), (b"a", "a"), (0.0, -0.0), ({}, [])],
)
def test_different_values_have_different_forms(left: Any, right: Any) -> None:
    assert encode(to_plain(left)) != encode(to_plain(right))


@pytest.mark.parametrize(
    "form",
    [
        "x",
        "f64:3FF0000000000000",
        "f32:3f80000",
        "i:5",
        "i:+99999999999999999999",
        "b:AB",
        "b:0",
        {"tuple": 1},
        {"dict": [["s:a"]]},
        {"dict": [[[], 1]]},
        {"set": [[]]},
        {"other": 1},
        {"tuple": [], "set": []},
        1.5,
    ],
)
def test_what_to_plain_does_not_write_does_not_decode(form: Any) -> None:
    with pytest.raises(ProtocolError):
        from_plain(form)


def test_a_value_inside_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError, match="nested"):
        to_plain(loop)


def test_objects_are_refused_by_place() -> None:
    with pytest.raises(UsageError, match=r"value\['a'\]\[1\]"):
        to_plain({"a": [1, object()]})
    assert math.isnan(from_plain(to_plain(math.nan)))
