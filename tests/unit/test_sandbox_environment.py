"""Which environment variables a stranger may pin: arithmetic, not loaders."""

import pytest

from protocol.errors import IncompleteError
from witness.sandbox.environment import vetted

HARMLESS = {
    "OMP_NUM_THREADS": "2",
    "OMP_PROC_BIND": "close",
    "MKL_CBWR": "AVX2,STRICT",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTHONHASHSEED": "0",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD",
    "OPENBLAS_CORETYPE": "Haswell",
    "TZ": "UTC",
}


def test_numbers_and_switches_are_kept() -> None:
    assert vetted(HARMLESS) == HARMLESS | {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    assert vetted({"LANG": "C"})["LANG"] == "C"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "evil"),
        ("LD_AUDIT", "evil"),
        ("LD_LIBRARY_PATH", "."),
        ("PYTHONPATH", "x"),
        ("PYTHONHOME", "x"),
        ("PYTHONSTARTUP", "x"),
        ("PYTHONINSPECT", "1"),
        ("PYTHONBREAKPOINT", "os.system"),
        ("PYTHONWARNINGS", "error::evil.Warning"),
        ("PYTHONPLATLIBDIR", "x"),
        ("OMP_TOOL_LIBRARIES", "evil"),
        ("GCONV_PATH", "x"),
        ("OPENSSL_CONF", "/tmp/evil.cnf"),
        ("CUDA_INJECTION64_PATH", "evil"),
        ("NCCL_NET_PLUGIN", "evil"),
        ("TORCH_HOME", "x"),
        ("MKL_VERBOSE_OUTPUT_FILE", "x"),
        ("KINETO_CONFIG", "/etc/evil"),
        ("ANYTHING", "libevil.so.1"),
        ("http_proxy", "x"),
        ("A=B", "x"),
        ("", "x"),
        ("OMP_NUM_THREADS\n", "2"),
        ("OMP_NUM_THREADS", "2\n"),
        ("OMP_NUM_THREADS", "2\0"),
        ("OMP_NUM_THREADS", "\u0662"),
        ("OMP_NUM_THREADS", "2" * 1025),
        ("A" * 65, "x"),
        ("PATH", "x"),
    ],
)
def test_what_could_run_code_or_write_a_file_is_refused(name: str, value: str) -> None:
    with pytest.raises(IncompleteError) as caught:
        vetted({"OMP_NUM_THREADS": "2", name: value})
    assert caught.value.code == "sandbox-environment"
    assert caught.value.evidence["variable"] == name[:80]
