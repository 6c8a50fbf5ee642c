"""Process-wide switches of torch that decide bits: read, written and read again through one table.

The rows differ between torch releases. A row whose accessors this torch lacks is left out; a profile that has it can
then not be applied, and the error names the row instead of guessing.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.backends import cuda, cudnn, mha, mkldnn, nnpack, opt_einsum
from torch.utils import deterministic as _deterministic

from protocol.comparison import Value
from protocol.errors import IncompleteError

deterministic: Any = _deterministic
GRAIN = 65536
"""Elements for each thread in the subnormal probe: twice the least that torch gives one (its GRAIN_SIZE)."""
_C: Any = torch._C  # noqa: SLF001 - some switches have no public reader
_FLOATS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_FP32_BACKENDS = (
    *((backend, "all") for backend in ("generic", "cuda", "mkldnn")),
    *((backend, operation) for backend in ("cuda", "mkldnn") for operation in ("matmul", "conv", "rnn")),
)


class Switch(NamedTuple):
    """One row: how to read the setting and how to set it."""

    read: Callable[[], Any]
    write: Callable[[Any], object]


def read_switches() -> dict[str, Value]:
    """Every switch of this process, and whether subnormal numbers survive in the main thread and in the pool."""
    main, pool = subnormals()
    return {
        **{name: switch.read() for name, switch in _table().items()},
        "subnormals.main": main,
        "subnormals.pool": pool,
    }


def apply_switches(recorded: Mapping[str, Value]) -> None:
    """Sets every recorded switch and reads all of them back.

    Only what differs is written: some of torch's newer precision settings make the older ones unreadable once touched.

    Raises:
        IncompleteError: `profile-not-applicable`, naming the first row that this process cannot be given.
    """
    recorded = {name: value for name, value in recorded.items() if not name.startswith("compile")}
    _apply_subnormals(recorded.get("subnormals.main"), recorded.get("subnormals.pool"))
    _write(recorded, _table())
    _require(recorded, read_switches())


def read_defaults() -> dict[str, Value]:
    """The rows that change which operations a program asks for, not how they are computed: default dtype, autocast."""
    return {name: switch.read() for name, switch in _default_rows()}


def apply_defaults(recorded: Mapping[str, Value]) -> None:
    """Sets every recorded row of `read_defaults` and reads all of them back.

    Raises:
        IncompleteError: `profile-not-applicable`, naming the first row that this process cannot be given.
    """
    _write(recorded, dict(_default_rows()))
    _require(recorded, read_defaults())


def set_recommended() -> None:
    """The switches for a run that is to be replayed: deterministic kernels, defined memory, no kernel contests."""
    _set_deterministic_mode(2)
    deterministic.fill_uninitialized_memory = True
    cudnn.deterministic = True
    cudnn.benchmark = False


def subnormals() -> tuple[str, str]:
    """What becomes of subnormal numbers in the main thread and in torch's pool.

    FTZ and DAZ are bits of each thread's control register; `torch.set_flush_denormal` and libraries linked with
    `-ffast-math` change the calling thread only, and threads born later inherit it. An element-wise product is split
    over the pool in equal parts, the first of which the calling thread computes.

    Returns:
        Main thread and pool: `kept`, `ftz` (results flushed), `daz` (operands flushed) or `flushed` (both); the pool
        may also be `mixed`, or `none` when there is only one thread.
    """
    threads = torch.get_num_threads()
    smallest_normal = torch.full((GRAIN * threads,), 0x00800000, dtype=torch.int32).view(torch.float32)
    subnormal = torch.full((GRAIN * threads,), 0x00400000, dtype=torch.int32).view(torch.float32)
    # Compared as integers: a comparison of floats would itself be flushed.
    results = (smallest_normal * 0.5).view(torch.int32) == 0
    operands = (subnormal * 2.0).view(torch.int32) == 0
    names = {(False, False): "kept", (True, False): "ftz", (False, True): "daz", (True, True): "flushed"}
    found = []
    for part in range(threads):
        own = slice(part * GRAIN, (part + 1) * GRAIN)
        flags = [(bool(flushed[own].any()), bool(flushed[own].all())) for flushed in (results, operands)]
        uniform = all(some == every for some, every in flags)
        found.append(names[flags[0][0], flags[1][0]] if uniform else "mixed")
    pool = set(found[1:])
    return found[0], "none" if not pool else pool.pop() if len(pool) == 1 else "mixed"


def _apply_subnormals(main: Value, pool: Value) -> None:
    """A pool that flushes must be born from a thread that flushes: the first probe below makes the pool's threads."""
    if pool == "flushed":
        torch.set_flush_denormal(True)
    current = subnormals()[0]
    if main in ("kept", "flushed") and main != current:
        torch.set_flush_denormal(main == "flushed")


def _write(recorded: Mapping[str, Value], table: Mapping[str, Switch]) -> None:
    for name, switch in table.items():
        wanted = recorded.get(name)
        if name in recorded and not _same(switch.read(), wanted):
            try:
                switch.write(wanted)
            except (RuntimeError, ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
                raise _inapplicable(name, wanted, switch.read(), str(error).partition("\n")[0][:160]) from None


def _require(recorded: Mapping[str, Value], here: Mapping[str, Value]) -> None:
    for name in sorted(recorded.keys() | here.keys()):
        if not _same(here.get(name), recorded.get(name)):
            raise _inapplicable(name, recorded.get(name), here.get(name), "")


def _same(left: Value, right: Value) -> bool:
    return left == right and type(left) is type(right)


def _inapplicable(name: str, recorded: Value, here: Value, reason: str) -> IncompleteError:
    return IncompleteError(
        "profile-not-applicable",
        f"switches.{name}: recorded {recorded}, here {here}" + (f" ({reason})" if reason else ""),
        evidence={"line": f"switches.{name}", "recorded": recorded, "here": here},
    )


def _table() -> dict[str, Switch]:
    """The rows that this torch has, in the order in which they must be written."""
    return dict((*_library_rows(), *_precision_rows(), *_attention_rows(), *_device_rows(), *_default_rows()))


def _library_rows() -> Iterator[tuple[str, Switch]]:
    yield "deterministic.algorithms", Switch(torch.get_deterministic_debug_mode, _set_deterministic_mode)
    for name, holder, attribute in (
        ("deterministic.fill_uninitialized_memory", deterministic, "fill_uninitialized_memory"),
        ("cudnn.enabled", cudnn, "enabled"),
        ("cudnn.deterministic", cudnn, "deterministic"),
        ("cudnn.benchmark", cudnn, "benchmark"),
        ("cudnn.depthwise_kernel", cudnn, "depthwise_kernel"),
        ("mkldnn.enabled", mkldnn, "enabled"),
        ("mkldnn.deterministic", mkldnn, "deterministic"),
    ):
        yield from _attribute(name, holder, attribute)
    if hasattr(_C, "_get_nnpack_enabled"):
        yield "nnpack.enabled", Switch(_C._get_nnpack_enabled, nnpack.set_flags)  # noqa: SLF001
    yield "einsum.strategy", Switch(_einsum_strategy, _set_einsum_strategy)
    yield (
        "linalg.library",
        Switch(lambda: str(cuda.preferred_linalg_library()).rpartition(".")[2].lower(), cuda.preferred_linalg_library),
    )


def _precision_rows() -> Iterator[tuple[str, Switch]]:
    yield "float32_matmul_precision", Switch(_matmul_precision, _set_matmul_precision)
    if hasattr(_C, "_get_fp32_precision_getter"):
        for backend, operation in _FP32_BACKENDS:
            yield f"fp32_precision.{backend}.{operation}", _fp32_precision(backend, operation)
    else:
        yield from _attribute("tf32.cublas", cuda.matmul, "allow_tf32")
        yield from _attribute("tf32.cudnn", cudnn, "allow_tf32")
    for name in ("fp16_reduced_precision_reduction", "bf16_reduced_precision_reduction", "fp16_accumulation"):
        yield from _attribute(f"cublas.{name}", cuda.matmul, f"allow_{name}")


def _attention_rows() -> Iterator[tuple[str, Switch]]:
    yield "sdpa.flash", Switch(cuda.flash_sdp_enabled, cuda.enable_flash_sdp)
    yield "sdpa.mem_efficient", Switch(cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp)
    yield "sdpa.math", Switch(cuda.math_sdp_enabled, cuda.enable_math_sdp)
    yield "sdpa.cudnn", Switch(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp)
    yield (
        "sdpa.math_reduced_precision",
        Switch(cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp),
    )
    yield "mha.fastpath", Switch(mha.get_fastpath_enabled, mha.set_fastpath_enabled)


def _device_rows() -> Iterator[tuple[str, Switch]]:
    yield "default.device", Switch(lambda: str(torch.get_default_device()), torch.set_default_device)


def _default_rows() -> Iterator[tuple[str, Switch]]:
    yield (
        "default.dtype",
        Switch(lambda: _text(torch.get_default_dtype()), lambda v: torch.set_default_dtype(_FLOATS[v])),
    )
    yield "autocast.cache", Switch(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
    for device in ("cpu", "cuda"):
        yield f"autocast.{device}", _autocast_enabled(device)
        yield f"autocast.{device}.dtype", _autocast_dtype(device)


def _set_deterministic_mode(mode: int) -> None:
    """As torch's own setter, which imports the whole compiler (over 2 s) only to leave it a note.

    Where the compiler is loaded it gets the note; `tell_compiler` leaves it once a program has loaded it later.
    """
    if "torch._inductor" in sys.modules:
        torch.set_deterministic_debug_mode(mode)
    else:
        _C._set_deterministic_algorithms(mode != 0, warn_only=mode == 1)  # noqa: SLF001


def tell_compiler() -> None:
    """Tells the compiler, if the program has loaded it, what the deterministic mode is; before it compiles anything."""
    if "torch._inductor" in sys.modules:
        torch.set_deterministic_debug_mode(torch.get_deterministic_debug_mode())


def _attribute(name: str, holder: Any, attribute: str) -> Iterator[tuple[str, Switch]]:
    if hasattr(holder, attribute):
        yield name, Switch(lambda: getattr(holder, attribute), lambda value: setattr(holder, attribute, value))


def _matmul_precision() -> str:
    """`mixed` once the newer settings by backend were touched: torch then refuses to say."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "mixed"


def _set_matmul_precision(value: str) -> None:
    if value != "mixed":
        torch.set_float32_matmul_precision(value)


def _fp32_precision(backend: str, operation: str) -> Switch:
    return Switch(
        lambda: _C._get_fp32_precision_getter(backend, operation),  # noqa: SLF001
        lambda value: _C._set_fp32_precision_setter(backend, operation, value),  # noqa: SLF001
    )


def _einsum_strategy() -> str:
    """The order in which `einsum` contracts three or more operands; left to right without the opt_einsum package."""
    return str(opt_einsum.strategy) if opt_einsum.is_available() and opt_einsum.enabled else "left-to-right"


def _set_einsum_strategy(value: str) -> None:
    set_flags: Any = opt_einsum.set_flags
    set_flags(_enabled=value != "left-to-right", _strategy=None if value == "left-to-right" else value)


def _autocast_enabled(device: str) -> Switch:
    return Switch(lambda: torch.is_autocast_enabled(device), lambda value: torch.set_autocast_enabled(device, value))


def _autocast_dtype(device: str) -> Switch:
    return Switch(
        lambda: _text(torch.get_autocast_dtype(device)), lambda value: torch.set_autocast_dtype(device, _FLOATS[value])
    )


def _text(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
