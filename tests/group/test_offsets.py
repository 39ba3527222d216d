"""OffsetCommit and OffsetFetch: what is stored, what is refused, what is shown."""

import tracemalloc

import pytest
from hypothesis import given, strategies as st

from coordinator.group.core import GroupConfig
from coordinator.group.records import OffsetsCommitted
from protocol.messages import (
    GroupFetch,
    GroupOffsets,
    PartitionOffset,
    PartitionResult,
    TopicPartitions,
    TopicResult,
)
from tests.group.context import GROUP, Context, assignment, subscription
from tests.packed import fetched, offsets_of


def test_a_commit_is_a_record_and_is_shown() -> None:
    """The record is what survives."""
    context = Context()
    (member,) = context.stable_group(1)

    assert context.commit(member, 1, "flights-0", 42, metadata="gc1:50:0") == 0
    assert (
        OffsetsCommitted(
            GROUP,
            "flights",
            offsets_of(PartitionOffset(0, 42, -1, "gc1:50:0", 0)),
            context.wall_ms,
            -1,
        )
        == context.records[-1]
    )
    assert PartitionOffset(0, 42, -1, "gc1:50:0", 0) == context.offset("flights-0")


def test_no_offset_is_never_zero() -> None:
    """A reader that takes it for a position would start again from the beginning."""
    context = Context()

    assert PartitionOffset(0, -1, -1, "", 0) == context.offset("flights-0")

    context.commit("", -1, "flights-0", 0)

    assert PartitionOffset(0, 0, -1, "", 0) == context.offset("flights-0")
    assert PartitionOffset(1, -1, -1, "", 0) == context.offset("flights-1")


def test_no_metadata_is_stored_as_empty_text() -> None:
    """As in Kafka."""
    context = Context()
    context.commit("", -1, metadata=None)

    assert context.offset().metadata == ""


def test_a_lower_offset_is_legal() -> None:
    """A reset is a commit like any other."""
    context = Context()
    context.commit("", -1, offset=9)

    assert context.commit("", -1, offset=3) == 0
    assert context.offset().offset == 3


def test_a_commit_without_a_generation_makes_a_simple_group() -> None:
    """Monitoring listeners commit without being members."""
    context = Context()

    assert context.commit("", -1) == 0
    assert (
        context.state,
        context.describe().protocol_type,
        context.generation,
    ) == ("Empty", "", 0)


def test_a_refused_commit_makes_no_group() -> None:
    """Nothing was applied, so nothing is there."""
    context = Context()

    assert context.commit("", -1, metadata="x" * 4097) == 12
    assert context.describe().error == 69


@pytest.mark.parametrize(
    ("metadata", "error"),
    [("x" * 4096, 0), ("x" * 4097, 12), ("é" * 2048, 0), ("é" * 2049, 12), ("😀" * 1025, 12)],
)
def test_metadata_is_limited_in_bytes(metadata: str, error: int) -> None:
    """Characters would allow four times the memory."""
    assert error == Context().commit("", -1, metadata=metadata)


def test_partitions_succeed_and_fail_for_themselves() -> None:
    """One bad partition does not lose the others."""
    context = Context()
    leader, _ = context.stable_group(2)
    context.commit(leader, 1, "flights-0", 5)
    offsets = [
        ("flights-0", 6, 5, None),
        ("flights-1", 6, None, None),
        ("trains-0", 6, None, None),
    ]
    response = context.commit_raw(leader, 1, offsets)

    assert response.error == 0
    assert response.topics[0] == TopicResult(
        "flights", (PartitionResult(0, 0), PartitionResult(1, 1002))
    )
    assert (PartitionResult(0, 1002),) == response.topics[1].partitions
    assert (context.offset("flights-0").offset, context.offset("flights-1").offset) == (6, -1)


@pytest.mark.parametrize(
    ("stored", "expected", "error"),
    [
        (None, None, 0),
        (None, -1, 0),
        (None, 0, 1003),
        (5, None, 0),
        (5, 5, 0),
        (5, 4, 1003),
        (5, -1, 1003),
        (0, -1, 1003),
        (0, 0, 0),
    ],
)
def test_an_expected_offset_must_be_the_stored_one(
    stored: int | None, expected: int | None, error: int
) -> None:
    """Compare and set: the only way to know that nobody else came in between."""
    context = Context()
    if stored is not None:
        context.commit("", -1, offset=stored)

    assert error == context.commit("", -1, offset=9, expected=expected)
    assert (9 if not error else -1 if stored is None else stored) == context.offset().offset


@given(
    partitions=st.dictionaries(
        st.integers(0, 2_000),
        st.tuples(
            st.none() | st.integers(0, 2**63 - 2),
            st.sampled_from(["anything", "nothing", "what is stored", "another offset"]),
        ),
        min_size=2,
    )
)
def test_expectations_of_a_large_commit_are_judged_one_by_one(
    partitions: dict[int, tuple[int | None, str]],
) -> None:
    """They are compared all at once, which must not be seen in any of the answers."""
    context = Context()
    commit: list[tuple[str, int, int | None, str | None]] = []
    errors = []
    for partition, (stored, wanted) in partitions.items():
        name = f"t-{partition}"
        if stored is not None:
            context.commit("", -1, name, stored, metadata="gc1:5:0")
        there = -1 if stored is None else stored
        expected = {"anything": None, "nothing": -1, "what is stored": there}.get(wanted, there + 1)
        commit.append((name, 7, expected, None))
        errors.append(PartitionResult(partition, 0 if expected in {None, there} else 1003))

    (answer,) = context.commit_raw("", -1, commit).topics

    assert answer.partitions == tuple(errors)
    for (name, offset, _, _), result in zip(commit, errors, strict=True):
        before = partitions[result.partition][0]
        kept = -1 if before is None else before
        assert context.offset(name).offset == (kept if result.error else offset)


def test_expectations_of_long_offsets_take_no_room() -> None:
    """A request of 100 KB may name ten thousand offsets of 4 KB each."""
    context = Context()
    names = [f"t-{partition}" for partition in range(1_000)]
    context.commit_raw("", -1, [(name, 1, None, "m" * 4_000) for name in names])
    request = [(name, 2, 1, None) for name in names]
    tracemalloc.start()

    (answer,) = context.commit_raw("", -1, request).topics

    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {result.error for result in answer.partitions} == {0}
    assert peak < 3_000_000


def test_ownership_is_that_of_this_generation() -> None:
    """What a member had before counts for nothing."""
    context = Context()
    first, second = context.stable_group(2)
    context.join(second, protocols={"range": subscription("trains")})
    context.join(first)
    context.sync(first, 2, {second: assignment("flights-0"), first: assignment("flights-1")})

    assert (context.commit(first, 2), context.commit(first, 2, "flights-1")) == (1002, 0)


def test_ownership_lasts_until_the_join_completes() -> None:
    """A member commits what it has before it joins again."""
    context = Context()
    first, second = context.stable_group(2)
    context.join(second, protocols={"range": subscription("trains")})

    assert (context.commit(first, 1), context.commit(first, 1, "flights-1")) == (0, 1002)

    context.join(first)

    assert context.commit(first, 1) == 22


def test_ownership_checks_can_be_turned_off() -> None:
    """For clients that commit on behalf of others."""
    context = Context(GroupConfig(ownership_check=False))
    first, _ = context.stable_group(2)

    assert context.commit(first, 1, "flights-1") == 0


def hand_over(context: Context) -> tuple[str, str, str]:
    """Let the owner of flights-0 keep nothing, and nobody else get it yet."""
    members = context.stable_group(3)
    first, second, third = members
    context.join(second, protocols={"range": subscription("trains")})
    context.join(first)
    context.join(third)
    given = {first: assignment(), second: assignment("flights-1", "flights-2")}
    context.sync(first, 2, given)
    return first, second, third


def test_a_member_may_commit_what_it_hands_over_and_nobody_has_yet() -> None:
    """A cooperative member learns in the new generation what it must give up."""
    context = Context()
    first, second, third = hand_over(context)

    assert context.commit(first, 2, "flights-0") == 0
    assert context.commit(third, 2, "flights-2") == 1002  # The second has it now.
    assert context.commit(second, 2, "flights-0") == 1002


def test_handing_over_ends_with_the_next_generation_and_with_a_crash() -> None:
    """Then it has an owner, or nobody can say who had it."""
    context = Context()
    first, *others = hand_over(context)
    context.crash()

    assert context.commit(first, 2, "flights-0") == 1002

    context = Context()
    first, *others = hand_over(context)
    for member in (first, *others):
        context.join(member, protocols={"range": subscription("ships")})
    context.sync(first, 3, {others[0]: assignment("flights-0")})

    assert context.commit(first, 3, "flights-0") == 1002
    assert context.commit(others[0], 3, "flights-0") == 0


def test_a_refusal_is_said_in_words() -> None:
    """With what was measured, and both parties."""
    context = Context()
    first, second = context.static_group(2)
    context.join(instance_id="i1", client_id="again", host="10.0.0.9")
    one = [("flights-0", 1, None, None)]

    def words(member_id: str, generation: int, instance_id: str | None = None) -> tuple[int, str]:
        response = context.commit_raw(member_id, generation, one, instance_id=instance_id)
        assert response.topics == ()
        return response.error, response.message or ""

    assert words(first, 9) == (22, "generation 9 has not begun, the group is at 1")
    assert words(first, 0) == (22, "generation 0 is over, the group is at 1")
    assert words("x", 1) == (25, "the group knows no member 'x'")
    assert words(first, 1, "i7") == (25, "no member holds the instance id 'i7'")

    error, text = words(second, 1, "i1")

    assert (error, text[:31]) == (82, "instance id 'i1' is held by mem")
    assert text.endswith("(client again) from host 10.0.0.9")

    error, text = words(second, 1)

    assert (error, "replaced by" in text) == (25, True)

    context.shard.storage_full = True

    assert words(first, 1) == (1004, "the disk is full or too slow, new offsets are refused")
    refused = context.commit_raw("m", 3, one, "nope")
    assert (refused.error, refused.message) == (69, "there is no such group")


def test_a_static_member_commits_with_its_instance_or_without() -> None:
    """Its member id alone names it (measured on Kafka 4.1)."""
    context = Context()
    first, _ = context.static_group(2)

    assert context.commit(first, 1, instance_id="i0") == 0
    assert context.commit(first, 1) == 0
    assert context.commit(first, 1, instance_id="i1") == 82
    assert context.commit(first, 0, instance_id="i1") == 82


def test_a_fenced_member_is_told_so_also_while_the_disk_is_full() -> None:
    """It waits for room without an end, and would never hear that its partitions are gone."""
    context = Context()
    (member,) = context.stable_group(1)
    context.shard.storage_full = True

    assert context.commit(member, 1) == 1004
    assert context.commit(member, 0) == 22
    context.leave(member)
    assert context.commit(member, 1) == 25


def test_a_commit_that_is_accepted_has_no_words() -> None:
    """They cost time on the hottest path."""
    context = Context()
    (member,) = context.stable_group(1)

    assert context.commit_raw(member, 1, [("flights-0", 1, None, None)]).message is None


def test_a_generation_that_was_never_assigned_commits_nothing() -> None:
    """Also not after the next rebalance has begun: nobody owned anything in it."""
    context = Context()
    first, second = context.completing_group(2)
    context.leave(second)

    assert context.state == "PreparingRebalance"
    assert context.commit(first, 1) == 27

    response = context.commit_raw(first, 1, [("flights-0", 1, None, None)])

    assert (response.message or "").startswith("rebalancing for 0.0 s: ")


def test_a_group_holds_only_so_many_offsets() -> None:
    """Each costs memory for as long as the group lives."""
    context = Context(GroupConfig(group_max_offsets=2))

    assert [context.commit("", -1, name) for name in ("t-0", "t-1", "t-2", "t-1")] == [
        0,
        0,
        1005,
        0,
    ]
    assert context.commit("", -1, "u-0") == 1005
    response = context.commit_raw("", -1, [("u-0", 1, None, None)])
    assert response.message == "the group has 2 offsets already, group.max.offsets is 2"


def test_a_full_disk_refuses_commits_and_answers_fetches() -> None:
    """Definite: nothing of it was applied."""
    context = Context()
    (member,) = context.stable_group(1)
    context.commit(member, 1, offset=5)
    context.shard.storage_full = True

    assert (context.commit(member, 1, offset=6), context.commit(member, 0)) == (1004, 22)
    assert context.offset().offset == 5

    context.shard.storage_full = False

    assert context.commit(member, 1, offset=6) == 0


def test_all_offsets_of_a_group_are_listed_in_order() -> None:
    """The same before and after a restart."""
    context = Context()
    for name in ("b-1", "a-10", "a-9", "b-0"):
        context.commit("", -1, name)
    topics = fetched(context.shard, GroupFetch(GROUP, None)).topics

    assert [(topic.topic, [p.partition for p in topic.partitions]) for topic in topics] == [
        ("a", [9, 10]),
        ("b", [0, 1]),
    ]


def test_an_unknown_group_has_no_offsets() -> None:
    """No error: nothing was ever committed there."""
    context = Context()
    named = GroupFetch("nope", (TopicPartitions("t", (0, 1)),))

    assert fetched(context.shard, GroupFetch("nope", None)) == GroupOffsets("nope", 0, ())
    assert [p.offset for p in fetched(context.shard, named).topics[0].partitions] == [-1, -1]
