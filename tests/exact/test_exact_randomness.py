"""Random numbers under the exact profile, against Python's Mersenne Twister, Philox in Python integers, and laws."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st
from random_reference import inverse_normal, keys, log, philox_block, signed, single, word, word64

from protocol.errors import UsageError
from witness.arithmetic import compiled, mode
from witness.arithmetic.generator import philox, quantile, randomness, sampling
from witness.arithmetic.kernels import philox as kernels

CPU = torch.device("cpu")
KNOWN = (
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
)
"""Random123's kat_vectors for philox4x32, 10 rounds: counter, key, block."""


@pytest.fixture(autouse=True)
def _exact():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]), mode.activate("exact-14"):
        yield
    torch.set_num_threads(threads)


@pytest.fixture(params=["kernels", "tensors"])
def both_forms(request):
    """Runs a test with compiled kernels and without."""
    compiled.switch(request.param == "kernels")
    yield
    compiled.switch(True)


# The generator


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter, key, expected):
    words = tuple(int(w, 16) for w in expected.split())
    assert philox_block(counter, key) == words
    four = philox.block(key[0] | key[1] << 32, tuple(torch.tensor([c]) for c in counter))
    assert tuple(int(w) for w in four) == words


@given(
    st.integers(0, 2**64 - 1), st.integers(0, 300), st.integers(0, 2**32 - 1), st.integers(0, 2**40), st.integers(1, 90)
)
@settings(max_examples=30, deadline=None)
def test_words_in_every_form(key, count, attempt, far, blocks):
    expected = [word(key, i, attempt) for i in range(count)]
    for on in (True, False):
        compiled.switch(on)
        assert philox.unsigned(philox.words(key, count, CPU, attempt)).tolist() == expected
    compiled.switch(True)
    positions = torch.arange(4 * far, 4 * far + 4 * blocks)
    there = philox.words_at(key, positions, attempt)
    assert philox.unsigned(there)[:3].tolist() == [word(key, 4 * far + i, attempt) for i in range(3)]
    out = np.zeros(4 * blocks, np.uint32)
    kernels.fill(0, blocks, far, key & 0xFFFFFFFF, key >> 32, attempt, out)
    assert out.tolist() == philox.unsigned(there).tolist()


@pytest.mark.parametrize("seed", [0, 5, 2**32 - 1, 2**32 + 5])
def test_keys_are_pairs_of_the_twisters_words(seed):
    torch.manual_seed(seed)
    assert [randomness.draw_key() for _ in range(700)] == keys(seed, 700)
    generator = torch.Generator().manual_seed(seed)
    assert randomness.draw_key(generator) == keys(seed, 1)[0]


def test_key_of_a_seed():
    torch.manual_seed(5)
    assert hex(randomness.draw_key()) == "0x38d48b630e2048ce"  # MT19937 seeded with 5: 953453411, 236996814
    first = torch.rand(3)
    assert first.tolist() == [(word(keys(5, 2)[1], i) >> 8) / 2**24 for i in range(3)]


def test_generator_of_another_device_is_refused():
    with pytest.raises(UsageError, match=r"pass torch.Generator\(\) of the CPU") as caught:
        randomness.draw_key(SimpleNamespace(device=torch.device("cuda", 0)))
    assert caught.value.code == "exact-refused"


# Elements


@pytest.mark.usefixtures("both_forms")
class TestElements:
    def test_uniform(self):
        torch.manual_seed(1)
        drawn = [torch.rand(103, dtype=d) for d in (torch.float32, torch.float64, torch.float16, torch.bfloat16)]
        k = keys(1, 4)
        assert drawn[0].tolist() == [(word(k[0], i) >> 8) / 2**24 for i in range(103)]
        assert drawn[1].tolist() == [(word64(k[1], i) >> 11) / 2**53 for i in range(103)]
        assert drawn[2].tolist() == [(word(k[2], i) >> 21) / 2**11 for i in range(103)]
        assert drawn[3].tolist() == [(word(k[3], i) >> 24) / 2**8 for i in range(103)]

    @pytest.mark.parametrize(("low", "high"), [(-0.3, 0.7), (5.0, 5.0), (1.0, 1.0 + 2**-22), (-1e38, 2e38)])
    def test_uniform_between(self, low, high):
        torch.manual_seed(2)
        x = torch.empty(500).uniform_(low, high)
        k = keys(2, 1)[0]
        expected = [single((word(k, i) >> 8) / 2**24 * (high - low) + low) for i in range(500)]
        assert x.tolist() == [single(low) if e >= single(high) else e for e in expected]
        assert low == high or bool((x < single(high)).all())

    def test_normal(self):
        torch.manual_seed(3)
        x = torch.randn(4000)
        y = torch.empty(4000).normal_(-2.5, 0.1)
        z = torch.randn(2000, dtype=torch.float64)
        b = torch.empty(4000, dtype=torch.bfloat16).normal_()
        m = torch.normal(torch.arange(5.0)[:, None], torch.arange(3.0))
        k = keys(3, 5)
        assert x.tolist() == [single(inverse_normal((signed(word(k[0], i), 32) + 0.5) / 2**32)) for i in range(4000)]
        assert y.tolist() == [
            single(inverse_normal((signed(word(k[1], i), 32) + 0.5) / 2**32) * 0.1 - 2.5) for i in range(4000)
        ]
        assert z.tolist() == [inverse_normal((signed(word64(k[2], i) >> 11, 53) + 0.5) / 2**53) for i in range(2000)]
        wide = [inverse_normal((signed(word(k[3], i), 32) + 0.5) / 2**32) for i in range(4000)]
        assert torch.equal(b, torch.tensor(wide, dtype=torch.float32).bfloat16())
        z4 = [inverse_normal((signed(word(k[4], i), 32) + 0.5) / 2**32) for i in range(15)]
        assert m.flatten().tolist() == [single(v * (i % 3) + i // 3) for i, v in enumerate(z4)]

    def test_words_at_the_ends_of_normal(self):
        ends = torch.tensor([0, -1, 1, 2**31 - 1, -(2**31)], dtype=torch.int32)
        z = quantile.normals(ends, 0.0, 1.0).tolist()
        assert z[0] == -z[1] and z[3] == -z[4] and 6.33 < z[3] < 6.34
        assert z == [single(inverse_normal((s + 0.5) / 2**32)) for s in ends.tolist()]

    @pytest.mark.parametrize(
        ("low", "size"),
        [(0, 1), (-3, 10), (0, 2**31), (7, 3 * 2**29), (0, 2**31 + 1), (-5, 3 * 2**40), (0, 2**63), (-(2**63), 2**64),
         (-(2**63), 5 * 2**61), (-7, 2**63 + 5)],
    )  # fmt: skip
    def test_integers(self, low, size):
        def draw(i):
            attempt = 0
            while True:
                if size <= 2**31:
                    high, rest = divmod(word(key, i, attempt) * size, 2**32)
                    if rest >= 2**32 % size:
                        return low + high
                else:
                    value = word64(key, i, attempt) >> 64 - (size - 1).bit_length()
                    if value < size:
                        return low + value
                attempt += 1

        key = keys(4, 1)[0]
        assert sampling.integers(key, 200, low, size, CPU).tolist() == [draw(i) for i in range(200)]

    def test_integers_by_their_names(self):
        torch.manual_seed(4)
        k = keys(4, 8)
        whole = [
            torch.randint(10, (7,)), torch.randint(-5, 5, (7,), dtype=torch.float32), torch.empty(7).random_(3, 13),
            torch.randint_like(torch.empty(7), 10), torch.empty(7, dtype=torch.int64).random_(10),
        ]  # fmt: skip
        offsets = [0, -5, 3, 0, 0]
        for x, key, low in zip(whole, k, offsets, strict=False):
            assert x.tolist() == [low + (word(key, i) * 10 >> 32) for i in range(7)]
        assert torch.empty(5, dtype=torch.int64).random_().tolist() == [word64(k[5], i) >> 1 for i in range(5)]
        assert torch.empty(5, dtype=torch.uint8).random_().tolist() == [word(k[6], i) >> 24 for i in range(5)]
        full = torch.empty(5, dtype=torch.int64).random_(-(2**63), None)
        assert full.tolist() == [word64(k[7], i) - 2**63 for i in range(5)]

    def test_permutation(self):
        torch.manual_seed(5)
        k = keys(5, 1)[0]
        assert torch.randperm(300).tolist() == sorted(range(300), key=lambda i: signed(word64(k, i), 64))

    @pytest.mark.parametrize("p", [0.0, 1e-12, 0.1, 1 / 3, 0.5, 1 - 2**-40, 1.0])
    def test_coins(self, p):
        torch.manual_seed(6)
        k = keys(6, 3)
        drawn = [torch.empty(500).bernoulli_(p), torch.bernoulli(torch.full((500,), p, dtype=torch.float64))]
        drawn.append(torch.empty(500, dtype=torch.bool).bernoulli_(torch.tensor(p, dtype=torch.float64)))
        for x, key in zip(drawn, k, strict=True):
            assert x.tolist() == [float(word(key, i) < math.floor(Fraction(p) * 2**32)) for i in range(500)]

    def test_exponential(self):
        torch.manual_seed(7)
        x, y = torch.empty(500).exponential_(), torch.empty(500, dtype=torch.float64).exponential_(3.0)
        k = keys(7, 2)
        assert x.tolist() == [single(-log((word(k[0], i) + 0.5) / 2**32)) for i in range(500)]
        assert y.tolist() == [-log(((word64(k[1], i) >> 12) + 0.5) / 2**52) / 3 for i in range(500)]

    def test_choices(self):
        rows = [[0, 3, 0.5, 0, 1e-9], [5e-324, 0, 0, 5e-324, 0], [1e308, 1e308, 0, 0, 1e308]]
        weights = torch.tensor(rows, dtype=torch.float64)
        drawn = sampling.choices(99, weights, 40).tolist()
        for row, picks in enumerate(drawn):
            w = [Fraction(v) for v in weights[row].tolist()]
            top = max(w)
            e = math.frexp(float(top))[1]
            whole = [math.floor(v / Fraction(2) ** e * 2**59) for v in w]
            for j, pick in enumerate(picks):
                target = word64(99, 40 * row + j) * sum(whole) >> 64
                running = 0
                for v in whole[:pick]:
                    running += v
                assert running <= target < running + whole[pick]

    @pytest.mark.parametrize("p", [0.1, 1 / 3, 0.5, 1e-12, 0.9999])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_dropout_is_torchs_composition(self, p, dtype):
        x = torch.arange(-700, 700, dtype=torch.float32).reshape(7, 200).to(dtype).requires_grad_()
        x.data[0, :3] = torch.tensor([math.inf, math.nan, -0.0], dtype=dtype)
        torch.manual_seed(8)
        y = F.dropout(x, p)
        y.backward(torch.full_like(x, 0.7))
        torch.manual_seed(8)
        noise = torch.empty_like(x).bernoulli_(1 - p).div_(1 - p)
        assert [word(keys(8, 1)[0], i) < math.floor(Fraction(1 - p) * 2**32) for i in range(1400)] == (
            noise.flatten() > 0
        ).tolist()
        assert torch.equal(y.nan_to_num(), (x * noise).nan_to_num())
        assert torch.equal(torch.signbit(y), torch.signbit(x * noise))
        assert torch.equal(x.grad, torch.full_like(x, 0.7) * noise)
        torch.manual_seed(8)
        again = F.dropout(x.detach().clone(), p, inplace=True)
        assert torch.equal(again.nan_to_num(), y.nan_to_num())
        torch.manual_seed(8)
        strided = F.dropout(x.detach().t().contiguous().t(), p)
        assert torch.equal(strided.nan_to_num(), y.nan_to_num())


def test_quantile_and_logarithm_against_forty_digits():
    generator = torch.Generator().manual_seed(9)
    s = torch.empty(250, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    tails = 0.5 - torch.tensor([2.0 ** (-e / 5) for e in range(10, 265)], dtype=torch.float64)
    q = torch.cat([quantile.offsets64(s), tails[tails < 0.5], torch.tensor([0.425, -0.425], dtype=torch.float64)])
    with mpmath.workdps(40):
        for x, z in zip(q.tolist(), quantile.quantile(q).tolist(), strict=True):
            p = mpmath.mpf(1) / 2 - abs(mpmath.mpf(x))
            root = mpmath.mpf(abs(z))
            for _ in range(3):  # Newton's method on the distribution function
                density = mpmath.exp(-root * root / 2) / mpmath.sqrt(2 * mpmath.pi)
                root += (mpmath.erfc(root / mpmath.sqrt(2)) / 2 - p) / density
            assert abs(abs(z) - root) <= 6 * math.ulp(z)
        u = 0.5 - q.abs()
        for x, y in zip(u.tolist(), quantile.logarithm(u).tolist(), strict=True):
            assert abs(y - mpmath.log(mpmath.mpf(x))) <= math.ulp(y)


# What a user may rely on


def test_seeds_states_and_forks_mean_what_they_always_do():
    torch.manual_seed(10)
    state = torch.get_rng_state()
    first = torch.randn(50), F.dropout(torch.ones(50), 0.5), torch.randperm(50)
    torch.set_rng_state(state)
    assert all(torch.equal(a, b) for a, b in zip(first, _thrice(), strict=True))
    torch.manual_seed(10)
    with torch.random.fork_rng(devices=[]):
        _thrice()
    assert all(torch.equal(a, b) for a, b in zip(first, _thrice(), strict=True))
    own = torch.Generator().manual_seed(10)
    torch.manual_seed(0)
    assert torch.equal(torch.randn(50, generator=own), first[0])
    assert torch.equal(torch.empty(50).normal_(generator=torch.Generator().manual_seed(10)), first[0])
    assert not torch.equal(torch.randn(50), torch.randn(50))


def _thrice():
    return torch.randn(50), F.dropout(torch.ones(50), 0.5), torch.randperm(50)


@pytest.mark.parametrize(
    "fill",
    [
        lambda x: x.normal_(1.0, 2.0),
        lambda x: x.uniform_(-1, 1),
        lambda x: x.bernoulli_(0.3),
        lambda x: x.exponential_(2.0),
        lambda x: x.random_(1000),
        lambda x: x.geometric_(0.2),
        lambda x: x.cauchy_(),
    ],
)
def test_strides_and_threads_do_not_matter(fill):
    def made(x):
        torch.manual_seed(11)
        return fill(x)

    plain = made(torch.empty(6, 8, 10))
    assert torch.equal(made(torch.empty(10, 8, 6).permute(2, 1, 0)), plain)
    assert torch.equal(made(torch.empty(13, 8, 21)[1::2, :, 1::2]), plain)
    assert torch.equal(made(torch.empty(480)).reshape(6, 8, 10), plain)
    large = torch.empty(150_001)
    one = made(large.clone())
    torch.set_num_threads(3)
    assert torch.equal(made(large.clone()), one)
    assert torch.equal(one[:480].reshape(6, 8, 10), plain)


def test_likes_keep_their_strides_and_their_values():
    x = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    torch.manual_seed(12)
    a, b = torch.rand_like(x), torch.randn_like(x)
    torch.manual_seed(12)
    assert torch.equal(a, torch.rand(2, 3, 4, 5)) and torch.equal(b, torch.randn(2, 3, 4, 5))
    assert a.stride() == x.stride()


def test_nothing_random_is_left_to_torch():
    """Every operator that torch itself marks as random is replaced or refused, and the common ones are replaced."""
    known = set()
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        base, _, overload = name[6:].partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        if torch.Tag.nondeterministic_seeded in op.tags:
            assert mode.kind_of(op) in ("replaced", "refused", "composite"), name  # composites are taken apart
            known.add((base, mode.kind_of(op)))
    ours = """rand rand_like randn randn_like randint randint_like randperm random_ random uniform_ uniform normal
    normal_ bernoulli bernoulli_ exponential_ exponential log_normal_ geometric_ cauchy_ multinomial native_dropout
    dropout"""
    assert {(name, "replaced") for name in ours.split()} <= known


def test_other_spellings():
    torch.manual_seed(13)
    out = torch.rand(4, out=torch.empty(4))
    torch.manual_seed(13)
    assert torch.equal(torch.rand(4), out)
    with torch.inference_mode():
        dropped, kept = F.dropout(torch.ones(80), 0.5), F.dropout(torch.ones(8), 0.5, training=False)
    assert torch.equal(dropped * dropped, dropped * 2) and torch.equal(kept, torch.ones(8))
    assert F.dropout2d(torch.ones(3, 4, 5, 5), 0.5).flatten(2).unique(dim=2).shape[2] == 1
    assert torch.isfinite(F.alpha_dropout(torch.ones(9), 0.5)).all()
    assert torch.randn(3, device="meta").shape == (3,)
    assert torch.randperm(0).shape == (0,)
    with pytest.raises(UsageError, match="exact"):
        torch.randn(3, dtype=torch.complex64)
    with pytest.raises(ValueError, match="between 0 and 1"):
        F.dropout(torch.ones(2), 1.5)


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.empty(2).bernoulli_(1.5),
        lambda: torch.bernoulli(torch.tensor([math.nan])),
        lambda: torch.empty(2).uniform_(2, 1),
        lambda: torch.empty(2).normal_(0, -1),
        lambda: torch.normal(torch.zeros(2), torch.tensor([1.0, -1.0])),
        lambda: torch.randint(3, 3, (1,)),
        lambda: torch.randint(300, (1,), dtype=torch.uint8),
        lambda: torch.multinomial(torch.tensor([1.0, -1.0]), 1),
        lambda: torch.multinomial(torch.zeros(3), 1),
        lambda: torch.multinomial(torch.ones(2), 3),
    ],
)
def test_impossible_parameters_are_refused_as_torch_refuses_them(call):
    with pytest.raises(RuntimeError):
        call()


def test_gumbel_softmax_needs_nothing_of_its_own():
    torch.manual_seed(13)
    drawn = [F.gumbel_softmax(torch.zeros(30, 4), hard=True) for _ in range(2)]
    assert drawn[0].sum() == 30 and not torch.equal(*drawn)


def test_a_loader_shuffles_the_same_way_again():
    def order():
        generator = torch.Generator().manual_seed(14)
        loader = torch.utils.data.DataLoader(list(range(40)), batch_size=8, shuffle=True, generator=generator)
        return torch.cat(list(loader)).tolist()

    assert order() == order() != list(range(40))
    assert sorted(order()) == list(range(40))


# Laws, with fixed seeds: these either hold or do not


def distance(sample, distribution):
    """Kolmogorov and Smirnov's sqrt(n) D; above 1.95 with probability 0.001 if the law is right."""
    x = sorted(sample.tolist())
    n = len(x)
    return math.sqrt(n) * max(max((i + 1) / n - distribution(v), distribution(v) - i / n) for i, v in enumerate(x))


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda n: torch.rand(n), lambda v: v),
        (lambda n: torch.rand(n, dtype=torch.float64), lambda v: v),
        (lambda n: torch.randn(n), statistics.NormalDist().cdf),
        (lambda n: torch.randn(n, dtype=torch.float64), statistics.NormalDist().cdf),
        (lambda n: torch.empty(n).uniform_(-3, 5), lambda v: (v + 3) / 8),
        (lambda n: torch.empty(n).exponential_(0.5), lambda v: 1 - math.exp(-v / 2)),
        (lambda n: torch.empty(n).cauchy_(1.0, 2.0), lambda v: 0.5 + math.atan((v - 1) / 2) / math.pi),
        (lambda n: torch.randint(2**40, (n,)).double() / 2**40, lambda v: v),
        (lambda n: torch.randperm(n).double() / n, lambda v: v),
    ],
)
def test_laws(draw, distribution):
    torch.manual_seed(15)
    x = draw(20_000)
    assert distance(x, distribution) < 1.95
    lagged = (x[1:] > x.median()).eq(x[:-1] > x.median()).double()  # neighbours agree half of the time
    assert abs(int(lagged.bool().sum()) - 10_000) < 4 * 71


def test_moments_of_a_million():
    torch.manual_seed(16)
    x = torch.randn(1_000_000).double().numpy()
    assert abs(x.mean()) < 0.004 and abs(x.var() - 1) < 0.006
    assert abs((x**3).mean()) < 0.016 and abs((x**4).mean() - 3) < 0.04
    kept = int(F.dropout(torch.ones(1_000_000), 0.1).bool().sum())
    assert abs(kept - 900_000) < 4 * 300


def chi_square(counts, expected):
    return sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))


def test_categories():
    torch.manual_seed(17)
    weights = torch.tensor([1.0, 0.0, 2.0, 3.0, 4.0])
    expected = [2000.0, 0.0, 4000.0, 6000.0, 8000.0]
    with_replacement = torch.multinomial(weights, 20_000, replacement=True)
    first = torch.multinomial(weights.expand(20_000, 5), 2)
    for drawn in (with_replacement, first[:, 0]):
        counts = torch.bincount(drawn, minlength=5).tolist()
        assert counts[1] == 0
        assert chi_square([c for c in counts if c], [e for e in expected if e]) < 16.3  # 3 degrees, 0.001
    assert bool((first[:, 0] != first[:, 1]).all())
    pairs = torch.bincount(first[:, 0] * 5 + first[:, 1], minlength=25).tolist()
    p = [w / 10 for w in weights.tolist()]
    two = [(i, j) for i in range(5) for j in range(5) if i != j and p[i] * p[j]]
    likely = {5 * i + j: 20_000 * p[i] * p[j] / (1 - p[i]) for i, j in two}
    assert chi_square([pairs[k] for k in likely], list(likely.values())) < 31.3  # 11 degrees, 0.001
    trials = torch.empty(20_000).geometric_(0.3)
    counts = [int((trials == k).sum()) for k in range(1, 9)]
    assert chi_square(counts, [20_000 * 0.3 * 0.7 ** (k - 1) for k in range(1, 9)]) < 26.1  # 8 degrees, 0.001
    assert trials.min() == 1
