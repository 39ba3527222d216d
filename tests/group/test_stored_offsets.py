"""Committed offsets as packed rows: what is stored, logged and fetched is what was committed."""

from typing import Any

import msgpack
import msgspec
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
    pack_row,
    read_items,
    unpack_row,
    value_start,
)
from protocol.messages import (
    GroupFetch,
    GroupOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommit,
    PartitionOffset,
    TopicCommit,
    TopicOffsets,
    TopicPartitions,
)
from protocol.partition import INT32_MAX, INT64_MAX
from tests.group.context import GROUP, Context
from tests.group.topics_context import TopicsContext
from tests.packed import ROOM

PARTITION = st.one_of(
    st.integers(0, 300), st.sampled_from([127, 128, 255, 256, 65_535, 65_536, INT32_MAX])
)
OFFSET = st.one_of(st.integers(0, 70_000), st.integers(0, INT64_MAX))
EPOCH = st.sampled_from([-1, -1, 0, 5, 128, INT32_MAX])
METADATA = st.one_of(st.just(""), st.text(max_size=8), st.text(min_size=30, max_size=40))
VALUE = st.tuples(OFFSET, EPOCH, METADATA)


@given(PARTITION, VALUE)
def test_a_row_says_what_was_committed(partition: int, value: tuple[int, int, str]) -> None:
    """And where its value begins, the log relies on it."""
    row = pack_row(partition, *value)

    assert unpack_row(row) == value
    assert msgpack.unpackb(b"\x93" + row[value_start(partition) : -1]) == list(value)


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
            rows = {p: pack_row(p, at_ms, -1, "m") for p in which}
            assert stored.put(rows, at_ms, expire_ms) == len(set(which) - set(plain))
            plain |= {p: CommittedOffset(at_ms, -1, "m", at_ms, expire_ms) for p in which}
        else:
            assert stored.remove(which) is (plain.pop(which, None) is not None)
        assert dict(stored.values()) == plain
        assert (len(stored), sorted(stored)) == (len(plain), sorted(plain))
        assert [stored.get(p) for p in range(5)] == [plain.get(p) for p in range(5)]
        assert [p in stored for p in range(5)] == [p in plain for p in range(5)]


def entries(record: records.Record, delta: int) -> list[tuple[Any, ...]]:
    """Return the entries of *record* as tuples of values, each packed with one call."""
    if not isinstance(record, OffsetsCommitted):
        return [(delta, *RARE_ENTRIES[record])]
    group_id, topic, rows, *times = record
    return [
        (delta + n, 1, 0, group_id, (topic, partition), (*unpack_row(row), *times))
        for n, (partition, row) in enumerate(rows.items())
    ]


COMMITTED = st.builds(
    lambda group_id, topic, values, at_ms, expire_ms: OffsetsCommitted(
        group_id, topic, {p: pack_row(p, *value) for p, value in values.items()}, at_ms, expire_ms
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
        {first + n: pack_row(first + n, offset + n, epoch, metadata) for n in range(count)},
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
def test_packed_records_are_the_bytes_that_one_call_of_the_packer_gives(
    batch: list[records.Record],
) -> None:
    """However they were put together: older releases read them, and so do tools."""
    expected: list[tuple[Any, ...]] = []
    for record in batch:
        expected += entries(record, len(expected))

    assert pack(batch) == (len(expected), msgpack.packb(expected))


@settings(max_examples=200)
@given(st.lists(st.one_of(COMMITTED, SIMILAR, RARE), min_size=1, max_size=4))
def test_a_batch_is_read_as_the_records_that_were_written(batch: list[records.Record]) -> None:
    """Runs of one commit come back as one record, which only the next commit ends."""
    _, packed = pack(batch)
    items = msgpack.unpackb(packed, use_list=False)
    read = list(read_items(items))
    merged: list[records.Record] = []
    for record in batch:
        last = merged[-1] if merged else None
        if (
            isinstance(record, OffsetsCommitted)
            and isinstance(last, OffsetsCommitted)
            and record._replace(rows={}) == last._replace(rows={})
        ):
            merged[-1] = last._replace(rows={**last.rows, **record.rows})
        else:
            merged.append(record)

    assert read == merged
    assert list(read_items([list(item) for item in items])) == merged


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
def test_a_fetch_is_packed_as_its_answer_would_be(count: int) -> None:
    """Byte for byte, whatever there is and isn't."""
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

    expected = msgspec.msgpack.encode(GroupOffsets(GROUP, 0, tuple(map(answered, asked))))
    everything = msgspec.msgpack.encode(GroupOffsets(GROUP, 0, (answered(asked[1]),)))

    assert context.shard.fetch_offsets(GroupFetch(GROUP, asked), ROOM) == expected
    assert context.shard.fetch_offsets(GroupFetch(GROUP, None), ROOM) == everything


def test_a_fetch_that_is_too_large_is_not_made() -> None:
    """To the byte: a small request can ask for one large row ten thousand times."""
    context = Context()
    commits_of(context, [PartitionCommit(0, 5, -1, "x" * 4_000, None)])
    fetch = GroupFetch(GROUP, (TopicPartitions("t", (0,) * 10_000),))
    packed = context.shard.fetch_offsets(fetch, 10_000 * 4_100)
    assert packed is not None

    assert context.shard.fetch_offsets(fetch, len(packed)) == packed
    assert context.shard.fetch_offsets(fetch, len(packed) - 1) is None


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


def test_rows_as_long_as_each_other_may_differ_inside() -> None:
    """A partition of one byte more, and an offset of one less."""
    rows = {p: pack_row(p, 200 if p < 128 else 100, -1, "") for p in range(120, 136)}
    assert len(set(map(len, rows.values()))) == 1
    record = OffsetsCommitted("g", "t", rows, 5, NO_EXPIRY)

    assert pack([record]) == (16, msgpack.packb(entries(record, 0)))
