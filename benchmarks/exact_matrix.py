"""Do small trainings end in the same bits under this process's threads, vector width, BLAS, torch release and device?

    python benchmarks/exact_matrix.py                        # digests of every program's final state, one a line
    python benchmarks/exact_matrix.py --arithmetic native    # the same programs in stock arithmetic: these do differ
    python benchmarks/exact_matrix.py --device cuda --compare cpu.json

Run it under different settings (OMP_NUM_THREADS, ATEN_CPU_CAPABILITY, MKL_CBWR, ONEDNN_MAX_CPU_ISA, MATRIX_MKLDNN=off, another torch) and
compare: under the exact profile all lines are equal, or a definition is broken.
"""

import argparse
import contextlib
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from witness.arithmetic.mode import activate

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Attention(nn.Module):
    """Pre-norm block with rotary positions, causal attention, dropout and a gated perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = rotate(q), rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
        x = x + self.dropout(self.out(y.transpose(1, 2).flatten(2)))
        z = self.norm2(x)
        return x + self.dropout(self.down(F.silu(self.gate(z)) * self.up(z)))


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of (B, H, T, E)."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angle = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * frequency
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1)


class GPT(nn.Module):
    """A byte-level language model."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, context: int = 32) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Attention(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.05)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, T) to (B, T, 256)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class MLP(nn.Module):
    """Batch normalisation, several activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Linear(33, 35), nn.Tanh(), nn.BatchNorm1d(35),
            nn.Linear(35, 32), nn.GELU("tanh"), nn.Dropout(0.2), nn.Linear(32, 31), nn.Softplus(), nn.Linear(31, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 16) to (B, 10)."""
        return self.layers(x)


class CNN(nn.Module):
    """Convolutions, batch and group normalisation, both poolings."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3, stride=2, groups=2),
            nn.GroupNorm(3, 12), nn.GELU(), nn.AvgPool2d(2, ceil_mode=True), nn.Flatten(), nn.Linear(48, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 3, 16, 16) to (B, 10)."""
        return self.layers(x)


class Recurrent(nn.Module):
    """A GRU over an LSTM over embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.gru = (
            nn.Embedding(256, 17),
            nn.LSTM(17, 19, batch_first=True),
            nn.GRU(19, 23, 2, dropout=0.1, batch_first=True),
        )
        self.head = nn.Linear(23, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(B, T) to (B, T, 256)."""
        return self.head(self.gru(self.lstm(self.tokens(tokens))[0])[0])


class Lion(torch.optim.Optimizer):
    """Sign updates (Chen et al. 2023)."""

    def __init__(self, params: Any, lr: float = 3e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * 0.1).add_((m * 0.9 + p.grad * 0.1).sign(), alpha=-group["lr"])
                m.lerp_(p.grad, 0.01)


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz iteration: products only (Jordan 2024)."""

    def __init__(self, params: Any, lr: float = 1e-2) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One update."""
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(0.95).add_(p.grad)
                if p.dim() != 2:
                    p.add_(m, alpha=-0.1 * group["lr"])
                    continue
                x = m / (m.norm() + 1e-7)
                for _ in range(5):
                    g = x @ x.T
                    x = 3.4445 * x + (-4.775 * g + 2.0315 * g @ g) @ x
                p.add_(x, alpha=-group["lr"])


def language(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Next-byte loss."""
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten(), label_smoothing=0.05)


def classes(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Classification by the sign pattern of the first inputs."""
    target = (x.flatten(1)[:, :3] > 0).long() @ torch.tensor([1, 2, 4], device=x.device)
    return F.cross_entropy(model(x), target)


def regression(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A smooth target, two losses."""
    out = model(x)
    target = x[:, :10] * x[:, 3:13]
    return F.mse_loss(out, target) + F.binary_cross_entropy_with_logits(out, (target > 0).float())


AdamW = torch.optim.AdamW
PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[..., torch.optim.Optimizer], dict[str, Any], Loss, tuple[int, ...]]] = {
    "gpt-adamw": (GPT, AdamW, {"lr": 1e-3, "foreach": True, "weight_decay": 0.1}, language, (4, 33)),
    "gpt-bf16-autocast": (GPT, AdamW, {"lr": 1e-3}, language, (4, 33)),
    "gpt-muon": (GPT, Muon, {}, language, (3, 25)),
    "mlp-sgd": (MLP, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}, classes, (37, 16)),
    "mlp-adam": (MLP, torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}, regression, (37, 16)),
    "mlp-adagrad": (MLP, torch.optim.Adagrad, {"lr": 1e-2}, classes, (37, 16)),
    "mlp-rmsprop": (MLP, torch.optim.RMSprop, {"lr": 1e-3, "momentum": 0.5, "centered": True}, regression, (37, 16)),
    "mlp-lion": (MLP, Lion, {}, classes, (37, 16)),
    "cnn-adamw": (CNN, AdamW, {"lr": 1e-2}, classes, (9, 3, 16, 16)),
    "recurrent-adam": (Recurrent, torch.optim.Adam, {"lr": 1e-2}, language, (5, 14)),
}  # fmt: skip


def integers(shape: tuple[int, ...], salt: int) -> torch.Tensor:
    """Int64 numbers below 2**20 that every device makes alike."""
    n = torch.Size(shape).numel()
    x = torch.arange(1, n + 1) * 2654435761 + salt * 40503
    x = (x ^ (x >> 15)) * 2246822519 & 0xFFFFFFFF
    return ((x ^ (x >> 13)) & 0xFFFFF).reshape(shape)


def batch(shape: tuple[int, ...], loss: Loss, step: int) -> torch.Tensor:
    """Tokens, or floats within [-2, 2)."""
    raw = integers(shape, step)
    return raw % 61 + 32 if loss is language else (raw - 2**19).float() / 2**18


def train(
    name: str, steps: int, device: str, scope: Callable[[], contextlib.AbstractContextManager[Any]]
) -> Iterator[str]:
    """Trains one program; yields the digest of the whole state after each step."""
    make, kind, options, loss_of, shape = PROGRAMS[name]
    with scope():
        torch.manual_seed(7)
        model = make().to(device)
        optimizer = kind(model.parameters(), **options)
    averaged = {n: p.detach().clone() for n, p in model.named_parameters()}
    for step in range(steps):
        data = [batch(shape, loss_of, 2 * step + k).to(device) for k in (0, 1)]
        with scope():
            torch.manual_seed(1000 + step)
            for micro in data:  # gradient accumulation
                with torch.autocast(device, torch.bfloat16, enabled="bf16" in name):
                    loss = loss_of(model, micro) / 2
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for n, p in model.named_parameters():
                    averaged[n].lerp_(p, 0.1)
        yield digest([*model.state_dict().values(), *averaged.values(), *moments(optimizer), loss.detach()])


def moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimiser's tensors, in order."""
    return [t for state in optimizer.state.values() for _, t in sorted(state.items()) if isinstance(t, torch.Tensor)]


def digest(tensors: list[torch.Tensor]) -> str:
    """SHA-256 over the bytes of all tensors."""
    h = hashlib.sha256()
    for t in tensors:
        h.update(t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def main() -> None:
    """Prints one digest a program, and optionally compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arithmetic", default="exact-14", help="exact-14, exact-18 or native")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--json", type=Path, help="write the digests of every step here")
    parser.add_argument(
        "--compare", type=Path, help="digests written by another run: names the first step that differs"
    )
    options = parser.parse_args()
    torch.backends.mkldnn.enabled = os.environ.get("MATRIX_MKLDNN") != "off"
    scope = contextlib.nullcontext if options.arithmetic == "native" else lambda: activate(options.arithmetic)
    found, differs = {}, False
    other = json.loads(options.compare.read_text()) if options.compare else {}
    for name in options.programs:
        begun = time.perf_counter()
        found[name] = list(train(name, options.steps, options.device, scope))
        seconds = time.perf_counter() - begun
        first = next(
            (i for i, (a, b) in enumerate(zip(found[name], other.get(name, []), strict=False)) if a != b), None
        )
        differs |= first is not None
        verdict = "" if name not in other else "  equal" if first is None else f"  DIFFERS at step {first + 1}"
        print(f"{name:20} {found[name][-1][:24]} {seconds:6.1f} s{verdict}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found))
    sys.exit(differs)


if __name__ == "__main__":
    main()
