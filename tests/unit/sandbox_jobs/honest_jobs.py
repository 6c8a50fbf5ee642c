"""Targets that do what a replay does."""

import hashlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path


def training(job: Path) -> None:
    """A few steps of a small model, with every kind of kernel that starts threads; writes a digest of all bits."""
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(8 * 14 * 14, 64)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        loss = model(torch.randn(32, 3, 16, 16)).softmax(-1).log().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    large = torch.randn(400, 400)
    state = {**model.state_dict(), "product": large @ large.T, "sum": large.sum().reshape(1)}
    save_file(state, job / "state.safetensors")
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(job / "state.safetensors").items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    matrix = np.random.default_rng(7).standard_normal((256, 256))
    digest.update((matrix @ matrix).tobytes())
    report = {"digest": digest.hexdigest(), "threads": torch.get_num_threads()}
    (job / "report.json").write_text(json.dumps(report))


def ordinary_python(job: Path) -> None:
    """What well-behaved Python code takes for granted."""
    results = []
    worker = threading.Thread(target=lambda: results.append(1))
    worker.start()
    worker.join()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a").write_text("a")
        (Path(folder) / "a").replace(job / "b")
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())
    time.sleep(0.001)
    import decimal  # not yet imported: the standard library is readable

    os.sched_getaffinity(0)
    print("said", decimal.Decimal(1))
    facts = {"cwd": str(Path.cwd()), "home": os.environ["HOME"], "temporary": tempfile.gettempdir(), "results": results}
    (job / "report.json").write_text(json.dumps(facts | {"variables": sorted(os.environ)}))


def reading(job: Path) -> None:
    """Copies what the sandbox made readable."""
    readable = Path(json.loads((job / "inputs.json").read_text())["readable"])
    (job / "copy").write_bytes((readable / "public").read_bytes())


def failing(job: Path) -> None:
    raise ValueError("the program is wrong")


def leaving(job: Path) -> None:
    raise SystemExit(7)
