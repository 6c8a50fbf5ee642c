"""Plain data, bit for bit: the scalars of a training state and the arguments of a program as canonical JSON.

JSON alone cannot say what a training state says: tuples are not lists, `1` is not `1.0`, and a float must keep its
bits. So every value maps to a tagged form and back without loss: floats become their bits, strings carry a prefix so
that no string can be mistaken for one of the tags.

| value | form |
| --- | --- |
| None, True, False, an integer below 2**53 | itself |
| a larger integer | `"i:<decimal>"` |
| a float | `"f64:<16 hex digits>"` |
| text, bytes | `"s:<text>"`, `"b:<hex>"` |
| a list | an array of forms |
| a tuple, a set | `{"tuple": [...]}`, `{"set": [...]}` (sorted by encoding) |
| a dict | `{"dict": [[key, value], ...]}` in insertion order |
| anything else | `{"<tag>": form}` through the caller's hooks |

Specified in spec/encoding.md, section 4.
"""

from collections.abc import Callable
from typing import Any

from protocol.encoding import MAX_INTEGER, encode, f64, parse_float
from protocol.errors import ProtocolError, UsageError

MAX_DEPTH = 64
NAN = "f64:7ff8000000000000"
"""The one pattern of NaN under an exact arithmetic."""


def to_plain(
    value: Any, hook: Callable[[Any], tuple[str, Any]] | None = None, *, path: str = "value", depth: int = 0
) -> Any:
    """The tagged form of a Python value.

    Args:
        value: plain data.
        hook: maps any other value to `(tag, plain value)`.
        path: how errors name the value.
        depth: nesting so far.

    Raises:
        UsageError: `unencodable`, naming the part that is not plain data.
    """
    if depth > MAX_DEPTH:
        raise UsageError("unencodable", f"{path} is nested more than {MAX_DEPTH} deep (does it contain itself?)")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if abs(value) <= MAX_INTEGER else f"i:{value}"
    if kind is float:
        return f64(value)
    if kind is str:
        return "s:" + value
    if kind is bytes:
        return "b:" + value.hex()

    def inner(item: Any, place: object) -> Any:
        return to_plain(item, hook, path=f"{path}[{place!r}]", depth=depth + 1)

    if kind is list:
        return [inner(item, i) for i, item in enumerate(value)]
    if kind is tuple:
        return {"tuple": [inner(item, i) for i, item in enumerate(value)]}
    if kind in (set, frozenset):
        return {"set": sorted((inner(item, item) for item in value), key=encode)}
    if kind is dict:
        return {"dict": [[inner(key, key), inner(item, key)] for key, item in value.items()]}
    if hook is None:
        raise UsageError("unencodable", f"{path} is a {kind.__module__}.{kind.__qualname__}, which is not plain data")
    tag, form = hook(value)
    return {tag: inner(form, tag)}


def settled(form: Any) -> Any:
    """A form in which every NaN has one pattern: which bits a computed NaN has depends on the machine.

    Args:
        form: what `to_plain` makes.
    """
    if isinstance(form, str):
        return NAN if form.startswith("f64:") and parse_float(form) != parse_float(form) else form
    if isinstance(form, list):
        return [settled(item) for item in form]
    if isinstance(form, dict):
        return {tag: settled(body) for tag, body in form.items()}
    return form


def from_plain(form: Any, hook: Callable[[str, Any], Any] | None = None, *, depth: int = 0) -> Any:
    """The Python value of a tagged form that may come from the other side.

    Args:
        form: decoded JSON.
        hook: maps `(tag, plain value)` back to a value, for tags other than ours.
        depth: nesting so far.

    Raises:
        ProtocolError: `not-canonical`, for anything that `to_plain` would not have written.
    """
    if depth > MAX_DEPTH:
        raise ProtocolError("not-canonical", f"nested more than {MAX_DEPTH} deep")
    if form is None or isinstance(form, bool):
        return form
    if isinstance(form, int):
        return form
    if isinstance(form, str):
        return _scalar(form)
    if isinstance(form, list):
        return [from_plain(item, hook, depth=depth + 1) for item in form]
    if isinstance(form, dict) and len(form) == 1:
        ((tag, body),) = form.items()
        if tag in ("tuple", "set", "dict") and isinstance(body, list):
            if tag == "dict":
                if not all(isinstance(pair, list) and len(pair) == 2 for pair in body):
                    raise ProtocolError("not-canonical", "a dict is a list of pairs")
                return _hashable(
                    dict,
                    [[from_plain(k, hook, depth=depth + 1), from_plain(v, hook, depth=depth + 1)] for k, v in body],
                )
            items = [from_plain(item, hook, depth=depth + 1) for item in body]
            return tuple(items) if tag == "tuple" else _hashable(set, items)
        if hook is not None:
            return hook(tag, from_plain(body, hook, depth=depth + 1))
    raise ProtocolError("not-canonical", f"{str(form)[:80]!r} is not the form of plain data")


def _hashable(kind: Callable[[list[Any]], Any], items: list[Any]) -> Any:
    try:
        return kind(items)
    except TypeError:
        raise ProtocolError("not-canonical", "a key or set element is not hashable") from None


def _scalar(form: str) -> Any:
    tag, _, body = form.partition(":")
    if tag == "s":
        return body
    if tag == "f64":
        return parse_float(form)
    try:
        if tag == "i" and len(body) <= 1024 and str(int(body)) == body and abs(int(body)) > MAX_INTEGER:
            return int(body)
        if tag == "b" and bytes.fromhex(body).hex() == body:
            return bytes.fromhex(body)
    except ValueError:
        pass
    raise ProtocolError("not-canonical", f"{form[:80]!r} is not the form of plain data")
