"""When offsets expire (KIP-211, table 3.1 of the semantics), and that no clock makes it early."""

from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, strategies as st

from coordinator.group.core import GroupConfig
from coordinator.group.maintenance import SLICE
from coordinator.group.records import (
    CommittedOffset,
    GroupDeleted,
    GroupMetadata,
    GroupRetention,
    OffsetRemoved,
    OffsetsCommitted,
)
from protocol.messages import AlterGroupRetentionRequest, AlterGroupRetentionResponse
from tests.group.context import GROUP, Context, subscription
from tests.packed import committed

HOUR_MS = 3_600_000
KEPT_MS = 24 * HOUR_MS
CHECK_MS = 600_000
SESSION_MS = 1_800_000
CONFIG = GroupConfig(offsets_retention_ms=KEPT_MS, offsets_retention_check_interval_ms=CHECK_MS)


def keep_for(context: Context, retention_ms: int | None, group: str = GROUP) -> int:
    """Alter a group's retention; return the error."""
    token = context.send(AlterGroupRetentionRequest(group, retention_ms))
    return context.answer(token, AlterGroupRetentionResponse).error


def test_an_offset_of_a_simple_group_expires_some_time_after_its_commit() -> None:
    """Nobody knows who uses it; a commit starts the time anew."""
    context = Context(CONFIG)
    context.commit("", -1, "t-0")
    context.commit("", -1, "t-1")
    context.advance(KEPT_MS - CHECK_MS)
    context.commit("", -1, "t-1")

    assert context.offset("t-0").offset == 7

    context.advance(2 * CHECK_MS)

    assert (context.offset("t-0").offset, context.offset("t-1").offset) == (-1, 7)
    assert context.records[-1] == OffsetRemoved(GROUP, "t", 0)
    assert context.events_named("offsets.expired") == [
        {"group": GROUP, "count": 1, "topics": ["t"]}
    ]


def test_it_is_kept_for_the_whole_time() -> None:
    """Exactly: at the end of the time it has expired, and not a millisecond before."""
    context = Context(CONFIG)
    context.advance(1)
    context.commit("", -1, "t-0")
    context.advance(KEPT_MS - 1)

    assert context.offset("t-0").offset == 7

    context.advance(CHECK_MS)

    assert context.offset("t-0").offset == -1

    context = Context(CONFIG)
    context.commit("", -1, "t-0")
    context.advance(KEPT_MS)

    assert context.offset("t-0").offset == -1


def test_the_last_offset_takes_the_group_with_it() -> None:
    """As one entry: a tombstone of the scope."""
    context = Context(CONFIG)
    context.commit("", -1, "t-0")
    context.commit("", -1, "t-1")
    context.advance(KEPT_MS)

    assert context.describe().error == 69
    assert context.records[-1] == GroupDeleted(GROUP)
    assert not [r for r in context.records if type(r) is OffsetRemoved]
    assert context.events_named("group.expired") == [
        {"group": GROUP, "generation": 0, "offsets": 2}
    ]


def test_an_empty_group_without_offsets_goes_at_the_first_look() -> None:
    """As in Kafka; but not while somebody holds an id to join it with."""
    context = Context(CONFIG)
    context.new_id(session_ms=SESSION_MS)
    context.advance(CHECK_MS)

    assert context.state == "Empty"

    context.advance(SESSION_MS)

    assert context.describe().error == 69


def test_a_group_that_had_members_keeps_all_for_some_time_after_the_last_one() -> None:
    """Whatever the age of the commit."""
    context = Context(CONFIG)
    (member,) = context.stable_group(1, session_ms=SESSION_MS)
    context.commit(member, 1)
    for _ in range(200):
        context.advance(CHECK_MS)
        context.beat(member, 1)
    context.leave(member)
    context.advance(KEPT_MS - 1)

    assert (context.state, context.offset().offset) == ("Empty", 7)

    context.crash()
    context.advance(CHECK_MS)

    assert context.describe().error == 69


def test_what_an_operator_resets_in_a_group_long_empty_is_kept() -> None:
    """Kafka drops it at the next check, as the group has been empty for long enough."""
    context = Context(CONFIG)
    (member,) = context.stable_group(1, session_ms=SESSION_MS)
    context.commit(member, 1)
    context.leave(member)
    context.advance(KEPT_MS - CHECK_MS)
    context.commit("", -1, "t-1", offset=3)
    context.advance(2 * CHECK_MS)

    assert (context.offset().offset, context.offset("t-1").offset) == (-1, 3)


def test_the_commit_counts_where_nobody_noted_when_the_group_became_empty() -> None:
    """A record of Kafka's may have no time: -1."""
    wall_ms = Context(CONFIG).wall_ms
    value = CommittedOffset(7, -1, "", wall_ms + HOUR_MS, -1)
    context = Context(
        CONFIG,
        records=[
            GroupMetadata(GROUP, "consumer", 3, None, None, -1, ()),
            committed(GROUP, "t", 0, value),
        ],
    )
    context.advance(KEPT_MS + HOUR_MS - 1)

    assert context.offset("t-0").offset == 7

    context.advance(CHECK_MS)

    assert context.describe().error == 69


def alive(context: Context, member: str, generation: int, for_ms: int) -> None:
    """Let time pass with heartbeats."""
    for _ in range(for_ms // CHECK_MS):
        context.advance(CHECK_MS)
        context.beat(member, generation)


def test_a_stable_consumer_loses_only_what_it_no_longer_subscribes_to() -> None:
    """A topic in use never expires, however rarely it is committed."""
    context = Context(CONFIG)
    context.commit("", -1, "trains-0")
    (member,) = context.stable_group(1, session_ms=SESSION_MS)
    context.commit(member, 1)
    alive(context, member, 1, KEPT_MS + CHECK_MS)

    assert (context.offset().offset, context.offset("trains-0").offset) == (7, -1)
    assert context.state == "Stable"


@pytest.mark.parametrize(
    ("protocol_type", "metadata"),
    [("consumer", b"\x00"), ("connect", subscription("flights"))],
)
def test_nothing_expires_where_subscriptions_are_not_known(
    protocol_type: str, metadata: bytes
) -> None:
    """Bytes that can't be read may name any topic."""
    context = Context(CONFIG)
    context.commit("", -1, "trains-0")
    (member,) = context.stable_group(
        1, session_ms=SESSION_MS, protocol_type=protocol_type, protocols={"x": metadata}
    )
    alive(context, member, 1, 2 * KEPT_MS)

    assert context.offset("trains-0").offset == 7


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_nothing_expires_during_a_rebalance(state: str) -> None:
    """What the members will subscribe to is not known yet."""
    week_ms = 7 * KEPT_MS
    context = Context(replace(CONFIG, group_max_rebalance_timeout_ms=week_ms))
    context.commit("", -1, "trains-0")
    kept: dict[str, Any] = {"session_ms": SESSION_MS, "rebalance_ms": week_ms}
    first, second = context.completing_group(2, **kept)
    if state == "PreparingRebalance":
        context.sync_all([first, second])
        context.join(first, **kept)
    for _ in range(2 * KEPT_MS // CHECK_MS):
        context.advance(CHECK_MS)
        for member in (first, second):
            context.beat(member, 1)

    assert (context.state, context.offset("trains-0").offset) == (state, 7)


def test_a_group_has_a_retention_of_its_own() -> None:
    """Longer, shorter, for ever, and back to the server's."""
    context = Context(CONFIG)
    for group in ("longer", "shorter", "ever", "back"):
        context.commit("", -1, group=group)
    keep_for(context, 2 * KEPT_MS, "longer")
    keep_for(context, HOUR_MS, "shorter")
    keep_for(context, -1, "ever")
    keep_for(context, -1, "back")
    keep_for(context, None, "back")

    def left() -> list[str]:
        return [g for g in ("longer", "shorter", "ever", "back") if not context.describe(g).error]

    context.advance(HOUR_MS)

    assert left() == ["longer", "ever", "back"]

    context.crash()
    context.advance(KEPT_MS)

    assert left() == ["longer", "ever"]

    context.advance(100 * KEPT_MS)

    assert left() == ["ever"]
    assert context.describe("ever").offsets_retention_ms == -1


def test_a_group_that_keeps_for_ever_is_not_forgotten_for_having_nothing() -> None:
    """What is committed next would expire."""
    context = Context(CONFIG)
    context.new_id()
    keep_for(context, -1)
    context.advance(KEPT_MS)

    assert context.state == "Empty"


def test_an_expiry_that_a_commit_named_counts_instead() -> None:
    """Kafka's old clients did; their records may be restored."""
    wall_ms = Context(CONFIG).wall_ms
    values = {
        0: CommittedOffset(7, -1, "", wall_ms, wall_ms + HOUR_MS),
        1: CommittedOffset(7, -1, "", wall_ms, wall_ms + 9 * KEPT_MS),
    }
    records = [committed(GROUP, "t", p, value) for p, value in values.items()]
    context = Context(CONFIG, records=records)
    context.advance(HOUR_MS)

    assert (context.offset("t-0").offset, context.offset("t-1").offset) == (-1, 7)

    context.advance(2 * KEPT_MS)

    assert context.offset("t-1").offset == 7


def test_the_server_can_keep_everything() -> None:
    """Retention -1."""
    context = Context(GroupConfig(offsets_retention_ms=-1))
    context.commit("", -1)
    context.advance(20 * KEPT_MS)

    assert context.offset().offset == 7


def test_expiry_is_done_in_slices() -> None:
    """So that it holds nobody up; several groups share one."""
    context = Context(CONFIG)
    count = 2 * SLICE + 10
    offsets = [(f"t-{n}", n, None, None) for n in range(count)]
    assert context.commit_raw("", -1, offsets, "large").error == 0
    context.commit("", -1, group="small")
    at_ms = context.mono_ms + CONFIG.offsets_retention_ms
    wall_ms = context.wall_ms + CONFIG.offsets_retention_ms
    with mock.patch.multiple(context, mono_ms=at_ms, wall_ms=wall_ms):
        sizes = []
        while (context.shard.next_deadline_ms() or 0) <= at_ms:
            outcomes = context.shard.expire(context.now)
            sizes.append(sum(len(outcome.records) for outcome in outcomes))
            for outcome in outcomes:
                context.take(outcome)

    assert (len(sizes), max(sizes)) == (3, SLICE)
    assert (context.describe("large").error, context.describe("small").error) == (69, 69)


def test_a_commit_between_two_slices_is_not_lost() -> None:
    """Each slice looks anew at what it removes."""
    context = Context(CONFIG)
    count = SLICE + 10
    offsets = [(f"t-{n}", n, None, None) for n in range(count)]
    assert context.commit_raw("", -1, offsets).error == 0
    context.mono_ms += KEPT_MS
    context.wall_ms += KEPT_MS
    for outcome in context.shard.expire(context.now):
        context.take(outcome)
    context.commit("", -1, f"t-{count - 1}", 5)
    context.advance(0)

    assert context.offset(f"t-{count - 1}").offset == 5
    assert context.offset("t-0").offset == context.offset(f"t-{count - 2}").offset == -1


def test_a_group_that_is_deleted_between_two_slices_stays_deleted() -> None:
    """A tombstone of one of its offsets would bring it back, empty."""
    context = Context(CONFIG)
    offsets = [(f"t-{n}", n, None, None) for n in range(SLICE + 10)]
    assert context.commit_raw("", -1, offsets).error == 0
    context.mono_ms += KEPT_MS
    context.wall_ms += KEPT_MS
    for outcome in context.shard.expire(context.now):
        context.take(outcome)
    context.take(context.shard.delete_group(GROUP, context.now)[0])
    context.advance(0)

    assert context.describe().error == 69
    assert context.records[-1] == GroupDeleted(GROUP)


def test_a_stalled_process_expires_nothing_early() -> None:
    """Deadlines are moved; the clock of expiry goes on."""
    context = Context(CONFIG)
    context.commit("", -1)
    context.shard.shift_deadlines(KEPT_MS)
    context.advance(KEPT_MS + CHECK_MS - 1)

    assert context.offset().offset == 7

    context.advance(1)

    assert context.offset().offset == -1


def test_an_unloaded_shard_expires_nothing() -> None:
    """Another node does, from its own copy."""
    context = Context(CONFIG)
    context.commit("", -1)
    context.shard.unload(context.now)

    assert context.shard.next_deadline_ms() is None


def test_a_shard_that_is_loaded_again_starts_anew() -> None:
    """What it was about to do to its groups is for whoever has them now."""
    context = Context(CONFIG)
    context.commit("", -1, "t-0")
    context.shard.topics_changed(["t"], context.now)
    context.shard.unload(context.now)
    for record in context.records:
        context.shard.replay(record)
    context.shard.loaded(context.now)
    context.group_ends.clear()  # What was loaded is known at once.

    assert context.shard.next_deadline_ms() == context.mono_ms + CHECK_MS

    context.advance(CHECK_MS)

    assert (context.offset("t-0").offset, context.shard.take_purged()) == (7, [])


JUMPS = st.lists(
    st.one_of(
        st.tuples(st.just("jump"), st.integers(-400 * HOUR_MS, 400 * HOUR_MS)),
        st.tuples(st.just("pass"), st.integers(0, 40 * HOUR_MS)),
        st.tuples(st.just("commit"), st.integers(0, 2)),
        st.just(("load again", 0)),
    ),
    max_size=15,
)


# Nothing was written for a while when the clock went back.
@example([("jump", -KEPT_MS), ("pass", 2 * HOUR_MS), ("commit", 0), ("pass", 1), ("pass", HOUR_MS)])
# A jump is not believed because the partition is loaded again.
@example([("commit", 0), ("jump", KEPT_MS), ("load again", 0), ("pass", HOUR_MS)])
@given(JUMPS)
def test_jumps_of_the_wall_clock_make_nothing_expire_early(steps: list[tuple[str, int]]) -> None:
    """What is kept for a day is kept for a day of monotonic time, whatever the wall says."""
    context = Context(CONFIG)
    committed: dict[int, int] = {}
    for what, by in steps:
        if what == "jump":
            context.wall_ms += by
        elif what == "commit":
            assert context.commit("", -1, f"t-{by}") == 0
            committed[by] = context.mono_ms
        elif what == "load again":
            context.load_again()
        else:
            context.advance(by)
        for partition, at_ms in committed.items():
            if context.mono_ms - at_ms < KEPT_MS:
                assert context.offset(f"t-{partition}").offset == 7


@given(st.integers(-400 * HOUR_MS, 400 * HOUR_MS), st.integers(0, KEPT_MS // 2))
def test_a_clock_that_was_wrong_for_a_while_costs_nothing_after_a_restart(
    jump_ms: int, wrong_for_ms: int
) -> None:
    """Commits of that time carry its dates; a restart with the right date must not mind them."""
    context = Context(CONFIG)
    context.commit("", -1, "t-0", group="before")
    context.wall_ms += jump_ms
    context.commit("", -1, "t-0", group="while")
    context.advance(wrong_for_ms)
    context.wall_ms -= jump_ms
    context.crash()
    context.advance(KEPT_MS - wrong_for_ms - 1)

    assert context.offset("t-0", "before").offset == context.offset("t-0", "while").offset == 7


def test_a_clock_that_was_ahead_at_the_start_and_is_set_right_expires_nothing() -> None:
    """Machines start with any date; they are set right before the first check."""
    context = Context(CONFIG)
    context.commit("", -1)
    context.wall_ms += 100 * KEPT_MS
    context.crash()
    context.wall_ms -= 100 * KEPT_MS
    context.advance(KEPT_MS - 1)

    assert context.offset().offset == 7

    context.advance(CHECK_MS + 1)

    assert context.offset().offset == -1


def test_timestamps_of_records_never_go_back() -> None:
    """An offset that was committed later would look older."""
    context = Context(CONFIG)
    context.commit("", -1, "t-0")
    context.wall_ms -= HOUR_MS
    context.commit("", -1, "t-1")
    context.crash()
    context.commit("", -1, "t-2")
    stamps = [r.commit_timestamp_ms for r in context.records if type(r) is OffsetsCommitted]

    assert stamps == [context.wall_ms + HOUR_MS] * 3


def test_a_retention_is_hard() -> None:
    """A record of its own, and a tombstone for the server's setting."""
    context = Context(CONFIG)

    assert keep_for(context, 5) == 69

    context.commit("", -1)

    assert (keep_for(context, 5), keep_for(context, 5), keep_for(context, None)) == (0, 0, 0)
    assert [r for r in context.records if type(r) is GroupRetention] == [
        GroupRetention(GROUP, 5),
        GroupRetention(GROUP, None),
    ]
    assert [(e["before"], e["after"]) for e in context.events_named("group.retention_changed")] == [
        (None, 5),
        (5, None),
    ]
