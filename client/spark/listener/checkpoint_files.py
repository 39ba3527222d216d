"""What a query's checkpoint says is finished.

A checkpoint has a file per batch in ``offsets/``, written before the batch runs, and one in
``commits/``, written when it is done: what both have is finished. The folders are Spark's own
and undocumented, but they are the memory of every query, so their form changes rarely, and a
form that isn't known is refused.
"""

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from pyspark.errors import PySparkException

from client.spark.errors import CheckpointError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The newest forms of the two folders that this release has seen (Spark 4.3).
OFFSETS_VERSION_MAX: Final = 2
COMMITS_VERSION_MAX: Final = 3

NO_OFFSET: Final = "-"  # Of a source that has had no batch yet.
BEFORE_ALL: Final = -1

# Up to the slash that the path begins with; file:/a and file:///a are the same.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://(?=/))?(?=/)")

# Spark keeps so many batches by default, spark.sql.streaming.minBatchesToRetain.
BATCHES_MAX: Final = 100


class FinishedBatch(NamedTuple):
    """One batch that is done: the end offset of each source, JSON text by the source's name.

    Sources without a name are numbered from 0, in the order of the plan.
    """

    batch_id: int
    sources: dict[str, str]


class Finished(NamedTuple):
    """The newest finished batches of a query, oldest first."""

    query_id: str | None
    batches: tuple[FinishedBatch, ...]


class CheckpointFiles(Protocol):
    """Where a checkpoint lies."""

    @property
    def location(self) -> str:
        """The checkpoint, for messages."""

    def batch_ids(self, folder: str) -> set[int]:
        """Return the numbers that are names of files in *folder*; none if it isn't there."""

    def texts(self, folder: str, names: Collection[str]) -> dict[str, str]:
        """Return the text of those files of *folder* that are there, by name."""


def read_finished(files: CheckpointFiles, after: int = BEFORE_ALL) -> Finished:
    """Return the finished batches behind number *after*, at most the newest hundred.

    Raises:
        CheckpointError: it can't be read, or a newer Spark wrote it.

    """
    metadata = files.texts("", ["metadata"]).get("metadata")
    commits = files.batch_ids("commits")
    done = sorted(n for n in commits & files.batch_ids("offsets") if n > after)[-BATCHES_MAX:]
    batches = []
    if done:
        newest = str(done[-1])
        # Spark deletes the oldest batches while it runs; those are simply gone.
        for name, text in files.texts("commits", [newest]).items():
            _lines(text, COMMITS_VERSION_MAX, f"{files.location}/commits/{name}")
        texts = files.texts("offsets", [str(batch_id) for batch_id in done])
        batches = [
            FinishedBatch(n, parse_offsets(texts[str(n)], f"{files.location}/offsets/{n}"))
            for n in done
            if str(n) in texts
        ]
    return Finished(_query_id(metadata, files.location), tuple(batches))


def parse_offsets(text: str, name: str) -> dict[str, str]:
    """Return the JSON text of each source's offset; those that have none are left out. Pure.

    Args:
        text: a file of the folder ``offsets``.
        name: the file, for messages.

    Raises:
        CheckpointError: it has no form that is known.

    """
    version, lines = _lines(text, OFFSETS_VERSION_MAX, name)
    # The first line is about the batch, not about a source.
    if version == 1:
        named = {str(number): line for number, line in enumerate(lines[1:])}
    else:
        named = {}
        for line in lines[1:]:
            source, colon, offset = line.partition(":")
            if not colon:
                raise CheckpointError(f"{name} is damaged: {line[:60]!r} is no source's offset")
            named[source] = offset
    return {source: offset for source, offset in named.items() if offset not in {NO_OFFSET, ""}}


def _lines(text: str, version_max: int, name: str) -> tuple[int, list[str]]:
    first, *lines = text.splitlines() or [""]
    if not (first[:1] == "v" and first[1:].isdecimal()):
        raise CheckpointError(f"{name} is damaged: it begins with {first[:20]!r}, not a version")
    version = int(first[1:])
    if not 1 <= version <= version_max:
        raise CheckpointError(
            f"{name} has version {version}, this release reads up to {version_max}: a newer "
            f"Spark wrote it; update group-coordinator"
        )
    return version, lines


def _query_id(metadata: str | None, location: str) -> str | None:
    if metadata is None:
        return None
    try:
        return str(json.loads(metadata)["id"])
    except (ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(f"{location}/metadata is damaged: it names no query") from exc


class LocalFiles:
    """A checkpoint in a folder of this machine."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    @property
    def location(self) -> str:
        """The folder."""
        return str(self._folder)

    def batch_ids(self, folder: str) -> set[int]:
        """Return the numbers that are names of files."""
        try:
            names = [path.name for path in (self._folder / folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return set()
        except OSError as exc:
            raise CheckpointError(f"checkpoint {self._folder}: {exc}") from exc
        return _numbers(names)

    def texts(self, folder: str, names: Collection[str]) -> dict[str, str]:
        """Return the text of the files that are there."""
        found = {}
        for name in names:
            try:
                found[name] = (self._folder / folder / name).read_text(encoding="utf-8")
            except (FileNotFoundError, NotADirectoryError):
                continue
            except (OSError, ValueError) as exc:
                raise CheckpointError(f"checkpoint {self._folder}: {exc}") from exc
        return found


class SparkFiles:
    """A checkpoint where only Spark can read: HDFS, an object store, a Connect server.

    Spark's own reader for binary files gets at it, in a small job of one or two tenths of a
    second, so it works with Spark Connect as well.
    """

    def __init__(self, spark: "SparkSession", location: str) -> None:
        self._spark = spark
        self._location = location.rstrip("/")

    @property
    def location(self) -> str:
        """The checkpoint's URI."""
        return self._location

    def batch_ids(self, folder: str) -> set[int]:
        """Return the numbers that are names of files."""
        return _numbers(self._read(folder, "[0-9]*", "length"))

    def texts(self, folder: str, names: Collection[str]) -> dict[str, str]:
        """Return the text of the files that are there."""
        found = self._read(folder, "{" + ",".join(sorted(names)) + "}", "content")
        try:
            return {name: bytes(content).decode() for name, content in found.items()}
        except UnicodeDecodeError as exc:
            raise CheckpointError(f"checkpoint {self._location}: a file is no text") from exc

    def _read(self, folder: str, pattern: str, column: str) -> "dict[str, bytes | bytearray]":
        where = f"{self._location}/{folder}" if folder else self._location
        try:
            rows = (
                self._spark.read.format("binaryFile")
                .option("pathGlobFilter", pattern)
                .option("ignoreMissingFiles", "true")
                .load(where)
                .select("path", column)
                .collect()
            )
        except PySparkException as exc:
            if exc.getCondition() == "PATH_NOT_FOUND":
                return {}
            raise CheckpointError(f"checkpoint {self._location}: {exc}") from exc
        except Exception as exc:
            # What a session raises that is being stopped depends on where it is just then.
            raise CheckpointError(f"checkpoint {self._location}: {exc!r}") from exc
        return {row[0].rpartition("/")[2]: row[1] for row in rows}


def checkpoint_files(location: str, spark: "SparkSession | None") -> CheckpointFiles:
    """Return how to read the checkpoint at *location*, a path or URI as Spark takes it.

    What is on this machine is read directly. A path without a scheme may as well mean the
    cluster's file system, so where it isn't here, *spark* looks.

    Raises:
        CheckpointError: it isn't on this machine, and there is no session.

    """
    scheme = _SCHEME.match(location)
    if scheme is None or scheme[1].lower() == "file":
        # Spark takes a location as it is, so nothing in it is escaped.
        path = location if scheme is None else location[scheme.end() :]
        if spark is None or (Path(path) / "metadata").exists():
            return LocalFiles(path)
    if spark is None:
        raise CheckpointError(f"checkpoint {location}: only a running Spark session can read it")
    return SparkFiles(spark, location)


def _numbers(names: Collection[str]) -> set[int]:
    # Everything else is a checksum or a file that is being written.
    return {int(name) for name in names if name.isascii() and name.isdecimal()}
