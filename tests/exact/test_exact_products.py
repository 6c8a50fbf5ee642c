import contextlib
import json
import os
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import torch
from exact import reference_products as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import IncompleteError, UsageError
from witness.arithmetic import compiled
from witness.arithmetic.matrix import trials
from witness.arithmetic.matrix.digits import DIGITS, STACKED, Digits
from witness.arithmetic.matrix.engines import FLOAT64, SMALL, Engine, Float64
from witness.arithmetic.matrix.operands import Form
from witness.arithmetic.matrix.products import multiply, prepare
from witness.arithmetic.matrix.scaling import canonical_nan, power_of_two

CPU = torch.device("cpu")
PADDED = Digits(padded=True)
ENGINES = {"float64": FLOAT64, "small": SMALL, "digits": DIGITS, "stacked": STACKED, "padded": PADDED}
FORMS = [(name, on) for name in ENGINES for on in (True, False) if (name, on) != ("small", False)]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextlib.contextmanager
def by(engine: Engine, kernels: bool):
    """Products by one engine, with compiled kernels or without."""
    before = compiled.on()
    if kernels and not before:
        pytest.skip("compiled kernels are off")
    compiled.switch(kernels)
    try:
        with mock.patch.object(trials, "multiply", engine.multiply):
            yield
    finally:
        compiled.switch(before)


def patterns(x: torch.Tensor) -> torch.Tensor:
    return canonical_nan(x).view(torch.int32)


def from_patterns(rows) -> torch.Tensor:
    return torch.from_numpy(np.array(rows, np.uint32).view(np.float32))


def same(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.shape == y.shape and torch.equal(patterns(x), patterns(y))


def spread(*shape: int, seed: int, width: int = 12) -> torch.Tensor:
    """Numbers whose exponents differ by up to 2 * width."""
    generator = torch.Generator().manual_seed(seed)
    integers = torch.randint(-(1 << 24), 1 << 24, shape, generator=generator).to(torch.float32)
    return integers * power_of_two(torch.randint(-24 - width, width - 24, shape, generator=generator)).float()


SPECIAL = [0, 1 << 31, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001]
NEAR_ONE = st.integers(0x3F000000, 0x40FFFFFF) | st.integers(0xBF000000, 0xC0FFFFFF)
ELEMENTS = {
    "any": st.integers(0, (1 << 32) - 1),
    "near": NEAR_ONE,
    "special": NEAR_ONE | st.sampled_from(SPECIAL),
    "tiny": st.integers(0, 0x01FFFFFF) | st.integers(0x80000000, 0x81FFFFFF),
    "huge": st.integers(0x7E000000, 0x7F7FFFFF) | st.integers(0xFE000000, 0xFF7FFFFF) | st.just(0x3F800000),
    "powers": st.builds(lambda s, f: s << 31 | f << 23, st.integers(0, 1), st.integers(0, 254)),
}


@st.composite
def matrices(draw):
    m, k, n = (draw(st.integers(1, size)) for size in (3, 7, 3))

    def matrix(rows: int, columns: int):
        element = ELEMENTS[draw(st.sampled_from(sorted(ELEMENTS)))]
        row = st.lists(element, min_size=columns, max_size=columns)
        return draw(st.lists(row, min_size=rows, max_size=rows))

    return matrix(m, k), matrix(k, n)


@pytest.mark.parametrize("bits", [8, 14, 15, 18])
@pytest.mark.parametrize(("name", "kernels"), FORMS)
@settings(max_examples=60, deadline=None)
@given(operands=matrices(), transposed=st.tuples(st.booleans(), st.booleans()))
def test_every_engine_gives_the_bits_of_the_integers(name, kernels, bits, operands, transposed):
    a, b = (from_patterns(rows) for rows in operands)
    expected = from_patterns(reference.multiply(*operands, bits))
    a, b = (x.t().contiguous().t() if flip else x for x, flip in zip((a, b), transposed, strict=True))
    with by(ENGINES[name], kernels):
        assert same(multiply(a, b, bits), expected)


@settings(max_examples=60, deadline=None)
@given(operands=matrices())
def test_blocks_of_a_long_sum_give_the_bits_of_the_integers(operands):
    a, b = (from_patterns(rows) for rows in operands)
    with mock.patch.object(Float64, "longest", lambda _self, _bits: 1):
        assert same(multiply(a, b, 18), from_patterns(reference.multiply(*operands, 18)))


def test_a_sum_beyond_53_bits_is_rounded_once():
    """2**53 + 2**29 + 1 lies just above the middle of two float32 numbers, and is no float64 number."""
    top = float(np.nextafter(np.float32(2.0), np.float32(0)))  # the grid's 2**18
    row = [top] * (1 << 17) + [top, top * 2**-9, 2.0**-17]
    column = [top] * (1 << 17) + [top * 2**-7, 0.0, 2.0**-17]
    for last, expected in ((2.0**-17, 2**53 + 2**30), (0.0, 2**53), (-(2.0**-17), 2**53)):
        a, b = torch.tensor([row]), torch.tensor([column])
        b[0, -1] = last
        integers = [[round(x * 2**17) for x in t.double()[0].tolist()] for t in (a, b)]
        total = sum(x * y for x, y in zip(*integers, strict=True))
        assert total == 2**53 + 2**29 + (last > 0) - (last < 0)
        assert multiply(a, b.t(), 18).item() == expected * 2.0**-34
        assert multiply(-a, b.t(), 18).item() == -expected * 2.0**-34


@pytest.mark.parametrize("bits", [14, 18])
@pytest.mark.parametrize(
    ("m", "k", "n"), [(600, 24, 1100), (70, 700, 45), (1, 999, 130), (17, 1, 33), (130, 64, 1), (40, 5000, 3)]
)
def test_engines_agree_on_larger_matrices_in_every_order_of_memory(m, k, n, bits):
    a, b = spread(m, k, seed=m), spread(k, n, seed=n)
    with by(FLOAT64, False):
        expected = multiply(a, b, bits)
    for name, kernels in FORMS:
        with by(ENGINES[name], kernels):
            for x in (a, a.t().contiguous().t()):
                for y in (b, b.t().contiguous().t()):
                    assert same(multiply(x, y, bits), expected), (name, kernels)
    torch.set_num_threads(3)
    for name, kernels in FORMS:
        with by(ENGINES[name], kernels):
            assert same(multiply(a, b, bits), expected), (name, kernels)


@pytest.mark.parametrize("bits", [14, 18])
def test_the_order_of_the_sum_does_not_matter(bits):
    a, b = spread(33, 257, seed=1), spread(257, 40, seed=2)
    expected = multiply(a, b, bits)
    assert not same(expected, a @ b)
    for seed in range(3):
        order = torch.randperm(257, generator=torch.Generator().manual_seed(seed))
        for name, kernels in FORMS:
            with by(ENGINES[name], kernels):
                assert same(multiply(a[:, order], b[order], bits), expected), name
    assert any(not torch.equal(a[:, order] @ b[order], a @ b) for order in (torch.arange(256, -1, -1), order))


@pytest.mark.parametrize(("name", "kernels"), FORMS)
def test_a_row_alone_has_the_bits_that_it_has_in_the_batch(name, kernels):
    a, b = spread(5, 19, 30, seed=3), spread(5, 30, 21, seed=4)
    with by(ENGINES[name], kernels):
        whole = multiply(a, b, 14)
        for i in range(5):
            assert same(multiply(a[i], b[i], 14), whole[i])
            assert same(multiply(a[i, 7:8], b[i], 14), whole[i, 7:8])
            assert same(multiply(a[i], b[i, :, 20:], 14), whole[i, :, 20:])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4, 5), (5, 6)),
        ((4, 5), (3, 5, 6)),
        ((2, 1, 4, 5), (3, 5, 6)),
        ((2, 3, 4, 5), (2, 3, 5, 6)),
        ((3, 4, 5), (1, 1, 5, 6)),
        ((1, 4, 5), (7, 5, 2)),
        ((0, 4, 5), (5, 2)),
        ((3, 4, 0), (0, 2)),
        ((0, 5), (5, 3)),
        ((4, 5), (2, 5, 0)),
    ],
)
def test_batches_broadcast_as_for_matmul(left, right):
    a, b = spread(*left, seed=5), spread(*right, seed=6)
    shape = torch.matmul(a, b).shape
    x, y = a.expand(*shape[:-2], *left[-2:]), b.expand(*shape[:-2], *right[-2:])
    for name, kernels in FORMS:
        with by(ENGINES[name], kernels):
            out = multiply(a, b, 14)
            assert out.shape == shape
            assert out.is_contiguous()
            assert same(multiply(prepare(a, -1, 14), prepare(b, -2, 14), 14), out)
            for index in np.ndindex(*shape[:-2]):
                assert same(out[index], multiply(x[index], y[index], 14))


@pytest.mark.parametrize("bits", [14, 18])
def test_integers_within_the_bits_are_multiplied_exactly(bits):
    generator = torch.Generator().manual_seed(7)
    a, b = (torch.randint(-2000, 2000, shape, generator=generator) for shape in ((40, 4), (4, 50)))
    assert torch.equal(multiply(a.float(), b.float(), bits).to(torch.int64), a @ b)


@pytest.mark.parametrize("bits", [8, 14, 18])
def test_the_middle_between_two_places_of_the_grid_goes_to_the_even_one(bits):
    """Times the identity a matrix comes back as it is on its grid, whose unit is 2**(1 - p) beside 1.5."""
    halves = torch.arange(-61, 62, 2)
    a = torch.cat([torch.tensor([1.5]), halves * 2.0**-bits])
    expected = [1.5] + [round(h / 2) * 2.0 ** (1 - bits) for h in halves.tolist()]
    for name, kernels in FORMS:
        with by(ENGINES[name], kernels):
            assert multiply(a[None], torch.eye(len(a)), bits)[0].tolist() == expected
            assert multiply(torch.eye(len(a)), a[:, None], bits)[:, 0].tolist() == expected


@pytest.mark.parametrize(("bits", "bound"), [(14, 2e-4), (18, 2e-5)])
def test_the_error_is_that_of_rounding_operands(bits, bound):
    a, b = spread(64, 512, seed=8, width=1), spread(512, 64, seed=9, width=1)
    truth = a.double() @ b.double()
    assert ((multiply(a, b, bits) - truth).norm() / truth.norm()).item() < bound


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_rows_and_columns_without_infinities_do_not_notice(value):
    a, b = spread(70, 64, seed=10), spread(64, 90, seed=11)
    clean = multiply(a, b, 14)
    for name, kernels in FORMS:
        x, y = a.clone(), b.clone()
        x[3, 9], y[40, 88] = value, value
        with by(ENGINES[name], kernels):
            out = multiply(x, y, 14)
        touched = torch.zeros(70, 90, dtype=torch.bool)
        touched[3], touched[:, 88] = True, True
        assert same(out[~touched], clean[~touched])
        assert not out[touched].isfinite().any()
        assert same(out[3, :88], torch.full((88,), value) * y[9, :88])


def test_views_are_multiplied_as_they_are():
    wide = spread(3, 40, 90, seed=12)
    views = [wide[:, ::2, 5:35], wide[:, :30, ::3].mT, wide[:1, :20, 1:31].expand(3, 20, 30), wide[:, 10:30, 60:]]
    right = spread(3, 30, 11, seed=13)
    for view in views:
        for name, kernels in FORMS:
            with by(ENGINES[name], kernels):
                assert same(multiply(view, right, 14), multiply(view.contiguous(), right, 14))
                transposed = multiply(right.mT, view.mT, 14)
                assert same(transposed, multiply(view.contiguous(), right, 14).mT)


def test_what_is_multiplied_and_what_is_refused():
    a, b = spread(6, 8, seed=14), spread(8, 7, seed=15)
    for dtype in (torch.bfloat16, torch.float16):
        x, y = a.to(dtype), b.to(dtype)
        assert same(multiply(x, y, 14), multiply(x.float(), y.float(), 14))
        assert same(multiply(x, b, 14), multiply(x.float(), b, 14))
    assert same(multiply(a.requires_grad_(), b, 14), multiply(a.detach(), b, 14))
    for dtype in (torch.float64, torch.int32, torch.complex64):
        with pytest.raises(UsageError) as caught:
            multiply(a.detach().to(dtype), b, 14)
        assert caught.value.code == "exact-refused"
    for bits in (7, 19):
        with pytest.raises(UsageError):
            multiply(a, b, bits)
    with pytest.raises(ValueError, match="cannot be multiplied"):
        multiply(a, b.t(), 14)
    with pytest.raises(ValueError, match="another side"):
        multiply(prepare(a, -2, 14), b, 14)
    with pytest.raises(ValueError, match="another side"):
        multiply(prepare(a, -1, 18), b, 14)


def test_an_operand_is_put_on_its_grid_once_for_each_engine():
    operand = prepare(spread(300, 200, seed=16), -2, 14)
    with mock.patch.object(Digits, "form", autospec=True, side_effect=Digits.form) as form, by(DIGITS, True):
        for seed in range(3):
            a = spread(20, 300, seed=seed)
            assert same(multiply(a, operand, 14), multiply(a, operand.values, 14))
    assert sum(call.args[2] == -2 for call in form.call_args_list) == 1 + 3


# Trust in engines: worst cases, comparison, and what happens to one that errs.


@pytest.fixture
def fresh_trials():
    tables = trials._proven, trials._classes
    kept = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    yield
    for table, before in zip(tables, kept, strict=True):
        table.clear()
        table.update(before)


def saturating(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """An 8-bit product without VNNI: unsigned times signed, two products added in 16 bits with saturation."""
    k = a.shape[1]
    x, y = (a.to(torch.int64) + 128), b.to(torch.int64)
    terms = x[:, : k // 2 * 2, None] * y[None, : k // 2 * 2]
    pairs = terms.unflatten(1, (-1, 2)).sum(2).clamp(-(1 << 15), (1 << 15) - 1).sum(1)
    return (pairs + x[:, k // 2 * 2 :] @ y[k // 2 * 2 :] - 128 * y.sum(0)).to(torch.int32)


def test_the_worst_cases_find_out_a_product_that_saturates(fresh_trials):
    one = torch.ones(3, 5, dtype=torch.int8)
    assert saturating(one, one.t()).tolist() == [[5] * 3] * 3
    with mock.patch.object(trials, "_int_mm", saturating):
        assert not trials.proven(DIGITS, CPU)
    assert trials._proven == {("digits", CPU, torch.backends.mkldnn.enabled): False}


def test_the_worst_cases_find_out_sums_that_wrap_at_24_bits(fresh_trials):
    def short(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (a.float() @ b.float()).to(torch.int32)

    with mock.patch.object(trials, "_int_mm", short):
        assert not trials.proven(DIGITS, CPU)


def test_an_engine_that_errs_on_a_product_at_hand_is_dropped(fresh_trials):
    trials._proven["digits", CPU, torch.backends.mkldnn.enabled] = True
    a, b = spread(150, 100, seed=17), spread(100, 150, seed=18)
    with by(FLOAT64, False):
        expected = multiply(a, b, 14)

    original = Digits.product

    def off_by_a_bit(self: Digits, x: Form, y: Form, bits: int) -> torch.Tensor:
        out = original(self, x, y, bits)
        out.view(torch.int32)[0, -1, -1] ^= 1
        return out

    with mock.patch.object(Digits, "product", off_by_a_bit):
        for _ in range(8):
            assert same(multiply(a, b, 14), expected)
    assert not trials.proven(DIGITS, CPU)
    assert STACKED not in {engine for known in trials._classes.values() for engine in known.best}


def test_disagreeing_float64_sums_stop_everything(fresh_trials):
    if not compiled.on():
        pytest.skip("nothing to compare with")
    a, b = spread(9, 40, 30, seed=23), spread(9, 30, 120, seed=24)
    with (
        mock.patch.object(FLOAT64, "product", lambda x, y, _: (x.data @ y.data).float() * 2),
        pytest.raises(IncompleteError) as caught,
    ):
        multiply(a, b, 14)
    assert caught.value.code == "arithmetic-unproven"


def test_the_fastest_engine_keeps_a_class(fresh_trials):
    a, b = spread(150, 100, seed=19), spread(100, 150, seed=20)
    for _ in range(4 * trials.TURNS):
        multiply(a, b, 14)
    ((_, known),) = trials._classes.items()
    assert set(known.turns.values()) == {trials.TURNS}
    winner = known.winner()
    with mock.patch.object(winner, "multiply", wraps=winner.multiply) as used:
        multiply(a, b, 14)
        multiply(a[:-1], b[:, 1:], 14)
    assert used.call_count == 2


def test_turns():
    known = trials.ShapeClass()
    for engine, seconds in ((FLOAT64, 0.2), (DIGITS, 0.1), (STACKED, 0.11)):
        known.took(engine, seconds)
    first = [known.next() for _ in range(2)]
    assert first == [(DIGITS, True)] * 2  # float64 is clearly slower, and turns are long
    known.took(DIGITS, 0.3)
    assert known.next() == (STACKED, True)
    for engine in (DIGITS, STACKED, STACKED):
        known.took(engine, 0.3)
    assert known.next() == (DIGITS, False)
    while known.products % trials.AGAIN != trials.AGAIN - 1:
        assert known.next() == (DIGITS, False)
    assert known.next() == (FLOAT64, True)
    known.took(FLOAT64, 0.09)
    assert known.next() == (FLOAT64, False)
    quick = trials.ShapeClass()
    quick.took(FLOAT64, 0.02)
    quick.took(DIGITS, 0.001)
    assert quick.open() == [FLOAT64, DIGITS]


def test_without_exact_float64_products_nothing_is_multiplied(fresh_trials):
    trials._proven["float64", CPU, torch.backends.mkldnn.enabled] = False
    with pytest.raises(IncompleteError) as caught:
        multiply(spread(150, 100, seed=21), spread(100, 150, seed=22), 14)
    assert caught.value.code == "arithmetic-unproven"


CHILD = """
import hashlib, json, os
import torch
torch.set_num_threads(1)
from witness.arithmetic.matrix import products, trials
from witness.arithmetic.matrix.digits import DIGITS

def work():
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randint(-(2**24), 2**24, shape, generator=generator).float()
    digest = hashlib.sha256()
    for shapes in (((150, 300), (300, 120)), ((8, 64, 40), (8, 40, 64)), ((20, 30), (30, 20))):
        a, b = (draw(*shape) for shape in shapes)
        for bits in (14, 18):
            for _ in range(4):
                digest.update(products.multiply(a, b, bits).numpy().tobytes())
    x, y = torch.full((32, 64), -128, dtype=torch.int8), torch.full((64, 32), -128, dtype=torch.int8)
    proven = trials.proven(DIGITS, torch.device("cpu"))
    saturates = torch._int_mm(x, y)[0, 0].item() != 2**14 * 64
    return {"digest": digest.hexdigest(), "proven": proven, "saturates": saturates}

read, write = os.pipe()
if os.fork() == 0:  # as a zygote: imported, nothing computed
    os.write(write, json.dumps(work()).encode())
    os._exit(0)
os.close(write)
print(os.read(read, 10000).decode())
"""


def test_a_saturating_machine_gives_the_same_bits_in_a_forked_child():
    """oneDNN without VNNI saturates; where it does not (another architecture), the digits may stay."""
    results = []
    for isa in (None, "AVX2"):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        if isa:
            environment["ONEDNN_MAX_CPU_ISA"] = isa
        done = subprocess.run([sys.executable, "-c", CHILD], env=environment, capture_output=True, check=True)
        results.append(json.loads(done.stdout))
    assert results[0]["digest"] == results[1]["digest"]
    for result in results:
        assert not (result["saturates"] and result["proven"])


# Bits.


def test_powers_of_two():
    exponents = torch.arange(-1022, 1024)
    assert power_of_two(exponents).tolist() == [2.0**e for e in range(-1022, 1024)]


@pytest.mark.parametrize(
    ("dtype", "integer", "pattern", "others"),
    [
        (torch.float32, torch.int32, 0x7FC00000, [0x7F800001, -1, 0x7FFFFFFF]),
        (torch.float64, torch.int64, 0x7FF8000000000000, [0x7FF0000000000001, -1]),
        (torch.bfloat16, torch.int16, 0x7FC0, [0x7F81, -1]),
        (torch.float16, torch.int16, 0x7E00, [0x7C01, -1]),
    ],
)
def test_one_pattern_for_every_nan(dtype, integer, pattern, others):
    x = torch.tensor([*others, pattern, 0, 1], dtype=integer).view(dtype)
    assert canonical_nan(x).view(integer).tolist() == [pattern] * (len(others) + 1) + [0, 1]
    finite = torch.tensor([1.0, torch.inf], dtype=dtype)
    assert canonical_nan(finite) is finite
    assert canonical_nan(torch.arange(3)).tolist() == [0, 1, 2]
