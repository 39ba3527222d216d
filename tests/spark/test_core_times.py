"""A stream that begins at a time."""

from collections.abc import Collection

import pytest
from hypothesis import given, settings, strategies as st

from client.spark.errors import CoordinatedSourceError
from client.spark.source.planning import Limits, Position, Seen, plan_partition
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import MemoryLog, Query, ranges, tp


class TimedLog(MemoryLog):
    """The row with offset n was written at n seconds."""

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset of that second or later."""
        return {
            asked: max(
                self.starts[asked.partition], min(-(-timestamp_ms // 1000), self._end(asked))
            )
            for asked in partitions
        }

    def _end(self, asked: TopicPartition) -> int:
        return self.ends[asked.partition]


def test_partitions_without_an_offset_begin_at_the_time() -> None:
    """Those with one go on; one without so late a row begins at its end, for good."""
    log, group = TimedLog({0: 20, 1: 5}), FakeGroup([tp(0), tp(1)])
    query = Query(group, log, startingTimestamp="12000")

    assert ranges(query.triggers(2)) == [(0, 12, 20)]
    log.ends = {0: 21, 1: 8}
    assert ranges(query.triggers(1)) == [(0, 20, 21), (1, 5, 8)]

    restarted = Query(group, log, client_id="b", startingTimestamp="0")
    query.core.stop()
    log.ends = {0: 22, 1: 8}
    assert ranges(restarted.triggers(2))[-1] == (0, 21, 22)


def test_a_start_before_the_log_is_the_logs_start() -> None:
    """Old rows are gone; that is no loss to a group that never had them."""
    log, group = TimedLog({0: 20}), FakeGroup([tp(0)])
    log.starts[0] = 15

    assert ranges(Query(group, log, startingTimestamp="3000").triggers(2)) == [(0, 15, 20)]


def test_a_log_without_times_ends_the_query_and_says_so() -> None:
    """Beginning anywhere else would be wrong."""
    query = Query(FakeGroup([tp(0)]), MemoryLog({0: 3}), startingTimestamp="3000")

    with pytest.raises(CoordinatedSourceError, match="doesn't know when its rows were written"):
        query.triggers(2)


@settings(deadline=None)
@given(
    found=st.integers(0, 30),
    earliest=st.integers(0, 10),
    rows=st.integers(0, 10),
    stored=st.none() | st.integers(0, 20),
)
def test_a_time_only_counts_where_nothing_is_stored(
    found: int, earliest: int, rows: int, stored: int | None
) -> None:
    """And never outside of what the log holds."""
    seen = Seen(earliest, earliest + rows)
    position = Position(None)
    if stored is not None:
        at = min(max(stored, seen.earliest), seen.end)
        position = Position.pinned(at, at, 0, "")
    limits = Limits(None, None, (), "error", start_at={tp(0): found})

    step = plan_partition(tp(0), position, None, seen, limits)

    expected = position.offset if position.offset is not None else found
    assert step.at == min(max(expected, seen.earliest), seen.end)
    assert step.stop == seen.end
    assert step.needs.offset == step.at  # So that nobody else begins elsewhere.
