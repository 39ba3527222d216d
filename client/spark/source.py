# ruff: noqa: N802 - Spark chose the names of these methods.
"""The format ``coordinated``: the reader core as a PySpark data source.

Spark makes these objects in several processes: in short planning workers, in the one long-lived
reader process of a query run, and, as pickled copies, in executors. Only the reader process may
join the group, so nothing happens before `initialOffset`, `latestOffset`, `partitions` or
`prepareForTriggerAvailableNow` is called; those are called there only.
"""

import gc
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from client.spark.blocking_session import open_session
from client.spark.core import ReaderCore, Task
from client.spark.discovery import matching_topics
from client.spark.guard import StatefulGuard
from client.spark.log import PartitionLog, load_log
from client.spark.options import OptionError, ReaderOptions, parse_options
from client.spark.packing import pack_ranges
from client.spark.process import LeaveOnSigterm
from client.spark.reading import read_range
from client.spark.refusal import Refusals
from client.spark.rows import SourceRange, with_source_columns
from client.spark.secrets import with_secrets
from client.spark.tables.register import register_tables
from client.spark.watchdog import Watchdog, patience_s
from client.spark.worker_memory import settle

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT_NAME: Final = "coordinated"

# Who sets 'minTasks' to a thousand has so many partitions, not so many cores to warm.
WARM_TASKS_MAX: Final = 64

_BEFORE: Final = (
    StructField("topic", StringType(), nullable=True),
    StructField("partition", IntegerType(), nullable=True),
    StructField("offset", LongType(), nullable=True),
)
_AFTER: Final = (
    StructField("range_start", LongType(), nullable=True),
    StructField("range_end", LongType(), nullable=True),
    StructField("generation", IntegerType(), nullable=True),
)


class RangesPartition(InputPartition):
    """The ranges that one task reads, on their way to an executor."""

    def __init__(self, ranges: Sequence[SourceRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = ranges


class CoordinatedSource(DataSource):
    """The data source ``coordinated``; see docs/spark.md for its options.

    Raises:
        OptionError: an option is missing, unknown or impossible.

    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = {name.lower(): value for name, value in options.items()}
        parse_options(self._given)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.readStream.format``."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return topic, partition, offset, the topics' own columns, and those of the range."""
        options = parse_options(self._given)
        log = _load(self._given)
        columns = _value_schema(log, options)
        taken = {field.name for field in (*_BEFORE, *_AFTER)} & set(columns.names)
        if taken:
            raise OptionError(
                f"option 'topics': the log has columns named {', '.join(sorted(taken))}, which "
                "are the source's own; rename them in the log"
            )
        return StructType([*_BEFORE, *from_arrow_schema(columns).fields, *_AFTER])

    def streamReader(self, schema: StructType) -> "CoordinatedStreamReader":
        """Return the reader; called in planning workers too, so it joins nothing."""
        return CoordinatedStreamReader(self._given, schema)


class CoordinatedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Adapts `ReaderCore` to the calls that Spark makes."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._given = dict(options)
        self._schema = schema
        self._core: ReaderCore | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what executors need; the membership stays in the reader process."""
        return {"_given": self._given, "_schema": self._schema, "_core": None}

    def initialOffset(self) -> dict[str, Any]:
        """Join the group and return the offset before any batch."""
        return self._joined().initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option ``maxRowsPerPartition``, which counts per partition."""
        max_rows = parse_options(self._given).max_rows_per_partition
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commit what has finished, hand over if asked, pin and return the next batch."""
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return dict(self._joined().latest_offset(start, max_rows))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log's ends as last seen, for the progress."""
        return self._core.report_latest() if self._core else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Note where the log ends now."""
        self._joined().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of the batch, shared out to tasks."""
        core, options = self._joined(), parse_options(self._given)
        ranges = core.partitions(start, end)
        return warm_partitions(options) if core.warming_up else ranges_partitions(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range after the other, on an executor."""
        assert isinstance(partition, RangesPartition)
        if partition.ranges:  # Else there is more to load.
            settle()
        log = _load(self._given)
        silence_s = patience_s(parse_options(self._given))
        columns = to_arrow_schema(self._schema, timezone="UTC")
        for one in partition.ranges:
            rows = read_range(log, one, silence_s)
            yield from with_source_columns(rows, one, columns, dense=log.dense_offsets)

    def stop(self) -> None:
        """Leave the group."""
        if self._core is not None:
            self._core.stop()

    def _joined(self) -> ReaderCore:
        if self._core is None:
            options = parse_options(self._given)
            # A query that is started twice, or restarted, is another reader each time.
            client_id = f"spark-{uuid.uuid4().hex}"
            refusals = Refusals()
            core = ReaderCore(
                options,
                _load(self._given),
                open_session=lambda topics, eager: open_session(
                    options, client_id, core.log, topics, eager=eager
                ),
                client_id=client_id,
                clock=time.monotonic,
                sleep=time.sleep,
                run=Watchdog(patience_s(options)).run,
                refused=lambda: refusals.reason(client_id),
                warms_up=options.warm_up,
            )
            self._core = core
            gc.freeze()  # A look at all that is imported takes 35 ms, in every few triggers.
            LeaveOnSigterm(core.stop).install()
        return self._core


def ranges_partitions(ranges: Sequence[Task], options: ReaderOptions) -> list[InputPartition]:
    """Return *ranges* shared out to tasks, as Spark takes them."""
    return [
        RangesPartition([SourceRange(*one.tp, *one.range) for one in task])
        for task in pack_ranges(ranges, options.min_tasks, options.rows_per_task)
    ]


def warm_partitions(options: ReaderOptions) -> list[InputPartition]:
    """Return the tasks without rows that let Spark start its Python workers, which load the log."""
    return [RangesPartition(()) for _ in range(min(options.min_tasks, WARM_TASKS_MAX))]


def register(spark: "SparkSession") -> None:
    """Make the formats known to a session, and watch for stateful queries.

    They are ``coordinated`` and the tables, such as ``group_offsets``.
    """
    spark.dataSource.register(CoordinatedSource)
    register_tables(spark)
    # Spark Connect complains at its shutdown about listeners that are still there.
    if not type(spark).__module__.startswith("pyspark.sql.connect"):
        spark.streams.addListener(StatefulGuard())


def _load(given: Mapping[str, str]) -> PartitionLog:
    return load_log(with_secrets(given))


def _value_schema(log: PartitionLog, options: ReaderOptions) -> pa.Schema:
    topics = matching_topics(options, log)
    option = "topics" if options.topics_pattern is None else "topicsPattern"
    if not topics:
        raise OptionError(
            f"option '{option}': no topic of the log matches, so the columns are not known; "
            "make a topic first, or give the columns with .schema(...)"
        )
    first, *others = topics
    columns = log.schema(first)
    for topic in others:
        if not log.schema(topic).equals(columns):
            raise OptionError(
                f"option '{option}': {first!r} and {topic!r} have different columns; read them "
                "with a stream each"
            )
    return columns
