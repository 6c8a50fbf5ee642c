"""The arguments of an operation, both ways: live values to the words of a probe, and words to live, seeded values.

Seeded values come from SHAKE-256 through integers only, and are assembled as bit patterns: `torch.randn` gives other
bits on other machines, and differences between machines are what the probe is to find. Floats have magnitudes in
[1/64, 8), most of them in [1/4, 2), so that roots, quotients and exponentials stay finite and every branch of an
approximation is met; they keep to the domain that the run's own values had, because some operators refuse others.
"""

import functools
import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import numpy as np
import torch

from protocol.encoding import MAX_INTEGER, f64, parse_float
from protocol.errors import ProtocolError
from protocol.operations import DOMAINS, MAX_DIMENSIONS, Domain, TensorSpec, parse_tensor

POOL = 131_101
"""Values in a pool; a prime, so that the rows of a tensor that repeats it do not line up."""
_SEED = b"training-witness/v1/operation-probe"
_FLOATS = {  # width, bits of the significand, exponent bias
    "float64": (64, 52, 1023),
    "float32": (32, 23, 127),
    "bfloat16": (16, 7, 127),
    "float16": (16, 10, 15),
    "float8_e4m3fn": (8, 3, 7),
    "float8_e5m2": (8, 2, 15),
}
_COMPLEX = {"complex64": "float32", "complex128": "float64"}
_EXPONENTS = (-2, -1, 0) * 4 + (-6, -3, 1, 2)
_UNIT_EXPONENTS = (-2, -1) * 6 + (-6, -5, -4, -3)
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_TEXTS = frozenset(
    (
        *("none", "tanh", "floor", "trunc", "sum", "prod", "mean", "amax", "amin", "min", "max", "left", "right"),
        *("r", "l", "u", "reduced", "complete", "fro", "nuc", "constant", "reflect", "replicate", "circular"),
        *("linear", "lower", "higher", "midpoint", "nearest"),
    )
)
"""The only strings that a probe may pass: modes of operators. No path is among them."""


class Undescribable(Exception):  # noqa: N818 - not an error: the operation is then listed as unprobed
    """A live argument that no word stands for; the message says why."""


def describe(value: Any) -> Any:
    """An argument with its tensors as `TensorSpec`, everything else as the word that travels.

    Raises:
        Undescribable: for sparse, quantised or wrapped tensors, complex scalars, streams and so on.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    if isinstance(value, list | tuple):
        return tuple(describe(item) for item in value)
    if isinstance(value, int):
        return value if abs(value) <= MAX_INTEGER else f"int:{value}"
    if isinstance(value, float):
        return f64(value)
    if isinstance(value, str) and value in _TEXTS:
        return f"text:{value}"
    if isinstance(value, torch.dtype):
        return f"dtype:{_plain(value)}"
    if isinstance(value, torch.device) and value.type in ("cpu", "cuda"):
        return f"device:{value.type}"
    if isinstance(value, torch.Generator):
        return f"generator:{value.device.type}"
    if value is torch.strided:
        return "layout:strided"
    if isinstance(value, torch.memory_format):
        return f"memory:{_plain(value)}"
    raise Undescribable(f"a {type(value).__name__} as argument")


def _describe_tensor(tensor: torch.Tensor) -> TensorSpec:
    dtype = _plain(tensor.dtype)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        raise Undescribable(f"a {type(tensor).__name__} of layout {_plain(tensor.layout)}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise Undescribable(f"a tensor on {tensor.device.type}")
    if dtype not in _FLOATS and dtype not in _COMPLEX and dtype not in _INTEGERS:
        raise Undescribable(f"a tensor of {dtype}")
    if tensor.is_conj() or tensor.is_neg() or tensor.dim() > MAX_DIMENSIONS:
        raise Undescribable("a lazily conjugated or negated tensor, or one of too many dimensions")
    device: Literal["cpu", "cuda"] = "cuda" if tensor.device.type == "cuda" else "cpu"
    return TensorSpec(dtype, tuple(tensor.shape), tuple(tensor.stride()), device, _values(tensor, dtype))


def _values(tensor: torch.Tensor, dtype: str) -> Domain | tuple[int, int]:
    """The domain of floats; of integers the bounds of the non-negative values, which may be indices."""
    if dtype == "bool":
        return 0, 1
    if dtype in _COMPLEX:
        return "signed"
    if tensor.numel() == 0:
        return "unit" if dtype in _FLOATS else (0, 0)
    if dtype in _FLOATS:
        wide = tensor.float() if _FLOATS[dtype][0] == 8 else tensor
        low, high = (float(bound) for bound in torch.aminmax(wide))
        if not low >= 0:  # also for NaN
            return "signed"
        return "unit" if high <= 1 else "positive"
    if bool((tensor >= 0).any()):
        tensor = tensor[tensor >= 0]
    low, high = (int(bound) for bound in torch.aminmax(tensor))
    return low, high


def widen(left: Any, right: Any) -> Any:
    """Two descriptions of the same operation as one whose domains and bounds hold both."""
    if isinstance(left, tuple):
        return tuple(widen(a, b) for a, b in zip(left, right, strict=True))
    if not isinstance(left, TensorSpec):
        return left
    values: Any
    if isinstance(left.values, tuple) and isinstance(right.values, tuple):
        values = min(left.values[0], right.values[0]), max(left.values[1], right.values[1])
    else:
        values = max(left.values, right.values, key=DOMAINS.index)
    return msgspec.structs.replace(left, values=values)


def blank(described: Any) -> Any:
    """A description without domains and bounds: what makes two uses the same operation. Hashable."""
    if isinstance(described, tuple):
        return tuple(blank(item) for item in described)
    if isinstance(described, TensorSpec):
        return msgspec.structs.replace(described, values="signed").text()
    return type(described), described  # True is not 1


def words(described: Any) -> Any:
    """A description as it travels."""
    if isinstance(described, tuple):
        return tuple(words(item) for item in described)
    return described.text() if isinstance(described, TensorSpec) else described


def realise(argument: Any, ordinals: Iterator[int], device: str | None = None) -> Any:
    """The live, seeded value of an argument that travelled.

    Args:
        argument: from a parsed `OperationSpec`.
        ordinals: numbers, one for each tensor, that choose its values.
        device: `meta` for tensors without memory, to learn what an operation would allocate.

    Raises:
        ProtocolError: `operation-refused`.
    """
    if isinstance(argument, tuple | list):
        return [realise(item, ordinals, device) for item in argument]
    if not isinstance(argument, str):
        return argument
    tensor = parse_tensor(argument)
    if tensor is not None:
        return _seeded(tensor, next(ordinals), device)
    tag, _, text = argument.partition(":")
    if tag == "f64":
        return parse_float(argument)
    if tag == "int":
        return int(text)
    if tag == "text" and text in _TEXTS:
        return text
    if tag == "device":
        return torch.device(device or text)
    if tag == "generator":
        return None if device else torch.Generator(text).manual_seed(0)
    if tag == "layout":
        return torch.strided
    found = getattr(torch, text, None)
    if isinstance(found, {"dtype": torch.dtype, "memory": torch.memory_format}.get(tag, ())):
        return found
    raise ProtocolError("operation-refused", f"{argument[:80]!r} is no argument that a recorder writes")


def storage(spec: TensorSpec) -> int:
    """Bytes that a seeded tensor needs, counting expanded dimensions in full.

    Raises:
        ProtocolError: `operation-refused`, for a type that no recorder writes.
    """
    if spec.dtype in _COMPLEX:
        width = 2 * _FLOATS[_COMPLEX[spec.dtype]][0]
    elif spec.dtype in _FLOATS:
        width = _FLOATS[spec.dtype][0]
    elif spec.dtype in _INTEGERS:
        width = 64  # the pool of integers is 64 bits wide
    else:
        raise ProtocolError("operation-refused", f"{spec.dtype[:40]} is no type that a recorder writes")
    return max(spec.extent, spec.elements) * width // 8


def _seeded(spec: TensorSpec, ordinal: int, device: str | None) -> torch.Tensor:
    dtype: Any = getattr(torch, spec.dtype, None)
    real = spec.dtype in _FLOATS or spec.dtype in _COMPLEX
    if not (real or spec.dtype in _INTEGERS) or real is isinstance(spec.values, tuple):
        raise ProtocolError("operation-refused", f"{spec.text()[:80]} is no tensor that a recorder writes")
    if device == "meta":
        return torch.empty_strided(spec.shape, spec.stride, dtype=dtype, device="meta")
    part = _COMPLEX.get(spec.dtype)
    pool = _pool(part or spec.dtype, spec.values)
    extent = spec.extent * (2 if part else 1)
    buffer = torch.empty(extent, dtype=getattr(torch, str(pool.dtype)))  # torch aligns it as the run's own tensors are
    flat = buffer.numpy()
    start, position = ordinal * 7919 % POOL, 0  # coprime: consecutive tensors start far apart
    while position < extent:
        length = min(POOL - start, extent - position)
        flat[position : position + length] = pool[start : start + length]
        start, position = 0, position + length
    buffer = buffer.view(dtype) if dtype is not torch.bool else buffer.bool()
    return torch.as_strided(buffer.to(spec.device), spec.shape, spec.stride)


@functools.lru_cache(maxsize=16)
def _pool(dtype: str, values: Domain | tuple[int, int]) -> Any:
    """`POOL` values in a numpy array: floats as bit patterns of their width, integers as they are."""
    raw = np.frombuffer(_stream(), dtype="<u8")
    if isinstance(values, tuple):
        low, high = values
        offsets = raw % np.uint64(min(high - low + 1, 2**64 - 1))
        numbers = (offsets + np.uint64(low % 2**64)).astype(np.int64)  # modulo 2**64: exact for any bounds
        return numbers.astype("uint8" if dtype == "bool" else dtype)
    width, significand, bias = _FLOATS[dtype]
    exponents = np.array(_UNIT_EXPONENTS if values == "unit" else _EXPONENTS) + bias
    bits = raw & np.uint64((1 << significand) - 1)
    bits |= exponents.astype(np.uint64)[(raw >> np.uint64(56)) % np.uint64(16)] << np.uint64(significand)
    if values == "signed":
        bits |= (raw >> np.uint64(63)) << np.uint64(width - 1)
    return bits.astype(f"uint{width}").view(f"int{width}")


@functools.cache
def _stream() -> bytes:
    return hashlib.shake_256(_SEED).digest(8 * POOL)


def _plain(value: Any) -> str:
    return str(value).removeprefix("torch.")
