"""Data on its way into a run: whatever the caller has becomes one `Corpus`. Imports no torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from protocol.corpus import Packing
from protocol.errors import UsageError
from witness.data.arrays import open_array
from witness.data.corpus import Corpus, Progress, require_samples
from witness.data.embedded import embedded_rows, embedded_text
from witness.data.memory import from_array, from_list
from witness.data.stored import open_stored, store
from witness.data.text import open_text, resolve

__all__ = ["Corpus", "Progress", "embedded_rows", "embedded_text", "open_corpus", "open_stored", "store"]


def open_corpus(data: Any, packing: Packing, progress: Progress | None = None) -> Corpus:
    """Commits to data.

    Args:
        data: a `Corpus`; the path of a text file, of a folder of text files or of a `.npy` array; a list of bytes or
            text; or an array, one document a row.
        packing: how samples are cut.
        progress: called with bytes done and bytes in all while the data is hashed.

    Raises:
        UsageError: `corpus-data`, `corpus-missing`, or `empty-corpus` where there is not one sample to draw.
        VerificationError: `corpus-changed`, when the data changes meanwhile.
    """
    return require_samples(_open(data, packing, progress))


def _open(data: Any, packing: Packing, progress: Progress | None) -> Corpus:
    if isinstance(data, Corpus):
        return data if data.documents.packing == packing else data.with_packing(packing)
    if isinstance(data, str | os.PathLike):
        named = Path(os.fsdecode(data))
        path = resolve(named)
        # Caches link names to digests, so the name that was given counts as much as the one it leads to.
        if ".npy" in (named.suffix.lower(), path.suffix.lower()) and path.is_file():
            return open_array(path, packing, progress)
        return open_text(path, packing, progress)
    if isinstance(data, list | tuple):
        return from_list(data, packing, progress)
    if isinstance(data, np.ndarray):
        return from_array(data, packing, progress)
    raise UsageError(
        "corpus-data",
        f"a {type(data).__name__} is no corpus, and none can be made of it; a Corpus, the path of a text file, of a "
        "folder of text files or of a .npy file, a list of bytes or text, or a numpy array will do",
    )
