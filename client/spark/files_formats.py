"""The files of a log of files: how many rows they hold, and these rows as Arrow batches.

Text is cut into pieces of a few megabytes, so that a row is found without reading all before it,
and so that a file that grows adds pieces. Parquet and Arrow files are written once: one piece.
"""

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from client.spark.files_index import Piece
from client.spark.files_options import FilesOptions
from client.spark.log import LogError

PIECE_BYTES: Final = 4 * 2**20
BATCH_ROWS_MAX: Final = 16_384
COMPRESSED: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_BLANK: Final = re.compile(rb"^[ \t\r]*$", re.MULTILINE)
# A text of nothing but nulls would end the process, in pyarrow.
_NO_OBJECT: Final = re.compile(rb"^[ \t\r]*[^ \t\r\n{]", re.MULTILINE)


class UnfinishedError(Exception):
    """A file can't be read yet, or ever: whoever writes it may not be done."""


class Part(NamedTuple):
    """A run of rows of a file: from where to where, and how many."""

    at: int
    to: int
    rows: int


def is_text(options: FilesOptions) -> bool:
    """Say whether files are made of lines."""
    return options.format in {"lines", "json"}


def written_once(options: FilesOptions, name: str) -> bool:
    """Say whether a file never grows."""
    return not is_text(options) or Path(name).suffix in COMPRESSED


def parts_of(
    options: FilesOptions, path: Path, at: int, *, complete: bool, piece_bytes: int = PIECE_BYTES
) -> Iterator[Part]:
    """Yield the rows of a file from *at* on.

    Args:
        options: the log's options.
        path: the file.
        at: up to where it is known.
        complete: whether a last line counts although nothing ends it.
        piece_bytes: how long a part of a text is, about.

    Raises:
        UnfinishedError: it can't be read (yet).

    """
    try:
        if is_text(options):
            with _open_text(path, at) as file:
                yield from _text_parts(file, at, complete, piece_bytes)
        elif options.format == "parquet":
            rows = pq.read_metadata(path).num_rows
            yield Part(0, rows, rows)
        else:
            with pa.memory_map(str(path)) as source:
                reader = pa.ipc.open_file(source)
                rows = sum(reader.get_batch(i).num_rows for i in range(reader.num_record_batches))
            yield Part(0, rows, rows)
    except FileNotFoundError:
        return
    except (pa.ArrowException, OSError, EOFError) as error:
        raise UnfinishedError(str(error)) from error


def _text_parts(file: BinaryIO, at: int, complete: bool, piece_bytes: int) -> Iterator[Part]:
    left = b""
    while data := file.read(piece_bytes):
        left += data
        cut = left.rfind(b"\n") + 1
        if cut:
            yield Part(at, at + cut, left.count(b"\n", 0, cut))
            at, left = at + cut, left[cut:]
    if left and complete:
        yield Part(at, at + len(left), 1)


def _open_text(path: Path, at: int) -> Any:
    """Open a text where *at* is; of a compressed one, *at* counts what it was made from."""
    compression = COMPRESSED.get(path.suffix)
    if compression is None:
        plain = path.open("rb", buffering=0)
        plain.seek(at)
        return io.BufferedReader(plain, PIECE_BYTES)
    stream = pa.input_stream(str(path), compression=compression)
    while at:
        skipped = len(stream.read(min(at, PIECE_BYTES)))
        if not skipped:
            raise EOFError("it is shorter than it was")
        at -= skipped
    return stream


def ends_a_line(path: Path, at: int) -> bool:
    """Say whether a line of a text ends right before *at*."""
    with path.open("rb") as file:
        file.seek(at - 1)
        return file.read(1) == b"\n"


def schema_of(options: FilesOptions, path: Path) -> pa.Schema:
    """Return the columns of a Parquet or Arrow file, dictionaries as what they stand for."""
    if options.format == "parquet":
        schema = pq.read_schema(path)
    else:
        with pa.memory_map(str(path)) as source:
            schema = pa.ipc.open_file(source).schema
    plain = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema([pa.field(field.name, field.type) for field in plain])


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


def _text(path: Path, piece: Piece) -> bytes:
    with _open_text(path, piece.at) as file:
        data = bytes(file.read(piece.to - piece.at))
    if len(data) < piece.to - piece.at:
        raise LogError(f"{path} is shorter than it was: files of a log may only grow")
    return data.replace(b"\r\n", b"\n") if b"\r\n" in data else data


def _lines(path: Path, piece: Piece, low: int, high: int) -> list[bytes]:
    lines = _text(path, piece).removesuffix(b"\n").split(b"\n")
    if len(lines) != piece.end - piece.base:
        raise LogError(f"{path} holds other lines than it did: files of a log may only grow")
    return lines[low:high]


def _read_lines(
    _: FilesOptions, schema: pa.Schema, path: Path, piece: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    lines = _lines(path, piece, low, high)
    for at in range(0, len(lines), BATCH_ROWS_MAX):
        some = pa.array(lines[at : at + BATCH_ROWS_MAX], pa.binary())
        try:
            column = some.cast(pa.string())
        except pa.ArrowInvalid:  # As Spark's own source has it.
            column = pa.array([v.decode("utf-8", "replace") for v in some.to_pylist()], pa.string())
        yield pa.RecordBatch.from_arrays([column], schema=schema)


def _read_json(
    options: FilesOptions, schema: pa.Schema, path: Path, piece: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    lines = _lines(path, piece, low, high)
    try:
        table = _parsed(lines, schema)
    except pa.ArrowInvalid:
        table = _parsed(_mended(options, schema, path, lines, piece.base + low), schema)
    yield from table.to_batches(max_chunksize=BATCH_ROWS_MAX)


def _parsed(lines: list[bytes], schema: pa.Schema) -> pa.Table:
    # A line without an object is a row without values, so that each row keeps its offset.
    text = b"\n".join(lines) + b"\n"
    if not text.startswith(b"{") or text.count(b"\n{") != len(lines) - 1:
        text = _BLANK.sub(b"{}", text[:-1]) + b"\n"
        if _NO_OBJECT.search(text):
            raise pa.ArrowInvalid("a line holds no JSON object")
    table = pa_json.read_json(
        io.BytesIO(text),
        read_options=pa_json.ReadOptions(block_size=max(len(text), 1 << 16), use_threads=False),
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


def _mended(
    options: FilesOptions, schema: pa.Schema, path: Path, lines: list[bytes], base: int
) -> list[bytes]:
    """Replace lines that can't be read, if that is allowed."""
    mended = []
    for offset, line in enumerate(lines, base):
        try:
            _parsed([line], schema)
            mended.append(line)
        except pa.ArrowInvalid as error:
            if not options.bad_rows_are_null:
                raise LogError(
                    f"{path}: the line with offset {offset} doesn't fit 'log.schema': {error}. Set "
                    "option 'log.badRows' to 'null' to have a row without values instead"
                ) from error
            mended.append(b"{}")
    return mended


def _read_parquet(
    _: FilesOptions, schema: pa.Schema, path: Path, __: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as file:
        at = 0
        groups = []
        for index in range(file.num_row_groups):
            rows = file.metadata.row_group(index).num_rows
            if at < high and at + rows > low:
                groups.append((index, at))
            at += rows
        if not groups:
            return
        names = [name for name in schema.names if name in file.schema_arrow.names]
        at = groups[0][1]
        for batch in file.iter_batches(
            BATCH_ROWS_MAX, row_groups=[index for index, _ in groups], columns=names
        ):
            yield from _cut(batch, at, low, high)
            at += batch.num_rows


def _read_arrow(
    _: FilesOptions, __: pa.Schema, path: Path, ___: Piece, low: int, high: int
) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_file(source)
        at = 0
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            for part in range(0, batch.num_rows, BATCH_ROWS_MAX):
                yield from _cut(batch.slice(part, BATCH_ROWS_MAX), at + part, low, high)
            at += batch.num_rows


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
