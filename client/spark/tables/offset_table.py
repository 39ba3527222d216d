"""The format ``group_offsets``: all committed offsets, as a table."""

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from client.spark.errors import message_alone
from client.spark.options import OptionError
from client.spark.tables.bulk import GroupOffsetsWriter, parse_options
from client.spark.tables.columns import as_batch, page_columns
from client.spark.tables.options import name_parts
from client.spark.tables.table_source import BatchSource, PushesFilters, TableReader
from protocol.group_ids import offsets_partition

SCHEMA: Final = (
    StructType()
    .add("group", "string")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("leader_epoch", "integer")
    .add("metadata", "string")
    .add("committed_at", "timestamp")
    .add("expires_at", "timestamp")
    .add("offsets_partition", "integer")
)
ARROW: Final = to_arrow_schema(SCHEMA, timezone="UTC")


class GroupOffsetsReader(TableReader):
    """Reads committed offsets; a task reads one or more whole offsets partitions.

    The value of a task is the numbers of its partitions, each with the selected groups (None: all).
    """

    never_null = tuple(name for name in SCHEMA.names if name not in {"leader_epoch", "expires_at"})

    def tasks(self) -> Sequence[InputPartition]:
        """Return the tasks, for the offsets partitions of the selected groups."""
        numbers = self.client.offsets_partitions()
        scans: list[tuple[int, frozenset[str] | None]]
        if self.wanted.groups is None:
            scans = [(number, None) for number in numbers]
        else:
            found: dict[int, set[str]] = {}
            for group in self.wanted.groups:
                found.setdefault(offsets_partition(group, len(numbers)), set()).add(group)
            scans = [(number, frozenset(found[number])) for number in sorted(found)]
        tasks = min(self.max_tasks, len(scans))
        return [InputPartition(tuple(scans[n::tasks])) for n in range(tasks)]

    def read_share(
        self, share: Sequence[tuple[int, frozenset[str] | None]]
    ) -> Iterator[pa.RecordBatch]:
        """Read some offsets partitions."""
        for number, wanted in share:
            for groups, topics in name_parts(self.wanted._replace(groups=wanted)):
                scan = self.client.scan_offset_columns(number, groups, topics)
                while page := scan.page():
                    yield as_batch(page_columns(page, number), ARROW)


class PushingReader(PushesFilters, GroupOffsetsReader):
    """A `GroupOffsetsReader` with conditions on groups and topics pushed down."""


class GroupOffsetsSource(BatchSource):
    """The data source ``group_offsets``; a read or a write checks its options."""

    format_name = "group_offsets"
    columns = SCHEMA
    readers = GroupOffsetsReader, PushingReader
    option_names = (
        "coordinator",
        "groups",
        "topics",
        "maxTasks",
        "coordinatorTimeout",
        "pushFilters",
    )

    @message_alone(OptionError)
    def writer(self, schema: StructType, overwrite: bool) -> GroupOffsetsWriter:  # noqa: ARG002 - Spark's way.
        """Return the writer; see `client.spark.tables.bulk`."""
        if overwrite:
            raise OptionError(
                "mode 'overwrite' is not supported: it would have to forget what the rows don't "
                "name; use mode 'append', which replaces the offsets of the rows' partitions"
            )
        return GroupOffsetsWriter(parse_options(self.options))
