"""A text file, or a folder of text files: one document a file, streamed, so that it may be larger than memory.

A folder is walked recursively; its files are sorted by their relative paths as bytes, so that the order is the same on
every machine and under every locale. Files and folders whose names begin with a dot are skipped. A symbolic link
inside the folder is refused, not followed and not skipped: following one can leave the folder or never end, and
skipping one drops data that the user sees there. Only the path that the user names may itself be a link.

No encoding is required: a token is a byte.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import UsageError
from witness.data.files import DataFile, Layout, readable
from witness.data.options import DataOptions
from witness.data.reader import Chunk, InPlace, whole


class TextReader(InPlace):
    """Files as they are, one document each."""

    def __init__(self, options: DataOptions) -> None:
        options.require_only_for_texts("format")

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The file."""
        return whole(file, opened, 0, file.stamp.length)

    def layout(self, file: DataFile) -> Layout:
        """All of it is one document."""
        return Layout(0, file.stamp.length, 1)


def resolve(path: str | Path) -> Path:
    """The absolute path of existing data, links followed.

    Raises:
        UsageError: `corpus-missing`.
    """
    try:
        return Path(path).resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links; ValueError: a null character
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(
            "corpus-missing",
            f"cannot open {readable(str(path))[:300]}: {why}",
            evidence={"path": readable(str(path))[:300]},
            next_action="check the path: nothing that can be opened lies there",
        ) from None


def folder_files(root: Path, names: tuple[bytes, ...]) -> list[DataFile]:
    """The files of a folder."""
    base = os.fsencode(root) + b"/"
    return [DataFile(base + name) for name in names]


def text_files(root: Path) -> list[bytes]:
    """The relative paths of the documents of a folder, in order, with `/`."""
    base = os.fsencode(root)
    found: list[bytes] = []
    folders = [b""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(base, folder)))  # noqa: PTH118 - Path cannot hold bytes
        except OSError as error:
            raise UsageError(
                "corpus-missing", f"cannot list {readable(base + b'/' + folder)}: {error.strerror}"
            ) from None
        for entry in entries:
            if entry.name.startswith(b"."):
                continue
            name = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                folders.append(name + b"/")
            elif entry.is_file(follow_symlinks=False):
                found.append(name)
            else:
                raise _refused(base + b"/" + name, entry)
    return sorted(found)


def _refused(path: bytes, entry: os.DirEntry[bytes]) -> UsageError:
    link = entry.is_symlink() or stat.S_ISLNK(entry.stat(follow_symlinks=False).st_mode)
    return UsageError(
        "corpus-data",
        f"{readable(path)} is {'a symbolic link' if link else 'neither a file nor a folder'}",
        evidence={"path": readable(path)},
        next_action="put the file itself into the folder, or take the link out"
        if link
        else "take it out of the folder",
    )
