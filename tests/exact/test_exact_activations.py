"""Elementary functions and activations in programs: every spelling, gradients, precisions, what is refused."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from protocol.errors import UsageError
from witness.arithmetic import compiled
from witness.arithmetic.mode import activate
from witness.arithmetic.registry import OPERATORS

INF, NAN = math.inf, math.nan
aten = torch.ops.aten


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    compiled.switch(True)


def away_from_kinks(count: int) -> torch.Tensor:
    """Numbers at which every piecewise function below has a derivative."""
    return torch.from_numpy(np.random.default_rng(0).normal(size=count) * 4).float() + 1e-3


WEIGHT = torch.tensor([0.3])
SMOOTH = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "erf": torch.erf, "erfc": torch.erfc, "sin": torch.sin, "cos": torch.cos, "sinh": torch.sinh, "cosh": torch.cosh,
    "atan": torch.atan, "asinh": torch.asinh, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "mish": F.mish, "softplus": F.softplus, "softplus_beta": lambda x: F.softplus(x, 2.5, 5.0),
    "elu": lambda x: F.elu(x, 0.7), "celu": lambda x: F.celu(x, 1.3), "selu": F.selu, "logsigmoid": F.logsigmoid,
    "softsign": F.softsign, "relu": F.relu, "relu6": F.relu6, "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "prelu": lambda x: F.prelu(x, WEIGHT), "glu": F.glu, "hardtanh": lambda x: F.hardtanh(x, -1.5, 2.0),
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "hardshrink": lambda x: F.hardshrink(x, 0.7),
    "softshrink": lambda x: F.softshrink(x, 0.7), "threshold": lambda x: F.threshold(x, 0.3, -2.0),
    "square": lambda x: x**2, "cube": lambda x: x**3, "reciprocal": lambda x: 1 / (x.abs() + 1),
    "rsqrt": lambda x: torch.rsqrt(x * x + 0.1), "sqrt": lambda x: torch.sqrt(x * x + 0.1),
    "log": lambda x: torch.log(x * x + 0.1), "log1p": lambda x: torch.log1p(x * x),
    "log2": lambda x: torch.log2(x * x + 0.1), "log10": lambda x: torch.log10(x * x + 0.1),
    "pow": lambda x: (x * x + 0.1) ** 0.7, "pow_tensor": lambda x: (x * x + 0.1) ** x, "pow_scalar": lambda x: 1.7**x,
    "pow_whole": lambda x: x**5, "logit": lambda x: torch.logit(x / 40 + 0.5), "asin": lambda x: torch.asin(x / 40),
    "logit_eps": lambda x: torch.logit(x / 40 + 0.5, 0.3), "acos": lambda x: torch.acos(x / 40),
    "atanh": lambda x: torch.atanh(x / 40), "acosh": lambda x: torch.acosh(x * x + 2),
    "tan": lambda x: torch.tan(x / 10), "erfinv": lambda x: torch.erfinv(x / 40),
    "atan2": lambda x: torch.atan2(x, x.flip(0)), "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)), "xlogy": lambda x: torch.xlogy(x, x * x + 0.1),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_values_and_gradients_are_those_of_torch_in_float64(name):
    x = away_from_kinks(400)
    g = torch.from_numpy(np.random.default_rng(1).normal(size=400))
    single, double = x.clone().requires_grad_(), x.double().requires_grad_()
    y = SMOOTH[name](double) if name != "prelu" else F.prelu(double, WEIGHT.double())
    y.backward(g[: y.numel()].view_as(y))
    with activate("exact-14"):
        z = SMOOTH[name](single)
        z.backward(g[: z.numel()].view_as(z).float())
    torch.testing.assert_close(z.double(), y, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(single.grad.double(), double.grad, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("inplace", [F.elu, F.selu, F.celu, F.relu, F.hardtanh])
def test_a_gradient_from_the_result_is_the_one_from_the_input(inplace):
    x = away_from_kinks(100)
    grads = []
    for flag in (False, True):
        leaf = x.clone().requires_grad_()
        with activate("exact-14"):
            inplace(leaf * 1.0, inplace=flag).sum().backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-6, atol=1e-7)


PIECEWISE = {
    "relu": (F.relu, [(-1, 0), (0.0, 0.0), (-0.0, -0.0), (2, 2), (INF, INF), (-INF, 0.0)]),
    "leaky_relu": (F.leaky_relu, [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-100, -1)]),
    "hardtanh": (F.hardtanh, [(-3, -1), (-1, -1), (0.0, 0.0), (-0.0, -0.0), (1, 1), (INF, 1), (-INF, -1)]),
    "hardsigmoid": (F.hardsigmoid, [(-3, 0.0), (0, 0.5), (3, 1), (INF, 1), (-INF, 0.0)]),
    "hardswish": (F.hardswish, [(-4, -0.0), (3, 3), (INF, INF), (0.0, 0.0), (1, 2 / 3)]),
    "hardshrink": (F.hardshrink, [(0.5, 0.0), (-0.5, 0.0), (0.51, 0.51), (INF, INF), (-INF, -INF)]),
    "softshrink": (F.softshrink, [(0.5, 0.0), (-0.5, 0.0), (1, 0.5), (-1, -0.5), (INF, INF), (-INF, -INF)]),
    "threshold": (lambda x: F.threshold(x, 1.0, 7.0), [(1, 7), (1.5, 1.5), (-INF, 7), (INF, INF)]),
    "relu6": (F.relu6, [(-1, 0.0), (7, 6), (INF, 6)]),
    "elu": (F.elu, [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1)]),
    "softplus": (F.softplus, [(21, 21), (INF, INF), (-INF, 0.0), (-200, 0.0), (0, math.log(2))]),
}


@pytest.mark.parametrize("name", PIECEWISE)
def test_special_values_of_piecewise_functions(name):
    function, cases = PIECEWISE[name]
    x, expected = torch.tensor([*cases, (NAN, NAN)]).unbind(1)
    with activate("exact-14"):
        y = function(x)
    assert torch.equal(y.contiguous().view(torch.int32)[:-1], expected.contiguous().view(torch.int32)[:-1]), y
    assert math.isnan(y[-1])


@pytest.mark.parametrize(
    "backward, x, expected",
    [
        (lambda g, x: aten.threshold_backward(g, x, 0.0), [-1, 0.0, 1, NAN], [0, 0, 2, 2]),
        (lambda g, x: aten.hardtanh_backward(g, x, -1.0, 1.0), [-1, -0.5, 1, 3], [0, 2, 0, 0]),
        (aten.hardsigmoid_backward, [-3, 0, 3, 4], [0, 2 / 6, 0, 0]),
        (aten.hardswish_backward, [-3, 0, 3, 4], [0, 1, 2, 2]),
        (lambda g, x: aten.hardshrink_backward(g, x, 0.5), [-0.5, 0.6, -0.6, 0.5], [0, 2, 2, 0]),
        (lambda g, x: aten.softshrink_backward(g, x, 0.5), [-0.5, 0.6, -0.6, 0.5], [0, 2, 2, 0]),
        (lambda g, x: aten.leaky_relu_backward(g, x, 0.5, False), [-1, 0.0, 1, NAN], [1, 1, 2, 1]),
        (lambda g, x: aten.logit_backward(g, x, None), [0.5, -1, 2, 0.25], [8, NAN, NAN, 2 / (0.25 * 0.75)]),
        (lambda g, x: aten.logit_backward(g, x, 0.3), [0.5, 0.2, 0.8, 0.3], [8, 0, 0, 2 / (0.3 * 0.7)]),
        (aten.gelu_backward, [INF, -INF, 1e30, -1e30], [2, 0, 2, 0]),
        (lambda g, x: aten.gelu_backward(g, x, approximate="tanh"), [INF, -INF, 1e30, -1e30], [2, 0, 2, 0]),
        (aten.mish_backward, [INF, -INF, 1e30, -1e30], [2, 0, 2, 0]),
        (lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0), [INF, -INF, 21, 0], [2, 0, 2, 1]),
    ],
)
def test_special_values_of_gradients(backward, x, expected):
    x = torch.tensor(x)
    with activate("exact-14"):
        y = backward(torch.full_like(x, 2.0), x)
    torch.testing.assert_close(y, torch.tensor(expected, dtype=torch.float32), equal_nan=True, rtol=2e-7, atol=0)


def test_the_square_root_rounds_once():
    x = torch.rand(4000) + 0.1
    with activate("exact-14"):
        root, inverse = x.sqrt(), x.double().sqrt()
        assert torch.equal(x**0.5, root)
    assert torch.equal(root, torch.from_numpy(np.sqrt(x.numpy())))
    assert torch.equal(inverse, torch.from_numpy(np.sqrt(x.double().numpy())))


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, -0.5])
def test_exponents_with_a_formula(exponent):
    x = torch.tensor([3.1, 0.7, -1.3, 0.0, -0.0, INF, -INF, NAN, 2e-30, 3e25])
    with activate("exact-14"):
        y = x**exponent
        z = x.pow(exponent).clone()
        w = x.clone().pow_(exponent)
    with np.errstate(all="ignore"):
        n, one = x.numpy(), np.float32(1)
        formula = {
            0: np.ones_like(n), 1: n, 2: n * n, 3: (n * n) * n, -1: one / n, -2: one / (n * n), 0.5: np.sqrt(n),
            -0.5: one / np.sqrt(n),
        }[exponent]  # fmt: skip
    for value in (y, z, w):
        torch.testing.assert_close(value, torch.from_numpy(formula), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "sin", "reciprocal", "sqrt"])
def test_every_spelling_is_one_definition(name):
    x = torch.rand(100) + 0.5
    with activate("exact-14"):
        y = getattr(torch, name)(x)
        spelt = [
            getattr(x.clone(), name + "_")(),
            getattr(torch, name)(x, out=torch.empty(0)),
            getattr(torch, f"_foreach_{name}")([x])[0],
        ]
        half = getattr(torch, name)(x.bfloat16())
        assert torch.equal(half, getattr(torch, name)(x.bfloat16().float()).bfloat16())
        whole = getattr(torch, name)(torch.arange(1, 5))
        assert torch.equal(whole, getattr(torch, name)(torch.arange(1.0, 5.0)))
    assert all(torch.equal(s, y) for s in spelt)
    assert half.dtype == torch.bfloat16


def test_whole_numbers_stay_whole():
    with activate("exact-14"):
        assert torch.equal(torch.tensor([2, 3]) ** 3, torch.tensor([8, 27]))
        assert torch.equal(2 ** torch.tensor([2, 3]), torch.tensor([4, 8]))
        assert (torch.tensor([2, 3]) ** 2.5).dtype == torch.float32
        assert OPERATORS["pow"](torch.tensor([2, 3]), 2.5)[0] == 5.656854249492381


def test_float64_has_definitions_or_is_refused():
    x = torch.rand(50, dtype=torch.float64) + 0.5
    defined = (
        torch.exp,
        torch.log,
        torch.tanh,
        torch.sigmoid,
        torch.sin,
        torch.cos,
        torch.rsqrt,
        lambda v: v**7,
        lambda v: v**-3,
    )
    native = [function(x) for function in defined]
    with activate("exact-14"):
        for function, expected in zip(defined, native, strict=True):
            torch.testing.assert_close(function(x), expected, rtol=1e-15, atol=0)
        for function in (
            torch.erf,
            F.gelu,
            F.silu,
            lambda v: v**0.3,
            torch.tan,
            lambda v: torch.sin(v * 1e7),
            F.glu,
            F.softplus,
        ):
            with pytest.raises(UsageError, match="float32") as caught:
                function(x)
            assert caught.value.code == "exact-refused"


def test_complex_numbers_are_refused():
    with activate("exact-14"), pytest.raises(UsageError):
        torch.exp(torch.ones(2, dtype=torch.complex64))
