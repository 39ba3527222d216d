"""The format ``group_offsets``: all committed offsets, as a table."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from client.spark.options import OptionError
from client.spark.tables.bulk import GroupOffsetsWriter, parse_options
from client.spark.tables.clients import Target, client_of
from client.spark.tables.columns import page_batch
from client.spark.tables.options import SPARK_SCOPES_FILTERS, Given, Wanted, name_parts, push
from client.spark.worker_memory import settle
from protocol.group_ids import offsets_partition

# ruff: noqa: N802 - Spark chose the names of these methods.


FORMAT_NAME: Final = "group_offsets"
OPTIONS: Final = (
    "coordinator",
    "groups",
    "topics",
    "maxTasks",
    "coordinatorTimeout",
    "pushFilters",
)

# A task of a Python source costs Spark about 50 ms, however little it reads, and a few of them
# read as fast as a coordinator answers.
MAX_TASKS: Final = 4

SCHEMA: Final = StructType(
    [
        StructField("group", StringType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("leader_epoch", IntegerType()),
        StructField("metadata", StringType()),
        StructField("committed_at", TimestampType()),
        StructField("expires_at", TimestampType()),
        StructField("offsets_partition", IntegerType()),
    ]
)
ARROW: Final = to_arrow_schema(SCHEMA, timezone="UTC")
NEVER_NULL: Final = (
    "group",
    "topic",
    "partition",
    "offset",
    "metadata",
    "committed_at",
    "offsets_partition",
)


class ScanPartition(InputPartition):
    """Offsets partitions to read in one task, each with the groups that are wanted (None: all)."""

    def __init__(self, scans: Sequence[tuple[int, frozenset[str] | None]]) -> None:
        super().__init__(tuple(scans))
        self.scans = tuple(scans)


class GroupOffsetsSource(DataSource):
    """The data source ``group_offsets``; see docs/spark.md for its options.

    Raises:
        OptionError: an option is missing, unknown or impossible.

    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return FORMAT_NAME

    def schema(self) -> StructType:
        """Return the columns, the same for every coordinator."""
        return SCHEMA

    def reader(self, schema: StructType) -> "GroupOffsetsReader":  # noqa: ARG002 - Spark's way.
        """Return what plans and reads; with filters pushed down where that is safe."""
        given = Given(self._given, OPTIONS)
        kind = (
            PushingReader
            if given.pushes_filters(by_default=SPARK_SCOPES_FILTERS)
            else GroupOffsetsReader
        )
        return kind(
            Target(given.addresses(), given.duration_ms("coordinatorTimeout", "60s")),
            Wanted(given.names("groups"), given.names("topics")),
            given.number("maxTasks", MAX_TASKS),
        )

    def writer(self, schema: StructType, overwrite: bool) -> GroupOffsetsWriter:  # noqa: ARG002 - Spark's way.
        """Return what writes offsets; see `client.spark.tables.bulk`."""
        if overwrite:
            raise OptionError(
                "mode 'overwrite' is not supported: it would have to forget what the rows don't "
                "name; use mode 'append', which replaces the offsets of the rows' partitions"
            )
        return GroupOffsetsWriter(parse_options(self._given))


class GroupOffsetsReader(DataSourceReader):
    """Reads committed offsets; a task reads one or more whole offsets partitions."""

    def __init__(self, target: Target, wanted: Wanted, max_tasks: int) -> None:
        self.target = target
        self.wanted = wanted
        self.max_tasks = max_tasks

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks: offsets partitions in which there may be something that is wanted."""
        if self.wanted.is_nothing:
            return []
        numbers = client_of(self.target).offsets_partitions()
        if self.wanted.groups is None:
            return spread([(number, None) for number in numbers], self.max_tasks)
        found: dict[int, set[str]] = {}
        for group in self.wanted.groups:
            found.setdefault(offsets_partition(group, len(numbers)), set()).add(group)
        return spread(
            [(number, frozenset(found[number])) for number in sorted(found)], self.max_tasks
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one offsets partition, on an executor."""
        if not isinstance(partition, ScanPartition):
            return  # Spark makes up one where there is none.
        settle()
        client = client_of(self.target)
        for number, wanted in partition.scans:
            for groups, topics in name_parts(self.wanted._replace(groups=wanted)):
                scan = client.scan_offset_columns(number, groups, topics)
                while page := scan.page():
                    yield page_batch(page, number, ARROW)


def spread(
    scans: Sequence[tuple[int, frozenset[str] | None]], max_tasks: int
) -> Sequence[InputPartition]:
    """Return tasks with about as many of *scans* each."""
    tasks = min(max_tasks, len(scans))
    return [ScanPartition(scans[n::tasks]) for n in range(tasks)]


class PushingReader(GroupOffsetsReader):
    """The same, with conditions on groups and topics pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows groups and topics; return what Spark has to apply."""
        self.wanted, rest = push(filters, self.wanted, NEVER_NULL)
        return rest
