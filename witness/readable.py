"""Plain forms - hyperparameters, program arguments - as numbers and texts that people and JSON can read.

`protocol.plain` loses nothing and is therefore hard on the eye: a float is its bits, a tuple is an
object. Here a float is a number again, and what JSON cannot say (NaN, infinities, bytes) is a short
text. There is no way back; nothing is verified.
"""

from __future__ import annotations

import math
from typing import Any

from protocol.errors import ProtocolError
from protocol.plain import MAX_DEPTH, from_plain
from witness.printable import printable

_SEQUENCES = ("tuple", "set")


def number(value: float) -> float | str:
    """A float for JSON: itself, or `"nan"`, `"inf"`, `"-inf"`."""
    return value if math.isfinite(value) else repr(value)


def readable(form: Any, depth: int = 0) -> Any:
    """A plain form as JSON values that are easy to read.

    Tuples and sets become arrays, bytes their hexadecimal digits after `0x`, a dataclass an object of its fields under
    its name. What is no plain form stays as it is.
    """
    if depth > MAX_DEPTH:
        return "..."
    if isinstance(form, list):
        return [readable(item, depth + 1) for item in form]
    if isinstance(form, dict):
        return _readable_object(form, depth)
    if not isinstance(form, str):
        return form
    value = _scalar(form)
    if isinstance(value, float):
        return number(value)
    return "0x" + value.hex() if isinstance(value, bytes) else value


def _readable_object(form: dict[str, Any], depth: int) -> Any:
    tag, body = next(iter(form.items()), ("", None))
    if len(form) == 1 and tag in _SEQUENCES and isinstance(body, list):
        return [readable(item, depth + 1) for item in body]
    pairs = _pairs(form)
    if pairs is not None:
        items = [(readable(key, depth + 1), readable(value, depth + 1)) for key, value in pairs]
        named = all(isinstance(key, str) for key, _ in items) and len({key for key, _ in items}) == len(items)
        return dict(items) if named else [list(item) for item in items]
    made = _dataclass(form)
    if made is not None:
        return {made[0]: readable(made[1], depth + 1)}
    return {tag: readable(item, depth + 1) for tag, item in form.items()}


def call_text(name: str, arguments: Any) -> str:
    """How a program was made, as one would write it: `GPT(GPTConfig(layers=2, width=64))`.

    Args:
        name: of the class.
        arguments: plain form of `[positional, keyword]`, as in the manifest.
    """
    positional, keyword = split_arguments(arguments)
    parts = [text(item) for item in positional]
    parts += [f"{printable(text(key)[1:-1])}={text(value)}" for key, value in keyword]
    return f"{printable(name)}({', '.join(parts)})"


def split_arguments(arguments: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """The plain forms of positional arguments, and of keyword arguments with their names."""
    if isinstance(arguments, list) and len(arguments) == 2 and isinstance(arguments[0], list):
        pairs = _pairs(arguments[1])
        if pairs is not None:
            return arguments[0], pairs
    return [arguments], []


def text(form: Any, depth: int = 0) -> str:
    """A plain form as Python would show it; strings in quotes, and without characters that do not show themselves."""
    if depth > MAX_DEPTH:
        return "..."
    if isinstance(form, list):
        return f"[{', '.join(text(item, depth + 1) for item in form)}]"
    if isinstance(form, dict):
        tag, body = next(iter(form.items()), ("", None))
        if len(form) == 1 and tag in _SEQUENCES and isinstance(body, list):
            inner = ", ".join(text(item, depth + 1) for item in body)
            left, right = ("(", ")") if tag == "tuple" else ("{", "}")
            return f"{left}{inner}{',' if tag == 'tuple' and len(body) == 1 else ''}{right}"
        pairs = _pairs(form)
        if pairs is not None:
            return "{" + ", ".join(f"{text(key, depth + 1)}: {text(value, depth + 1)}" for key, value in pairs) + "}"
        made = _dataclass(form)
        if made is not None:
            fields = [f"{text(key, depth + 1)[1:-1]}={text(value, depth + 1)}" for key, value in _pairs(made[1]) or []]
            return f"{printable(made[0])}({', '.join(fields)})"
        return printable(form)
    if not isinstance(form, str):
        return printable(form)
    value = _scalar(form)
    return f"'{printable(value)}'" if isinstance(value, str) else printable(value)


def _scalar(form: str) -> Any:
    try:
        return from_plain(form)
    except ProtocolError:
        return form


def _pairs(form: Any) -> list[tuple[Any, Any]] | None:
    body = form.get("dict") if isinstance(form, dict) and len(form) == 1 else None
    if isinstance(body, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in body):
        return [(pair[0], pair[1]) for pair in body]
    return None


def _dataclass(form: dict[str, Any]) -> tuple[str, Any] | None:
    body = form.get("dataclass") if len(form) == 1 else None
    if isinstance(body, list) and len(body) == 2 and isinstance(body[0], str) and _pairs(body[1]) is not None:
        return str(_scalar(body[0])), body[1]
    return None
