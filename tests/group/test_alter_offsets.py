"""AlterOffsets: an operator puts a group elsewhere, and whoever commits next begins there."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, strategies as st

from coordinator.group.core import GroupConfig
from protocol.messages import (
    AlteredOffset,
    AlteredTopic,
    AlterOffsetsRequest,
    AlterOffsetsResponse,
)
from tests.group.context import GROUP, Context, assignment

PARTITIONS = ("flights-0", "flights-1", "flights-2", "flights-3")


def alter(
    context: Context,
    *offsets: tuple[str, int] | tuple[str, int, int | None],
    remove_owners: bool = False,
    reason: str | None = None,
) -> AlterOffsetsResponse:
    """Alter (partition as ``topic-3``, offset, expected offset) each."""
    topics: dict[str, list[AlteredOffset]] = {}
    for name, offset, *expected in offsets:
        topic, partition = name.rsplit("-", 1)
        item = AlteredOffset(int(partition), offset, -1, None, expected[0] if expected else None)
        topics.setdefault(topic, []).append(item)
    named = tuple(AlteredTopic(topic, tuple(items)) for topic, items in topics.items())
    request = AlterOffsetsRequest(GROUP, named, remove_owners, reason)
    return context.answer(context.send(request), AlterOffsetsResponse)


def codes(response: AlterOffsetsResponse) -> list[int]:
    """Return the codes of all partitions, in the order asked."""
    assert response.error == 0
    return [one.error for topic in response.topics for one in topic.partitions]


def assign(context: Context, members: Sequence[str], owned: Mapping[str, Sequence[str]]) -> None:
    """Let all members join again, and give each what it is to own."""
    for member in members:
        context.join(member)
    given = {member: assignment(*names) for member, names in owned.items()}
    for member in (*members[1:], members[0]):
        context.sync(member, context.generation, given)
    assert context.state == "Stable"


def test_a_partition_that_nobody_owns_is_altered_beside_the_members() -> None:
    """The members needn't stop for what is none of theirs, and don't notice."""
    context = Context()
    members = context.stable_group(2)

    assert codes(alter(context, ("flights-7", 70), ("trains-0", 5))) == [0, 0]
    assert (context.offset("flights-7").offset, context.offset("trains-0").offset) == (70, 5)
    assert (context.state, context.generation) == ("Stable", 1)
    assert context.commit(members[0], 1) == 0


def test_a_partition_that_a_member_owns_is_left_alone() -> None:
    """It would commit over it at its next step, and nobody would notice."""
    context = Context()
    members = context.stable_group(2)
    context.commit(members[0], 1, offset=9)

    assert codes(alter(context, ("flights-0", 70), ("flights-5", 1))) == [1009, 0]
    assert context.offset().offset == 9


def test_owners_are_removed_in_the_same_step() -> None:
    """One batch of the log: there is no moment in which the old owner could commit once more."""
    context = Context()
    owner, other = context.stable_group(2)
    context.close_gate()
    batches = len(context.batch_ends)
    answer = alter(context, ("flights-0", 70), remove_owners=True, reason="wrong rows")

    assert (codes(answer), answer.removed_members) == ([0], (owner,))
    assert len(context.batch_ends) == batches + 1
    context.open_gate()
    assert context.commit(owner, 1) == 25
    why = "offsets altered on request: wrong rows"
    assert context.beaten(owner, 1).message == f"member {owner} is gone: {why}"
    assert context.commit(other, 1, "flights-1") == 0
    assert context.removals() == [(owner, "offsets altered")]
    context.join(other)
    context.sync(other, 2, {other: assignment("flights-0", "flights-1")})
    assert context.offset().offset == 70
    (newest, *_) = context.rebalances()
    assert newest.trigger == "offsets altered"
    assert newest.reason == "offsets altered on request: wrong rows (members removed: 1)"
    assert context.events_named("offsets.altered") == [
        {
            "group": GROUP,
            "count": 1,
            "topics": ["flights"],
            "detail": "offsets altered on request: wrong rows",
        }
    ]


def test_what_a_member_hands_over_is_its_own_until_somebody_has_it() -> None:
    """A cooperative member still commits what it is giving up."""
    context = Context()
    members = context.stable_group(2)
    assign(context, members, {members[1]: ["flights-1"]})

    assert codes(alter(context, ("flights-0", 70))) == [1009]
    assert context.commit(members[0], 2) == 0
    answer = alter(context, ("flights-0", 70), remove_owners=True)
    assert (codes(answer), answer.removed_members) == ([0], (members[0],))
    assert context.commit(members[0], 2) == 25


def test_nobody_is_removed_for_an_offset_that_is_not_stored() -> None:
    """It is not as expected, so nothing happens to it, and nothing to its owner."""
    context = Context()
    members = context.stable_group(2)
    context.commit(members[0], 1, offset=9)
    answer = alter(context, ("flights-0", 70, 8), ("flights-1", 5, -1), remove_owners=True)

    assert (codes(answer), answer.removed_members) == ([1003, 0], (members[1],))
    assert context.offset().offset == 9
    assert context.commit(members[0], 1) == 0


@pytest.mark.parametrize(
    ("protocol_type", "config"),
    [("connect", GroupConfig()), ("consumer", GroupConfig(ownership_check=False))],
)
def test_where_nobody_asks_who_owns_what_any_member_may_commit_anything(
    protocol_type: str, config: GroupConfig
) -> None:
    """Of another type than consumers, or where the check is turned off."""
    context = Context(config)
    members = context.stable_group(2, protocol_type=protocol_type)

    assert codes(alter(context, ("trains-0", 70))) == [1009]
    answer = alter(context, ("trains-0", 70), remove_owners=True)
    assert (codes(answer), set(answer.removed_members)) == ([0], set(members))


def test_the_last_owner_gone_leaves_an_empty_group_with_the_offset() -> None:
    """Also in the log: a crash brings back neither the member nor the old offset."""
    context = Context()
    members = context.stable_group(1)
    alter(context, ("flights-0", 70), remove_owners=True)

    assert context.state == "Empty"
    context.crash()
    assert context.offset().offset == 70
    assert context.commit(members[0], 1) == 25


def test_a_parked_member_that_is_removed_hears_of_it() -> None:
    """Its JoinGroup must not wait for a barrier that it is no longer part of."""
    context = Context()
    leader, follower = context.stable_group(2)
    parked = context.join(leader)
    assert context.is_parked(parked)
    answer = alter(context, ("flights-0", 70), remove_owners=True)

    assert answer.removed_members == (leader,)
    assert context.joined(parked).error == 25
    assert context.state == "PreparingRebalance"
    assert context.joined(context.join(follower)).generation_id == 2


def test_offsets_of_a_group_count_across_topics() -> None:
    """Its limit holds for an operator, too."""
    context = Context(GroupConfig(group_max_offsets=2))

    assert codes(alter(context, ("a-0", 1), ("b-0", 1), ("c-0", 1))) == [0, 0, 1005]


def test_a_full_disk_refuses_the_whole_request() -> None:
    """Nothing is removed for what can't be written."""
    context = Context()
    members = context.stable_group(1)
    context.shard.storage_full = True
    answer = alter(context, ("flights-0", 70), remove_owners=True)

    assert (answer.error, answer.topics, answer.removed_members) == (1004, (), ())
    assert answer.message
    assert context.beat(members[0], 1) == 0


@pytest.mark.parametrize("remove_owners", [False, True])
def test_a_request_that_names_nothing_changes_nothing(remove_owners: bool) -> None:
    """It makes no group either."""
    context = Context()

    assert codes(alter(context, remove_owners=remove_owners)) == []
    assert context.describe().error == 69


OWNERS = st.lists(st.sampled_from((None, 0, 1, 2)), min_size=4, max_size=4)


def owned_by(members: Sequence[str], owners: Sequence[int | None]) -> dict[str, list[str]]:
    """Return the partitions of each member."""
    owned: dict[str, list[str]] = {}
    for name, owner in zip(PARTITIONS, owners, strict=True):
        if owner is not None:
            owned.setdefault(members[owner], []).append(name)
    return owned


@given(
    first=OWNERS, second=OWNERS, asked=st.sets(st.sampled_from(PARTITIONS)), remove=st.booleans()
)
def test_what_was_altered_no_member_can_commit_before_it_is_assigned_again(
    first: list[int | None], second: list[int | None], asked: set[str], remove: bool
) -> None:
    """And what was refused, some member can: it is never refused without need."""
    context = Context()
    members = context.stable_group(3)
    assign(context, members, owned_by(members, first))
    assign(context, members, owned_by(members, second))
    names = sorted(asked)
    answer = alter(context, *((name, 70) for name in names), remove_owners=remove)

    for name, code in zip(names, codes(answer), strict=True):
        stored = [context.commit(member, 3, name) == 0 for member in members]
        assert any(stored) == (code == 1009)
        if code == 0:
            assert context.offset(name).offset == 70
    for member in members:
        assert (context.beat(member, 3) == 25) == (member in answer.removed_members)
    if remove:
        assert set(codes(answer)) <= {0}
