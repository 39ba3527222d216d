"""The rows of a log of files as Arrow batches.

To find the first row of a range, what is before it is read again as little as can be: a text from
the beginning of the piece, other files from where the last range of the process ended.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from client.spark.files_formats import COMPRESSED, PIECE_BYTES, count_options, open_text
from client.spark.files_index import Piece
from client.spark.files_json import parse_json
from client.spark.files_kept import KeptFiles
from client.spark.files_lines import Lines, lines_of, strings_of, without_returns
from client.spark.files_options import FilesOptions
from client.spark.log import LogError

BATCH_ROWS_MAX: Final = 16_384
# A column's bytes that are read at once; else all of a row group's would be held.
_PARQUET_BUFFER: Final = 2**18


def read_piece(
    options: FilesOptions, schema: pa.Schema, folder: Path, piece: Piece, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows ``start <= offset < end`` of a piece.

    Raises:
        LogError: the file isn't what it was, or holds what the columns don't fit.

    """
    path = folder / piece.file
    low, high = max(start - piece.base, 0), min(end, piece.end) - piece.base
    read: Callable[..., Iterator[pa.RecordBatch]] = {
        "lines": _read_lines,
        "json": _read_json,
        "parquet": _read_parquet,
        "arrow": _read_arrow,
    }[options.format]
    try:
        for batch in read(options, schema, path, piece, low, high):
            yield _fitted(batch, schema, path)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise LogError(
            f"{path}: the rows from {start} to {min(end, piece.end)} can't be read: {error}"
        ) from error


# --- Texts -----------------------------------------------------------------------------------


class _CompressedText:
    """A compressed text, from which pieces are read one after the other."""

    done = False  # It doesn't know where it ends.

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stream: Any = open_text(path, 0)
        self._at = 0
        self._piece: tuple[int, int] | None = None
        self._lines = lines_of(b"")

    def lines(self, piece: Piece) -> Lines:
        """Return all lines of a piece."""
        span = piece.at, piece.to
        if span != self._piece:
            self._piece, self._lines = None, lines_of(b"")
            if piece.at < self._at:
                self._stream.close()
                self._stream, self._at = open_text(self._path, 0), 0
            while self._at < piece.at:
                self._read(min(piece.at - self._at, PIECE_BYTES))
            self._lines = lines_of(self._read(piece.to - piece.at))
            self._piece = span
        return self._lines

    def _read(self, length: int) -> bytes:
        data = _whole(self._path, self._stream.read(length), length)
        self._at += length
        return data

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _whole(path: Path, data: bytes, length: int) -> bytes:
    if len(data) < length:
        raise LogError(f"{path} is shorter than it was: files of a log may only grow")
    return data


def _lines(path: Path, piece: Piece, low: int, high: int) -> Lines:
    if path.suffix in COMPRESSED:
        with _texts.use(path, "", lambda: _CompressedText(path)) as text:
            lines = text.lines(piece)
    else:
        with path.open("rb") as file:
            file.seek(piece.at)
            lines = lines_of(_whole(path, file.read(piece.to - piece.at), piece.to - piece.at))
    if len(lines) != piece.end - piece.base:
        raise LogError(f"{path} holds other lines than it did: files of a log may only grow")
    return without_returns(lines.part(low, high))


def _read_lines(
    _: FilesOptions, schema: pa.Schema, path: Path, piece: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    lines = _lines(path, piece, low, high)
    for at in range(0, len(lines), BATCH_ROWS_MAX):
        column = strings_of(lines.part(at, min(at + BATCH_ROWS_MAX, len(lines))))
        yield pa.RecordBatch.from_arrays([column], schema=schema)


def _read_json(
    options: FilesOptions, schema: pa.Schema, path: Path, piece: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    def bad(number: int, error: pa.ArrowInvalid) -> None:
        if not options.bad_rows_are_null:
            raise LogError(
                f"{path}: the line with offset {piece.base + low + number} doesn't fit "
                f"'log.schema': {error}. Set option 'log.badRows' to 'null' to have a row without "
                "values instead"
            ) from error

    table = parse_json(_lines(path, piece, low, high), schema, bad)
    yield from table.to_batches(max_chunksize=BATCH_ROWS_MAX)


# --- Files with a footer ---------------------------------------------------------------------


class _ParquetRows:
    """The rows of a Parquet file; to go on is cheap, to go back means to begin a row group anew."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._file = pq.ParquetFile(path, buffer_size=_PARQUET_BUFFER)
        self._names = [name for name in names if name in self._file.schema_arrow.names]
        self._starts = [0]
        for group in range(self._file.num_row_groups):
            rows = self._file.metadata.row_group(group).num_rows
            self._starts.append(self._starts[-1] + rows)
        self._batches: Iterator[pa.RecordBatch] = iter(())
        # The batch that was read last, and the row after it.
        self._batch: pa.RecordBatch | None = None
        self._end = 0
        self.done = False

    def read(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows ``low <= row < high``."""
        _check_rows(self._starts[-1], high)
        self._seek(low)
        while True:
            if self._batch is not None:
                yield from _cut(self._batch, self._end - self._batch.num_rows, low, high)
            if self._end >= high:
                break
            self._batch = next(self._batches, None)
            if self._batch is None:
                raise EOFError(f"its rows end at {self._end}, before its footer says so")
            self._end += self._batch.num_rows
        self.done = high == self._starts[-1]

    def _seek(self, low: int) -> None:
        """Begin a row group, unless to go on from here is less to read."""
        group = bisect_right(self._starts, low) - 1
        if self._batch is not None:
            behind = low < self._end - self._batch.num_rows
            if not behind and self._starts[group] <= self._end:
                return
        self._batches = self._file.iter_batches(
            BATCH_ROWS_MAX,
            row_groups=list(range(group, self._file.num_row_groups)),
            columns=self._names,
            use_threads=False,  # Other tasks have the other cores.
        )
        self._batch, self._end = None, self._starts[group]

    def close(self) -> None:
        """Close the file."""
        self._batches, self._batch = iter(()), None
        self._file.close()


class _ArrowRows:
    """The rows of an Arrow file, and which batch they are in, as far as that is known."""

    def __init__(self, path: Path) -> None:
        self._source = pa.memory_map(str(path))
        self._reader = pa.ipc.open_file(self._source)
        self._counts = pa.ipc.open_file(self._source, options=count_options(self._reader.schema))
        self._starts = [0]
        self.done = False

    def read(self, low: int, high: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows ``low <= row < high``."""
        batches = self._reader.num_record_batches
        while self._starts[-1] < high and len(self._starts) <= batches:
            rows = self._counts.get_batch(len(self._starts) - 1).num_rows
            self._starts.append(self._starts[-1] + rows)
        _check_rows(self._starts[-1], high)
        for index in range(bisect_right(self._starts, low) - 1, len(self._starts) - 1):
            at = self._starts[index]
            if at >= high:
                break
            batch = self._reader.get_batch(index)
            for part in range(0, batch.num_rows, BATCH_ROWS_MAX):
                yield from _cut(batch.slice(part, BATCH_ROWS_MAX), at + part, low, high)
        self.done = len(self._starts) > batches and high == self._starts[-1]

    def close(self) -> None:
        """Close the file; what was read of it stays."""
        self._source.close()


_texts: Final = KeptFiles[_CompressedText]()
_parquet: Final = KeptFiles[_ParquetRows]()
_arrow: Final = KeptFiles[_ArrowRows]()


def _read_parquet(
    _: FilesOptions, schema: pa.Schema, path: Path, __: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    names = tuple(schema.names)
    with _parquet.use(path, names, lambda: _ParquetRows(path, names)) as file:
        yield from file.read(low, high)


def _read_arrow(
    _: FilesOptions, __: pa.Schema, path: Path, ___: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    with _arrow.use(path, "", lambda: _ArrowRows(path)) as file:
        yield from file.read(low, high)


def _check_rows(there: int, wanted: int) -> None:
    if there < wanted:
        raise EOFError(f"it holds {there} rows only: files of a log may only be written once")


def _cut(batch: pa.RecordBatch, at: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
    first, last = max(low - at, 0), min(high - at, batch.num_rows)
    if first < last:
        yield batch.slice(first, last - first)


def _fitted(batch: pa.RecordBatch, schema: pa.Schema, path: Path) -> pa.RecordBatch:
    """Return a batch with the columns of *schema*; what a file hasn't is null."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        try:
            columns.append(batch.column(field.name).cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise LogError(
                f"{path}: column {field.name!r} is {batch.schema.field(field.name).type}, which "
                f"doesn't fit {field.type} of the topic: {error}"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
