"""Normalisation: the definition read by hand, both forms, float64 autograd, statistics that are state."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from exact import reference_rows as reference
from exact.two_forms import bits, both, distance, gradients, same, tensors_only
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from witness.arithmetic.layers.batch_normalisation import native_batch_norm
from witness.arithmetic.layers.normalisation import (
    fused_rms_norm,
    fused_rms_norm_backward,
    native_layer_norm,
    native_layer_norm_backward,
)
from witness.arithmetic.mode import activate

FLOATS = st.floats(width=32, min_value=-1e6, max_value=1e6) | st.sampled_from([0.0, -0.0, 1e-40, 3e38, -3e38, 1.0])
SHAPES = [((5, 7), 1), ((2, 3, 4, 5), 2), ((3, 4, 768), 1), ((33, 130), 1), ((1, 1), 1), ((0, 4), 1), ((65, 1000), 1)]


def tensor(rows) -> torch.Tensor:
    return torch.tensor(np.array(rows, np.float32))


def scalars(x: torch.Tensor):
    return [np.float32(v) for v in x.reshape(-1).tolist()]


def numbers(*shape: int, salt: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt)) * 2 + 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 40), st.data(), st.booleans(), st.booleans(), st.booleans())
def test_rows_are_the_definition_read_by_hand(rows, n, data, weighted, shifted, centred):
    draw = lambda count: data.draw(st.lists(FLOATS, min_size=count, max_size=count))  # noqa: E731
    x, g = tensor(draw(rows * n)).view(rows, n), tensor(draw(rows * n)).view(rows, n)
    weight = tensor(draw(n)) if weighted else None
    bias = tensor(draw(n)) if shifted and centred else None
    if centred:
        y, mean, scale = both(lambda: native_layer_norm(x, (n,), weight, bias, 1e-5))
        dx, dw, db = both(lambda: native_layer_norm_backward(g, x, (n,), mean, scale, weight, bias, [True] * 3))
    else:
        y, scale = both(lambda: fused_rms_norm(x, (n,), weight, 1e-5))
        dx, dw = both(lambda: fused_rms_norm_backward(g, x, (n,), scale, weight, [True] * 2))
    w, b = (None if t is None else scalars(t) for t in (weight, bias))
    with np.errstate(all="ignore"):
        forward = [reference.normalise(scalars(row), w, b, 1e-5, centred) for row in x]
        backward = [
            reference.normalise_backward(scalars(up), scalars(row), w, m, s, centred)
            for up, row, (_, m, s) in zip(g, x, forward, strict=True)
        ]
        by_weight, by_bias = (reference.column_totals([d[i] for d in backward]) for i in (1, 2))
    assert bits(y) == bits(tensor([row for row, _, _ in forward]))
    assert bits(scale) == bits(tensor([s for _, _, s in forward]))
    assert bits(dx) == bits(tensor([d for d, _, _ in backward]))
    assert bits(dw) == bits(tensor(by_weight))
    if centred:
        assert bits(mean) == bits(tensor([m for _, m, _ in forward]))
        assert bits(db) == bits(tensor(by_bias))


@pytest.mark.parametrize(("shape", "dims"), SHAPES)
@pytest.mark.parametrize("affine", ["none", "weight", "both"])
def test_layer_norm_is_near_float64_and_its_forms_agree(shape, dims, affine):
    x, normalised = numbers(*shape), shape[-dims:]
    operands = [x, *[numbers(*normalised, salt=i) for i in range(("none", "weight", "both").index(affine))]]

    def function(x, weight=None, bias=None):
        return F.layer_norm(x, normalised, weight, bias)

    with activate("exact-14"):
        found = both(lambda: gradients(function, *operands))
    expected = gradients(function, *(t.double() for t in operands))
    if math.prod(normalised) > 1:  # normalised, a single number is all rounding error
        assert all(distance(a, b) < 5e-6 for a, b in zip(found, expected, strict=True))


MODULES = [
    (lambda: nn.RMSNorm(24), (3, 5, 24)),
    (lambda: nn.RMSNorm((4, 6), eps=1e-3), (3, 4, 6)),
    (lambda: nn.RMSNorm(24, elementwise_affine=False), (3, 5, 24)),
    (lambda: nn.GroupNorm(2, 8), (3, 8, 5)),
    (lambda: nn.GroupNorm(8, 8), (3, 8, 4, 4)),
    (lambda: nn.GroupNorm(4, 8, affine=False), (3, 8, 2, 2)),
    (lambda: nn.GroupNorm(2, 8), (3, 8)),
    (lambda: nn.BatchNorm1d(6), (5, 6)),
    (lambda: nn.BatchNorm1d(6, momentum=None), (5, 6, 3)),
    (lambda: nn.BatchNorm2d(6), (2, 6, 3, 4)),
    (lambda: nn.BatchNorm2d(6, momentum=None), (2, 6, 30, 40)),
    (lambda: nn.BatchNorm3d(6, affine=False, track_running_stats=False), (2, 6, 3, 4, 2)),
    (lambda: nn.BatchNorm2d(6, eps=1e-3, momentum=0.3).eval(), (2, 6, 3, 4)),
    (lambda: nn.InstanceNorm1d(6), (2, 6, 4)),
    (lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True), (2, 6, 4, 3)),
    (lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True).eval(), (2, 6, 4, 3)),
    (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 4), dim=0), (5, 6)),
]


def trained(module: nn.Module, x: torch.Tensor, steps: int = 3) -> list[torch.Tensor]:
    """Values, gradients and buffers of a few steps."""
    module = copy.deepcopy(module)
    seen = []
    for step in range(steps):
        module.zero_grad()
        leaf = (x * (step + 1)).requires_grad_()
        y = module(leaf)
        y.backward(torch.cos(torch.arange(y.numel(), dtype=torch.float64)).to(y.dtype).reshape(y.shape))
        seen += [y, leaf.grad, *(p.grad for p in module.parameters()), *(b.clone() for b in module.buffers())]
    return seen


@pytest.mark.parametrize("case", range(len(MODULES)))
def test_modules_train_and_keep_statistics(case):
    make, shape = MODULES[case]
    module = make()
    for i, p in enumerate(module.parameters()):
        p.data = numbers(*p.shape, salt=i) if p.dim() else numbers(1, salt=i)[0]
    x = numbers(*shape, salt=9)
    with activate("exact-18"):
        found = both(lambda: trained(module, x))
    expected = trained(module.double(), x.double())
    assert all(distance(a, b) < 3e-5 for a, b in zip(found, expected, strict=True))


def test_running_statistics_are_the_definition_read_by_hand():
    x, momentum = numbers(3, 2, 5, salt=4), 0.1
    mean, var = numbers(2, salt=5), numbers(2, salt=6).abs()
    before = scalars(mean), scalars(var)
    native_batch_norm(x, None, None, mean, var, True, momentum, 1e-5)
    f, keep = np.float32, np.float32(1.0 - momentum)
    for c in range(2):
        rows = [scalars(x[i, c]) for i in range(3)]
        average = reference.total(reference.total(row) for row in rows) / f(15)
        square = reference.total(reference.total((v - average) * (v - average) for v in row) for row in rows)
        assert bits(mean)[c] == bits(tensor([before[0][c] * keep + average * f(momentum)]))[0]
        assert bits(var)[c] == bits(tensor([before[1][c] * keep + square / f(14) * f(momentum)]))[0]


def test_a_row_does_not_notice_its_neighbours_nor_its_place_in_memory():
    x, w, b = numbers(9, 70), numbers(70, salt=1), numbers(70, salt=2)
    with activate("exact-14"):
        for function in (lambda t: F.layer_norm(t, (70,), w, b), lambda t: F.rms_norm(t, (70,), w)):
            whole = function(x)
            assert all(torch.equal(whole[i], function(x[i])) for i in range(9))
            assert torch.equal(whole, function(x.t().contiguous().t()))
            shifted = torch.empty(9 * 70 + 1)[1:].view(9, 70).copy_(x)
            assert torch.equal(whole, function(shifted))


def test_special_values_stay_in_their_row():
    x = numbers(6, 40)
    x[0, 3], x[1, 0], x[2, 5], x[3] = math.nan, math.inf, -math.inf, 0.0
    g = numbers(6, 40, salt=3)
    y, mean, scale = both(lambda: native_layer_norm(x, (40,), None, None, 1e-5))
    dx, _, _ = both(lambda: native_layer_norm_backward(g, x, (40,), mean, scale, None, None, [True] * 3))
    for t in (y, dx):
        assert t[:3].isnan().any(1).all()
        assert t[3:].isfinite().all()
    assert (y[3] == 0).all()
    assert scale[3].item() == pytest.approx(1e-5**-0.5, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_converted_once_each_way(dtype):
    x, w, b = (numbers(*s, salt=i).to(dtype) for i, s in enumerate([(5, 40), (40,), (40,)]))
    with activate("exact-14"):
        for kind in (dtype, torch.float32):
            found = gradients(lambda x, w, b: F.layer_norm(x, (40,), w, b), x, w.to(kind), b.to(kind))
            wide = gradients(lambda x, w, b: F.layer_norm(x, (40,), w, b), x.float(), w.float(), b.float())
            assert [t.dtype for t in found] == [dtype, dtype, kind, kind]
            assert torch.equal(found[0], wide[0].to(dtype))
        found = gradients(lambda x, w: F.rms_norm(x, (40,), w), x, w)
        assert torch.equal(found[0], F.rms_norm(x.float(), (40,), w.float()).to(dtype))
        y = F.batch_norm(x, None, None, w.float(), b.float(), True)
        assert torch.equal(y, F.batch_norm(x.float(), None, None, w.float(), b.float(), True).to(dtype))


def test_channels_last_gives_the_same_bits_and_keeps_its_layout():
    x, w = numbers(2, 6, 5, 4), numbers(6, salt=1)
    last = x.contiguous(memory_format=torch.channels_last)
    with activate("exact-14"):
        for function in (lambda t: F.batch_norm(t, None, None, w, w, True), lambda t: F.group_norm(t, 3, w, w)):
            assert torch.equal(function(x), function(last))
            assert function(last).is_contiguous(memory_format=torch.channels_last)


def test_mistakes_are_reported_as_torch_reports_them():
    with activate("exact-14"):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            nn.BatchNorm1d(3)(torch.ones(1, 3))
        with pytest.raises(RuntimeError, match="running_mean and running_var"):
            torch.batch_norm(torch.ones(2, 3), None, None, None, None, False, 0.1, 1e-5, False)
        with pytest.raises(RuntimeError, match="normalisation over"):
            F.rms_norm(torch.ones(2, 3), (4,))
        with pytest.raises(RuntimeError, match="normalisation over"):  # as many elements, in another order
            F.layer_norm(torch.ones(7, 8), (7,))
        with pytest.raises(RuntimeError, match="normalisation over"):
            F.layer_norm(torch.ones(7, 8), (8,), torch.ones(7))
        with pytest.raises(RuntimeError, match="should contain 3 elements"):
            F.batch_norm(torch.ones(2, 3), torch.zeros(4), torch.ones(3), training=True)
        with pytest.raises(ValueError, match="spatial"):
            F.instance_norm(torch.ones(2, 3, 1))


def test_an_empty_batch_has_no_statistics_and_keeps_the_running_ones():
    module = nn.BatchNorm2d(3)
    with activate("exact-14"):
        y = module(torch.zeros(0, 3, 2, 2))
        y.sum().backward()
    assert y.shape == (0, 3, 2, 2)
    assert module.running_mean.tolist() == [0.0] * 3
    assert module.weight.grad.tolist() == [0.0] * 3


def test_threads_do_not_matter():
    x, g, w = numbers(700, 300), numbers(700, 300, salt=1), numbers(300, salt=2)

    def computed():
        y, mean, scale = native_layer_norm(x, (300,), w, w, 1e-5)
        z = native_batch_norm(x.view(70, 10, 300), None, None, None, None, True, 0.1, 1e-5)
        return [y, *native_layer_norm_backward(g, x, (300,), mean, scale, w, w, [True] * 3), *z]

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
