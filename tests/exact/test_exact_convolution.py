"""Convolutions: bits against a definition in integers, values against float64, and what must not have a say."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from protocol.errors import UsageError
from witness.arithmetic import compiled, registry
from witness.arithmetic.layers import convolution
from witness.arithmetic.mode import activate

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    compiled.switch(True)


# --- A definition in integers, written from the sentences of the module and from nothing else -------------------------


def exponent(values):
    """The least e with |v| < 2**e for all v, and -125 below float32's normal range."""
    largest = max((abs(v) for v in values), default=0)
    e = -125
    while largest >= Fraction(2) ** e:
        e += 1
    return e


def product(row, column, bits):
    """One element of an exact product whose row and column have their own exponents."""
    ea, eb = exponent(row), exponent(column)
    total = sum(
        round(a * Fraction(2) ** (bits - ea)) * round(b * Fraction(2) ** (bits - eb))
        for a, b in zip(row, column, strict=True)
    )
    exact = total * Fraction(2) ** (ea + eb - 2 * bits)
    as_double = float(exact)
    assert Fraction(as_double) == exact
    return np.float32(as_double)


def fractions(t):
    out = np.empty(t.shape, dtype=object)
    for place in np.ndindex(*t.shape):
        out[place] = Fraction(t[place].item())
    return out


def at(array, place):
    """An element, zero outside."""
    return array[place] if all(0 <= p < n for p, n in zip(place, array.shape, strict=True)) else Fraction(0)


def slow_forward(x, w, step, padding, dilation, groups, bits):
    x, w = fractions(x), fractions(w)
    n, filters, per = x.shape[0], w.shape[0], w.shape[1]
    size = [
        (e + 2 * p - d * (k - 1) - 1) // s + 1
        for e, p, d, k, s in zip(x.shape[2:], padding, dilation, w.shape[2:], step, strict=True)
    ]
    out = np.zeros((n, filters, *size), np.float32)
    taps = list(itertools.product(*map(range, w.shape[2:])))
    for i, o, *place in np.ndindex(*out.shape):
        first = o // (filters // groups) * per
        row = [
            at(
                x,
                (
                    i,
                    first + c,
                    *(q * s + t * d - p for q, s, t, d, p in zip(place, step, tap, dilation, padding, strict=True)),
                ),
            )
            for c in range(per)
            for tap in taps
        ]
        out[(i, o, *place)] = product(row, [w[(o, c, *tap)] for c in range(per) for tap in taps], bits)
    return out


def slow_transposed(x, w, size, step, padding, dilation, groups, bits):
    """Gathers: output o takes x[i] w[j] for every i, j with i s + j d - p = o; windows as the module's text says."""
    x, w = fractions(x), fractions(w)
    n, per = x.shape[0], x.shape[1] // groups
    out = np.zeros((n, groups * w.shape[1], *size), np.float32)
    for i, o, *place in np.ndindex(*out.shape):
        group, local = divmod(o, w.shape[1])
        axes = []
        for q, s, p, d, k in zip(place, step, padding, dilation, w.shape[2:], strict=True):
            if s == 1:
                pairs = [(q + p - j * d, j) for j in range(k)]
            else:
                length = d * (k - 1) + 1
                at_tap = {j * d: j for j in range(k)}
                whole, rest = divmod(q + p, s)
                pairs = [(whole - t, at_tap.get(rest + t * s)) for t in range(-(-length // s))]
            axes.append(pairs)
        row, column = [], []
        for c in range(group * per, (group + 1) * per):
            for chosen in itertools.product(*axes):
                row.append(at(x, (i, c, *(a for a, _ in chosen))))
                dead = any(j is None for _, j in chosen)
                column.append(Fraction(0) if dead else w[(c, local, *(j for _, j in chosen))])
        out[(i, o, *place)] = product(row, column, bits)
    return out


def slow_weights(x, g, kernel, step, padding, dilation, groups, bits):
    x, g = fractions(x), fractions(g)
    filters, per = g.shape[1], x.shape[1] // groups
    out = np.zeros((filters, per, *kernel), np.float32)
    places = list(itertools.product(*map(range, g.shape[2:])))
    for o, c, *tap in np.ndindex(*out.shape):
        channel = o // (filters // groups) * per + c
        row = [g[(i, o, *place)] for i in range(g.shape[0]) for place in places]
        column = [
            at(
                x,
                (
                    i,
                    channel,
                    *(q * s + t * d - p for q, s, t, d, p in zip(place, step, tap, dilation, padding, strict=True)),
                ),
            )
            for i in range(g.shape[0])
            for place in places
        ]
        out[(o, c, *tap)] = product(row, column, bits)
    return out


# --- Geometries -------------------------------------------------------------------------------------------------------


@st.composite
def geometries(draw, largest=9, dims=(1, 2, 3)):
    d = draw(st.sampled_from(dims))
    transposed = draw(st.booleans())

    def numbers(low, high):
        return [draw(st.integers(low, high)) for _ in range(d)]

    groups, per, filters = draw(st.sampled_from([1, 1, 2, 3])), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, step, dilation, padding = numbers(1, 4), numbers(1, 3), numbers(1, 3), numbers(0, 2)
    extra = [draw(st.integers(0, max(s, g) - 1)) if transposed else 0 for s, g in zip(step, dilation, strict=True)]
    extent = []
    for i in range(d):
        reach = dilation[i] * (kernel[i] - 1) + 1
        least = max(1, reach - 2 * padding[i])
        if transposed:  # (n - 1) s - 2 p + reach + extra >= 1
            least = max(1, -(-(1 + 2 * padding[i] - reach - extra[i]) // step[i]) + 1)
        extent.append(draw(st.integers(least, least + largest - 1)))
    weight = (groups * per, filters, *kernel) if transposed else (groups * filters, per, *kernel)
    shape = (draw(st.integers(1, 3)), groups * per, *extent)
    return shape, weight, groups * filters, (step, padding, dilation, transposed, extra, groups)


def made(seed, *shape, spread=True):
    """Numbers over a few powers of two, some of them zero."""
    g = torch.Generator().manual_seed(seed)
    values = torch.randint(-(2**12), 2**12 + 1, shape, generator=g) / 2**9
    if spread:
        values *= 2.0 ** torch.randint(-9, 3, shape, generator=g)
    return torch.where(torch.rand(shape, generator=g) < 0.1, 0.0, values).float()


@settings(max_examples=20, deadline=None)
@given(geometries(largest=3, dims=(1, 2)), st.integers(0, 99), st.sampled_from([14, 18]))
def test_bits_are_those_of_the_definition_in_integers(geometry, seed, bits):
    shape, weight, filters, args = geometry
    step, padding, dilation, transposed, _, groups = args
    x, w, b = made(seed, *shape), made(seed + 1, *weight), made(seed + 2, filters)
    with registry.precision(bits):
        y = convolution.convolution(x, w, b, *args)
        g = made(seed + 3, *y.shape)
        gx, gw, _ = convolution.convolution_backward(g, x, w, [filters], *args, [True, True, False])
    size = list(y.shape[2:])
    kernel = list(w.shape[2:])
    if transposed:
        expected = slow_transposed(x, w, size, step, padding, dilation, groups, bits)
        to_x = slow_forward(g, w, step, padding, dilation, groups, bits)[(..., *(slice(0, n) for n in x.shape[2:]))]
        to_w = slow_weights(g, x, kernel, step, padding, dilation, groups, bits)
    else:
        expected = slow_forward(x, w, step, padding, dilation, groups, bits)
        to_x = slow_transposed(g, w, x.shape[2:], step, padding, dilation, groups, bits)
        to_w = slow_weights(x, g, kernel, step, padding, dilation, groups, bits)
    biased = expected + b.numpy().reshape(-1, *[1] * len(size))
    for ours, reference in ((y, biased), (gx, to_x), (gw, to_w)):
        assert np.array_equal(ours.numpy(), reference)


def whole(seed, *shape):
    """Small whole numbers: every product of them is exact in float32 too, so float64 must agree in every bit."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


@settings(max_examples=60, deadline=None)
@given(geometries(), st.integers(0, 99))
def test_on_whole_numbers_every_gradient_is_that_of_float64(geometry, seed):
    shape, weight, filters, args = geometry
    x, w, b = whole(seed, *shape), whole(seed + 1, *weight), whole(seed + 2, filters)
    with registry.precision(14):
        y = convolution.convolution(x, w, b, *args)
        g = whole(seed + 3, *y.shape)
        grads = convolution.convolution_backward(g, x, w, [filters], *args, [True, True, True])
    expected = aten.convolution(x.double(), w.double(), b.double(), *args)
    exact = aten.convolution_backward(g.double(), x.double(), w.double(), [filters], *args, [True, True, True])
    for ours, reference in zip((y, *grads), (expected, *exact), strict=True):
        assert ours.is_contiguous()
        assert torch.equal(ours.double(), reference)


@settings(max_examples=20, deadline=None)
@given(geometries(), st.integers(0, 99))
def test_nothing_about_memory_kernels_or_pieces_shows(geometry, seed):
    shape, weight, _, args = geometry
    x, w = made(seed, *shape), made(seed + 1, *weight)

    def all_of(x, w, g=None):
        y = convolution.convolution(x, w, None, *args)
        g = made(seed + 3, *y.shape) if g is None else g
        return y, *convolution.convolution_backward(g, x, w, None, *args, [True, True, False])[:2]

    with registry.precision(14):
        usual = all_of(x, w)
        reversed_memory = x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))
        channels_inside = w.movedim(1, -1).contiguous().movedim(-1, 1)
        strided = torch.stack([x, x + 1], -1)[..., 0]
        others = [all_of(reversed_memory, w), all_of(x, channels_inside), all_of(strided, w)]
        compiled.switch(False)
        others.append(all_of(x, w))
        compiled.switch(True)
        whole, convolution.CHUNK = convolution.CHUNK, 7
        try:
            others.append(all_of(x, w))
        finally:
            convolution.CHUNK = whole
        torch.set_num_threads(2)
        others.append(all_of(x, w))
        torch.set_num_threads(1)
    for other in others:
        assert all(map(torch.equal, usual, other))


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_an_example_alone_has_the_bits_it_has_in_a_batch(groups, transposed):
    x, w = made(1, 5, 4, 9, 7), made(2, 4, 4 // groups, 3, 3)
    args = ([2, 1], [1, 1], [1, 1], transposed, [0, 0], groups)
    with registry.precision(14):
        batch = convolution.convolution(x * torch.tensor([1e-3, 1, 1e4, 1, 1])[:, None, None, None], w, None, *args)
        alone = convolution.convolution(x[3:4], w, None, *args)
    assert torch.equal(batch[3:4], alone)


def test_channels_last_in_is_channels_last_out():
    x, w = made(1, 2, 4, 6, 5), made(2, 8, 4, 3, 3)
    with activate("exact-14"):
        plain = F.conv2d(x, w, padding=1)
        inside = F.conv2d(x.contiguous(memory_format=torch.channels_last), w, padding=1)
    assert plain.is_contiguous()
    assert inside.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(plain, inside)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_converted_and_rounded_once_at_the_end(dtype):
    x, w, b = (made(i, *s, spread=False).to(dtype) for i, s in enumerate([(2, 3, 8), (4, 3, 3), (4,)]))
    x.requires_grad_()
    w.requires_grad_()
    with activate("exact-14"):
        half = F.conv1d(x, w, b, padding=1)
        half.sum().backward()
        wide = F.conv1d(x.detach().float(), w.detach().float(), b.float(), padding=1)
    assert half.dtype == x.grad.dtype == w.grad.dtype == dtype
    assert torch.equal(half, wide.to(dtype))


def test_what_is_not_defined_says_so():
    x = torch.ones(1, 2, 5)
    with activate("exact-14"):
        with pytest.raises(UsageError, match="float64"):
            F.conv1d(x.double(), torch.ones(3, 2, 3).double())
        with pytest.raises(RuntimeError, match="channels"):
            F.conv1d(x, torch.ones(3, 4, 3))
        with pytest.raises(RuntimeError, match="no elements"):
            F.conv1d(x, torch.ones(3, 2, 7))


def test_an_empty_batch_and_infinities():
    x = made(1, 2, 1, 9).abs() + 1
    x[0, 0, 4] = torch.inf
    x[1, 0, 0] = torch.nan
    with activate("exact-14"):
        assert F.conv2d(torch.ones(0, 2, 5, 5), torch.ones(3, 2, 3, 3)).shape == (0, 3, 3, 3)
        y = F.conv1d(x, torch.ones(1, 1, 3))
    assert torch.equal(y[0, 0].isinf(), torch.tensor([False, False, True, True, True, False, False]))
    assert torch.equal(y[1, 0].isnan(), torch.tensor([True] + [False] * 6))


MODULES = {
    "same": lambda: nn.Conv2d(4, 6, (2, 3), padding="same"),
    "circular": lambda: nn.Conv2d(4, 6, 3, padding=2, padding_mode="circular"),
    "reflect": lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect", stride=2),
    "replicate": lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="replicate", dilation=2),
    "depthwise": lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False),
    "transposed": lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
    "patches": lambda: nn.Conv2d(4, 6, 4, stride=4),
    "shuffled": lambda: nn.Sequential(nn.Conv2d(4, 8, 3), nn.PixelShuffle(2), nn.Upsample(scale_factor=2)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "batched"), [(n, b) for n in MODULES for b in (True, False) if b or n != "shuffled"])
def test_modules_agree_with_float64_through_autograd(name, batched):
    torch.manual_seed(3)
    module = MODULES[name]()
    x = made(5, 2, 4, 9, 8, spread=False) if batched else made(5, 4, 9, 8, spread=False)
    wide = MODULES[name]().double()
    wide.load_state_dict({k: v.double() for k, v in module.state_dict().items()})
    x64, x32 = x.double().requires_grad_(), x.clone().requires_grad_()
    expected = wide(x64)
    g = made(6, *expected.shape, spread=False)
    expected.backward(g.double())
    with activate("exact-18"):
        y = module(x32)
        y.backward(g)
    pairs = [(y, expected), (x32.grad, x64.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(module.parameters(), wide.parameters(), strict=True)]
    for ours, reference in pairs:
        assert (ours - reference).abs().max() <= 2e-5 * reference.abs().max()


def test_the_gradient_of_a_gradient():
    def second(x, w):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        y = F.conv2d(x, w, stride=2, padding=1)
        first = torch.autograd.grad((y * y).sum(), (x, w), create_graph=True)
        return torch.autograd.grad(sum((f * f).sum() for f in first), (x, w))

    x, w = made(1, 2, 3, 6, 5, spread=False), made(2, 4, 3, 3, 3, spread=False)
    with activate("exact-18"):
        ours = second(x, w)
    for mine, reference in zip(ours, second(x.double(), w.double()), strict=True):
        assert (mine - reference).abs().max() <= 1e-4 * reference.abs().max()


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 16, 3, padding=1, groups=2),
        nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def train(arithmetic, memory_format=torch.contiguous_format, steps=20):
    """Losses of a CNN on a separable task, and its state at the end."""
    torch.manual_seed(7)
    model = cnn().to(memory_format=memory_format)
    g = torch.Generator().manual_seed(8)
    x = torch.randn(16, 3, 16, 16, generator=g)
    target = torch.arange(16) % 4
    x += target[:, None, None, None] * 0.5
    x = x.contiguous(memory_format=memory_format)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []

    def go():
        for _ in range(steps):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())

    if arithmetic is None:
        go()
    else:
        with activate(arithmetic):
            go()
    return losses, torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_a_cnn_trains_to_the_same_bits_whatever_the_memory_format_threads_and_kernels():
    losses, state = train("exact-14")
    native, _ = train(None)
    assert losses[-1] < 0.75 * losses[0]
    assert losses[0] == pytest.approx(native[0], rel=1e-3)
    assert losses[-1] == pytest.approx(native[-1], rel=0.02)
    torch.set_num_threads(2)
    compiled.switch(False)
    again, other = train("exact-14", torch.channels_last)
    assert again == losses
    assert torch.equal(state, other)
