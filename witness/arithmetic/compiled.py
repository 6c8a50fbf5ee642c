"""Kernels compiled for the CPU: the bits of the tensor definitions beside them, in fewer passes over memory.

Every definition of the exact profile is written once in tensor operations, which run on any device, and may have a
second form here, compiled by numba: never contracted, never reassociated (`fastmath` stays off), so that each `+ - * /
sqrt` is the one IEEE operation that the definition names. Where numba cannot be imported, or with
`WITNESS_KERNELS=off`, the tensor form runs and the bits are the same.

Kernels take a first argument `(start, stop)` of rows or elements and are called once for each of torch's threads: no
second thread pool that would have to survive a fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from witness.arithmetic import machine_code

numba: Any
try:
    import numba
except ImportError:  # the tensor definitions do everything, more slowly
    numba = None

GRAIN = 1 << 15
"""Elements for which a second thread is worth waking."""

OPTIONS = {"nogil": True, "fastmath": False, "error_model": "numpy", "boundscheck": False}

_COMPILED = numba is not None and os.environ.get("WITNESS_KERNELS", "on") != "off"
_submit: Any = ThreadPoolExecutor.submit  # torch's modes are nothing to kernels: see `witness.arithmetic.threads`
_state: dict[str, Any] = {"on": _COMPILED, "pool": None}


def kernel(*signatures: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Compiles a function for the given numba signatures, when it is defined; the machine code is kept on disk.

    Compiling at definition keeps a forked or confined process from having to do it: whoever imports the module has all
    of it.

    Args:
        signatures: for instance `"void(uint64, uint64, float32[::1], float32[::1])"`. Unsigned, because numba lets a
            signed index count from the end, and then loads element by element.
    """

    def compile_(function: Callable[..., None]) -> Callable[..., None]:
        if not _state["on"]:
            return function
        with machine_code.kept() as folder:
            made: Callable[..., None] = numba.njit(list(signatures), cache=folder is not None, **OPTIONS)(function)
        return made

    return compile_


def usable(*tensors: torch.Tensor) -> bool:
    """Whether compiled kernels may be given these tensors: on the CPU, contiguous, kernels on."""
    return bool(_state["on"]) and all(t.device.type == "cpu" and t.is_contiguous() for t in tensors)


def on() -> bool:
    """Whether compiled kernels are in use."""
    return bool(_state["on"])


def switch(value: bool) -> None:
    """Turns compiled kernels on or off, for comparing both forms; on only where they were compiled at import."""
    _state["on"] = value and _COMPILED


def run(function: Callable[..., None], count: int, *args: Any, weight: int = 1) -> None:
    """Calls `function(start, stop, *args)` over `range(count)`, shared out among torch's threads.

    Args:
        function: a compiled kernel.
        count: rows or elements.
        args: what follows the range: numpy arrays and numbers.
        weight: elements of a row, for deciding whether threads are worth waking.
    """
    threads = min(torch.get_num_threads(), max(1, count * weight // GRAIN), max(1, count))
    if threads == 1:
        function(0, count, *args)
        return
    bounds = [count * part // threads for part in range(threads + 1)]
    pool = _pool()
    parts = [_submit(pool, function, bounds[i], bounds[i + 1], *args) for i in range(1, threads)]
    function(0, bounds[1], *args)
    for part in parts:
        part.result()


def _pool() -> ThreadPoolExecutor:
    """This process's pool; a forked child makes its own, because threads do not survive a fork."""
    pool = _state["pool"]
    if pool is None or pool[0] != os.getpid():
        pool = _state["pool"] = os.getpid(), ThreadPoolExecutor(64, thread_name_prefix="witness-kernel")
    executor: ThreadPoolExecutor = pool[1]
    return executor
