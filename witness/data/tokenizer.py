"""Text to tokens, with a tokenizer that is one file: of the `tokenizers` library, or of tiktoken.

The tokens are made once, when the corpus is committed, and the documents are their bytes. The claim names the file's
digest, so that whoever has text and tokenizer can make them again; nobody needs to in order to verify a run. No special
token is added, and none is recognised in a text that spells one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from protocol.corpus import token_bytes
from protocol.errors import UsageError
from witness.data.files import DataFile
from witness.data.options import MAX_RECORD, DataOptions, damaged, extra_missing
from witness.data.reader import Chunk, Reader

MAX_FILE = 256 << 20
_LETTERS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
    r"\s+(?!\S)|\s"
)
_O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PATTERNS = {"r50k_base": _LETTERS, "cl100k_base": _CL100K, "o200k_base": _O200K}
"""How text is split before merging: tiktoken's rules, by the encoding that brought each (GPT-2's is r50k_base's)."""


class TokenizedReader(Reader):
    """The documents of a format of texts, as tokens.

    Args:
        texts: finds the texts.
        options: `tokenizer`, `pattern`, `delimiter`, `delimiter_at`.
    """

    def __init__(self, texts: Reader, options: DataOptions) -> None:
        if options.tokenizer is None:
            raise UsageError("data-option", "name the tokenizer's file")
        if options.delimiter is None and options.delimiter_at is not None:
            raise UsageError("data-option", "delimiter_at needs a delimiter")
        self._texts = texts
        self.tokenizer, self._encode = open_tokenizer(options.tokenizer, options.pattern)
        self._dtype = np.dtype(f"<u{token_bytes(self.tokenizer)}")
        self._before = self._after = b""
        if options.delimiter is not None:
            if not 0 <= options.delimiter < 256**self._dtype.itemsize:
                raise UsageError("data-option", f"no {self.tokenizer.partition(':')[0]} token is {options.delimiter}")
            mark = self._dtype.type(options.delimiter).tobytes()
            if options.delimiter_at == "end":
                self._after = mark
            else:
                self._before = mark

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The documents, each in one chunk."""
        parts: list[bytes] = []
        read = held = number = 0
        for chunk in self._texts.chunks(file, opened):
            parts.append(chunk.data)
            read += chunk.read
            held += len(chunk.data)
            if held > MAX_RECORD:
                raise damaged(
                    file, f"document {number} has more than {MAX_RECORD} bytes; a text is tokenised in one go"
                )
            if not chunk.last:
                continue
            try:
                tokens = np.array(self._encode(b"".join(parts).decode()), dtype=np.int64).astype(self._dtype)
            except UnicodeDecodeError as error:
                raise damaged(file, f"document {number} is not UTF-8: {error.reason}") from None
            yield Chunk(b"".join((self._before, tokens.tobytes(), self._after)), True, read)
            parts, read, held, number = [], 0, 0, number + 1


def open_tokenizer(path: str, pattern: str | None) -> tuple[str, Callable[[str], list[int]]]:
    """A tokenizer's name, as a claim spells it, and its function from text to token numbers.

    Raises:
        UsageError: `data-file`, `data-option`, `extra-missing`.
    """
    file = DataFile(str(Path(path).resolve()))
    if file.stamp.length > MAX_FILE:
        raise damaged(file, f"a tokenizer of more than {MAX_FILE} bytes")
    data = file.read(0, file.stamp.length)[0]
    digest = hashlib.sha256(data).hexdigest()
    if path.lower().endswith(".tiktoken"):
        if pattern is None:
            raise UsageError("data-option", f"{file} does not say how text is split: name the pattern")
        top, encode = _tiktoken(file, data, pattern)
        return f"{_tokens(file, top)}:tiktoken-{pattern}:{digest}", encode
    if pattern is not None:
        raise UsageError("data-option", "a pattern belongs to a .tiktoken file")
    top, encode = _tokenizers(file, data)
    return f"{_tokens(file, top)}:tokenizers:{digest}", encode


def _tokens(file: DataFile, top: int) -> str:
    if not 0 <= top < 1 << 32:
        raise damaged(file, f"a token number {top}")
    return "uint16" if top < 1 << 16 else "uint32"


def _tokenizers(file: DataFile, data: bytes) -> tuple[int, Callable[[str], list[int]]]:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise extra_missing(error, "training-witness[tokenizers]") from None
    try:
        model = json.loads(data)["model"]
        tokenizer: Any = Tokenizer.from_str(data.decode())
    except Exception as error:  # noqa: BLE001 - the library raises plain Exception
        raise damaged(file, f"not a file of the tokenizers library ({str(error)[:200]})") from None
    if model.get("dropout"):
        raise UsageError("data-option", f"{file} has dropout, so that one text has many tokenizations")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # as ordinary text
    numbers = tokenizer.get_vocab(with_added_tokens=True).values()
    return max(numbers, default=0), lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _tiktoken(file: DataFile, data: bytes, pattern: str) -> tuple[int, Callable[[str], list[int]]]:
    try:
        import tiktoken
    except ModuleNotFoundError as error:
        raise extra_missing(error, "training-witness[tokenizers]") from None
    ranks: dict[bytes, int] = {}
    try:
        for line in data.split(b"\n"):
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except (ValueError, binascii.Error):
        raise damaged(file, "not a tiktoken file: each line is a token in base64 and its rank") from None
    # The library crashes on what it cannot encode, so it has to be able to encode everything.
    if any(bytes([value]) not in ranks for value in range(256)) or len(set(ranks.values())) != len(ranks):
        raise damaged(file, "a tiktoken file ranks every single byte, and no rank stands twice")
    _tokens(file, min(ranks.values()))
    _tokens(file, max(ranks.values()))
    encoding = tiktoken.Encoding("file", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
    return max(ranks.values()), encoding.encode_ordinary
