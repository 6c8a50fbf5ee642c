"""Programs that strangers might write, as sources: one linear model, and what each of them does besides."""

from pathlib import Path

PLAIN = """
import torch
import witness
from torch import nn
from witness.program import Program
{above}

class Small(Program):
    batch_size = 4
    steps = 4

    def build(self):
        model = nn.Linear(4, 3)
        {build}
        return {{"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9){parts}}}

    def step(self, state, batch):
        {step}
        loss = nn.functional.cross_entropy(state.model(batch[:, :4].float() / 255), batch[:, 4].long() % 3)
        {loss}
        loss.backward()
        state.optimizer.step()
        {after}
        return loss

    def hyperparameters(self, step):
        return {{"learning_rate": 0.1}}
{below}
"""
"""Rows of five bytes: four inputs and a class."""


def write(folder: Path, name: str = "small.py", **parts: str) -> Path:
    """A program file with some of its places filled."""
    folder.mkdir(parents=True, exist_ok=True)
    places = dict.fromkeys(("above", "build", "parts", "step", "loss", "after", "below"), "")
    assert parts.keys() <= places.keys()
    path = folder / name
    path.write_text(PLAIN.format(**places | parts))
    return path
