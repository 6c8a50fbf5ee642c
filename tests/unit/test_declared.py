"""Declared hyperparameters beside what optimisers use: said while recording and on inspection, and no false alarm."""

import warnings
from pathlib import Path

import pytest
import torch

import witness
from witness.declared import differing
from witness.inspection import inspect
from witness.recorder import COMPILED, RecordingWarning
from witness.rundir import RunDir
from witness.training import find_program

SOURCE = """
import torch
import witness


class Rated(witness.Program):
    batch_size, steps = 2, 6

    def build(self):
        model = torch.nn.Linear(4, 3)
        {build}
        optimizer = torch.optim.AdamW(model.parameters(), lr={lr}, betas=(0.9, 0.95))
        return {{"model": model, "optimizer": optimizer, "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}}

    def step(self, state, batch):
        loss = state.model(batch.float()).square().mean()
        loss.backward()
        state.optimizer.step()
        state.scheduler.step()
        return loss

    def hyperparameters(self, step):
        return {{"{name}": {declared}, "beta2": 0.95, "dropout": 0.5}}
"""
ROWS = [bytes((i, 2 * i, 3 * i, 9)) for i in range(16)]
HALVED = "0.004 * 0.1 ** ((step - 1) // 2)"


@pytest.fixture(autouse=True)
def _process():
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(mode)


def recorded(folder: Path, *, lr: str = "0.004", name: str = "lr", declared: str = HALVED, build: str = "pass"):
    """Warnings, and what an inspection remarks about declarations."""
    folder.mkdir()
    source = folder / "rated.py"
    source.write_text(SOURCE.format(lr=lr, name=name, declared=declared, build=build))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecordingWarning)
        recorder = witness.record(folder / "run", find_program(f"{source}:Rated")(), ROWS, checkpoint_every=1)
    with recorder as run:
        for batch in run:
            run.step(batch)
    said = [str(one.message) for one in caught if one.category is RecordingWarning]
    return said, [remark for remark in inspect(RunDir(folder / "run"))["remarks"] if "declares" in remark]


@pytest.mark.parametrize("name", ["lr", "learning_rate"])
def test_another_rate_than_the_declared_one_is_said(tmp_path: Path, name: str) -> None:
    said, remarks = recorded(tmp_path / "a", lr="0.003", name=name)
    assert len(said) == 1 and f"declares {name} 0.004 at step 1, and its optimisers use 0.003" in said[0]
    assert len(remarks) == 1 and f"declares {name} 0.004 at step 1" in remarks[0]


@pytest.mark.parametrize("lr", ["0.004", "torch.tensor(0.004), capturable=False, foreach=False"])
def test_the_declared_rate_of_a_schedule_is_no_news(tmp_path: Path, lr: str) -> None:
    assert recorded(tmp_path / "a", lr=lr) == ([], [])


def test_a_compiled_program_is_warned_about(tmp_path: Path) -> None:
    said, _ = recorded(tmp_path / "a", build="model = torch.compile(model, backend='eager')")
    assert said == [COMPILED]


def test_names_mean_what_a_group_calls_them_and_nothing_else() -> None:
    groups = [{"lr": 0.1, "betas": [0.9, 0.99], "nesterov": False}, {"lr": 0.2, "betas": [0.9, 0.99]}]
    assert differing({"lr": 0.2, "beta1": 0.9, "warmup": 3, "betas": "0.9, 0.99"}, groups) == []
    assert differing({"lr": 0.3, "beta2": 0.9}, groups) == [("lr", 0.3, [0.1, 0.2]), ("beta2", 0.9, [0.99])]
    assert differing({"nesterov": True}, groups) == [("nesterov", True, [False])]
