"""Compiled functions that a run can reach: found by name, refused without deterministic algorithms.

`torch.compile` with its default back end is not the same from run to run on two CPU threads (it lowers some backwards
to atomic additions), and differs from eager in the last bits; with deterministic algorithms on, compiled verifies
compiled. Compiled kernels do not pass the dispatcher, so the operation probe cannot stand for them: the profile tells.
"""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from protocol.comparison import Value
from protocol.encoding import encode
from protocol.errors import UsageError

_DEPTH = 6
_LIBRARIES = ("torch", "numpy", "builtins", "typing", "collections", "protocol", "witness")


def compile_lines(reachable: Mapping[str, Any]) -> dict[str, Value]:
    """The profile's lines on compilation.

    Args:
        reachable: by name: modules, optimisers, the program itself, or containers of these.

    Raises:
        UsageError: `compile-nondeterministic`, naming what is compiled.
    """
    found = dict(find_compiled(reachable))
    if not found:
        return {"compile": "eager", "compile.config": None}
    if torch.get_deterministic_debug_mode() != 2:
        names = ", ".join(list(found)[:8])
        raise UsageError(
            "compile-nondeterministic",
            f"{names} {'is' if len(found) == 1 else 'are'} compiled, and deterministic algorithms are not demanded",
            evidence={"compiled": names},
        )
    configurations = sorted(_configuration(function) for function in found.values())
    return {"compile": "compiled", "compile.config": hashlib.sha256(encode(configurations)).hexdigest()}


def find_compiled(reachable: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Compiled modules and functions among objects, what they hold, and what their methods refer to.

    Yields:
        The path of each, and the compiled object.
    """
    if "torch._dynamo" in sys.modules:
        seen: set[int] = set()
        for name, value in reachable.items():
            yield from _walk(name, value, seen, _DEPTH)


def _walk(name: str, value: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if id(value) in seen or isinstance(value, str | bytes | int | float | type | torch.Tensor | None):
        return
    seen.add(id(value))
    if _is_compiled(value):
        yield name, value
    elif depth > 0:
        inner = depth if isinstance(value, torch.nn.Module) else depth - 1
        for label, item in _parts(value):
            yield from _walk(label.format(name), item, seen, inner)


def _is_compiled(value: Any) -> bool:
    """Whether torch.compile made it; what `torch.compiler.disable` marks looks alike but for one attribute."""
    if isinstance(value, torch.nn.Module):
        return type(value).__name__ == "OptimizedModule" or getattr(value, "_compiled_call_impl", None) is not None
    attributes = getattr(getattr(value, "__func__", value), "__dict__", {})
    return "_torchdynamo_orig_callable" in attributes and not attributes.get("_torchdynamo_disable")


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value refers to, each with a label in which `{}` stands for the value's own name."""
    if isinstance(value, Mapping):
        yield from (("{}[" + _label(key) + "]", item) for key, item in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{{}}[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, FunctionType):
        if (value.__module__ or "").partition(".")[0] not in _LIBRARIES:
            yield from _referred(value)
    elif isinstance(value, MethodType):
        yield "{}", value.__func__
    elif not isinstance(value, ModuleType):
        if isinstance(value, torch.nn.Module):
            yield from ((f"{{}}.{key}", item) for key, item in value.named_children())
        yield from (("{}." + _label(key), item) for key, item in list(getattr(value, "__dict__", {}).items()))
        for kind in type(value).__mro__:
            if kind.__module__.partition(".")[0] not in _LIBRARIES:
                methods = ((key, getattr(item, "__func__", item)) for key, item in vars(kind).items())
                yield from ((f"{kind.__qualname__}.{key}", item) for key, item in methods if callable(item))


def _referred(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Values of a function's closure and the globals it names, also through one imported module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is not bound yet
            yield f"{{}}.<{name}>", cell.cell_contents
    names = function.__code__.co_names
    for name in names:
        item = function.__globals__.get(name)
        if isinstance(item, ModuleType) and item.__name__.partition(".")[0] not in _LIBRARIES:
            yield from ((f"{name}.{inner}", getattr(item, inner)) for inner in names if hasattr(item, inner))
        elif item is not None:
            yield name, item


def _label(key: object) -> str:
    return str(key).replace("{", "(").replace("}", ")")


def _configuration(function: Any) -> str:
    """Back-end settings that are plain values; paths and worker counts differ by machine and are left out."""
    read = getattr(function, "get_compiler_config", None)
    settings = (read() if callable(read) else None) or {}
    plain = {
        key: value if value is None or isinstance(value, bool | str) else repr(value)
        for key, value in settings.items()
        if isinstance(value, bool | int | float | str | None) and "/" not in str(value) and key != "compile_threads"
    }
    return encode(plain).decode()
