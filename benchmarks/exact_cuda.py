"""Does a CUDA device give the bits of the CPU under the exact profile, and what does it cost there?

    python benchmarks/exact_cuda.py [--steps 50]

First the matrix of small programs, on both devices, digest by digest; then a training step of the reference GPT in
float32, TF32 and bfloat16 autocast against both exact arithmetics. Under ten minutes. It has not been run by us: no such
device was at hand when it was written.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from _report import heading, middle, table
from exact_matrix import PROGRAMS, train

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from protocol.errors import WitnessError
from witness.arithmetic import conformance
from witness.arithmetic.mode import activate
from witness.program import State
from witness.programs.gpt import GPT, GPTConfig


def first_difference(name: str, steps: int) -> str:
    """`equal`, or the first step at which the devices part, or why there is none."""
    scope = lambda: activate("exact-14")  # noqa: E731
    try:
        pairs = zip(train(name, steps, "cpu", scope), train(name, steps, "cuda", scope), strict=True)
        step = next((i for i, (cpu, cuda) in enumerate(pairs, 1) if cpu != cuda), None)
    except WitnessError as error:
        return f"{error.code}: {error}"
    return "equal" if step is None else f"DIFFERS from step {step} on"


@contextlib.contextmanager
def precision(tf32: bool) -> Iterator[None]:
    """Stock float32 products, rounded to TF32 or not."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


SCOPES: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "float32": lambda: precision(tf32=False),
    "TF32": lambda: precision(tf32=True),
    "bfloat16 autocast": lambda: torch.autocast("cuda", torch.bfloat16),
    "exact-14": lambda: activate("exact-14"),
    "exact-18": lambda: activate("exact-18"),
}


def step_seconds(name: str, width: int, layers: int, batch: int) -> float:
    """Median seconds of a step."""
    program = GPT(GPTConfig(layers=layers, heads=width // 64, width=width, context=512, batch_size=batch, dropout=0.0))
    scope = SCOPES[name]
    with activate("exact-14"):
        torch.manual_seed(0)
        parts = program.build()
    state = State({"model": parts["model"].to("cuda"), "optimizer": parts["optimizer"]})
    tokens = torch.randint(32, 127, (batch, 513), dtype=torch.uint8, device="cuda")
    state.step, spent = 1, []
    for _ in range(12):
        state.model.zero_grad()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        with scope():
            program.step(state, tokens)
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - begun)
    return middle(spent[6:])


def main() -> None:
    """Prints both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: exact_matrix.py runs the same programs on a CPU")
        return
    heading(f"Does {torch.cuda.get_device_name()} give the bits of the CPU under the exact profile?")
    try:
        conformance.prove(activate, "cuda")
        print("Conformance: every family of definitions gives the defined bits.\n")
    except WitnessError as error:
        print(f"Conformance: {error}\n")
    table(["program", f"after {options.steps} steps"], [[n, first_difference(n, options.steps)] for n in PROGRAMS])
    rows = []
    for width, layers, batch in ((768, 4, 8), (1024, 8, 16)):
        seconds = {name: step_seconds(name, width, layers, batch) for name in SCOPES}
        cells = [f"{seconds[n] / seconds['float32']:.2f}" for n in SCOPES]
        rows.append([width, layers, 512 * batch, f"{1e3 * seconds['float32']:.0f} ms", *cells])
    table(["width", "layers", "tokens a step", "float32 step", *(f"{n} / float32" for n in SCOPES)], rows)


if __name__ == "__main__":
    main()
