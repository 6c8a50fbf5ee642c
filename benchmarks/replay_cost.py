"""What does a challenged step cost the verifier, next to the trainer's own step?

A run is recorded, then steps are replayed in the sandbox as `witness verify` does, from opened states. A replay of n consecutive
steps from one opened state separates the cost of a step from the fixed cost of a challenge (a fresh process, building the program,
reading, restoring, writing and hashing a state).
"""

import os
import sys
import tempfile
import time
from pathlib import Path

from witness.environment import recommended_environment

os.environ.update(recommended_environment(len(os.sched_getaffinity(0))))

import _report

import witness
from protocol.session import probe_of
from witness.programs.gpt import GPT, GPTConfig
from witness.prover import RunArchive
from witness.replay import Input, Replayer
from witness.rundir import RunDir


def main() -> None:
    quick = "--quick" in sys.argv
    _report.heading("What does a challenged step cost the verifier, next to the trainer's own step?")
    rows = []
    for layers, heads, width in ((5, 4, 128), (8, 5, 320)):
        config = GPTConfig(layers=layers, heads=heads, width=width, batch_size=24, steps=12 if quick else 20)
        with tempfile.TemporaryDirectory() as folder:
            own = []
            with witness.record(Path(folder) / "run", GPT(config), steps=config.steps, checkpoint_every=2) as run:
                for batch in run:
                    start = time.perf_counter()
                    run.step(batch)
                    own.append(time.perf_counter() - start)
            run_dir = RunDir.open(Path(folder) / "run")
            trainer = _report.middle([own[i] for i in range(2, len(own) - 1, 2)])  # steps that keep no state
            with RunArchive(run_dir, block=True) as archive, Replayer(archive.audit.manifest, None) as replayer:
                replayer.compare()
                manifest = archive.audit.manifest

                def replay(first: int, count: int) -> float:
                    entries, buffers = run_dir.read_checkpoint(first - 1, manifest.pieces)
                    inputs = [
                        Input(
                            archive.corpus.samples(archive.audit.indices(s)),
                            archive.corpus.samples(probe_of(archive.audit, s)),
                        )
                        for s in range(first, first + count)
                    ]
                    start = time.perf_counter()
                    done = replayer.steps(entries, buffers, first, inputs, [first + count - 1])
                    seconds = time.perf_counter() - start
                    state = done[-1].state
                    assert state is not None and state.table.root == archive.audit.state_root(first + count - 1)
                    return seconds

                firsts = range(3, config.steps - 8, 2)
                one = _report.middle([replay(f, 1) for f in firsts])
                nine = _report.middle([replay(f, 9) for f in list(firsts)[:3]])
            step = (nine - one) / 8
        size = 12 * layers * width * width
        rows.append(
            [
                f"{size / 1e6:.1f} M",
                f"{trainer * 1e3:.0f} ms",
                f"{step * 1e3:.0f} ms",
                f"{step / trainer:.2f}",
                f"{(one - step) * 1e3:.0f} ms",
                f"{one / trainer:.2f}",
            ]
        )
    columns = (
        "parameters",
        "trainer's step, recorded",
        "replayed step",
        "ratio",
        "fixed cost a challenge",
        "one challenge / trainer's step",
    )
    _report.table(columns, rows)
    print("Aim: ratio at most 1.1, plus the fixed cost. Starting the sandbox (importing torch once) is not included.")


if __name__ == "__main__":
    main()
