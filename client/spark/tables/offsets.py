# ruff: noqa: N802 - Spark chose the names of these methods.
"""The format ``group_offsets``: all committed offsets, as a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

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

from client.spark.tables.clients import Target, client_of
from client.spark.tables.filters import Wanted, push
from client.spark.tables.given import Given
from protocol.groups import offsets_partition

FORMAT_NAME: Final = "group_offsets"
OPTIONS: Final = ("coordinator", "groups", "topics", "coordinatorTimeout", "pushFilters")

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
    """One offsets partition to read, and the groups of it that are wanted (None: all)."""

    def __init__(self, number: int, groups: frozenset[str] | None) -> None:
        super().__init__((number, groups))
        self.number = number
        self.groups = groups


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

    def reader(self, schema: StructType) -> "GroupOffsetsReader":
        """Return what plans and reads; with filters pushed down unless that is switched off."""
        given = Given(self._given, OPTIONS)
        kind = PushingReader if given.flag("pushFilters", default=True) else GroupOffsetsReader
        return kind(
            Target(given.addresses(), given.duration_ms("coordinatorTimeout", "60s")),
            Wanted(given.names("groups"), given.names("topics")),
        )


class GroupOffsetsReader(DataSourceReader):
    """Reads committed offsets, one task per offsets partition."""

    def __init__(self, target: Target, wanted: Wanted) -> None:
        self.target = target
        self.wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        """Return the offsets partitions in which there may be something that is wanted."""
        if self.wanted.is_nothing:
            return []
        numbers = client_of(self.target).offsets_partitions()
        if self.wanted.groups is None:
            return [ScanPartition(number, None) for number in numbers]
        found: dict[int, set[str]] = {}
        for group in self.wanted.groups:
            found.setdefault(offsets_partition(group, len(numbers)), set()).add(group)
        return [ScanPartition(number, frozenset(found[number])) for number in sorted(found)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one offsets partition, on an executor."""
        if not isinstance(partition, ScanPartition):
            return  # Spark makes up one where there is none.
        topics = self.wanted.topics
        scan = client_of(self.target).scan_offsets(partition.number)
        while page := scan.page():
            rows = [
                row
                for row in page
                if (partition.groups is None or row.group_id in partition.groups)
                and (topics is None or row.topic in topics)
            ]
            if rows:
                yield _batch(partition.number, rows)


class PushingReader(GroupOffsetsReader):
    """The same, with conditions on groups and topics pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows groups and topics; return what Spark has to apply."""
        self.wanted, rest = push(filters, self.wanted, NEVER_NULL)
        return rest


def _batch(number: int, rows: Sequence[Any]) -> pa.RecordBatch:
    groups, topics, partitions, offsets, epochs, metadata, committed, expires = zip(
        *rows, strict=True
    )
    columns: Mapping[str, Any] = {
        "group": groups,
        "topic": topics,
        "partition": partitions,
        "offset": offsets,
        "leader_epoch": [None if epoch < 0 else epoch for epoch in epochs],
        "metadata": metadata,
        "committed_at": [1000 * ms for ms in committed],
        "expires_at": [None if ms < 0 else 1000 * ms for ms in expires],
        "offsets_partition": [number] * len(rows),
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in ARROW], schema=ARROW
    )
