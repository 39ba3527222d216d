"""What a query's checkpoint says is finished, and which checkpoint belongs to a query.

A checkpoint has a file per batch in ``offsets/``, written before the batch runs, and one in
``commits/``, written when it is done: what both have is finished. The folders are Spark's own
and undocumented, but they are the memory of every query, so their form changes rarely, and a
form that isn't known is refused.
"""

import json
import logging
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.errors import PySparkException

from client.spark.errors import CheckpointError
from client.spark.listener.queries import Decode, Rules, batch_offsets
from protocol.partition import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

DEFAULT_LOCATION: Final = "spark.sql.streaming.checkpointLocation"

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


class CheckpointOf:
    """Finds and reads the checkpoints of queries.

    Args:
        location: the checkpoint that the user named; None to find them.

    """

    def __init__(self, location: str | None) -> None:
        self._location = location
        self._found: dict[str, str] = {}

    def read(
        self, query_id: str, name: str | None, spark: "SparkSession | None", after: int
    ) -> Finished | None:
        """Return what a query has finished behind batch *after*; None where there is no telling.

        Raises:
            CheckpointError: the checkpoint can't be read, or is another query's.

        """
        location = self._location or self._locate(query_id, name, spark)
        if location is None:
            logger.debug("no checkpoint of query %s is known", name or query_id)
            return None
        finished = read_finished(checkpoint_files(location, spark), after)
        if finished.query_id is None:
            logger.debug("query %s has no checkpoint at %s", name or query_id, location)
            return None
        if finished.query_id != query_id:
            raise CheckpointError(
                f"{location} is the checkpoint of query {finished.query_id}, not of {query_id}"
            )
        return finished

    def _locate(self, query_id: str, name: str | None, spark: "SparkSession | None") -> str | None:
        if spark is None:
            return None
        if query_id not in self._found:
            location = _resolved(spark, query_id) or _default(spark, name)
            if location is not None:
                self._found[query_id] = location
        return self._found.get(query_id)


def checkpoint_offsets(
    checkpoint: str,
    spark: "SparkSession | None" = None,
    *,
    file_topics: Mapping[str, str] | None = None,
    decode: Decode | None = None,
) -> dict[TopicPartition, int]:
    """Return what a query's checkpoint says is finished: the next offset per partition.

    Args:
        checkpoint: its path or URI.
        spark: reads what isn't on this machine; by default the session that runs, if any.
        file_topics: see `GroupOffsetListener`.
        decode: see `GroupOffsetListener`.

    Raises:
        CheckpointError: it can't be read, or there is none.
        DecodeFailed: *decode* failed.

    """
    finished = read_one(checkpoint, spark or running_session())
    found = batch_offsets(finished.batches, Rules(None, dict(file_topics or {}), decode))
    return {tp: offset for tp, (offset, _) in found.items()}


def read_one(checkpoint: str, spark: "SparkSession | None") -> Finished:
    """Return what the checkpoint of some query says.

    Raises:
        CheckpointError: it can't be read, or there is none.

    """
    finished = read_finished(checkpoint_files(checkpoint, spark))
    if finished.query_id is None:
        raise CheckpointError(f"{checkpoint} is no checkpoint: it has no file 'metadata'")
    return finished


def running_session() -> "SparkSession | None":
    """Return this process' session, whichever thread asks; None if there is none."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - it loads much that events don't need.

    try:
        return SparkSession.active()
    except PySparkException:
        return None


def _resolved(spark: Any, query_id: str) -> str | None:
    """Ask the query itself, while it runs. Spark Connect doesn't tell."""
    try:
        query = spark.streams.get(query_id)
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001 - see below.
    except Exception as exc:  # noqa: BLE001 - not a public way: whatever it does, go without.
        logger.debug("the checkpoint of query %s isn't found: %r", query_id, exc)
        return None


def _default(spark: Any, name: str | None) -> str | None:
    """Return where Spark puts the checkpoints of queries that have a name."""
    try:
        root = spark.conf.get(DEFAULT_LOCATION, None)
    except Exception as exc:  # noqa: BLE001 - the session may have ended.
        logger.debug("%s can't be read: %r", DEFAULT_LOCATION, exc)
        return None
    return f"{root.rstrip('/')}/{name}" if root and name else None


def read_finished(files: "CheckpointFiles", after: int = BEFORE_ALL) -> Finished:
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


CheckpointFiles = LocalFiles | SparkFiles


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
