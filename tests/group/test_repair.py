"""What is written behind a loss: nobody is told again what was told before."""

from typing import Any

from hypothesis import given
from hypothesis.strategies import integers

from coordinator.group.node_records import pack as pack_topics, read_item as read_topic_item
from coordinator.group.records import (
    GroupDeleted,
    GroupGeneration,
    GroupMetadata,
    Record,
    pack,
    read_item,
)
from coordinator.group.registry import RegistryChanged, TopicRegistered
from coordinator.group.repair import CHANGE_BYTES_MIN, ENTRIES_PER_BATCH, FenceBuilder
from coordinator.log.compaction import checked_items
from coordinator.log.format import HEADER_BYTES, NODE_PARTITION
from protocol.partition import INT32_MAX

NOW_MS = 1_700_000_000_000


def entries(*records: Record) -> list[Any]:
    """Return records as they lie in the log."""
    return [item[1:] for item in checked_items(pack(records)[1])[0]]


def stable(group_id: str, generation: int, topics_version: int = 0) -> GroupMetadata:
    """Return an assigned generation."""
    return GroupMetadata(group_id, "consumer", generation, None, None, 0, (), topics_version)


def fences_of(builder: FenceBuilder, lost_bytes: int) -> dict[int, list[Any]]:
    """Return the records of the fences, by partition."""
    found: dict[int, list[Any]] = {}
    for partition, batch in builder.fences(lost_bytes, NOW_MS):
        items: list[Any] = [(0, *entry) for entry in batch]
        read: Any = read_topic_item if partition == NODE_PARTITION else read_item
        found.setdefault(partition, []).extend(map(read, items))
    return found


def test_each_group_gets_a_generation_above_all_that_can_have_been_told() -> None:
    """Each generation takes some bytes, so the loss bounds how many there can have been."""
    builder = FenceBuilder(NODE_PARTITION)
    builder.add(3, entries(stable("a", 5), GroupGeneration("a", 6, 0), stable("b", 0)))
    builder.add(4, entries(GroupGeneration("c", 9, 0)))
    found = fences_of(builder, 10 * CHANGE_BYTES_MIN)

    assert found[3] == [GroupGeneration("a", 17, NOW_MS), GroupGeneration("b", 11, NOW_MS)]
    assert found[4] == [GroupGeneration("c", 20, NOW_MS)]


def test_a_generation_and_a_registry_change_take_as_many_bytes_as_that() -> None:
    """The bound is only one if nothing is smaller: a batch of its own, with the shortest names."""
    _, packed = pack([GroupGeneration("g", 1, 0)])
    assert HEADER_BYTES + len(packed) >= CHANGE_BYTES_MIN
    _, packed = pack_topics([RegistryChanged(1, 0)])
    assert HEADER_BYTES + len(packed) >= CHANGE_BYTES_MIN


def test_a_group_that_was_deleted_is_not_brought_back() -> None:
    """Unless it came again."""
    builder = FenceBuilder(NODE_PARTITION)
    builder.add(0, entries(stable("a", 5), GroupDeleted("a"), stable("b", 3), GroupDeleted("b")))
    builder.add(0, entries(stable("b", 1)))

    assert fences_of(builder, 1)[0] == [GroupGeneration("b", 2, NOW_MS)]
    assert list(builder.groups()) == [(0, "b")]


def test_the_registry_goes_on_beyond_every_version_that_a_group_knows() -> None:
    """A change under a version that a group has seen already would never reach it."""
    builder = FenceBuilder(NODE_PARTITION)
    builder.add(NODE_PARTITION, [(1012, 0, "", (), (4, 2))])
    builder.add(
        NODE_PARTITION, [(1010, 0, "t", (), tuple(TopicRegistered("t", 3, (), False, 6)[1:]))]
    )
    builder.add(0, entries(stable("a", 1, topics_version=8)))

    assert fences_of(builder, 1)[NODE_PARTITION] == [RegistryChanged(9, 9)]


def test_the_last_generation_is_not_passed() -> None:
    """It is an i32 on the wire."""
    builder = FenceBuilder(NODE_PARTITION)
    builder.add(0, entries(GroupGeneration("a", INT32_MAX - 1, 0)))

    assert fences_of(builder, 10_000)[0] == [GroupGeneration("a", INT32_MAX, NOW_MS)]


def test_what_cannot_be_understood_says_nothing() -> None:
    """A repair must not fail for what is in an entry."""
    builder = FenceBuilder(NODE_PARTITION)
    builder.add(0, [(1000, 0, "a", (), ("x", 0)), (7777, 0, "b", (), None), (2, 0, "c", (), 5)])
    builder.add(NODE_PARTITION, [(1012, 0, "", (), ()), (1010, 0, "t", (), "topic")])

    assert [r.generation for r in fences_of(builder, 1)[0]] == [1, 1, 1]


def test_many_groups_are_fenced_in_batches() -> None:
    """A batch has an upper bound."""
    builder = FenceBuilder(NODE_PARTITION)
    builder.add(0, entries(*(GroupGeneration(f"g{n}", 1, 0) for n in range(2_500))))
    sizes = [len(batch) for partition, batch in builder.fences(1, NOW_MS) if partition == 0]

    assert sizes == [ENTRIES_PER_BATCH, ENTRIES_PER_BATCH, 500]


@given(last=integers(0, 30), lost=integers(0, 30))
def test_whatever_is_lost_no_generation_is_told_twice(last: int, lost: int) -> None:
    """The log had generations 1, 2, …, each in a batch; those after *last* are gone."""
    told = [GroupGeneration("g", number, 0) for number in range(1, last + lost + 1)]
    lost_bytes = sum(HEADER_BYTES + len(pack([record])[1]) for record in told[last:])
    builder = FenceBuilder(NODE_PARTITION)
    builder.add(0, entries(stable("g", 0), *told[:last]))
    (fence,) = fences_of(builder, lost_bytes)[0]

    assert fence.generation > last + lost
