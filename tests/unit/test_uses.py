"""Document -> samples -> steps, against the forward direction: schedule and spans."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.corpus import Documents, Packing, describe
from protocol.schedule import Schedule
from protocol.uses import holding, uses


def corpus(lengths: list[int], packing: Packing) -> Documents:
    leaves, at = [], 0
    for index, length in enumerate(lengths):
        leaves.append(describe(index, at, [bytes(length)]))
        at += length
    return Documents(leaves, packing)


SIZES = st.integers(1, 12)
PACKINGS = st.just(Packing("documents")) | st.builds(lambda n, s: Packing("windows", n, s), SIZES, SIZES)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), PACKINGS, st.integers(1, 5), st.integers(0, 40))
def test_backward_equals_forward(lengths: list[int], packing: Packing, batch: int, steps: int) -> None:
    documents = corpus(lengths, packing)
    if documents.samples < 1:
        return
    seed = b"\x07" * 32
    manifest = SimpleNamespace(corpus=documents.claim(), seed=SimpleNamespace(value=seed.hex()), batch_size=batch)
    schedule = Schedule(seed, documents.samples, batch)
    for leaf in documents.leaves:
        forward = []
        for step in range(1, steps + 1):
            for place, sample in enumerate(schedule.indices(step)):
                held = sum(stop - start for d, start, stop in documents.spans(sample) if d == leaf.index)
                if held or (packing.kind == "documents" and sample == leaf.index):
                    forward.append((step, place, held))
        assert [tuple(use) for use in uses(manifest, steps, holding(documents.claim(), leaf))] == sorted(forward)  # type: ignore[arg-type]


def test_an_empty_document_is_in_no_window() -> None:
    documents = corpus([5, 0, 5], Packing("windows", 4, 2))
    assert holding(documents.claim(), documents.leaves[1]) == []


def test_endless_lists_are_refused() -> None:
    documents = corpus([1], Packing("windows", 1, 1))
    claim = documents.claim()
    huge = documents.leaves[0]._replace(token_length=1 << 40, length=1 << 40)
    import msgspec

    with pytest.raises(Exception, match="fills"):
        holding(msgspec.structs.replace(claim, tokens=1 << 40), huge)
