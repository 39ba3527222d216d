"""The files of a log of files: how many rows they hold, and which columns.

Text is cut into pieces of a few megabytes, so that a row is found without reading all before it,
and so that a file that grows adds pieces. Parquet and Arrow files are written once: one piece.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from client.spark.files_lines import count_lines
from client.spark.files_options import FilesOptions

PIECE_BYTES: Final = 4 * 2**20
COMPRESSED: Final = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}


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
    plain = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema([pa.field(field.name, field.type) for field in plain])
