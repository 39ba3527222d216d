# ruff: noqa: N802 - Spark chose the names of these methods.
"""The formats ``group_members`` and ``group_rebalances``: who is where, and why that changed."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final
from zlib import crc32

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from client.blocking import BlockingClient
from client.exceptions import FatalError
from client.spark.tables.clients import Target, client_of
from client.spark.tables.options import SPARK_SCOPES_FILTERS, Given, Wanted, push
from client.spark.worker_memory import settle
from protocol.consumer import decode_assignment, subscribed_topics
from protocol.errors import ErrorCode
from protocol.messages import DescribedGroup, DescribedMember, Rebalance

OPTIONS: Final = ("coordinator", "groups", "maxTasks", "coordinatorTimeout", "pushFilters")
MAX_TASKS: Final = 4
# So many take a task some tenths of a second.
GROUPS_PER_TASK: Final = 500
ROWS_PER_BATCH: Final = 10_000
EMPTY: Final = "empty"

MEMBERS: Final = StructType(
    [
        StructField("group", StringType()),
        StructField("state", StringType()),
        StructField("protocol_type", StringType()),
        StructField("assignor", StringType()),
        StructField("generation", IntegerType()),
        StructField("member_id", StringType()),
        StructField("group_instance_id", StringType()),
        StructField("client_id", StringType()),
        StructField("client_host", StringType()),
        StructField("topics", ArrayType(StringType())),
        StructField(
            "assignment",
            ArrayType(
                StructType(
                    [
                        StructField("topic", StringType()),
                        StructField("partition", IntegerType()),
                    ]
                )
            ),
        ),
    ]
)

REBALANCES: Final = StructType(
    [
        StructField("group", StringType()),
        StructField("number", LongType()),
        StructField("started_at", TimestampType()),
        StructField("trigger", StringType()),
        StructField("reason", StringType()),
        StructField("outcome", StringType()),
        StructField("old_generation", IntegerType()),
        StructField("new_generation", IntegerType()),
        StructField("members", IntegerType()),
        StructField("join_ms", LongType()),
        StructField("sync_ms", LongType()),
        StructField("member_id", StringType()),
        StructField("group_instance_id", StringType()),
        StructField("client_id", StringType()),
        StructField("client_host", StringType()),
        StructField(
            "late",
            ArrayType(
                StructType(
                    [
                        StructField("member_id", StringType()),
                        StructField("client_id", StringType()),
                        StructField("client_host", StringType()),
                        StructField("phase", StringType()),
                        StructField("waited_ms", LongType()),
                        StructField("removed", BooleanType()),
                    ]
                )
            ),
        ),
    ]
)

Row = dict[str, Any]


class GroupsPartition(InputPartition):
    """A share of the groups.

    Which ones there are is asked for in the task: Spark uses the same tasks for each query of a
    DataFrame, however much later.
    """

    def __init__(self, number: int, tasks: int) -> None:
        super().__init__((number, tasks))
        self.number = number
        self.tasks = tasks

    def has(self, group: str) -> bool:
        """Say whether *group* is in this share, whatever other groups there are."""
        return crc32(group.encode()) % self.tasks == self.number


class GroupsReader(DataSourceReader):
    """Asks about each group that is wanted."""

    columns: ClassVar[StructType]

    def __init__(self, target: Target, wanted: Wanted, max_tasks: int) -> None:
        self.target = target
        self.wanted = wanted
        self.max_tasks = max_tasks

    @abstractmethod
    def keeps(self, state: str) -> bool:
        """Say whether a group in *state* can have rows."""

    @abstractmethod
    def rows(self, client: BlockingClient, group: str) -> Iterator[Row]:
        """Return the rows of one group; none if it is gone meanwhile."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; few for few groups that are named."""
        if self.wanted.is_nothing:
            return []
        tasks = self.max_tasks
        if self.wanted.groups is not None:
            tasks = min(tasks, -(-len(self.wanted.groups) // GROUPS_PER_TASK))
        return [GroupsPartition(number, tasks) for number in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Ask about some groups, on an executor."""
        if not isinstance(partition, GroupsPartition):
            return  # Spark makes up one where there is none.
        settle()
        client = client_of(self.target)
        schema = to_arrow_schema(self.columns, timezone="UTC")
        rows: list[Row] = []
        wanted = self.wanted.groups
        for listed in client.list_groups():
            group = listed.group_id
            if not (self.keeps(listed.state) and partition.has(group)):
                continue
            if wanted is not None and group not in wanted:
                continue
            rows.extend(self.rows(client, group))
            if len(rows) >= ROWS_PER_BATCH:
                yield pa.RecordBatch.from_pylist(rows, schema=schema)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)


class _Pushing(GroupsReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows the groups; return what Spark has to apply."""
        self.wanted, rest = push(filters, self.wanted, ("group",), has_topic=False)
        return rest


class MembersReader(GroupsReader):
    """Reads the members of groups."""

    columns = MEMBERS

    def keeps(self, state: str) -> bool:
        """Say whether a group in *state* has members."""
        return state.lower() != EMPTY

    def rows(self, client: BlockingClient, group: str) -> Iterator[Row]:
        """Return a row for each member."""
        for described in client.describe_groups([group]):
            for member in described.members:
                yield member_row(described, member)


class RebalancesReader(GroupsReader):
    """Reads the rebalances of groups."""

    columns = REBALANCES

    def keeps(self, state: str) -> bool:  # noqa: ARG002 - an empty group has had some, too.
        """Keep all of them."""
        return True

    def rows(self, client: BlockingClient, group: str) -> Iterator[Row]:
        """Return a row for each rebalance that the coordinator remembers, newest first."""
        try:
            for rebalance in client.rebalances(group):
                yield rebalance_row(group, rebalance)
        except FatalError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise


class PushingMembersReader(_Pushing, MembersReader):
    """The same, with conditions on groups pushed down."""


class PushingRebalancesReader(_Pushing, RebalancesReader):
    """The same, with conditions on groups pushed down."""


class _GroupsSource(DataSource):
    """What both formats share."""

    columns: ClassVar[StructType]
    readers: ClassVar[tuple[type[GroupsReader], type[GroupsReader]]]  # Plain, and pushing.

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        given = Given(options, OPTIONS)
        self._target = Target(given.addresses(), given.duration_ms("coordinatorTimeout", "60s"))
        self._wanted = Wanted(given.names("groups"))
        self._max_tasks = given.number("maxTasks", MAX_TASKS)
        self._pushes = given.pushes_filters(by_default=SPARK_SCOPES_FILTERS)

    def schema(self) -> StructType:
        """Return the columns, the same for every coordinator."""
        return self.columns

    def reader(self, schema: StructType) -> GroupsReader:  # noqa: ARG002 - Spark's way.
        """Return what plans and reads; with filters pushed down where that is safe."""
        return self.readers[self._pushes](self._target, self._wanted, self._max_tasks)


class GroupMembersSource(_GroupsSource):
    """The data source ``group_members``; see docs/spark.md for its options."""

    columns = MEMBERS
    readers = MembersReader, PushingMembersReader

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "group_members"


class GroupRebalancesSource(_GroupsSource):
    """The data source ``group_rebalances``; see docs/spark.md for its options."""

    columns = REBALANCES
    readers = RebalancesReader, PushingRebalancesReader

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return "group_rebalances"


def member_row(group: DescribedGroup, member: DescribedMember) -> Row:
    """Return one member as a row.

    What it subscribes to and owns is null where its bytes can't be read, as those of Kafka
    Connect's workers.
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
    """Return one rebalance as a row; nobody in particular and no generation are null."""
    row: Row = {"group": group, **structs.asdict(rebalance)}
    row["started_at"] = 1000 * row.pop("started_ms")
    for name in ("member_id", "client_id", "client_host", "reason"):
        row[name] = row[name] or None
    for name in ("old_generation", "new_generation"):
        row[name] = row[name] if row[name] >= 0 else None
    row["late"] = [structs.asdict(late) for late in rebalance.late]
    return row
