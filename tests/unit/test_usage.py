"""The uses of many documents at once, against one at a time; and what is too much to list."""

import time
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.corpus import Documents, Packing, describe
from protocol.usage import MAX_EPOCHS, MAX_ORDERED, steps_of, usage
from protocol.uses import holding, uses

SIZES = st.integers(1, 12)
PACKINGS = st.just(Packing("documents")) | st.builds(lambda n, s: Packing("windows", n, s), SIZES, SIZES)


def corpus(lengths: list[int], packing: Packing) -> Documents:
    leaves, at = [], 0
    for index, length in enumerate(lengths):
        leaves.append(describe(index, at, [bytes(length)]))
        at += length
    return Documents(leaves, packing)


def manifest(claim: object, batch: int) -> SimpleNamespace:
    return SimpleNamespace(corpus=claim, seed=SimpleNamespace(value="07" * 32), batch_size=batch)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), PACKINGS, st.integers(1, 5), st.integers(0, 40))
def test_many_at_once_are_what_each_is_alone(lengths: list[int], packing: Packing, batch: int, steps: int) -> None:
    documents = corpus(lengths, packing)
    run = manifest(documents.claim(), batch)
    asked = [*documents.leaves, documents.leaves[0]]
    alone = [tuple(uses(run, steps, holding(run.corpus, leaf))) for leaf in asked]  # type: ignore[arg-type]
    assert usage(run, steps, asked) == alone  # type: ignore[arg-type]
    assert [steps_of(one) for one in alone] == [sorted({use.step for use in one}) for one in alone]


def test_a_document_too_long_to_list_takes_nothing_from_the_others() -> None:
    documents = corpus([50, 50], Packing("windows", 5, 5))
    run = manifest(documents.claim(), 4)
    short = documents.leaves[1]
    endless = short._replace(token_start=0, token_length=1 << 62)
    began = time.monotonic()
    found = usage(run, 5, [endless] * 5000 + [short])  # type: ignore[arg-type]
    assert found[:-1] == [None] * 5000 and len(found[-1]) == 10
    assert time.monotonic() - began < 2


def test_orders_too_long_to_make_again_are_not_made() -> None:
    documents = corpus([1] * 4, Packing("documents"))
    run = manifest(documents.claim(), 1)
    assert usage(run, MAX_ORDERED + 4, list(documents.leaves)) == [None] * 4  # type: ignore[arg-type]
    assert usage(run, 4 * MAX_EPOCHS + 1, list(documents.leaves)) == [None] * 4  # type: ignore[arg-type]
