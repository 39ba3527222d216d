"""A reader that comes into a group at work: Spark gets ready before partitions move."""

from typing import Any

import pytest

from client.exceptions import FatalError
from client.spark.errors import CoordinatorTimeout, DataLossError
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


def test_a_reader_that_was_killed_is_no_other(group: FakeGroup, log: MemoryLog) -> None:
    """It is a member until its session ends, and with a long interval nobody would read for one."""
    killed = at_work(group, log)
    again = Query(group, log, client_id="again", checkpoint=killed.checkpoint, warms_up=True)

    again.trigger()

    assert not again.core.warming_up


def test_a_batch_without_rows_is_replayed_as_one(group: FakeGroup, log: MemoryLog) -> None:
    """The driver may die in it; whoever takes it up joins, and is then idle in an outage."""
    other = at_work(group, log)
    died = Query(group, log, client_id="died", warms_up=True)
    for _ in zip(range(4), died.steps(), strict=False):
        pass  # Up to the log of the batch, before its sink.
    assert (len(died.checkpoint.offsets), died.checkpoint.commits) == (1, 0)
    again = Query(group, log, client_id="again", checkpoint=died.checkpoint, warms_up=True)

    def let_the_other_go_on() -> None:
        other.trigger()

    again.clock.on_sleep = let_the_other_go_on

    assert again.trigger()

    assert (again.sunk, len(group.members)) == ([], 2)
    group.evict(again.session)
    group.outage = True
    assert not again.trigger()
    group.outage = False
    again.triggers(2)
    assert again.sunk


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


def test_a_partition_that_the_log_lost_is_missed_before_the_warm_up(
    group: FakeGroup, log: MemoryLog
) -> None:
    """The end of the batch without rows names no partition: a restart would miss nothing."""
    old = at_work(group, log)
    group.evict(old.session)
    group.partitions.remove(tp(1))
    at_work(group, MemoryLog({0: 100}))
    checkpoint = old.checkpoint

    for _ in range(2):
        new = Query(group, MemoryLog({0: 100}), checkpoint=checkpoint, warms_up=True)
        with pytest.raises(DataLossError, match="flights-1"):
            new.trigger()


def test_a_description_that_is_refused_ends_no_query(
    group: FakeGroup, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether others read is a hint; joining says what is really wrong."""
    new = Query(group, log, warms_up=True)

    def refuse(_before: str) -> bool:
        raise FatalError("the answer would be too large")

    monkeypatch.setattr(new.session, "others_read", refuse)

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]


def test_the_only_trigger_waits_for_its_place(group: FakeGroup, log: MemoryLog) -> None:
    """Spark's Trigger.Once sets no limit; a batch without rows would be all that it does."""
    other = at_work(group, log)
    new = Query(group, log, client_id="new", max_rows=None, warms_up=True)

    def let_the_other_go_on() -> None:
        other.trigger()

    new.clock.on_sleep = let_the_other_go_on

    assert new.trigger()

    assert not new.core.warming_up
    assert ranges(new.sunk) == [(1, 10, 100)]


def test_an_only_trigger_that_gets_no_place_ends_with_an_error(
    group: FakeGroup, log: MemoryLog
) -> None:
    """And not as if there were nothing to read."""
    at_work(group, log)
    new = Query(group, log, client_id="new", max_rows=None, warms_up=True)

    with pytest.raises(CoordinatorTimeout, match="the first assignment"):
        new.trigger()


def test_a_long_warm_up_is_no_long_batch(
    group: FakeGroup, log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    """No rebalance waits for a reader that hasn't joined."""
    at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)
    new.trigger()
    new.clock.now_s += 59

    new.trigger()

    assert "between two triggers" not in caplog.text
