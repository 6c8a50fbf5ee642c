"""Data on its way into a run: whatever the caller has becomes one `Corpus`. Imports no torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from protocol.corpus import Packing
from protocol.errors import UsageError
from witness.data.commitment import commit_folder, commit_here
from witness.data.corpus import Corpus, Progress, require_samples
from witness.data.embedded import embedded_rows, embedded_text
from witness.data.memory import from_array, from_list
from witness.data.options import DataOptions
from witness.data.stored import is_committed, open_committed, open_stored, store
from witness.data.text import resolve

__all__ = [
    "Corpus",
    "DataOptions",
    "Progress",
    "commit_folder",
    "embedded_rows",
    "embedded_text",
    "open_corpus",
    "open_stored",
    "store",
]


def open_corpus(
    data: Any,
    packing: Packing,
    progress: Progress | None = None,
    options: DataOptions | None = None,
    **named: Any,
) -> Corpus:
    """Commits to data.

    Args:
        data: a `Corpus`; a path, of a file or folder in one of the formats that `witness.data.source` lists, or of a
            folder made by `commit_folder`; a list of bytes or text; or an array, one document a row.
        packing: how samples are cut.
        progress: called with bytes done and bytes in all while the data is hashed.
        options: what is known of data at a path.
        named: options by name, instead: `field="body"`.

    Raises:
        UsageError: `corpus-data`, `corpus-missing`, `data-format`, `data-option`, `data-file`, `data-expands`,
            `extra-missing`, `disk-full`; `empty-corpus` where there is not one sample to draw.
        VerificationError: `corpus-changed`, when the data changes meanwhile, or is not what was committed before.
    """
    return require_samples(_open(data, packing, progress, options or DataOptions(**named)))


def _open(data: Any, packing: Packing, progress: Progress | None, options: DataOptions) -> Corpus:
    if isinstance(data, str | os.PathLike):
        path = Path(os.fsdecode(data))
        if options.format is None and is_committed(resolve(path)):
            options.require_only()
            corpus = open_committed(path)
            corpus.check(progress)  # a run that is recorded from altered data could never be replayed
            return corpus.with_packing(packing)
        return commit_here(path, packing, options, progress)
    options.require_only()
    if isinstance(data, Corpus):
        return data if data.documents.packing == packing else data.with_packing(packing)
    if isinstance(data, list | tuple):
        return from_list(data, packing, progress)
    if isinstance(data, np.ndarray):
        return from_array(data, packing, progress)
    raise UsageError(
        "corpus-data",
        f"a {type(data).__name__} is no corpus, and none can be made of it; a Corpus, a path, a list of bytes or text, "
        "or a numpy array will do",
    )
