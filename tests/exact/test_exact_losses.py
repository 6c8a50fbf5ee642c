"""Losses: both forms, float64 autograd, and cross entropy's short way against the long one."""

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

from witness.arithmetic.layers import losses
from witness.arithmetic.mode import activate

REDUCTIONS = ("none", "mean", "sum")
INF, NAN = math.inf, math.nan


def tensor(rows) -> torch.Tensor:
    return torch.tensor(np.array(rows, np.float32))


def scalars(x: torch.Tensor):
    return [np.float32(v) for v in x.reshape(-1).tolist()]


def numbers(*shape: int, salt: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(salt)) * 3


def fractions(*shape: int, salt: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(salt)) * 0.98 + 0.01


X, P, W = numbers(6, 5), fractions(6, 5), fractions(5, salt=1)
CLASSES = torch.tensor([0, 1, -100, 4, 2, 2])
IMAGE, PIXELS = numbers(2, 5, 3, 4, salt=2), torch.arange(24).reshape(2, 3, 4) % 5
PIXELS[0, 0, 0] = -100

CASES = {
    "cross entropy": (lambda r, x: F.cross_entropy(x, CLASSES, reduction=r), X),
    "cross entropy, weights": (lambda r, x: F.cross_entropy(x, CLASSES, W.to(x.dtype), reduction=r), X),
    "cross entropy, smoothed": (lambda r, x: F.cross_entropy(x, CLASSES, reduction=r, label_smoothing=0.1), X),
    "cross entropy, smoothed, weights": (
        lambda r, x: F.cross_entropy(x, CLASSES, W.to(x.dtype), reduction=r, label_smoothing=0.3), X),
    "cross entropy, ignoring 2": (lambda r, x: F.cross_entropy(x, CLASSES.clamp(0), reduction=r, ignore_index=2), X),
    "cross entropy of probabilities": (lambda r, x, p: F.cross_entropy(x, p, reduction=r), X, P),
    "cross entropy of probabilities, smoothed, weights": (
        lambda r, x, p: F.cross_entropy(x, p, W.to(x.dtype), reduction=r, label_smoothing=0.2), X, P),
    "cross entropy of an image": (lambda r, x: F.cross_entropy(x, PIXELS, reduction=r), IMAGE),
    "cross entropy of an image, smoothed, weights": (
        lambda r, x: F.cross_entropy(x, PIXELS, W.to(x.dtype), reduction=r, label_smoothing=0.2), IMAGE),
    "cross entropy of one": (lambda r, x: F.cross_entropy(x, torch.tensor(3), reduction=r), X[0]),
    "nll": (lambda r, x: F.nll_loss(x, CLASSES, W.to(x.dtype), reduction=r), X),
    "nll of an image": (lambda r, x: F.nll_loss(x, PIXELS, W.to(x.dtype), reduction=r), IMAGE),
    "mse": (lambda r, x, t: F.mse_loss(x, t, reduction=r), X, P),
    "l1": (lambda r, x, t: F.l1_loss(x, t, reduction=r), X, P),
    "smooth l1": (lambda r, x, t: F.smooth_l1_loss(x, t, reduction=r, beta=0.7), X, P),
    "huber": (lambda r, x, t: F.huber_loss(x, t, reduction=r, delta=0.7), X, P),
    "bce": (lambda r, x: F.binary_cross_entropy(x, P.roll(1, 0).to(x.dtype), reduction=r), P),
    "bce, weights": (lambda r, x: F.binary_cross_entropy(x, P.roll(1, 0).to(x.dtype), W.to(x.dtype), reduction=r), P),
    "bce with logits": (lambda r, x, t: F.binary_cross_entropy_with_logits(x, t, reduction=r), X, P),
    "bce with logits, weights": (
        lambda r, x: F.binary_cross_entropy_with_logits(
            x, P.to(x.dtype), weight=W.to(x.dtype), pos_weight=W.to(x.dtype) * 3, reduction=r), X),
    "soft margin": (lambda r, x: F.soft_margin_loss(x, (P - 0.5).sign().to(x.dtype), reduction=r), X),
    "kl": (lambda r, x, t: F.kl_div(x, t, reduction="batchmean" if r == "mean" else r), X, P),
    "kl of logarithms": (lambda r, x, t: F.kl_div(x, t, reduction=r, log_target=True), X, -P),
    "hinge": (lambda r, x: F.hinge_embedding_loss(x, (P - 0.5).sign().to(x.dtype), reduction=r), X),
    "margin": (lambda r, x, t: F.margin_ranking_loss(x, t, (P - 0.5).sign().to(x.dtype), 0.1, reduction=r), X, P),
    "cosine": (lambda r, x, t: F.cosine_embedding_loss(x, t, torch.ones(6, dtype=x.dtype), reduction=r), X, P),
    "triplet": (lambda r, x, t: F.triplet_margin_loss(x, t, x.flip(0), reduction=r), X, P),
    "gaussian": (lambda r, x, t: F.gaussian_nll_loss(x, t.detach(), t, reduction=r), X, P),
    "poisson": (lambda r, x: F.poisson_nll_loss(x, P.to(x.dtype), reduction=r), X),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", CASES)
def test_a_loss_is_near_float64_and_its_forms_agree(name, reduction):
    function, *operands = CASES[name]
    with activate("exact-18"):
        found = both(lambda: gradients(lambda *t: function(reduction, *t), *operands))
    expected = gradients(lambda *t: function(reduction, *t), *(t.double() for t in operands))
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        assert a is None or (a.shape == b.shape and distance(a, b) < (2e-5 if name == "triplet" else 3e-6))  # eps


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 30), st.data())
def test_cross_entropy_is_the_definition_read_by_hand(rows, classes, data):
    values = st.floats(width=32, min_value=-200, max_value=200) | st.sampled_from([0.0, -0.0, -INF, 3e38])
    x = tensor(data.draw(st.lists(values, min_size=rows * classes, max_size=rows * classes))).view(rows, classes)
    target = data.draw(st.lists(st.sampled_from([-100, *range(classes)]), min_size=rows, max_size=rows))
    weight = data.draw(st.none() | st.lists(st.floats(0, 4, width=32), min_size=classes, max_size=classes))
    given_weight = None if weight is None else tensor(weight)
    with activate("exact-14"):
        loss, dx = both(
            lambda: gradients(lambda t: F.cross_entropy(t, torch.tensor(target), given_weight, reduction="sum"), x)
        )
    zero, up = np.float32(0), np.float32(torch.sin(torch.tensor(0.7, dtype=torch.float64)).item())
    losses_, rows_ = [], []
    with np.errstate(all="ignore"):
        for row, t in zip(x, target, strict=True):
            y = reference.log_softmax(scalars(row))
            w = np.float32(1 if weight is None else weight[t]) if t >= 0 else zero
            losses_.append(-(y[t] * w) if t >= 0 else zero)
            g = [-(w * up) if i == t else zero for i in range(classes)]
            rows_.append(reference.log_softmax_backward(g, y))
        expected = reference.total(losses_)
    assert bits(loss) == bits(tensor([expected]))
    assert bits(dx) == bits(tensor(rows_))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_short_way_has_the_bits_of_the_long_one(reduction, weighted):
    x, target = numbers(300, 517), torch.arange(300) * 7 % 517
    target[::11] = -100
    x[3, 5], x[4, 0], x[5, 1], x[target[6], 2] = NAN, INF, -INF, -0.0
    x[11, 3] = NAN  # a row that does not count
    weight = fractions(517, salt=5) if weighted else None

    def long(t):
        return F.nll_loss(F.log_softmax(t, 1), target, weight, reduction=reduction)

    with activate("exact-14"):
        short = gradients(lambda t: F.cross_entropy(t, target, weight, reduction=reduction), x, salt=1)
        assert same(short, gradients(long, x, salt=1))
        strided = gradients(
            lambda t: F.cross_entropy(t.t(), target, weight, reduction=reduction), x.t().contiguous(), salt=1
        )
        assert same(short[:1], strided[:1])
        assert bits(short[1]) == bits(strided[1].t())


def test_a_mean_over_nothing_is_nan_and_its_gradient_zero_as_in_torch():
    x, target = numbers(3, 4), torch.full((3,), -100)
    with activate("exact-14"):
        loss, dx = both(lambda: gradients(lambda t: F.cross_entropy(t, target), x, salt=1))
    assert loss.isnan()
    expected = gradients(lambda t: F.cross_entropy(t, target), x, salt=1)
    assert dx.tolist() == expected[1].tolist() == [[0.0] * 4] * 3


@pytest.mark.parametrize("target", [[0, 5], [0, -1], [4, 0]])
def test_a_target_that_is_no_class_is_an_error(target):
    with activate("exact-14"):
        with pytest.raises(IndexError, match="out of bounds"):
            F.cross_entropy(numbers(2, 4), torch.tensor(target))
        with pytest.raises(IndexError, match="out of bounds"):
            F.nll_loss(numbers(2, 4), torch.tensor(target))


def test_targets_and_weights_of_another_number_are_errors():
    x = numbers(4, 3)
    with activate("exact-14"):
        for function in (F.cross_entropy, F.nll_loss):
            with pytest.raises((ValueError, RuntimeError)):
                function(x, torch.zeros(2, dtype=torch.int64))
            with pytest.raises(RuntimeError, match="weight"):
                function(x, torch.zeros(4, dtype=torch.int64), torch.ones(5))


def test_an_input_that_is_no_probability_is_an_error():
    with activate("exact-14"), pytest.raises(RuntimeError, match="between 0 and 1"):
        F.binary_cross_entropy(torch.tensor([0.5, 1.5]), torch.tensor([0.0, 1.0]))


def test_logits_of_any_size_lose_no_digits():
    x = torch.tensor([-200.0, -40.0, -17.0, -1e-7, 0.0, 1e-7, 17.0, 40.0, 200.0]).repeat(2)
    t = torch.tensor([0.0] * 9 + [1.0] * 9)
    with activate("exact-14"):
        found = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    z = torch.where(t == 1, x, -x).double()  # log(1 + e**-z): what the loss is for targets 0 and 1
    expected = torch.clamp(-z, min=0) + torch.log1p(torch.exp(-z.abs()))
    assert ((found.double() - expected).abs() <= expected * 3e-7 + 2.0**-149).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_as_torch_types_it(dtype):
    x = X.to(dtype)
    with activate("exact-14"):
        value, dx = gradients(lambda t: F.cross_entropy(t, CLASSES), x)
        assert value.dtype == dx.dtype == dtype
        logs = F.log_softmax(x.float(), 1).to(dtype)
        assert torch.equal(value, F.nll_loss(logs.float(), CLASSES).to(dtype))
        assert F.mse_loss(x, x * 2).dtype == dtype
        with torch.autocast("cpu", torch.bfloat16):
            assert F.cross_entropy(x, CLASSES).dtype == torch.float32
            assert F.mse_loss(x, x * 2).dtype == torch.float32


def test_totals_of_weights_stay_exact_beyond_what_half_precision_counts():
    """2049 has no bfloat16: a mean over so many must not be one over 2048."""
    x, target = torch.zeros(2049, 2, dtype=torch.bfloat16), torch.zeros(2049, dtype=torch.int64)
    _, total = losses.nll_loss(x, target, None, losses.MEAN, -100)
    assert total.item() == 2049


def test_modules_train_alike_in_both_forms():
    x, t = numbers(8, 5, salt=3), torch.arange(8) % 5
    model = nn.Linear(5, 5)

    def trained():
        model.zero_grad()
        loss = nn.CrossEntropyLoss(label_smoothing=0.05)(model(x), t) + nn.BCEWithLogitsLoss()(model(x), x.sigmoid())
        loss.backward()
        return [loss, model.weight.grad.clone(), model.bias.grad.clone()]

    with activate("exact-14"):
        both(trained)


def test_threads_do_not_matter():
    x, target = numbers(500, 200), torch.arange(500) % 200
    threads = torch.get_num_threads()
    with activate("exact-14"):
        try:
            torch.set_num_threads(1)
            one = gradients(lambda t: F.cross_entropy(t, target), x, salt=1)
            torch.set_num_threads(3)
            assert same(one, gradients(lambda t: F.cross_entropy(t, target), x, salt=1))
            with tensors_only():
                assert same(one, gradients(lambda t: F.cross_entropy(t, target), x, salt=1))
        finally:
            torch.set_num_threads(threads)
