"""The files of a log of files: its options, how many rows each file holds, and which columns.

Text is cut into pieces of a few megabytes, so that a row is found without reading all before it,
and so that a file that grows adds pieces. Parquet and Arrow files are written once: one piece.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from client.spark.options import OptionError, parse_duration_ms

FORMATS: Final = ("lines", "json", "parquet", "arrow")
NAMES: Final = (
    "log.badRows",
    "log.format",
    "log.index",
    "log.partitions",
    "log.pattern",
    "log.schema",
    "log.settle",
)
LINES_SCHEMA: Final = pa.schema([pa.field("value", pa.string())])
_COLUMN: Final = re.compile(r"\s*(`[^`]+`|\w+)\s+(\w+)\s*(\(\s*\d+\s*,\s*\d+\s*\))?\s*", re.ASCII)
_TYPES: Final = {
    "bigint": pa.int64(),
    "long": pa.int64(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

PIECE_BYTES: Final = 4 * 2**20
COMPRESSED: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}

_LINE_END: Final = ord("\n")
_BYTES_MAX: Final = 2**31 - 1


class FilesOptions(NamedTuple):
    """What a log of files needs to know.

    Attributes:
        path: the folder of the topics.
        schema: the columns; None to take them from the first file.
        index_folder: where the index is kept; None for inside each topic's folder.
        partitions: over how many partitions files are spread; None to take them from folders.
        pattern: what the names of files match.
        settle_s: how long a file is unchanged until it counts as complete.
        bad_rows_are_null: whether a line that is no JSON becomes a row without values.

    """

    path: str
    format: str
    schema: pa.Schema | None
    index_folder: str | None
    partitions: int | None
    pattern: str
    settle_s: float
    bad_rows_are_null: bool


def parse_files_options(options: Mapping[str, str]) -> FilesOptions:
    """Check the options of a log of files; names in any case.

    Raises:
        OptionError: one is missing, unknown or impossible.

    """
    values = {name.lower(): value.strip() for name, value in options.items()}
    known = {name.lower() for name in NAMES}
    for name in values:
        if name.startswith("log.") and name not in known:
            raise OptionError(
                f"option {name!r} is unknown to a log of files; there are {', '.join(NAMES)}"
            )
    if not values.get("path"):
        raise OptionError("option 'path' is missing: the folder that holds the topics' folders")
    form = values.get("log.format", "")
    if form not in FORMATS:
        raise OptionError(f"option 'log.format' is {form!r}: it must be {' or '.join(FORMATS)}")
    bad = values.get("log.badrows", "error")
    if bad not in {"error", "null"}:
        raise OptionError(f"option 'log.badRows' is {bad!r}: it must be 'error' or 'null'")
    return FilesOptions(
        path=values["path"],
        format=form,
        schema=_schema(values, form),
        index_folder=values.get("log.index") or None,
        partitions=_partitions(values),
        pattern=values.get("log.pattern") or "*",
        settle_s=_settle_s(values),
        bad_rows_are_null=bad == "null",
    )


def _schema(values: Mapping[str, str], form: str) -> pa.Schema | None:
    text = values.get("log.schema", "")
    if form == "lines":
        if text:
            raise OptionError("option 'log.schema' is given, but lines have the one column 'value'")
        return LINES_SCHEMA
    if not text and form == "json":
        raise OptionError(
            "option 'log.schema' is missing, which JSON lines need: such as 'id bigint, name "
            "string', or a schema's JSON (df.schema.json())"
        )
    if not text:
        return None
    if text.startswith("{"):
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415 - slow to load.
        from pyspark.sql.types import StructType  # noqa: PLC0415 - likewise.

        try:
            return to_arrow_schema(StructType.fromJson(json.loads(text)), timezone="UTC")
        except Exception as error:
            raise OptionError(f"option 'log.schema' is no schema of Spark's: {error}") from error
    columns = re.split(r",(?![^(]*\))", text)  # A decimal has a comma of its own.
    return pa.schema([_column(column) for column in columns])


def _column(text: str) -> pa.Field:
    match = _COLUMN.fullmatch(text)
    kind = match[2].lower() if match else ""
    if match and kind == "decimal" and match[3]:
        precision, scale = (int(number) for number in re.findall(r"\d+", match[3]))
        return pa.field(match[1].strip("`"), pa.decimal128(precision, scale))
    if not match or kind not in _TYPES or match[3]:
        raise OptionError(
            f"option 'log.schema' has {text.strip()!r}: it must be a name and one of "
            f"{', '.join(sorted(_TYPES))}, decimal(p,s); for other types give the JSON of a schema "
            "(df.schema.json())"
        )
    return pa.field(match[1].strip("`"), _TYPES[kind])


def _partitions(values: Mapping[str, str]) -> int | None:
    value = values.get("log.partitions", "")
    if not value:
        return None
    if not value.isdecimal() or not 0 < int(value) <= 10_000:
        raise OptionError(
            f"option 'log.partitions' is {value!r}: it must be a whole number from 1 to 10000"
        )
    return int(value)


def _settle_s(values: Mapping[str, str]) -> float:
    value = values.get("log.settle", "1m")
    settle_ms = parse_duration_ms(value)
    if settle_ms is None:
        raise OptionError(
            f"option 'log.settle' is {value!r}: it must be a duration such as '500ms', '10s', '1m'"
        )
    return settle_ms / 1000


# --- Files ---------------------------------------------------------------------------------


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
            with open_text(path, at) as file:
                yield from _text_parts(file, at, complete, piece_bytes)
        elif options.format == "parquet":
            rows = pq.read_metadata(path).num_rows
            yield Part(0, rows, rows)
        else:
            with pa.memory_map(str(path)) as source:
                few = count_options(pa.ipc.open_file(source).schema)
                reader = pa.ipc.open_file(source, options=few)
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
            yield Part(at, at + cut, count_lines(left, cut))
            at, left = at + cut, left[cut:]
    if left and complete:
        yield Part(at, at + len(left), 1)


def open_text(path: Path, at: int) -> Any:
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


def count_options(schema: pa.Schema) -> pa.ipc.IpcReadOptions:
    """Return how to read an Arrow file for the sizes of its batches.

    Only a batch itself tells how many rows it has: one column is enough, as all may be compressed.
    """
    return pa.ipc.IpcReadOptions(included_fields=[0] if len(schema) else None)


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
    types = [t.value_type if pa.types.is_dictionary(t) else t for t in schema.types]
    return pa.schema(list(zip(schema.names, types, strict=True)))


# --- Lines, without a Python object for each -----------------------------------------------


class Lines(NamedTuple):
    """Some lines of a text.

    Attributes:
        data: the text; every line ends in it with a line feed, but maybe the last.
        ends: where in it each line ends.

    """

    data: bytes
    ends: npt.NDArray[np.int64]

    def __len__(self) -> int:
        """Return how many lines there are."""
        return len(self.ends)

    def part(self, low: int, high: int) -> "Lines":
        """Return the lines ``low <= line < high``, of which there must be one."""
        begin = int(self.ends[low - 1]) + 1 if low else 0
        return Lines(self.data[begin : int(self.ends[high - 1]) + 1], self.ends[low:high] - begin)

    def begin_with(self, character: str) -> bool:
        """Say whether each line begins with this character."""
        text = np.frombuffer(self.data, np.uint8)
        starts = self.ends[:-1] + 1
        return self.data.startswith(character.encode()) and bool(
            (text[starts] == ord(character)).all()
        )


def lines_of(data: bytes) -> Lines:
    """Find the lines of a text."""
    text = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(text == _LINE_END)
    if data and not data.endswith(b"\n"):
        ends = np.append(ends, len(data))
    return Lines(data, ends)


def count_lines(data: bytes, end: int) -> int:
    """Return how many line feeds there are before *end*."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8, end) == _LINE_END))


def without_returns(lines: Lines) -> Lines:
    """Take the carriage returns off that stand before line ends."""
    # Looking for one character is many times faster than for two.
    if b"\r" not in lines.data or b"\r\n" not in lines.data:
        return lines
    return lines_of(lines.data.replace(b"\r\n", b"\n"))


def strings_of(lines: Lines) -> pa.Array:
    """Return the lines as strings; bytes that are no UTF-8 are replaced.

    Raises:
        pa.ArrowCapacityError: they are longer than an array can be.

    """
    # Without the line feeds they are what an array of strings is made of.
    text = lines.data.replace(b"\n", b"")
    if len(text) > _BYTES_MAX:
        raise pa.ArrowCapacityError(f"{len(lines)} line(s) are {len(text)} bytes, over 2 GiB")
    bounds = np.zeros(len(lines) + 1, np.int32)
    bounds[1:] = lines.ends - np.arange(len(lines))
    parts = [None, pa.py_buffer(bounds), pa.py_buffer(text)]
    found = pa.Array.from_buffers(pa.binary(), len(lines), parts)
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:  # As Spark's own source has it.
        return pa.array([v.decode("utf-8", "replace") for v in found.to_pylist()], pa.string())
