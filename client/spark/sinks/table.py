"""The table in a folder that a `FolderSink` writes: read it, and keep it fast and small.

Upkeep is safe while drivers write and others read.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from client.spark.disk import fsync_path
from client.spark.sinks.manifest import LOG_FOLDER, Change, DataFile, Manifest, State
from client.spark.sinks.ranges import PartitionKey, SinkError, Stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGING_FOLDER: Final = "_staging"
MIB: Final = 1 << 20

# Somebody else's change of the manifest comes between ours at most so often in a row; each time
# that other one got on.
TRIES_MAX: Final = 1_000

# What is younger may belong to a batch that is being written.
OLDER_THAN_MIN: Final = timedelta(hours=1)


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
    rows: "DataFrame", folder: Path, partition_by: Sequence[str], *, compression: str, fsync: bool
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
                fsync_path(source)
            source.rename(target)
            touched.update(folder / parent for parent in name.parents)
            files[name.as_posix()] = DataFile(count, target.stat().st_size)
        if fsync:
            for parent in touched:
                fsync_path(parent)
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


def now_ms(clock: Callable[[], float]) -> int:
    """Return the time in ms since 1970 of a clock that counts seconds."""
    return int(clock() * 1000)


class Vacuumed(NamedTuple):
    """What `vacuum` deleted."""

    files: int
    bytes: int


def compact(
    spark: "SparkSession",
    path: str | Path,
    *,
    target_bytes: int = 128 * MIB,
    compression: str = "zstd",
    fsync: bool = True,
    clock: Callable[[], float] = time.time,
) -> int:
    """Make few large files of many small ones; rows and positions stay as they are.

    Drivers may go on writing. The old files stay for those who read them, until `vacuum`.

    Args:
        spark: the session.
        path: the folder.
        target_bytes: about how large files become; those of half of it or more are left alone.
        compression: what Spark's Parquet writer calls it.
        fsync: whether files are on disk before they count.
        clock: returns the time in seconds since 1970.

    Returns:
        How many files were replaced.

    Raises:
        ValueError: *target_bytes* isn't positive.
        SinkError: somebody else compacted the same files meanwhile.

    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes is {target_bytes}, it must be at least 1")
    folder = Path(path)
    manifest = Manifest(folder, fsync=fsync)
    state = manifest.load()
    replaced = 0
    for names in small_groups(state, target_bytes):
        rows = parquet_of(spark, folder, schema_of(state), names)
        files = write_files(
            rows.coalesce(1), folder, state.partition_by, compression=compression, fsync=fsync
        )
        change = Change(kind="compact", at_ms=now_ms(clock), add=files, remove=tuple(names))
        state = _commit(manifest, state, change)
        replaced += len(names)
    return replaced


def small_groups(state: State, target_bytes: int) -> Iterator[list[str]]:
    """Yield which files to make one of: of one sub-folder, small, at least two."""
    by_folder: dict[PurePosixPath, list[str]] = {}
    for name, file in sorted(state.files.items()):
        if file.bytes < target_bytes / 2:
            by_folder.setdefault(PurePosixPath(name).parent, []).append(name)
    for names in by_folder.values():
        group: list[str] = []
        size = 0
        for name in names:
            if group and size + state.files[name].bytes > target_bytes:
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(name)
            size += state.files[name].bytes
        if len(group) > 1:
            yield group


def vacuum(
    path: str | Path,
    *,
    older_than: timedelta = timedelta(days=7),
    fsync: bool = True,
    clock: Callable[[], float] = time.time,
) -> Vacuumed:
    """Delete what no reader needs: what crashed drivers left, and files that were compacted.

    Versions of before are gone then. Drivers may go on writing.

    Args:
        path: the folder.
        older_than: only what is older, or was compacted longer ago; at least an hour, and
            longer than any batch and any reader takes.
        fsync: whether changes of the manifest are on disk before they count.
        clock: returns the time in seconds since 1970.

    Raises:
        ValueError: *older_than* is too short.

    """
    if older_than < OLDER_THAN_MIN:
        raise ValueError(
            f"older_than is {older_than}, it must be at least {OLDER_THAN_MIN}: younger files may "
            "belong to a batch that is being written"
        )
    folder = Path(path)
    manifest = Manifest(folder, fsync=fsync)
    before_s = clock() - older_than.total_seconds()
    # Files first, the manifest second: a file that moves into place now is young, or is counted.
    listed = [file for file in _files_below(folder) if file.suffix == ".parquet"]
    state = manifest.load()
    purged = tuple(name for name, at_ms in state.removed.items() if at_ms < before_s * 1000)
    deleted = size = 0
    for file in listed:
        name = file.relative_to(folder).as_posix()
        if name in state.files or (name in state.removed and name not in purged):
            continue
        with suppress(FileNotFoundError):  # A driver has just moved it to its place.
            stat = file.stat()
            if name in purged or max(stat.st_mtime, stat.st_ctime) < before_s:
                file.unlink()
                deleted += 1
                size += stat.st_size
    _delete_empty(folder / STAGING_FOLDER, before_s)
    if purged:
        change = Change(kind="vacuum", at_ms=now_ms(clock), purge=purged)
        state = _commit(manifest, state, change)
    if state.version:
        manifest.write_snapshot(state)
        manifest.empty_before(state.version, before_s)
    return Vacuumed(deleted, size)


def _commit(manifest: Manifest, state: State, change: Change) -> State:
    for _ in range(TRIES_MAX):
        after = manifest.commit(state, change)
        if after is not None:
            return after
        state = manifest.refresh(state)
        if any(name not in state.files for name in change.remove):
            raise SinkError(
                f"{manifest.folder}: somebody else compacts the same files; run one at a time"
            )
    raise SinkError(f"{manifest.folder} is changed faster than upkeep can follow")


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield all files but the manifest's. Folders that vanish meanwhile are passed over."""
    for root, folders, names in os.walk(folder):
        if Path(root) == folder and LOG_FOLDER in folders:
            folders.remove(LOG_FOLDER)
        yield from (Path(root, name) for name in names)


def _delete_empty(staging: Path, before_s: float) -> None:
    """Delete staging folders of crashed drivers, whose files are gone by now."""
    for file in _files_below(staging):
        with suppress(FileNotFoundError):
            if file.stat().st_mtime < before_s:
                file.unlink()  # Markers and checksums of Spark.
    for root, _, _ in os.walk(staging, topdown=False):
        with suppress(OSError):  # It isn't empty, or gone.
            if Path(root) != staging and Path(root).stat().st_mtime < before_s:
                Path(root).rmdir()
