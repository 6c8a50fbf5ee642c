"""What does a training step cost in exact arithmetic, next to native float32?

The reference GPT (two blocks) at several widths and lengths; every step is forward, backward, clipping and AdamW. Beside
the ratio stands the floor of each engine: the native step with its matrix products exchanged for exact ones and nothing
else. Steps of the arithmetics take turns, so that noise meets all of them.

    python benchmarks/exact_speed.py [--quick] [--threads 1 2] [--profile]     # --profile: where the time of a step goes
"""

import argparse
import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from _report import heading, middle, table
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from witness.arithmetic import mode
from witness.arithmetic.matrix import products, trials
from witness.arithmetic.matrix.trials import DIGITS
from witness.arithmetic.mode import activate
from witness.program import State
from witness.programs.gpt import GPT, GPTConfig

CPU = torch.device("cpu")
Scope = Callable[[], contextlib.AbstractContextManager[object]]


def stepper(width: int, length: int, scope: Scope) -> Callable[[], None]:
    """One training step at a time, over about 1024 tokens."""
    batch = max(1, 1024 // length)
    program = GPT(GPTConfig(layers=2, heads=width // 64, width=width, context=length, batch_size=batch, dropout=0.0))
    with scope():
        torch.manual_seed(0)
        state = State(program.build())
    tokens = torch.randint(32, 127, (batch, length + 1), dtype=torch.uint8)
    state.step = 1

    def step() -> None:
        with scope():
            for p in state.model.parameters():
                p.grad = None
            program.step(state, tokens)

    return step


def times(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Median seconds of each, taking turns."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for r in range(rounds + 4):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            if r >= 4:  # the first ones choose engines
                found[name].append(time.perf_counter() - begun)
    return {name: middle(values) for name, values in found.items()}


class Shapes(TorchDispatchMode):
    """Collects the products of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[object, ...]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Counts mm, addmm and bmm by shapes and strides."""
        name = func._schema.name.removeprefix("aten::")
        if name in ("mm", "bmm", "addmm"):
            a, b = args[-2:]
            self.found[tuple(a.shape), a.stride(), tuple(b.shape), b.stride()] += 1
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def without_digits() -> Iterator[None]:
    """Leaves float64 as the only engine, as on a CPU without fast 8-bit products."""
    saved = trials.proven
    trials._classes.clear()
    trials.proven = lambda engine, device: engine is not DIGITS and saved(engine, device)
    try:
        yield
    finally:
        trials.proven = saved
        trials._classes.clear()


def of_products(shapes: Counter[tuple[object, ...]], multiply: Callable[..., torch.Tensor]) -> float:
    """Seconds of all the products of a step."""
    total = 0.0
    for (a_shape, a_stride, b_shape, b_stride), count in shapes.items():
        a, b = (torch.randn(64 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))).as_strided(shape, stride)
                for shape, stride in ((a_shape, a_stride), (b_shape, b_stride)))  # fmt: skip
        spent = []
        for _ in range(8):
            begun = time.perf_counter()
            multiply(a, b)
            spent.append(time.perf_counter() - begun)
        total += count * middle(sorted(spent[3:]))
    return total


def row(width: int, length: int, rounds: int) -> list[object]:
    """One configuration: ratios of whole steps, and floors."""
    exact14, exact18 = (lambda: activate("exact-14")), (lambda: activate("exact-18"))
    found = times(
        {
            "native": stepper(width, length, contextlib.nullcontext),
            "exact-14": stepper(width, length, exact14),
            "exact-18": stepper(width, length, exact18),
        },
        rounds,
    )
    with without_digits():
        alone = times(
            {
                "native": stepper(width, length, contextlib.nullcontext),
                "float64": stepper(width, length, exact14),
            },
            rounds,
        )
        with Shapes() as shapes:
            stepper(width, length, contextlib.nullcontext)()
        native = of_products(shapes.found, torch.matmul)
        float64 = of_products(shapes.found, lambda a, b: products.multiply(a, b, 14))
    digits = of_products(shapes.found, lambda a, b: products.multiply(a, b, 14))

    def floor(engine: float) -> str:
        return f"{(found['native'] - native + engine) / found['native']:.2f}"

    return [
        width, length, f"{1e3 * found['native']:.0f} ms", f"{found['exact-14'] / found['native']:.2f}", floor(digits),
        f"{alone['float64'] / alone['native']:.2f}", floor(float64), f"{found['exact-18'] / found['native']:.2f}",
    ]  # fmt: skip


def profile(width: int, length: int) -> None:
    """Where an exact step spends its time, by operator."""
    step = stepper(width, length, lambda: activate("exact-14"))
    for _ in range(5):
        step()
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    plan_of = mode._plan

    def timed(op):  # type: ignore[no-untyped-def]
        plan = plan_of(op)

        def run(*args: object, **kwargs: object) -> object:
            begun = time.perf_counter()
            try:
                return plan(*args, **kwargs)
            finally:
                name = op._schema.name.removeprefix("aten::")
                spent[name] += time.perf_counter() - begun
                calls[name] += 1

        return run

    mode._plan = timed
    try:
        begun = time.perf_counter()
        step()
        whole = time.perf_counter() - begun
    finally:
        mode._plan = plan_of
    spent = Counter({n: s for n, s in spent.items() if not n.startswith("_foreach_")})
    rows = [[n, calls[n], f"{1e3 * s:.1f} ms", f"{100 * s / whole:.1f} %"] for n, s in spent.most_common(14)]
    rest = whole - sum(spent.values())
    rows.append(
        ["functions above autograd, Python and autograd", "", f"{1e3 * rest:.1f} ms", f"{100 * rest / whole:.1f} %"]
    )
    table([f"operator (width {width}, length {length})", "calls", "time", "of the step"], rows)


def main() -> None:
    """Prints the table for each number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one configuration")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    heading("What does a training step cost in exact arithmetic, next to native float32?")
    shapes = [(256, 128)] if options.quick else [(w, t) for w in (256, 384, 768) for t in (128, 512)]
    for threads in options.threads[:1] if options.quick else options.threads:
        torch.set_num_threads(threads)
        rows = [row(*shape, rounds=3 if options.quick else 7) for shape in shapes]
        print(f"{threads} thread{'s' * (threads > 1)}:\n")
        table(
            ["width", "length", "native step", "exact-14 / native", "its floor", "float64 engine only", "its floor",
             "exact-18 / native"], rows,
        )  # fmt: skip
        if options.profile:
            for shape in shapes[:: len(shapes) - 1 or 1]:
                profile(*shape)
    print("Aim: at most 1.3 where 8-bit products are fast, at most 2.2 on the float64 engine.")


if __name__ == "__main__":
    main()
