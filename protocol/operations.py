"""The operation probe: what this run's operations gave, bit for bit, on inputs that everyone can make.

Native floating point is reproducible only where every kernel adds in the same order and uses the same polynomials.
Rather than guess from version strings whether two machines agree, a run records the operations it really used -
operator, shapes, strides, scalars - each with the digest of its outputs on seeded inputs. Whoever wants to replay runs
the same list first and knows, *before* replaying, whether bit equality can be demanded, and if not, which operation
differs.

Tensors travel as one word each, so that a list of hundreds stays readable and small:

    float32[64,32]{signed}            contiguous, on the CPU
    float32[32,64;1,32]@cuda{unit}    strides after the semicolon, on a GPU
    int64[8,16]{0..99}                integers between the smallest and largest non-negative values seen

The other strings are tagged: `f64:` bits of a float, `int:` an integer of 2**53 or more, `dtype:`, `device:`,
`layout:`, `memory:`, `generator:` and `text:`.

Specified in spec/profile.md, section 5.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal, TypeAlias

import msgspec

from protocol.encoding import MAX_INTEGER, Hex32, Struct, encode, f64, parse_float
from protocol.errors import ProtocolError

MAX_OPERATIONS = 512
MAX_LIST = 4096
MAX_DIMENSIONS = 16

Word = Annotated[str, msgspec.Meta(max_length=512, pattern=r"\A[ -~]*\Z")]
Integer = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Atom: TypeAlias = bool | Integer | Word | None
Argument: TypeAlias = bool | Integer | Word | Annotated[tuple[Atom, ...], msgspec.Meta(max_length=MAX_LIST)] | None
Domain = Literal["unit", "positive", "signed"]

DOMAINS: tuple[Domain, ...] = ("unit", "positive", "signed")
"""From narrow to wide: within [0, 1], not negative, anything. Seeded floats keep to the domain of the run's values."""

_TENSOR = re.compile(
    r"(?P<dtype>[a-z][a-z0-9_]{1,23})\[(?P<shape>[0-9,]*)(?:;(?P<stride>[0-9,]*))?\](?P<cuda>@cuda)?"
    r"\{(?P<values>unit|positive|signed|-?[0-9]{1,20}\.\.-?[0-9]{1,20})\}"
)


class TensorSpec(Struct, frozen=True):
    """A tensor argument, up to its values.

    Attributes:
        dtype: torch's name, without the prefix.
        shape: sizes.
        stride: strides in elements.
        device: kind of device.
        values: domain of floats, or inclusive bounds of integers and booleans.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    device: Literal["cpu", "cuda"]
    values: Domain | tuple[int, int]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements of storage that the strides reach."""
        if self.elements == 0:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    def text(self) -> str:
        """The word this tensor travels as."""
        inner = ",".join(map(str, self.shape))
        if self.stride != contiguous(self.shape):
            inner += ";" + ",".join(map(str, self.stride))
        values = self.values if isinstance(self.values, str) else f"{self.values[0]}..{self.values[1]}"
        return f"{self.dtype}[{inner}]{'@cuda' if self.device == 'cuda' else ''}{{{values}}}"


class OperationSpec(Struct, frozen=True):
    """One operator with one set of arguments, up to the tensors' values.

    Attributes:
        operator: `aten.<name>.<overload>`.
        arguments: positional arguments.
        keywords: keyword arguments.
    """

    operator: Annotated[str, msgspec.Meta(pattern=r"\Aaten\.[a-z_][a-z0-9_]{0,79}\.[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
    arguments: Annotated[tuple[Argument, ...], msgspec.Meta(max_length=64)]
    keywords: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern=r"\A[a-z_][a-z0-9_]{0,63}\Z")], Argument], msgspec.Meta(max_length=64)
    ]

    def signature(self) -> str:
        """The operation on one short line: operator and tensors, long lists shortened."""
        shown = (_shown(argument) for argument in (*self.arguments, *self.keywords.values()))
        return f"{self.operator}({', '.join(text for text in shown if text)})"


class ProbedOperation(Struct, frozen=True):
    """An operation and the SHA-256 of what it gave on the seeded inputs."""

    spec: OperationSpec
    digest: Hex32


class Unprobed(Struct, frozen=True):
    """An operation that the run used and the probe could not stand for, with the reason."""

    operation: Word
    reason: Word


class OperationProbe(Struct, frozen=True):
    """The operations of one step, in the order of their first use.

    Attributes:
        operations: what was probed.
        unprobed: what was not, by name; nothing is left out silently.
    """

    operations: Annotated[tuple[ProbedOperation, ...], msgspec.Meta(max_length=MAX_OPERATIONS)] = ()
    unprobed: Annotated[tuple[Unprobed, ...], msgspec.Meta(max_length=MAX_OPERATIONS)] = ()

    @property
    def specs(self) -> tuple[OperationSpec, ...]:
        """The operations without their digests."""
        return tuple(probed.spec for probed in self.operations)


class OperationDifference(Struct, frozen=True):
    """One operation that does not give the recorded bits here.

    Attributes:
        operation: its signature.
        recorded: the recorded digest.
        here: the digest here; None when it could not be run.
        reason: one line for people.
    """

    operation: str
    recorded: Hex32
    here: Hex32 | None
    reason: str


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor: row-major, where an empty dimension counts as one element."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def parse_tensor(word: str) -> TensorSpec | None:
    """The tensor a word stands for; None when it is a tagged string.

    Raises:
        ProtocolError: `operation-refused`, for a word that is neither, or not written as `TensorSpec.text` would.
    """
    match = _TENSOR.fullmatch(word)
    if match is None:
        _check_tagged(word)
        return None
    shape = _numbers(match["shape"])
    stride = contiguous(shape) if match["stride"] is None else _numbers(match["stride"])
    if len(shape) > MAX_DIMENSIONS or len(stride) != len(shape):
        raise ProtocolError("operation-refused", f"{word[:80]!r} has {len(shape)} sizes and {len(stride)} strides")
    values: Domain | tuple[int, int]
    if ".." in match["values"]:
        low, high = (int(bound) for bound in match["values"].split(".."))
        if not -(2**63) <= low <= high < 2**63:
            raise ProtocolError("operation-refused", f"{word[:80]!r} has no value between its bounds")
        values = low, high
    else:
        values = next(domain for domain in DOMAINS if domain == match["values"])
    spec = TensorSpec(match["dtype"], shape, stride, "cuda" if match["cuda"] else "cpu", values)
    if spec.text() != word:
        raise ProtocolError("operation-refused", f"{word[:80]!r} is not how this tensor is written")
    return spec


def tensors(spec: OperationSpec) -> Iterator[TensorSpec]:
    """Every tensor among the arguments, in order.

    Raises:
        ProtocolError: `operation-refused`.
    """
    for word in _words(spec):
        tensor = parse_tensor(word)
        if tensor is not None:
            yield tensor


def operation_differences(recorded: OperationProbe, here: OperationProbe) -> list[OperationDifference]:
    """The recorded operations that do not give the recorded bits here, in recorded order.

    Args:
        recorded: from the manifest.
        here: the same specs, run on this machine.
    """
    digests = {encode(probed.spec): probed.digest for probed in here.operations}
    reasons = {unprobed.operation: unprobed.reason for unprobed in here.unprobed}
    found = []
    for probed in recorded.operations:
        digest = digests.get(encode(probed.spec))
        if digest == probed.digest:
            continue
        name = probed.spec.signature()
        why = "other bits here" if digest else f"not run here: {reasons.get(name[:512], 'missing from the probe')}"
        found.append(OperationDifference(name, probed.digest, digest, why))
    return found


def first_difference(recorded: OperationProbe, here: OperationProbe) -> OperationDifference | None:
    """The first recorded operation that does not give the recorded bits here, or None."""
    return next(iter(operation_differences(recorded, here)), None)


def uncovered(probe: OperationProbe, specs: Iterable[OperationSpec]) -> list[OperationSpec]:
    """Operations that a step used and that the probe does not stand for.

    A later step may use an operation that the recorded step did not (a last, shorter batch; clipping that became
    active). Values do not select kernels, with one exception: exponents, orders of norms and factors of products have
    special cases (`pow` of 2, a norm of order 1). So domains, bounds and floats are ignored here, but for those
    operators multiples of 1/2 up to 4, infinities and NaN are not.

    Args:
        probe: from the manifest.
        specs: what another step used.
    """
    known = {encode(_kernel(spec)) for spec in probe.specs}
    return [spec for spec in specs if encode(_kernel(spec)) not in known]


_SPECIAL_SCALARS = re.compile(r"pow|norm|dist|addmm|addmv|addbmm")
_ORDINARY = f64(0.1)  # stands for every float that no kernel treats specially


def _kernel(spec: OperationSpec) -> OperationSpec:
    """The spec without what cannot select a kernel."""

    def blank(word: str) -> str:
        if word.startswith("f64:"):
            value = parse_float(word)
            special = _SPECIAL_SCALARS.search(spec.operator) is not None and (
                not math.isfinite(value) or (abs(value) <= 4 and (2 * value).is_integer())
            )
            return word if special else _ORDINARY
        tensor = parse_tensor(word)
        return word if tensor is None else msgspec.structs.replace(tensor, values="signed").text()

    return map_words(spec, blank)


def map_words(spec: OperationSpec, change: Callable[[str], str]) -> OperationSpec:
    """The spec with every string among its arguments changed."""

    def one(argument: Argument) -> Argument:
        if isinstance(argument, tuple):
            return tuple(change(atom) if isinstance(atom, str) else atom for atom in argument)
        return change(argument) if isinstance(argument, str) else argument

    return OperationSpec(
        spec.operator, tuple(one(a) for a in spec.arguments), {name: one(a) for name, a in spec.keywords.items()}
    )


def _words(spec: OperationSpec) -> Iterator[str]:
    for argument in (*spec.arguments, *spec.keywords.values()):
        for atom in argument if isinstance(argument, tuple) else (argument,):
            if isinstance(atom, str):
                yield atom


def _shown(argument: Argument) -> str:
    """Tensors of an argument without their domains; nothing for other arguments."""
    atoms = argument if isinstance(argument, tuple) else (argument,)
    found = [tensor.text().partition("{")[0] for tensor in map(_tensor, atoms) if tensor is not None]
    if len(found) > 3:
        return f"{len(found)} tensors {found[0]} ... {found[-1]}"
    return ", ".join(found)


def _tensor(atom: Atom) -> TensorSpec | None:
    return parse_tensor(atom) if isinstance(atom, str) else None


def _numbers(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    parts = text.split(",")
    if any(not 1 <= len(part) <= 15 for part in parts):
        raise ProtocolError("operation-refused", f"{text[:80]!r} is not a list of sizes")
    return tuple(int(part) for part in parts)


_TAGGED = re.compile(
    r"f64:[0-9a-f]{16}|int:-?[0-9]{16,20}|device:(cpu|cuda)|generator:(cpu|cuda)|layout:strided|(dtype|memory|text):[a-z0-9_]{1,32}"
)


def _check_tagged(word: str) -> None:
    if not _TAGGED.fullmatch(word):
        raise ProtocolError("operation-refused", f"{word[:80]!r} is neither a tensor nor a tagged value")
