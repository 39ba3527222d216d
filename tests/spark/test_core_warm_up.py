"""A reader that comes into a group at work: Spark gets ready before partitions move."""

from typing import Any

import pytest

from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import MemoryLog, Query, ranges, tp


@pytest.fixture
def group() -> FakeGroup:
    """A group of two partitions."""
    return FakeGroup([tp(0), tp(1)])


@pytest.fixture
def log() -> MemoryLog:
    """A log with rows for many batches."""
    return MemoryLog({0: 100, 1: 100})


def at_work(group: FakeGroup, log: MemoryLog, **given: Any) -> Query:
    """Return a reader that has read a batch of both partitions."""
    query = Query(group, log, client_id="at-work", **given)
    assert query.trigger()
    return query


def test_the_first_batch_has_no_rows_while_others_read(group: FakeGroup, log: MemoryLog) -> None:
    """Compiling takes Spark seconds, in which nobody should wait for this reader's partitions."""
    other = at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)

    assert new.trigger()

    assert (new.core.warming_up, new.sunk, len(group.members)) == (True, [], 1)
    assert ranges(other.triggers(1)) == [(0, 10, 20), (1, 10, 20)]


def test_the_second_batch_joins(group: FakeGroup, log: MemoryLog) -> None:
    """It goes on where the group is."""
    other = at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)
    new.trigger()

    for _ in range(4):
        new.trigger()
        other.trigger()

    assert not new.core.warming_up
    assert new.sunk
    assert len(group.members) == 2
    written = sorted(ranges(new.sunk + other.sunk))
    assert len(written) == len(set(written))


def test_who_is_alone_begins_at_once(group: FakeGroup, log: MemoryLog) -> None:
    """Nobody else reads meanwhile."""
    new = Query(group, log, warms_up=True)

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]


def test_a_static_reader_whose_place_waits_for_it_begins_at_once(
    group: FakeGroup, log: MemoryLog
) -> None:
    """Its partitions are nobody else's until its session ends."""
    at_work(group, log, groupInstanceId="me")
    new = Query(group, log, client_id="new", warms_up=True, groupInstanceId="me")

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]


def test_the_only_trigger_there_is_reads(group: FakeGroup, log: MemoryLog) -> None:
    """Spark's Trigger.Once sets no limit; a batch without rows would be all that it does."""
    at_work(group, log)
    new = Query(group, log, client_id="new", max_rows=None, warms_up=True)

    new.trigger()

    assert not new.core.warming_up


def test_a_replay_is_warm_enough(group: FakeGroup, log: MemoryLog) -> None:
    """A reader that takes up a batch has started its workers with it."""
    old = at_work(group, log)
    for place in old.steps():
        if len(old.checkpoint.offsets) > old.checkpoint.commits:
            assert place is None
            break
    group.evict(old.session)
    new = Query(group, log, client_id="new", checkpoint=old.checkpoint, warms_up=True)

    assert ranges(new.triggers(2)) == [(0, 10, 20), (1, 10, 20), (0, 20, 30), (1, 20, 30)]


def test_an_outage_is_waited_for_as_ever(group: FakeGroup, log: MemoryLog) -> None:
    """Whether others read is not known then, and joining says why it can't go on."""
    at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)
    assert new.trigger()
    group.outage = True
    late = Query(group, log, client_id="late", warms_up=True, coordinatorTimeout="46s")

    with pytest.raises(Exception, match="no answer about the first assignment"):
        late.trigger()


def test_available_now_does_not_warm_up(group: FakeGroup, log: MemoryLog) -> None:
    """A batch without rows would look like the end."""
    new = Query(group, log, warms_up=True)
    new.core.prepare_available_now()  # It is a member that reads from here on, and sees itself.

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]
