"""Small real runs: two reference programs, and one that a stranger ships with the run."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from protocol.corpus import Packing
from witness.data import Corpus, open_corpus
from witness.program import Program
from witness.programs.gpt import GPT, GPTConfig
from witness.programs.mlp import MLP, MLPConfig

STEPS = 12
SEED = 5

TEXTS = [b"document %d says that %d is not %d. " % (i, i, i + 1) * 6 for i in range(24)]
ROWS = [bytes((i, 7 * i % 256, 13 * i % 256, 31 * i % 256, i % 5)) for i in range(48)]

STRANGER = '''"""A program of the trainer's own: a linear model, in one file."""

from pathlib import Path

import torch
from torch import nn
from witness.program import Program


class Stranger(Program):
    batch_size = 4

    def __init__(self, pretrained: str = "") -> None:
        self.pretrained = pretrained

    def build(self):
        model = nn.Linear(4, 3)
        if self.pretrained:
            weights = torch.frombuffer(bytearray(Path(self.pretrained).read_bytes()), dtype=torch.float32)
            with torch.no_grad():
                model.weight.copy_(weights.view(3, 4))
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}

    def step(self, state, batch):
        loss = nn.functional.cross_entropy(state.model(batch[:, :4].float() / 255), batch[:, 4].long() % 3)
        loss.backward()
        state.optimizer.step()
        return loss

    def hyperparameters(self, step):
        return {"learning_rate": 0.1}
'''


def gpt(dropout: float = 0.1) -> Program:
    """A GPT of 13,000 parameters."""
    return GPT(GPTConfig(layers=1, heads=2, width=32, context=16, warmup=3, steps=STEPS, batch_size=2, dropout=dropout))


def mlp() -> Program:
    """A perceptron of some hundred parameters, with BatchNorm."""
    return MLP(MLPConfig(columns=4, hidden=8, layers=1, classes=5, steps=STEPS, batch_size=4, halve_every=5))


def stranger(folder: Path, *arguments: Any, source: str = STRANGER, name: str = "stranger") -> Program:
    """A program from a file of its own, imported as a trainer's script would be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kind = next(value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name)
    return kind(*arguments)


def data(program: Program) -> Corpus:
    """The corpus that a program reads here."""
    packing: Packing = program.packing()
    return open_corpus(TEXTS if packing.kind == "windows" else ROWS, packing)
