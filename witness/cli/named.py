"""What a person names on a command line, told apart from what a stranger sent: a slip of the hand accuses nobody.

A file that is an artefact and damaged is malformed, and its reader says so. A file that is something else altogether,
or a key that is none, is a mistake of whoever typed the command. Needs neither torch nor numpy.
"""

from __future__ import annotations

import json
from pathlib import Path

from protocol.errors import ProtocolError, UsageError
from protocol.keys import PublicKey, parse_vkey


def vkey(text: str) -> PublicKey:
    """The public key that was given.

    Raises:
        UsageError: `not-a-key`.
    """
    try:
        return parse_vkey(text)
    except ProtocolError as error:
        raise UsageError("not-a-key", f"{text[:80]!r} is not a public key: {error}") from None


def require_kind(path: Path, data: bytes, kind: str, field: str) -> bytes:
    """The bytes of a file, if it can be meant as this kind; whether they are well-formed is for their reader to say.

    Args:
        path: of the file.
        data: what it holds.
        kind: what the command takes, with its article.
        field: that every such JSON object has. What starts like an object and is cut short may be one.

    Raises:
        UsageError: `file-kind`.
    """
    meant = data.lstrip(b" \t\r\n").startswith(b"{")
    if meant:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return data
        meant = field in found
    if not meant:
        raise UsageError("file-kind", f"{path} is not {kind}", next_action=f"name {kind} instead")
    return data
