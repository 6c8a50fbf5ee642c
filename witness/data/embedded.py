"""The data every Python carries: half a megabyte of English, its own language reference (`pydoc_data.topics`).

So a demonstration needs no download. The text differs between Python versions; the corpus root says which one was
used, and a verifier gets the bytes from the trainer in any case.
"""

import platform

import numpy as np

from protocol.corpus import Packing
from protocol.errors import UsageError
from witness.data.corpus import Progress
from witness.data.memory import MemoryCorpus, from_array

CONTEXT, STRIDE = 16, 24
"""Bytes of context in a row of `embedded_rows`, and bytes from one row to the next."""


def topics() -> list[bytes]:
    """The texts, in the order of the topics' names.

    Raises:
        UsageError: `corpus-missing`, on a Python that was built without its documentation.
    """
    try:
        from pydoc_data.topics import topics as texts
    except ImportError:
        raise UsageError(
            "corpus-missing", "this Python has no pydoc_data.topics", next_action="name a text file with --data"
        ) from None
    return [texts[name].encode() for name in sorted(texts)]


def embedded_text(packing: Packing, progress: Progress | None = None) -> MemoryCorpus:
    """The text, one document a topic."""
    return MemoryCorpus(topics(), packing, f"pydoc_data.topics of Python {platform.python_version()}", progress)


def embedded_rows(packing: Packing, progress: Progress | None = None) -> MemoryCorpus:
    """The text as a small array, uint8 of shape `(rows, CONTEXT + 1)`: bytes of text, and as the class the next one."""
    text = np.frombuffer(b"".join(topics()), dtype=np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)[::STRIDE]
    return from_array(
        rows, packing, progress, source=f"rows of pydoc_data.topics of Python {platform.python_version()}"
    )
