"""Laying out a committed program's files where the sandbox can read them, and nothing else beside them."""

from collections.abc import Mapping
from pathlib import Path

from protocol.errors import ProtocolError
from protocol.manifest import ProgramClaim, check_source


def lay_out(claim: ProgramClaim, files: Mapping[str, bytes], folder: Path) -> Path:
    """Writes the committed files into an empty folder, each checked against the manifest.

    Raises:
        ProtocolError: `program-source`.
    """
    for listed in claim.files:
        if listed.path not in files:
            raise ProtocolError("program-source", f"{listed.path} is missing")
        check_source(claim, listed.path, files[listed.path])
        path = folder / listed.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[listed.path])
    return folder
