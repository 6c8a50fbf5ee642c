"""From a path to the files of a corpus and the reader of their format.

The format is the suffix of the name that was given, or of the name that it leads to: caches link names to digests. A
folder holds shards of one format, read in the order of their paths as bytes, or else texts; where it holds a mixture, a
person has to say what is meant. A text may have any name in a folder, but as a single file it has one of a few
suffixes: a `.csv` or `.pdf` that is committed as one text is more often a mistake than meant.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple, get_args

from protocol.errors import UsageError
from witness.data.arrays import ArrayReader
from witness.data.columns import ParquetReader
from witness.data.compressed import SUFFIXES as COMPRESSED
from witness.data.compressed import compression
from witness.data.corpus import Kind, Location
from witness.data.dataset import DatasetReader, is_dataset, open_folder
from witness.data.files import DataFile, readable
from witness.data.lines import LineReader
from witness.data.options import DataOptions, Format
from witness.data.reader import Reader
from witness.data.tensors import TensorReader
from witness.data.text import TextReader, folder_files, resolve, text_files
from witness.data.tokenizer import TokenizedReader
from witness.data.tokens import TokenReader

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".bin": "tokens",
    ".npy": "npy",
    ".safetensors": "safetensors",
}
TEXTS = ("", ".txt", ".text", ".md", ".rst", ".tex", ".html", ".xml")
ACCEPTED = (
    "a text file (.txt, .text, .md, .rst, .tex, .html, .xml, or without a suffix), JSON lines (.jsonl, .ndjson, also "
    "with .gz or .zst), .parquet, a token file (.bin), .npy, .safetensors, a folder of texts or of shards in one of "
    "these formats, a dataset saved with save_to_disk, or a folder made by `witness data commit`"
)


class Source(NamedTuple):
    """Data that was found.

    Attributes:
        name: what to call it.
        files: in the order of their documents.
        reader: of their format.
        location: where a later process finds documents that stay where they are; None where they have to be made.
    """

    name: str
    files: list[DataFile]
    reader: Reader
    location: Location | None

    @property
    def size(self) -> int:
        """Length of the files, in bytes."""
        return sum(file.stamp.length for file in self.files)


def find(data: str | Path, options: DataOptions) -> Source:
    """Finds the files of a corpus.

    Raises:
        UsageError: `corpus-missing`, `corpus-data`, `data-format`, `data-option`, `data-file`, `extra-missing`.
    """
    named = Path(data)
    path = resolve(named)
    if options.format is not None and options.format not in get_args(Format):
        raise UsageError("data-format", f"there is no format {options.format!r}", next_action=_choices())
    if path.is_dir():
        return _folder(path, options)
    found = options.format or _format_of_link(named, path)
    if found is None or found == "dataset":
        raise UsageError(
            "data-format",
            f"{readable(str(named))}: no format has the suffix {path.suffix!r}; accepted is {ACCEPTED}"
            if found is None
            else f"{readable(str(named))} is a file; a saved dataset is a folder",
            evidence={"path": readable(str(path))},
            next_action="to commit to the file as it is, as one document, name the format text",
        )
    return _source(path, (), [DataFile(str(path))], found, options)


def _folder(path: Path, options: DataOptions) -> Source:
    if options.format == "dataset" or (options.format is None and is_dataset(path)):
        folder = open_folder(path, options.split)
        return Source(readable(path.name), [folder], _tokenized(DatasetReader(options), options), None)
    names = tuple(text_files(path))
    found = options.format or _format_of_all(path, names)
    if options.format not in (None, "text"):
        names = tuple(name for name in names if _may_be(Path(os.fsdecode(name)), found))
        if not names:
            raise UsageError("data-format", f"{readable(str(path))} holds no file of the format {found}")
    return _source(path, names, folder_files(path, names), found, options)


def _source(path: Path, names: tuple[bytes, ...], files: list[DataFile], found: Format, options: DataOptions) -> Source:
    """The source whose files are known; `names` is empty for a single file."""
    reader: Reader
    kind: Kind | None = None
    part = None
    if found == "text" or not files:
        reader, kind = TextReader(options), "text-folder" if names or not files else "text-file"
    elif found == "npy":
        reader, kind = ArrayReader(options), "npy"
    elif found == "safetensors":
        reader, kind, part = TensorReader(options), "safetensors", options.tensor
    elif found == "tokens":
        reader = tokens = TokenReader(options, files[0])
        kind, part = "tokens", "header" if tokens.header else "bare"
    elif found == "jsonl":
        reader = lines = LineReader(options)
        if not any(compression(file) for file in files):
            kind, part = "jsonl", lines.field
    else:
        reader = ParquetReader(options)
    if options.tokenizer is not None:
        reader, kind = TokenizedReader(reader, options), None
    location = None if kind is None else Location(kind, str(path), names, part)
    return Source(readable(path.name), files, reader, location)


def _tokenized(reader: Reader, options: DataOptions) -> Reader:
    return reader if options.tokenizer is None else TokenizedReader(reader, options)


def _format(path: Path) -> Format | None:
    """What a name says."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        return "jsonl" if SUFFIXES.get("".join(suffixes[-2:-1])) == "jsonl" else None
    suffix = suffixes[-1] if suffixes else ""
    return SUFFIXES.get(suffix) or ("text" if suffix in TEXTS else None)


def _format_of_link(named: Path, path: Path) -> Format | None:
    """What the name that was given says, or the one that it leads to; either may say less than the other."""
    given, led = _format(named), _format(path)
    return led if given in (None, "text") and led not in (None, "text") else given or led


def _may_be(path: Path, named: Format) -> bool:
    """Whether a file is meant where a person named a format; `.json` may be JSON lines, but only then."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSED]
    return _format(path) == named or (named == "jsonl" and suffixes[-1:] == [".json"])


def _format_of_all(path: Path, names: tuple[bytes, ...]) -> Format:
    formats = [_format(Path(os.fsdecode(name))) for name in names]
    counts = {found: formats.count(found) for found in set(formats) if found not in (None, "text")}
    if not counts:
        return "text"
    if len(counts) > 1 or sum(counts.values()) < len(names):
        listed = ", ".join(f"{count} {found}" for found, count in sorted(counts.items(), key=str))
        others = len(names) - sum(counts.values())
        raise UsageError(
            "data-format",
            f"{readable(str(path))} holds files of several kinds: {listed}" + (f", {others} others" if others else ""),
            evidence={"path": readable(str(path))},
            next_action="name the format: text takes every file as it is, any other takes the files of its suffix",
        )
    return next(found for found in counts if found is not None)


def _choices() -> str:
    return f"name one of {', '.join(get_args(Format))}"
