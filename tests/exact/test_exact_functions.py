"""Elementary functions: three readings with the same bits, errors within the table, special values as C99 has them."""

import inspect
import math
import re

import mpmath
import numpy as np
import pytest
import torch
from exact import reference_functions as reference
from hypothesis import given, settings
from hypothesis import strategies as st

from witness.arithmetic import compiled
from witness.arithmetic.elementary import activations, doubles, elementary_operators, functions, powers, trigonometry
from witness.arithmetic.kernels import activations as activation_kernels
from witness.arithmetic.kernels import functions as kernels
from witness.arithmetic.mode import activate
from witness.arithmetic.registry import OPERATORS

INF, NAN = math.inf, math.nan
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, INF, -INF, NAN, 2.0**-149, -(2.0**-149), 2.0**-126, -(2.0**-126),
    2.0**-127, 3.4028234663852886e38, -3.4028234663852886e38, 88.72283, 88.722839, 89.5, -87.33654, -87.5, -103.9,
    -103.98, -104.5, 9.02, -9.02, 12.0, -12.0, 14.5, -14.5, 15.0, 127.9, 128.0, -149.0, -149.6, -150.5, 10.0543, 10.06,
    0.41421357, 2.4142137, 0.99999994, -0.99999994, 1.0000001, 2.0**28, -(2.0**28), 2.0**28 - 16, 1e20, -1e20,
    1.5707964, 3.1415927, 0.34657359, 0.6931472, 20.0, 20.000002,
)  # fmt: skip

UNARY = {
    **{name: getattr(functions, name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "asinh", "acosh", "atanh",
        "sigmoid", "erf", "erfc", "erfinv",
    )},
    **{name: getattr(trigonometry, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
    **{name: getattr(powers, name) for name in ("sqrt", "rsqrt", "reciprocal")},
    **{name: getattr(activations, name) for name in ("gelu", "gelu_tanh", "silu", "log_sigmoid", "mish", "logit")},
}  # fmt: skip
BACKWARD = {
    name: getattr(activations, name)
    for name in (
        "gelu_backward", "gelu_tanh_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "mish_backward",
        "log_sigmoid_backward",
    )
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    compiled.switch(True)


def sample(count: int, seed: int = 0) -> torch.Tensor:
    """Special values, every binade alike, and the region where functions bend."""
    rng = np.random.default_rng(seed)
    anywhere = rng.integers(0, 2**32, count // 3, dtype=np.uint32).view(np.float32)
    bending = rng.normal(size=count // 3) * 3
    wide = rng.normal(size=count - 2 * (count // 3)) * 40
    return torch.cat([torch.tensor(v, dtype=torch.float32) for v in (SPECIAL, anywhere, bending, wide)])


def same(a: torch.Tensor, b: torch.Tensor) -> None:
    """Bit for bit; one NaN is as good as another."""
    assert a.dtype == b.dtype == torch.float32
    assert a.shape == b.shape
    alike = (a.view(torch.int32) == b.view(torch.int32)) | (a.isnan() & b.isnan())
    assert bool(alike.all()), (a[~alike][:5].tolist(), b[~alike][:5].tolist(), (~alike).nonzero()[:5].tolist())


def told(name: str, *columns: torch.Tensor, numbers: tuple[float, ...] = ()) -> torch.Tensor:
    """The reference's values."""
    with np.errstate(all="ignore"):
        rows = zip(*(c.numpy() for c in columns), strict=True)
        return torch.tensor(np.array([getattr(reference, name)(*row, *numbers) for row in rows], dtype=np.float32))


# --- Three readings, the same bits ---


@pytest.mark.parametrize("name", UNARY)
def test_a_definition_is_its_reference_bit_for_bit(name):
    x = sample(900)
    same(UNARY[name](x), told(name, x))


@pytest.mark.parametrize("name", BACKWARD)
def test_a_backward_is_its_reference_bit_for_bit(name):
    x, g = sample(900), sample(900, 1).flip(0)
    same(BACKWARD[name](g, x), told(name, g, x))


@pytest.mark.parametrize("beta, threshold", [(1.0, 20.0), (0.1, 3.0), (7.5, 20.0), (1.3, 1e9)])
def test_softplus_is_its_reference_bit_for_bit(beta, threshold):
    x, g = sample(500), sample(500, 1).flip(0)
    numbers = (np.float32(beta), np.float32(threshold))
    same(activations.softplus(x, *numbers, 1 / beta), told("softplus", x, numbers=(*numbers, 1 / beta)))
    same(activations.softplus_backward(g, x, *numbers), told("softplus_backward", g, x, numbers=numbers))


@pytest.mark.parametrize("exponent", [2.5, -0.3, 1 / 3, 7.0, -4.0, 0.1, 1e10, -INF, INF, NAN, 0.0])
def test_a_power_is_its_reference_bit_for_bit(exponent):
    x = sample(500)
    same(elementary_operators._power(x, exponent), told("pow_", x, numbers=(exponent,)))


@given(st.lists(st.floats(width=32), min_size=1, max_size=40), st.sampled_from(sorted(UNARY)))
@settings(max_examples=300, deadline=None)
def test_any_float_gives_the_bits_of_the_reference(values, name):
    x = torch.tensor(values, dtype=torch.float32)
    same(UNARY[name](x), told(name, x))


@given(st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_two_operands_give_the_bits_of_the_reference(pairs):
    y, x = torch.tensor(pairs, dtype=torch.float32).unbind(1)
    same(trigonometry.atan2(y, x), told("atan2", y, x))
    same(powers.pow_(x, y.double()), told("pow_", x, y.double()))


LOOPS = {
    "exp": kernels.exps, "log": kernels.logs, "log1p": kernels.log1ps, "tanh": kernels.tanhs, "erf": kernels.erfs,
    "sigmoid": kernels.sigmoids, "sin": kernels.sins, "cos": kernels.coss, "gelu": activation_kernels.gelus,
    "sqrt": kernels.roots, "rsqrt": kernels.inverse_roots, "gelu_tanh": activation_kernels.gelu_tanhs,
    "silu": activation_kernels.silus,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_the_compiled_form_has_the_bits_of_the_tensor_form(name):
    x = sample(40_001, 2)
    same(elementary_operators.evaluate(UNARY[name], LOOPS[name], x), UNARY[name](x))


@pytest.mark.parametrize("name", [n for n in BACKWARD if hasattr(activation_kernels, n + "s")])
def test_the_compiled_backward_has_the_bits_of_the_tensor_form(name):
    x, g = sample(40_001, 2), sample(40_001, 3).flip(0)
    loop = getattr(activation_kernels, name + "s")
    same(elementary_operators.evaluate(BACKWARD[name], loop, g, x), BACKWARD[name](g, x))


def test_compiled_forms_with_numbers_have_the_bits_of_the_tensor_form():
    x, g, numbers = sample(20_001, 2), sample(20_001, 3).flip(0), (np.float32(1.7), np.float32(11))
    evaluate = elementary_operators.evaluate
    forms = [
        (activations.softplus, activation_kernels.softpluses, (x,), (*numbers, 1 / 1.7)),
        (activations.softplus_backward, activation_kernels.softplus_backwards, (g, x), numbers),
        (elementary_operators._power, kernels.pows, (x,), (2.7,)),
        (elementary_operators._power, kernels.pows, (x,), (-3.0,)),
    ]
    for definition, loop, operands, rest in forms:
        same(evaluate(definition, loop, *operands, numbers=rest), definition(*operands, *rest))


def test_decay_is_exp_where_it_may_be_used():
    x = sample(20_000, 4)
    x = torch.where(x > 0, -x, x)
    same(functions.decay(x), functions.exp(x))


def test_every_compiled_loop_is_compared_here():
    source = inspect.getsource(kernels) + inspect.getsource(activation_kernels)
    loops = set(re.findall(r"^def (\w+)\(start", source, re.MULTILINE))
    compared = {loop.__name__ for loop in LOOPS.values()} | {name + "s" for name in BACKWARD}
    assert loops <= compared | {"softpluses", "softplus_backwards", "pows"}


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_layout_have_no_say(threads):
    torch.set_num_threads(threads)
    x = sample(120_000, 5)[: 300 * 400].view(300, 400)
    with activate("exact-14"):
        whole = torch.exp(x)
        same(torch.exp(x.t()).t(), whole)
        same(torch.exp(x[:, 1::3]), whole[:, 1::3].contiguous())
        same(torch.exp(x[7:]), whole[7:])
        assert torch.exp(x.t()).stride() == x.t().stride()
        assert torch.exp(x[:0]).shape == (0, 400)
        assert torch.exp(torch.tensor(1.0)).shape == ()


# --- Errors within what is documented ---

SLOPE = mpmath.mpf(2) * mpmath.sqrt(2 / mpmath.pi)
TRUTH = {
    "exp": mpmath.exp, "exp2": lambda v: mpmath.mpf(2) ** v, "expm1": mpmath.expm1, "log": mpmath.log,
    "sin": mpmath.sin, "log2": lambda v: mpmath.log(v, 2), "log10": mpmath.log10, "log1p": mpmath.log1p,
    "tanh": mpmath.tanh, "cos": mpmath.cos, "sinh": mpmath.sinh, "cosh": mpmath.cosh, "asinh": mpmath.asinh,
    "acosh": mpmath.acosh, "atanh": mpmath.atanh, "sigmoid": lambda v: 1 / (1 + mpmath.exp(-v)), "erf": mpmath.erf,
    "erfc": mpmath.erfc, "erfinv": mpmath.erfinv, "tan": mpmath.tan, "asin": mpmath.asin, "acos": mpmath.acos,
    "atan": mpmath.atan, "sqrt": mpmath.sqrt, "rsqrt": lambda v: 1 / mpmath.sqrt(v), "reciprocal": lambda v: 1 / v,
    "gelu_tanh": lambda v: v / (1 + mpmath.exp(-v * SLOPE * (1 + mpmath.mpf("0.044715") * v * v))),
    "gelu": lambda v: v * mpmath.ncdf(v), "silu": lambda v: v / (1 + mpmath.exp(-v)),
    "log_sigmoid": lambda v: -mpmath.log1p(mpmath.exp(-v)),
    "mish": lambda v: v * mpmath.tanh(mpmath.log1p(mpmath.exp(v))), "logit": lambda v: mpmath.log(v) - mpmath.log1p(-v),
}  # fmt: skip
DOMAIN = {
    "log": (0, INF), "log2": (0, INF), "log10": (0, INF), "log1p": (-1, INF), "acosh": (1, INF), "atanh": (-1, 1),
    "erfinv": (-1, 1), "asin": (-1, 1), "acos": (-1, 1), "sqrt": (0, INF), "rsqrt": (0, INF), "logit": (0, 1),
    "gelu": (-13, INF),
}  # fmt: skip


def documented(module, name: str) -> float:
    """The error in the table of a module's docstring."""
    found = re.search(rf"^    (?:.* )?{name} +([0-9.]+)\b", module.__doc__, re.MULTILINE)
    assert found, f"{name} is not in the table"
    return float(found[1])


def ulps(value: float, truth, smallest: int) -> float:
    """The distance in units of the last place of the nearest float."""
    exponent = max(int(mpmath.floor(mpmath.log(abs(truth), 2))), smallest) if truth else smallest
    digits = 23 if smallest == -126 else 52
    return float(abs(mpmath.mpf(value) - truth) / mpmath.mpf(2) ** (exponent - digits))


@pytest.mark.parametrize("name", TRUTH)
def test_errors_are_within_the_table(name):
    low, high = DOMAIN.get(name, (-INF, INF))
    x = sample(500, 6)
    inner = torch.linspace(max(low, -4), min(high, 4), 300)
    x = torch.cat([x, inner])
    x = x[(x > low) & (x < high) & (x != 0) & x.isfinite()]  # zeros are in AT
    bound = documented(functions, name)
    with mpmath.workprec(300):
        for v, y in zip(x.tolist(), UNARY[name](x).tolist(), strict=True):
            truth = TRUTH[name](mpmath.mpf(v))
            if abs(truth) < mpmath.mpf(2) ** 128 - mpmath.mpf(2) ** 103:
                assert ulps(y, truth, -126) <= bound, (v, y)
            else:
                assert y == math.copysign(INF, truth), v


@pytest.mark.parametrize("exponent", [2.5, -0.3, 1 / 3, 7.0, 0.1, 1.1])
def test_powers_are_within_the_table(exponent):
    x = torch.cat([sample(300, 7).abs(), torch.rand(200) * 3])
    x = x[(x > 0) & x.isfinite()]
    bound = documented(functions, "pow")
    with mpmath.workprec(300):
        for v, y in zip(x.tolist(), elementary_operators._power(x, exponent).tolist(), strict=True):
            truth = mpmath.mpf(v) ** mpmath.mpf(exponent)
            if truth < mpmath.mpf(2) ** 128 - mpmath.mpf(2) ** 103:
                assert ulps(y, truth, -126) <= bound, (v, y)
            else:
                assert y == INF, v


DOUBLES = ("exp", "expm1", "log", "log2", "log1p", "tanh", "sigmoid", "sin", "cos")


@pytest.mark.parametrize("name", DOUBLES)
def test_float64_errors_are_within_the_table(name):
    rng = np.random.default_rng(8)
    x = torch.from_numpy(
        np.concatenate([rng.normal(size=300), rng.normal(size=300) * 200, np.exp2(rng.normal(size=100) * 9)])
    )
    low, high = DOMAIN.get(name, (-INF, INF))
    x = x[(x > low) & (x < high) & (x.abs() < doubles.LARGE)]
    bound = documented(doubles, name)
    with mpmath.workprec(300):
        for v, y in zip(x.tolist(), getattr(doubles, name)(x).tolist(), strict=True):
            truth = TRUTH[name](mpmath.mpf(v))
            if abs(truth) < mpmath.mpf(2) ** 1024 - mpmath.mpf(2) ** 970:
                assert ulps(y, truth, -1022) <= bound, (v, y)
            else:
                assert y == math.copysign(INF, truth), v


def test_angles_are_reduced_rightly_however_large():
    # the float32 numbers nearest to multiples of pi / 2 at every size, found by continued fractions of their spacing
    hardest = []
    with mpmath.workprec(400):
        for exponent in range(-1, 104):
            _, q = _convergent(mpmath.mpf(2) ** exponent * 2 / mpmath.pi)
            if 2**23 <= q < 2**24:
                hardest.append(float(q) * 2.0**exponent)
        assert len(hardest) > 30
        x = torch.tensor(hardest, dtype=torch.float32)
        assert x.tolist() == hardest
        for name in ("sin", "cos", "tan"):
            for v, y in zip(hardest, UNARY[name](x).tolist(), strict=True):
                assert ulps(y, TRUTH[name](mpmath.mpf(v)), -126) <= documented(functions, name), (name, v)


def _convergent(x):
    """The last convergent p / q of x with q < 2**24."""
    (p0, q0), (p1, q1) = (1, 0), (int(mpmath.floor(x)), 1)
    while True:
        x = 1 / (x - mpmath.floor(x))
        a = int(mpmath.floor(x))
        if a * q1 + q0 >= 2**24:
            return p1, q1
        (p0, q0), (p1, q1) = (p1, q1), (a * p1 + p0, a * q1 + q0)


# --- Special values ---

AT = {
    "exp": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (89, INF), (-104, 0), (-103.5, 2.0**-149)],
    "exp2": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, 0), (128, INF), (-149, 2.0**-149), (-151, 0), (10, 1024)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1), (2.0**-149, 2.0**-149), (89, INF)],
    "log": [(0.0, -INF), (-0.0, -INF), (1, 0.0), (INF, INF), (-1, NAN), (-INF, NAN)],
    "log2": [(0.0, -INF), (1, 0.0), (INF, INF), (-1, NAN), (2.0**-149, -149), (2.0**100, 100)],
    "log10": [(0.0, -INF), (1, 0.0), (INF, INF), (-1, NAN), (1000, 3), (1e10, 10)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1, -INF), (INF, INF), (-1.5, NAN), (-INF, NAN), (2.0**-149, 2.0**-149)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1), (2.0**-149, 2.0**-149)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (90, INF), (-90, -INF)],
    "cosh": [(0.0, 1), (-0.0, 1), (INF, INF), (-INF, INF), (-90, INF)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1, 0.0), (INF, INF), (0.99, NAN), (-INF, NAN), (-67605240, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1, INF), (-1, -INF), (1.01, NAN), (-INF, NAN)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1), (-INF, 0.0), (-103, 2.0**-149), (200, 1)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1), (-INF, -1)],
    "erfc": [(0.0, 1), (-0.0, 1), (INF, 0.0), (-INF, 2), (10.05, 2.0**-149), (11, 0.0)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1, INF), (-1, -INF), (1.5, NAN), (-INF, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1), (-0.0, 1), (INF, NAN), (-INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.5, NAN), (-INF, NAN), (1, 1.5707964), (-1, -1.5707964)],
    "acos": [(1, 0.0), (1.5, NAN), (-INF, NAN), (-1, 3.1415927), (0, 1.5707964)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.5707964), (-INF, -1.5707964)],
    "sqrt": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-1, NAN), (4, 2), (2.0**-148, 2.0**-74)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1, NAN), (4, 0.5)],
    "reciprocal": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0), (2.0**-149, INF)],
    "gelu": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (1e30, 1e30), (-1e30, -0.0), (-14.5, -0.0)],
    "gelu_tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (1e30, 1e30), (-1e30, -0.0)],
    "silu": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-200, -0.0)],
    "log_sigmoid": [(INF, -0.0), (-INF, -INF), (-1e30, -1e30), (200, -0.0)],
    "mish": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -0.0)],
    "logit": [(0.5, 0.0), (0.0, -INF), (1, INF), (-0.1, NAN), (1.1, NAN), (INF, NAN)],
}  # fmt: skip


@pytest.mark.parametrize("name", AT)
def test_special_values(name):
    x, y = torch.tensor([*AT[name], (NAN, NAN)], dtype=torch.float32).unbind(1)
    same(UNARY[name](x), y.contiguous())


def test_powers_have_the_special_cases_of_c99():
    cases = (
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        3.0,
        -3.0,
        0.5,
        -0.5,
        2.5,
        INF,
        -INF,
        NAN,
        2.0**-140,
        2.0**127,
        2.0**24,
        2.0**24 + 2,
    )
    pairs = [(x, y) for x in cases for y in cases]
    x, y = torch.tensor(pairs).unbind(1)
    with np.errstate(all="ignore"):
        expected = np.power(x.double().numpy(), y.double().numpy())
    same(powers.pow_(x.contiguous(), y.double()), torch.from_numpy(expected).float())


def test_two_arguments_have_the_special_cases_of_c99():
    cases = (0.0, -0.0, 1.0, -1.0, 3.0, -3.0, INF, -INF, NAN, 2.0**-149, 2.0**127)
    y, x = torch.tensor([(a, b) for a in cases for b in cases]).unbind(1)
    same(trigonometry.atan2(y, x), torch.from_numpy(np.arctan2(y.double().numpy(), x.double().numpy())).float())
    same(OPERATORS["hypot"](y, x), torch.from_numpy(np.hypot(y.double().numpy(), x.double().numpy())).float())
    finite = [(a, b) for a in cases for b in cases if not (math.isnan(a) and math.isinf(b))]
    y, x = torch.tensor(finite).unbind(1)
    torch.testing.assert_close(OPERATORS["logaddexp"](y, x), torch.logaddexp(y, x), equal_nan=True, rtol=1e-6, atol=0)
    torch.testing.assert_close(OPERATORS["xlogy"](y, x), torch.xlogy(y, x), equal_nan=True, rtol=1e-6, atol=0)
