"""From one definition to all the ways in which torch spells it: in place, into `out`, over lists, in half precision."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch.backends import mha, opt_einsum

HALVES = (torch.bfloat16, torch.float16)
FACTORIES = {
    "arange", "empty", "empty_like", "empty_permuted", "empty_strided", "linspace", "new_empty", "new_empty_strided",
    "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm",
}  # fmt: skip
"""Operators whose result has the type of the tensor that it is written into."""
CHOICES: dict[str, Callable[..., Any]] = {
    "_default_to_fused_or_foreach": lambda *_, **__: (False, False),
    "_get_foreach_kernels_supported_devices": list,
}
"""What optimisers and running averages that are not told ask: which devices have kernels for lists, or fused ones."""
ELEMENT = {"norm": "linalg_vector_norm", "powsum": "linalg__powsum", "max": "amax"}
"""Where a list operator's element goes by another name."""


@functools.cache
def functional(op: Any) -> Any:
    """The overload that returns what `op` writes into given tensors; None if `op` does not, or torch has none."""
    arguments = op._schema.arguments  # noqa: SLF001
    if not any(a.is_out for a in arguments):
        return None
    packet = op.overloadpacket
    wanted = [(a.name, str(a.type)) for a in arguments if not a.is_out]
    for name in packet.overloads():
        other = getattr(packet, name)
        if other is not op and [(a.name, str(a.type)) for a in other._schema.arguments] == wanted:  # noqa: SLF001
            return other
    return None


def of(op: Any, handler: Callable[..., Any], *, halves: bool, in_place: bool) -> Callable[..., Any]:
    """A plan for the overload `op` from the handler of its functional form; see `registry.operator`."""
    schema = op._schema  # noqa: SLF001
    outs = [a.name for a in schema.arguments if a.is_out]
    name = schema.name.partition("::")[2]
    compute = handler if halves or in_place else _widened(handler)
    if outs:
        typed = name in FACTORIES or schema.overload_name == "float_float_out"

        def into(*args: Any, **kwargs: Any) -> Any:
            given = [kwargs.pop(n) for n in outs]
            if typed:
                kwargs["dtype"] = given[0].dtype
            results = compute(*args, **kwargs)
            for target, result in zip(given, results if len(outs) > 1 else [results], strict=True):
                castable(result, target)
                if target.shape != result.shape:
                    target.resize_(result.shape)
                target.copy_(result)
            return given[0] if len(outs) == 1 else tuple(given)

        return into
    if name.endswith("_") and not in_place:

        def onto(target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            result = compute(target, *args, **kwargs)
            castable(result, target)
            return target.copy_(result)

        return onto
    return compute


def castable(result: torch.Tensor, target: torch.Tensor) -> None:
    """Raises what torch raises where a result would lose its kind in a tensor that was given."""
    if result.dtype != target.dtype and not torch.can_cast(result.dtype, target.dtype):
        raise RuntimeError(f"result type {result.dtype} can't be cast to the desired output type {target.dtype}")


def _widened(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Half-precision operands are converted to float32, results back: two IEEE conversions around one definition.

    Where half precision is asked for by `dtype`, operands are first rounded to it, as in torch.
    """

    def compute(*args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.get("dtype")
        if wanted in HALVES and any(isinstance(a, torch.Tensor) for a in args):
            del kwargs["dtype"]
            return _narrow(compute(*(_narrow(_wide(a), wanted) for a in args), **kwargs), wanted)
        halves = _half_of(args)
        if halves is None:
            return handler(*args, **kwargs)
        result = handler(*map(_wide, args), **{k: _wide(v) for k, v in kwargs.items()})
        return result if wanted is not None else _narrow(result, halves)

    return compute


def _half_of(args: tuple[Any, ...]) -> torch.dtype | None:
    """The half precision that the result has; None where torch would promote to a wider type.

    Tensors without dimensions have a say only where there are no others.
    """
    for scalars in (False, True):
        found = None
        for a in args:
            for t in a if isinstance(a, list | tuple) else (a,):
                if isinstance(t, torch.Tensor) and t.is_floating_point() and (t.dim() == 0) == scalars:
                    if t.dtype not in HALVES or found not in (None, t.dtype):
                        return None
                    found = t.dtype
        if found is not None:
            return found
    return None


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in HALVES else value
    if isinstance(value, list | tuple):
        return type(value)(_wide(v) for v in value)
    return value


def _narrow(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype == torch.float32 else value
    if isinstance(value, list | tuple):
        return type(value)(_narrow(v, dtype) for v in value)
    return value


def each(op: Any, mode: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """A list operator, element by element, each dispatched again under the mode."""
    schema = op._schema  # noqa: SLF001
    name = schema.name.partition("::")[2].removeprefix("_foreach_")
    in_place = name.endswith("_")
    plain = name.removesuffix("_")
    element = getattr(torch.ops.aten, ELEMENT.get(plain, plain) + ("_" if in_place else ""), None)
    if element is None:  # torch has no such operator in place: computed, then stored

        def element(target: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
            return target.copy_(getattr(torch.ops.aten, plain)(target, *rest, **named))

    given = {a.name: v for a, v in zip(schema.arguments, args, strict=False)} | kwargs
    count = next(
        len(v)
        for a in schema.arguments
        if "Tensor[]" in str(a.type) or "List[Tensor]" in str(a.type)
        for v in [given[a.name]]
    )
    positional, named = [], {}
    for argument in schema.arguments:
        if argument.name not in given:
            continue
        value = given[argument.name]
        if plain in ("addcmul", "addcdiv") and argument.name in ("value", "scalars"):
            # A tensor of scalars is read: the element takes numbers.
            named["value"] = value.tolist() if isinstance(value, torch.Tensor) else value
        elif argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)

    def element_of(value: Any, i: int) -> Any:
        return value[i] if isinstance(value, list | tuple) else value

    results = []
    with mode():
        for i in range(count):
            mine = [element_of(v, i) for v in positional]
            results.append(element(*mine, **{k: element_of(v, i) for k, v in named.items()}))
    return None if in_place else results


def taken_apart(op: Any, mode: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
    """A composite operator as the operators that it is made of, each dispatched again under the mode."""
    with mode():
        return op.decompose(*args, **kwargs)


def _has_float(values: Any) -> bool:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() or value.is_complex():
                return True
        elif isinstance(value, torch.dtype):
            if value.is_floating_point or value.is_complex:
                return True
        elif isinstance(value, float) or (isinstance(value, list | tuple) and _has_float(value)):
            return True
    return False


def integers_first(op: Any, plan: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The native operator where no operand is a float (integers are exact); the definition otherwise."""
    if not _has_float(args) and not _has_float(kwargs.values()):
        return op(*args, **kwargs)
    return plan(*args, **kwargs)


def integers_only(op: Any, refusal: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The native operator on integers; refused on floats."""
    return (refusal if _has_float(args) or _has_float(kwargs.values()) else op)(*args, **kwargs)


@contextmanager
def settings() -> Iterator[None]:
    """Torch's own switches that would choose between operators: put in one position, and back afterwards.

    Optimisers and averages that are not told take their text for lists on some devices and the one for single tensors
    on others; the two differ in the order of operations (Adagrad, ASGD, NAdam, RAdam, AveragedModel). Here it is the
    one for single tensors. Under `torch.use_deterministic_algorithms` padding, resizing and pooling are other
    compositions on a GPU; what is defined is deterministic without.
    """
    fast, order = mha.get_fastpath_enabled(), opt_einsum.enabled
    asked = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch._C._set_deterministic_algorithms(False)  # noqa: SLF001 - the public function imports a compiler
    mha.set_fastpath_enabled(False)
    opt_einsum.enabled = False
    chosen = [(module, name, vars(module)[name]) for module, name in _choices()]
    for module, name, _ in chosen:
        setattr(module, name, CHOICES[name])
    try:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            yield
    finally:
        mha.set_fastpath_enabled(fast)
        opt_einsum.enabled = order
        torch._C._set_deterministic_algorithms(asked[0], warn_only=asked[1])  # noqa: SLF001
        for module, name, choice in chosen:
            setattr(module, name, choice)


@functools.cache
def _choices() -> list[tuple[ModuleType, str]]:
    """Where torch has `CHOICES` by name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.optim.")]
    return [(module, name) for module in modules for name in CHOICES if name in vars(module)]
