"""What this machine and these builds are, as plain lines: the part of a numeric profile that nobody can switch.

Importing this module does not import torch: the environment of a run is chosen from the CPU's features before torch
starts.
"""

import hashlib
import math
import os
import platform
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protocol.comparison import Value

if TYPE_CHECKING:
    import torch

_CPUINFO = Path("/proc/cpuinfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_FEATURES = re.compile(
    r"avx.*|fma4?|f16c|sse.*|ssse3|amx.*|gfni|asimd.*|sve.*|sme2?|bf16|i8mm|fphp|neon|vfpv4|vsx|altivec|vx|vxe2?"
)
_DOMAIN = b"training-witness/v1/host-functions"


def cpu() -> dict[str, Value]:
    """The CPU: vendor, family, model, name, vector features, cache sizes, logical CPUs, byte order."""
    info = _cpuinfo()
    lines: dict[str, Value] = {
        "machine": platform.machine(),
        "byteorder": sys.byteorder,
        "cpu.vendor": _word(info.get("vendor_id") or info.get("CPU implementer")),
        "cpu.family": _word(info.get("cpu family") or info.get("CPU architecture")),
        "cpu.model": _word(info.get("model") or info.get("CPU part")),
        "cpu.name": _word(info.get("model name")),
        "cpu.features": " ".join(sorted(cpu_features())),
        "cpu.count": os.cpu_count(),
    }
    for index in sorted(_CACHES.glob("index*")) if _CACHES.is_dir() else ():
        level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            lines[f"cpu.cache{level}"] = size
    return lines


def cpu_features() -> frozenset[str]:
    """Vector features of the CPU by the kernel's names (`avx2`, `asimd`); empty where the system does not say."""
    info = _cpuinfo()
    words = (info.get("flags") or info.get("Features") or "").split()
    return frozenset(word for word in words if _FEATURES.fullmatch(word))


def devices(reachable: Mapping[str, Any]) -> Iterator["torch.device"]:
    """The devices of tensors, and of the tensors in modules and optimisers."""
    import torch

    for value in reachable.values():
        if isinstance(value, torch.nn.Module):
            yield from (tensor.device for tensor in (*value.parameters(), *value.buffers()))
        elif isinstance(value, torch.optim.Optimizer):
            yield from (tensor.device for group in value.param_groups for tensor in group["params"])
        elif isinstance(value, torch.Tensor):
            yield value.device


def best_device() -> str:
    """The kind of device that a program finds here when it takes the best."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def gpu(devices: Iterable["torch.device"]) -> dict[str, Value]:
    """The GPUs among `devices`: name, compute capability, multiprocessors and the threads of each.

    The last two lay out CUDA's random numbers over the elements of a tensor. Several kinds of GPU are listed side by
    side.
    """
    import torch

    indices = sorted({device.index or 0 for device in devices if device.type == "cuda"})
    kinds = [torch.cuda.get_device_properties(index) for index in indices]

    def listed(read: Callable[[object], object]) -> Value:
        return ", ".join(dict.fromkeys(str(read(kind)) for kind in kinds)) or None

    lines: dict[str, Value] = {"used": "cuda" if kinds else "cpu"}
    if kinds:
        lines |= {
            "gpu.name": listed(lambda kind: getattr(kind, "name", None)),
            "gpu.capability": listed(lambda kind: f"{getattr(kind, 'major', 0)}.{getattr(kind, 'minor', 0)}"),
            "gpu.multiprocessors": listed(lambda kind: getattr(kind, "multi_processor_count", None)),
            "gpu.threads_per_multiprocessor": listed(
                lambda kind: getattr(kind, "max_threads_per_multi_processor", None)
            ),
        }
    return lines


def build() -> dict[str, Value]:
    """Versions of torch, of the libraries in it, of Python, numpy and libc, and digests of the host's functions.

    The configuration's digest leaves out the line that says which vector class is in force: that is not of the build.
    """
    import numpy as np
    import torch

    shown = torch.__config__.show()
    config = "\n".join(line for line in shown.splitlines() if "CPU capability usage" not in line)
    lines: dict[str, Value] = {
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version,
        "torch_config": hashlib.sha256(config.encode()).hexdigest(),
        "mkl": _found(r"Math Kernel Library Version (\S+)", shown),
        "onednn": _found(r"MKL-DNN v(\S+)", shown),
        "openmp": _found(r"OpenMP (\d+)", shown),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "libc": "-".join(part for part in platform.libc_ver() if part) or None,
        "libm": libm_digest(),
        "numpy_functions": numpy_digest(),
    }
    if torch.cuda.is_available():
        cudnn: Any = torch.backends.cudnn
        nccl: Any = torch.cuda.nccl
        lines |= {
            "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
            "cudnn": cudnn.version(),
            "nccl": ".".join(map(str, nccl.version())) if torch.distributed.is_nccl_available() else None,
        }
    return lines


def libm_digest() -> str:
    """SHA-256 of what Python's float functions give on 2048 fixed values.

    Learning-rate schedules are computed with them, and libc picks their code by version and CPU (with or without FMA);
    a run whose schedule takes another last bit here would look like a different run.
    """
    unit: list[float] = [value / 2**53 for value in _integers(2048, 53)]
    h = hashlib.sha256()
    for function, low, high in (
        (math.exp, -20, 20),
        (math.expm1, -2, 2),
        (math.log, 0, 100),
        (math.log2, 0, 100),
        (math.log10, 0, 100),
        (math.log1p, 0, 2),
        (math.sin, -8, 8),
        (math.cos, -8, 8),
        (math.tan, -1, 1),
        (math.atan, -4, 4),
        (math.sinh, -4, 4),
        (math.cosh, -4, 4),
        (math.tanh, -4, 4),
        (math.erf, -3, 3),
        (math.lgamma, 1, 50),
        (lambda x: math.pow(x, 1.7), 0, 10),
        (lambda x: math.pow(0.9, x), 0, 1000),
    ):
        results = [function(low + (high - low) * (value or 2.0**-53)) for value in unit]
        h.update(struct.pack(f"<{len(results)}d", *results))
    h.update(struct.pack("<d", sum(unit)))
    return h.hexdigest()


def numpy_digest() -> str:
    """SHA-256 of what numpy's functions and its BLAS give on fixed values, in float32 and float64.

    numpy chooses their code by CPU; collation and augmentation may use them.
    """
    import numpy as np

    h = hashlib.sha256()
    unit = np.array(_integers(4096, 53), dtype=np.float64) / 2**53
    for dtype in (np.float32, np.float64):
        x = (unit * 4 + 2**-10).astype(dtype)
        functions = (np.exp, np.exp2, np.expm1, np.log, np.log2, np.log10, np.log1p, np.sin, np.cos, np.tanh, np.arctan)
        for function in functions:
            h.update(np.ascontiguousarray(function(x)).tobytes())
        square = x[:1024].reshape(32, 32)  # small enough for one thread of any BLAS
        product = np.matmul(square, square.T)
        for result in (np.power(x, dtype(1.7)), np.sqrt(x), x.sum(), x.mean(), x.std(), product):
            h.update(np.asarray(result).tobytes())
    return h.hexdigest()


def _integers(count: int, bits: int) -> list[int]:
    stream = hashlib.shake_256(_DOMAIN).digest(8 * count)
    return [int.from_bytes(stream[i : i + 8], "little") >> (64 - bits) for i in range(0, len(stream), 8)]


def _cpuinfo() -> dict[str, str]:
    """The lines of the first processor."""
    try:
        first = _CPUINFO.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _word(text: str | None) -> Value:
    """Printable ASCII, at most 512 characters."""
    if text is None:
        return None
    return "".join(character for character in text if " " <= character <= "~")[:512]


def _found(pattern: str, text: str) -> Value:
    match = re.search(pattern, text)
    return _word(match[1]) if match else None
