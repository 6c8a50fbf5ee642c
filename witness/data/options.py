"""What a person says about data whose files do not say it, and the caps that hold whatever the files say."""

from typing import Literal

from protocol.encoding import Struct
from protocol.errors import UsageError

Format = Literal["text", "jsonl", "parquet", "dataset", "tokens", "npy", "safetensors"]
MAX_RECORD = 64 << 20
"""Bytes of one record that has to be held in memory whole: a line, a cell of a column, a text that is tokenised."""
FREE_EXPANSION, MAX_EXPANSION = 256 << 20, 256
"""A file may expand to the first, and beyond it to so many times its own length (English text reaches 5 to 10)."""


class DataOptions(Struct, frozen=True):
    """What is known of data besides its path; None leaves it to the data.

    An option that the format has no use for is refused: to ignore it could commit to other documents than were meant.

    Attributes:
        format: of the files; None: by their suffix. `text` takes every file as it is, one document each.
        field: of each line that holds the document (JSONL); None: `text`.
        column: of the table that holds the documents (parquet, datasets); None: `text`.
        split: of a saved dataset that has several.
        tensor: whose rows are the documents (safetensors); None: the only one.
        tokens: what a token is, in arrays (None: `bytes`) and in token files (None: as the header says, or `uint16`).
        delimiter: token that parts documents in a token file (50256 for GPT-2); None: each file is one document. Where
            text is tokenised it is put to each document.
        delimiter_at: whether a document begins or ends with it; None: `start` in token files with a header (as
            modded-nanogpt and llm.c write them) and for tokenised text, `end` in those without (as nanoGPT does).
        header: whether token files have one; None: looks.
        tokenizer: path of a tokenizer's file (tokenizers: `.json`, tiktoken: `.tiktoken`), to turn text into tokens.
        pattern: encoding whose rule splits text before tiktoken's merges; its files do not say.
    """

    format: Format | None = None
    field: str | None = None
    column: str | None = None
    split: str | None = None
    tensor: str | None = None
    tokens: Literal["bytes", "uint16", "uint32"] | None = None
    delimiter: int | None = None
    delimiter_at: Literal["start", "end"] | None = None
    header: bool | None = None
    tokenizer: str | None = None
    pattern: Literal["r50k_base", "cl100k_base", "o200k_base"] | None = None

    def require_only_for_texts(self, *used: str) -> None:
        """`require_only`, where what is used and the options of a tokenizer are meant."""
        self.require_only(*used, "tokenizer", *(("pattern", "delimiter", "delimiter_at") if self.tokenizer else ()))

    def require_only(self, *used: str) -> None:
        """Raises `UsageError` (`data-option`) for an option that is set and not among the `used`."""
        for name in self.__struct_fields__:
            if name not in used and getattr(self, name) is not None:
                raise UsageError(
                    "data-option",
                    f"the option {name} means nothing here; this data has {', '.join(used) or 'no options'}",
                    evidence={"option": name},
                )


def extra_missing(error: ModuleNotFoundError, package: str = "training-witness[data]") -> UsageError:
    """What to raise where a library that a format needs is missing (`extra-missing`)."""
    return UsageError(
        "extra-missing",
        f"this data needs {error.name}; install it with: pip install '{package}'",
        evidence={"missing": error.name},
    )


def damaged(path: object, why: str, **evidence: object) -> UsageError:
    """The error for a file that is cut short, altered, or not of its format (`data-file`)."""
    return UsageError("data-file", f"{path}: {why}", evidence={"path": str(path), **evidence})


class Allowance:
    """How far one file may expand: a small file that would fill the disk is refused while that is cheap.

    Args:
        path: of the file, for messages.
        length: of the file, in bytes.
    """

    def __init__(self, path: object, length: int) -> None:
        self._path, self._length = path, length
        self._left = max(FREE_EXPANSION, MAX_EXPANSION * length)

    def take(self, size: int) -> None:
        """Counts bytes that came out of the file.

        Raises:
            UsageError: `data-expands`.
        """
        self._left -= size
        if self._left < 0:
            raise UsageError(
                "data-expands",
                f"{self._path} holds {self._length} bytes and expands to more than {MAX_EXPANSION} times as many",
                evidence={"path": str(self._path), "length": self._length},
            )
