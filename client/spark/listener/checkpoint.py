"""Which checkpoint belongs to a query, and what it says is finished."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from client.spark.errors import CheckpointError
from client.spark.listener.checkpoint_files import Finished, checkpoint_files, read_finished
from client.spark.listener.queries import Decode, Rules, batch_offsets
from protocol.partition import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

DEFAULT_LOCATION = "spark.sql.streaming.checkpointLocation"


class CheckpointOf:
    """Finds and reads the checkpoints of queries.

    Args:
        given: the checkpoint that the user named; None to find them.

    """

    def __init__(self, given: str | None) -> None:
        self._given = given
        self._found: dict[str, str] = {}

    def read(
        self, query_id: str, name: str | None, spark: "SparkSession | None", after: int
    ) -> Finished | None:
        """Return what a query has finished behind batch *after*; None where there is no telling.

        Raises:
            CheckpointError: the checkpoint can't be read, or is another query's.

        """
        location = self._given or self._locate(query_id, name, spark)
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
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot())  # noqa: SLF001
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
