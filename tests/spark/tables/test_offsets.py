"""The table of offsets: which tasks there are, and what each asks for."""

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, InputPartition

from client.spark.tables import offset_table, table_source
from client.spark.tables.offset_table import ARROW, SCHEMA, GroupOffsetsReader, GroupOffsetsSource
from protocol.group_ids import offsets_partition
from tests.spark.tables.fakes import FakeLog, FakeScan


class CountingLog(FakeLog):
    """Notes what was asked."""

    def __init__(self, partitions: int) -> None:
        super().__init__(partitions)
        self.wanted: list[tuple[int, Any, Any]] = []

    def scan_offset_columns(
        self,
        number: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> FakeScan:
        """Return what is committed now."""
        self.wanted.append((number, group_ids, topics))
        return super().scan_offset_columns(number, group_ids, topics)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> CountingLog:
    """Ten groups with two topics each, in ten offsets partitions."""
    fake = CountingLog(10)
    for n in range(10):
        for topic in "tu":
            fake.add(offsets_partition(f"g{n}", 10), "committed", f"g{n}", topic, 0)
    monkeypatch.setattr(table_source, "client_of", lambda _: fake)
    return fake


def reader_of(**options: str) -> GroupOffsetsReader:
    """Return a reader as Spark makes it."""
    reader = GroupOffsetsSource({"coordinator": "h:1", **options}).reader(SCHEMA)
    assert isinstance(reader, GroupOffsetsReader)
    return reader


def keys(reader: GroupOffsetsReader) -> list[tuple[str, str]]:
    """Return group and topic of all rows."""
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    found = pa.Table.from_batches(batches, ARROW)
    return sorted(zip(found["group"].to_pylist(), found["topic"].to_pylist(), strict=True))


@pytest.mark.parametrize("tasks", [1, 3, 4, 10, 50])
def test_tasks_share_the_offsets_partitions(log: CountingLog, tasks: int) -> None:
    """Each is read once, in about as large shares, and never more tasks than there are."""
    reader = reader_of(maxTasks=str(tasks))
    shares = [[number for number, _ in task.value] for task in reader.partitions()]

    assert len(shares) == min(tasks, 10)
    assert sorted(number for share in shares for number in share) == list(range(10))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert keys(reader) == [(f"g{n}", topic) for n in range(10) for topic in "tu"]


def test_groups_that_are_named_are_asked_for_where_they_are(log: CountingLog) -> None:
    """Not a thousand tasks that find nothing; by option, by filter, or both."""
    reader = reader_of(groups="g1,g2", topics="t", pushFilters="true")
    assert isinstance(reader, offset_table.PushingReader)
    list(reader.pushFilters([EqualTo(("group",), "g2")]))

    assert keys(reader) == [("g2", "t")]
    assert log.wanted == [(offsets_partition("g2", 10), ["g2"], ["t"])]


def test_a_contradiction_asks_nobody(log: CountingLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark makes up a task then."""
    reader = reader_of(groups="g1", pushFilters="true")
    assert isinstance(reader, offset_table.PushingReader)
    list(reader.pushFilters([EqualTo(("group",), "g2")]))
    monkeypatch.delattr(table_source, "client_of")

    assert reader.partitions() == []
    assert list(reader.read(InputPartition(None))) == []
