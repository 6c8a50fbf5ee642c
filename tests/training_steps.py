"""Two small training steps, and a process that records or compares them: what tests of the profile run elsewhere.

Run as a script, `record FOLDER` writes profile and probe; `compare FOLDER` and `foreign FOLDER` hold a process to them
and print what they found as JSON.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from protocol.encoding import decode, encode
from protocol.errors import WitnessError
from protocol.native_profile import NativeProfile
from protocol.operations import OperationProbe, operation_differences
from witness import native_profile
from witness.operations import OperationRecorder, build_probe


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + functional.dropout(self.out(attended.transpose(1, 2).reshape(batch, time, width)), 0.1)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class GPT(nn.Module):
    """A transformer with learned positions and a tied head."""

    def __init__(self, vocabulary: int = 61, time: int = 16, width: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(time, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.T


class GPTRun:
    """GPT, AdamW, clipping."""

    def __init__(self, **options: object) -> None:
        torch.manual_seed(1)
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, **options)
        self.tokens = torch.randint(0, 61, (3, 17))

    def step(self, length: int = 17) -> float:
        tokens = self.tokens[:, :length]
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()


class MLPRun:
    """Batch norm, SiLU, momentum; some labels are ignored."""

    def __init__(self) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(nn.Linear(33, 70), nn.BatchNorm1d(70), nn.SiLU(), nn.Linear(70, 5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.inputs, self.labels = torch.randn(1000, 33), torch.randint(0, 5, (1000,))
        self.labels[::7] = -100

    def step(self) -> float:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(self.inputs), self.labels)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def runs() -> dict[str, GPTRun | MLPRun]:
    return {"gpt": GPTRun(), "mlp": MLPRun()}


def recorded() -> OperationRecorder:
    recorder = OperationRecorder()
    for run in runs().values():
        with recorder:
            run.step()
    return recorder


def _failure(call: object, *arguments: object) -> list[object]:
    try:
        return ["fine", encode(call(*arguments)).decode()]  # type: ignore[operator]
    except WitnessError as error:
        return [error.code, str(error), sorted(error.evidence)]


def main(action: str, folder: Path) -> None:
    found: dict[str, object] = {}
    optimizers = {name: run.optimizer for name, run in runs().items()}
    if action == "record":
        native_profile.begin()
        (folder / "profile").write_bytes(encode(native_profile.capture(optimizers)))
        (folder / "probe").write_bytes(encode(recorded().probe()))
        return
    claimed = decode((folder / "profile").read_bytes(), NativeProfile, limit=1 << 20)
    probe = decode((folder / "probe").read_bytes(), OperationProbe, limit=1 << 20)
    found["apply"] = _failure(native_profile.apply, claimed)
    found["compare"] = _failure(native_profile.compare, claimed, probe, optimizers)
    here = build_probe(probe.specs, repeats=1)
    found["differences"] = [difference.operation for difference in operation_differences(probe, here)]
    if action == "compare":
        found["recorded again"] = recorded().specs == probe.specs
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
