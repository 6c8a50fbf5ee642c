"""Initialisers under the exact profile: QR, truncated normal, and what torch.nn.init makes of ours."""

from __future__ import annotations

import contextlib
import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_reference import inverse_normal, keys, single, word, word64
from torch.nn import init

from protocol.errors import UsageError
from witness.arithmetic import compiled, mode
from witness.arithmetic.generator import truncation


@pytest.fixture(autouse=True)
def _exact():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]), mode.activate("exact-14"):
        yield
    torch.set_num_threads(threads)


# QR, against Python floats


def halved(values):
    values = list(values)
    while len(values) > 1:
        half = (len(values) + 1) // 2
        values = [v + values[half + i] if half + i < len(values) else v for i, v in enumerate(values[:half])]
    return values[0]


def reference_qr(a, columns):
    """Householder's method on a list of rows, in the order that the definition prescribes."""
    m, n = len(a), len(a[0])
    exponent = math.frexp(max(abs(v) for row in a for v in row))[1] - 1
    r = [[math.ldexp(v, -exponent) for v in row] for row in a]
    q = [[float(i == j) for j in range(columns)] for i in range(m)]

    def reflect(w, j, v, t, first):
        for c in range(first, len(w[0])):
            inner = halved(v[i] * w[j + i][c] for i in range(m - j))
            for i in range(m - j):
                w[j + i][c] -= t * v[i] * inner

    done = []
    for j in range(min(m - 1, n)):
        v = [r[i][j] for i in range(j, m)]
        norm, alpha = math.sqrt(halved(x * x for x in v)), v[0]
        v[0] = alpha + math.copysign(norm, alpha)
        t = 1 / (norm * (norm + abs(alpha))) if norm else 0.0
        reflect(r, j, v, t, j + 1)
        r[j][j] = -math.copysign(norm, alpha)
        for i in range(j + 1, m):
            r[i][j] = 0.0
        done.append((j, v, t))
    for j, v, t in reversed(done):
        reflect(q, j, v, t, j)
    return q, [[math.ldexp(v, exponent) for v in row] for row in r[:columns]]


def matrices(shape):
    row = st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=shape[1], max_size=shape[1])
    return st.lists(row, min_size=shape[0], max_size=shape[0])


@given(st.tuples(st.integers(1, 9), st.integers(1, 7)).flatmap(matrices), st.sampled_from(["reduced", "complete"]))
@settings(max_examples=60, deadline=None)
def test_qr_in_every_form(rows, kind):
    a = torch.tensor(rows, dtype=torch.float64)
    k = a.shape[0] if kind == "complete" else min(a.shape)
    if a.any():
        q, r = reference_qr(rows, k)
    else:
        q, r = np.eye(a.shape[0], k).tolist(), np.zeros((k, a.shape[1])).tolist()  # -0.0 == 0.0
    for on in (True, False):
        compiled.switch(on)
        got_q, got_r = torch.linalg.qr(a, kind)
        assert (got_q.tolist(), got_r.tolist()) == (q, r)
        half_q, half_r = torch.linalg.qr(a.float(), kind)
        assert torch.equal(half_q, torch.tensor(q).float()) and torch.equal(half_r, torch.tensor(r).float())
    compiled.switch(True)


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5), (2, 3, 6, 4), (1, 1), (0, 3), (3, 0)])
@pytest.mark.parametrize("kind", ["reduced", "complete", "r"])
def test_qr_is_a_qr_with_the_signs_of_lapack(shape, kind):
    a = torch.randn(shape, dtype=torch.float64)
    q, r = torch.linalg.qr(a, kind)
    with mode_off():
        native_q, native_r = torch.linalg.qr(a, kind)
        assert q.shape == native_q.shape and r.shape == native_r.shape
        assert torch.allclose(q, native_q, atol=1e-12) and torch.allclose(r, native_r, atol=1e-12)


def mode_off():
    return torch.utils._python_dispatch._disable_current_modes()


def test_qr_of_huge_tiny_and_special_numbers():
    a = torch.randn(6, 4, dtype=torch.float64)
    q, r = torch.linalg.qr(a)
    for power in (2.0**1000, 2.0**-1000):
        scaled_q, scaled_r = torch.linalg.qr(a * power)
        assert torch.equal(scaled_q, q) and torch.equal(scaled_r, r * power)
    assert torch.equal(torch.linalg.qr(a.t().contiguous().t())[0], q)
    for bad in (math.nan, math.inf):
        b = a.clone()
        b[2, 1] = bad
        assert torch.isnan(torch.linalg.qr(b)[1]).any()


@pytest.mark.parametrize("shape", [(64, 64), (20, 90), (90, 20), (8, 4, 3, 3)])
def test_orthogonal(shape):
    torch.manual_seed(1)
    w = init.orthogonal_(torch.empty(shape), gain=2.0)
    torch.manual_seed(1)
    compiled.switch(False)
    again = init.orthogonal_(torch.empty(shape), gain=2.0)
    compiled.switch(True)
    assert torch.equal(w, again)
    with mode_off():
        flat = w.flatten(1).double() / 2
        gram = flat @ flat.T if flat.shape[0] <= flat.shape[1] else flat.T @ flat
        assert (gram - torch.eye(len(gram))).abs().max() < 2e-7


# Truncated normal


@pytest.mark.parametrize(
    ("mean", "std", "a", "b"),
    [(0.0, 1.0, -2.0, 2.0), (0.0, 0.02, -0.04, 0.04), (1.0, 0.5, 0.9, 8.0), (0.0, 1.0, 3.5, 3.75),
     (0, 1, -math.inf, -5), (0.5, 0.0, 0.0, 1.0)],
)  # fmt: skip
def test_truncated_normal(mean, std, a, b):
    def value(s):
        return inverse_normal((s + 0.5) / 2**53) * std + mean

    first, last = truncation.ends(float(mean), float(std), float(a), float(b))
    assert first == -(2**52) or value(first - 1) < a <= value(first)
    assert last == 2**52 - 1 or value(last) <= b < value(last + 1)
    torch.manual_seed(2)
    with pytest.warns(UserWarning) if mean < a - 2 * std or mean > b + 2 * std else contextlib.nullcontext():
        x = init.trunc_normal_(torch.empty(300), mean, std, a, b)
    key, size = keys(2, 1)[0], last - first + 1
    bits = (size - 1).bit_length()
    for i, got in enumerate(x.tolist()):
        attempt = 0
        while (drawn := word64(key, i, attempt) >> 64 - bits) >= size:
            attempt += 1
        assert got == min(max(single(value(first + drawn)), single(a)), single(b))


def test_truncated_normal_law_types_and_refusals():
    torch.manual_seed(3)
    x = init.trunc_normal_(torch.empty(20_000), 0.0, 1.0, -1.0, 2.0)
    normal = statistics.NormalDist()
    low, width = normal.cdf(-1), normal.cdf(2) - normal.cdf(-1)
    rank = sorted(x.tolist())
    worst = max(abs((normal.cdf(v) - low) / width - (i + 0.5) / 20_000) for i, v in enumerate(rank))
    assert worst * math.sqrt(20_000) < 1.95
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        y = init.trunc_normal_(torch.empty(3, 50, dtype=dtype).t(), std=0.02, a=-0.03, b=0.03)
        assert y.abs().max() <= torch.tensor(0.03, dtype=dtype)
    with pytest.raises(UsageError, match="holds no number") as caught, pytest.warns(UserWarning):
        init.trunc_normal_(torch.empty(3), 0.0, 1.0, 9.0, 10.0)
    assert caught.value.code == "exact-refused"
    assert init.trunc_normal_(torch.empty(3, device="meta")).device.type == "meta"
    with mode_off():
        original = torch.nn.init._no_grad_trunc_normal_
    assert original is truncation.trunc_normal_


def test_torch_has_its_own_back_outside():
    inside = init._no_grad_trunc_normal_
    with truncation.substituted():
        pass
    assert init._no_grad_trunc_normal_ is inside


# torch.nn.init over ours: the same whatever the form, strides or dtype


@pytest.mark.parametrize(
    "initialise",
    [
        init.xavier_uniform_, init.xavier_normal_, init.kaiming_uniform_, init.kaiming_normal_, init.uniform_,
        init.normal_, init.orthogonal_, init.trunc_normal_, lambda w: init.sparse_(w, 0.3),
    ],
)  # fmt: skip
def test_initialisers(initialise):
    def made(w):
        torch.manual_seed(4)
        with torch.no_grad():
            return initialise(w)

    plain = made(torch.empty(24, 36))
    assert torch.equal(made(torch.empty(36, 24).t()), plain)
    parameter = torch.nn.Parameter(torch.empty(24, 36))
    assert torch.equal(made(parameter), plain) and parameter.requires_grad
    compiled.switch(False)
    assert torch.equal(made(torch.empty(24, 36)), plain)
    compiled.switch(True)
    assert plain.std() > 0


def test_modules_are_built_from_the_seed():
    def built():
        torch.manual_seed(5)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 30), torch.nn.Conv2d(3, 4, 3), torch.nn.Embedding(11, 6), torch.nn.GRU(5, 7),
            torch.nn.MultiheadAttention(8, 2), torch.nn.TransformerEncoderLayer(8, 2, 16),
        )  # fmt: skip
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    first = built()
    compiled.switch(False)
    assert torch.equal(built(), first)
    compiled.switch(True)
    bound = 1 / math.sqrt(20)
    k = keys(5, 1)[0]
    a = init.calculate_gain("leaky_relu", math.sqrt(5)) / math.sqrt(20) * math.sqrt(3)
    assert abs(a - bound) < 1e-9
    assert first[0].item() == single((word(k, 0) >> 8) / 2**24 * (2 * a) - a)
