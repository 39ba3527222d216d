"""What readers and upkeep see of a folder that a `FolderSink` writes."""

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from client.spark.sinks.manifest import DataFile, Manifest, State, fsync_folder
from client.spark.sinks.ranges import PartitionKey, SinkError, Stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGING_FOLDER: Final = "_staging"


class Version(NamedTuple):
    """One change of a folder: when, what it was for, what it added and took away."""

    version: int
    at_ms: int
    kind: str
    rows: int
    files_added: int
    files_removed: int


def read(spark: "SparkSession", path: str | Path, *, version: int | None = None) -> "DataFrame":
    """Return the rows of a folder that a `FolderSink` writes: each range once, whole batches.

    Args:
        spark: the session.
        path: the folder.
        version: an earlier state of it, see `history`; None for the newest.

    Raises:
        SinkError: nothing was written there yet, or the version isn't there.

    """
    folder = Path(path)
    state = Manifest(folder).load(version)
    if state.schema is None:
        raise SinkError(f"{folder} has no rows of a FolderSink yet")
    schema = schema_of(state)
    if not state.files:
        return spark.createDataFrame([], schema)
    return parquet_of(spark, folder, schema, sorted(state.files))


def parquet_of(
    spark: "SparkSession", folder: Path, schema: StructType, names: Sequence[str]
) -> "DataFrame":
    """Return the rows of these files of *folder*."""
    root = folder.absolute()
    rows = (
        spark.read.schema(schema)
        .option("basePath", _for_spark(root))
        .parquet(*(_for_spark(root / name) for name in names))
    )
    return rows.select(*(f"`{name}`" for name in schema.names))


def history(path: str | Path, limit: int = 20) -> list[Version]:
    """Return the newest *limit* versions of the folder at *path*, the newest first."""
    manifest = Manifest(Path(path))
    newest = manifest.load().version
    found = []
    for version in range(newest, max(newest - limit, 0), -1):
        change = manifest.change(version)
        if change is None:
            break  # Vacuumed.
        rows = sum(file.rows for file in change.add.values())
        found.append(
            Version(version, change.at_ms, change.kind, rows, len(change.add), len(change.remove))
        )
    return found


def positions(path: str | Path) -> dict[PartitionKey, Stored]:
    """Return up to where the folder at *path* has each partition of each group."""
    return dict(Manifest(Path(path)).load().positions)


def live_files(path: str | Path) -> list[Path]:
    """Return the Parquet files that count, for readers other than Spark."""
    folder = Path(path)
    return [folder / name for name in sorted(Manifest(folder).load().files)]


def schema_of(state: State) -> StructType:
    """Return the columns of a table that has some."""
    assert state.schema is not None
    return StructType.fromJson(json.loads(state.schema))


def merge_schemas(old: StructType, new: StructType, where: str, *, grow: bool) -> StructType | None:
    """Return *old* with the columns that only *new* has, or None if there are none.

    Raises:
        SinkError: a column changed its type, or may not be added.

    """
    types = {field.name: field.dataType for field in old}
    for field in new:
        if field.name in types and types[field.name] != field.dataType:
            raise SinkError(
                f"column {field.name!r} is {field.dataType.simpleString()}, but "
                f"{types[field.name].simpleString()} in {where}; cast it in transform="
            )
    added = [field for field in new if field.name not in types]
    if not added:
        return None
    if not grow:
        raise SinkError(
            f"{where} has no column {', '.join(repr(field.name) for field in added)}; set "
            "merge_schema=True to add new columns, or drop them in transform="
        )
    return StructType([*old.fields, *added])


def write_files(
    rows: "DataFrame",
    folder: Path,
    partition_by: Sequence[str],
    *,
    compression: str,
    fsync: bool,
) -> dict[str, DataFile]:
    """Write *rows* below *folder*, where no manifest names them yet; return the files."""
    staging = folder.absolute() / STAGING_FOLDER / uuid.uuid4().hex
    writer = rows.write.option("compression", compression)
    if partition_by:
        writer = writer.partitionBy(*partition_by)
    try:
        writer.parquet(_for_spark(staging))
        files: dict[str, DataFile] = {}
        touched: set[Path] = set()
        written = sorted(staging.rglob("part-*.parquet"))
        if not written and not partition_by:  # Even of no rows Spark makes a file.
            raise missing_rows(folder, 0, None)
        for source in written:
            count = pq.read_metadata(source).num_rows
            if count == 0:
                continue
            name = source.relative_to(staging)
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if fsync:
                _fsync_file(source)
            source.rename(target)
            touched.update(folder / parent for parent in name.parents)
            files[name.as_posix()] = DataFile(count, target.stat().st_size)
        if fsync:
            for parent in touched:
                fsync_folder(parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return files


def missing_rows(folder: Path, found: int, expected: int | None) -> SinkError:
    """Return what to raise when rows that Spark has written are not there."""
    wanted = "no file" if expected is None else f"{found} of {expected} rows"
    return SinkError(
        f"{folder}: Spark wrote the rows, but {wanted} can be found there; nothing was counted. "
        "The folder must be the same one, on a shared file system, under the same path for the "
        "driver and all executors"
    )


def _for_spark(path: Path) -> str:
    """Return a path as Spark takes it, whose file system may else be another one by default."""
    return f"file://{path}"


def _fsync_file(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
