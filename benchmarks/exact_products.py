"""What does an exact matrix product cost, next to torch's float32 product of the same matrices?

Shapes of a transformer's step: forward `x @ w.T`, the gradients `g @ w` and `g.T @ x`, attention, and small matrices. Each round runs
every engine once, so that a busy minute meets all of them; the least time counts. "chosen" is what `multiply` takes after its turns.
"""

import sys
import time
from collections.abc import Callable

import _report
import torch

from witness.arithmetic import compiled
from witness.arithmetic.matrix import trials
from witness.arithmetic.matrix.digits import DIGITS, STACKED, count
from witness.arithmetic.matrix.engines import FLOAT64, SMALL, Engine
from witness.arithmetic.matrix.products import multiply, prepare

CPU = torch.device("cpu")


def shapes(quick: bool) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape)

    large = [
        ("x @ w.T, 2048 x 768 x 3072", normal(2048, 768), normal(3072, 768).t()),
        ("g @ w, 2048 x 3072 x 768", normal(2048, 3072), normal(3072, 768)),
        ("g.T @ x, 3072 x 2048 x 768", normal(2048, 3072).t(), normal(2048, 768)),
    ]
    small = [
        ("x @ w, 1024 x 256 x 1024", normal(1024, 256), normal(256, 1024)),
        ("q @ k.T, 64 of 128 x 64 x 128", normal(64, 128, 64), normal(64, 128, 64).mT),
        ("a @ v, 64 of 128 x 128 x 64", normal(64, 128, 128), normal(64, 128, 64)),
        ("q @ k.T, 16 of 512 x 64 x 512", normal(16, 512, 64), normal(16, 512, 64).mT),
        ("x @ w.T, 256 x 64 x 64", normal(256, 64), normal(64, 64).t()),
        ("x @ w.T, 32 x 64 x 32", normal(32, 64), normal(32, 64).t()),
    ]
    return small if quick else large + small


def least(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """The least seconds of each call, the calls taking turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for index, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[index] = min(best[index], time.perf_counter() - start)
    return best


def engines(a: torch.Tensor, b: torch.Tensor, bits: int) -> list[Engine]:
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    allowed: list[Engine] = [FLOAT64]
    if trials.proven(DIGITS, CPU):
        allowed.append(DIGITS)
        if m * n * count(bits) ** 2 <= trials.STACK:
            allowed.append(STACKED)
    if m * k * n <= trials.COMPACT and compiled.on():
        allowed.append(SMALL)
    return allowed


def row(name: str, a: torch.Tensor, b: torch.Tensor, bits: int, rounds: int) -> list[str]:
    allowed = engines(a, b, bits)

    def by(engine: Engine) -> Callable[[], object]:
        return lambda: engine.multiply(prepare(a, -1, bits), prepare(b, -2, bits), bits)

    for _ in range(trials.TURNS * len(allowed)):
        multiply(a, b, bits)
    native, chosen, *each = least([lambda: a @ b, lambda: multiply(a, b, bits), *map(by, allowed)], rounds)
    ratios = {engine: f"{seconds / native:.2f}" for engine, seconds in zip(allowed, each, strict=True)}
    return [
        name,
        str(bits),
        f"{1e3 * native:.3g} ms",
        f"{chosen / native:.2f}",
        *(ratios.get(engine, "-") for engine in (FLOAT64, DIGITS, STACKED, SMALL)),
    ]


def main() -> None:
    quick = "--quick" in sys.argv
    _report.heading("What does an exact product cost, next to a float32 product?")
    for threads in (1,) if quick else (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        rows = [row(*shape, bits, 9) for bits in (14, 18) for shape in shapes(quick)]
        print(f"{threads} thread{'s' * (threads > 1)}; ratios to float32, operands put on their grid each time.\n")
        _report.table(
            ["product", "bits", "float32", "chosen", "float64 engine", "digits", "stacked digits", "one call"], rows
        )
    start = time.perf_counter()
    proven = trials._digits_worst_cases(CPU), trials._float64_worst_cases(CPU)
    print(f"Worst cases of both engines: {1e3 * (time.perf_counter() - start):.0f} ms; passed: {proven}.")
    print("Aims at 1 thread: 2048 x 768 x 3072 at 14 bits at most 1.1 by digits and 2.1 by float64.")


if __name__ == "__main__":
    main()
