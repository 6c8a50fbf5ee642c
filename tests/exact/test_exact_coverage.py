"""Operations that programs were once refused and need not be: near stock float64, whatever the strides."""

import copy
import itertools
import sys

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn

from protocol.errors import UsageError
from witness.arithmetic.mode import activate

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
Y = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
I = torch.tensor([2, 0, 2, 5, 1, 2])  # noqa: E741
ENDS = torch.tensor([0, 4, 6])
FUNCTIONS = {
    "norm of order 3": lambda x, _: torch.linalg.vector_norm(x, 3, dim=1),
    "norm of order 1/2": lambda x, _: x.norm(0.5),
    "negative order": lambda x, _: x.abs().add(1).norm(-1, dim=0),
    "dist": lambda x, y: torch.dist(x, y, 3),
    "renorm": lambda x, _: torch.renorm(x, 2, 0, 1.5),
    "cummax": lambda x, y: x.cummax(1).values * y,
    "cummin": lambda x, y: x.cummin(0).values * y,
    "logcumsumexp": lambda x, _: x.logcumsumexp(0),
    "nanmedian": lambda x, y: x.masked_fill(y > 0.5, torch.nan).nanmedian(0).values,
    "cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
    "round": lambda x, y: (x * 100).round(decimals=1) + (y * 1000).round(decimals=-2),
    "degrees": lambda x, y: x.deg2rad() + y.rad2deg(),
    "logaddexp2": torch.logaddexp2,
    "xlog1py": lambda x, y: torch.special.xlog1py(x, y.abs()),
    "entropy": lambda x, _: torch.special.entr(x.abs()),
    "sinc": lambda x, _: torch.sinc(x),
    "ldexp": lambda x, y: torch.ldexp(x, y),
    "scatter mean": lambda x, y: x.scatter_reduce(0, I[:, None].expand(6, 8), y, "mean"),
    "scatter mean alone": lambda x, y: x.scatter_reduce(0, I[:, None].expand(6, 8), y, "mean", include_self=False),
    "scatter sum alone": lambda x, y: x.scatter_reduce(0, I[:, None].expand(6, 8), y, "sum", include_self=False),
    "index_reduce": lambda x, y: x.index_reduce(0, I, y, "mean") + x.index_reduce(1, I, y[:, :6], "amax"),
    "bag": lambda x, y: F.embedding_bag(I, x, torch.tensor([0, 2, 2]), mode="sum", per_sample_weights=y[:, 0]),
    "bag of means": lambda x, _: F.embedding_bag(I.view(2, 3), x, mode="mean", padding_idx=2),
    "bags with an end": lambda x, _: F.embedding_bag(I, x, ENDS, mode="sum", include_last_offset=True),
    "tensordot that broadcasts": lambda x, y: torch.tensordot(x, y[:, :1], ([0, 1], [0, 1])),
    "l1 penalty": lambda x, y: (x * y).abs().sum(),
    "narrow_copy": lambda x, _: x.narrow_copy(0, 1, 3) * 2,
}  # fmt: skip


def trained(f, x, y, orders):
    """The value, the gradients of a sum of sines, and those of their squares."""
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    value = f(x, y)
    out = [value.detach()]
    if value.requires_grad:
        g = torch.autograd.grad(value.sin().sum(), (x, y), create_graph=orders > 2, allow_unused=True)
        out += [torch.zeros_like(x) if t is None else t.detach() for t in g]
        again = [t for t in g if t is not None and t.requires_grad]
        if again:
            second = torch.autograd.grad(sum(t.square().sum() for t in again), (x, y), allow_unused=True)
            out += [torch.zeros_like(x) if t is None else t for t in second]
    return out


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_float64(name):
    f = FUNCTIONS[name]
    orders = 2 if "bag" in name else 3
    expected = trained(f, X.double(), Y.double(), orders)
    with activate("exact-18"):
        found = trained(f, X, Y, orders)
        strided = trained(f, X.t().contiguous().t(), Y.repeat_interleave(2, 1)[:, ::2], orders)
        half = f(X.bfloat16(), Y.bfloat16())
    assert len(found) == len(expected)
    for a, b, c in zip(found, expected, strided, strict=True):
        assert torch.allclose(a.double(), b, rtol=1e-3, atol=2e-4 * b.abs().max().item(), equal_nan=True)
        assert torch.equal(a, c) or a.isnan().any()
    assert half.dtype == torch.bfloat16
    assert torch.allclose(
        half.double(), expected[0], rtol=0.1, atol=0.1 * expected[0].nan_to_num().abs().max().item(), equal_nan=True
    )


def test_running_extremes_name_the_last_of_equal_elements_as_torch_does():
    x = torch.tensor([1.0, 3.0, 3.0, torch.nan, 2.0, torch.nan, 5.0])
    with activate("exact-14"):
        for name in ("cummax", "cummin"):
            for t in (x, x[:3], x[:1], torch.tensor(2.0), -x):
                found = getattr(t, name)(0)
                stock = getattr(torch, name)
                with torch._C._DisableTorchDispatch():
                    expected = stock(t, 0)
                assert torch.equal(found.indices, expected.indices)
                assert torch.allclose(found.values, expected.values, equal_nan=True)


def test_bags_of_maxima_are_refused():
    with pytest.raises(UsageError, match="sum or mean"), activate("exact-14"):
        F.embedding_bag(I.view(2, 3), X, mode="max")
    with pytest.raises(RuntimeError, match="outside"), activate("exact-14"):
        F.embedding_bag(I.view(2, 3), X[:3])


def test_rows_of_a_table_are_held_within_a_norm():
    table = X.clone()
    with activate("exact-14"):
        found = F.embedding(I, table, max_norm=1.0)
    assert torch.equal(table[[3, 4]], X[[3, 4]])
    assert (table.norm(dim=1)[[0, 1, 2, 5]] <= 1.0 + 1e-6).all()
    assert torch.equal(found, table[I])


def test_loss_scaling_skips_what_overflows_and_grows():
    layer = nn.Linear(8, 3)
    with activate("exact-14"):
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        scales, weights = [], [layer.weight.detach().clone()]
        for factor in (1.0, 1.0, 1e30, 1.0):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = layer(X).float().square().mean() * factor
            scaler.scale(loss * factor).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            weights.append(layer.weight.detach().clone())
    assert scales == [2.0**10, 2.0**11, 2.0**10, 2.0**10]
    assert [torch.equal(a, b) for a, b in itertools.pairwise(weights)] == [False, False, True, False]


def test_distinct_elements_are_those_of_torch_with_positive_zeros():
    x = torch.tensor([[2.0, -0.0, torch.nan], [0.0, 2.0, -1.0], [torch.nan, 2.0, -0.0]])
    for kind in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        t = (x if kind.is_floating_point else x.nan_to_num()).to(kind)
        stock = torch.unique(
            t.nan_to_num(9.0) if kind.is_floating_point else t, return_inverse=True, return_counts=True
        )
        with activate("exact-14"):
            values, inverse, counts = torch.unique(t, return_inverse=True, return_counts=True)
            assert torch.equal(torch.unique(t, sorted=False), values) or kind.is_floating_point
            assert torch.equal(torch.unique(t, return_inverse=True)[1], inverse)
        if kind.is_floating_point:
            assert torch.equal(values[:3], stock[0][:3]) and values[3:].isnan().tolist() == [True, True]
            assert not values.signbit()[1]
            assert counts.tolist() == [*stock[2][:3].tolist(), 1, 1]
            assert inverse.tolist() == [[2, 1, 3], [1, 2, 0], [4, 2, 1]]
        else:
            assert torch.equal(values, stock[0]) and torch.equal(inverse, stock[1]) and torch.equal(counts, stock[2])
    with activate("exact-14"):
        rows, inverse = torch.unique(torch.tensor([[1.0, -0.0], [0.0, 5.0], [1.0, 0.0]]), dim=0, return_inverse=True)
        assert rows.tolist() == [[0.0, 5.0], [1.0, 0.0]] and not rows.signbit().any()
        assert inverse.tolist() == [1, 0, 1]
        assert torch.unique(torch.empty(0)).numel() == 0


MODEL = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 5))
LABELS = torch.tensor([0, 4, 2, 1, 3, 2])
O = torch.optim  # noqa: E741
OPTIMISERS = {
    "SGD": lambda p: O.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda p: O.Adam(p, 0.01, amsgrad=True),
    "Adam, a tensor's rate": lambda p: O.Adam(p, torch.tensor(0.01)),
    "AdamW": lambda p: O.AdamW(p, 0.01, maximize=True),
    "Adamax": lambda p: O.Adamax(p, 0.01),
    "NAdam": lambda p: O.NAdam(p, 0.01),
    "RAdam": lambda p: O.RAdam(p, 0.01),
    "Adadelta": lambda p: O.Adadelta(p, 1.0),
    "Adagrad": lambda p: O.Adagrad(p, 0.1),
    "RMSprop": lambda p: O.RMSprop(p, 0.01, momentum=0.5, centered=True),
    "Rprop": lambda p: O.Rprop(p, 0.01),
    "ASGD": lambda p: O.ASGD(p, 0.01),
}


def optimised(make, foreach, schedule=None):
    """Parameters and a running average after a few steps with clipping."""
    model = copy.deepcopy(MODEL)
    optimizer = make(model.parameters())
    for group in optimizer.param_groups:
        group["foreach"] = foreach
    average = O.swa_utils.AveragedModel(model, multi_avg_fn=O.swa_utils.get_ema_multi_avg_fn(0.9))
    scheduler = schedule(optimizer) if schedule else None
    for _ in range(4):
        optimizer.zero_grad()
        F.cross_entropy(model(X), LABELS).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=3.0, foreach=foreach)
        nn.utils.clip_grad_value_(model.parameters(), 0.2)
        optimizer.step()
        average.update_parameters(model)
        if scheduler is not None:
            scheduler.step()
    return torch.cat([t.detach().flatten().float() for t in (*model.parameters(), *average.parameters())])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_do_what_stock_ones_do_alone_and_over_lists(name):
    expected = optimised(OPTIMISERS[name], foreach=False)
    with activate("exact-18"):
        found = optimised(OPTIMISERS[name], foreach=False)
        if "tensor" not in name:
            lists = optimised(OPTIMISERS[name], foreach=True)
            assert torch.allclose(lists, found, rtol=1e-4, atol=1e-5)
            assert torch.equal(lists, found) or name in ("Adagrad", "ASGD", "NAdam", "RAdam")
    assert torch.allclose(found, expected, rtol=1e-2, atol=2e-3)


def test_optimisers_that_are_not_told_take_the_same_text_on_every_device():
    modules = [sys.modules[f"torch.optim.{name}"] for name in ("adagrad", "asgd", "nadam", "radam", "adam", "sgd")]
    before = [module._default_to_fused_or_foreach for module in modules]
    with activate("exact-14"):
        for module in modules:
            assert module._default_to_fused_or_foreach([torch.ones(1)], False, use_fused=True) == (False, False)
        assert O.swa_utils._get_foreach_kernels_supported_devices() == []
    assert "cuda" in O.swa_utils._get_foreach_kernels_supported_devices()
    assert [module._default_to_fused_or_foreach for module in modules] == before


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: O.lr_scheduler.OneCycleLR(o, 0.1, 10),
        lambda o: O.lr_scheduler.CosineAnnealingLR(o, 10),
        lambda o: O.lr_scheduler.ChainedScheduler([O.lr_scheduler.LinearLR(o), O.lr_scheduler.ExponentialLR(o, 0.9)]),
        lambda o: O.lr_scheduler.PolynomialLR(o),
    ],
)  # fmt: skip
def test_schedules_move_rates_that_are_numbers_or_tensors(schedule):
    for kind in (float, torch.tensor):
        expected = optimised(lambda p, kind=kind: O.AdamW(p, kind(0.01)), False, schedule)
        with activate("exact-18"):
            found = optimised(lambda p, kind=kind: O.AdamW(p, kind(0.01)), False, schedule)
        assert torch.allclose(found, expected, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_parametrised_weights_are_trained(norm):
    def trained(module):
        optimizer = O.SGD(module.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(X).square().mean().backward()
            optimizer.step()
        return module(X).detach()

    module = norm(nn.Linear(8, 5))
    expected = trained(copy.deepcopy(module))
    with activate("exact-18"):
        found = trained(copy.deepcopy(module))
    assert torch.allclose(found, expected, rtol=1e-2, atol=1e-3)
