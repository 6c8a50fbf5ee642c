"""The environment variables that decide bits: which to recommend, which to record, which to give to a replayer.

Libraries read them once, at start, so they must be chosen before Python starts and cannot be repaired afterwards.
Nothing here imports torch.
"""

import os
import re
from collections.abc import Mapping
from importlib import metadata

from protocol.comparison import Value
from protocol.errors import IncompleteError, UsageError
from protocol.native_profile import NativeProfile
from witness.machine import cpu_features

_COUNT = r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*"
_FLAG = r"(?i:TRUE|FALSE|ON|OFF|YES|NO|0|1)"
_WORDS = r"[A-Za-z0-9_,.:^+ -]{1,256}"

VARIABLES: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern)
    for name, pattern in {
        "ATEN_CPU_CAPABILITY": r"default|avx2|avx512|avx512_vnni|amx|vsx|zvector|sve|sve128|sve256",
        "CUBLAS_WORKSPACE_CONFIG": r"(:[0-9]{1,6}:[0-9]{1,3})+",
        "CUBLASLT_WORKSPACE_SIZE": r"[0-9]{1,9}",
        "DISABLE_ADDMM_CUDA_LT": _FLAG,
        "MKL_CBWR": _WORDS,
        "MKL_DYNAMIC": _FLAG,
        "MKL_ENABLE_INSTRUCTIONS": _WORDS,
        "MKL_NUM_THREADS": _COUNT,
        "NCCL_ALGO": _WORDS,
        "NCCL_MAX_NCHANNELS": _COUNT,
        "NCCL_MIN_NCHANNELS": _COUNT,
        "NCCL_NVLS_ENABLE": r"[0-2]",
        "NCCL_PROTO": _WORDS,
        "NPY_DISABLE_CPU_FEATURES": _WORDS,
        "NPY_ENABLE_CPU_FEATURES": _WORDS,
        "NVIDIA_TF32_OVERRIDE": r"[01]",
        "OMP_DYNAMIC": _FLAG,
        "OMP_NUM_THREADS": _COUNT,
        "ONEDNN_DEFAULT_FPMATH_MODE": _WORDS,
        "ONEDNN_MAX_CPU_ISA": _WORDS,
        "DNNL_DEFAULT_FPMATH_MODE": _WORDS,
        "DNNL_MAX_CPU_ISA": _WORDS,
        "OPENBLAS_CORETYPE": _WORDS,
        "OPENBLAS_NUM_THREADS": _COUNT,
        "PYTHONHASHSEED": r"random|[0-9]{1,10}",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": _FLAG,
        "TORCH_BLAS_PREFER_CUBLASLT": _FLAG,
        "TORCH_LINALG_PREFER_CUSOLVER": _FLAG,
    }.items()
}
"""The variables that decide bits, and the values that may be taken from a stranger's manifest: none names a file.

`TORCHINDUCTOR_*` is left out: what it sets shows in the digest of a compiled function's configuration.
"""


def recommended_environment(threads: int) -> dict[str, str]:
    """The environment in which to record a run: fixed threads, and the widest vector class that most machines share.

    AVX2 costs nothing measurable in float32 and is what any x86 machine of the last ten years can replay. It is ruinous
    for bfloat16 on the CPU (no fast product below AVX-512), so such a run should unset `ONEDNN_MAX_CPU_ISA`.

    Args:
        threads: of the intra-op pool; a replayer uses the same number, on however many cores it has.

    Returns:
        Variables to set before Python starts.

    Raises:
        UsageError: `environment-variable`, for an impossible number of threads.
    """
    if not 1 <= threads <= 9999:
        raise UsageError("environment-variable", f"{threads} is no number of threads")
    chosen = {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "MKL_DYNAMIC": "FALSE",
        "MKL_NUM_THREADS": str(threads),
        "OMP_DYNAMIC": "FALSE",
        "OMP_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
    }
    features = cpu_features()
    if {"avx2", "fma"} <= features:
        wider = "X86_V4 AVX512_ICL AVX512_SPR" if _numpy_release() >= (2, 4) else "AVX512F AVX512CD AVX512_SKX"
        chosen |= {
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_CBWR": "AVX2",
            "NPY_DISABLE_CPU_FEATURES": wider,
            "ONEDNN_MAX_CPU_ISA": "AVX2",
            "OPENBLAS_CORETYPE": "Haswell",
        }
    elif "sse2" in features:
        chosen |= {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    elif features:
        chosen |= {"ATEN_CPU_CAPABILITY": "default"}
    return chosen


def environment(profile: NativeProfile, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a process that replays under a recorded profile.

    Variables that the recorded process did not have are removed. The one exception is `ATEN_CPU_CAPABILITY`: where it
    was unset, the vector class that was in force is pinned, because a replayer may have a wider one.

    Args:
        profile: from the manifest; only known variables with values of the known forms are taken from it.
        base: the environment to start from.

    Raises:
        IncompleteError: `profile-not-applicable`, for a variable or a value that this package does not know.
    """
    chosen = {name: value for name, value in (base or {}).items() if name not in VARIABLES}
    for name, value in profile.environment.items():
        if value is None:
            continue
        if name not in VARIABLES or not isinstance(value, str) or not VARIABLES[name].fullmatch(value):
            raise inapplicable(f"environment.{name}", value, None, "not a known variable with a known value")
        chosen[name] = value
    capability = str(profile.device.get("cpu.capability") or "").lower().replace("no avx", "default")
    if VARIABLES["ATEN_CPU_CAPABILITY"].fullmatch(capability):
        chosen.setdefault("ATEN_CPU_CAPABILITY", capability)
    return chosen


def own_environment() -> dict[str, str]:
    """The environment for a process that replays where variables decide no bits: this machine's own.

    What is not a known variable with a known value stays behind. The order of Python's sets is the one thing that a
    variable can change and no arithmetic defines, so it is fixed.
    """
    known = {**VARIABLES, "WITNESS_KERNELS": re.compile("on|off")}
    own = {name: os.environ[name] for name, form in known.items() if form.fullmatch(os.environ.get(name, ""))}
    return own | {"PYTHONHASHSEED": "0"}


def require_environment(profile: NativeProfile) -> None:
    """Checks, in the replaying process, that it was started with the recorded environment.

    Raises:
        IncompleteError: `profile-not-applicable`, naming the variable.
    """
    wanted: dict[str, str | None] = dict.fromkeys(VARIABLES)
    wanted |= environment(profile)
    if profile.environment.get("ATEN_CPU_CAPABILITY") is None:
        del wanted["ATEN_CPU_CAPABILITY"]  # its effect is compared as device.cpu.capability
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            reason = "set it before Python starts: libraries read it once"
            raise inapplicable(f"environment.{name}", value, os.environ.get(name), reason)


def read_environment() -> dict[str, Value]:
    """This process's values of the variables that decide bits; None where unset.

    Raises:
        UsageError: `environment-variable`, for a value that no replayer could be given.
    """
    found: dict[str, Value] = {name: os.environ.get(name) for name in sorted(VARIABLES)}
    for name, value in found.items():
        if value is not None and not VARIABLES[name].fullmatch(str(value)):
            raise UsageError("environment-variable", f"{name}={str(value)[:80]!r} could not be given to a replayer")
    return found


def _numpy_release() -> tuple[int, ...]:
    return tuple(int(part) for part in metadata.version("numpy").split(".")[:2])


def inapplicable(line: str, recorded: Value, here: Value, reason: str) -> IncompleteError:
    """The error for a line of a recorded profile that cannot be applied here."""
    return IncompleteError(
        "profile-not-applicable",
        f"{line}: recorded {recorded}, here {here}" + (f" ({reason})" if reason else ""),
        evidence={"line": line, "recorded": recorded, "here": here},
    )
