"""Frames: what is packed unpacks; whatever else arrives is refused, within the caps."""

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol import messages as m
from protocol.errors import ProtocolError

SESSION = "ab" * 16
REQUESTS = [
    m.Hello(m.Policy("0.99", "0.01"), "cd" * 32),
    m.GetHeads(SESSION, 0),
    m.GetLog(SESSION, 3),
    m.GetLeaves(SESSION, 1),
    m.GetSource(SESSION, "a/b.py"),
    m.Reveal(SESSION, "ef" * 32, 9),
    m.OpenState(SESSION, 4, 0),
    m.ReadPieces(SESSION, 4, 7),
    m.OpenRecords(SESSION, 4, 0),
    m.Close(SESSION),
]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: type(r).__name__)
def test_requests_round_trip(request_: m.Request) -> None:
    assert m.unpack_request(m.pack(request_)) == request_


@given(st.binary(max_size=300))
@example(b"\xff\xff\xff\xff")
@example(b"\x00\x00\x00\x00")
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        m.unpack_request(data)
    with pytest.raises(ProtocolError):
        m.unpack_reply(data, m.Part)


@given(st.sampled_from(REQUESTS), st.data())
def test_one_changed_byte_never_means_the_same(request_: m.Request, data: st.DataObject) -> None:
    frame = bytearray(m.pack(request_))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(ProtocolError):
        assert m.unpack_request(bytes(frame)) != request_


@pytest.mark.parametrize("text", ["\n", " ", "x", "AB", "é"])
def test_identifiers_have_one_spelling(text: str) -> None:
    import msgspec

    good = msgspec.json.encode(m.Close(SESSION), order="sorted")
    bad = good.replace(SESSION.encode(), (SESSION[: -len(text)] + text).encode())
    with pytest.raises(ProtocolError):
        m.unpack_request(len(bad).to_bytes(4, "big") + bad)
    longer = good.replace(SESSION.encode(), (SESSION + "\\n").encode())
    with pytest.raises(ProtocolError):
        m.unpack_request(len(longer).to_bytes(4, "big") + longer)


def test_a_reply_to_another_request_is_refused() -> None:
    with pytest.raises(ProtocolError, match="Done answers"):
        m.unpack_reply(m.pack(m.Done()), m.Part)
    for frame in (m.pack(m.Pending(1, 2)), m.pack(m.Refusal("session", "no"))):
        m.unpack_reply(frame, m.Part)


def test_caps_hold_before_parsing() -> None:
    with pytest.raises(ProtocolError) as caught:
        m.unpack_request(bytes(m.MAX_REQUEST + 1))
    assert caught.value.code == "too-large"
    with pytest.raises(ProtocolError) as caught:
        m.unpack_reply(bytes(m.MAX_REPLY + m.MAX_HEADER + 1), m.Part)
    assert caught.value.code == "too-large"


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_entries_join_and_split(entries: list[bytes]) -> None:
    joined = m.join_entries(entries)
    assert m.split_entries(joined) == entries
    for cut in range(1, len(joined)):
        with contextlib.suppress(ProtocolError):
            found = m.split_entries(joined[:cut])
            assert found == entries[: len(found)]
