"""Draws against a second implementation, written from the docstrings in another style (a list, one long digest)."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from protocol.randomness import Stream, draw

SEEDS = st.binary(min_size=32, max_size=32)


def field(data: bytes) -> bytes:
    return len(data).to_bytes(8, "big") + data


def words(seed: bytes, count: int) -> list[int]:
    key = hashlib.sha256(field(b"training-witness/v1/stream") + field(seed)).digest()
    output = hashlib.shake_256(key).digest(8 * count)
    return [int(output[8 * i : 8 * i + 8].hex(), 16) for i in range(count)]


def naive_below(source: list[int], n: int) -> int:
    while True:
        word = source.pop(0)
        # Keep a word if the whole block of n values that it falls in fits below 2**64.
        if word // n * n + n <= 2**64:
            return word - word // n * n


def naive_draw(seed: bytes, population: int, count: int) -> list[int]:
    source = words(seed, 4 * count + 64)
    deck = list(range(population))
    for i in range(min(count, population)):
        j = i + naive_below(source, population - i)
        deck[i], deck[j] = deck[j], deck[i]
    return deck[: min(count, population)]


@given(SEEDS, st.integers(1, 300), st.integers(0, 320))
def test_agrees_with_the_naive_draw(seed, population, count):
    assert draw(seed, population, count) == naive_draw(seed, population, count)


@given(SEEDS, st.lists(st.integers(1, 2**64) | st.sampled_from([2**63 + 1, 2**63, 2**64 - 1, 3, 1]), max_size=40))
def test_below_agrees_with_the_naive_one(seed, limits):
    source, stream = words(seed, 400), Stream(seed)
    assert [stream.below(n) for n in limits] == [naive_below(source, n) for n in limits]


@given(SEEDS, st.integers(1, 10**12), st.integers(0, 200), st.integers(0, 200))
def test_a_shorter_draw_is_a_prefix(seed, population, one, other):
    short, long = sorted((one, other))
    assert draw(seed, population, long)[:short] == draw(seed, population, short)


@given(SEEDS, st.integers(1, 10**12), st.integers(0, 200))
def test_distinct_and_in_range(seed, population, count):
    drawn = draw(seed, population, count)
    assert len(drawn) == len(set(drawn)) == min(count, population)
    assert all(0 <= number < population for number in drawn)


@given(SEEDS, st.integers(1, 200))
def test_drawing_all_is_a_permutation(seed, population):
    assert sorted(draw(seed, population, population)) == list(range(population))
