"""How a run keeps its corpus: the leaves, and either a copy of the data or the way to it.

`leaves` is what the root is made of, 96 bytes a document. `corpus.json` holds the claim of the manifest and says where
the data is: in `data`, all documents one after another, or at a path. `names` lists the documents of a folder, each
ended by a null byte. `corpus.json` is written last, so that a folder with one is complete.

A stranger's run may hold anything here. Nothing read is believed: leaves must have the claimed root, lengths must be
those of the leaves, links are not followed, names cannot leave their folder, and an opened piece is checked against
its leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from protocol.corpus import LEAF_BYTES, MAX_DOCUMENTS, CorpusClaim, Documents, describe, parse_leaves
from protocol.encoding import Struct, decode, encode
from protocol.errors import ProtocolError, UsageError, VerificationError
from witness.data.arrays import read_layout
from witness.data.corpus import Corpus
from witness.data.files import DataFile, FileCorpus, Location, readable
from witness.data.text import folder_files, resolve
from witness.statefile import atomic_write, disk_error, write_bytes

COPY_LIMIT = 64 << 20
MAX_INDEX = 1 << 20
MAX_NAMES = 1 << 30
INDEX, LEAVES, DATA, NAMES = "corpus.json", "leaves", "data", "names"


class StoredCorpus(Struct, frozen=True):
    """The content of `corpus.json`.

    Attributes:
        claim: what the manifest says of the corpus.
        kind: `copy`, or which adapter reads the data at `path`.
        path: absolute; null for a copy.
    """

    claim: CorpusClaim
    kind: Literal["copy", "text-file", "text-folder", "npy"]
    path: str | None = None


def store(corpus: Corpus, folder: Path, *, copy_limit: int = COPY_LIMIT) -> None:
    """Writes what a run needs to find its corpus again.

    Args:
        corpus: as committed.
        folder: of the corpus within the run; made if need be.
        copy_limit: data of up to this many bytes is copied, and so is data that is nowhere but in memory; the path is
            kept otherwise.

    Raises:
        UsageError: `disk`, `disk-full`; `corpus-data`, for a path that JSON cannot hold.
        VerificationError: `corpus-changed`, when the data changed since it was committed.
    """
    location = corpus.location
    if corpus.documents.tokens <= copy_limit:
        location = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_error(folder, error) from None
    if location is None:
        atomic_write(folder / DATA, lambda temporary: _copy(corpus, temporary))
        index = StoredCorpus(corpus.claim(), "copy")
    else:
        index = StoredCorpus(corpus.claim(), location.kind, _json_path(location.path))
        if location.kind == "text-folder":
            write_bytes(folder / NAMES, b"".join(name + b"\0" for name in location.names))
    write_bytes(folder / LEAVES, b"".join(leaf.to_bytes() for leaf in corpus.documents.leaves))
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
    index = decode(_read(folder / INDEX, MAX_INDEX), StoredCorpus, limit=MAX_INDEX)
    documents = Documents(parse_leaves(_read(folder / LEAVES, LEAF_BYTES * MAX_DOCUMENTS)), index.claim.packing)
    documents.check(index.claim)
    source = index.claim.source
    if index.kind == "copy":
        return FileCorpus(documents, source, [_own_file(folder / DATA)], offset=0)
    if index.path is None or not index.path.startswith("/") or "\0" in index.path:
        raise ProtocolError("corpus-file", f"{folder / INDEX} does not say where the data is")
    path = resolve(index.path if data is None else data)
    location = Location(index.kind, str(path), _names(folder / NAMES) if index.kind == "text-folder" else ())
    if index.kind == "text-folder":
        return FileCorpus(documents, source, folder_files(path, location.names), location=location)
    file = DataFile(str(path))
    if index.kind == "text-file":
        return FileCorpus(documents, source, [file], location=location)
    layout = read_layout(file)
    if [leaf.length for leaf in documents.leaves] != [layout.row_bytes] * layout.rows:
        raise VerificationError(
            "corpus-changed",
            f"{file} is not what was committed: {layout.rows} rows of {layout.row_bytes} bytes",
            evidence={"path": str(file)},
        )
    return FileCorpus(documents, source, [file], offset=layout.offset, location=location)


def _copy(corpus: Corpus, path: Path) -> None:
    with path.open("wb") as file:

        def written(document: int) -> Iterator[bytes]:
            for chunk in corpus.chunks(document):
                file.write(chunk)
                yield chunk

        for leaf in corpus.documents.leaves:
            if describe(leaf.index, leaf.token_start, written(leaf.index)) != leaf:
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
