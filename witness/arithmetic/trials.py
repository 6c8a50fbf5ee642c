"""Which engine multiplies: each proves itself in this process, then the clock decides, shape class by shape class.

An engine that saturates is silently wrong (oneDNN's 8-bit product is, without VNNI), so trust needs two proofs. At its
first use in a process an engine multiplies worst cases whose sums are known, and is dropped if one bit is off. At the
first product of each shape class the digits engine runs beside the float64 engine, on the product at hand, and is
dropped if they disagree.

Which one is faster depends on the machine, so it is measured where it matters: the first products of a shape class (the
power of two above each size, the order of the strides, device and threads) take turns between the engines, and after
`TURNS` of each the one with the least time keeps the class. The bits are the same whoever wins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

import torch

from protocol.errors import IncompleteError
from witness.arithmetic import compiled
from witness.arithmetic.engines import DIGITS, FLOAT64, Engine, Form

TURNS = 3
"""Products that each engine gets in a new shape class."""
SLOW = 4.0
"""An engine this many times slower than float64 on a middling product is not worth a turn on a large one."""

_proven: dict[tuple[object, ...], bool] = {}
_times: dict[tuple[object, ...], dict[str, list[float]]] = {}
_chosen: dict[tuple[object, ...], Engine] = {}


class Side(Protocol):
    """An operand that can be asked for its form."""

    values: torch.Tensor

    def form(self, engine: Engine) -> Form:
        """The operand as the engine wants it."""


def product(left: Side, right: Side, bits: int) -> tuple[torch.Tensor, Form, Form]:
    """The product by the engine of its shape class, and the forms it was made from.

    Raises:
        IncompleteError: `arithmetic-unproven` if not even float64 multiplies integers exactly here.
    """
    x, y = left.values, right.values
    key = (
        bits,
        x.device,
        torch.get_num_threads(),
        compiled.on(),
        x.stride(-1) == 1,
        y.stride(-1) == 1,
        *(size.bit_length() for size in (x.shape[:-2].numel(), x.shape[-2], x.shape[-1], y.shape[-1])),
        y.dim() > 2,
    )
    engine = _chosen.get(key)
    if engine is not None:
        return _one(engine, left, right, bits)
    if not proven(FLOAT64, x.device):
        raise IncompleteError("arithmetic-unproven", f"float64 products of integers are not exact on {x.device}")
    if x.shape[-1] > DIGITS.longest(bits) or not proven(DIGITS, x.device):
        return _one(FLOAT64, left, right, bits)
    return _turn(key, left, right, bits)


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
    _chosen.clear()


def _one(engine: Engine, left: Side, right: Side, bits: int) -> tuple[torch.Tensor, Form, Form]:
    a, b = left.form(engine), right.form(engine)
    return engine.product(a, b, bits), a, b


def _turn(key: tuple[object, ...], left: Side, right: Side, bits: int) -> tuple[torch.Tensor, Form, Form]:
    """A product of a class that has no winner yet; the first one is multiplied by both engines and compared."""
    times = _times.setdefault(key, {FLOAT64.name: [], DIGITS.name: []})
    device = left.values.device

    def timed(engine: Engine) -> tuple[torch.Tensor, Form, Form]:
        _wait(device)
        start = time.perf_counter()
        result = _one(engine, left, right, bits)
        _wait(device)
        times[engine.name].append(time.perf_counter() - start)
        return result

    if not times[FLOAT64.name]:
        sure = timed(FLOAT64)
        try:
            fast = timed(DIGITS)
        except RuntimeError:  # no kernel for this shape
            _chosen[key] = FLOAT64
            return sure
        touched = sure[1].marks | sure[2].marks
        if not torch.equal(sure[0].masked_fill(touched, 0.0), fast[0].masked_fill(touched, 0.0)):
            drop(DIGITS, device)
        return sure
    engine = min((FLOAT64, DIGITS), key=lambda each: len(times[each.name]))
    result = timed(engine)
    if min(len(taken) for taken in times.values()) >= TURNS:
        _chosen[key] = min((FLOAT64, DIGITS), key=lambda each: min(times[each.name]))
        del _times[key]
    return result


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _digits_worst_cases(device: torch.device) -> bool:
    """Every pair of digits, the longest sums of every pair of extremes, and random digits in every order of memory.

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
        for x in (left, left.T.contiguous().T):
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
