"""A Hugging Face dataset as `save_to_disk` leaves it: a folder of Arrow files, read with the `datasets` library.

That library maps the files into memory, which is why the documents are taken out of it once and never read there again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import UsageError
from witness.data.columns import BATCH_ROWS, DEFAULT_COLUMN, documents, require_column
from witness.data.files import DataFile, Stamp
from witness.data.options import DataOptions, damaged, extra_missing
from witness.data.reader import Chunk, Reader

_ONE, _SEVERAL = "state.json", "dataset_dict.json"


class DatasetFolder(DataFile):
    """A saved dataset, stamped by the sizes and times of all its files."""

    __slots__ = ()

    @contextmanager
    def opened(self) -> Iterator[int]:
        """No descriptor: the library opens the files."""
        yield -1

    def look(self, file: int) -> Stamp:
        """The sum of all lengths, and the latest modification."""
        del file
        length = modified = 0
        try:
            for entry in os.scandir(self.path):
                if entry.is_file() and not entry.name.startswith(b"."):
                    found = entry.stat()
                    length, modified = length + found.st_size, max(modified, found.st_mtime_ns)
        except OSError as error:
            raise UsageError("corpus-missing", f"cannot read {self}: {error.strerror}") from None
        return Stamp(length, modified)


class DatasetReader(Reader):
    """The documents of a saved dataset.

    Args:
        options: `column`.
    """

    def __init__(self, options: DataOptions) -> None:
        options.require_only_for_texts("format", "column", "split")
        self.column = DEFAULT_COLUMN if options.column is None else options.column

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The documents."""
        del opened
        try:
            from datasets import load_from_disk
        except ModuleNotFoundError as error:
            raise extra_missing(error, "datasets") from None
        try:
            table = load_from_disk(os.fsdecode(file.path), keep_in_memory=False)
        except Exception as error:  # noqa: BLE001 - the library lets through whatever its parts raise
            raise damaged(
                file, f"not a saved dataset, or damaged ({type(error).__name__}: {str(error)[:200]})"
            ) from None
        text = require_column(file, table.data.schema, self.column)
        batches = table.select_columns([self.column]).with_format("arrow").iter(batch_size=BATCH_ROWS)
        yield from documents(file, batches, self.column, text, len(table))


def is_dataset(path: Path) -> bool:
    """Whether a folder is a saved dataset, or several splits of one."""
    return (path / _SEVERAL).is_file() or ((path / _ONE).is_file() and (path / "dataset_info.json").is_file())


def open_folder(path: Path, split: str | None) -> DatasetFolder:
    """The folder of one split.

    Raises:
        UsageError: `data-option`, when a split must be named, or does not exist.
    """
    splits = sorted(p.name for p in path.iterdir() if (p / _ONE).is_file()) if (path / _SEVERAL).is_file() else []
    if (split is None and not splits) or split in splits:
        return DatasetFolder(str(path if split is None else path / split))
    raise UsageError(
        "data-option",
        f"{path} has no split {split!r}" if split is not None else f"{path} has {len(splits)} splits",
        evidence={"splits": ", ".join(splits[:8])},
        next_action="name one of its splits",
    )
