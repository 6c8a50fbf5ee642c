"""A run over committed data, from the commit to a certificate, with tokens of two bytes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from protocol.corpus import Packing
from witness.data import DataOptions, commit_folder, open_stored

PROGRAM = """
import torch
from torch import nn
from protocol.corpus import Packing
from witness.program import Program


class Bigram(Program):
    batch_size = 2
    steps = 2

    def packing(self):
        return Packing("windows", length=9, stride=8)

    def collate(self, samples):
        return torch.stack([torch.frombuffer(bytearray(sample), dtype=torch.uint16).long() for sample in samples])

    def build(self):
        model = nn.Embedding(600, 600)
        return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1)}

    def step(self, state, batch):
        assert batch.shape == (2, 9)
        loss = nn.functional.cross_entropy(state.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        state.optimizer.step()
        return loss

    def hyperparameters(self, step):
        return {"learning_rate": 0.1}
"""


def witness(*arguments: object) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "witness", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def token_file(tmp_path: Path) -> Path:
    tokens = np.arange(200, dtype="<u2") * 7 % 600
    tokens[::23] = 599
    (tmp_path / "train.bin").write_bytes(tokens.tobytes())
    return tmp_path / "train.bin"


def test_a_run_over_committed_tokens_is_reproduced(tmp_path: Path):
    options = DataOptions(delimiter=599)
    committed = commit_folder(token_file(tmp_path), tmp_path / "data", Packing("documents"), options, copy_limit=0)
    assert len(committed.documents.leaves) >= 9
    (tmp_path / "bigram.py").write_text(PROGRAM)
    run = tmp_path / "run"
    program = f"{tmp_path / 'bigram.py'}:Bigram"
    shown = witness("train", program, "--data", tmp_path / "data", "--out", run)
    assert shown.returncode == 0, shown.stderr
    corpus = open_stored(run / "corpus")
    assert corpus.claim().root == committed.claim().root
    assert corpus.claim().tokens == committed.documents.size // 2 == 200
    verify = ("verify", run, "--rounds", 2, "--json")
    asked = witness(*verify)
    digest = re.search(r'"digest": "([0-9a-f]{64})"', asked.stdout)
    assert digest is not None, asked.stderr
    shown = witness(*verify, "--trust-program", digest[1])
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert json.loads(shown.stdout)["verdict"] == "reproduced"
