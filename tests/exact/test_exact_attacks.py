"""What once passed although its bits depend on something: each must have defined bits, or be refused."""

import math

import pytest
import torch

from protocol.errors import UsageError
from witness.arithmetic import scattering
from witness.arithmetic.mode import activate

DEVICE_ORDERS = ("own kernels", "by sorting")


@pytest.fixture(params=DEVICE_ORDERS)
def either_way(request, monkeypatch):
    """The CPU's kernels where they place in order, and what stands for them on other devices."""
    if request.param == "by sorting":
        monkeypatch.setattr(scattering, "_line_by_line", lambda x: not x.dim())


@pytest.fixture
def threads():
    """More threads than one, so that kernels split what they place."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def last_wins(size, index, source):
    """One after the other."""
    out = [0.0] * size
    for i, x in zip(index.tolist(), source.tolist(), strict=True):
        out[i] = x
    return out


INDEX = torch.arange(70001) * 7919 % 101
SOURCE = torch.arange(70001, dtype=torch.float32)


@pytest.mark.parametrize(
    "place",
    [
        lambda x: x.index_put((INDEX,), SOURCE),
        lambda x: x.clone().index_put_((INDEX - 101,), SOURCE),
        lambda x: x[None].clone().index_put((torch.zeros(1, dtype=torch.int64), INDEX), SOURCE)[0],
        lambda x: x.expand(3, 101).t().clone().index_put((INDEX,), SOURCE[:, None])[:, 2],
        lambda x: x.scatter(0, INDEX, SOURCE),
        lambda x: x.expand(3, 101).t().scatter(0, INDEX[:, None].expand(-1, 2), SOURCE[:, None].expand(-1, 2))[:, 1],
        lambda x: x.index_copy(0, INDEX, SOURCE),
        lambda x: x.expand(3, 101).clone().index_copy_(1, INDEX, SOURCE.expand(3, -1))[1],
        lambda x: x.put(INDEX, SOURCE),
        lambda _: torch.ops.aten.max_unpool2d(SOURCE.view(1, 1, 1, -1), INDEX.view(1, 1, 1, -1), [1, 101]).view(-1),
        lambda _: torch.ops.aten.max_unpool2d(SOURCE.expand(2, 1, -1), INDEX.expand(2, 1, -1), [1, 101])[1, 0],
    ],
)  # fmt: skip
def test_of_several_sources_for_one_place_the_last_wins(place, either_way, threads):
    with activate("exact-14"):
        assert place(torch.zeros(101)).tolist() == last_wins(101, INDEX, SOURCE)


def test_placing_where_no_place_is_met_twice_and_by_masks_is_torchs_own():
    x = torch.zeros(5, 4)
    expected = x.clone()
    expected[torch.tensor([3, -5])] = 2.0
    expected[torch.tensor([True, False, False, False, True]), 1] = 3.0
    expected[torch.tensor([[1], [2]]), torch.tensor([2, 3])] = 4.0
    with activate("exact-14"):
        x[torch.tensor([3, -5])] = 2.0
        x[torch.tensor([True, False, False, False, True]), 1] = 3.0
        x[torch.tensor([[1], [2]]), torch.tensor([2, 3])] = 4.0
        with pytest.raises(IndexError):
            x[torch.tensor([5, 5])] = 1.0
    assert torch.equal(x, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_weighted_counts_do_not_depend_on_the_order(dtype):
    bins = torch.tensor([3, 1, 3, 3, 1])
    weights = torch.tensor([1e4, 0.5, 1e-3, -1e4, 2.0], dtype=dtype)
    with activate("exact-14"):
        found = torch.bincount(bins, weights, minlength=6)
        again = torch.bincount(bins.flip(0), weights.flip(0), minlength=6)
        assert torch.bincount(bins).tolist() == [0, 2, 0, 3]
    assert torch.equal(found, again)
    assert found.dtype == torch.bincount(bins, weights).dtype
    assert found.tolist() == pytest.approx([0, 2.5, 0, weights[2].item(), 0, 0], abs=1e-7)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.as_strided((40, 8), (4, 1)).mul_(1.5),
        lambda x: x.as_strided((40, 8), (4, 1)).copy_(torch.ones(40, 8)),
        lambda x: x.as_strided((40, 8), (4, 1)).exp_(),
        lambda x: torch.add(torch.ones(40, 8), 1.0, out=x.as_strided((40, 8), (4, 1))),
        lambda x: x[:1].expand(5).add_(torch.ones(5)),
        lambda x: torch.as_strided_scatter(x, torch.ones(40, 8), (40, 8), (4, 1)),
        lambda x: torch._foreach_mul_([x.as_strided((40, 8), (4, 1))], 1.5),
    ],
)
def test_no_order_of_writes_to_shared_memory_is_chosen(write):
    with pytest.raises(UsageError, match=r"overlapping|share memory"), activate("exact-14"):
        write(torch.ones(400))


def test_views_that_share_nothing_may_be_written_to():
    x = torch.ones(4, 6, 5)
    with activate("exact-14"):
        x.permute(2, 0, 1)[::2].mul_(2.0)
        x[:, ::2].transpose(0, 2).add_(1.0)
        x[:, :1].expand(4, 1, 5).mul_(1.0)
        torch.ones(3).expand(4, 3).unsqueeze_(0)
    assert x[0, 0, 0].item() == 3.0


@pytest.mark.parametrize(
    "update",
    [
        lambda x, y: x.add_(y, alpha=0.5),
        lambda x, y: x.lerp_(y, 0.25),
        lambda x, y: x.addcmul_(y, x, value=0.5),
        lambda x, y: x.addcdiv_(x, y, value=0.5),
    ],
)
def test_updates_read_all_operands_before_they_write(update, threads):
    base = torch.arange(1.0, 70003.0)
    with activate("exact-14"):
        expected = update(base[1:].clone(), base[:-1].clone())
        update(base[1:], base[:-1])
    assert torch.equal(base[1:], expected)


def test_memory_that_nobody_wrote_to_holds_zeros():
    dirty = [torch.full((1000,), 7.0) for _ in range(20)]
    del dirty
    with activate("exact-14"):
        made = [
            torch.empty(1000),
            torch.empty_like(torch.ones(30, 4).t()),
            torch.ones(2).new_empty(1000),
            torch.FloatTensor(1000),
            torch.empty_strided((10, 10), (1, 30)),
            torch.empty_permuted((9, 9), (1, 0)),
            torch.empty(9, dtype=torch.int32),
            torch.ones(2).new_empty_strided((5, 5), (1, 5)),
        ]
        assert all(not t.any() for t in made)
        assert made[1].stride() == torch.empty_like(torch.ones(30, 4).t()).stride()
        grown = torch.arange(1.0, 4.0).resize_(1000)
        assert grown.tolist() == [1.0, 2.0, 3.0] + [0.0] * 997
        assert torch.ones(3).resize_as_(torch.ones(50, 2)).sum().item() == 3.0


def test_the_sign_of_a_nan_is_no_information():
    x = torch.tensor([math.nan, -math.nan, -0.0, 0.0, -2.0])
    x.view(torch.int32)[1] |= -(1 << 31)
    with activate("exact-14"):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            assert x.to(dtype).signbit().tolist() == [False, False, True, False, True]
            assert torch.ones(5, dtype=dtype).copysign(x.to(dtype)).tolist() == [1, 1, -1, 1, -1]
        assert torch.ones(2).copysign(-math.nan).tolist() == [1, 1]
        assert torch.tensor([math.inf, math.nan, 0.75]).frexp().exponent.tolist() == [0, 0, 0]


def test_multiplying_by_powers_of_two_needs_no_power_function():
    x = torch.tensor([0.75, -3.0, 1.0, 1.0, 1.0, 0.0, math.inf, 1.5])
    n = torch.tensor([3, -2, 128, -149, -150, 5, -500, -1])
    with activate("exact-14"):
        found = torch.ldexp(x, n).tolist()
        assert found == pytest.approx([6.0, -0.75, math.inf, 2.0**-149, 0, 0, math.nan, 0.75], rel=0, nan_ok=True)
        assert torch.ldexp(x[:2].double(), torch.tensor([-1074.0, 1023.0])).tolist()[1] == -math.inf
        assert torch.ldexp(torch.ones(1).double(), torch.tensor([-1074])).item() == 2.0**-1074
        with pytest.raises(UsageError, match="whole"):
            torch.ldexp(x, torch.full((8,), 0.5))


@pytest.mark.parametrize(
    "compute",
    [
        lambda z: z * z,
        lambda z: z.abs(),
        lambda z: z.sum(),
        lambda z: z + 1j,
        lambda _: torch.ones(3) * 1j,
        lambda _: torch.ones(3).to(torch.complex64),
        lambda _: torch.sum(torch.ones(3), dtype=torch.complex64),
        lambda z: torch._foreach_mul([z], [z]),
        lambda _: torch.complex(torch.ones(3), torch.ones(3)),
    ],
)
def test_complex_numbers_are_not_computed_with(compute):
    z = torch.ones(3, dtype=torch.complex64)
    with pytest.raises(UsageError), activate("exact-14"):
        compute(z)


def test_conversions_to_half_precision_go_by_way_of_float32():
    wide = torch.tensor([1.0 + 2.0**-8 + 2.0**-40], dtype=torch.float64)  # in float32 a tie of bfloat16
    large = torch.tensor([(1 << 40) + (1 << 32) + 1])
    with activate("exact-14"):
        for x in (wide, large):
            assert torch.equal(x.bfloat16(), x.float().bfloat16())
            assert torch.equal(torch.zeros(1, dtype=torch.bfloat16).copy_(x), x.float().bfloat16())
        assert wide.bfloat16().item() == 1.0


def test_operators_into_given_tensors_are_those_of_their_functional_form():
    x = torch.tensor([[1.0, 3.0, 3.0], [2.0, 0.0, -1.0]])
    with activate("exact-14"):
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
        torch.max(x, 1, out=(values, indices))
        assert (values.tolist(), indices.tolist()) == ([3.0, 2.0], [1, 0])
        torch.sort(x, 1, out=(values, indices))
        assert values.tolist() == [[1.0, 3.0, 3.0], [-1.0, 0.0, 2.0]]
        assert torch.equal(torch.softmax(x, 1, out=torch.empty(0)), torch.softmax(x, 1))
        assert torch.equal(torch.max(x, x + 1, out=torch.empty(0)), x + 1)
        assert torch.rand(3, out=torch.empty(3, dtype=torch.float64)).dtype == torch.float64
        assert torch.arange(0, 1, 0.25, out=torch.empty(4, dtype=torch.float64)).tolist() == [0, 0.25, 0.5, 0.75]
        with pytest.raises(UsageError):
            torch.linalg.inv(torch.eye(3), out=torch.empty(3, 3))
