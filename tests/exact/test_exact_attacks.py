"""What once passed although its bits depend on something: each must have defined bits, or be refused."""

import asyncio
import math
import multiprocessing.pool
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils._pytree import tree_map

from protocol.errors import UsageError
from witness.arithmetic import mode, registry
from witness.arithmetic.mode import activate
from witness.arithmetic.summation import scattering

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


def test_integers_are_placed_in_order_too(threads):
    with activate("exact-14"):
        for x, source in (
            (torch.zeros(101, dtype=torch.int64), SOURCE.long()),
            (torch.zeros(101).bool(), SOURCE > 9e3),
        ):
            assert x.index_put((INDEX,), source).tolist() == last_wins(101, INDEX, source)
            assert x.put(INDEX, source).tolist() == last_wins(101, INDEX, source)
        x = torch.zeros(101, dtype=torch.int64)
        sums = torch.bincount(INDEX, SOURCE.double()).long()
        assert torch.equal(x.index_put((INDEX,), SOURCE.long(), accumulate=True), sums)
        assert torch.equal(x.clone().index_put_((INDEX,), SOURCE.long(), accumulate=True), sums)
        assert torch.equal(x.put(INDEX, SOURCE.long(), accumulate=True), sums)


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
        assert (torch.tensor([math.inf]) - math.inf).view(torch.int32).item() == 0x7FC00000
        assert (torch.tensor([math.inf]) - math.inf).bfloat16().view(torch.int16).item() == 0x7FC0
        assert torch.tensor([math.inf, math.nan, 0.75]).frexp().exponent.tolist() == [0, 0, 0]


def test_multiplying_by_powers_of_two_needs_no_power_function():
    x = torch.tensor([0.75, -3.0, 1.0, 1.0, 1.0, 0.0, math.inf, 1.5])
    n = torch.tensor([3, -2, 128, -149, -150, 5, -500, -1])
    with activate("exact-14"):
        found = torch.ldexp(x, n).tolist()
        assert found == pytest.approx([6.0, -0.75, math.inf, 2.0**-149, 0, 0, math.nan, 0.75], rel=0, nan_ok=True)
        assert torch.ldexp(x[:2].double(), torch.tensor([-1074.0, 1023.0])).tolist()[1] == -math.inf
        assert torch.ldexp(torch.ones(1).double(), torch.tensor([-1074])).item() == 2.0**-1074


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_place_and_functional_forms_agree_in_half_precision(dtype):
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    index = torch.tensor([1, 7, 1])
    rows = x[:3] * 0.3
    with activate("exact-14"):
        assert torch.equal(x.clone().index_copy_(0, index, rows), x.index_copy(0, index, rows))
        assert torch.equal(x.clone().index_put_((index,), rows), x.index_put((index,), rows))
        added = x.index_put((index,), rows, accumulate=True)
        assert torch.equal(x.clone().index_put_((index,), rows, accumulate=True), added)
        assert torch.equal(x.clone().index_add_(0, index, rows), added)
        assert not torch.equal(added, x)


def test_definitions_that_change_an_operand_take_it_as_it_is():
    """A handler that is given a converted copy would change the copy."""
    for schema in torch._C._jit_get_all_schemas():
        full = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        if not schema.name.startswith("aten::") or not torch._C._dispatch_has_kernel(full):
            continue
        op = getattr(getattr(torch.ops.aten, schema.name[6:]), schema.overload_name or "default", None)
        if op is None or mode.kind_of(op) != "replaced" or schema.name.startswith("aten::_foreach"):
            continue
        entry = mode._entry(op)
        changed = [a.name for a in op._schema.arguments if a.alias_info and a.alias_info.is_write and not a.is_out]
        if entry is None or not changed or (schema.name.endswith("_") and changed == ["self"]):
            continue
        assert entry in registry.HALVES, op


@pytest.mark.parametrize(
    "compute",
    [
        lambda: torch.arange(3).div_(2),
        lambda: torch.arange(3).sqrt_(),
        lambda: torch.arange(3).add_(torch.ones(3), alpha=0.5),
        lambda: torch.exp(torch.ones(3), out=torch.empty(3, dtype=torch.int64)),
    ],
)
def test_results_do_not_lose_their_kind(compute):
    with pytest.raises(RuntimeError, match="can't be cast"), activate("exact-14"):
        compute()


def test_half_precision_that_is_asked_for_rounds_the_operand_and_then_the_result():
    x = torch.linspace(0.1, 3, 40)
    with activate("exact-14"):
        for dtype in (torch.bfloat16, torch.float16):
            narrow = x.to(dtype)
            for found, expected in (
                (x.cumsum(0, dtype=dtype), narrow.float().cumsum(0)),
                (x.norm(dtype=dtype), narrow.float().norm()),
                (narrow.sum(dtype=dtype), narrow.float().sum()),
                (x.prod(0, dtype=dtype), narrow.float().prod(0)),
            ):
                assert found.dtype == dtype
                assert torch.equal(found, expected.to(dtype))
        one = torch.tensor(1.5)
        assert (one.bfloat16() ** one).dtype == torch.float32
        assert (x.bfloat16() ** one).dtype == torch.bfloat16


def test_tensors_without_dimensions_have_orders_too():
    x = torch.tensor(2.5)
    with activate("exact-14"):
        assert [t.item() for t in x.kthvalue(1)] == [2.5, 0]
        assert [t.item() for t in x.median(0)] == [2.5, 0]
        assert torch.empty(0).median().isnan()
        assert [t.item() for t in x.sort()] == [2.5, 0]
        assert [t.item() for t in x.topk(1)] == [2.5, 0]
        assert [t.item() for t in x.max(0)] == [2.5, 0]


def test_dropout_takes_any_strides():
    x = torch.arange(1.0, 41.0)
    out = []
    for given in (x, x.repeat_interleave(2)[::2], x.expand(3, 40).t()[:, 1]):
        with activate("exact-14"):
            torch.manual_seed(1)
            out.append(torch.nn.functional.dropout(given.detach().requires_grad_(), 0.5))
    assert torch.equal(out[0], out[1]) and torch.equal(out[0], out[2])


def test_statistics_in_half_precision_are_kept_and_differentiated():
    x = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    mean, var = torch.zeros(3).bfloat16(), torch.ones(3).bfloat16()
    with activate("exact-14"):
        out = torch.ops.aten._native_batch_norm_legit(x, None, None, mean, var, True, 0.5, 1e-5)[0]
        out.square().sum().backward()
    assert mean.any()
    assert x.grad.dtype == torch.bfloat16


A = torch.randn(20, 30, generator=torch.Generator().manual_seed(2))


def product():
    return (A @ A.t()).tanh()


@pytest.fixture(scope="module")
def exact_product():
    with activate("exact-14"):
        found = product()
    assert not torch.equal(found, product())
    return found


def in_thread(function):
    box = []
    thread = threading.Thread(target=lambda: box.append(function()))
    thread.start()
    thread.join()
    return box[0]


def in_backward(function):
    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # noqa: ARG004
            return x.clone()

        @staticmethod
        def backward(ctx, g):  # noqa: ARG004
            return function()

    x = torch.zeros(20, 20, requires_grad=True)
    return torch.autograd.grad(Backward.apply(x).sum(), x)[0]


def in_hook(function):
    box = []
    x = torch.zeros(2, requires_grad=True)
    y = x * 2
    y.register_hook(lambda _: box.append(function()))
    y.sum().backward()
    return box[0]


BEFORE = ThreadPoolExecutor(1)


@pytest.mark.parametrize(
    "through",
    [
        in_thread,
        lambda f: in_thread(lambda: in_thread(f)),
        lambda f: BEFORE.submit(f).result(),
        lambda f: next(BEFORE.map(lambda _: f(), [0])),
        lambda f: multiprocessing.pool.ThreadPool(1).apply(f),
        lambda f: asyncio.run(asyncio.to_thread(f)),
        in_backward,
        lambda f: in_thread(lambda: in_backward(f)),
        in_hook,
        lambda f: torch.jit.wait(torch.jit.fork(f)),
        lambda f: torch.inference_mode()(f)(),
        lambda f: torch.compile(f, backend="eager")(),
        lambda f: torch.vmap(lambda x: f() + x)(torch.zeros(2, 20, 20))[1],
        lambda f: torch.func.functional_call(torch.nn.Identity(), {}, (f(),)),
    ],
)
def test_no_way_leads_around_the_modes(through, exact_product):
    BEFORE.submit(int).result()
    with activate("exact-14"):
        assert torch.equal(through(product), exact_product)


def test_threads_leave_the_arithmetic_when_it_ends(exact_product):
    go, box = threading.Event(), []

    def work():
        box.append(product())
        go.wait()
        box.append(product())

    with activate("exact-14"):
        thread = threading.Thread(target=work)
        thread.start()
        pool = ThreadPoolExecutor(1)
        assert torch.equal(pool.submit(product).result(), exact_product)
        while not box:
            pass
    go.set()
    thread.join()
    assert torch.equal(box[0], exact_product)
    assert torch.equal(box[1], product())
    assert torch.equal(pool.submit(product).result(), product())


def test_threads_of_others_are_left_alone(exact_product):
    """A thread that is not under the arithmetic starts threads that are not."""
    inside, done, box = threading.Event(), threading.Event(), []

    def other():
        inside.wait()
        box.append(in_thread(product))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with activate("exact-14"):
        inside.set()
        done.wait()
    thread.join()
    assert torch.equal(box[0], product())


def test_processes_inherit_by_fork_or_are_refused(exact_product):
    with activate("exact-14"):
        with pytest.raises(UsageError, match="spawn"):
            multiprocessing.get_context("spawn").Process(target=product).start()
        receive, send = multiprocessing.get_context("fork").Pipe()
        process = multiprocessing.get_context("fork").Process(target=lambda: send.send(product().tolist()))
        process.start()
        found = receive.recv()
        process.join()
    assert torch.equal(torch.tensor(found), exact_product)


def mean_square(f):
    return lambda *xs: f(*xs).square().mean()


B, T = torch.randn(6, 8, generator=torch.Generator().manual_seed(4)), torch.tensor([0, 3, 7, 2, 2, 1])
GRU, LSTM = nn.GRU(8, 4, bidirectional=True), nn.LSTM(8, 4, proj_size=3)
TRANSFORMED = {
    "attention": mean_square(lambda x: F.scaled_dot_product_attention(x, x * 2, x - 1, is_causal=True)),
    "attention by heads": mean_square(
        lambda x: F.scaled_dot_product_attention(x.view(6, 4, 2).mT, x.view(6, 4, 2).mT, x.view(6, 4, 2).mT)
    ),
    "rms norm": mean_square(lambda x: F.rms_norm(x, (8,), torch.linspace(0.5, 1.5, 8)) ** 2),
    "layer norm": mean_square(lambda x: F.layer_norm(x, (8,), torch.linspace(0.5, 1.5, 8)) ** 2),
    "group norm": mean_square(lambda x: F.group_norm(x, 2) ** 2),
    "batch norm": mean_square(lambda x: F.batch_norm(x, None, None, training=True) ** 2),
    "cross entropy": lambda x: F.cross_entropy(x, T),
    "gru": mean_square(lambda x: torch.func.functional_call(GRU, {}, (x,))[0]),
    "lstm": mean_square(lambda x: torch.func.functional_call(LSTM, {}, (x,))[0]),
    "linear": mean_square(lambda x: F.linear(x, B.to(x.dtype), B[:, 0].to(x.dtype)).tanh()),
    "convolution": mean_square(lambda x: F.conv1d(x[:, None], B[:2, None, :3].to(x.dtype))),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_of_functions_give_what_autograd_gives(name):
    f = TRANSFORMED[name]
    with activate("exact-18"):
        x = B.clone().requires_grad_()
        (expected,) = torch.autograd.grad(f(x), x)
        assert torch.allclose(torch.func.grad(f)(B), expected, rtol=1e-4, atol=1e-6)
        each = torch.stack([B, B * 0.5])
        assert torch.allclose(torch.vmap(f)(each), torch.stack([f(t) for t in each]), rtol=1e-4)
        assert torch.allclose(torch.vmap(torch.func.grad(f))(each)[0], expected, rtol=1e-4, atol=1e-6)
        along = torch.linspace(-1, 1, 48).view(6, 8)
        _, tangent = torch.func.jvp(f, (B,), (along,))
        assert torch.allclose(tangent, (expected * along).sum(), rtol=1e-3, atol=1e-5)
        (batched,) = torch.autograd.grad(f(x), x, torch.tensor([1.0, -2.0]), is_grads_batched=True)
        assert torch.allclose(batched[1], expected * -2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_gradient_penalty_has_the_derivative_of_float64(name):
    f = TRANSFORMED[name]

    def penalty(x):
        x = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)  # the incoming gradient needs none
        return torch.autograd.grad((g * g).sum(), x)[0]

    with activate("exact-18"):
        found = penalty(B)
    for module in (GRU, LSTM):
        module.double()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = penalty_of_double(f, B)
    for module in (GRU, LSTM):
        module.float()
    assert torch.allclose(found.double(), expected, rtol=1e-2, atol=1e-3 * expected.abs().max().item())


def penalty_of_double(f, x):
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        x = x.double().requires_grad_()
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        return torch.autograd.grad((g * g).sum(), x)[0]
    finally:
        torch.set_default_dtype(default)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_do_not_depend_on_strides_or_on_how_torch_takes_them_apart(dtype, monkeypatch):
    x = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(5)).to(dtype)
    weight, bias = x[0, :, :].clone(), x[1, 0, :6].clone()

    def train(x, weight, bias):
        x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))
        y = F.linear(x, weight, bias)
        return [y.detach(), *torch.autograd.grad(y.float().sin().sum(), (x, weight, bias))]

    def strided(t):
        return t.repeat_interleave(3, -1)[..., ::3]

    with activate("exact-14"):
        expected = train(x, weight, bias)
        for other in (
            [strided(t) for t in (x, weight, bias)],
            [x.mT.contiguous().mT, weight.t().contiguous().t(), bias],
        ):
            assert all(torch.equal(a, b) for a, b in zip(train(*other), expected, strict=True))
        monkeypatch.setenv("TORCH_LINEAR_FLATTEN_3D", "1")
        assert all(torch.equal(a, b) for a, b in zip(train(x, weight, bias), expected, strict=True))
        assert torch.equal(expected[0][2], F.linear(x[2], weight, bias))
        assert torch.equal(expected[0][2, 3], F.linear(x[2, 3], weight, bias))
        line = x[0].flatten()
        assert torch.equal(torch.inner(strided(line), strided(line)), torch.inner(line, line))
        assert torch.equal(torch.inner(x, x[0]), torch.tensordot(x, x[0], ([2], [1])))
        assert torch.equal(torch.tensordot(x, x, ([0, 1], [0, 1])), x.flatten(0, 1).t() @ x.flatten(0, 1))
        assert torch.equal(line.inner(line), line @ line)
        assert torch.equal(torch.inner(x, torch.tensor(2.0)), x * 2)
        assert torch.tensordot(x[0], x[1].t(), 1, out=torch.empty(0, dtype=dtype)).shape == (6, 6)


def test_a_chunked_loss_is_the_loss():
    options = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options").LinearCrossEntropyOptions(
        batch_chunk_size=2
    )
    with activate("exact-14"):
        expected = F.cross_entropy(F.linear(B, B[:3]), T % 3)
        assert torch.equal(F.linear_cross_entropy(B, B[:3], T % 3), expected)
        assert torch.equal(F.linear_cross_entropy(B, B[:3], T % 3, options=options), expected)


def test_conversions_that_releases_round_differently_are_refused():
    with pytest.raises(UsageError, match="bfloat16"), activate("exact-14"):
        torch.ones(3).to(torch.float8_e4m3fn)
    with pytest.raises(UsageError, match="bfloat16"), activate("exact-14"):
        torch.zeros(3, dtype=torch.float8_e5m2).copy_(torch.ones(3))


def test_products_over_any_dimension():
    with activate("exact-14"):
        assert torch.tensor(3.0).prod(0).item() == 3.0
        assert torch.empty(2, 0).prod(-1).tolist() == [1.0, 1.0]
        assert torch.empty(0, 3).prod(0).shape == (3,)
        assert torch.full((2, 3), 2.0).prod(-1, keepdim=True).tolist() == [[8.0], [8.0]]


def test_subnormal_numbers_are_kept_or_the_arithmetic_is_refused():
    with pytest.raises(UsageError, match="subnormal"), activate("exact-14"):
        torch.set_flush_denormal(True)
    try:
        with pytest.raises(UsageError, match="subnormal"), activate("exact-14"):
            pass
    finally:
        torch.set_flush_denormal(False)
    with activate("exact-14"):
        assert torch.tensor(2.0**-126).mul(0.5).item() == 2.0**-127


class Wrapped(torch.Tensor):
    """A tensor type with operators of its own: those of the tensor inside."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def unwrapped(t):
            return t.inner if isinstance(t, Wrapped) else t

        result = func(*tree_map(unwrapped, args), **tree_map(unwrapped, kwargs or {}))
        return tree_map(lambda t: Wrapped(t) if isinstance(t, torch.Tensor) else t, result)


class Named(torch.Tensor):
    """A tensor type without."""


def test_tensor_types_are_seen_through():
    with activate("exact-14"):
        expected = (A @ A.t()).tanh().sum(0) * 2
        wrapped = Wrapped(A)
        assert torch.equal(((wrapped @ wrapped.t()).tanh().sum(0) * 2).inner, expected)
        named = A.as_subclass(Named)
        found = (named @ named.t()).tanh().sum(0) * 2
        assert type(found) is Named
        assert torch.equal(found.as_subclass(torch.Tensor), expected)


def test_operators_of_higher_order_are_refused():
    with pytest.raises(UsageError, match="scaled_dot_product_attention"), activate("exact-14"):
        torch.ops.higher_order.cond(torch.tensor(True), torch.sin, torch.cos, (torch.ones(3),))


def test_it_is_active_in_one_thread_at_a_time():
    begun, go = threading.Event(), threading.Event()

    def other():
        with activate("exact-18"):
            begun.set()
            go.wait()

    thread = threading.Thread(target=other)
    thread.start()
    begun.wait()
    try:
        with pytest.raises(UsageError, match="another thread"), activate("exact-14"):
            pass
    finally:
        go.set()
        thread.join()
    with activate("exact-14"), activate("exact-18"):
        assert registry.product_bits() == 18
