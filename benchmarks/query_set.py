"""How long does `witness query RUN --all SET` take for a whole validation set, from the folder and over HTTP?

A validation set of 50,000 documents, four of five of which leaked into a training set of a million; the run over them is
a real one of a few steps. Measured is the whole command: starting Python, opening the run, reading the set, asking,
checking every proof, printing.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import _report

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "witness"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SMALL = (
    "--steps",
    "20",
    "--threads",
    "1",
    "--set",
    "layers=1",
    "--set",
    "heads=2",
    "--set",
    "width=64",
    "--set",
    "context=64",
)


def text(number: int) -> str:
    return f"Document {number}. " + hashlib.sha256(b"%d" % number).hexdigest() * 3


def write(path: Path, numbers: list[int]) -> None:
    with path.open("w") as file:
        for number in numbers:
            file.write(json.dumps({"text": text(number)}) + "\n")


def asked(name: str, *arguments: str, folder: Path) -> list[str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(
        [*COMMAND, "query", *arguments], env=ENVIRONMENT, cwd=folder, capture_output=True, text=True, check=True
    )
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = next(line for line in done.stdout.splitlines() if "documents asked" in line)
    return [name, found.partition(" in every")[0], f"{wall:.1f} s", f"{processor:.1f} s"]


def main() -> None:
    quick = "--quick" in sys.argv
    documents, held = (20_000, 1_000) if quick else (1_000_000, 50_000)
    _report.heading("How long does a question about a whole validation set take?")
    with tempfile.TemporaryDirectory(prefix="witness-bench-") as where:
        folder = Path(where)
        write(folder / "train.jsonl", list(range(documents)))
        write(folder / "held.jsonl", [number if number % 5 else documents + number for number in range(held)])
        write(folder / "clean.jsonl", [documents + number for number in range(held)])
        train = [*COMMAND, "train", "gpt", "--out", "run", "--data", "train.jsonl", *SMALL]
        subprocess.run(train, env=ENVIRONMENT, cwd=folder, capture_output=True, check=True)
        rows = [
            asked("folder, raw bytes", "run", "--all", "held.jsonl", "--tier", "t0-sha256", folder=folder),
            asked("folder, every ledger", "run", "--all", "held.jsonl", folder=folder),
            asked("folder, every ledger, a clean set", "run", "--all", "clean.jsonl", folder=folder),
        ]
        serve = [*COMMAND, "serve", "run", "--port", "0", "--json"]
        with subprocess.Popen(serve, env=ENVIRONMENT, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            first = [*COMMAND, "query", url, "--digest", "0" * 64]  # the first question opens the ledger
            subprocess.run(first, env=ENVIRONMENT, cwd=folder, capture_output=True, check=True)
            rows.append(asked("HTTP, raw bytes", url, "--all", "held.jsonl", "--tier", "t0-sha256", folder=folder))
            server.terminate()
    _report.table(("asked", "answer", "wall", "processor"), rows)
    print(
        f"Training set: {documents:,} documents. Aim: 50,000 documents in 10 s. (HTTP: the client's processor alone.)"
    )


if __name__ == "__main__":
    main()
