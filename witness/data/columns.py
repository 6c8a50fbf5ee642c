"""Columns of tables, from parquet files and saved datasets: one document a row.

Arrow decodes in its own memory, a few rows at a time. What comes out is checked row by row, because a file of unknown
origin may hold what its schema excludes: text that is not UTF-8, and values that are not there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from protocol.errors import UsageError
from witness.data.files import DataFile
from witness.data.options import MAX_RECORD, Allowance, DataOptions, damaged, extra_missing
from witness.data.reader import Chunk, Reader

DEFAULT_COLUMN = "text"
BATCH_ROWS = 64
"""Rows decoded at a time: more would cost memory where rows are long, and gain nothing where they are short."""
_BUFFER = 1 << 20
_TEXT = ("string", "large_string", "string_view")
_BYTES = ("binary", "large_binary", "binary_view")


class ParquetReader(Reader):
    """The documents of parquet files.

    Args:
        options: `column`.
    """

    def __init__(self, options: DataOptions) -> None:
        options.require_only_for_texts("format", "column")
        self.column = DEFAULT_COLUMN if options.column is None else options.column
        try:
            import pyarrow
            import pyarrow.parquet  # noqa: F401
        except ModuleNotFoundError as error:
            raise extra_missing(error) from None

    def chunks(self, file: DataFile, opened: int) -> Iterator[Chunk]:
        """The documents; row groups are read a page at a time, however large they are."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        # Whatever is wrong with a file comes as one of these; OSError is also what Arrow calls damaged data.
        failures = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
        with os.fdopen(os.dup(opened), "rb") as stream:
            stream.seek(0)
            try:
                table = pq.ParquetFile(stream, pre_buffer=False, buffer_size=_BUFFER)
                schema, rows = table.schema_arrow, table.metadata.num_rows
            except failures as error:
                raise damaged(file, f"not a parquet file, or damaged ({_line(error)})") from None
            text = require_column(file, schema, self.column)
            batches = table.iter_batches(batch_size=BATCH_ROWS, columns=[self.column], use_threads=False)
            yield from documents(file, _guarded(file, batches, failures), self.column, text, rows)


def require_column(path: object, schema: Any, column: str) -> bool:
    """Whether a column holds text (else it holds bytes).

    Raises:
        UsageError: `data-option`, when there is no such column, or it holds neither.
    """
    names = list(schema.names)
    if names.count(column) != 1:
        listed = ", ".join(repr(name) for name in names[:8]) + (", ..." if len(names) > 8 else "")
        raise UsageError(
            "data-option",
            f"{path} has no column {column!r}" if column not in names else f"{path} has two columns {column!r}",
            evidence={"columns": listed},
            next_action="name one of its columns",
        )
    kind = schema.field(column).type
    kind = str(getattr(kind, "value_type", kind) if str(kind).startswith("dictionary") else kind)
    if kind not in (*_TEXT, *_BYTES):
        raise UsageError("data-option", f"{path}: the column {column!r} holds {kind[:60]}, neither text nor bytes")
    return kind in _TEXT


def documents(path: DataFile, batches: Iterable[Any], column: str, text: bool, rows: int) -> Iterator[Chunk]:
    """The documents in record batches.

    Args:
        path: where they come from; its length is shared out over the rows, to show progress.
        batches: of a table that has the column.
        column: name.
        text: whether it must be UTF-8.
        rows: how many there should be.
    """
    allowance = Allowance(path, path.stamp.length)
    row = 0
    for batch in batches:
        for value in _values(batch.column(column)):
            if value is None or len(value) > MAX_RECORD:
                why = "has no value" if value is None else f"is longer than {MAX_RECORD} bytes"
                raise damaged(path, f"row {row} of column {column!r} {why}", row=row)
            if text:
                try:
                    value.decode()
                except UnicodeDecodeError as error:
                    raise damaged(
                        path, f"row {row} of column {column!r} is not UTF-8: {error.reason}", row=row
                    ) from None
            allowance.take(len(value))
            row += 1
            share = path.stamp.length * row // max(rows, row) - path.stamp.length * (row - 1) // max(rows, row)
            yield Chunk(value, True, share)
    if row != rows:
        raise damaged(path, f"{row} rows where {rows} were announced")


def _values(column: Any) -> Iterator[bytes | None]:
    import pyarrow as pa

    for part in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        plain = part.dictionary_decode() if isinstance(part, pa.DictionaryArray) else part
        yield from plain.cast(pa.large_binary()).to_pylist()


def _guarded(path: DataFile, batches: Iterator[Any], failures: tuple[type[BaseException], ...]) -> Iterator[Any]:
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except failures as error:
            raise damaged(path, f"damaged ({_line(error)})") from None
        yield batch


def _line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
