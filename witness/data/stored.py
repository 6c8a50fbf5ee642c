"""How a run keeps its corpus: the leaves, and either a copy of the data or the way to it.

`leaves` is what the root is made of, 96 bytes a document. `corpus.json` holds the claim of the manifest and says where
the data is: in `data`, all documents one after another, or at a path. `names` lists the files of a folder in the order
of their documents, each ended by a null byte; `lines` says where each document's line is (`witness.data.lines`).
`corpus.json` is written last, so that a folder with one is complete.

A stranger's run may hold anything here. Nothing read is believed: leaves must have the claimed root, lengths must be
those of the leaves, links are not followed, names cannot leave their folder, and an opened piece is checked against
its leaf.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from protocol.corpus import LEAF_BYTES, MAX_DOCUMENTS, CorpusClaim, Documents, describe, parse_leaves
from protocol.encoding import Struct, decode, encode
from protocol.errors import ProtocolError, UsageError
from witness.data.arrays import ArrayReader
from witness.data.corpus import Corpus, Kind, Location
from witness.data.files import DataFile, FileCorpus, Layout, readable
from witness.data.lines import PLACE, LineCorpus
from witness.data.options import DataOptions
from witness.data.tensors import TensorReader
from witness.data.text import folder_files, resolve
from witness.data.tokens import TokenReader
from witness.statefile import atomic_write, disk_error, naming, write_bytes

COPY_LIMIT = 64 << 20
MAX_INDEX = 1 << 20
MAX_NAMES = 1 << 30
INDEX, LEAVES, DATA, NAMES, LINES = "corpus.json", "leaves", "data", "names", "lines"


class StoredCorpus(Struct, frozen=True, omit_defaults=True):
    """The content of `corpus.json`.

    Attributes:
        claim: what the manifest says of the corpus.
        kind: `copy`, or how the data at `path` is read: `documents` is a file that holds nothing else.
        path: absolute; null for a copy.
        folder: `path` is a folder with the files of `names`; a text-folder always is.
        part: of each file or record that holds the documents.
    """

    claim: CorpusClaim
    kind: Literal["copy"] | Kind
    path: str | None
    folder: bool = False
    part: str | None = None


def store(corpus: Corpus, folder: Path, *, copy_limit: int = COPY_LIMIT) -> None:
    """Writes what a run needs to find its corpus again.

    Args:
        corpus: as committed.
        folder: of the corpus within the run; made if need be.
        copy_limit: documents of up to this many bytes in all are copied, and so are those that are nowhere else; the
            path is kept otherwise.

    Raises:
        UsageError: `disk`, `disk-full`; `corpus-data`, for a path that JSON cannot hold.
        VerificationError: `corpus-changed`, when the data changed since it was committed.
    """
    location = corpus.location
    if corpus.documents.size <= copy_limit:
        location = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from None
    if location is None:
        if not (isinstance(corpus, FileCorpus) and _is_data_of(corpus, folder)):
            atomic_write(folder / DATA, lambda temporary: _copy(corpus, temporary))
        index = StoredCorpus(corpus.claim(), "copy", None)
    else:
        folded = location.kind != "text-folder" and bool(location.names)
        index = StoredCorpus(corpus.claim(), location.kind, _json_path(location.path), folded, location.part)
        if location.names or location.kind == "text-folder":
            write_bytes(folder / NAMES, b"".join(name + b"\0" for name in location.names))
        if isinstance(corpus, LineCorpus):
            write_bytes(folder / LINES, corpus.places.tobytes())
    write_bytes(folder / LEAVES, corpus.documents.leaves.to_bytes())
    write_bytes(folder / INDEX, encode(index))


def open_stored(folder: Path, data: Path | None = None) -> Corpus:
    """Opens the corpus of a run.

    The lengths of all files are compared with the leaves now, their bytes when a piece is opened; `Corpus.check` reads
    everything.

    Args:
        folder: of the corpus within the run.
        data: where the data is now, if it was moved; not needed, and not used, where the run keeps a copy.

    Raises:
        ProtocolError: `corpus-file`, `corpus-leaves`, `not-canonical`, `too-large`: a file of the run is damaged.
        VerificationError: `corpus-root`, when the leaves are not the claimed ones; `corpus-changed`, when the data's
        length is not. UsageError: `corpus-missing`, when the data is not there.
    """
    with naming(folder / INDEX):
        index = decode(_read(folder / INDEX, MAX_INDEX), StoredCorpus, limit=MAX_INDEX)
    with naming(folder / LEAVES):
        leaves = parse_leaves(_read(folder / LEAVES, LEAF_BYTES * MAX_DOCUMENTS))
    with naming(folder / LEAVES, folder / INDEX):
        documents = Documents(leaves, index.claim.packing, index.claim.tokenizer)
        documents.check(index.claim)
    source = index.claim.source
    if index.kind == "copy":
        return FileCorpus(documents, source, [_own_file(folder / DATA)], offset=0)
    if index.path is None or not index.path.startswith("/") or "\0" in index.path:
        raise ProtocolError("corpus-file", f"{folder / INDEX} does not say where the data is")
    path = resolve(index.path if data is None else data)
    if index.kind == "documents" and path.is_dir():  # the folder of a commit was moved
        path /= DATA
    folded = index.folder or index.kind == "text-folder"
    location = Location(index.kind, str(path), _names(folder / NAMES) if folded else (), index.part)
    files = folder_files(path, location.names) if folded else [DataFile(str(path))]
    if index.kind == "jsonl":
        return LineCorpus(documents, source, files, _places(folder / LINES), location)
    layouts = [Layout(0, file.stamp.length, 1) for file in files]
    if index.kind == "documents":
        layouts = [Layout(0, file.stamp.length) for file in files]
    elif files and (index.kind in ("npy", "safetensors", "tokens")):
        layouts = _layouts(location, index.claim.tokenizer, files)
    return FileCorpus(documents, source, files, layouts=layouts, location=location)


def open_committed(folder: Path) -> Corpus:
    """Opens a corpus that `witness data commit` left in a folder, as data for a run: the run refers to the folder.

    Raises:
        What `open_stored` raises.
    """
    corpus = open_stored(folder)
    if corpus.location is None:
        corpus.location = Location("documents", str(resolve(folder / DATA)))
    return corpus


def is_committed(folder: Path) -> bool:
    """Whether a folder looks like one that a corpus was stored in."""
    return (folder / INDEX).is_file() and (folder / LEAVES).is_file()


def _layouts(location: Location, tokenizer: str, files: list[DataFile]) -> list[Layout]:
    """What the headers of arrays and token files say."""
    if location.kind == "tokens":
        options = DataOptions(tokens=tokenizer, header=location.part == "header")  # type: ignore[arg-type] # is compared
        tokens = TokenReader(options, files[0])
        return [tokens.layout(file)._replace(documents=None) for file in files]
    options = DataOptions(tokens=tokenizer, tensor=location.part)  # type: ignore[arg-type] # is compared
    if location.kind == "safetensors":
        return [TensorReader(options).layout(file) for file in files]
    return [ArrayReader(DataOptions(tokens=options.tokens)).layout(file) for file in files]


def _is_data_of(corpus: FileCorpus, folder: Path) -> bool:
    """Whether the documents lie where a copy of them would be put."""
    return len(corpus.files) == 1 and corpus.files[0].path == os.fsencode(folder.resolve() / DATA)


def _places(path: Path) -> np.ndarray:
    data = _read(path, PLACE.itemsize * MAX_DOCUMENTS)
    if len(data) % PLACE.itemsize:
        raise ProtocolError("corpus-file", f"{path} is cut short")
    return np.frombuffer(data, PLACE)


def _copy(corpus: Corpus, path: Path) -> None:
    with path.open("wb") as file:

        def written(document: int) -> Iterator[bytes]:
            for chunk in corpus.chunks(document):
                file.write(chunk)
                yield chunk

        for leaf in corpus.documents.leaves:
            if describe(leaf.index, leaf.token_start, written(leaf.index), corpus.documents.width) != leaf:
                raise corpus.changed(leaf.index)


def _read(path: Path, limit: int) -> bytes:
    """A small file of the run, read no further than its cap."""
    file = _own_file(path)
    if file.stamp.length > limit:
        raise ProtocolError("too-large", f"{path.name} is {file.stamp.length} bytes where at most {limit} are allowed")
    return file.read(0, file.stamp.length)[0]


def _own_file(path: Path) -> DataFile:
    """A file that belongs to the run: when it is missing, the run is damaged."""
    try:
        return DataFile(str(path))
    except UsageError as error:
        raise ProtocolError("corpus-file", f"the run's corpus is damaged: {error}", evidence=error.evidence) from None


def _names(path: Path) -> tuple[bytes, ...]:
    listed = _read(path, MAX_NAMES)
    *names, rest = listed.split(b"\0")
    if rest or any(part in (b"", b".", b"..") for name in names for part in name.split(b"/")):
        raise ProtocolError("corpus-file", f"{path} is not a list of relative paths, each ended by a null byte")
    return tuple(names)


def _json_path(path: str) -> str:
    if readable(path) != path:
        raise UsageError(
            "corpus-data",
            f"{readable(path)}: a path that is not UTF-8 cannot be kept",
            next_action="rename the file or folder",
        )
    return path
