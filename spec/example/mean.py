"""The program of the example run: four weights that follow the mean byte of what they read."""

import torch

import witness


class Model(torch.nn.Module):
    """Four weights, all zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4))


class Mean(witness.Program):
    """Pulls the weights towards the mean byte of each batch, with momentum."""

    batch_size, steps = 2, 6

    def packing(self):
        """Windows of eight bytes, one every six."""
        return witness.Packing("windows", length=8, stride=6)

    def build(self):
        """A module and its optimiser."""
        model = Model()
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)}

    def step(self, state, batch):
        """One step of gradient descent."""
        target = batch.float().mean() / 256
        off = state.model.weight - target
        loss = (off * off).mean()
        loss.backward()
        state.optimizer.step()
        return loss

    def hyperparameters(self, step):
        """What each record shows."""
        return {"lr": 0.25}

    def probe(self, state, batch):
        """The weights, scaled by what the probe reads."""
        return state.model.weight * batch.float().mean()
