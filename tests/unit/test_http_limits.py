"""What a server spends on strangers: sessions by address, sessions in all, sessions by time."""

import asyncio

import pytest
from http_support import Clock, StubSession

from protocol.errors import IncompleteError
from witness.http.limits import MAX_ADDRESSES, OpeningRate, network_of
from witness.http.sessions import Seat, SessionTable


def test_an_address_waits_exactly_until_its_oldest_session_is_a_minute_old():
    clock = Clock()
    rate = OpeningRate(2, clock)
    assert rate.wait("192.0.2.1") == 0
    clock.now += 20
    assert rate.wait("192.0.2.1") == 0
    clock.now += 10
    assert rate.wait("192.0.2.1") == 30
    assert rate.wait("192.0.2.2") == 0
    clock.now += 30
    assert rate.wait("192.0.2.1") == 0
    assert rate.wait("192.0.2.1") == 20


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:0:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("unix", "testclient", False),
    ],
)
def test_addresses_are_counted_by_the_network_one_customer_has(one, other, same):
    assert (network_of(one) == network_of(other)) == same


def test_the_rate_forgets_addresses_before_it_grows_without_bound():
    rate = OpeningRate(1, Clock())
    for number in range(MAX_ADDRESSES):
        rate.wait(f"a{number}")
    assert rate.wait("a1") > 0
    assert rate.wait("one more") == 0  # a0 was quiet longest
    assert rate.wait("a0") == 0
    assert len(rate._times) == MAX_ADDRESSES


def seated(table: SessionTable, identity: str, owner: str = "a stranger") -> Seat:
    seat = table.reserve(identity, owner)
    seat.session = StubSession(bytes.fromhex(identity))
    return seat


A, B, C = ("00" * 16, "11" * 16, "22" * 16)


def test_a_session_is_forgotten_after_a_long_silence_and_not_before():
    clock = Clock()
    table = SessionTable(8, 8, 100, clock)
    seated(table, A)
    seated(table, B)
    clock.now += 99
    assert table.find(A) is not None
    clock.now += 2
    assert table.find(B) is None
    clock.now += 97
    assert table.find(A) is not None
    clock.now += 100
    assert table.find(A) is None
    assert len(table) == 0


def test_a_live_session_is_never_dropped_for_a_new_one():
    table = SessionTable(2, 2, 100, Clock())
    seated(table, A)
    seated(table, B)
    with pytest.raises(IncompleteError) as caught:
        table.reserve(C, "another")
    assert caught.value.code == "busy"
    assert table.find(A) is not None
    assert table.find(B) is not None


def test_a_closed_session_makes_room_when_room_is_needed():
    table = SessionTable(2, 2, 100, Clock())
    seated(table, A)
    seated(table, B).session.closed = True
    assert table.find(B) is not None  # a repeated Close is still answered
    seated(table, C)
    assert table.find(B) is None
    assert table.find(A) is not None


def test_a_session_that_is_worked_on_is_not_idle():
    async def scene() -> None:
        clock = Clock()
        table = SessionTable(2, 2, 100, clock)
        seat = seated(table, A)
        async with seat.lock:
            clock.now += 1000
            assert table.find(A) is seat
        clock.now += 101
        assert table.find(A) is None

    asyncio.run(scene())


def test_a_reserved_place_is_not_a_session_yet():
    table = SessionTable(1, 1, 100, Clock())
    seat = table.reserve(A, "one")
    assert table.find(A) is None
    with pytest.raises(IncompleteError):
        table.reserve(B, "another")
    table.release(seat)
    table.release(seat)
    seated(table, B)


def test_an_address_cannot_take_every_place():
    table = SessionTable(9, 2, 100, Clock())
    seated(table, A, "greedy")
    first = seated(table, B, "greedy")
    with pytest.raises(IncompleteError) as caught:
        table.reserve(C, "greedy")
    assert caught.value.code == "rate"
    seated(table, "33" * 16, "modest")
    first.session.closed = True
    seated(table, C, "greedy")
