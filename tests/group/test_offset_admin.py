"""OffsetDelete: what operators may make a group forget (KIP-496)."""

import pytest
from hypothesis import given, strategies as st

from coordinator.group import GroupConfig, GroupShard
from coordinator.group.records import GroupDeleted, OffsetRemoved, Record
from protocol.messages import (
    AlterGroupRetentionRequest,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    PartitionResult,
    TopicPartitions,
    TopicResult,
)
from tests.group.context import GROUP, Context, roundtrip, subscription
from tests.group.topics_context import TopicsContext
from tests.packed import entries_of, singles


def delete(context: Context, *names: str, group: str = GROUP) -> OffsetDeleteResponse:
    """Delete offsets of partitions written as ``topic-3``; return the answer."""
    topics: dict[str, list[int]] = {}
    for name in names:
        topic, partition = name.rsplit("-", 1)
        topics.setdefault(topic, []).append(int(partition))
    named = tuple(TopicPartitions(topic, tuple(ps)) for topic, ps in topics.items())
    token = context.send(OffsetDeleteRequest(group, named))
    return context.answer(token, OffsetDeleteResponse)


def errors(response: OffsetDeleteResponse) -> list[int]:
    """Return the errors by partition."""
    assert response.error == 0
    return [p.error for topic in response.topics for p in topic.partitions]


def test_an_unknown_group_has_nothing_to_delete() -> None:
    """69, and no group comes into being."""
    context = Context()

    assert delete(context, "t-0") == OffsetDeleteResponse(69, ())
    assert context.describe().error == 69


def test_offsets_of_an_empty_group_are_deleted_for_good() -> None:
    """Tombstones, so that no replay brings them back; the group stays."""
    context = Context()
    for name in ("t-0", "t-1", "u-0"):
        context.commit("", -1, name)

    assert delete(context, "t-0", "u-0") == OffsetDeleteResponse(
        0,
        (
            TopicResult("t", (PartitionResult(0, 0),)),
            TopicResult("u", (PartitionResult(0, 0),)),
        ),
    )
    assert context.records[-2:] == [OffsetRemoved(GROUP, "t", 0), OffsetRemoved(GROUP, "u", 0)]

    context.crash()

    assert [context.offset(name).offset for name in ("t-0", "t-1", "u-0")] == [-1, 7, -1]
    assert errors(delete(context, "t-1")) == [0]

    context.crash()

    assert context.describe().error == 0
    assert context.events_named("offsets.removed") == [
        {"group": GROUP, "count": 2, "topics": ["t", "u"], "reason": "on request"},
        {"group": GROUP, "count": 1, "topics": ["t"], "reason": "on request"},
    ]


def test_what_is_not_there_is_deleted_already() -> None:
    """No error and no tombstone, registered or not; once is enough."""
    context = TopicsContext()
    context.register({"t": 1})
    context.commit("", -1, "t-0")
    before = len(context.records)

    assert errors(delete(context, "t-0", "t-0", "t-9", "nope-0")) == [0, 0, 0, 0]
    assert context.records[before:] == [OffsetRemoved(GROUP, "t", 0)]


def test_a_quota_counts_what_is_left() -> None:
    """A deleted offset makes room for another one."""
    context = Context()
    context.commit("", -1, "t-0")
    delete(context, "t-0")

    assert context.shard._core.groups[GROUP].offset_count == 0


def test_a_topic_in_use_is_refused_and_others_are_not() -> None:
    """The member would start from nothing."""
    context = Context()
    context.commit("", -1, "trains-0")
    (member,) = context.stable_group(1)
    context.commit(member, 1)

    assert errors(delete(context, "flights-0", "trains-0")) == [86, 0]
    assert (context.offset().offset, context.offset("trains-0").offset) == (7, -1)


@pytest.mark.parametrize("first", [True, False])
def test_a_rebalance_keeps_the_subscriptions_of_the_last_generation(first: bool) -> None:
    """And in a group's first one nobody subscribes yet (measured on Kafka 4.1)."""
    context = Context()
    context.commit("", -1)
    if first:
        context.join(context.new_id())
    else:
        (member,) = context.stable_group(1)
        context.new_id()
        context.join(member)
    assert context.state == "PreparingRebalance"

    assert errors(delete(context, "flights-0")) == [0 if first else 86]


def test_a_subscription_that_cannot_be_read_counts_as_all_topics() -> None:
    """It may name any."""
    context = Context()
    context.commit("", -1, "trains-0")
    context.stable_group(1, protocols={"x": b"\x00"})

    assert errors(delete(context, "trains-0")) == [86]


def test_a_living_group_of_another_type_is_refused_as_a_whole() -> None:
    """What its members use can't be read; when they are gone it may be done."""
    context = Context()
    context.commit("", -1, "trains-0")
    (member,) = context.stable_group(
        1, protocol_type="connect", protocols={"x": subscription("flights")}
    )

    assert delete(context, "trains-0") == OffsetDeleteResponse(68, ())

    context.leave(member)

    assert errors(delete(context, "trains-0")) == [0]


def test_who_has_left_subscribes_to_nothing() -> None:
    """An empty group, whatever its members had."""
    context = Context()
    (member,) = context.stable_group(1)
    context.commit(member, 1)
    context.leave(member)

    assert (context.state, errors(delete(context, "flights-0"))) == ("Empty", [0])


def last_of_each_key(records: list[Record]) -> list[Record]:
    """Return what compaction keeps: the last of each key, nothing older than a deletion."""
    kept: dict[tuple[object, ...], Record] = {}
    for record in singles(records):
        ((type_, _, scope, key, _),) = entries_of(record)
        if type(record) is GroupDeleted:
            kept = {k: r for k, r in kept.items() if k[0] != scope}
        kept.pop((scope, type_, key), None)
        kept[scope, type_, key] = record
    return list(kept.values())


STEP = st.tuples(
    st.sampled_from(["commit", "commit", "delete", "keep", "topic", "time", "group", "crash"]),
    st.sampled_from("ab"),
    st.sampled_from("tu"),
    st.integers(0, 2),
)


@given(st.lists(STEP, max_size=40))
def test_offsets_and_their_end_are_the_fold_of_the_log_compacted_or_not(
    steps: list[tuple[str, str, str, int]],
) -> None:
    """Commits, deletions, retentions, expiry and purges; the context compares the whole log."""
    config = GroupConfig(offsets_retention_ms=5_000, offsets_retention_check_interval_ms=1_000)
    context = TopicsContext(config)
    for what, group, topic, number in steps:
        if what == "commit":
            context.commit("", -1, f"{topic}-{number}", group=group)
        elif what == "delete":
            delete(context, f"{topic}-{number}", group=group)
        elif what == "keep":
            context.send(AlterGroupRetentionRequest(group, (None, -1, 2_000)[number]))
        elif what == "topic":
            context.register({topic: 3})
            context.delete_topics(topic)
        elif what == "time":
            context.advance(number * 1_500)
        elif what == "group":
            context.take(context.shard.delete_group(group, context.now)[0])
        else:
            context.crash()
        replayed = GroupShard(config=config, new_uuid=str)
        for record in last_of_each_key(context.records):
            replayed.replay(roundtrip(record))
        assert context.shard.hard_state() == replayed.hard_state()
