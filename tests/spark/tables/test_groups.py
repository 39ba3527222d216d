"""Members and rebalances as rows, and which groups are asked about."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.sql.datasource import EqualTo, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from client.exceptions import FatalError
from client.spark.tables import table_source
from client.spark.tables.groups import (
    MEMBERS,
    REBALANCES,
    GroupMembersSource,
    GroupRebalancesSource,
    GroupsReader,
    PushingMembersReader,
)
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.messages import DescribedGroup, DescribedMember, LateMember, ListedGroup, Rebalance
from protocol.partition import TopicPartition

MEMBER = DescribedMember(
    "m-1",
    None,
    "driver",
    "10.0.0.7",
    encode_subscription(Subscription(("u", "t"))),
    encode_assignment(Assignment((TopicPartition("t", 1), TopicPartition("t", 0)))),
)
CONNECT = DescribedMember("m-2", "static", "worker", "10.0.0.8", b"\x07", b"?")
REBALANCE = Rebalance(
    3, 1_785_000_000_000, "member joined", "", None, "", "", "", 4, -1, 12, 3, 2, "overtaken", ()
)
LATE = LateMember("m-1", "driver", "10.0.0.7", "join", 900, removed=True)


class FakeClient:
    """Some groups."""

    def __init__(self) -> None:
        self.states = {f"g{n}": "Stable" for n in range(1_200)} | {"idle": "Empty"}
        self.gone: set[str] = set()

    def list_groups(self) -> list[ListedGroup]:
        """Return all groups."""
        return [ListedGroup(g, "consumer", state, "classic") for g, state in self.states.items()]

    def describe_groups(self, names: Iterable[str]) -> list[DescribedGroup]:
        """Return two members."""
        return [
            DescribedGroup(0, None, g, "Stable", "consumer", "range", 5, (MEMBER, CONNECT))
            for g in names
        ]

    def rebalances(self, group: str) -> list[Rebalance]:
        """Return two rebalances, or refuse."""
        if group in self.gone:
            raise FatalError("no such group", code=ErrorCode.GROUP_ID_NOT_FOUND)
        return [REBALANCE, structs.replace(REBALANCE, new_generation=5, late=(LATE,), reason="why")]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """A coordinator that every reader finds."""
    fake = FakeClient()
    monkeypatch.setattr(table_source, "client_of", lambda _: fake)
    return fake


def reader_of(
    kind: type[GroupMembersSource | GroupRebalancesSource], **options: str
) -> GroupsReader:
    """Return a reader as Spark makes it."""
    source = kind({"coordinator": "h:1", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, GroupsReader)
    return reader


def rows(reader: GroupsReader) -> list[dict[str, Any]]:
    """Return all rows."""
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    table = pa.Table.from_batches(batches, to_arrow_schema(reader.columns, timezone="UTC"))
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_a_member_is_a_row_with_what_it_owns(client: FakeClient) -> None:
    """What can't be read is null, and not nothing."""
    found = rows(reader_of(GroupMembersSource, groups="g7"))

    assert found == [
        {
            "group": "g7",
            "state": "Stable",
            "protocol_type": "consumer",
            "assignor": "range",
            "generation": 5,
            "member_id": "m-1",
            "group_instance_id": None,
            "client_id": "driver",
            "client_host": "10.0.0.7",
            "topics": ["t", "u"],
            "assignment": [{"topic": "t", "partition": 0}, {"topic": "t", "partition": 1}],
        },
        {
            "group": "g7",
            "state": "Stable",
            "protocol_type": "consumer",
            "assignor": "range",
            "generation": 5,
            "member_id": "m-2",
            "group_instance_id": "static",
            "client_id": "worker",
            "client_host": "10.0.0.8",
            "topics": None,
            "assignment": None,
        },
    ]


def test_a_rebalance_is_a_row_with_those_who_were_late(client: FakeClient) -> None:
    """Nobody in particular, and a generation that never was, are null."""
    first, second = rows(reader_of(GroupRebalancesSource, groups="idle"))

    assert first["started_at"].timestamp() == 1_785_000_000
    assert (first["member_id"], first["reason"], first["new_generation"]) == (None, None, None)
    assert (first["number"], first["join_ms"], first["outcome"]) == (3, 12, "overtaken")
    assert (second["reason"], second["new_generation"]) == ("why", 5)
    assert second["late"] == [structs.asdict(LATE)]


def test_tasks_share_the_groups(client: FakeClient) -> None:
    """Few that are named are one task, else there are more; none is forgotten or read twice."""
    assert len(reader_of(GroupMembersSource, groups="g1,g2").partitions()) == 1
    assert len(reader_of(GroupMembersSource, maxTasks="2").partitions()) == 2
    reader = reader_of(GroupMembersSource)

    assert len(reader.partitions()) == 4
    assert sorted(row["group"] for row in rows(reader)) == sorted(
        2 * [*set(client.states) - {"idle"}]
    )


def test_groups_that_come_after_the_tasks_were_made_are_read(client: FakeClient) -> None:
    """Spark plans a DataFrame's tasks once, and reads with them for as long as it lives."""
    reader = reader_of(GroupRebalancesSource)
    tasks = reader.partitions()
    client.states["late"] = "Empty"
    found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]

    assert sum(row["group"] == "late" for row in found) == 2


def test_a_condition_on_the_group_is_pushed_down(client: FakeClient) -> None:
    """Only that group is asked about; one on another column is left to Spark."""
    reader = reader_of(GroupMembersSource, pushFilters="true")
    assert isinstance(reader, PushingMembersReader)
    other = EqualTo(("state",), "Stable")

    assert list(reader.pushFilters([EqualTo(("group",), "g3"), other])) == [other]
    assert {row["group"] for row in rows(reader)} == {"g3"}
    assert not isinstance(reader_of(GroupMembersSource, pushFilters="false"), PushingMembersReader)


def test_a_group_that_is_gone_meanwhile_has_no_rows(client: FakeClient) -> None:
    """It was there when the tasks were made; the others must not fail for it."""
    client.gone = {"g1"}
    found = rows(reader_of(GroupRebalancesSource, groups="g1,g2"))

    assert {row["group"] for row in found} == {"g2"}


def test_the_task_that_spark_makes_up_has_no_rows(client: FakeClient) -> None:
    """It asks for one where there is none."""
    reader = reader_of(GroupRebalancesSource)

    assert list(reader.read(InputPartition(None))) == []
    assert reader.columns is REBALANCES
    assert GroupMembersSource({"coordinator": "h:1"}).schema() == MEMBERS
