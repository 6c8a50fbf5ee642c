"""Accumulation at places the data chooses: order cannot matter, and the integers are the ones that are defined."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from witness.arithmetic.mode import activate
from witness.arithmetic.summation import placing

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def reference(size: int, index: list[int], source: list[float]) -> list[float]:
    """One column, in rational arithmetic, from the text of the definition."""
    largest = max((abs(v) for v in source), default=0.0)
    e = max(math.frexp(largest)[1], -900) if largest else -900
    n = len(source)
    bits = min(40, 63 - max(1, math.ceil(math.log2(n + 1))))
    total = [0] * size
    for i, v in zip(index, source, strict=True):
        total[i] += round(Fraction(v) * Fraction(2) ** (bits - e))  # round() of a Fraction is half to even
    with np.errstate(over="ignore", under="ignore"):
        return [float(np.float32(np.float64(t) * np.float64(2.0) ** (e - bits))) for t in total]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), FLOATS), min_size=1, max_size=40), st.randoms())
def test_sums_are_the_defined_integers_in_any_order(pairs, random):
    index, source = [i for i, _ in pairs], [v for _, v in pairs]
    expected = reference(7, index, source)
    random.shuffle(pairs)
    found = placing.accumulate(
        7, torch.tensor([i for i, _ in pairs]), torch.tensor([v for _, v in pairs], dtype=torch.float32)
    )
    assert found.tolist() == expected


def test_special_values_reach_only_their_own_places():
    inf, nan = math.inf, math.nan
    index = torch.tensor([0, 0, 1, 1, 2, 3, 3])
    source = torch.tensor([inf, 1.0, inf, -inf, nan, 2.0, 3.0])
    found = placing.accumulate(5, index, source)
    assert found[0] == inf
    assert found[1].isnan()
    assert found[2].isnan()
    assert found[3:].tolist() == [5.0, 0.0]


def test_subnormals_and_the_largest_floats_do_not_hang_or_vanish():
    tiny, huge = 1e-45, 3e38
    assert placing.accumulate(1, torch.tensor([0, 0]), torch.tensor([tiny, tiny])).item() == pytest.approx(2 * tiny)
    assert placing.accumulate(1, torch.tensor([0, 0]), torch.tensor([huge, huge])).item() == math.inf
    assert placing.accumulate(2, torch.zeros(0, dtype=torch.int64), torch.zeros(0)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("case", ["embedding", "index_add", "scatter_add", "index_put", "index_backward", "gather"])
def test_every_spelling_is_near_torchs_and_free_of_order(case):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(9, 5, generator=g)
    index = torch.randint(0, 9, (400,), generator=g)
    source = torch.randn(400, 5, generator=g)
    order = torch.randperm(400, generator=g)

    def run(index, source):
        leaf = x.clone().requires_grad_()
        if case == "embedding":
            (torch.nn.functional.embedding(index, leaf) * source).sum().backward()
            return leaf.grad
        if case == "index_backward":
            (leaf[index] * source).sum().backward()
            return leaf.grad
        if case == "gather":
            (leaf.gather(0, index[:, None].expand(-1, 5)) * source).sum().backward()
            return leaf.grad
        if case == "index_add":
            return x.index_add(0, index, source, alpha=0.5)
        if case == "scatter_add":
            return x.scatter_add(0, index[:, None].expand(-1, 5), source)
        return x.clone().index_put_((index,), source, accumulate=True)

    with activate("exact-14"):
        exact, shuffled = run(index, source), run(index[order], source[order])
    native = run(index, source)
    assert torch.equal(exact, shuffled)
    assert torch.allclose(exact, native, atol=1e-4)
