"""Which engine multiplies: each proves itself in this process, then the clock decides, shape class by shape class.

An engine that saturates is silently wrong (oneDNN's 8-bit product is, without VNNI), so trust needs two proofs. At its
first use in a process an engine multiplies worst cases whose sums are known, and is dropped if one bit is off. At the
first product of each shape class every engine multiplies the product at hand, and those that use digits are dropped if
they disagree with float64.

Which one is faster depends on the machine, so it is measured where it matters. The first products of a shape class (the
power of two above each size, the order of the strides, device and threads) take turns between the engines; after
`TURNS` of each, the one with the least time keeps the class. An engine that is clearly slower on products that take
long gets no second turn. Since another program may have been in the way, every `AGAIN` products the engines that were
not far behind get another turn: the least time of all turns decides. The bits are the same whoever wins.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from protocol.errors import IncompleteError
from witness.arithmetic import compiled
from witness.arithmetic.matrix.digits import DIGITS, STACKED, count
from witness.arithmetic.matrix.engines import FLOAT64, SMALL, Engine
from witness.arithmetic.matrix.operands import Operand, touched

TURNS = 3
"""Products that each engine gets in a new shape class."""
AGAIN = 256
"""Products of a class from one later turn to the next."""
FAR = 3.0
"""How many times slower than the best an engine is to get no later turn."""
COMPACT = 1 << 20
"""Multiplications of a matrix up to which one compiled call may do it all, and of a product, up to which it does."""
STACK = 1 << 19
"""Outputs of stacked planes up to which stacking is worth a turn."""
LONG = 0.03
"""Seconds from which one turn says enough: making the kernel for a new shape takes less than a tenth of it."""
CLEARLY = 1.5
"""How many times slower than the best an engine is to get no second turn."""
SLOW = 4.0
"""8-bit products this many times slower than float64 ones of the same shape never get a turn."""


@dataclass(slots=True, eq=False)
class ShapeClass:
    """The engines of one shape class.

    Attributes:
        best: the least seconds of each engine's turns.
        turns: how many turns each has had.
        products: how many products the class has seen since the first.
    """

    best: dict[Engine, float] = field(default_factory=dict)
    turns: dict[Engine, int] = field(default_factory=dict)
    products: int = 0

    def took(self, engine: Engine, seconds: float) -> None:
        """Counts one turn."""
        self.best[engine] = min(seconds, self.best.get(engine, math.inf))
        self.turns[engine] = self.turns.get(engine, 0) + 1

    def winner(self) -> Engine:
        """The engine with the least time."""
        return min(self.best, key=lambda engine: self.best[engine])

    def open(self) -> list[Engine]:
        """The engines that get one of the first turns."""
        least = min(self.best.values())
        return [
            engine
            for engine, seconds in self.best.items()
            if self.turns[engine] < TURNS and (seconds < LONG or seconds <= CLEARLY * least)
        ]

    def next(self) -> tuple[Engine, bool]:
        """Who multiplies next, and whether it is a turn, which is timed."""
        self.products += 1
        if self.products <= TURNS * len(self.best) and (waiting := self.open()):
            return min(waiting, key=lambda engine: self.turns[engine]), True
        if self.products % AGAIN == 0:
            least = min(self.best.values())
            near = [engine for engine, seconds in self.best.items() if seconds <= FAR * least]
            return min(near, key=lambda engine: self.turns[engine]), True
        return self.winner(), False


_proven: dict[tuple[object, ...], bool] = {}
_classes: dict[tuple[object, ...], ShapeClass] = {}
_one_at_a_time = threading.RLock()


def multiply(left: Operand, right: Operand, bits: int) -> tuple[torch.Tensor, bool]:
    """The product by the engine of its shape class, and whether an operand holds an infinity or NaN.

    Raises:
        IncompleteError: `arithmetic-unproven` if not even float64 multiplies integers exactly here.
    """
    x, y = left.values, right.values
    batch, (m, k), n = max(x.shape[:-2].numel(), y.shape[:-2].numel()), x.shape[-2:], y.shape[-1]
    compact = m * k * n <= COMPACT and m * k + k * n <= COMPACT and compiled.on() and x.device.type == "cpu"
    if compact and batch * m * k * n <= COMPACT:
        return SMALL.multiply(left, right, bits)
    order = x.stride(-1) == 1, y.stride(-1) == 1, x.dim() > 2, y.dim() > 2
    sizes = (size.bit_length() for size in (batch, m, k, n))
    key = bits, x.device, torch.get_num_threads(), compiled.on(), torch.backends.mkldnn.enabled, *order, *sizes
    known = _classes.get(key)
    if known is not None:
        engine, turn = known.next()
        return _timed(known, engine, left, right, bits) if turn else engine.multiply(left, right, bits)
    if not proven(FLOAT64, x.device):
        raise IncompleteError("arithmetic-unproven", f"float64 products of integers are not exact on {x.device}")
    engines: list[Engine] = [FLOAT64]
    if compact:
        engines.append(SMALL)
    if k <= DIGITS.longest(bits) and proven(DIGITS, x.device):
        engines.append(DIGITS)
        if m * n * count(bits) ** 2 <= STACK and x.device.type == "cpu":
            engines.append(STACKED)
    if len(engines) == 1:
        return FLOAT64.multiply(left, right, bits)
    with _one_at_a_time:
        return _first(key, engines, left, right, bits)


def proven(engine: Engine, device: torch.device) -> bool:
    """Whether an engine passed its worst cases on this device, in this process or the one that it was forked from."""
    key = engine.name, device, torch.backends.mkldnn.enabled
    if key not in _proven:
        try:
            _proven[key] = _WORST_CASES[engine.name](device)
        except RuntimeError:  # the device has no such operation
            _proven[key] = False
    return _proven[key]


def drop(engine: Engine, device: torch.device) -> None:
    """Never again uses an engine in this process."""
    _proven[engine.name, device, torch.backends.mkldnn.enabled] = False
    _classes.clear()


def _first(
    key: tuple[object, ...], engines: list[Engine], left: Operand, right: Operand, bits: int
) -> tuple[torch.Tensor, bool]:
    """The first product of a class, by all engines, compared."""
    new = ShapeClass()
    sure, special = _timed(new, engines[0], left, right, bits)
    ignored = touched(left, right) if special else torch.zeros((), dtype=torch.bool, device=sure.device)
    for engine in engines[1:]:
        try:
            out, _ = _timed(new, engine, left, right, bits)
        except RuntimeError:  # no kernel for this shape
            continue
        if not torch.equal(sure.masked_fill(ignored, 0.0), out.masked_fill(ignored, 0.0)):
            if engine is SMALL:
                raise IncompleteError("arithmetic-unproven", "float64 products disagree with sums written out")
            drop(DIGITS, sure.device)
            return sure, special
    _classes[key] = new
    return sure, special


def _timed(known: ShapeClass, engine: Engine, left: Operand, right: Operand, bits: int) -> tuple[torch.Tensor, bool]:
    device = left.values.device
    _wait(device)
    start = time.perf_counter()
    result = engine.multiply(left, right, bits)
    _wait(device)
    known.took(engine, time.perf_counter() - start)
    return result


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _digits_worst_cases(device: torch.device) -> bool:
    """Every pair of digits, the longest sums of every pair of extremes, random digits in every order of memory.

    Only for a kernel that is not slower than it is worth: the fallback without oneDNN is a triple loop.
    """
    digits = torch.arange(-128, 128)
    extremes = torch.tensor([127, -128, 64, -64, 1, -1, 126, -127] * 4)
    longest = (((1 << 17) - 1) // 16) * 16
    for values, k in ((digits, 48), (extremes, longest)):
        a = values.to(torch.int8)[:, None].expand(-1, k).contiguous().to(device)
        b = values.to(torch.int8)[None, :].expand(k, -1).contiguous().to(device)
        if not torch.equal(_int_mm(a, b).cpu().to(torch.int64), values[:, None] * values[None, :] * k):
            return False
    generator = torch.Generator().manual_seed(0)
    for m, k, n in ((144, 320, 80), (32, 64, 32)):
        a, b = (torch.randint(-128, 128, s, generator=generator) for s in ((m, k), (k, n)))
        a[::3, ::2], a[1::3, 1::2], b[:, ::3] = 127, -128, 127
        expected = a @ b
        left, right = a.to(device, torch.int8), b.to(device, torch.int8)
        window = torch.cat([left, left], 1)[:, k:]
        for x in (left, left.T.contiguous().T, window):
            for y in (right, right.T.contiguous().T):
                if not torch.equal(_int_mm(x, y).cpu().to(torch.int64), expected):
                    return False
    return _worth_it(device)


def _worth_it(device: torch.device) -> bool:
    narrow = torch.ones(256, 256, dtype=torch.int8, device=device)
    wide = narrow.to(torch.float64)

    def least(multiply: Callable[[], torch.Tensor]) -> float:
        best = math.inf
        for _ in range(3):
            start = time.perf_counter()
            multiply()
            _wait(device)
            best = min(best, time.perf_counter() - start)
        return best

    return least(lambda: _int_mm(narrow, narrow)) < SLOW * least(lambda: wide @ wide)


def _float64_worst_cases(device: torch.device) -> bool:
    """Sums that need all 53 bits, and random integers of 19 bits, in every order of memory and in batches."""
    largest = (1 << 20) - 1
    values = torch.tensor([largest, -largest, largest - 2, 2 - largest, 1, -3, 1 << 19, 0])
    k = 1 << 13
    a = values.to(torch.float64)[:, None].expand(-1, k).contiguous().to(device)
    b = values.to(torch.float64)[None, :].expand(k, -1).contiguous().to(device)
    if not torch.equal((a @ b).cpu().to(torch.int64), values[:, None] * values[None, :] * k):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-(1 << 18), (1 << 18) + 1, (2, 48, 320), generator=generator)
    y = torch.randint(-(1 << 18), (1 << 18) + 1, (2, 320, 40), generator=generator)
    expected = x @ y
    left, right = x.to(device, torch.float64), y.to(device, torch.float64)
    for p in (left, left.mT.contiguous().mT):
        for q in (right, right.mT.contiguous().mT):
            if not torch.equal((p @ q).cpu().to(torch.int64), expected):
                return False
            if not torch.equal((p[0] @ q[0]).cpu().to(torch.int64), expected[0]):
                return False
    return True


def _int_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(a, b)  # noqa: SLF001


_WORST_CASES: dict[str, Callable[[torch.device], bool]] = {
    DIGITS.name: _digits_worst_cases,
    FLOAT64.name: _float64_worst_cases,
}
