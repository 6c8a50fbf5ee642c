"""Does a model learn as well in exact arithmetic as in stock float32?

The reference GPT on the embedded English text, from one initial state and on the same batches, in native float32 and in
both exact arithmetics, over several seeds. What separates the arithmetics must be small against what separates the
seeds. `--plot FILE` writes the curves as SVG; `--csv FILE` every loss.
"""

import argparse
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from _report import heading, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from protocol.schedule import Schedule
from witness.arithmetic.mode import activate
from witness.execute import build, run_step
from witness.programs.gpt import GPT, GPTConfig

ARITHMETICS = {
    "native": nullcontext,
    "exact-14": lambda: activate("exact-14"),
    "exact-18": lambda: activate("exact-18"),
}
SHAPE = {"layers": 3, "heads": 4, "width": 96, "context": 96, "batch_size": 8, "dropout": 0.0}


def losses(arithmetic: str, seed: int, steps: int) -> list[float]:
    """Trains from the initial state that exact-18 makes of the seed, so that all arithmetics start alike."""
    program = GPT(GPTConfig(**SHAPE, steps=steps))
    key = seed.to_bytes(32, "big")
    corpus = program.default_data()
    schedule = Schedule(key, corpus.documents.samples, program.batch_size)
    state = build(program, key, arithmetic=ARITHMETICS["exact-18"])
    found = []
    for step in range(1, steps + 1):
        samples = corpus.samples(schedule.indices(step))
        found.append(run_step(program, state, step, key, samples, (), arithmetic=ARITHMETICS[arithmetic]).loss)
    return found


def svg(curves: dict[tuple[str, int], list[float]], window: int = 25) -> str:
    """Running means of all curves as one picture."""
    width, height, pad = 760, 360, 44
    smooth = {k: [statistics.fmean(c[max(0, i - window) : i + 1]) for i in range(len(c))] for k, c in curves.items()}
    low = min(min(c) for c in smooth.values())
    high = max(max(c) for c in smooth.values())
    colours = {"native": "#444444", "exact-14": "#c2410c", "exact-18": "#1d4ed8"}
    lines = []
    for (arithmetic, _), c in smooth.items():
        points = " ".join(
            f"{pad + i * (width - 2 * pad) / (len(c) - 1):.1f},{height - pad - (v - low) * (height - 2 * pad) / (high - low):.1f}"
            for i, v in enumerate(c)
        )
        lines.append(f'<polyline fill="none" stroke="{colours[arithmetic]}" stroke-width="1" points="{points}"/>')
    for i, (name, colour) in enumerate(colours.items()):
        lines.append(f'<text x="{width - 120}" y="{pad + 18 * i}" fill="{colour}">{name}</text>')
    lines.append(f'<text x="{pad}" y="{height - 12}">step 1 to {len(next(iter(curves.values())))}</text>')
    lines.append(f'<text x="6" y="{pad}">{high:.2f}</text><text x="6" y="{height - pad}">{low:.2f}</text>')
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13"><rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def main() -> None:
    """Prints mean losses of the last fifth."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="60 steps, two seeds")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    steps, seeds = (60, 2) if options.quick else (options.steps, options.seeds)
    torch.set_num_threads(1)
    heading("Does a model learn as well in exact arithmetic as in stock float32?")
    curves = {(a, s): losses(a, s, steps) for s in range(seeds) for a in ARITHMETICS}
    last = {k: statistics.fmean(c[-max(1, steps // 5) :]) for k, c in curves.items()}
    rows = []
    for a in ARITHMETICS:
        apart = max(abs(last[a, s] - last["native", s]) for s in range(seeds))
        rows.append([a, *(f"{last[a, s]:.4f}" for s in range(seeds)), f"{apart:.4f}"])
    spread = max(last["native", s] for s in range(seeds)) - min(last["native", s] for s in range(seeds))
    table(["arithmetic", *(f"seed {s}" for s in range(seeds)), "largest distance from native"], rows)
    print(f"Mean loss of the last {max(1, steps // 5)} of {steps} steps. Native seeds lie {spread:.4f} apart.")
    if options.plot:
        options.plot.write_text(svg(curves))
    if options.csv:
        names = [f"{a}/{s}" for a, s in curves]
        rows_of = zip(*curves.values(), strict=True)
        options.csv.write_text("\n".join([",".join(names), *(",".join(f"{v:.6f}" for v in r) for r in rows_of)]) + "\n")


if __name__ == "__main__":
    main()
