"""The operations that a run really uses: recorded below autograd, then run again on seeded inputs and hashed.

`OperationRecorder` watches one real step (forward, backward, optimiser) and keeps each distinct operator with its
shapes, strides and scalars. `build_probe` runs that list on values that everyone can make (`witness.arguments`) and
hashes what comes out. Both sides do the same under the same profile; where the digests agree, the kernels agree.

What the recorder sees is what torch dispatches. Kernels that bypass the dispatcher - compiled code, `ctypes`, numpy -
are not covered; a compiled run says so in its profile. Inputs are aligned as torch allocates: a run whose matrices
start in the middle of a storage may, for a few tiny products, use kernels that the probe does not.

A probe may come from a stranger. Only operators that a recorder would record are run (`witness.operators`), on sizes
below the caps, and in a process that is limited anyway, because the stranger's program is about to run in it.
"""

import hashlib
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from protocol.encoding import encode
from protocol.operations import (
    MAX_LIST,
    MAX_OPERATIONS,
    OperationProbe,
    OperationSpec,
    ProbedOperation,
    Unprobed,
    first_difference,
    tensors,
    uncovered,
)
from witness import operators
from witness.arguments import Undescribable, blank, describe, realise, storage, widen, words

__all__ = ["OperationRecorder", "Unprobable", "build_probe", "first_difference", "run_operation", "uncovered"]

MAX_BYTES = 1 << 31
"""Bytes that one operation's inputs may need, and its outputs where torch can tell beforehand."""
MAX_TOTAL_BYTES = 1 << 35
"""Bytes that the inputs of all operations may need, one after the other: bounds the time."""
SAMPLES, MAX_ROUNDS = 1 << 16, 32
"""A small operation is run on further inputs, until it has met so many values: two machines whose kernels differ in one
value of a thousand would agree on a handful by luck."""


class Unprobable(Exception):  # noqa: N818 - not an error: the operation is then listed as unprobed
    """An operation that cannot be run on seeded inputs here; the message says why."""


class OperationRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, keeps every distinct operation that torch dispatches.

    A recorded step has the bits of an unrecorded one: the same kernels get the same tensors. (Some formulas choose a
    variant that is not in place while any mode is active; its kernel is the same.)

    Example:
        with OperationRecorder() as recorder:
            program.step(state, batch)
        probe = recorder.probe()
    """

    # Higher-order operators are then handed to us, and listed, instead of failing the step.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found: dict[Any, tuple[str, tuple[Any, ...], dict[str, Any]]] = {}
        self._left_out: dict[str, str] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Describes one call, before it can change its arguments, and makes it."""
        del types
        kwargs = kwargs or {}
        kind = operators.kind_of(func)
        if kind == "computes" or (kind == "converts" and _changes_type(args, kwargs)):
            self._record(str(func), args, kwargs)
        elif kind in ("foreign", "unsupported"):
            self._left_out.setdefault(str(func)[:256], f"{kind} operator")
        return func(*args, **kwargs)

    @property
    def specs(self) -> tuple[OperationSpec, ...]:
        """The operations in the order of their first use."""
        return tuple(
            OperationSpec(name, words(arguments), {key: words(value) for key, value in keywords.items()})
            for name, arguments, keywords in self._found.values()
        )

    @property
    def left_out(self) -> tuple[Unprobed, ...]:
        """What was used and cannot be described, by name."""
        return tuple(Unprobed(name, reason) for name, reason in self._left_out.items())

    def probe(self) -> OperationProbe:
        """The digests of what was recorded, computed on this machine under the present settings."""
        return build_probe(self.specs, self.left_out)

    def _record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            arguments, keywords = describe(args), {key: describe(kwargs[key]) for key in sorted(kwargs)}
            if any(isinstance(item, tuple) and len(item) > MAX_LIST for item in (*arguments, *keywords.values())):
                raise Undescribable(f"a list of more than {MAX_LIST}")
        except Undescribable as reason:
            self._left_out.setdefault(name[:256], _line(reason))
            return
        key = name, blank(arguments), tuple((label, blank(value)) for label, value in keywords.items())
        if key in self._found:
            _, seen, seen_keywords = self._found[key]
            arguments = widen(seen, arguments)
            keywords = {label: widen(seen_keywords[label], value) for label, value in keywords.items()}
        self._found[key] = name, arguments, keywords


def build_probe(
    specs: Iterable[OperationSpec], left_out: Iterable[Unprobed] = (), *, repeats: int = 2
) -> OperationProbe:
    """Runs operations on seeded inputs and hashes their outputs.

    Args:
        specs: recorded here, or taken from a parsed manifest.
        left_out: what the recorder could not describe.
        repeats: how often each is run. A trainer wants to know of operations that are not the same twice; whoever
            compares with recorded digests will see it anyway.

    Returns:
        Digests; and by name whatever has none: beyond the caps, refused by torch, or not the same twice.

    Raises:
        ProtocolError: `operation-refused`, for what no recorder writes.
    """
    probed: list[ProbedOperation] = []
    unprobed = list(left_out)
    total = 0
    for spec in specs:
        size = sum(storage(tensor) for tensor in tensors(spec))
        try:
            if len(probed) == MAX_OPERATIONS:
                raise Unprobable(f"more than {MAX_OPERATIONS} distinct operations")
            if size > MAX_BYTES or total + size > MAX_TOTAL_BYTES:
                raise Unprobable(f"its inputs need {size} bytes")
            total += size
            digest = run_operation(spec)
            if any(run_operation(spec) != digest for _ in range(repeats - 1)):
                raise Unprobable("two runs on the same inputs differ")
            probed.append(ProbedOperation(spec, digest))
        except Unprobable as reason:
            unprobed.append(Unprobed(spec.signature()[:512], _line(reason)))
    if len(unprobed) > MAX_OPERATIONS:
        rest = len(unprobed) - MAX_OPERATIONS + 1
        unprobed[MAX_OPERATIONS - 1 :] = [Unprobed("others", f"{rest} more operations")]
    return OperationProbe(tuple(probed), tuple(unprobed))


def run_operation(spec: OperationSpec) -> str:
    """Runs one operation on its seeded inputs; random operators draw from seeded generators.

    Returns:
        SHA-256, hexadecimal, over everything the operator returned or wrote: type, shape, little-endian bytes.

    Raises:
        Unprobable: torch does not have the operator, refuses the inputs, or would allocate too much.
        ProtocolError: `operation-refused`.
    """
    operator = operators.find(spec.operator)
    if operator is None:
        raise Unprobable("this torch has no such operator")
    _require_small_outputs(operator, spec)
    cuda = any(tensor.device == "cuda" for tensor in tensors(spec))
    devices = [torch.cuda.current_device()] if cuda and torch.cuda.is_available() else []
    largest = max((tensor.elements for tensor in tensors(spec)), default=0)
    rounds = max(1, min(MAX_ROUNDS, SAMPLES // max(1, largest)))
    plain = torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False)
    h = hashlib.sha256()
    with warnings.catch_warnings(action="ignore"), torch.no_grad(), plain[0], plain[1], torch.random.fork_rng(devices):
        for number in range(rounds):
            args, kwargs = _inputs(spec, number)
            torch.default_generator.manual_seed(number)
            if devices:
                torch.cuda.manual_seed(number)
            try:
                _hash(h, operator, args, kwargs, operator(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - torch raises every kind of error for arguments it refuses
                raise Unprobable(f"{type(error).__name__}: {error}") from None
    return h.hexdigest()


def _inputs(spec: OperationSpec, number: int, device: str | None = None) -> tuple[list[Any], dict[str, Any]]:
    ordinals = itertools.count(1 + number * MAX_LIST)
    try:
        args = [realise(argument, ordinals, device) for argument in spec.arguments]
        return args, {name: realise(argument, ordinals, device) for name, argument in spec.keywords.items()}
    except RuntimeError as error:  # no such device, no memory
        raise Unprobable(f"{type(error).__name__}: {error}") from None


def _require_small_outputs(operator: Any, spec: OperationSpec) -> None:
    """Asks torch for the outputs' shapes on tensors without memory; operators that cannot tell are let through."""
    args, kwargs = _inputs(spec, 0, "meta")
    if any(argument.name == "device" for argument in operator._schema.arguments):  # noqa: SLF001
        kwargs["device"] = torch.device("meta")
    try:
        with torch.no_grad():
            returned = operator(*args, **kwargs)
    except Exception:  # noqa: BLE001 - no shape function, or arguments that the operator itself will refuse
        return
    size = sum(result.numel() * result.element_size() for result in _flat(returned) if isinstance(result, torch.Tensor))
    if size > MAX_BYTES:
        raise Unprobable(f"its outputs need {size} bytes")


def _hash(h: Any, operator: Any, args: list[Any], kwargs: dict[str, Any], returned: Any) -> None:
    """Hashes what was returned and what was written, in the schema's order."""
    written = [
        args[position] if position < len(args) else kwargs.get(argument.name)
        for position, argument in enumerate(operator._schema.arguments)  # noqa: SLF001
        if operators.is_written(argument)
    ]
    for result in _flat([returned, written]):
        if not isinstance(result, torch.Tensor):
            h.update(encode(repr(result)) + b"\n")
            continue
        data = result.detach().cpu().resolve_conj().resolve_neg().contiguous()
        h.update(encode([str(data.dtype), list(data.shape)]) + b"\n")
        h.update(data.reshape(-1).view(torch.uint8).numpy().data)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _changes_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a copy rounds: a conversion between types of which at least one is a float."""
    found = {item.dtype for item in _flat(args) if isinstance(item, torch.Tensor)}
    if isinstance(kwargs.get("dtype"), torch.dtype):
        found.add(kwargs["dtype"])
    return len(found) > 1 and any(dtype.is_floating_point or dtype.is_complex for dtype in found)


def _line(reason: Exception) -> str:
    """The first line of a reason, printable ASCII."""
    first = str(reason).partition("\n")[0][:240]
    return "".join(character if " " <= character <= "~" else "?" for character in first)
