"""Pooling, folding, padding, resizing: values against float64, the order of additions against a slow reference."""

import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from hypothesis import given, settings
from hypothesis import strategies as st

from witness.arithmetic import compiled
from witness.arithmetic.layers import folding, pooling
from witness.arithmetic.mode import activate

PLANES = {1: (2, 3, 11), 2: (2, 3, 9, 7), 3: (2, 2, 6, 5, 7)}
POOLS = [(3, 2, 1), (2, 2, 0), (3, 1, 1), (5, 3, 2), (20, 1, 0)]
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    compiled.switch(True)


def whole(seed, *shape):
    """Small whole numbers, many of them equal: sums are exact, and ties show."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).float()


def rough(seed, *shape):
    """Numbers whose sums round differently in every order."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g) * 2.0 ** torch.randint(-12, 12, shape, generator=g)


def pools():
    for d, shape in PLANES.items():
        for k, s, p in POOLS:
            k = min(k, min(shape[2:]) if d == 3 else shape[-1])
            for ceil in (False, True):
                at = f"{d}d-{k}-{s}-{p}-{ceil}"
                largest, mean = getattr(F, f"max_pool{d}d"), getattr(F, f"avg_pool{d}d")
                yield f"max{at}", shape, lambda x, a=(k, s, p), c=ceil, f=largest: f(x, *a, ceil_mode=c)
                yield f"avg{at}", shape, lambda x, a=(k, s, p), c=ceil, f=mean: f(x, *a, ceil_mode=c)
                yield f"avg{at}i", shape, lambda x, a=(k, s, p), c=ceil, f=mean: f(x, *a, c, count_include_pad=False)
        most, average = getattr(F, f"adaptive_max_pool{d}d"), getattr(F, f"adaptive_avg_pool{d}d")
        for out in (1, 2, 5, 15):
            yield f"adaptive-max{d}d-{out}", shape, lambda x, o=out, f=most: f(x, o)
            yield f"adaptive-avg{d}d-{out}", shape, lambda x, o=out, f=average: f(x, o)
    image = PLANES[2]
    yield "dilated", image, lambda x: F.max_pool2d(x, 3, 1, 1, 2)
    yield "unequal", image, lambda x: F.max_pool2d(x[0], (2, 3), (1, 2), (0, 1), (2, 1))
    yield "divided", image, lambda x: F.avg_pool2d(x[0], (2, 3), (1, 2), (0, 1), divisor_override=4)
    yield "unbatched", image, lambda x: F.adaptive_avg_pool2d(x[0], (4, 5)) + F.adaptive_max_pool2d(x[1], (4, 5))
    yield "unpooled", image, lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(9, 7))


def moves():
    image = PLANES[2]
    for kind in ("reflect", "replicate", "circular"):
        for d, borders in ((1, (3, 0)), (2, (3, 2, 1, 4)), (3, (1, 2, 3, 1, 0, 2))):
            yield f"{kind}{d}d", PLANES[d], lambda x, b=borders, k=kind: F.pad(x, b, mode=k)
        yield f"{kind}-unbatched", image, lambda x, k=kind: F.pad(x[0], (3, 2, 1, 4), mode=k)
        if kind != "circular":
            yield f"{kind}-cut", image, lambda x, k=kind: F.pad(x, (-2, 2, 1, -1), mode=k)
    yield "constant", image, lambda x: F.pad(x, (-2, 2, 1, -1), value=3.0)
    for kind in ("nearest", "nearest-exact", "area"):
        for wanted in ({"size": (4, 20)}, {"scale_factor": 2}, {"scale_factor": (0.6, 1.7)}):
            yield f"{kind}-{wanted}", image, lambda x, k=kind, w=wanted: F.interpolate(x, mode=k, **w)
        yield f"{kind}1d", PLANES[1], lambda x, k=kind: F.interpolate(x, scale_factor=2.3, mode=k)
        yield f"{kind}3d", PLANES[3], lambda x, k=kind: F.interpolate(x, scale_factor=1.5, mode=k)
    for d, kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
        for aligned in (False, True):
            for wanted in ({"size": 3}, {"size": 14}, {"scale_factor": 2}, {"scale_factor": 1.7}):
                if wanted == {"scale_factor": 1.7} and aligned:
                    wanted = {"size": PLANES[d][2:]}
                yield (
                    f"{kind}-{wanted}-{aligned}",
                    PLANES[d],
                    lambda x, k=kind, w=wanted, a=aligned: F.interpolate(x, mode=k, align_corners=a, **w),
                )
    for k, s, p, g in ((3, 1, 0, 1), (3, 2, 1, 1), (2, 3, 1, 2), (3, 1, 2, 2)):
        yield f"unfold{k}{s}{p}{g}", image, lambda x, a=(k, g, p, s): F.unfold(x, *a)
        yield f"fold{k}{s}{p}{g}", image, lambda x, a=(k, g, p, s): F.fold(F.unfold(x, *a), (9, 7), *a)
    for dim, k, s in ((3, 3, 1), (3, 4, 3), (2, 2, 5), (3, 7, 2), (1, 2, 1)):
        yield f"windows{dim}{k}{s}", image, lambda x, a=(dim, k, s): x.unfold(*a)
    yield "shuffle", (2, 4, 6, 8), lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 4)


CASES = {name: (shape, f) for name, shape, f in (*pools(), *moves())}


def gradients(f, x, g, bits="exact-14"):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    with activate(bits):
        y = f(x)
        y.backward(g)
    return y.detach(), x.grad


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name):
    """On whole numbers only a division rounds, so float64 must agree to one rounding; and no other path may differ."""
    shape, f = CASES[name]
    x = whole(1, *shape)
    wide = x.double().requires_grad_()
    expected = f(wide)
    g = whole(2, *expected.shape)
    expected.backward(g.double())
    y, gx = gradients(f, x, g)
    assert y.shape == expected.shape
    lines = "linear" in name  # shares of two elements are rounded too
    assert torch.allclose(y.double(), expected, rtol=3e-7 if lines else 1.2e-7, atol=3e-6 if lines else 0)
    assert torch.allclose(gx.double(), wide.grad, rtol=3e-7, atol=3e-5 if lines else 1e-6)
    other = x.contiguous(memory_format=FORMATS[x.dim()]) if x.dim() in FORMATS else x
    for switched in (True, False):
        compiled.switch(switched)
        for memory in (x, other, torch.stack([x, x], -1)[..., 0]):
            again = gradients(f, memory, g)
            assert torch.equal(again[0], y)
            assert torch.equal(again[1], gx)


def test_half_precision_is_rounded_once_after_the_sum():
    x = rough(3, 2, 3, 8, 8).clamp(-100, 100).bfloat16()
    g = rough(4, 2, 3, 4, 4).clamp(-100, 100).bfloat16()

    def f(x):
        return F.avg_pool2d(x, 3, 2, 1)

    y, gx = gradients(f, x, g)
    wide = gradients(f, x.float(), g.float())
    assert y.dtype == gx.dtype == torch.bfloat16
    assert torch.equal(y, wide[0].bfloat16())
    assert torch.equal(gx, wide[1].bfloat16())


def test_one_adaptive_mean_is_the_mean():
    """Some torch releases and devices take the one for the other."""
    x = rough(5, 3, 2, 8, 9)
    with activate("exact-14"):
        assert torch.equal(pooling.adaptive_avg_pool(x, [1, 1], d=2), x.mean((2, 3), keepdim=True))
        assert torch.equal(pooling.adaptive_avg_pool(x, [1, 1], d=2), F.avg_pool2d(x, (8, 9)))


def test_ties_and_nan_go_where_they_go_in_torch():
    x = torch.tensor([[[0.0, -0.0, 1.0, 1.0, torch.nan, 2.0, torch.nan, -torch.inf, -torch.inf]]])
    for f in (
        lambda x: F.max_pool1d(x, 3, 3, return_indices=True),
        lambda x: F.max_pool1d(x, 2, 1, return_indices=True),
    ):
        expected, places = f(x)
        with activate("exact-14"):
            values, index = f(x)
        assert torch.equal(index, places)
        assert torch.equal(values, expected) or torch.equal(values.isnan(), expected.isnan())


# --- The order of additions, one number at a time ---------------------------------------------------------------------


def halved(values):
    values = list(values)
    while len(values) > 1:
        h = (len(values) + 1) // 2
        values = [values[i] + values[h + i] if h + i < len(values) else values[i] for i in range(h)]
    return values[0] if values else np.float32(0)


def in_turn(values):
    total = np.float32(0)
    for value in values:
        total = total + value
    return total


sizes = st.tuples(st.integers(3, 9), st.integers(3, 9))


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.integers(0, 99))
def test_the_order_of_average_pooling(extent, k, s, p, seed):
    if 2 * p > k:
        p = 0
    x = rough(seed, 1, 1, *extent)
    y = F.avg_pool2d(x, k, s, p)
    g = rough(seed + 1, *y.shape)
    ours, gx = gradients(lambda x: F.avg_pool2d(x, k, s, p), x, g)
    padded = np.pad(x[0, 0].numpy(), p)
    divided = g[0, 0].numpy() / np.float32(k * k)
    for i, j in np.ndindex(*y.shape[2:]):
        rows = [halved(padded[i * s + a, j * s : j * s + k]) for a in range(k)]
        assert ours[0, 0, i, j].item() == halved(rows) / np.float32(k * k)

    def covering(place, count):
        """Windows over a place, by the offset that it has in them."""
        return [i for offset in range(k) for i, rest in [divmod(place + p - offset, s)] if rest == 0 and 0 <= i < count]

    for i, j in np.ndindex(*extent):
        per_row = {a: in_turn(divided[a, b] for b in covering(j, y.shape[3])) for a in range(y.shape[2])}
        assert gx[0, 0, i, j].item() == in_turn(per_row[a] for a in covering(i, y.shape[2]))


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.integers(1, 14), st.integers(0, 99))
def test_the_order_of_adaptive_average_pooling(n, m, seed):
    x, g = rough(seed, 1, 1, n), rough(seed + 1, 1, 1, m)
    ours, gx = gradients(lambda x: F.adaptive_avg_pool1d(x, m), x, g)
    parts = [(i * n // m, -(-(i + 1) * n // m)) for i in range(m)]
    longest = max(b - a for a, b in parts)
    for i, (a, b) in enumerate(parts):
        filled = [*x[0, 0, a:b].numpy(), *[np.float32(0)] * (longest - (b - a))]
        assert ours[0, 0, i].item() == halved(filled) / np.float32(b - a)
    covering = [[i for i, (a, b) in enumerate(parts) if a <= place < b] for place in range(n)]
    most = max(map(len, covering))
    for place, over in enumerate(covering):
        got = [g[0, 0, i].numpy() / np.float32(parts[i][1] - parts[i][0]) for i in over]
        assert gx[0, 0, place].item() == halved([*got, *[np.float32(0)] * (most - len(got))])


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_the_order_in_which_gradients_return_to_maxima(extent, k, s, compile_, seed):
    compiled.switch(compile_)
    x = whole(seed, 1, 1, *extent)
    index = F.max_pool2d(x, k, s, return_indices=True)[1]
    g = rough(seed + 1, *index.shape)
    _, gx = gradients(lambda x: F.max_pool2d(x, k, s), x, g)
    r = math.ceil(k / s)
    total = np.zeros(extent[0] * extent[1], np.float32)
    for a, b in itertools.product(range(r), range(r)):
        for i, j in np.ndindex(*index.shape[2:]):
            if (i % r, j % r) == (a, b):
                total[index[0, 0, i, j]] += g[0, 0, i, j].numpy()
    assert np.array_equal(gx.numpy().reshape(-1), total)


@settings(max_examples=40, deadline=None)
@given(sizes, st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1), st.integers(0, 99))
def test_the_order_of_folding(extent, k, s, dilation, p, seed):
    reach = dilation * (k - 1) + 1
    counts = [(n + 2 * p - reach) // s + 1 for n in extent]
    if min(counts) < 1:
        return
    x = rough(seed, 1, k * k, counts[0] * counts[1])
    ours = folding.col2im(x, extent, [k, k], [dilation] * 2, [p, p], [s, s])
    w = x.reshape(k, k, *counts).numpy()
    for i, j in np.ndindex(*extent):
        rows = []
        for a in range(k):
            up, rest = divmod(i + p - a * dilation, s)
            if rest or not 0 <= up < counts[0]:
                continue
            across = [(b, *divmod(j + p - b * dilation, s)) for b in range(k)]
            rows.append(in_turn(w[a, b, up, v] for b, v, rest in across if rest == 0 and 0 <= v < counts[1]))
        assert ours[0, 0, i, j].item() == in_turn(rows)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 9), st.integers(0, 2), st.integers(0, 2), st.integers(0, 99))
def test_the_order_of_borders(n, before, behind, seed):
    x, g = rough(seed, 1, 1, n), rough(seed + 1, 1, 1, n + before + behind)
    line = g[0, 0].numpy()
    inside = line[before : before + n].copy()
    _, mirrored = gradients(lambda x: F.pad(x, (before, behind), mode="reflect"), x, g)
    _, repeated = gradients(lambda x: F.pad(x, (before, behind), mode="replicate"), x, g)
    expected = inside.copy()
    for i in range(before):
        expected[before - i] += line[i]
    for i in range(behind):
        expected[n - 2 - i] += line[before + n + i]
    assert np.array_equal(mirrored[0, 0].numpy(), expected)
    expected = inside.copy()
    if before:
        expected[0] += halved(line[:before])
    if behind:
        expected[-1] += halved(line[before + n :])
    assert np.array_equal(repeated[0, 0].numpy(), expected)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 25), st.sampled_from(["nearest", "nearest-exact"]), st.integers(0, 99))
def test_the_order_of_resizing(n, m, kind, seed):
    x, g = rough(seed, 1, 1, n), rough(seed + 1, 1, 1, m)
    source = F.interpolate(torch.arange(n).float()[None, None], size=m, mode=kind)[0, 0].int().tolist()
    _, gx = gradients(lambda x: F.interpolate(x, size=m, mode=kind), x, g)
    taken = [[g[0, 0, i].numpy() for i in range(m) if source[i] == place] for place in range(n)]
    most = max(map(len, taken))
    for place, values in enumerate(taken):
        assert gx[0, 0, place].item() == halved([*values, *[np.float32(0)] * (most - len(values))])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 25), st.booleans(), st.integers(0, 99))
def test_the_order_of_resizing_by_lines(n, m, aligned, seed):
    x, g = rough(seed, 1, 1, n), rough(seed + 1, 1, 1, m)
    y, gx = gradients(lambda x: F.interpolate(x, size=m, mode="linear", align_corners=aligned), x, g)
    line, back = x[0, 0].numpy(), g[0, 0].numpy()
    begun, ended = ([[] for _ in range(n)] for _ in range(2))
    for o in range(m):
        p = o * ((n - 1) / (m - 1) if m > 1 else 0.0) if aligned else max((o + 0.5) * (n / m) - 0.5, 0.0)
        first = min(math.floor(p), n - 1)
        b = p - first if first < n - 1 else 0.0
        second = min(first + 1, n - 1)
        one, other = np.float32(1 - b), np.float32(b)
        assert y[0, 0, o].item() == (line[first] * one + line[second] * other if n != m else line[o])
        begun[first].append(back[o] * one)
        ended[second].append(back[o] * other)
    sums = [
        [halved([*part, *[np.float32(0)] * (max(map(len, parts)) - len(part))]) for part in parts]
        for parts in (begun, ended)
    ]
    for place in range(n):
        assert gx[0, 0, place].item() == (sums[0][place] + sums[1][place] if n != m else back[place])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.integers(1, 20), st.integers(1, 9), st.integers(0, 99))
def test_the_order_of_unfolding(n, k, s, seed):
    k = min(n, k)
    count = (n - k) // s + 1
    g = rough(seed, count, k)
    ours = folding.unfold_backward(g, [n], 0, k, s)
    for place in range(n):
        over = [(divmod(place - offset, s), offset) for offset in range(k)]
        values = [g[i, offset].numpy() for (i, rest), offset in over if rest == 0 and 0 <= i < count]
        assert ours[place].item() == in_turn(values)
