"""Softmax and its kin: the definition read by hand, both forms, float64 autograd, rows of infinities and NaN."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from exact import reference_rows as reference
from exact.two_forms import bits, both, distance, gradients, same, tensors_only
from hypothesis import given, settings
from hypothesis import strategies as st

from witness.arithmetic.layers import softmax as definitions
from witness.arithmetic.mode import activate

INF, NAN = math.inf, math.nan
FLOATS = (
    st.floats(width=32, min_value=-1e3, max_value=1e3)
    | st.floats(width=32, min_value=-3, max_value=3)
    | st.sampled_from([0.0, -0.0, 1e-40, 3e38, -3e38, -INF, -INF, 88.0, -104.0])
)


def tensor(rows) -> torch.Tensor:
    return torch.tensor(np.array(rows, np.float32))


def scalars(x: torch.Tensor):
    return [np.float32(v) for v in x.reshape(-1).tolist()]


def numbers(*shape: int, salt: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt)) * 4


@settings(max_examples=80, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=40), st.data())
def test_a_row_is_the_definition_read_by_hand(row, data):
    g = data.draw(st.lists(st.floats(width=32, min_value=-9, max_value=9), min_size=len(row), max_size=len(row)))
    x, up = tensor(row), tensor(g)
    (y,) = both(lambda: [definitions.softmax(x, 0)])
    (z,) = both(lambda: [definitions.log_softmax(x, 0)])
    (s,) = both(lambda: [definitions.logsumexp(x, 0)])
    with np.errstate(all="ignore"):
        values = scalars(x)
        assert bits(y) == bits(tensor(reference.softmax(values)))
        assert bits(z) == bits(tensor(reference.log_softmax(values)))
        assert bits(s) == bits(tensor([reference.logsumexp(values)]))
        (dy,) = both(lambda: [definitions.softmax_backward(up, y, 0, torch.float32)])
        (dz,) = both(lambda: [definitions.log_softmax_backward(up, z, 0, torch.float32)])
        assert bits(dy) == bits(tensor(reference.softmax_backward(scalars(up), scalars(y))))
        assert bits(dz) == bits(tensor(reference.log_softmax_backward(scalars(up), scalars(z))))


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((5, 7), -1),
        ((3, 768), 1),
        ((3, 4, 50), 1),
        ((2, 1001), -1),
        ((40, 3), 0),
        ((7, 200), 0),
        ((2, 19, 6, 33), 1),
        ((), 0),
        ((6, 1), 1),
        ((3, 0), 0),
    ],
)
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_any_dimension_is_near_float64_and_forms_agree(shape, dim, name):
    def function(x):
        return getattr(x, name)(dim)

    x = numbers(*shape)
    with activate("exact-14"):
        found = both(lambda: gradients(function, x))
        strided = gradients(function, x.t().contiguous().t()) if len(shape) == 2 else found
    assert same(found, strided)
    expected = gradients(function, x.double())
    assert all(a.shape == b.shape for a, b in zip(found, expected, strict=True))
    assert all(distance(a, b) < 2e-6 for a, b in zip(found, expected, strict=True))


def test_a_long_row_keeps_its_sum():
    x = numbers(4, 50257)
    with activate("exact-14"):
        y, z = both(lambda: [x.softmax(-1), x.log_softmax(-1)])
    assert (y.double().sum(1) - 1).abs().max() < 1e-6
    assert distance(y, x.double().softmax(-1)) < 1e-6
    assert distance(z, x.double().log_softmax(-1)) < 1e-6


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_special_rows_are_what_torch_makes_of_them(name):
    rows = [
        [-INF] * 5, [INF, 1, 2, 3, 4], [NAN, 1, 2, 3, 4], [-INF, 1, 2, 3, -INF], [INF, -INF, 0, 0, 0],
        [-INF, NAN, 0, 0, 0],
        [INF, INF, 0, 0, 0], [3e38, -3e38, 0, 0, 0], [-INF, -INF, -INF, -INF, 2.0], [-0.0, -INF, -INF, -INF, -INF],
    ]  # fmt: skip
    x = torch.tensor(rows)
    negative = torch.where(x.isnan(), torch.tensor(-0x400000, dtype=torch.int32).view(torch.float32), x)
    assert (negative.view(torch.int32) == -0x400000).sum() == 2  # NaN with a sign, which sorts below -infinity
    with activate("exact-14"):
        found = both(lambda: [getattr(t, name)(-1) for t in (x, negative)])
        assert same(
            found, both(lambda: [getattr(t.t(), name)(0).t() for t in (x, negative)] if name != "logsumexp" else found)
        )
    expected = getattr(x.double(), name)(-1).float()
    for y in found:
        assert y.isnan().tolist() == expected.isnan().tolist()
        assert y.isinf().tolist() == expected.isinf().tolist()
        finite = expected.isfinite()
        assert torch.allclose(y[finite], expected[finite], rtol=1e-6, atol=1e-7)


def test_rows_without_anything_are_zero_where_softmax_is_safe():
    x = torch.tensor([[-INF, -INF], [0.0, -INF], [NAN, -INF]])
    (y,) = both(lambda: [definitions.safe_softmax(x, -1)])
    assert y[:2].tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert y[2].isnan().all()


def test_masked_softmax_leaves_out_what_is_covered():
    x, covered = numbers(2, 3, 5, 5), torch.rand(5, 5) > 0.5
    covered[2] = True
    with activate("exact-14"):
        y = torch._masked_softmax(x, covered, 3, 0)
    expected = x.double().masked_fill(covered, -INF).softmax(-1).nan_to_num(0.0)
    assert distance(y, expected) < 1e-6
    g = numbers(2, 3, 5, 5, salt=1)
    dx = definitions.masked_softmax_backward(g, y, covered.expand_as(x), 3)
    assert (dx[covered.expand_as(x)] == 0).all()
    inner = (g.double() - (g.double() * expected).sum(-1, keepdim=True)) * expected
    assert distance(dx, inner) < 1e-6


def test_a_row_does_not_notice_its_neighbours():
    x = numbers(9, 130)
    with activate("exact-14"):
        for function in (torch.softmax, torch.log_softmax, torch.logsumexp):
            whole = function(x, 1)
            assert all(torch.equal(whole[i], function(x[i], 0)) for i in range(9))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_converted_once_each_way(dtype):
    x = numbers(4, 33).to(dtype)
    with activate("exact-14"):
        for function in (torch.softmax, torch.log_softmax):
            assert torch.equal(function(x, 1), function(x.float(), 1).to(dtype))
            assert torch.equal(function(x, 1, dtype=torch.float32), function(x.float(), 1))
            value, dx = gradients(lambda t, f=function: f(t, 1), x)
            assert value.dtype == dx.dtype == dtype


def test_float64_has_its_own_definition():
    x = numbers(4, 33).double()
    for name in ("softmax", "log_softmax", "logsumexp"):
        with activate("exact-14"):
            found = gradients(lambda t, n=name: getattr(t, n)(1), x)
        expected = gradients(lambda t, n=name: getattr(t, n)(1), x)
        assert found[0].dtype == torch.float64
        assert all(distance(a, b) < 1e-14 for a, b in zip(found, expected, strict=True))


def test_threads_do_not_matter():
    x = numbers(900, 200)

    def computed():
        y, z = definitions.softmax(x, 1), definitions.log_softmax(x, 1)
        return [
            y,
            z,
            definitions.softmax_backward(x, y, 1, x.dtype),
            definitions.log_softmax_backward(x, z, 1, x.dtype),
        ]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = computed()
        torch.set_num_threads(3)
        assert same(one, computed())
        with tensors_only():
            assert same(one, computed())
    finally:
        torch.set_num_threads(threads)


def test_gumbel_softmax_and_softmin_go_the_same_way():
    x = numbers(5, 6)
    with activate("exact-14"):
        assert torch.equal(F.softmin(x, 1), (-x).softmax(1))
        torch.manual_seed(3)
        first = F.gumbel_softmax(x)
        torch.manual_seed(3)
        with tensors_only():
            assert torch.equal(first, F.gumbel_softmax(x))


@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_a_dimension_that_is_not_there_is_an_error(name):
    with activate("exact-14"):
        for shape, dim in (((2, 3), 2), ((2, 3), -3), ((), 1)):
            with pytest.raises(IndexError):
                getattr(torch.zeros(shape), name)(dim)
