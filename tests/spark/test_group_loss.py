"""A coordinator that has forgotten where the group was: the reader core and its memory."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client.offsets import OffsetAndMetadata
from client.spark.errors import GroupLossError
from client.spark.source.group_memory import (
    GroupMemory,
    farther,
    is_gone,
    places_group,
)
from client.spark.source.planning import Position
from client.spark.source.stream_offsets import Memory
from protocol.group_ids import GROUP_ID_BYTES_MAX, group_id_error
from protocol.partition import NO_GENERATION, TopicPartition
from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import Checkpoint, Clock, MemoryLog, Query, group_and_log, ranges, tp

CHECKPOINT = {"onGroupLoss": "checkpoint"}
SESSION_S = 10
MISSING_S = 15  # Half of the coordinator timeout.
ANEW = {"onGroupLoss": "startingOffsets"}


def reader(group: FakeGroup, log: MemoryLog, **given: Any) -> Query:
    """Return a cooperative reader that takes ten rows per partition."""
    return Query(group, log, **{"assignor": "cooperative", **given})


def after_waiting(query: Query) -> list[tuple[int, int, int]]:
    """Let a restarted reader wait for what others know; return the ranges that it runs then."""
    query.trigger()
    query.clock.now_s += SESSION_S
    return ranges(query.triggers(5))


def stopped(query: Query) -> Checkpoint:
    """Stop a query; return what is left of it."""
    query.core.stop()
    return query.checkpoint


def at_work(**given: Any) -> tuple[FakeGroup, MemoryLog, Query]:
    """Return a reader that has finished 20 rows of two partitions, of which 30 are there."""
    group, log = group_and_log({0: 0, 1: 0})
    query = reader(group, log, **given)
    query.trigger()
    log.ends = {0: 20, 1: 20}
    query.triggers(3)
    assert group.offset(tp(0)) == group.offset(tp(1)) == 20
    log.ends = {0: 30, 1: 30}
    return group, log, query


# --- While the reader runs -------------------------------------------------------------------


def test_a_running_query_ends_with_an_error_that_names_what_is_gone_and_the_choices() -> None:
    """Going on at the end skips rows, going on at the start repeats all: neither is asked for."""
    group, _, query = at_work()
    group.lose(cluster_id="cluster-2")

    with pytest.raises(GroupLossError) as raised:
        query.trigger()

    message = str(raised.value)
    for part in (
        "localhost:9310",
        "group 'g'",
        "cluster-1",
        "cluster-2",
        "flights-0 (was at 20), flights-1 (was at 20)",
        "onGroupLoss",
        "'checkpoint'",
        "'startingOffsets'",
    ):
        assert part in message
    assert not group.offsets


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_running_query_puts_the_group_back_and_misses_and_repeats_nothing(
    start: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its memory has the very place, with the pin."""
    group, _, query = at_work(startingOffsets=start, **CHECKPOINT)
    group.lose(cluster_id="cluster-2")

    assert ranges(query.triggers(3)) == [(0, 20, 30), (1, 20, 30)]

    assert "flights-0: the group is put back to 20" in caplog.text
    assert group.offset(tp(0)) == 30


def test_a_batch_that_was_in_flight_is_committed_after_the_loss() -> None:
    """Its range was pinned at the old coordinator, and is put back with its pin."""
    group, _, query = at_work(**CHECKPOINT)
    query.trigger()
    group.lose(cluster_id="cluster-2")

    assert ranges(query.triggers(3)) == []

    assert group.offset(tp(0)) == group.offset(tp(1)) == 30


def test_a_loss_with_starting_offsets_is_said_loudly_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rows that come again have another reset counter, by which a sink can tell."""
    group, _, query = at_work(**ANEW)
    group.lose()

    with caplog.at_level(logging.WARNING):
        assert ranges(query.triggers(1)) == [(0, 0, 10), (1, 0, 10)]

    assert "has forgotten group 'g'" in caplog.text
    assert "rows may be skipped, or come again" in caplog.text
    assert group.offsets[tp(0)].metadata == "gc1:10:1"


def test_after_a_loss_the_next_one_is_noticed_as_well() -> None:
    """The memory is of the new cluster then."""
    group, log, query = at_work(**CHECKPOINT)
    group.lose(cluster_id="cluster-2")
    query.triggers(3)
    group.lose(cluster_id="cluster-3")
    log.ends = {0: 35, 1: 35}

    assert ranges(query.triggers(3)) == [(0, 30, 35), (1, 30, 35)]


# --- Restarts --------------------------------------------------------------------------------


def test_a_restarted_query_refuses_before_it_joins() -> None:
    """It must not move anything in a group that may be somebody else's."""
    group, log, query = at_work()
    checkpoint = stopped(query)
    group.lose()

    with pytest.raises(GroupLossError, match="no offset of flights-0"):
        reader(group, log, checkpoint=checkpoint).trigger()

    assert group.generation == 0


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_restarted_query_goes_on_where_its_checkpoint_was(start: str) -> None:
    """The last batch may come again, as one cannot know whether it was left to another reader.

    It comes with the same bounds.
    """
    group, log, query = at_work(startingOffsets=start, **CHECKPOINT)
    checkpoint = stopped(query)
    group.lose(cluster_id="cluster-2")

    again = reader(group, log, checkpoint=checkpoint, startingOffsets=start, **CHECKPOINT)

    assert after_waiting(again) == [(0, 10, 20), (1, 10, 20), (0, 20, 30), (1, 20, 30)]


def test_a_replayed_batch_runs_again_as_it_was_pinned() -> None:
    """What was in flight at the crash is owed."""
    group, log, query = at_work(**CHECKPOINT)
    query.trigger()
    query.crash_before_commit_log()
    group.lose(cluster_id="cluster-2")

    again = reader(group, log, checkpoint=query.checkpoint, **CHECKPOINT)

    assert ranges(again.triggers(3)) == [(0, 20, 30), (1, 20, 30)]


def test_a_quiet_partition_is_remembered_too() -> None:
    """The last batch held nothing of it."""
    group, log, query = at_work(**CHECKPOINT)
    log.ends = {0: 30, 1: 20}
    query.triggers(3)
    checkpoint = stopped(query)
    group.lose()

    again = reader(group, log, checkpoint=checkpoint, **CHECKPOINT)

    assert after_waiting(again) == [(0, 20, 30)]
    assert group.offset(tp(1)) == 20


def test_a_checkpoint_of_an_older_release_is_known_by_its_ranges() -> None:
    """It names no cluster and no other partitions."""
    group, log, query = at_work()
    checkpoint = stopped(query)
    offsets = [json.loads(text) for text in checkpoint.offsets]
    for offset in offsets:
        for name in ("cluster", "generation", "at"):
            offset["@"].pop(name, None)
    checkpoint.offsets = [json.dumps(offset) for offset in offsets]
    group.lose()

    with pytest.raises(GroupLossError, match="no offset of flights-0"):
        reader(group, log, checkpoint=checkpoint).trigger()


def test_an_offset_that_has_expired_is_a_loss_and_the_others_stay() -> None:
    """Retention removes offsets one by one."""
    group, log, query = at_work(**CHECKPOINT)
    query.triggers(2)
    checkpoint = stopped(query)
    del group.offsets[tp(1)]

    with pytest.raises(GroupLossError) as raised:
        reader(group, log, checkpoint=checkpoint).trigger()
    again = reader(group, log, checkpoint=checkpoint, **CHECKPOINT)

    assert "flights-1 (was at 20)" in str(raised.value)
    assert "flights-0" not in str(raised.value)
    assert after_waiting(again) == [(1, 20, 30)]


def test_a_group_in_another_cluster_is_refused_even_where_it_is_further_on() -> None:
    """Its offsets are of other readers, or of another log; nothing says that ours were read."""
    group, log, query = at_work(**CHECKPOINT)
    checkpoint = stopped(query)
    group.lose(cluster_id="staging")
    group.reset(tp(0), 25, "gc1:25:0")
    group.reset(tp(1), 3, "gc1:5:0")

    with pytest.raises(GroupLossError, match="this is cluster staging, it was cluster-1"):
        reader(group, log, checkpoint=checkpoint).trigger()
    again = reader(group, log, checkpoint=checkpoint, **CHECKPOINT)

    assert sorted(after_waiting(again)) == [(1, 10, 20), (1, 20, 30)]
    assert group.offset(tp(0)) == 30


def test_a_group_that_was_made_anew_is_known_by_its_generation() -> None:
    """Whoever came first, without a checkpoint, has begun it; rows may have been skipped."""
    group, log, query = at_work()
    for _ in range(5):
        group.evict(query.session)
        query.trigger()
    log.ends = {0: 35, 1: 35}
    query.triggers(2)
    checkpoint = stopped(query)
    group.lose()
    newcomer = reader(group, log, client_id="new")
    log.ends = {0: 40, 1: 40}
    newcomer.triggers(8)
    assert group.offset(tp(0)) == 40
    stopped(newcomer)

    with pytest.raises(GroupLossError, match="generation 2, it was in"):
        reader(group, log, checkpoint=checkpoint, client_id="old").triggers(5)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_restored_backup_is_a_loss(*, is_restarted: bool) -> None:
    """The group went back, and nobody reset it: the pin has the same counter of resets."""
    group, log, query = at_work()
    backup = dict(group.offsets)
    query.triggers(2)
    log.ends = {0: 32, 1: 32}
    query.triggers(2)
    assert group.offset(tp(0)) == 32
    if is_restarted:
        query = reader(group, log, checkpoint=stopped(query))
    group.offsets = backup
    log.ends = {0: 35, 1: 35}

    with pytest.raises(GroupLossError, match=r"flights-0 is at 20 \(was at"):
        query.triggers(3)


# --- What is no loss -------------------------------------------------------------------------


def test_a_partition_that_never_had_an_offset_is_no_loss() -> None:
    """Nothing was read of it; a restart finds it as it was."""
    group, log = group_and_log({0: 0, 1: 0})
    query = reader(group, log)
    query.triggers(2)
    assert not group.offsets
    checkpoint = stopped(query)
    log.ends = {0: 5, 1: 5}

    assert ranges(reader(group, log, checkpoint=checkpoint).triggers(2)) == [(0, 0, 5), (1, 0, 5)]


def test_a_new_checkpoint_goes_on_where_an_old_group_is() -> None:
    """The offsets are the group's."""
    group, log, query = at_work()
    stopped(query)

    assert ranges(reader(group, log).triggers(2)) == [(0, 20, 30), (1, 20, 30)]


@pytest.mark.parametrize("metadata", ["", "by hand", "gc1:5:1"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_reset_is_no_loss_even_when_another_reader_went_on_from_it(
    metadata: str, times: int
) -> None:
    """All drivers are stopped for a reset, and the last to come back finds it long done."""
    group, log, query = at_work()
    checkpoint = stopped(query)
    for count in range(times):
        group.reset(tp(0), 5, metadata.replace(":1", f":{count + 1}"))
        group.reset(tp(1), 5, metadata.replace(":1", f":{count + 1}"))
        other = reader(group, log, client_id="other", max_rows=2)
        other.triggers(3)
        stopped(other)
        assert group.offset(tp(0)) == 9
        if count < times - 1:
            query = reader(group, log, checkpoint=checkpoint)
            query.triggers(6)
            checkpoint = stopped(query)
            assert group.offset(tp(0)) == 30

    again = reader(group, log, checkpoint=checkpoint)

    assert ranges(again.triggers(6))[0] == (0, 9, 11)
    assert group.offset(tp(0)) == 30


def test_a_reset_while_a_reader_runs_is_followed() -> None:
    """The bulk writer removes the members and raises the counter in the pin."""
    group, _, query = at_work()
    group.reset(tp(0), 5, "gc1:5:1")
    group.evict(query.session)

    assert ranges(query.triggers(1)) == [(0, 5, 15), (1, 20, 30)]


# --- Several readers -------------------------------------------------------------------------


def settled(*queries: Query) -> None:
    """Let readers join and share what there is; while one waits, the others go on."""
    busy: list[Query] = []

    def go_on() -> None:
        for query in queries:
            if query not in busy:
                busy.append(query)
                query.trigger()
                busy.remove(query)

    for query in queries:
        query.clock.on_sleep = go_on
    for _ in range(8):
        go_on()
    for query in queries:
        query.clock.on_sleep = lambda: None


def several(count: int, **given: Any) -> tuple[FakeGroup, MemoryLog, list[Query]]:
    """Return readers that have finished 20 rows of each of six partitions together."""
    group, log = group_and_log(dict.fromkeys(range(6), 0))
    queries = [reader(group, log, client_id=name, **given) for name in "abc"[:count]]
    settled(*queries)
    log.ends = dict.fromkeys(range(6), 20)
    settled(*queries)
    assert {group.offset(tp(p)) for p in range(6)} == {20}
    log.ends = dict.fromkeys(range(6), 30)
    return group, log, queries


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_readers_put_back_together_what_each_of_them_knows(start: str) -> None:
    """Whoever comes back first owns all; it waits for what the others write down."""
    group, _, (a, b) = several(2, startingOffsets=start, **CHECKPOINT)
    before = len(a.sunk) + len(b.sunk)
    group.lose(cluster_id="cluster-2")

    a.triggers(3)
    settled(a, b)

    written = sorted(ranges(a.sunk + b.sunk))
    assert [one for one in written if one[1] >= 20] == [(p, 20, 30) for p in range(6)]
    assert len(written) == before + 6


def test_partitions_that_nobody_knows_are_read_from_their_start_after_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One of the readers, and its checkpoint, may be gone for good: no row is skipped for that.

    Others certainly were there: they have longer than a session, and less than what must not end
    empty-handed waits.
    """
    group, _, (b, a) = several(2, **CHECKPOINT)  # The first one had all before.
    of_b = sorted(task.tp for task in b.sunk)
    group.lose(cluster_id="cluster-2")

    a.triggers(3)
    a.clock.now_s += SESSION_S
    a.triggers(3)
    waiting = {one.partition for one in of_b if group.offset(one) is None}
    a.clock.now_s += MISSING_S - SESSION_S
    a.triggers(5)

    assert waiting == {one.partition for one in of_b}
    assert "nobody knows where" in caplog.text
    assert all(group.offset(tp(p)) == 30 for p in range(6))


def test_available_now_does_not_end_before_the_others_have_said_where_they_were() -> None:
    """An empty batch would mean that all is read."""
    group, log, (a, b) = several(2, startingOffsets="latest", **CHECKPOINT)
    checkpoint = stopped(a)
    stopped(b)
    group.lose(cluster_id="cluster-2")
    query = reader(
        group, log, checkpoint=checkpoint, clock=Clock(), startingOffsets="latest", **CHECKPOINT
    )
    query.core.prepare_available_now()

    while query.trigger():
        pass

    assert all(group.offset(tp(p)) == 30 for p in range(6))
    assert MISSING_S <= sum(query.clock.slept) < 2 * MISSING_S


def written_by(*queries: Query) -> set[tuple[int, int, int]]:
    """Return the ranges that some runs wrote; one that was repeated is there once."""
    return set(ranges([task for query in queries for task in query.sunk]))


def expect_no_overlap(written: set[tuple[int, int, int]], ends: dict[int, int]) -> None:
    """Check that no row is missing, and that ranges lie apart."""
    for partition, log_end in ends.items():
        at = 0
        for _, start, end in sorted(one for one in written if one[0] == partition):
            assert start == at, f"partition {partition}: a gap or an overlap at {at}"
            at = end
        assert at == log_end


def test_what_a_reader_gave_away_waits_for_the_one_that_had_it_last() -> None:
    """Its own place is old: ranges from there would have other bounds than those that were run."""
    group, log = group_and_log(dict.fromkeys(range(6), 10))
    first_runs = [reader(group, log, client_id="a")]
    settled(*first_runs)  # It has all, and then half.
    first_runs.append(reader(group, log, client_id="b"))
    settled(*first_runs)
    log.ends = dict.fromkeys(range(6), 20)
    settled(*first_runs)
    a, b = (stopped(query) for query in first_runs)
    group.lose(cluster_id="cluster-2")
    log.ends = dict.fromkeys(range(6), 30)
    again = [reader(group, log, checkpoint=a, client_id="a2", max_rows=None, **CHECKPOINT)]

    put_back = {part for part, _, _ in after_waiting(again[0])}
    late = reader(group, log, checkpoint=b, client_id="b2", max_rows=None, **CHECKPOINT)
    again.append(late)
    settled(*again)
    for query in again:
        query.clock.now_s += SESSION_S
    settled(*again)

    assert put_back == {0, 1, 2}
    expect_no_overlap(written_by(*first_runs, *again), log.ends)


def test_a_replay_waits_only_for_places_of_its_own_batch() -> None:
    """A driver that is gone for good must not keep the others from starting."""
    group, log, (a, _) = several(2, coordinatorTimeout="100s", **CHECKPOINT)
    a.trigger()
    a.crash_before_commit_log()
    group.lose(cluster_id="cluster-2")
    again = reader(group, log, checkpoint=a.checkpoint, coordinatorTimeout="100s", **CHECKPOINT)

    again.trigger()

    assert ranges(again.sunk) == [(p, 20, 30) for p in range(3)]
    assert SESSION_S <= sum(again.clock.slept) < 2 * SESSION_S


@given(data=st.data(), count=st.integers(2, 3))
def test_readers_that_come_back_in_any_order_and_at_any_pace_run_no_other_ranges(
    data: st.DataObject, count: int
) -> None:
    """Whoever had a partition last knows of it, and nobody goes on from an older place before."""
    group, log = group_and_log(dict.fromkeys(range(5), 0))
    given_options = {"coordinatorTimeout": "600s", **CHECKPOINT}
    clock = Clock()
    first_runs: list[Query] = []
    for name in "abc"[:count]:
        first_runs.append(reader(group, log, client_id=name, clock=clock, **given_options))
        for _ in range(2):
            settled(*first_runs)
            for partition in data.draw(st.sets(st.integers(0, 4)), f"rows while {name} is there"):
                log.ends[partition] += 7
    settled(*first_runs)
    for query in first_runs:
        if data.draw(st.booleans(), "crash"):
            query.crash_before_commit_log()
        else:
            query.core.stop()
    group.lose(cluster_id="cluster-2")
    log.ends = {partition: end + 5 for partition, end in log.ends.items()}

    again: list[Query] = []
    for query in data.draw(st.permutations(first_runs), "order"):
        client_id = f"{query.session.client_id}-again"
        kept = {"checkpoint": query.checkpoint, "clock": clock, "max_rows": None}
        again.append(reader(group, log, client_id=client_id, **kept, **given_options))
        settled(*again)
        clock.now_s += data.draw(st.integers(0, 3 * SESSION_S), "pause")
        settled(*again)
    clock.now_s += SESSION_S
    settled(*again)
    clock.now_s += 600
    settled(*again)

    expect_no_overlap(written_by(*first_runs, *again), log.ends)


def test_a_reader_without_partitions_takes_no_lost_group_for_a_new_one() -> None:
    """With 'latest' it would put the whole group to the end before the others come."""
    group, log = group_and_log({0: 0})
    given = {"startingOffsets": "latest", **CHECKPOINT}
    a = reader(group, log, client_id="a", **given)
    settled(a)
    log.ends = {0: 20}
    settled(a)
    spare = reader(group, log, client_id="spare", **given)
    settled(a, spare)
    assert group.owners[tp(0)] == a.session.member_id
    log.ends = {0: 30}
    group.lose(cluster_id="cluster-2")

    spare.triggers(3)
    settled(spare, a)

    assert sorted(ranges(a.sunk + spare.sunk)) == [(0, 0, 10), (0, 10, 20), (0, 20, 30)]


# --- The memory itself -----------------------------------------------------------------------

PLACES = st.builds(
    lambda offset, resets: OffsetAndMetadata(offset, f"gc1:{offset}:{resets}"),
    st.integers(0, 20),
    st.integers(0, 3),
)
OFFSETS = st.dictionaries(st.integers(0, 4).map(tp), PLACES)


@given(st.lists(OFFSETS, max_size=5), st.randoms(use_true_random=False))
def test_places_end_up_the_same_in_whatever_order_readers_write_them(
    knowledge: list[dict[TopicPartition, OffsetAndMetadata]], rng: Any
) -> None:
    """The farthest place of all counts, and a newer reset before that."""
    ends = []
    for _ in range(2):
        rng.shuffle(knowledge)
        places: dict[TopicPartition, OffsetAndMetadata] = {}
        for known in knowledge:
            places |= farther(known, places)
        ends.append(places)

    assert ends[0] == ends[1]
    assert not any(farther(known, ends[0]) for known in knowledge)


@given(OFFSETS, OFFSETS)
def test_what_is_put_back_is_never_behind_what_is_there(
    seen: dict[TopicPartition, OffsetAndMetadata], stored: dict[TopicPartition, OffsetAndMetadata]
) -> None:
    """A reader that knows less must not take back what others have done."""
    memory = GroupMemory(lambda: 0.0)
    memory.remember(Memory("c", 1, seen))
    found = {tp(p): memory.read(tp(p), stored.get(tp(p)), 2) for p in range(5)}

    back, held = memory.to_restore(found, {})

    assert not held
    assert all(is_gone(place, found[one]) for one, place in back.items())
    assert back.keys() == {
        one for one in seen if is_gone(Position.of(seen[one]), Position.of(stored.get(one)))
    }


@pytest.mark.parametrize("group", ["etl", "ä" * 127, "x" * 255])
def test_the_group_of_places_has_a_legal_name(group: str) -> None:
    """A group's own name may be as long as names go."""
    name = places_group(group)

    assert group_id_error(name) is None
    assert len(name.encode()) <= GROUP_ID_BYTES_MAX
    assert name != group


def test_a_loss_of_very_many_partitions_has_a_short_message() -> None:
    """A group may have 100,000 partitions."""
    memory = GroupMemory(lambda: 0.0)
    offsets = {tp(p): OffsetAndMetadata(5, "gc1:5:0") for p in range(1_000)}
    memory.remember(Memory("c", 1, offsets))

    loss = memory.find_loss("c", NO_GENERATION, dict.fromkeys(offsets, Position(None)))

    assert str(loss) == (
        "there is no offset of flights-0 (was at 5), flights-1 (was at 5), flights-2 (was at 5) "
        "and 997 more"
    )
