"""The formats ``group_members`` and ``group_rebalances``: members, and their past rebalances."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final
from zlib import crc32

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, StringType, StructType

from client.exceptions import FatalError
from client.spark.tables.table_source import BatchSource, PushesFilters, TableReader
from protocol.consumer import decode_assignment, subscribed_topics
from protocol.errors import ErrorCode
from protocol.messages import DescribedGroup, DescribedMember, Rebalance

# Named groups for one task; a task reads as many in some tenths of a second.
GROUPS_PER_TASK: Final = 500
ROWS_PER_BATCH: Final = 10_000
EMPTY: Final = "empty"

MEMBERS: Final = (
    StructType()
    .add("group", "string")
    .add("state", "string")
    .add("protocol_type", "string")
    .add("assignor", "string")
    .add("generation", "integer")
    .add("member_id", "string")
    .add("group_instance_id", "string")
    .add("client_id", "string")
    .add("client_host", "string")
    .add("topics", ArrayType(StringType()))
    .add("assignment", ArrayType(StructType().add("topic", "string").add("partition", "integer")))
)

LATE_MEMBER: Final = (
    StructType()
    .add("member_id", "string")
    .add("client_id", "string")
    .add("client_host", "string")
    .add("phase", "string")
    .add("waited_ms", "long")
    .add("removed", "boolean")
)
REBALANCES: Final = (
    StructType()
    .add("group", "string")
    .add("number", "long")
    .add("started_at", "timestamp")
    .add("trigger", "string")
    .add("reason", "string")
    .add("outcome", "string")
    .add("old_generation", "integer")
    .add("new_generation", "integer")
    .add("members", "integer")
    .add("join_ms", "long")
    .add("sync_ms", "long")
    .add("member_id", "string")
    .add("group_instance_id", "string")
    .add("client_id", "string")
    .add("client_host", "string")
    .add("late", ArrayType(LATE_MEMBER))
)

Row = dict[str, Any]


class GroupsReader(TableReader):
    """Reads each selected group.

    The value of a task is its number, and the number of tasks. The task itself lists the groups:
    Spark uses the same tasks for all queries of a DataFrame, even much later.
    """

    columns: ClassVar[StructType]
    never_null = ("group",)

    @abstractmethod
    def keeps(self, state: str) -> bool:
        """Return whether a group in *state* can have rows."""

    @abstractmethod
    def rows(self, group: str) -> Iterator[Row]:
        """Return the rows of one group; none if it has been deleted since it was listed."""

    def tasks(self) -> Sequence[InputPartition]:
        """Return the tasks; fewer if only a few groups are named."""
        tasks = self.max_tasks
        if self.wanted.groups is not None:
            tasks = min(tasks, -(-len(self.wanted.groups) // GROUPS_PER_TASK))
        return [InputPartition((number, tasks)) for number in range(tasks)]

    def read_share(self, share: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        """Read the groups of one task."""
        number, tasks = share
        schema = to_arrow_schema(self.columns, timezone="UTC")
        rows: list[Row] = []
        for listed in self.client.list_groups():
            group = listed.group_id
            # By hash, so that a group always has the same task, independent of other groups.
            if not self.keeps(listed.state) or crc32(group.encode()) % tasks != number:
                continue
            if self.wanted.groups is not None and group not in self.wanted.groups:
                continue
            rows.extend(self.rows(group))
            if len(rows) >= ROWS_PER_BATCH:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


class MembersReader(GroupsReader):
    """Reads the members of groups."""

    columns = MEMBERS

    def keeps(self, state: str) -> bool:
        """Return whether a group in *state* has members."""
        return state.lower() != EMPTY

    def rows(self, group: str) -> Iterator[Row]:
        """Return a row for each member."""
        for described in self.client.describe_groups([group]):
            for member in described.members:
                yield member_row(described, member)


class RebalancesReader(GroupsReader):
    """Reads the rebalances of groups."""

    columns = REBALANCES

    def keeps(self, state: str) -> bool:  # noqa: ARG002 - an empty group has had some, too.
        """Return True."""
        return True

    def rows(self, group: str) -> Iterator[Row]:
        """Return a row for each rebalance that the coordinator remembers, newest first."""
        try:
            for rebalance in self.client.rebalances(group):
                yield rebalance_row(group, rebalance)
        except FatalError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise


class PushingMembersReader(PushesFilters, MembersReader):
    """A `MembersReader` with conditions on groups pushed down."""


class PushingRebalancesReader(PushesFilters, RebalancesReader):
    """A `RebalancesReader` with conditions on groups pushed down."""


class _GroupsSource(BatchSource):
    option_names = ("coordinator", "groups", "maxTasks", "coordinatorTimeout", "pushFilters")

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.reader(self.columns)  # Raises for a wrong option now, not at the first query.


class GroupMembersSource(_GroupsSource):
    """The data source ``group_members``."""

    format_name = "group_members"
    columns = MEMBERS
    readers = MembersReader, PushingMembersReader


class GroupRebalancesSource(_GroupsSource):
    """The data source ``group_rebalances``."""

    format_name = "group_rebalances"
    columns = REBALANCES
    readers = RebalancesReader, PushingRebalancesReader


def member_row(group: DescribedGroup, member: DescribedMember) -> Row:
    """Return one member as a row.

    Topics and assignment are null if their bytes can't be decoded, as with workers of Kafka
    Connect.
    """
    topics = subscribed_topics(member.metadata)
    assignment = decode_assignment(member.assignment)
    return {
        "group": group.group_id,
        "state": group.state,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol_name or None,
        "generation": group.generation_id,
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "topics": None if topics is None else sorted(topics),
        "assignment": (
            None if assignment is None else [tp._asdict() for tp in sorted(assignment.partitions)]
        ),
    }


def rebalance_row(group: str, rebalance: Rebalance) -> Row:
    """Return one rebalance as a row; an empty member or reason, and no generation, are null."""
    row: Row = {"group": group, **structs.asdict(rebalance)}
    row["started_at"] = 1000 * row.pop("started_ms")
    for name in ("member_id", "client_id", "client_host", "reason"):
        row[name] = row[name] or None
    for name in ("old_generation", "new_generation"):
        row[name] = row[name] if row[name] >= 0 else None
    row["late"] = [structs.asdict(late) for late in rebalance.late]
    return row
