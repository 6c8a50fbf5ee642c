"""Does this machine's arithmetic give the defined bits? Asked by every process before it records or replays.

One small case a family of definitions, on inputs that are made from integers; their digests are written here. A case
that gives other bits names its family, and the process records and replays nothing: it is *incomplete*, and accuses
nobody. The cases are a smoke test of the machine (a library that saturates, a compiler that contracts, a mode that
flushes subnormals), not a proof of the definitions; the tests compare those with slow references.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from protocol.errors import IncompleteError
from witness.arithmetic.matrix.scaling import canonical_nan

Tensors: TypeAlias = list[torch.Tensor]
COUNT = 210


def numbers(count: int, salt: int, device: str = "cpu") -> torch.Tensor:
    """Float32 of magnitudes 2**-12 to 2**4, both signs, made from integers alone."""
    x = torch.arange(1, count + 1, dtype=torch.int64) * 2654435761 + salt * 40503
    x = ((x ^ (x >> 15)) * 2246822519) & 0xFFFFFFFF
    x = x ^ (x >> 13)
    bits = ((x & 0x80000000) - (x & 0x80000000) * 2) | ((115 + ((x >> 23) & 15)) << 23) | (x & 0x7FFFFF)
    return bits.to(torch.int32).view(torch.float32).to(device)


def _rounding(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    tiny = x * 2.0**-120 * 2.0**-20
    return [x + y, x - y, x * y, x / y, x.abs().sqrt(), tiny, tiny * 2.0**20, torch.addcmul(x, x, y, value=0.3),
            torch.lerp(x, y, 0.1), x.bfloat16(), x.half(), (x * 1e3).long(), x.bfloat16() + y.bfloat16()]  # fmt: skip


def _products(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    a, b = x.reshape(10, 21), y.reshape(21, 10)
    return [a @ b, b @ a, a.reshape(2, 5, 21) @ b.reshape(2, 21, 5),
            F.linear(a, b.t().contiguous(), b[0, :10]), (a.bfloat16() @ b.bfloat16())]  # fmt: skip


def _sums(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    z = torch.stack([x.reshape(7, 30), y.reshape(7, 30)])
    return [z.sum(), z.sum(0), z.mean(-1), z.var((0, 2)), z.norm(), z.cumsum(1), z.amax(-1), z.prod(0)]


def _functions(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    p = x.abs() + 1e-3
    return [x.exp(), p.log(), x.tanh(), x.sigmoid(), x.erf(), (y * 1e3).sin(), y.cos(), p**0.3, p.rsqrt(), F.gelu(x),
            F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(y), p.log1p(), x.expm1()]  # fmt: skip


def _layers(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    a = x.reshape(6, 35).requires_grad_()
    w = y[:35].clone().requires_grad_()
    z = F.layer_norm(a, (35,), w, w) + F.rms_norm(a, (35,), w) + a.softmax(-1)
    loss = F.cross_entropy(z, torch.arange(6, device=x.device) * 5) + F.mse_loss(z, a.detach())
    return [z, loss, *torch.autograd.grad(loss, (a, w))]


def _convolution(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    image = x[:200].reshape(2, 4, 5, 5).clone().requires_grad_()
    kernel = y[:72].reshape(4, 2, 3, 3).clone().requires_grad_()
    out = F.avg_pool2d(F.conv2d(image, kernel, y[:4], padding=1, groups=2), 2)
    return [out, *torch.autograd.grad(out.sum(), (image, kernel))]


def _attention(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    q = x[:192].reshape(2, 2, 6, 8).clone().requires_grad_()
    k = y[:192].reshape(2, 2, 6, 8)
    out = F.scaled_dot_product_attention(q, k, k, is_causal=True)
    return [out, *torch.autograd.grad(out.sum(), q)]


def _placing(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    index = torch.arange(COUNT, device=x.device) * 7 % 11
    table = x[:55].reshape(11, 5).clone().requires_grad_()
    used = F.embedding(index, table).mul(y[:COUNT, None]).sum()
    return [torch.zeros(11, device=x.device).index_add(0, index, x), *torch.autograd.grad(used, table)]


def _randomness(x: torch.Tensor, y: torch.Tensor) -> Tensors:
    del y
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(20261129)
        made = torch.rand(7, device=x.device), torch.randn(7, device=x.device), torch.randperm(7, device=x.device)
        return [*made, torch.randint(0, 10, (7,), device=x.device), F.dropout(x, 0.3), x.abs().clamp(0, 1).bernoulli()]


CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], Tensors]] = {
    "rounding": _rounding,
    "products": _products,
    "sums": _sums,
    "functions": _functions,
    "layers": _layers,
    "convolution": _convolution,
    "attention": _attention,
    "placing": _placing,
    "randomness": _randomness,
}
DIGESTS: dict[str, str] = {
    "rounding": "1e9f2e454258d050bafe6511e53a00f495678a28470a31b2874634adfbd8b5e2",
    "products": "cbfce28a1bc2b3852d4576d4b6d85029d7a2e2bf113329e6802164692982b49a",
    "sums": "c6e8149c44bc02eb689e601298500a45cdc1d295f40d3c5b7cc9c983feac58b8",
    "functions": "e618efeab6f4a026fed993c134e47e0270559965733a466d05b36584f9d6f771",
    "layers": "e34c89a080da51c53fa799b80078c081fe907a15f83e798f371e3e1c2e3ce072",
    "convolution": "ab9772b12af62666603b97c0ad59048f03c6d79e3617fbffc2cede3496ec5e27",
    "attention": "07d177ed21c09b26e9ac694e986a19094f7ed335733207bfe7b855187a23942e",
    "placing": "d503309fe8426100feae79536d757b78d5af40627ddae96bdaee4e4a27597e58",
    "randomness": "dc418e3fc01dc089195d4f1001944583299ca53d6f892df35fa063dca6f59ff5",
}
"""SHA-256 of each case under `exact-14` and `exact-18`."""


def digest(case: str, device: str = "cpu") -> str:
    """SHA-256 of what a case gives under the arithmetic that is active, NaN in its canonical pattern."""
    h = hashlib.sha256()
    with torch.enable_grad():
        for t in CASES[case](numbers(COUNT, 1, device), numbers(COUNT, 2, device)):
            data = canonical_nan(t.detach()).cpu().contiguous()
            h.update(f"{data.dtype}{list(data.shape)}".encode())
            h.update(data.reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def prove(activate: Callable[[str], AbstractContextManager[object]], device: str = "cpu") -> None:
    """Runs every case.

    Args:
        activate: the context manager of the arithmetic.
        device: where the cases run.

    Raises:
        IncompleteError: `arithmetic-unproven`, naming the first family that gives other bits.
    """
    for case in CASES:
        h = hashlib.sha256()
        for name in ("exact-14", "exact-18"):
            with activate(name):
                h.update(digest(case, device).encode())
        if h.hexdigest() != DIGESTS[case]:
            raise IncompleteError(
                "arithmetic-unproven",
                f"{case} on this machine ({device}, torch {torch.__version__}) does not have the defined bits",
                evidence={"family": case, "defined": DIGESTS[case], "here": h.hexdigest()},
            )
