"""A perceptron with BatchNorm and SGD: the reference program for small arrays.

It is here for what a GPT lacks: buffers that training moves outside the optimiser, momentum instead of Adam's moments,
and a scheduler object with a state of its own. Rows are uint8: some columns of input, and in the last column the
class.

Shapes: B rows, C input columns, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation
from torch import nn

from protocol.errors import UsageError
from witness.data import Corpus, embedded_rows
from witness.program import Program, State


@dataclass(frozen=True, slots=True)
class MLPConfig:
    """Sizes and schedule.

    Attributes:
        columns: inputs of a row; the class is the column after them.
        hidden: width of the hidden layers.
        layers: number of hidden layers.
        classes: how many there are; a class is below this.
        learning_rate: of the first steps.
        halve_every: steps after which the learning rate is halved, again and again.
        momentum: Nesterov's.
        weight_decay: of all parameters.
        steps: steps of a run.
        batch_size: rows a step.
    """

    columns: int = 16
    hidden: int = 128
    layers: int = 2
    classes: int = 256
    learning_rate: float = 0.1
    halve_every: int = 60
    momentum: float = 0.9
    weight_decay: float = 1e-4
    steps: int = 200
    batch_size: int = 64


class MLP(Program):
    """Classification of the rows of an array.

    Args:
        config: sizes and schedule.
    """

    def __init__(self, config: MLPConfig | None = None) -> None:
        self.config = config or MLPConfig()
        self.batch_size = self.config.batch_size
        self.steps = self.config.steps

    def default_data(self) -> Corpus:
        """Rows made of the text that every Python carries: some of its bytes, and as the class the next one."""
        return embedded_rows(self.packing())

    def build(self) -> dict[str, Any]:
        """The model, its optimiser and the optimiser's scheduler."""
        config = self.config
        widths = [config.columns] + [config.hidden] * config.layers
        hidden = [
            nn.Sequential(nn.Linear(above, below, bias=False), BatchNorm(below), nn.ReLU())
            for above, below in pairwise(widths)
        ]
        model = nn.Sequential(*hidden, nn.Linear(widths[-1], config.classes))
        optimizer = torch.optim.SGD(
            model.parameters(),
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=True,
            foreach=True,
        )
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=config.halve_every, gamma=0.5)
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def collate(self, samples: Sequence[bytes]) -> torch.Tensor:
        """Stacks rows, uint8 of shape (B, C + 1)."""
        columns = self.config.columns + 1
        wrong = next((len(sample) for sample in samples if len(sample) != columns), None)
        if wrong is not None:
            raise UsageError(
                "program",
                f"a row of {wrong} bytes where the program reads {columns}",
                next_action="pass rows of uint8, the class in the last column, or another `columns` in MLPConfig",
            )
        rows: torch.Tensor = super().collate(samples)
        return rows

    def step(self, state: State, batch: torch.Tensor) -> torch.Tensor:
        """One step of SGD on `batch`, uint8 of shape (B, C + 1)."""
        logits = state.model(scaled(batch))  # (B, K)
        loss = F.cross_entropy(logits, batch[:, -1].long())
        loss.backward()  # type: ignore[no-untyped-call]
        state.optimizer.step()
        state.scheduler.step()
        return loss

    def hyperparameters(self, step: int) -> dict[str, Any]:
        """The learning rate of `step`, and what stays the same.

        The scheduler gets there by halving what it finds, this by a formula; halving a float is exact, so that they
        agree to the bit.
        """
        config = self.config
        return {
            "learning_rate": config.learning_rate * 0.5 ** ((step - 1) // config.halve_every),
            "momentum": config.momentum,
            "weight_decay": config.weight_decay,
        }

    def probe(self, state: State, batch: torch.Tensor) -> torch.Tensor:
        """Logits, float32 of shape (B, K)."""
        logits: torch.Tensor = state.model(scaled(batch))
        return logits


class BatchNorm(nn.BatchNorm1d):
    """BatchNorm that a batch of one row passes as in evaluation.

    One row has no variance, and torch refuses it; the odd last batch of an epoch may well be one row. It is normalised
    by the running statistics, and leaves them as they are: a pure function of the state and the batch like everything
    else in a step.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, D) to (B, D)."""
        if x.shape[0] == 1:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        return super().forward(x)


def scaled(batch: torch.Tensor) -> torch.Tensor:
    """The input columns, float32 of shape (B, C), from -1 to 1."""
    return batch[:, :-1].float() / 127.5 - 1
