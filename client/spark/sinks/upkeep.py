"""What keeps a folder of a `FolderSink` fast and small; safe while drivers write and read."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, NamedTuple

from client.spark.sinks.manifest import LOG_FOLDER, Change, Manifest, State
from client.spark.sinks.ranges import SinkError
from client.spark.sinks.table import STAGING_FOLDER, parquet_of, schema_of, write_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIB: Final = 1 << 20
TRIES_MAX: Final = 1_000

# What is younger may belong to a batch that is being written.
OLDER_THAN_MIN: Final = timedelta(hours=1)


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
        change = Change(kind="compact", at_ms=int(clock() * 1000), add=files, remove=tuple(names))
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
        change = Change(kind="vacuum", at_ms=int(clock() * 1000), purge=purged)
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
