"""A byte-level GPT with AdamW: the reference program for text.

Its parts are chosen so that bits do not depend on more than they must: RMSNorm (the weight gradients of LayerNorm are
summed a thread at a time), GELU in its exact form, sizes that are multiples of 32, and AdamW over tensor lists, which
gives the bits of the plain loop where the fused kernel does not.

Shapes: B samples, T positions, D width, H heads, V = 256 byte values.
"""

from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn

from protocol.corpus import Packing
from witness.program import Program, State

VOCABULARY = 256
PROBE_POSITIONS = 16


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Sizes and schedule; the defaults make about a million parameters.

    Attributes:
        layers: number of blocks.
        heads: attention heads of a block; divides `width`.
        width: of the residual stream.
        context: positions the model sees.
        dropout: probability in training, of attention weights and of what a block adds.
        learning_rate: at its peak.
        final_learning_rate: at the last step and after it.
        warmup: steps until the peak.
        steps: steps of the schedule.
        batch_size: samples a step.
        weight_decay: of matrices; gains are not decayed.
        betas: decay of AdamW's two moments.
        clip: largest norm of the gradient.
    """

    layers: int = 5
    heads: int = 4
    width: int = 128
    context: int = 128
    dropout: float = 0.1
    learning_rate: float = 2e-3
    final_learning_rate: float = 2e-4
    warmup: int = 20
    steps: int = 200
    batch_size: int = 16
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0


class GPT(Program):
    """Next-byte prediction over windows of text.

    Args:
        config: sizes and schedule.
    """

    def __init__(self, config: GPTConfig | None = None) -> None:
        self.config = config or GPTConfig()
        self.batch_size = self.config.batch_size
        self.steps = self.config.steps

    def packing(self) -> Packing:
        """Windows of one byte more than the context: every position has a target, and neighbours share that byte."""
        return Packing("windows", length=self.config.context + 1, stride=self.config.context)

    def build(self) -> dict[str, Any]:
        """The model and its optimiser."""
        model = Transformer(self.config)
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        gains = [p for p in model.parameters() if p.ndim < 2]
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": self.config.weight_decay}, {"params": gains, "weight_decay": 0.0}],
            lr=self.learning_rate(1),
            betas=self.config.betas,
            foreach=True,
        )
        return {"model": model, "optimizer": optimizer}

    def step(self, state: State, batch: torch.Tensor) -> torch.Tensor:
        """One step of AdamW on `batch`, uint8 of shape (B, T + 1)."""
        for group in state.optimizer.param_groups:
            group["lr"] = self.learning_rate(state.step)
        tokens = batch.long()
        logits = state.model(tokens[:, :-1])  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(state.model.parameters(), self.config.clip, foreach=True)
        state.optimizer.step()
        return loss

    def hyperparameters(self, step: int) -> dict[str, Any]:
        """The learning rate of `step`, and what stays the same."""
        beta1, beta2 = self.config.betas
        return {
            "learning_rate": self.learning_rate(step),
            "weight_decay": self.config.weight_decay,
            "beta1": beta1,
            "beta2": beta2,
            "clip": self.config.clip,
            "dropout": self.config.dropout,
        }

    def learning_rate(self, step: int) -> float:
        """Linear warm-up to the peak, then half a cosine down to the final rate."""
        config = self.config
        if step <= config.warmup:
            return config.learning_rate * step / config.warmup
        done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
        return (
            config.final_learning_rate + (config.learning_rate - config.final_learning_rate) * (1 + cos(pi * done)) / 2
        )

    def probe(self, state: State, batch: torch.Tensor) -> torch.Tensor:
        """Logits after each of the first 16 bytes, float32 of shape (B, 16, V)."""
        logits: torch.Tensor = state.model(batch[:, :PROBE_POSITIONS].long())
        return logits


class Transformer(nn.Module):
    """Pre-norm blocks over byte and position embeddings; the head is the byte embedding (tied weights)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                # Each block adds to the residual stream twice; smaller additions keep its variance at any depth.
                residual = name.endswith(("attention.out.weight", "mlp.out.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * config.layers) ** 0.5 if residual else 0.02)
        self.head.weight = self.bytes.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, V) of the byte after each of `tokens`, int64 of shape (B, T)."""
        x = self.bytes(tokens) + self.positions.weight[: tokens.shape[1]]  # (B, T, D)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))  # (B, T, V)
        return logits


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each on normalised input and added to the residual stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.width)
        self.attention = Attention(config)
        self.mlp_norm = nn.RMSNorm(config.width)
        self.mlp = Perceptron(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x  # noqa: RET504 - the two lines are the block


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.dropout = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        # (B, T, 3D) -> (B, T, 3, H, D/H) -> three of (B, H, T, D/H)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        out: torch.Tensor = self.out(y.transpose(1, 2).flatten(2))  # (B, H, T, D/H) -> (B, T, D)
        return out


class Perceptron(nn.Module):
    """Two layers with a GELU between them, four times as wide inside."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width, bias=False)
        self.out = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, T, D) to (B, T, D)."""
        out: torch.Tensor = self.out(F.gelu(self.up(x)))
        return out
