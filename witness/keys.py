"""Key files: a private key lies in a file that only its owner can read."""

import os
import secrets
from pathlib import Path

from protocol.errors import ProtocolError, UsageError
from protocol.keys import SigningKey, parse_signing_key
from witness.statefile import disk_error


def generate(name: str) -> SigningKey:
    """A fresh Ed25519 key from the operating system's randomness."""
    return SigningKey(name, secrets.token_bytes(32))


def write_key(path: Path, key: SigningKey) -> None:
    """Writes a private key, mode 0600, and never over an existing file.

    Raises:
        UsageError: `key-exists`, `disk`, `disk-full`.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError("key-exists", f"{path} exists; a private key is never overwritten") from None
    except OSError as error:
        raise disk_error(path, error) from None
    try:
        with os.fdopen(handle, "w") as file:
            file.write(key.secret_text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)  # half a key would stand in the way of the next try
        raise disk_error(path, error) from None


def read_key(path: Path) -> SigningKey:
    """Reads a private key file.

    Raises:
        UsageError: `key-missing`.
        ProtocolError: `key-malformed`, `weak-key`.
    """
    try:
        text = path.read_bytes()[:4096].decode("ascii", "replace")
    except OSError as error:
        raise UsageError("key-missing", f"cannot read the key {path}: {error.strerror}") from None
    return parse_signing_key(text.removesuffix("\n"))


def named_key(path: Path) -> SigningKey:
    """Reads a private key file that a person named as their own: another file there is a slip, and accuses nobody.

    Raises:
        UsageError: `key-missing`, `not-a-key`.
    """
    try:
        return read_key(path)
    except ProtocolError as error:
        raise UsageError("not-a-key", f"{path} holds no private key: {error}") from None
