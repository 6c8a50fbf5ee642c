"""Text of unknown origin on its way to a terminal or a page.

A run's texts - file names, program arguments, notes, the name of the data - are whatever its
trainer wrote. Control characters would command a terminal, direction overrides would show one thing
and mean another; both become a question mark here.
"""

from __future__ import annotations

LIMIT = 400


def printable(value: object, limit: int = LIMIT) -> str:
    """`value` as one line of characters that only show themselves.

    Args:
        value: anything with a text form.
        limit: characters to keep; a longer text ends in `...`.
    """
    text = str(value)
    shown = "".join(character if character.isprintable() else "?" for character in text[:limit])
    return shown if len(text) <= limit else shown + "..."
