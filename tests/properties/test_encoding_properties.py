"""Canonical bytes: the profile agrees with RFC 8785, and no other spelling of a value is decoded."""

from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from protocol.encoding import MAX_INTEGER, MAX_LEVELS, Count, Hex32, Struct, decode, encode
from protocol.errors import ProtocolError, UsageError

KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


class Sample(Struct, frozen=True):
    count: Count
    digest: Hex32
    names: tuple[str, ...] = ()


@given(VALUES)
def test_the_profile_is_rfc_8785(value):
    data = encode(value)
    assert data == rfc8785.dumps(value)
    assert decode(data, Any, limit=len(data)) == value


@given(VALUES, st.data())
def test_another_spelling_of_a_value_is_refused(value, data):
    """A byte inserted, removed or replaced gives another value or nothing."""
    canonical = encode(value)
    at = data.draw(st.integers(0, len(canonical)))
    cut = data.draw(st.integers(at, min(at + 1, len(canonical))))
    edited = (
        canonical[:at]
        + data.draw(st.sampled_from([b"", b" ", b"0", b"\n", b"\\", b'"', b",", b"\x7f"]))
        + canonical[cut:]
    )
    if edited != canonical:
        try:
            other = decode(edited, Any, limit=1000)
        except ProtocolError as error:
            assert error.code == "not-canonical"
        else:
            assert other != value


@pytest.mark.parametrize(
    "data",
    [
        b'{"count":1.0,"digest":"%b","names":[]}',
        b'{"count":1e0,"digest":"%b","names":[]}',
        b'{"count":-0,"digest":"%b","names":[]}',
        b'{"count":-1,"digest":"%b","names":[]}',
        b'{"count":01,"digest":"%b","names":[]}',
        b'{"count":NaN,"digest":"%b","names":[]}',
        b'{"count":Infinity,"digest":"%b","names":[]}',
        b'{"count":true,"digest":"%b","names":[]}',
        b'{"count":"1","digest":"%b","names":[]}',
        b'{"count":9007199254740992,"digest":"%b","names":[]}',
        b'{"count":18446744073709551617,"digest":"%b","names":[]}',
        b'{"count":1,"count":1,"digest":"%b","names":[]}',
        b'{"count":2,"count":1,"digest":"%b","names":[]}',
        b'{"digest":"%b","count":1,"names":[]}',
        b'{"count":1,"digest":"%b"}',
        b'{"count":1,"digest":"%b","names":[],"more":0}',
        b'{"count":1,"digest":"%b","names":[]}\n',
        b'{"count":1, "digest":"%b","names":[]}',
        b'\xef\xbb\xbf{"count":1,"digest":"%b","names":[]}',
        b'{"count":1,"digest":"%b","names":["\\u0041"]}',
        b'{"count":1,"digest":"%b","names":["\\/"]}',
        b'{"count":1,"digest":"%b","names":["\\u001F"]}',
        b'{"count":1,"digest":"%b","names":["\\u000a"]}',
        b'{"count":1,"digest":"%b","names":["\\ud800"]}',
        b'{"count":1,"digest":"%b","names":["\\ud83d\\ude02"]}',
        b'{"count":1,"digest":"%b","names":["\xff"]}',
        b'{"count":1,"digest":"%b","names":["\xed\xa0\x80"]}',
        b'{"count":1,"digest":"%b","names":["\n"]}',
        b'{"c\\u006funt":1,"digest":"%b","names":[]}',
        b'{"count":1,"digest":"A%b","names":[]}',
        b"",
    ],
)
def test_non_canonical_structs(data):
    digest = b"ab" * 32
    canonical = b'{"count":1,"digest":"%b","names":[]}' % digest
    assert decode(canonical, Sample, limit=200) == Sample(1, digest.decode())
    assert encode(Sample(1, digest.decode())) == canonical
    edited = data.replace(b"%b", digest)
    assert edited != canonical
    with pytest.raises(ProtocolError) as caught:
        decode(edited, Sample, limit=1000)
    assert caught.value.code == "not-canonical"


def test_escapes_have_one_spelling():
    text = "".join(map(chr, range(0x21))) + '"\\/\x7f\u0080\u2028\U0001f602'
    assert encode(text) == rfc8785.dumps(text)
    assert decode(encode(text), str, limit=1000) == text


@pytest.mark.parametrize(
    "value",
    [
        1.0,
        float("nan"),
        float("inf"),
        2**53,
        -(2**53),
        "\ud800",
        ["a\udfff"],
        {"\u00e9": 1},
        {"\n": 1},
        {"\x7f": 1},
        {1: 1},
        [{"a": 0.5}],
    ],
)
def test_values_without_a_canonical_encoding(value):
    with pytest.raises(UsageError) as caught:
        encode(value)
    assert caught.value.code == "unencodable"


def test_integers_up_to_the_edge():
    assert encode([MAX_INTEGER, -MAX_INTEGER, 0]) == b"[9007199254740991,-9007199254740991,0]"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"":', "}")])
@pytest.mark.parametrize("innermost", ["0", '"[[["', "[]", "{}"])
def test_values_nest_as_deep_as_every_reader_follows(opening, closing, innermost):
    for levels in (MAX_LEVELS, MAX_LEVELS + 1):
        text = (opening * (levels - 1) + innermost + closing * (levels - 1)).encode()
        if levels == MAX_LEVELS:
            value = decode(text, Any, limit=1 << 16)
            assert encode(value) == text
            continue
        with pytest.raises(ProtocolError) as caught:
            decode(text, Any, limit=1 << 16)
        assert caught.value.code == "not-canonical"
        with pytest.raises(UsageError) as caught:
            encode([value] if opening == "[" else {"": value})
        assert caught.value.code == "unencodable"


def test_depth_bomb():
    with pytest.raises(ProtocolError) as caught:
        decode(b"[" * 100_000 + b"]" * 100_000, Any, limit=1_000_000)
    assert caught.value.code == "not-canonical"
    with pytest.raises(ProtocolError) as caught:
        decode(b"[" * 100_000 + b"]" * 100_000, Any, limit=100_000)
    assert caught.value.code == "too-large"
