"""Operators on inputs that wake threads, vectors and special cases, made from integers: prints a digest of each.

    python operator_cases.py digests.json [native]

Run in processes with different settings by `test_exact_operators`: the digests must be the same.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from witness.arithmetic.matrix.scaling import canonical_nan
from witness.arithmetic.mode import activate

COUNT = 70007  # beyond twice the elements that torch gives a thread; a multiple of 7
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 0.1, math.inf, -math.inf, math.nan, 255.0, 2.0**31, -(2.0**63))


def integers(count: int, salt: int) -> torch.Tensor:
    """Int64 numbers below 2**48."""
    x = torch.arange(1, count + 1) * 2654435761 + salt * 40503
    x = ((x ^ (x >> 15)) * 2246822519) & 0xFFFFFFFFFFFF
    return x ^ (x >> 13)


def patterns(dtype: torch.dtype, salt: int) -> torch.Tensor:
    """Any bits, then modest numbers, all pairs of special ones, and the smallest and largest."""
    kind = INTEGERS[dtype]
    half = 1 << (8 * kind.itemsize - 1)
    raw = integers(COUNT, salt) * 0x9E3779B97F4A7C15
    some = raw.to(kind) if kind == torch.int64 else ((raw & (2 * half - 1)) - half).to(kind)
    info = torch.finfo(dtype)
    edges = [*SPECIAL, info.max, info.tiny, -info.tiny / 2, info.smallest_normal * info.eps, 1 + info.eps, -info.max]
    special = torch.tensor(edges, dtype=torch.float64).to(torch.float32 if kind == torch.int16 else dtype).to(dtype)
    special = special.repeat(len(edges)) if salt % 2 else special.repeat_interleave(len(edges))
    modest = ((integers(COUNT, salt + 7) >> 11) % 4001 - 2000).double() / 128
    return torch.cat([some.view(dtype), modest.to(torch.float32).to(dtype), special])


def numbers(*shape: int, salt: int = 1) -> torch.Tensor:
    """Float32 within [-2, 2)."""
    return ((integers(torch.Size(shape).numel(), salt) >> 9) % 4000 - 2000).float().reshape(shape) / 1000


def ties(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Few values, both zeros and NaN among them."""
    return torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, math.nan, 0.0])[(integers(count, 1) >> 9) % 7].to(dtype)


Y = Callable[..., Any]
ELEMENTWISE: dict[str, Y] = {
    "rounding": lambda x, _: [x.abs(), x.ceil(), x.floor(), x.frac(), x.trunc(), x.round(), x.sgn(), x.sign(), -x],
    "looking": lambda x, y: [x.signbit(), x.isnan(), x > y, x == y, x <= y, x.nan_to_num(0.3, 1e4, -3.0)],
    "parts": lambda x, _: [*x.frexp()],
    "scalars": lambda x, _: [x * 0.3, x + 0.3, x - 3, 0.3 - x, x / 0.3, x / 3, 0.3 / x, 1 / x, 2 / x, x * True],
    "pairs": lambda x, y: [x * y, x + y, x - y, x / y, x.copysign(y), x.heaviside(y), x.maximum(y), x.fmin(y)],
    "nextafter": lambda x, y: [x.nextafter(y)] if x.dtype != torch.float16 else [],
    "fused": lambda x, y: [x.add(y, alpha=0.3), x.addcmul(y, x, value=0.3), x.addcdiv(y, x, value=0.3), x.lerp(y, 0.3)],
    "in place": lambda x, y: [x.clone().mul_(y), x.clone().add_(y, alpha=0.3), x.clone().lerp_(y, 0.6)],
    "other types": lambda x, y: [x.float() * y, x.clone().mul_(y.double()), torch.mul(x, y, out=y.double())],
    "remainders": lambda x, y: [x % 0.3, x.fmod(y), x // y, torch.div(x, y, rounding_mode="trunc")],
    "conversions": lambda x, _: [x.to(t) for t in (*FLOATS, torch.int8, torch.uint8, torch.int32, torch.int64)],
    "choices": lambda x, y: [x.where(x > 0.3, 0.3), x.masked_fill(y > 0, 0.1), x.clamp(-0.3, 0.7), x.clamp(min=y)],
    "roots": lambda x, _: [x.sqrt(), x.rsqrt(), x.reciprocal(), x**2, x**3],
    "exponentials": lambda x, _: [x.exp(), x.log(), x.tanh(), x.sigmoid(), x.expm1(), x.log1p()],
    "activations": lambda x, _: [F.relu(x), F.leaky_relu(x, 0.3), F.hardtanh(x), F.hardsigmoid(x), F.softshrink(x)],
}  # fmt: skip

INDEX = (integers(COUNT, 7) >> 11) % 101
PLACING: dict[str, Y] = {
    "orders": lambda x: [*x.sort(), *x.argsort()[None], *x.view(-1, 7).topk(3, 0), *x.view(-1, 7).kthvalue(2, 0)],
    "extremes": lambda x: [x.argmax(), x.argmin(), x.max(), *x.view(7, -1).max(1), *x.view(7, -1).min(0), *x.cummax(0)],
    "medians": lambda x: [x.median(), x.nanmedian(), *x.view(7, -1).median(1)],
    "distinct": lambda x: [*x.unique(return_inverse=True, return_counts=True), *x.unique_consecutive(True)],
    "pools": lambda x: [y for t in (x[:68208].view(2, 3, 98, 116), x[:68208].view(2, 98, 116, 3).permute(0, 3, 1, 2))
                        for y in (*F.max_pool2d(t, 3, 2, 1, return_indices=True), *F.adaptive_max_pool2d(t, 7, True))],
    "duplicates": lambda x: [x.new_zeros(101).index_put((INDEX,), x), x.new_zeros(101).scatter(0, INDEX, x),
                             x.new_zeros(101).index_copy(0, INDEX, x), x.new_zeros(101).put(INDEX, x),
                             INDEX.new_zeros(101).index_put((INDEX,), INDEX * 3)],
    "accumulation": lambda x: [x.new_zeros(101).index_add(0, INDEX, x.nan_to_num() * 0.1), x.nan_to_num().cumsum(0),
                               x.new_zeros(101).index_put((INDEX,), x, accumulate=True),
                               x.new_ones(101).scatter_reduce(0, INDEX, x.nan_to_num() * 0.1, "mean"),
                               torch.bincount(INDEX, x.nan_to_num() * 0.1)],
    "searching": lambda x: [torch.searchsorted(x.sort()[0], x.flip(0)), torch.bucketize(x, x.new_tensor([-1.0, 0, 1]))],
    "nothing written": lambda x: [torch.empty_like(x), x.new_empty(3, 5), x.clone().resize_(2 * len(x))],
}  # fmt: skip

IMAGE, KERNEL, ROWS = numbers(16, 3, 40, 41), numbers(16, 3, 3, 3, salt=2), numbers(200, 333, salt=3)
HEADS = numbers(3, 4, 64, 16, salt=4)
LAYERS: dict[str, tuple[Y, tuple[torch.Tensor, ...]]] = {
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, KERNEL)),
    "conv, strided": (lambda x, w: F.conv2d(x, w, stride=2), (IMAGE, KERNEL)),
    "transposed conv": (lambda x, w: F.conv_transpose2d(x, w, stride=2), (IMAGE, KERNEL[:3, :, :2])),
    "average pool": (lambda x: F.avg_pool2d(x, 3, 2, 1) * F.adaptive_avg_pool2d(x, (20, 21)), (IMAGE,)),
    "max pool": (lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
    "group norm": (lambda x: F.group_norm(x, 3), (IMAGE,)),
    "resizing": (lambda x: F.interpolate(x, (68, 67), mode="bilinear") + F.interpolate(x, (68, 67)), (IMAGE,)),
    "padding": (lambda x: F.pad(x, (1, 2, 2, 1), "reflect") * F.pad(x, (1, 2, 2, 1), "replicate"), (IMAGE,)),
    "folding": (lambda x: F.fold(F.unfold(x, 3), (40, 41), 3), (IMAGE,)),
    "softmax": (lambda x: x.softmax(1) + x.log_softmax(0), (ROWS,)),
    "layer norm": (lambda x, w: F.layer_norm(x, (333,), w) + F.rms_norm(x, (333,), w), (ROWS, ROWS[0])),
    "sums": (lambda x: x.sum(0) * x.mean() + x.var(0) + x.norm() + x.cumsum(1).std(0) + x.prod(0), (ROWS,)),
    "logsumexp": (lambda x: x.logsumexp(0) + x.logcumsumexp(0)[3], (ROWS,)),
    "products": (lambda x: x @ x.t(), (ROWS,)),
    "a long product": (lambda x: x @ x, (numbers(COUNT),)),
    "a bilinear form": (lambda x, w: F.bilinear(x, x, w), (ROWS[:, :7], numbers(3, 7, 7))),
    "linear": (lambda x, w: F.linear(x.view(10, 20, 333), w, w[0, :50]), (ROWS, ROWS[:50])),
    "embedding": (lambda w: F.embedding(INDEX, w), (ROWS,)),
    "cross entropy": (lambda x: F.cross_entropy(x, INDEX[:200]), (ROWS,)),
    "smoothed": (lambda x: F.cross_entropy(x, INDEX[:200], label_smoothing=0.1), (ROWS,)),
    "losses": (lambda x: F.mse_loss(x, x.detach() * 0.9) + F.smooth_l1_loss(x, -x) + F.huber_loss(x, x * 0.3), (ROWS,)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), (HEADS,)),
    "masked attention": (lambda x, m: F.scaled_dot_product_attention(x, x, x, m), (HEADS, HEADS[0, 0].repeat(1, 4))),
    "gelu": (lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.softplus(x) + F.mish(x), (ROWS,)),
    "dropout": (lambda x: F.dropout(x, 0.3) + torch.randn_like(x) * x, (ROWS,)),
}  # fmt: skip
MODULES: dict[str, Callable[[], nn.Module]] = {
    "gru": lambda: nn.GRU(16, 24, 2, bidirectional=True),
    "lstm": lambda: nn.LSTM(16, 24, 2, proj_size=8),
    "encoder": lambda: nn.TransformerEncoderLayer(16, 4, 32),
}


def digest(tensors: list[torch.Tensor]) -> str:
    h = hashlib.sha256()
    for t in tensors:
        data = canonical_nan(t.detach()).clone(memory_format=torch.contiguous_format).reshape(-1)
        h.update(f"{t.dtype}{list(t.shape)}".encode() + data.view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def strided(x: torch.Tensor) -> torch.Tensor:
    base = x.new_zeros((*x.shape, 3))
    return base[..., 1].copy_(x)


def trained(f: Y, *operands: torch.Tensor) -> list[torch.Tensor]:
    """Values and gradients."""
    torch.manual_seed(0)
    leaves = [x.clone().requires_grad_() for x in operands]
    value = f(*leaves)
    weights = numbers(*value.shape, salt=9).to(value.dtype) if value.dim() else torch.ones_like(value)
    return [value.detach(), *torch.autograd.grad((value * weights).sum(), leaves)]


def cases() -> Iterator[tuple[str, str]]:
    for dtype in FLOATS:
        kind = str(dtype).removeprefix("torch.")
        x, y = patterns(dtype, 1), patterns(dtype, 2)
        for name, f in ELEMENTWISE.items():
            found = digest(f(x, y))
            yield f"{name}, {kind}", found
            if dtype != torch.float64:
                yield f"{name}, {kind}, strided", "as is" if digest(f(strided(x), strided(y))) == found else "differs"
        for name, f in PLACING.items():
            yield f"{name}, {kind}", digest(f(ties(COUNT, dtype)))
    for name, (f, operands) in LAYERS.items():
        yield name, digest(trained(f, *operands))
        if name not in ("dropout", "a long product"):
            yield f"{name}, bfloat16", digest(trained(f, *(x.bfloat16() for x in operands)))
    for name, make in MODULES.items():
        module = make()
        with torch.no_grad():
            for i, p in enumerate(module.parameters()):
                p.copy_(numbers(*p.shape, salt=20 + i) / 4)
        module.train()
        yield (
            name,
            digest(trained(lambda x, m=module: m(x)[0] if isinstance(m, nn.RNNBase) else m(x), numbers(20, 30, 16))),
        )


def main() -> None:
    with nullcontext() if sys.argv[2:] == ["native"] else activate("exact-14"):
        found = dict(cases())
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
