"""Folders of append-only files that others write, as a partitioned log.

::

    <path>/<topic>/**/<file>                  one partition, 0, or `log.partitions` of them
    <path>/<topic>/partition=<n>/**/<file>    a partition for each such folder
    <path>/<topic>/_index/                    which row has which offset, see `files_index`

A row's offset is its place in the order in which rows were discovered: by the time that files
were changed, then by name. The order is written down when rows are discovered, so it doesn't matter
that a late file sorts before others, or that old files are deleted. Bounds then need a listing and
no file.

Names that begin with ``.`` or ``_``, or look unfinished (``.tmp`` and the like), are ignored, and
links are not followed into folders.
"""

import fnmatch
import os
import re
import stat
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from client.spark.logs.files_formats import (
    PIECE_BYTES,
    UnfinishedError,
    ends_a_line,
    parse_files_options,
    parts_of,
    schema_of,
    written_once,
)
from client.spark.logs.files_index import Piece, PieceIndex, unwritable
from client.spark.logs.files_read import read_piece
from client.spark.logs.partition_log import LogError, PartitionLog
from protocol.partition import TopicPartition

_PARTITION: Final = re.compile(r"partition=(0|[1-9][0-9]{0,8})", re.ASCII)
_PADDED: Final = re.compile(r"partition=0[0-9]+", re.ASCII)
SCHEMA_FILE: Final = "schema.arrow"
_UNFINISHED: Final = (".tmp", ".temp", ".part", ".partial", ".inprogress", ".crc", "._COPYING_")


class FileStatus(NamedTuple):
    """What a listing tells of a file."""

    size: int
    mtime_ns: int


# Lists the files below a folder, by name.
ListFiles = Callable[[Path], Iterable[tuple[str, FileStatus]]]


class FilesLog(PartitionLog):
    """Reads the files below the folder that the option ``path`` names.

    Args:
        options: the options of the stream.
        clock: the time in seconds since 1970, as files have it.
        list_files: lists what is below a folder; on network file systems it may lag.

    Raises:
        OptionError: an option is missing, unknown or impossible.

    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        clock: Callable[[], float] = time.time,
        list_files: ListFiles | None = None,
    ) -> None:
        super().__init__(options)
        self._options = parse_files_options(options)
        self._root = Path(self._options.path)
        self._clock = clock
        self._list_files = list_files or files_below
        self._lock = threading.Lock()
        self._indexes: dict[TopicPartition, PieceIndex] = {}
        # Of files that had nothing new: how large they were then.
        self._looked_at: dict[tuple[TopicPartition, str], int] = {}
        self._gone: dict[TopicPartition, set[str]] = {}
        self._first: dict[TopicPartition, int] = {}

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*, ascending."""
        folder = self._topic_folder(topic)
        if self._options.partitions is not None:
            return list(range(self._options.partitions))
        names = [entry.name for entry in _entries(folder) if entry.is_dir()]
        if padded := next(filter(_PADDED.fullmatch, names), None):
            raise LogError(
                f"{folder / padded}: a partition's number is written without leading zeros, as "
                "in 'partition=7'; rename the folder, or set option 'log.partitions' if it's none"
            )
        found = map(_PARTITION.fullmatch, names)
        return sorted({int(match[1]) for match in found if match}) or [0]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset from which all rows are there, and the end offset."""
        tp = TopicPartition(topic, partition)
        with self._lock:
            index = self._index(tp)
            index.load()
            files = self._list(tp)
            if self._news(tp, index, files):
                with index.adding():
                    files = self._list(tp)  # Others may have added what the old list hasn't.
                    for name in self._news(tp, index, files):
                        index.add(self._pieces(tp, index, name))
                        self._looked_at[tp, name] = files[name].size
            return self._first_offset(tp, index, files), index.end

    def schema(self, topic: str) -> pa.Schema:
        """Return the columns: of option ``log.schema``, or of the topic's first file.

        Raises:
            LogError: there is no file yet that tells.

        """
        if self._options.schema is not None:
            return self._options.schema
        kept = self._index_folder(topic) / SCHEMA_FILE
        if (schema := _kept_schema(kept)) is not None:
            return schema
        for path in self._by_age(topic):
            try:
                schema = schema_of(self._options, path)
            except (pa.ArrowException, OSError):
                continue  # It isn't finished; the next one may be.
            return _keep_schema(kept, schema)
        raise LogError(
            f"no file of topic {topic!r} in {self._root} tells its columns; give them with option "
            "'log.schema'"
        )

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows ``start <= offset < end``.

        Raises:
            LogError: some of them are not there (any more).

        """
        if start >= end:
            return
        tp = TopicPartition(topic, partition)
        index = self._new_index(tp)
        pieces = index.find(start, end)
        if not pieces or pieces[0].base > start or pieces[-1].end < end:
            index.load()
            first = index.pieces[0].base if index.pieces else 0
            raise LogError(
                f"{tp}: the rows from {start} to {end} are missing: the log holds {first} to "
                f"{index.end}"
            )
        schema, folder = self.schema(topic), self._folder(tp)
        for piece in pieces:
            yield from read_piece(self._options, schema, folder, piece, start, end)

    def topics(self) -> list[str]:
        """Return the folders below ``path``, ascending."""
        try:
            return sorted(entry.name for entry in _entries(self._root) if entry.is_dir())
        except OSError as error:
            raise LogError(f"the log folder {self._root} can't be listed: {error}") from error

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first row of the first file that was changed at that time or later."""
        found = {}
        for tp in partitions:
            first, end = self.bounds(*tp)
            with self._lock:
                files = self._list(tp)
                late = (
                    max(piece.base, first)
                    for piece in self._index(tp).pieces
                    if piece.end > first
                    and piece.file in files
                    and files[piece.file].mtime_ns >= timestamp_ms * 1_000_000
                )
                found[tp] = next(late, end)
        return found

    # --- Discovery ---------------------------------------------------------------------------

    def _news(
        self, tp: TopicPartition, index: PieceIndex, files: Mapping[str, FileStatus]
    ) -> list[str]:
        """Return the files that may have rows without offsets, in the order of discovery."""
        news = []
        for name, seen in files.items():
            known = index.files.get(name)
            once = written_once(self._options, name)
            if known is not None and _shows_change(self._folder(tp) / name, seen, known, once=once):
                raise LogError(
                    f"{self._folder(tp) / name} was changed: files of a log may only "
                    f"{'be written once' if once else 'grow'}. Rotate logs under names that stay"
                )
            if known is not None and (once or seen.size <= known.to):
                continue
            if not once and not seen.size:
                continue
            if self._looked_at.get((tp, name)) != seen.size or self._settled(seen):
                news.append(name)
        return sorted(news, key=lambda name: (files[name].mtime_ns, name))

    def _pieces(self, tp: TopicPartition, index: PieceIndex, name: str) -> list[Piece]:
        """Return the pieces that give offsets to a file's new rows; none if it isn't ready."""
        path = self._folder(tp) / name
        once = written_once(self._options, name)
        try:
            before = _seen(path.stat())
            complete = self._settled(before)
            at, base = self._begin(path, index, name)
            pieces = []
            for part in parts_of(self._options, path, at, complete=complete):
                size = before.size if once else 0
                pieces.append(Piece(name, part.at, part.to, base, base + part.rows, size))
                base += part.rows
            if (once or complete) and _seen(path.stat()) != before:
                return []  # Somebody writes it just now.
        except FileNotFoundError:
            return []
        except UnfinishedError as error:
            if complete:
                raise LogError(
                    f"{path} can't be read as {self._options.format}, although nobody has changed "
                    f"it for {self._options.settle_s:g} s (option 'log.settle'): {error}. Mend it, "
                    "or hide it: give it a name that begins with '_'"
                ) from error
            return []
        if once and not pieces:
            pieces = [Piece(name, 0, 0, base, base, before.size)]
        return [] if pieces[-1:] == index.pieces[-1:] else pieces

    def _begin(self, path: Path, index: PieceIndex, name: str) -> tuple[int, int]:
        """Return from where on a file has no offsets, and the next one."""
        known = index.files.get(name)
        if known is None:
            return 0, index.end
        short = known.to - known.at < PIECE_BYTES // 2
        if short and known == index.pieces[-1] and ends_a_line(path, known.to):
            return known.at, known.base  # It gets longer, as a piece for each line is too many.
        return known.to, index.end

    def _settled(self, seen: FileStatus) -> bool:
        return self._clock() - seen.mtime_ns / 1e9 >= self._options.settle_s

    def _first_offset(
        self, tp: TopicPartition, index: PieceIndex, files: Mapping[str, FileStatus]
    ) -> int:
        # A listing on a network file system may lag: only what can't be found either is gone.
        gone = self._gone.setdefault(tp, set())
        missing = index.files.keys() - files.keys() - gone
        lost = {name for name in missing if not (self._folder(tp) / name).exists()}
        if lost:
            gone |= lost
            ends = (piece.end for piece in reversed(index.pieces) if piece.file in lost)
            self._first[tp] = max(self._first.get(tp, 0), next(ends))
        return max(self._first.get(tp, 0), index.pieces[0].base if index.pieces else 0)

    # --- Places ------------------------------------------------------------------------------

    def _topic_folder(self, topic: str) -> Path:
        if not topic or "/" in topic or _hidden(topic):
            raise LogError(f"a topic of a log of files is the name of a folder, not {topic!r}")
        folder = self._root / topic
        if not folder.is_dir():
            raise LogError(f"no topic {topic!r} in the log folder {self._root}")
        return folder

    def _folder(self, tp: TopicPartition) -> Path:
        folder = self._topic_folder(tp.topic)
        own = folder / f"partition={tp.partition}"
        if self._options.partitions is None and own.is_dir():
            return own
        if tp.partition not in self.partitions(tp.topic):
            raise LogError(f"topic {tp.topic!r} in {self._root} has no partition {tp.partition}")
        return folder

    def _list(self, tp: TopicPartition) -> dict[str, FileStatus]:
        folder, count = self._folder(tp), self._options.partitions
        return {
            name: seen
            for name, seen in self._list_files(folder)
            if fnmatch.fnmatchcase(Path(name).name, self._options.pattern)
            and (count is None or zlib.crc32(os.fsencode(name)) % count == tp.partition)
        }

    def _index(self, tp: TopicPartition) -> PieceIndex:
        if tp not in self._indexes:
            self._indexes[tp] = self._new_index(tp)
        return self._indexes[tp]

    def _new_index(self, tp: TopicPartition) -> PieceIndex:
        self._folder(tp)  # So that what isn't there has a message of its own.
        about = {"format": self._options.format, "partitions": self._options.partitions}
        return PieceIndex(self._index_folder(tp.topic), tp.partition, about)

    def _index_folder(self, topic: str) -> Path:
        kept = self._options.index_folder
        return Path(kept) / topic if kept else self._topic_folder(topic) / "_index"

    def _by_age(self, topic: str) -> list[Path]:
        found = [
            (seen.mtime_ns, self._folder(tp) / name)
            for tp in (TopicPartition(topic, number) for number in self.partitions(topic))
            for name, seen in self._list(tp).items()
        ]
        return [path for _, path in sorted(found)]


def _kept_schema(path: Path) -> pa.Schema | None:
    try:
        return pa.ipc.read_schema(pa.BufferReader(path.read_bytes()))
    except FileNotFoundError:
        return None


def _keep_schema(path: Path, schema: pa.Schema) -> pa.Schema:
    """Keep the columns for all processes; return them, or those that another one has kept."""
    building = path.with_name(f".{SCHEMA_FILE}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        building.write_bytes(schema.serialize().to_pybytes())
        try:
            os.link(building, path)
        finally:
            building.unlink()
    except FileExistsError:
        kept = _kept_schema(path)
        assert kept is not None
        return kept
    except OSError as error:
        raise unwritable(path.parent, error) from error
    return schema


def _hidden(name: str) -> bool:
    return name.startswith((".", "_"))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return [entry for entry in entries if not _hidden(entry.name)]


def files_below(folder: Path, prefix: str = "") -> Iterator[tuple[str, FileStatus]]:
    """Yield the name and status of each file below *folder* that is neither hidden nor unfinished.

    Args:
        folder: where to look, in its folders too.
        prefix: what names begin with: the path of *folder* in that of the first call.

    """
    try:
        entries = _entries(folder)
    except FileNotFoundError:
        if prefix:
            return  # Deleted, with its files, since it was listed.
        raise
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from files_below(folder / entry.name, f"{prefix}{entry.name}/")
        elif not entry.name.endswith(_UNFINISHED):
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # Deleted, or renamed, since it was listed.
            if stat.S_ISREG(status.st_mode):
                yield prefix + entry.name, _seen(status)


def _shows_change(path: Path, seen: FileStatus, known: Piece, *, once: bool) -> bool:
    """Say whether a file is no longer the one whose rows have offsets."""
    if not _differs(seen, known, once=once):
        return False
    # On a network file system only who opens a file is sure to see what others wrote.
    try:
        with path.open("rb") as file:
            return _differs(_seen(os.fstat(file.fileno())), known, once=once)
    except FileNotFoundError:
        return False


def _differs(seen: FileStatus, known: Piece, *, once: bool) -> bool:
    return seen.size != known.size if once else seen.size < known.to


def _seen(status: os.stat_result) -> FileStatus:
    return FileStatus(status.st_size, status.st_mtime_ns)
