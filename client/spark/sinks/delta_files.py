"""The Parquet files of a Delta table: how executors write them, and what the log says of them.

Which partition a file belongs to stands in the log. But some readers, such as Polars, take it from
the folders' names. So these have the values whole, escaped as by other writers, unless they are
longer than any file system takes.
"""

import json
import math
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from client.spark.disk import fsync_path

try:
    from deltalake.fs import DeltaStorageHandler
except ImportError as error:
    raise ImportError(
        "DeltaSink needs deltalake: pip install 'group-coordinator[delta]' on the driver and on "
        "all executors"
    ) from error

# What `Writer.write` returns of each file: the JSON of a `Written`.
WRITTEN_SCHEMA: Final = "written string"

# A row group is held in memory until it is so large.
ROW_GROUP_BYTES: Final = 64 << 20

# Delta's own defaults: of how many columns there are bounds, and how long texts are in them.
_STATS_COLUMNS: Final = 32
_STATS_CHARACTERS: Final = 32
_HIGHEST_CHARACTER: Final = "\U0010ffff"
# More digits than these are rounded by whoever reads JSON numbers as floats.
_DIGITS_MAX: Final = 15

# The most that file systems take.
_NAME_BYTES: Final = 255
_CUT_ESCAPE: Final = re.compile("%.?$")
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"

PartitionValues = dict[str, str | None]


class Written(NamedTuple):
    """A file: where below the table, how large, for which partition, and what is in it.

    Its rows may be of any of the *ranges*, each the values of `Writer.range_columns`; None of them
    are known without such columns.
    """

    path: str
    bytes: int
    rows: int
    partition_values: PartitionValues
    stats: str
    ranges: Sequence[Sequence[Any]]

    def has_nulls(self, column: str) -> bool:
        """Say whether a column of the table is null somewhere."""
        if column in self.partition_values:
            return self.partition_values[column] is None
        return bool(json.loads(self.stats)["nullCount"].get(column, 0))


def file_system(uri: str, storage_options: Mapping[str, str]) -> pa_fs.FileSystem:
    """Return the table's files, by names relative to it, as the library sees them."""
    return pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(storage_options)))


def local_folder(uri: str) -> Path | None:
    """Return the folder of a table that is on a file system of this machine."""
    if "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None


class Writer(NamedTuple):
    """Writes the rows of a task below the table at *uri*; it is sent to the executors."""

    uri: str
    storage_options: Mapping[str, str]
    partition_by: tuple[str, ...]
    compression: str
    fsync: bool
    range_columns: tuple[str, ...] = ()

    def write(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write a file, or one for each partition; the rows of a partition come in a row."""
        files = file_system(self.uri, self.storage_options)
        file: _File | None = None
        for batch in batches:
            ranges = [tuple(row.values()) for row in _distinct(batch, self.range_columns)]
            for values, rows in split(batch, self.partition_by):
                if file is None or file.values != values:
                    if file is not None:
                        yield self._finish(file)
                    file = _File(files, values, rows.schema, self.compression)
                file.add(rows, ranges)
        if file is not None:
            yield self._finish(file)

    def _finish(self, file: "_File") -> pa.RecordBatch:
        written = file.close()
        folder = local_folder(self.uri) if self.fsync else None
        if folder is not None:
            name = Path(written.path)
            for path in (name, *name.parents):
                fsync_path(folder / path)
        return pa.RecordBatch.from_pydict({"written": [json.dumps(written)]})


class _File:
    """A Parquet file that is being written; nobody sees it before it is closed."""

    def __init__(
        self, files: pa_fs.FileSystem, values: PartitionValues, schema: pa.Schema, compression: str
    ) -> None:
        self.values = values
        self._path = "/".join((*map(_folder, values.items()), f"part-{uuid.uuid4()}.parquet"))
        self._schema = schema
        self._stream = files.open_output_stream(self._path)
        self._metadata: list[pq.FileMetaData] = []
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression=compression,
            store_schema=False,  # Else the session's time zone would be in it.
            metadata_collector=self._metadata,
        )
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._with_nan: set[str] = set()
        self._ranges: set[tuple[Any, ...]] = set()

    def add(self, rows: pa.RecordBatch, ranges: Iterable[tuple[Any, ...]]) -> None:
        self._ranges.update(ranges)
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        for field in rows.schema:
            if pa.types.is_floating(field.type) and pc.any(pc.is_nan(rows[field.name])).as_py():
                self._with_nan.add(field.name)
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def close(self) -> Written:
        if self._held:
            self._write_group()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        (metadata,) = self._metadata
        stats = json.dumps(statistics(metadata, self._schema, self._with_nan))
        return Written(self._path, size, metadata.num_rows, self.values, stats, list(self._ranges))

    def _write_group(self) -> None:
        rows = pa.Table.from_batches(self._held)
        self._writer.write_table(rows, row_group_size=rows.num_rows)
        self._held, self._held_bytes = [], 0


def split(
    batch: pa.RecordBatch, partition_by: Sequence[str]
) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the rows of each partition, without the columns that all of them share."""
    if not batch.num_rows:
        return
    if not partition_by:
        yield {}, batch
        return
    rows = batch.drop_columns(list(partition_by))
    for key in _distinct(batch, partition_by):
        equal = [_equal(batch[name], key[name]) for name in partition_by]
        yield (
            {name: partition_value(key[name]) for name in partition_by},
            rows.filter(reduce(pc.and_, equal)),
        )


def _distinct(batch: pa.RecordBatch, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the values that some rows have together in these columns."""
    if not names:
        return []
    columns = pa.Table.from_batches([batch]).select(list(names))
    found = columns.group_by(list(names), use_threads=False).aggregate([])
    return found.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types.


def _equal(column: pa.Array, value: object) -> pa.Array:
    if value is None:
        return pc.is_null(column)
    return pc.equal(column, pa.scalar(value, column.type))  # Null where it is null: no such row.


def partition_value(value: object) -> str | None:
    """Return a value as Delta's protocol writes it; no text and an empty one are the same there."""
    match value:
        case None | "":
            return None
        case bool():
            return str(value).lower()
        case datetime(tzinfo=None):
            return value.isoformat(" ", "microseconds")
        case datetime():
            return _in_utc(value)
        case _:
            return str(value)


def _folder(item: tuple[str, str | None]) -> str:
    name = "=".join(quote(text or _NULL_FOLDER, safe="") for text in item)
    return _CUT_ESCAPE.sub("", name[:_NAME_BYTES])


def statistics(
    metadata: pq.FileMetaData, schema: pa.Schema, with_nan: set[str]
) -> dict[str, object]:
    """Return what Delta's log says about a file's rows, from what Parquet says of its columns.

    Args:
        metadata: the file's.
        schema: its columns.
        with_nan: the columns with values that Parquet leaves out of its bounds.

    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    leaves = [(at, path) for at, path in enumerate(_leaves(schema)) if path is not None]
    for number, (at, path) in enumerate(leaves):
        columns = [group.column(at).statistics for group in groups]
        if not all(column is not None and column.has_null_count for column in columns):
            continue
        _put(nulls, path, sum(column.null_count for column in columns))
        if number >= _STATS_COLUMNS:
            continue
        known = [column for column in columns if column.has_min_max]
        may_have_nan = path[0] in with_nan or (len(path) > 1 and _is_float(columns))
        if may_have_nan or len(known) < sum(column.num_values > 0 for column in columns):
            continue
        _put(low, path, _bound(min((column.min for column in known), default=None)))
        _put(high, path, _bound(max((column.max for column in known), default=None), is_high=True))
    return {
        "numRecords": metadata.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": nulls,
    }


def _is_float(columns: Sequence[pq.Statistics]) -> bool:
    return any(column.physical_type in {"FLOAT", "DOUBLE"} for column in columns)


def _leaves(fields: Sequence[pa.Field]) -> Iterator[tuple[str, ...] | None]:
    """Yield the path of each column of a Parquet file; None for one inside of a list or a map."""
    for field in fields:
        kind = field.type
        if pa.types.is_struct(kind):
            for path in _leaves([kind.field(at) for at in range(kind.num_fields)]):
                yield None if path is None else (field.name, *path)
        elif pa.types.is_nested(kind):
            inner = (
                [kind.key_field, kind.item_field] if pa.types.is_map(kind) else [kind.value_field]
            )
            yield from (None for _ in _leaves(inner))
        else:
            yield (field.name,)


def _put(values: dict[str, Any], path: Sequence[str], value: object) -> None:
    if value is None:
        return
    for name in path[:-1]:
        values = values.setdefault(name, {})
    values[path[-1]] = value


def _bound(value: object, *, is_high: bool = False) -> object:
    """Return a bound as JSON has it; None if there is no way to say it that is surely right."""
    match value:
        case bool() | None:
            return None
        case int() | float():
            return value if math.isfinite(value) else None
        case str() if len(value) > _STATS_CHARACTERS:
            return value[:_STATS_CHARACTERS] + (_HIGHEST_CHARACTER if is_high else "")
        case str():
            return value
        case Decimal():
            return float(value) if len(value.as_tuple().digits) <= _DIGITS_MAX else None
        case datetime(tzinfo=None):
            return value.isoformat("T", "microseconds")
        case datetime():
            return _in_utc(value)
        case date():
            return value.isoformat()
        case _:
            return None


def _in_utc(value: datetime) -> str:
    return value.astimezone(UTC).isoformat("T", "microseconds").replace("+00:00", "Z")
