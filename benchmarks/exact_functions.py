"""How far off are the elementary functions of the exact profile, and what do they cost next to torch's own?

Errors: 2**24 float32 numbers spread over all patterns, then the surroundings of the worst, against torch's float64
functions; `--quick` takes 2**18; `--exhaustive` adds every number with 2**-12 <= |x| < 128 for the functions that are
computed in float32 alone (minutes). Times: 2**20 numbers, contiguous, one thread, the better of many runs.
"""

import math
import sys
import time
from collections.abc import Callable

import _report
import numpy as np
import torch

from witness.arithmetic.elementary import activations, elementary_operators, functions, powers, trigonometry
from witness.arithmetic.kernels import activations as activation_kernels
from witness.arithmetic.kernels import functions as kernels

ROOT_HALF, ROOT_TAU = math.sqrt(0.5), math.sqrt(2 * math.pi)
SLOPE, CUBIC = 2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715
aten = torch.ops.aten

Truth = Callable[[torch.Tensor], torch.Tensor]


def cdf(x: torch.Tensor) -> torch.Tensor:
    return torch.erfc(x * -ROOT_HALF) / 2


def tanh_cdf(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * (SLOPE + CUBIC * x * x))


def gelu_slope(x: torch.Tensor) -> torch.Tensor:
    x = x.clamp(-30, 30)
    return cdf(x) + x * torch.exp(x * x * -0.5) / ROOT_TAU


def gelu_tanh_slope(x: torch.Tensor) -> torch.Tensor:
    x = x.clamp(-30, 30)
    s = tanh_cdf(x)
    return s * (1 + x * torch.sigmoid(-x * (SLOPE + CUBIC * x * x)) * (SLOPE + 3 * CUBIC * x * x))


def mish_truth(x: torch.Tensor) -> torch.Tensor:
    n = torch.exp(x) * (torch.exp(x) + 2)
    return torch.where(x > 30, x, x * (n / (n + 2)))


def power(exponent: float) -> tuple[Callable[..., torch.Tensor], Truth]:
    return lambda x: elementary_operators._power(x, exponent), lambda x: torch.pow(x, exponent)


ERRORS: dict[str, tuple[Callable[..., torch.Tensor], Truth]] = {
    **{
        name: (getattr(functions, name), getattr(torch, name))
        for name in (
            "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sinh", "cosh", "asinh", "acosh", "atanh",
            "erf", "erfc", "erfinv",
        )
    },
    **{name: (getattr(trigonometry, name), getattr(torch, name)) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
    "sqrt": (powers.sqrt, torch.sqrt),
    "rsqrt": (powers.rsqrt, lambda x: 1 / torch.sqrt(x)),
    "reciprocal": (powers.reciprocal, torch.reciprocal),
    "sigmoid": (functions.sigmoid, torch.sigmoid),
    "gelu": (activations.gelu, lambda x: x * cdf(x)),
    "gelu_tanh": (activations.gelu_tanh, lambda x: x * tanh_cdf(x)),
    "silu": (activations.silu, lambda x: x * torch.sigmoid(x)),
    "softplus": (lambda x: activations.softplus(x, np.float32(1), np.float32(1e9), 1.0), lambda x: torch.clamp(x, min=0) + torch.log1p(torch.exp(-x.abs()))),
    "log_sigmoid": (activations.log_sigmoid, lambda x: torch.clamp(x, max=0) - torch.log1p(torch.exp(-x.abs()))),
    "mish": (activations.mish, mish_truth),
    "logit": (activations.logit, lambda x: torch.log(x / (1 - x))),
    **{f"pow {e:.4g}": power(e) for e in (2.5, -0.3, 1 / 3, 7.0, 0.1, -4.0)},
}  # fmt: skip
"""Errors in units of the last place of the result."""

ONE = torch.ones(())
SLOPES: dict[str, tuple[Callable[..., torch.Tensor], Truth]] = {
    "gelu_backward": (lambda x: activations.gelu_backward(ONE, x), gelu_slope),
    "gelu_tanh_backward": (lambda x: activations.gelu_tanh_backward(ONE, x), gelu_tanh_slope),
    "silu_backward": (
        lambda x: activations.silu_backward(ONE, x),
        lambda x: torch.sigmoid(x) * (1 + x * torch.sigmoid(-x)),
    ),
    "softplus_backward": (
        lambda x: activations.softplus_backward(ONE, x, np.float32(1), np.float32(1e9)),
        torch.sigmoid,
    ),
    "log_sigmoid_backward": (lambda x: activations.log_sigmoid_backward(ONE, x), lambda x: torch.sigmoid(-x)),
}
"""Derivatives: they cross zero, so their errors are in units of the last place of 1."""

LOOPS: dict[str, tuple[Callable[..., None], tuple[str, ...], tuple[float, ...], Callable[..., object]]] = {
    "exp": (kernels.exps, ("x",), (), lambda out, x: torch.exp(x, out=out)),
    "log": (kernels.logs, ("p",), (), lambda out, p: torch.log(p, out=out)),
    "log1p": (kernels.log1ps, ("p",), (), lambda out, p: torch.log1p(p, out=out)),
    "tanh": (kernels.tanhs, ("x",), (), lambda out, x: torch.tanh(x, out=out)),
    "sigmoid": (kernels.sigmoids, ("x",), (), lambda out, x: torch.sigmoid(x, out=out)),
    "erf": (kernels.erfs, ("x",), (), lambda out, x: torch.erf(x, out=out)),
    "sin": (kernels.sins, ("x",), (), lambda out, x: torch.sin(x, out=out)),
    "cos": (kernels.coss, ("x",), (), lambda out, x: torch.cos(x, out=out)),
    "sqrt": (kernels.roots, ("p",), (), lambda out, p: torch.sqrt(p, out=out)),
    "rsqrt": (kernels.inverse_roots, ("p",), (), lambda out, p: torch.rsqrt(p, out=out)),
    "pow 2.5": (kernels.pows, ("p",), (2.5,), lambda out, p: torch.pow(p, 2.5, out=out)),
    "gelu": (activation_kernels.gelus, ("x",), (), lambda out, x: aten.gelu.out(x, out=out)),
    "gelu_tanh": (activation_kernels.gelu_tanhs, ("x",), (), lambda out, x: aten.gelu.out(x, approximate="tanh", out=out)),
    "silu": (activation_kernels.silus, ("x",), (), lambda out, x: aten.silu.out(x, out=out)),
    "softplus": (activation_kernels.softpluses, ("x",), (1.0, 20.0, 1.0), lambda out, x: aten.softplus.out(x, out=out)),
    "gelu_backward": (
        activation_kernels.gelu_backwards, ("g", "x"), (), lambda out, g, x: aten.gelu_backward.grad_input(g, x, grad_input=out)
    ),
    "gelu_tanh_backward": (
        activation_kernels.gelu_tanh_backwards, ("g", "x"), (),
        lambda out, g, x: aten.gelu_backward.grad_input(g, x, approximate="tanh", grad_input=out),
    ),
    "silu_backward": (
        activation_kernels.silu_backwards, ("g", "x"), (), lambda out, g, x: aten.silu_backward.grad_input(g, x, grad_input=out)
    ),
    "softplus_backward": (
        activation_kernels.softplus_backwards, ("g", "x"), (1.0, 20.0),
        lambda out, g, x: aten.softplus_backward.grad_input(g, x, 1.0, 20.0, grad_input=out),
    ),
    "sigmoid_backward": (
        activation_kernels.sigmoid_backwards, ("g", "x"), (),
        lambda out, g, x: aten.sigmoid_backward.grad_input(g, x, grad_input=out),
    ),
    "tanh_backward": (
        activation_kernels.tanh_backwards, ("g", "x"), (), lambda out, g, x: aten.tanh_backward.grad_input(g, x, grad_input=out)
    ),
}  # fmt: skip


def errors(name: str, x: torch.Tensor, subnormal: bool) -> torch.Tensor:
    """Of each number, in units of the last place; 0 where both are infinite or NaN, or not of the kind asked for."""
    definition, truth = ERRORS[name] if name in ERRORS else SLOPES[name]
    y, t = definition(x).double(), truth(x.double())
    unit = torch.full_like(t, 2.0**-23)
    if name in ERRORS:
        _, exponent = torch.frexp(t)
        unit = torch.ldexp(torch.ones_like(t), (exponent - 24).clamp(min=-149))
    overflow = t.abs() >= 2.0**128 - 2.0**103
    alike = (y == t) | (y.isnan() & t.isnan()) | (overflow & (y == t.sign() * math.inf))
    if name in ERRORS:
        alike |= (t.abs() < 2.0**-126) != subnormal
    return torch.where(alike, 0.0, (y - t).abs() / unit).nan_to_num(nan=math.inf)


def worst(name: str, count: int, subnormal: bool = False) -> tuple[float, float]:
    """The largest error found, and where."""
    step = 2**32 // count
    rng = np.random.default_rng(1)
    best = []
    for start in range(0, count, 1 << 16):
        patterns = (np.arange(start, start + (1 << 16)) * step + rng.integers(0, step, 1 << 16)).astype(np.uint32)
        x = torch.from_numpy(patterns.view(np.float32))
        e = errors(name, x, subnormal)
        top = e.topk(4)
        best += list(zip(top.values.tolist(), patterns[top.indices.numpy()].tolist(), strict=True))
    best = sorted(best, reverse=True)[:64]
    for _, centre in best[:]:
        patterns = (np.arange(-4096, 4096) + centre).astype(np.uint32)
        e = errors(name, torch.from_numpy(patterns.view(np.float32)), subnormal)
        at = int(e.argmax())
        best.append((float(e[at]), int(patterns[at])))
    error, pattern = max(best)
    return error, float(np.array([pattern], dtype=np.uint32).view(np.float32)[0])


def exhaustive(name: str) -> tuple[float, float]:
    """The largest error among all float32 numbers with 2**-12 <= |x| < 128, where the result is normal."""
    low, high = (int(np.array(v, np.float32).view(np.int32)) for v in (2.0**-12, 128.0))
    best = (0.0, 0.0)
    for start in range(low, high, 1 << 18):
        x = torch.arange(start, start + (1 << 18), dtype=torch.int32).view(torch.float32)
        for signed in (x, -x):
            e = errors(name, signed, subnormal=False)
            at = int(e.argmax())
            best = max(best, (float(e[at]), float(signed[at])))
    return best


def fastest(call: Callable[[], object], runs: int) -> float:
    best = math.inf
    for _ in range(runs):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def main() -> None:
    quick = "--quick" in sys.argv
    torch.set_num_threads(1)
    _report.heading("How far off are the exact profile's elementary functions, and what do they cost?")
    rows = []
    for name in (*ERRORS, *SLOPES):
        error, at = worst(name, 2**18 if quick else 2**24)
        below = f"{worst(name, 2**18, subnormal=True)[0]:.3f}" if name in ERRORS else ""
        rows.append((name, f"{error:.3f}", f"{at:.9g}", below))
    columns = ("function", "largest error found (ulp; of derivatives, ulp of 1)", "at", "in subnormal results")
    _report.table(columns, rows)

    if "--exhaustive" in sys.argv:
        found = [(name, *exhaustive(name)) for name in ("exp", "sigmoid", "silu", "gelu", "gelu_tanh")]
        _report.table(
            ("function", "largest error of all, 2**-12 <= |x| < 128", "at"),
            [(n, f"{e:.3f}", f"{x:.9g}") for n, e, x in found],
        )

    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1 << 20, generator=generator) * 3
    data = {"x": x, "p": x.abs(), "g": torch.randn(1 << 20, generator=generator)}
    out = torch.empty_like(x)
    rows = []
    for name, (loop, operands, numbers, native) in LOOPS.items():
        given = [data[o] for o in operands]
        arrays = [t.numpy() for t in given]
        ours = fastest(lambda: loop(0, 1 << 20, *arrays, *numbers, out.numpy()), 10 if quick else 50)
        theirs = fastest(lambda: native(out, *given), 10 if quick else 50)
        rows.append((name, f"{ours * 1e9 / 2**20:.3f}", f"{theirs * 1e9 / 2**20:.3f}", f"{ours / theirs:.2f}"))
    _report.table(("function", "exact, ns an element", "torch, ns an element", "exact / torch"), rows)


if __name__ == "__main__":
    main()
