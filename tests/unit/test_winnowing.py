"""Winnowing against its definition in plain integers, and the guarantee that everything rests on."""

import hashlib
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import winnowing
from protocol.encoding import decode, encode
from protocol.errors import ProtocolError, UsageError
from protocol.ledger_claim import LedgerClaim, document_key
from protocol.winnowing import Gram, Winnowing, guarantee, select, select_many, select_stream, span_key

M = 1 << 64


def mix(z):
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % M
    z = (z ^ z >> 27) * 0x94D049BB133111EB % M
    return z ^ z >> 31


def naive(data, rule):
    """The definition, gram by gram and window by window."""
    size = rule.width
    units = [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
    hashes = [mix((unit + 1) * 0x9E3779B97F4A7C15 % M) for unit in units]
    orders = []
    for at in range(len(units) - rule.k + 1):
        total = 0
        for value in hashes[at : at + rule.k]:
            total = (total * 0xD1342543DE82EF95 + value) % M
        orders.append(mix(total) >> 24)
    chosen = set()
    for at in range(len(orders) - rule.w + 1):
        window = orders[at : at + rule.w]
        chosen.add(max(at + i for i, order in enumerate(window) if order == min(window)))
    return [Gram(at, hashlib.sha256(data[at * size : (at + rule.k) * size]).digest()) for at in sorted(chosen)]


def noise(length, label=b"noise"):
    return hashlib.shake_256(label).digest(length)


rules = st.builds(Winnowing, st.integers(1, 20), st.integers(1, 20), st.sampled_from(["bytes", "u16", "u32"]))
# Few letters and repetitions make equal grams, and ties are where windows could disagree.
documents = st.one_of(
    st.binary(max_size=200),
    st.lists(st.sampled_from([b"a", b"b", b"ab", b"aaaa", b"\x00\x00"]), max_size=80).map(b"".join),
)


@given(documents, rules)
def test_the_definition_in_plain_integers(data, rule):
    data = data[: len(data) - len(data) % rule.width]
    assert select(data, rule) == naive(data, rule)


@given(st.lists(st.lists(documents, max_size=4), max_size=8), rules, st.sampled_from([1, 5, 64, 1 << 13]))
def test_many_documents_choose_what_each_chooses_alone(found, rule, block):
    """However they lie among each other, and wherever stretches end."""
    chunked = []
    for chunks in found:
        rest = sum(map(len, chunks)) % rule.width
        chunked.append([*chunks, bytes(rule.width - rest)] if rest else chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(winnowing, "_BLOCK", block)
        selections = list(select_many(list(enumerate(map(iter, chunked), 7)), rule))
    listed = [
        (document, Gram(position, digest.tobytes()))
        for one in selections
        for document, position, digest in zip(one.documents.tolist(), one.positions.tolist(), one.digests, strict=True)
    ]
    assert listed == [(n, gram) for n, chunks in enumerate(chunked, 7) for gram in naive(b"".join(chunks), rule)]


def test_a_document_among_many_that_ends_within_a_unit_is_refused():
    with pytest.raises(UsageError) as caught:
        list(select_many([(0, [bytes(200)]), (1, [bytes(201)]), (2, [bytes(199)])], Winnowing(3, 3, "u16")))
    assert caught.value.code == "span-units"


@pytest.mark.parametrize("rule", [Winnowing(), Winnowing(50, 51), Winnowing(7, 64, "u16"), Winnowing(33, 1, "u32")])
def test_the_definition_on_longer_documents(rule):
    data = noise(6000) + b"the same words again and again " * 40 + bytes(800)
    assert select(data, rule) == naive(data, rule)


@pytest.mark.parametrize("rule", [Winnowing(32, 19), Winnowing(16, 17, "u16"), Winnowing(5, 3, "u32")])
def test_the_density_is_that_of_random_orders(rule):
    """2 / (w + 1) on text without repetitions: Schleimer et al., section 3.2."""
    found = len(select(noise(40_000 * rule.width), rule))
    assert 40_000 * 1.9 / (rule.w + 1) < found < 40_000 * 2.1 / (rule.w + 1)


@given(st.data(), rules)
@settings(max_examples=80)
def test_a_span_that_is_long_enough_brings_its_grams_wherever_it_stands(data, rule):
    """The guarantee: what the span chooses alone, every document that holds it has chosen."""
    span = data.draw(st.binary(min_size=rule.guarantee * rule.width, max_size=(rule.guarantee + 30) * rule.width))
    before, after = data.draw(documents), data.draw(documents)
    parts = [part[: len(part) - len(part) % rule.width] for part in (before, span, after)]
    asked = {gram.digest for gram in select(parts[1], rule)}
    kept = {gram.digest for gram in select(b"".join(parts), rule)}
    assert asked and asked <= kept


def test_no_gap_between_chosen_grams_is_longer_than_a_window():
    rule = Winnowing(8, 11)
    places = [gram.position for gram in select(noise(5000), rule)]
    assert places[0] < rule.w and 5000 - rule.k - places[-1] < rule.w
    assert all(0 < right - left <= rule.w for left, right in pairwise(places))


@pytest.mark.parametrize("rule", [Winnowing(4, 5), Winnowing(1, 1), Winnowing(3, 2, "u16")])
def test_shorter_than_a_window_chooses_nothing(rule):
    """Not even a short gram: it would be chosen here and not in the document around it, and its absence a lie."""
    assert rule.guarantee == rule.w + rule.k - 1 == guarantee(rule.k, rule.w)
    for units in range(rule.guarantee):
        assert select(noise(units * rule.width), rule) == []
    assert len(select(noise(rule.guarantee * rule.width), rule)) == 1


def test_among_equals_the_rightmost():
    rule = Winnowing(2, 3)
    assert [gram.position for gram in select(b"\x00" * 10, rule)] == [2, 3, 4, 5, 6, 7, 8]
    assert select(b"\x00" * 4, rule) == [Gram(2, hashlib.sha256(b"\x00\x00").digest())]


def test_a_window_of_one_chooses_every_gram():
    data = noise(100)
    assert select(data, Winnowing(10, 1)) == [Gram(i, hashlib.sha256(data[i : i + 10]).digest()) for i in range(91)]


LONG = noise(300_000)
"""Longer than four of the stretches that are ordered at a time."""


@pytest.mark.parametrize("rule", [Winnowing(), Winnowing(9, 4000), Winnowing(4000, 9, "u16"), Winnowing(3, 5, "u32")])
def test_chunks_may_be_cut_anywhere(rule):
    dice = random.Random(9)
    whole = select(LONG, rule)
    cuts = sorted(dice.sample(range(len(LONG)), 50))
    pieces = [LONG[left:right] for left, right in zip([0, *cuts], [*cuts, len(LONG)], strict=True)]
    assert list(select_stream(pieces, rule)) == whole
    assert list(select_stream([LONG[:150_001], b"", memoryview(LONG)[150_001:]], rule)) == whole
    assert [gram.position for gram in whole] == sorted({gram.position for gram in whole})
    for gram in whole[:: max(1, len(whole) // 50)]:
        start = gram.position * rule.width
        assert hashlib.sha256(LONG[start : start + rule.k * rule.width]).digest() == gram.digest


def test_a_stretch_boundary_changes_no_choice():
    """Around every place where stretches may meet, the choice is that of the neighbourhood alone."""
    rule = Winnowing(5, 7)
    whole = {gram.position for gram in select(LONG, rule)}
    for middle in range(65_536 - 40, 3 * 65_536, 65_536):
        around = {middle + gram.position for gram in naive(LONG[middle : middle + 120], rule)}
        inside = range(middle + rule.w, middle + 120 - rule.guarantee)
        assert around & set(inside) == whole & set(inside) != set()


def test_byte_by_byte():
    data, rule = noise(400), Winnowing(6, 7)
    assert list(select_stream((data[at : at + 1] for at in range(400)), rule)) == select(data, rule)
    assert list(select_stream([], rule)) == []


@pytest.mark.parametrize(("unit", "length"), [("u16", 3), ("u32", 6), ("u32", 1), ("u16", 131_073 * 2 + 1)])
def test_half_a_token_is_refused(unit, length):
    with pytest.raises(UsageError) as caught:
        select(bytes(length), Winnowing(2, 2, unit))
    assert caught.value.code == "span-units"


@pytest.mark.parametrize("rule", [Winnowing(), Winnowing(1, 1), Winnowing(4096, 4096, "u16"), Winnowing(16, 17, "u32")])
def test_a_tier_names_its_parameters(rule):
    assert Winnowing.of_tier(rule.tier) == rule
    assert decode(encode(rule), Winnowing, limit=100) == rule
    LedgerClaim(rule.tier, "11" * 32, 1, 1)
    assert span_key(rule, b"g" * 32) == document_key(rule.tier, b"g" * 32)
    assert span_key(rule, b"g" * 32) != span_key(Winnowing(31, 19), b"g" * 32)


def test_the_default_tier():
    assert Winnowing().tier == "t2-winnow-bytes-k32-w19" and Winnowing().guarantee == 50


@pytest.mark.parametrize(
    "tier",
    [
        "t0-sha256",
        "t2-winnow-bytes-k32-w19\n",
        "t2-winnow-bytes-k032-w19",
        "t2-winnow-bits-k1-w1",
        "t2-winnow-u16-k5000-w1",
    ],
)
def test_other_names_are_no_tiers_of_spans(tier):
    with pytest.raises(ProtocolError) as caught:
        Winnowing.of_tier(tier)
    assert caught.value.code == "not-canonical"


@pytest.mark.parametrize(("k", "w"), [(0, 1), (1, 0), (-1, 5), (4097, 1), (1, 4097)])
def test_impossible_parameters_are_refused(k, w):
    with pytest.raises(ProtocolError) as caught:
        Winnowing(k, w)
    assert caught.value.code == "not-canonical"
