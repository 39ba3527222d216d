"""Committed offsets: what is stored, logged and fetched is what was committed."""

import itertools
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings, strategies as st

from coordinator.group import records
from coordinator.group.core import GroupConfig
from coordinator.group.records import (
    NO_EXPIRY,
    CommittedOffset,
    OffsetsCommitted,
    StoredOffsets,
    pack,
    read_item,
)
from protocol.codec import encode
from protocol.messages import (
    GroupFetch,
    GroupOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    PartitionCommit,
    PartitionOffset,
    TopicCommit,
    TopicOffsets,
    TopicPartitions,
)
from protocol.partition import INT32_MAX, INT64_MAX
from tests.group.context import GROUP, Context, returned
from tests.group.topics_context import TopicsContext
from tests.packed import ROOM, fetched, fetched_in_slices, offsets_of, unpacked

PARTITION = st.one_of(
    st.integers(0, 300), st.sampled_from([127, 128, 255, 256, 65_535, 65_536, INT32_MAX])
)
OFFSET = st.one_of(st.integers(0, 70_000), st.integers(0, INT64_MAX))
EPOCH = st.sampled_from([-1, -1, 0, 5, 128, INT32_MAX])
EVERYTHING = GroupFetch(GROUP, None)
NOTHING = GroupOffsets("", 0, ())
METADATA = st.one_of(st.just(""), st.text(max_size=8), st.text(min_size=30, max_size=40))
VALUE = st.tuples(OFFSET, EPOCH, METADATA)


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("put"),
                st.sets(st.integers(0, 4), min_size=1),
                st.integers(1, 3),
                st.sampled_from([NO_EXPIRY, NO_EXPIRY, 50, 60]),
            ),
            st.tuples(st.just("remove"), st.integers(0, 4), st.none(), st.none()),
        ),
        max_size=30,
    )
)
@example([("put", {0, 1}, 1, NO_EXPIRY), ("put", {1}, 2, NO_EXPIRY), ("put", {0, 1}, 3, NO_EXPIRY)])
@example([("put", {0}, 1, 50), ("put", {0}, 1, NO_EXPIRY), ("remove", 0, None, None)])
def test_times_are_those_of_the_last_commit_of_each_partition(steps: list[Any]) -> None:
    """Whether one time does for all of them or not."""
    stored = StoredOffsets()
    plain: dict[int, CommittedOffset] = {}
    for what, which, at_ms, expire_ms in steps:
        if what == "put":
            offsets = offsets_of(*[PartitionOffset(p, at_ms, -1, "m", 0) for p in which])
            assert stored.put(offsets, at_ms, expire_ms) == len(set(which) - set(plain))
            plain |= {p: CommittedOffset(at_ms, -1, "m", at_ms, expire_ms) for p in which}
        else:
            assert stored.remove(which) is (plain.pop(which, None) is not None)
        assert dict(stored.values()) == plain
        assert (len(stored), sorted(stored)) == (len(plain), sorted(plain))
        assert [stored.get(p) for p in range(5)] == [plain.get(p) for p in range(5)]
        assert [p in stored for p in range(5)] == [p in plain for p in range(5)]


def entry(record: records.Record) -> tuple[Any, ...]:
    """Return the entry of *record* as docs/log-format.md describes it."""
    if not isinstance(record, OffsetsCommitted):
        return RARE_ENTRIES[record]
    found = list(record.offsets.values())
    times = record.commit_timestamp_ms, record.expire_timestamp_ms
    if len(found) == 1:
        value = found[0].offset, found[0].leader_epoch, found[0].metadata
        return (1, 1, record.group_id, (record.topic, found[0].partition), (*value, *times))
    columns = (
        [one.offset for one in found],
        column([one.leader_epoch for one in found]),
        column([one.metadata for one in found]),
    )
    return (1, 1, record.group_id, (record.topic, list(record.offsets)), (*columns, *times))


def column(values: list[Any]) -> Any:
    """Return *values*, or the one value that is common to all."""
    return values[0] if len(set(values)) == 1 else values


def at_partition(partition: int, value: tuple[int, int, str]) -> PartitionOffset:
    """Return what OffsetFetch answers where *value* was committed."""
    offset, leader_epoch, metadata = value
    return PartitionOffset(partition, offset, leader_epoch, metadata, 0)


COMMITTED = st.builds(
    lambda group_id, topic, values, at_ms, expire_ms: OffsetsCommitted(
        group_id,
        topic,
        offsets_of(*itertools.starmap(at_partition, values.items())),
        at_ms,
        expire_ms,
    ),
    st.sampled_from(["g", "100%", "é" * 40]),
    st.sampled_from(["t", "u%b"]),
    st.dictionaries(PARTITION, VALUE, min_size=1, max_size=20),
    st.sampled_from([5, 1_700_000_000_000]),
    st.sampled_from([NO_EXPIRY, 1_700_000_000_001]),
)
SIMILAR = st.builds(
    lambda first, count, offset, epoch, metadata: OffsetsCommitted(
        "g",
        "t",
        offsets_of(
            *[PartitionOffset(first + n, offset + n, epoch, metadata, 0) for n in range(count)]
        ),
        1_700_000_000_000,
        NO_EXPIRY,
    ),
    st.sampled_from([0, 20, 100, 128, 156, 200, 256, 65_530, 65_536]),
    st.integers(1, 150),
    st.sampled_from([0, 120, 70_000, 2**32]),
    st.sampled_from([-1, 7]),
    st.sampled_from(["", "é", "some text"]),
)
RARE_ENTRIES: dict[records.Record, tuple[Any, ...]] = {
    records.OffsetRemoved("g", "t", 3): (1, 1, "g", ("t", 3), None),
    records.GroupGeneration("g", 1, 2): (1000, 0, "g", (), (1, 2)),
}
RARE = st.sampled_from(list(RARE_ENTRIES))


@settings(max_examples=300)
@given(st.lists(st.one_of(COMMITTED, SIMILAR, RARE), min_size=1, max_size=4))
def test_each_record_is_one_entry_that_takes_an_offset_for_each_partition(
    batch: list[records.Record],
) -> None:
    """Byte for byte what is documented: other releases read it, and so do tools."""
    expected: list[tuple[Any, ...]] = []
    count = 0
    for record in batch:
        expected.append((count, *entry(record)))
        count += len(record.offsets) if isinstance(record, OffsetsCommitted) else 1

    assert pack(batch) == (count, msgpack.packb(expected))


@settings(max_examples=200)
@given(st.lists(st.one_of(COMMITTED, SIMILAR, RARE), min_size=1, max_size=4))
def test_a_batch_is_read_as_the_records_that_were_written(batch: list[records.Record]) -> None:
    """Each entry is one record, whether its arrays are tuples or lists."""
    _, packed = pack(batch)
    items = msgpack.unpackb(packed, use_list=False)

    assert [*map(read_item, items)] == batch
    assert [read_item([*item]) for item in items] == batch


def test_what_older_releases_wrote_for_each_partition_is_read() -> None:
    """Version 0 has no wide entries, and they lie in logs for ever."""
    found = [PartitionOffset(p, 5 + p, 7, f"m{p}", 0) for p in (3, 1, 128)]
    for one in found:
        item = (0, 1, 0, "g", ("t", one.partition), (one.offset, 7, one.metadata, 8, -1))
        assert read_item(item) == OffsetsCommitted("g", "t", offsets_of(one), 8, -1)


def commits_of(context: Context, items: list[PartitionCommit]) -> OffsetCommitResponse:
    """Commit *items* of the topic t, without a generation."""
    request = OffsetCommitRequest(GROUP, -1, "", None, (TopicCommit("t", tuple(items)),))
    return context.answer(context.send(request), OffsetCommitResponse)


ITEM = st.builds(
    PartitionCommit,
    st.integers(0, 6),
    st.integers(0, 9),
    st.just(-1),
    st.sampled_from([None, "", "ok", "x" * 11, "é" * 5, "é" * 6]),
    st.sampled_from([None, None, None, -1, 3]),
)


@settings(max_examples=150)
@given(
    st.lists(st.lists(ITEM, min_size=1, max_size=6, unique_by=lambda i: i.partition), max_size=5),
    st.booleans(),
)
def test_many_partitions_are_judged_as_each_would_be_alone(
    steps: list[list[PartitionCommit]], is_registered: bool
) -> None:
    """By column or one after the other: the same errors, the same offsets."""
    config = GroupConfig(group_max_offsets=4, offset_metadata_max_bytes=10)
    together, alone = TopicsContext(config), TopicsContext(config)
    for context in (together, alone):
        if is_registered:
            context.register({"t": 5})
    for items in steps:
        (topic,) = commits_of(together, items).topics
        singles = [commits_of(alone, [item]).topics[0].partitions[0] for item in items]
        assert list(topic.partitions) == singles
        offsets = [context.shard.hard_state().get(GROUP) for context in (together, alone)]
        assert offsets[0] == offsets[1]


@pytest.mark.parametrize("count", [2, 100, 200])
def test_a_fetch_shows_what_there_is_and_what_is_not(count: int) -> None:
    """In the order asked; without names all there is."""
    context = Context()
    commits_of(context, [PartitionCommit(p, 10 * p, 4, f"m{p}", None) for p in range(0, count, 2)])
    asked = (
        TopicPartitions("t", tuple(range(count))),
        TopicPartitions("t", tuple(range(0, count, 2))),
        TopicPartitions("u", (7, 7)),
        TopicPartitions("v", ()),
    )

    def answered(topic: TopicPartitions) -> TopicOffsets:
        offsets = [
            PartitionOffset(p, 10 * p, 4, f"m{p}", 0)
            if topic.topic == "t" and p % 2 == 0
            else PartitionOffset(p, -1, -1, "", 0)
            for p in topic.partitions
        ]
        return TopicOffsets(topic.topic, tuple(offsets))

    expected = GroupOffsets(GROUP, 0, tuple(map(answered, asked)))
    everything = GroupOffsets(GROUP, 0, (answered(asked[1]),))

    assert fetched(context.shard, GroupFetch(GROUP, asked)) == expected
    assert fetched(context.shard, EVERYTHING) == everything


@pytest.mark.parametrize("is_named", [False, True])
def test_a_fetch_in_slices_shows_one_moment_however_long_it_takes(*, is_named: bool) -> None:
    """What is committed in between must not show in a part of it."""
    context = Context(config=GroupConfig())
    commits_of(context, [PartitionCommit(p, 1, -1, "", None) for p in range(5_000)])
    named = (TopicPartitions("t", tuple(range(5_000))),)
    fetch = GroupFetch(GROUP, named) if is_named else EVERYTHING
    steps = context.shard.fetch_in_slices(fetch, lambda _topic: True, ROOM)
    next(steps)
    commits_of(context, [PartitionCommit(p, 2, -1, "", None) for p in range(5_001)])
    found = unpacked(returned(steps) or NOTHING)

    assert [1] * 5_000 == [one.offset for one in found.topics[0].partitions]
    found = fetched(context.shard, fetch)
    assert {2} == {one.offset for one in found.topics[0].partitions}
    assert fetched_in_slices(context.shard, fetch, 20_000) is None


CHANGE = st.tuples(
    st.sampled_from(["commit", "commit", "delete", "delete the group"]),
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
    st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
)


def change(context: Context, offset: int, what: str, topics: list[str], numbers: list[int]) -> None:
    """Commit *offset* for some partitions of some topics, or delete what there is of them."""
    if what == "commit":
        commits = tuple(PartitionCommit(p, offset, -1, "", None) for p in numbers)
        named = tuple(TopicCommit(topic, commits) for topic in topics)
        context.send(OffsetCommitRequest(GROUP, -1, "", None, named))
    elif what == "delete":
        deleted = tuple(TopicPartitions(topic, tuple(numbers)) for topic in topics)
        context.send(OffsetDeleteRequest(GROUP, deleted))
    else:
        context.take(context.shard.delete_group(GROUP, context.now)[0])


class Look:
    """A fetch of everything that is under way."""

    def __init__(self, context: Context) -> None:
        self.expected = fetched(context.shard, EVERYTHING)
        self.found: GroupOffsets | None = None
        self._steps = context.shard.fetch_in_slices(EVERYTHING, lambda _topic: True, ROOM)
        self.go_on(1)

    def go_on(self, steps: int) -> None:
        """Take so many steps, if there are as many."""
        try:
            for _ in range(steps):
                next(self._steps)
        except StopIteration as end:
            self.found = self.found or unpacked(end.value)


@given(st.lists(st.tuples(CHANGE, st.integers(0, 2)), max_size=20))
def test_a_commit_over_several_topics_is_never_seen_by_half(
    changes: list[tuple[Any, int]],
) -> None:
    """Nor a topic that came later, nor the lack of one that went; and many may look at once."""
    context = Context(config=GroupConfig())
    looks: list[Look] = []
    for offset, (changed, steps) in enumerate(changes):
        change(context, offset, *changed)
        for look in looks:
            look.go_on(steps)
        looks.append(Look(context))
    for look in looks:
        look.go_on(100)

    assert [look.expected for look in looks] == [look.found for look in looks]


def test_nothing_is_kept_for_who_looks_no_more() -> None:
    """A client that leaves in the middle would make every commit pay for it."""
    context = Context(config=GroupConfig())
    commits_of(context, [PartitionCommit(0, 1, -1, "", None)])
    steps = context.shard.fetch_in_slices(EVERYTHING, lambda _topic: True, ROOM)
    next(steps)
    group = context.shard.groups[GROUP]
    assert len(group.pictures) == 1
    del steps

    assert not group.pictures


def test_a_fetch_of_everything_copies_nothing_at_once() -> None:
    """To copy the offsets of 100,000 topics took 49 ms, in which nobody else was heard."""
    context = Context(config=GroupConfig())
    topics = [f"t{n}" for n in range(5_000)]
    commits = (PartitionCommit(0, 1, -1, "", None),)
    named = tuple(TopicCommit(topic, commits) for topic in topics)
    context.send(OffsetCommitRequest(GROUP, -1, "", None, named))
    steps = context.shard.fetch_in_slices(EVERYTHING, lambda _topic: True, ROOM)
    tracemalloc.start()
    try:
        next(steps)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 50 * len(topics)
    assert sorted(topics) == [one.topic for one in unpacked(returned(steps) or NOTHING).topics]


def test_a_fetch_that_is_too_large_is_not_made() -> None:
    """A small request can ask for one long text ten thousand times."""
    context = Context()
    commits_of(context, [PartitionCommit(0, 5, -1, "x" * 4_000, None)])
    fetch = GroupFetch(GROUP, (TopicPartitions("t", (0,) * 10_000),))

    assert context.shard.fetch_offsets(fetch, None, 10_000 * 4_000) is None


@pytest.mark.parametrize("partitions", [(0,), (0, 1, 1_000), (1_000,) * 50])
@pytest.mark.parametrize("metadata", ["", "x" * 40, "é" * 40])
def test_a_fetch_that_just_fits_is_made(partitions: tuple[int, ...], metadata: str) -> None:
    """What is refused here would not have fitted into the response: never the other way round."""
    context = Context()
    commits_of(context, [PartitionCommit(p, p, -1, metadata, None) for p in {*partitions}])
    fetch = GroupFetch(GROUP, (TopicPartitions("t", partitions),))
    found = context.shard.fetch_offsets(fetch, None, ROOM)
    assert found is not None

    assert context.shard.fetch_offsets(fetch, None, len(encode(found))) == found


def errors_of(context: Context, partitions: range, member_id: str = "") -> list[int]:
    """Commit *partitions* of the topic flights; return the error of each."""
    names = [(f"flights-{p}", 5, None, None) for p in partitions]
    response = context.commit_raw(member_id, 1 if member_id else -1, names)
    assert response.error == 0
    return [result.error for result in response.topics[0].partitions]


def test_one_of_many_partitions_may_be_another_members() -> None:
    """All of them are compared at once with what the member owns."""
    context = Context()
    first, _ = context.stable_group(2)

    assert errors_of(context, range(3), first) == [0, 1002, 1002]
    assert context.offset("flights-1").offset == -1


def test_some_of_many_partitions_may_be_unknown_or_too_many() -> None:
    """Partitions from 3 on are not registered, or find no room."""
    context = TopicsContext()
    context.register({"flights": 3})

    assert errors_of(context, range(5)) == [0, 0, 0, 3, 3]

    context = TopicsContext(GroupConfig(group_max_offsets=3))

    assert errors_of(context, range(5)) == [0, 0, 0, 1005, 1005]
    assert errors_of(context, range(4)) == [0, 0, 0, 1005]
