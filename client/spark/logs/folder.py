"""A partitioned log in a folder: append-only chunk files, readable while another process appends.

::

    <root>/<topic>/_schema.arrow                        the columns, an Arrow IPC schema
    <root>/<topic>/_topic_id                            another one when the topic is made anew
    <root>/<topic>/_writer.lock                         held by the one process that appends
    <root>/<topic>/<partition>/<base>-<end>.arrow       rows base <= offset < end, Arrow IPC file

Base and end are offsets of 20 digits. A chunk is written under a name that readers ignore and
becomes visible, whole, by one atomic rename, so a reader needs no lock and never sees half a
chunk. Bounds come from the names alone; no file is opened. Old chunks may be deleted from the
front, but never the last one of a partition: its name is all that tells where to go on.
"""

import fcntl
import os
import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import pyarrow as pa

from client.spark.disk import fsync_path
from client.spark.logs.partition_log import LogError, PartitionLog
from client.spark.options import OptionError
from protocol.partition import TopicPartition

SCHEMA_FILE: Final = "_schema.arrow"
LOCK_FILE: Final = "_writer.lock"
ID_FILE: Final = "_topic_id"

# A record batch is what an executor holds in memory at once.
BATCH_ROWS_MAX: Final = 16_384

_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}", re.ASCII)
_CHUNK: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.arrow", re.ASCII)


class Chunk(NamedTuple):
    """One visible file: rows ``base <= offset < end``."""

    base: int
    end: int
    path: Path


class FolderLog(PartitionLog):
    """Reads the folder that the option ``path`` names.

    Raises:
        OptionError: the option ``path`` is missing.

    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        path = options.get("path", "")
        if not path:
            raise OptionError("option 'path' is missing: the folder that holds the log's topics")
        self._root = Path(path)

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*, ascending."""
        folder = _topic_folder(self._root, topic)
        try:
            names = [entry.name for entry in folder.iterdir()]
        except FileNotFoundError:
            raise LogError(f"no topic {topic!r} in the log folder {self._root}") from None
        return sorted(int(name) for name in names if name.isdecimal())

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset and the end offset of a partition; (0, 0) when empty."""
        chunks = _chunks(_topic_folder(self._root, topic) / str(partition))
        return (chunks[0].base, chunks[-1].end) if chunks else (0, 0)

    def topics(self) -> list[str]:
        """Return the topics of the folder, ascending."""
        try:
            found = list(self._root.iterdir())
        except OSError as error:
            raise LogError(f"the log folder {self._root} can't be listed: {error}") from error
        return sorted(
            path.name
            for path in found
            if _TOPIC.fullmatch(path.name) and (path / SCHEMA_FILE).is_file()
        )

    def topic_id(self, topic: str) -> str | None:
        """Return what the topic got when it was made; None for one of an older release."""
        try:
            return (_topic_folder(self._root, topic) / ID_FILE).read_text("ascii").strip()
        except FileNotFoundError:
            return None

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the start of the first chunk that was written at that time or later."""
        found = {}
        for tp in partitions:
            chunks = _chunks(_topic_folder(self._root, tp.topic) / str(tp.partition))
            late = (c.base for c in chunks if c.path.stat().st_mtime_ns >= timestamp_ms * 1_000_000)
            found[tp] = next(late, chunks[-1].end if chunks else 0)
        return found

    def schema(self, topic: str) -> pa.Schema:
        """Return the columns that the topic was created with."""
        return _read_schema(_topic_folder(self._root, topic))

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows ``start <= offset < end``.

        Raises:
            LogError: some of them are not there (any more).

        """
        at = start
        for chunk in _chunks(_topic_folder(self._root, topic) / str(partition)):
            if chunk.end <= at:
                continue
            if at >= end or chunk.base > at:
                break
            for batch in _read_chunk(chunk, at, end):
                at += batch.num_rows
                yield batch
        if at < end:
            raise LogError(f"{topic}-{partition}: the rows from {at} to {end} are missing")


class FolderLogWriter:
    """Appends to one topic of a folder log; the only writer of that topic while it is open.

    Args:
        root: the folder of the log.
        topic: a topic made by `create`.
        fsync: whether a chunk is on disk before it becomes visible. Without it a power failure
            may take back rows whose offsets are already committed.

    Raises:
        LogError: there is no such topic, or another writer has it open.

    """

    def __init__(self, root: str | Path, topic: str, *, fsync: bool = True) -> None:
        self._folder = _topic_folder(Path(root), topic)
        self._fsync = fsync
        self.schema: pa.Schema = _read_schema(self._folder)
        self._lock = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise LogError(f"another process is writing to {self._folder}") from None
        self._ends: dict[int, int] = {}
        for entry in self._folder.iterdir():
            if entry.name.isdecimal():
                chunks = _chunks(entry)
                self._ends[int(entry.name)] = chunks[-1].end if chunks else 0

    @classmethod
    def create(
        cls,
        root: str | Path,
        topic: str,
        schema: pa.Schema,
        num_partitions: int,
        *,
        fsync: bool = True,
    ) -> Self:
        """Make *topic* with empty partitions and open it for writing.

        Raises:
            LogError: the topic exists already.
            ValueError: a bad topic name or number of partitions.

        """
        if num_partitions < 1:
            raise ValueError(f"num_partitions is {num_partitions}, it must be at least 1")
        folder = _topic_folder(Path(root), topic)
        building = folder.with_name(f".{topic}.{os.getpid()}.building")
        for partition in range(num_partitions):
            (building / str(partition)).mkdir(parents=True)
        for name, content in (
            (SCHEMA_FILE, schema.serialize().to_pybytes()),
            (ID_FILE, uuid.uuid4().hex.encode()),
        ):
            with (building / name).open("wb") as file:
                file.write(content)
                file.flush()
                if fsync:
                    os.fsync(file.fileno())
        if fsync:
            for made in (*(building / str(p) for p in range(num_partitions)), building):
                fsync_path(made)
        try:
            building.rename(folder)  # The topic appears whole; on Linux only over an empty folder.
        except OSError as error:
            raise LogError(f"the topic folder {folder} can't be made: {error}") from error
        if fsync:
            fsync_path(folder.parent)
        return cls(root, topic, fsync=fsync)

    def append(self, partition: int, rows: pa.Table | pa.RecordBatch) -> tuple[int, int]:
        """Make *rows* the next rows of *partition*; return their first and end offset.

        Raises:
            LogError: there is no such partition.
            ValueError: the columns are not those of the topic.

        """
        if partition not in self._ends:
            raise LogError(f"{self._folder} has no partition {partition}")
        if not rows.schema.equals(self.schema):
            raise ValueError(f"the rows have the columns {rows.schema}, the topic {self.schema}")
        base = self._ends[partition]
        end = base + int(rows.num_rows)
        if end == base:
            return base, end
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        folder = self._folder / str(partition)
        building = folder / f".{base:020d}.building"
        with building.open("wb") as file:
            with pa.ipc.new_file(file, self.schema) as writer:
                writer.write_table(table, max_chunksize=BATCH_ROWS_MAX)
            file.flush()
            if self._fsync:
                os.fsync(file.fileno())
        building.rename(folder / f"{base:020d}-{end:020d}.arrow")
        if self._fsync:
            fsync_path(folder)
        self._ends[partition] = end
        return base, end

    def end(self, partition: int) -> int:
        """Return the offset that the next row of *partition* will get."""
        return self._ends[partition]

    def close(self) -> None:
        """Let another process write. Idempotent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _topic_folder(root: Path, topic: str) -> Path:
    if not _TOPIC.fullmatch(topic):
        raise ValueError(
            f"a topic of a folder log is 1-249 letters, digits, '.', '_' or '-', not {topic!r}"
        )
    return root / topic


def _chunks(folder: Path) -> list[Chunk]:
    """Return the visible chunks in order.

    A listing that runs while chunks appear may show a newer one and miss an older one. The
    writer makes them visible in order, so a second listing shows whatever came before any
    chunk of the first one; a hole that is still there is damage.
    """
    chunks = _list_chunks(folder)
    if (hole := _hole(chunks)) is None:
        return chunks
    seen = chunks[hole]
    chunks = _list_chunks(folder)
    if (hole := _hole(chunks)) is None:
        return chunks
    if chunks[hole] <= seen:
        raise LogError(
            f"{folder} is damaged: {chunks[hole].path.name} does not begin where "
            f"{chunks[hole - 1].path.name} ends"
        )
    return chunks[:hole]


def _list_chunks(folder: Path) -> list[Chunk]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        raise LogError(f"no partition folder {folder}") from None
    return sorted(
        Chunk(int(match[1]), int(match[2]), folder / name)
        for name in names
        if (match := _CHUNK.fullmatch(name))
    )


def _hole(chunks: list[Chunk]) -> int | None:
    """Return the index of the first chunk that does not begin where the one before ends."""
    after = range(1, len(chunks))
    return next((index for index in after if chunks[index].base != chunks[index - 1].end), None)


def _read_schema(folder: Path) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.BufferReader((folder / SCHEMA_FILE).read_bytes()))
    except FileNotFoundError:
        raise LogError(f"no topic {folder.name!r} in the log folder {folder.parent}") from None


def _read_chunk(chunk: Chunk, start: int, end: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(str(chunk.path)) as source:
        reader = pa.ipc.open_file(source)
        base = chunk.base
        for index in range(reader.num_record_batches):
            batch = reader.get_batch(index)
            low, high = max(start - base, 0), min(end - base, batch.num_rows)
            if low < high:
                yield batch.slice(low, high - low)
            base += batch.num_rows
