"""The vocabulary of `witness.arithmetic.elementary.elements` read as numbers, and the binding of definitions to it."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from witness.arithmetic import compiled
from witness.arithmetic.elementary import elements

try:
    import numba
except ImportError:  # nothing is compiled then, and nothing here is called
    numba = None

_scalars: dict[Any, Any] = {}


def _compile(function: Callable[..., Any]) -> Any:
    if not compiled.on():
        return function
    return numba.njit(nogil=True, fastmath=False, error_model="numpy", boundscheck=False)(function)


def _word(function: Callable[..., Any]) -> Any:
    """Enters the scalar reading of the vocabulary's word of the same name."""
    _scalars[getattr(elements, function.__name__)] = word = _compile(function)
    return word


def scalar(definition: Callable[..., Any]) -> Any:
    """The same text with every name, all the way down, bound to its scalar reading; compiled when a kernel uses it.

    Args:
        definition: a function written in the vocabulary of `witness.arithmetic.elementary.elements`.
    """
    if definition not in _scalars:
        code, names = definition.__code__, definition.__globals__
        bound = {name: names[name] for name in code.co_names if name in names}
        for name, value in bound.items():
            if isinstance(value, FunctionType):
                bound[name] = scalar(value)
        text = FunctionType(code, bound, definition.__name__, definition.__defaults__)
        text.__module__ = definition.__module__
        _scalars[definition] = _compile(text)
    return _scalars[definition]


@_word
def where(condition, x, y):  # type: ignore[no-untyped-def]
    """`x` where the condition holds, else `y`."""
    return x if condition else y


@_word
def wide(x):  # type: ignore[no-untyped-def]
    """To float64."""
    return np.float64(x)


@_word
def narrow(x):  # type: ignore[no-untyped-def]
    """To the nearest float32."""
    return np.float32(x)


@_word
def bits32(x):  # type: ignore[no-untyped-def]
    """The pattern of a float32."""
    return np.float32(x).view(np.int32)


@_word
def bits64(x):  # type: ignore[no-untyped-def]
    """The pattern of a float64."""
    return np.float64(x).view(np.int64)


@_word
def number32(i):  # type: ignore[no-untyped-def]
    """The float32 that has these bits."""
    return np.int32(i).view(np.float32)


@_word
def number64(i):  # type: ignore[no-untyped-def]
    """The float64 that has these bits."""
    return np.int64(i).view(np.float64)


@_word
def integer(i):  # type: ignore[no-untyped-def]
    """To int64."""
    return np.int64(i)


@_word
def real(i):  # type: ignore[no-untyped-def]
    """The float64 nearest to an int64."""
    return np.float64(i)


@_word
def magnitude(x):  # type: ignore[no-untyped-def]
    """Without the sign."""
    return abs(x)


@_word
def with_sign(x, y):  # type: ignore[no-untyped-def]
    """The magnitude of `x` with the sign of `y`."""
    return np.copysign(x, y)


@_word
def floor(x):  # type: ignore[no-untyped-def]
    """The largest whole number not above `x`."""
    return np.floor(x)


@_word
def root(x):  # type: ignore[no-untyped-def]
    """The square root."""
    return np.sqrt(x)


@_word
def over(numerator, x):  # type: ignore[no-untyped-def]
    """The quotient."""
    return numerator / x


@_word
def polynomial(x, coefficients):  # type: ignore[no-untyped-def]
    """Horner's rule; the loop is unrolled, since the tuple has a length."""
    value = x * coefficients[-1]
    for i in range(len(coefficients) - 2, 0, -1):
        value = (value + coefficients[i]) * x
    return value + coefficients[0]


@_word
def lookup(table, index):  # type: ignore[no-untyped-def]
    """`table[index]`."""
    return table[index]
