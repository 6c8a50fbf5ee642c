"""The halving sum against a scalar reading of its definition; compiled form against tensor form."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from witness.arithmetic import compiled
from witness.arithmetic.mode import activate
from witness.arithmetic.summation import sums

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1e-45, -3e38, 1.5])


def reference(values: list[np.float32]) -> np.float32:
    """`x[i] + x[h + i]`, one numpy scalar at a time."""
    if not values:
        return np.float32(0)
    while len(values) > 1:
        h = (len(values) + 1) // 2
        tail = values[h:]
        values = [values[i] + tail[i] if i < len(tail) else values[i] for i in range(h)]
    return values[0]


def bits(x: torch.Tensor) -> list[int]:
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x).reshape(-1).view(torch.int32).tolist()


@settings(max_examples=150, deadline=None)
@given(st.lists(FLOATS, max_size=70), st.booleans())
def test_a_row_is_summed_by_halving(values, kernels):
    compiled.switch(kernels)
    try:
        with np.errstate(all="ignore"):
            expected = reference([np.float32(v) for v in values])
        found = sums.total(torch.tensor(values, dtype=torch.float32))
        assert bits(found) == bits(torch.tensor(expected))
    finally:
        compiled.switch(True)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.data())
def test_any_dimensions_of_any_shape_agree_in_both_forms(shape, data):
    dims = data.draw(st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda d: d % len(shape)))
    keepdim = data.draw(st.booleans())
    x = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))
    fast = sums.total(x, dims, keepdim)
    compiled.switch(False)
    try:
        slow = sums.total(x, dims, keepdim)
        strided = sums.total(x.transpose(0, -1).contiguous().transpose(0, -1), dims, keepdim)
    finally:
        compiled.switch(True)
    assert bits(fast) == bits(slow) == bits(strided)
    assert fast.shape == x.sum(dims, keepdim).shape


@pytest.mark.parametrize("shape", [(3, 1000, 300), (2000, 3), (1, 100_003), (5, 2, 257)])
def test_large_shapes_agree_in_both_forms_and_with_threads(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append([bits(sums.total(x, d)) for d in range(x.dim())])
    torch.set_num_threads(before)
    compiled.switch(False)
    results.append([bits(sums.total(x, d)) for d in range(x.dim())])
    compiled.switch(True)
    assert results[0] == results[1] == results[2] == results[3]


def test_what_is_summed_is_not_changed():
    x = torch.randn(7, 300)
    kept = x.clone()
    sums.total(x)
    sums.total(x, 0)
    sums.mean(x, 1)
    sums.scan(x, 1)
    assert torch.equal(x, kept)


def test_infinities_and_nan_go_where_addition_takes_them():
    inf, nan = float("inf"), float("nan")
    assert sums.total(torch.tensor([1.0, inf, 2.0])).item() == inf
    assert sums.total(torch.tensor([-inf, inf, 2.0])).isnan()
    assert sums.total(torch.tensor([1.0, nan])).isnan()


@settings(max_examples=40, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_prefix_sums_follow_log_steps(values):
    line = [np.float32(v) for v in values]
    distance = 1
    with np.errstate(all="ignore"):
        while distance < len(line):
            line = [line[i] if i < distance else line[i] + line[i - distance] for i in range(len(line))]
            distance *= 2
    assert bits(sums.scan(torch.tensor(values, dtype=torch.float32), 0)) == bits(torch.tensor(np.array(line)))


@pytest.mark.parametrize(
    "call", [lambda x: x.sum(5), lambda x: x.mean(-3), lambda x: x.sum((0, 0)), lambda x: x.var(2)]
)
def test_dimensions_that_are_not_there_are_an_error(call):
    with pytest.raises((IndexError, RuntimeError)), activate("exact-14"):
        call(torch.ones(2, 3))
