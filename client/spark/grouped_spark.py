"""Spark's side of a grouped query. Uses nothing that Spark Connect lacks."""

import inspect
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from client.spark.grouped_types import GroupedQueryError, GroupedRun, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# The user's function: from the run's rows to the writer, which is not started yet. The run is
# handed over if the function takes a second argument.
Build = Callable[..., Any]

# What Spark says a query does while no sink is writing.
_BETWEEN: Final = (
    "Initializing",
    "Getting offsets",
    "Writing offsets to log",
    "Waiting for",
)
STOP_PAUSE_S: Final = 0.5


class SparkRuns:
    """Starts queries over Spark's Kafka source.

    Args:
        spark: a session, classic or of Spark Connect.
        kafka_options: for the source.
        build: the user's function.

    """

    def __init__(
        self, spark: "SparkSession", kafka_options: Mapping[str, str], build: Build
    ) -> None:
        self._spark = spark
        self._options = kafka_options
        self._build = build
        self._takes_run = _num_arguments(build) > 1

    def start(self, run: GroupedRun, checkpoint: str) -> "SparkQuery":
        """See `Runs.start`."""
        rows = (
            self._spark.readStream.format("kafka")
            .options(**self._options)
            .option("assign", _assign(run))
            .option("startingOffsets", _starting(run))
            .load()
        )
        writer = self._build(rows, run) if self._takes_run else self._build(rows)
        if hasattr(writer, "runId"):
            writer.stop()
            raise GroupedQueryError(
                "build started the query: it must return the writer, such as "
                "df.writeStream.foreachBatch(f), without start()"
            )
        if not hasattr(writer, "trigger"):
            raise GroupedQueryError(
                f"build returned {type(writer).__name__}: it must return a writer, such as "
                "df.writeStream.foreachBatch(f)"
            )
        return SparkQuery(writer.option("checkpointLocation", checkpoint).start())


class StreamingQueryLike(Protocol):
    """What is used of a query, classic or of Spark Connect."""

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name.
        """Whether it runs."""

    @property
    def status(self) -> Mapping[str, Any]:
        """What it does now."""

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name.
        """What its last batch did."""

    def exception(self) -> Exception | None:
        """Return what ended it."""

    def stop(self) -> None:
        """End it."""


class SparkQuery:
    """A query of Spark that stays answerable when Spark is gone; see `RunningQuery`."""

    def __init__(self, query: StreamingQueryLike) -> None:
        self._query = query
        self._gone: Exception | None = None

    def is_active(self) -> bool:
        """See `RunningQuery.is_active`."""
        return bool(self._ask(lambda: self._query.isActive, otherwise=False))

    def failure(self) -> Exception | None:
        """See `RunningQuery.failure`."""
        failure: Exception | None = self._ask(self._query.exception, otherwise=None)
        return failure or self._gone

    def between_batches(self) -> bool:
        """See `RunningQuery.between_batches`."""
        status = self._ask(lambda: self._query.status, otherwise=None)
        if status is None or not status["isTriggerActive"]:
            return True
        return str(status["message"]).startswith(_BETWEEN)

    def progress(self) -> Progress | None:
        """See `RunningQuery.progress`."""
        progress = self._ask(lambda: self._query.lastProgress, otherwise=None)
        if progress is None:
            return None
        return Progress(
            str(progress["sink"]["description"]),
            tuple(str(one["operatorName"]) for one in progress["stateOperators"]),
        )

    def stop(self) -> None:
        """See `RunningQuery.stop`."""
        while self.is_active():
            try:
                self._query.stop()
            except Exception as error:  # noqa: BLE001 - such as a timeout: it may still write.
                logger.warning("the query does not stop yet: %s", error)
                time.sleep(STOP_PAUSE_S)

    def _ask(self, question: Callable[[], Any], otherwise: Any) -> Any:
        if self._gone is not None:
            return otherwise
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever the way to a JVM that died raises.
            logger.warning("Spark is gone: %s", error)
            self._gone = error
            return otherwise


def _num_arguments(build: Build) -> int:
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


def _assign(run: GroupedRun) -> str:
    topics: dict[str, list[int]] = {}
    for topic, partition in run.starting_offsets:
        topics.setdefault(topic, []).append(partition)
    return json.dumps(topics)


def _starting(run: GroupedRun) -> str:
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in run.starting_offsets.items():
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics)
