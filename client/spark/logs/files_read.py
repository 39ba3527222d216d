"""The rows of a log of files as Arrow batches.

To find the first row of a range, what is before it is read again as little as can be: a text from
the beginning of the piece, other files from where the last range of the process ended.

For that a process keeps some files open (`KeptFiles`). A range of a stream begins where the one
before ended, often in the middle of what can only be decoded from its beginning: a row group of a
Parquet file, a compressed text. To begin anew for each range would make the rows of a large file
cost more the further in they are. The processes that read live longer than a task, so they go on
where they left off.
"""

import io
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from client.spark.logs.files_formats import (
    COMPRESSED,
    PIECE_BYTES,
    FilesOptions,
    Lines,
    count_options,
    lines_of,
    open_text,
    strings_of,
    without_returns,
)
from client.spark.logs.files_index import Piece
from client.spark.logs.partition_log import LogError

BATCH_ROWS_MAX: Final = 16_384
# A column's bytes that are read at once; else all of a row group's would be held.
_PARQUET_BUFFER: Final = 2**18

# Each is an open file and some megabytes of what is decoded of it.
KEPT_MAX: Final = 8

_BLANK: Final = re.compile(rb"^[ \t\r]*$", re.MULTILINE)
# A text of nothing but nulls would end the process, in pyarrow.
_NO_OBJECT: Final = re.compile(rb"^[ \t\r]*[^ \t\r\n{]", re.MULTILINE)
_BLOCK_MIN: Final = 1 << 16

T = TypeVar("T", bound="Opened")


def read_piece(
    options: FilesOptions, schema: pa.Schema, folder: Path, piece: Piece, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows ``start <= offset < end`` of a piece.

    Raises:
        LogError: the file isn't what it was, or holds what the columns don't fit.

    """
    path = folder / piece.file
    low, high = max(start - piece.base, 0), min(end, piece.end) - piece.base
    try:
        for batch in _rows(options, schema, path, piece, low, high):
            yield _fitted(batch, schema, path)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise LogError(
            f"{path}: the rows from {start} to {min(end, piece.end)} can't be read: {error}"
        ) from error


def _rows(
    options: FilesOptions, schema: pa.Schema, path: Path, piece: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows ``low <= row < high`` of a piece, with the columns that the file has."""
    if options.format == "parquet":
        names = tuple(schema.names)
        with _parquet.use(path, names, lambda: _ParquetRows(path, names)) as parquet:
            yield from parquet.read(low, high)
    elif options.format == "arrow":
        with _arrow.use(path, "", lambda: _ArrowRows(path)) as arrow:
            yield from arrow.read(low, high)
    elif options.format == "lines":
        lines = _lines(path, piece, low, high)
        for at in range(0, len(lines), BATCH_ROWS_MAX):
            column = strings_of(lines.part(at, min(at + BATCH_ROWS_MAX, len(lines))))
            yield pa.RecordBatch.from_arrays([column], schema=schema)
    else:

        def bad(number: int, error: pa.ArrowInvalid) -> None:
            if not options.bad_rows_are_null:
                raise LogError(
                    f"{path}: the line with offset {piece.base + low + number} doesn't fit "
                    f"'log.schema': {error}. Set option 'log.badRows' to 'null' to have a row "
                    "without values instead"
                ) from error

        table = parse_json(_lines(path, piece, low, high), schema, bad)
        yield from table.to_batches(max_chunksize=BATCH_ROWS_MAX)


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


# --- Files with a footer ---------------------------------------------------------------------


class _ParquetRows:
    """The rows of a Parquet file; to go on is cheap, to go back means to begin a row group anew."""

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self._file = pq.ParquetFile(path, buffer_size=_PARQUET_BUFFER)
        self._names = [name for name in names if name in self._file.schema_arrow.names]
        groups = map(self._file.metadata.row_group, range(self._file.num_row_groups))
        self._starts = list(accumulate((group.num_rows for group in groups), initial=0))
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


def _check_rows(there: int, wanted: int) -> None:
    if there < wanted:
        raise EOFError(f"it holds {there} rows only: files of a log may only be written once")


def _cut(batch: pa.RecordBatch, at: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
    first, last = max(low - at, 0), min(high - at, batch.num_rows)
    if first < last:
        yield batch.slice(first, last - first)


# --- JSON ----------------------------------------------------------------------------------


def parse_json(
    lines: Lines, schema: pa.Schema, bad: Callable[[int, pa.ArrowInvalid], None]
) -> pa.Table:
    """Return a row for each of *lines*: a line without an object is a row without values.

    Args:
        lines: one object in each.
        schema: the columns.
        bad: called with the number of each line that doesn't fit, and why; raises, or the line
            becomes a row without values.

    """
    try:
        return _parsed(lines, schema)
    except pa.ArrowInvalid:
        return _parsed(_mended(lines, schema, bad), schema)


def _parsed(lines: Lines, schema: pa.Schema) -> pa.Table:
    text = lines.data if lines.data.endswith(b"\n") else lines.data + b"\n"
    if not lines.begin_with("{"):
        text = _BLANK.sub(b"{}", text[:-1]) + b"\n"
        if _NO_OBJECT.search(text):
            raise pa.ArrowInvalid("a line holds no JSON object")
    table = pa_json.read_json(
        io.BytesIO(text),
        read_options=pa_json.ReadOptions(block_size=max(len(text), _BLOCK_MIN), use_threads=False),
        parse_options=pa_json.ParseOptions(
            explicit_schema=pa.schema([field.with_type(_in_json(field.type)) for field in schema]),
            unexpected_field_behavior="ignore",
        ),
    )
    if table.num_rows != len(lines):
        raise pa.ArrowInvalid(f"{len(lines)} line(s) hold {table.num_rows} JSON objects")
    return table.cast(schema)


def _in_json(kind: pa.DataType) -> pa.DataType:
    """Return as what to read a type that pyarrow finds in no JSON: dates are texts."""
    if pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_json(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_json(field.type)) for field in kind])
    return kind


def _mended(lines: Lines, schema: pa.Schema, bad: Callable[[int, pa.ArrowInvalid], None]) -> Lines:
    mended = []
    for number, line in enumerate(lines.data.removesuffix(b"\n").split(b"\n")):
        try:
            _parsed(lines_of(line + b"\n"), schema)
            mended.append(line)
        except pa.ArrowInvalid as error:
            bad(number, error)
            mended.append(b"{}")
    return lines_of(b"\n".join(mended) + b"\n")


# --- What a process keeps open -------------------------------------------------------------


class Opened(Protocol):
    """What is open, and has to be closed."""

    @property
    def done(self) -> bool:
        """Whether it was read to its end, so that nobody will go on with it."""

    def close(self) -> None:
        """Give back what it holds."""


class _FileVersion(NamedTuple):
    """Which file it is, and as of which change.

    With the process: a child would move the position in what its parent has open.
    """

    process: int
    device: int
    inode: int
    size: int
    mtime_ns: int


class KeptFiles(Generic[T]):
    """The open files that were used last, a few. Thread-safe.

    Args:
        most: how many are kept.

    """

    def __init__(self, most: int = KEPT_MAX) -> None:
        self._most = most
        self._kept: dict[tuple[Path, Hashable], tuple[_FileVersion, T]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def use(self, path: Path, how: Hashable, open_anew: Callable[[], T]) -> Iterator[T]:
        """Lend what is open of a file to one user, and keep it unless that fails.

        Args:
            path: the file.
            how: in which way it is read.
            open_anew: opens it if nothing was kept, or the file is another one by now.

        Raises:
            OSError: there is no such file.

        """
        # Looked at before it is opened: at worst, what is kept counts as of an older file.
        status = path.stat()
        version = _FileVersion(
            os.getpid(), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        )
        with self._lock:
            before, opened = self._kept.pop((path, how), (None, None))
        if opened is not None and before != version:
            opened.close()
            opened = None
        if opened is None:
            opened = open_anew()
        try:
            yield opened
        except BaseException:  # Also where a reader stops early: who knows how far it came.
            opened.close()
            raise
        for one in [opened] if opened.done else self._keep((path, how), (version, opened)):
            one.close()

    def _keep(self, key: tuple[Path, Hashable], kept: tuple[_FileVersion, T]) -> list[T]:
        """Keep something; return what has to go for it."""
        with self._lock:
            gone = [self._kept.pop(key)] if key in self._kept else []
            self._kept[key] = kept
            if len(self._kept) > self._most:
                gone.append(self._kept.pop(next(iter(self._kept))))
        return [opened for _, opened in gone]


_texts: Final = KeptFiles[_CompressedText]()
_parquet: Final = KeptFiles[_ParquetRows]()
_arrow: Final = KeptFiles[_ArrowRows]()
