"""What does recording cost, next to the same loop without it?

A GPT of about ten million parameters; bare and recorded steps alternate in one process, so that noise meets both. The bare loop
collates, steps and clears gradients; the recorded one does that and everything else. Parts are timed where they happen.
"""

import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from witness.environment import recommended_environment

THREADS = len(os.sched_getaffinity(0))
os.environ.update(recommended_environment(THREADS))

import _report  # noqa: E402
import torch  # noqa: E402

from witness import execute, recorder  # noqa: E402
from witness.execute import build  # noqa: E402
from witness.logstore import LogStore  # noqa: E402
from witness.programs.gpt import GPT, GPTConfig  # noqa: E402

spent: dict[str, float] = defaultdict(float)


def timed(name: str, owner: Any, attribute: str) -> None:
    original = getattr(owner, attribute)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            spent[name] += time.perf_counter() - start

    setattr(owner, attribute, wrapper)


def experiment(batch_size: int, context: int, steps: int) -> list[object]:
    config = GPTConfig(layers=8, heads=5, width=320, context=context, batch_size=batch_size, steps=steps + 3)
    program = GPT(config)
    spent.clear()
    with tempfile.TemporaryDirectory() as folder:
        run = recorder.record(Path(folder) / "run", program, steps=steps + 3, checkpoint_every=10_000)
        bare_program = GPT(config)
        state = build(bare_program, bytes(32))
        size = sum(p.numel() for p in state.model.parameters())
        bare, recorded, parts = [], [], defaultdict(list)
        with run:
            for batch in run:
                start = time.perf_counter()
                for parameter in state.model.parameters():
                    parameter.grad = None
                state.step = batch.step
                bare_program.step(state, bare_program.collate(batch.samples)).item()
                bare_seconds = time.perf_counter() - start
                spent.clear()
                start = time.perf_counter()
                run.step(batch)
                recorded_seconds = time.perf_counter() - start
                if (
                    batch.step > 2 and batch.step <= steps + 2
                ):  # the first two repeat themselves to test the program, the last keeps its state
                    bare.append(bare_seconds)
                    recorded.append(recorded_seconds)
                    for name, value in spent.items():
                        parts[name].append(value)
    base = _report.middle(bare)
    extra = _report.middle([r - b for r, b in zip(recorded, bare, strict=True)])
    shares = [_report.percent(_report.middle(parts[name]), base) for name in ("state root", "fingerprint", "log")]
    tokens = batch_size * context
    return [
        f"{size / 1e6:.1f} M",
        tokens,
        f"{tokens / size:.4f}",
        f"{base * 1e3:.0f} ms",
        _report.percent(extra, base),
        *shares,
    ]


def main() -> None:
    timed("state root", recorder, "Census")
    timed("state root", recorder, "hash_state")
    timed("fingerprint", execute, "_probe")
    timed("fingerprint", execute._Trace, "__init__")
    timed("fingerprint", execute._Trace, "_see")
    timed("fingerprint", execute._Trace, "update_norms")
    timed("log", LogStore, "append")
    quick = "--quick" in sys.argv
    _report.heading("What does recording cost, next to the same loop without it?")
    rows = [experiment(24, 128, 6 if quick else 16)]
    if not quick:
        rows.append(experiment(240, 128, 3))
    columns = (
        "parameters",
        "tokens a step",
        "tokens / parameter",
        "bare step",
        "recording adds",
        "state root",
        "fingerprint",
        "log",
    )
    _report.table(columns, rows)
    print(f"{THREADS} threads, torch {torch.__version__}. Aim: at most 3 % and 1 %.")


if __name__ == "__main__":
    main()
