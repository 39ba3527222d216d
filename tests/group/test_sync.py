"""SyncGroup: the second barrier, and what a leader may not say."""

import pytest
from msgspec import structs

from coordinator.group.records import GroupRebalanced
from tests.group.context import REBALANCE_MS, Context, assignment, subscription


def test_everybody_gets_what_the_leader_gave() -> None:
    """Those who asked before the leader, and those who ask after it."""
    context = Context()
    members = context.completing_group(3)
    early = context.sync(members[1], 1)

    assert context.is_parked(early)

    given = {m: assignment(f"flights-{n}") for n, m in enumerate(members)}
    leader = context.sync(members[0], 1, given)
    late = context.sync(members[2], 1)

    assert list(given.values()) == [context.synced(t).assignment for t in (leader, early, late)]
    assert structs.astuple(context.synced(late))[1:3] == ("consumer", "range")
    assert context.state == "Stable"


def test_a_member_that_the_leader_leaves_out_gets_empty_bytes() -> None:
    """It owns nothing."""
    context = Context()
    members = context.completing_group(2)
    follower = context.sync(members[1], 1)
    context.sync(members[0], 1, {members[0]: assignment("flights-0")})

    assert (context.synced(follower).error, context.synced(follower).assignment) == (0, b"")
    assert context.commit(members[1], 1, "flights-0") == 1002


def test_what_a_follower_sends_is_ignored() -> None:
    """Only the leader assigns."""
    context = Context()
    members = context.completing_group(2)
    follower = context.sync(members[1], 1, {members[1]: assignment("flights-9"), "nobody": b""})

    assert context.is_parked(follower)

    context.sync(members[0], 1, {})

    assert context.synced(follower).assignment == b""


def test_a_second_sync_of_the_leader_changes_nothing() -> None:
    """The assignment of a generation is written once."""
    context = Context()
    members = context.stable_group(2)
    before = list(context.records)
    again = context.sync(members[0], 1, {members[0]: assignment("flights-0", "flights-1")})

    assert assignment("flights-0") == context.synced(again).assignment
    assert before == context.records


BAD = {
    "unknown member": lambda a, b: {a: assignment("t-0"), "nobody": assignment("t-1")},
    "one partition for two": lambda a, b: {a: assignment("t-0"), b: assignment("t-1", "t-0")},
    "one partition twice for one": lambda a, b: {a: assignment("t-0", "t-0")},
}


@pytest.mark.parametrize("case", BAD)
def test_a_leader_that_assigns_nonsense_is_removed_and_nothing_is_stored(case: str) -> None:
    """One owner for a partition is a promise that does not depend on the leader."""
    context = Context()
    leader, follower = context.completing_group(2)
    parked = context.sync(follower, 1)
    before = list(context.records)
    token = context.sync(leader, 1, BAD[case](leader, follower))

    assert (context.synced(token).error, context.synced(parked).error) == (42, 27)
    assert [GroupRebalanced] == [type(record) for record in context.records[len(before) :]]
    assert [(leader, "bad assignment")] == context.removals()
    assert context.state == "PreparingRebalance"

    rejoined = context.joined(context.join(follower))

    assert (2, follower) == (rejoined.generation_id, rejoined.leader)


def test_bytes_that_cannot_be_read_are_opaque() -> None:
    """Somebody else's assignor may have its own format."""
    context = Context()
    members = context.completing_group(2)
    tokens = [context.sync(members[1], 1)]
    tokens.append(context.sync(members[0], 1, dict.fromkeys(members, b"\xff\xff?")))

    assert [context.synced(token).error for token in tokens] == [0, 0]
    assert context.commit(members[0], 1, "anything-7") == 0


def test_other_protocol_types_are_never_looked_into() -> None:
    """Their bytes may look like ours and mean something else."""
    context = Context()
    members = context.completing_group(2, protocol_type="connect")
    given = dict.fromkeys(members, assignment("flights-0"))
    context.sync(members[0], 1, given)

    assert context.state == "Stable"
    assert context.commit(members[1], 1, "anything-7") == 0


@pytest.mark.parametrize(
    ("protocol_type", "protocol_name", "error"),
    [
        (None, None, 0),
        ("consumer", "range", 0),
        ("consumer", None, 0),
        ("connect", "range", 23),
        ("consumer", "sticky", 23),
    ],
)
def test_a_named_protocol_must_be_that_of_the_group(
    protocol_type: str | None, protocol_name: str | None, error: int
) -> None:
    """The member would read the assignment wrongly."""
    context = Context()
    members = context.stable_group(2)
    token = context.sync(members[1], 1, protocol_type=protocol_type, protocol_name=protocol_name)

    assert error == context.synced(token).error


def test_a_rebalance_answers_parked_syncs_with_27() -> None:
    """They must join again."""
    context = Context()
    members = context.completing_group(3)
    parked = context.sync(members[1], 1)
    context.leave(members[2])

    assert context.synced(parked).error == 27


def test_a_newer_sync_takes_the_place_of_the_parked_one() -> None:
    """Every request gets exactly one answer."""
    context = Context()
    members = context.completing_group(2)
    old, new = context.sync(members[1], 1), context.sync(members[1], 1)
    context.sync_all([members[0]])

    assert (context.synced(old).error, context.synced(new).error) == (1007, 0)


def test_a_leader_that_never_syncs_is_removed_in_time() -> None:
    """The others wait for it with their requests parked."""
    context = Context()
    leader, follower = context.completing_group(2)
    parked = context.sync(follower, 1)
    for _ in range(REBALANCE_MS // 5_000):
        assert context.is_parked(parked)
        context.beat(leader, 1)
        context.advance(5_000)

    assert context.synced(parked).error == 27
    assert [(leader, "sync timeout")] == context.removals()


def test_a_follower_that_never_syncs_is_removed_from_a_stable_group() -> None:
    """It holds partitions that it does not know of."""
    context = Context()
    leader, follower = context.completing_group(2)
    context.sync(leader, 1, {follower: assignment("flights-0")})
    for _ in range(REBALANCE_MS // 5_000):
        assert context.state == "Stable"
        context.beat(leader, 1)
        context.beat(follower, 1)
        context.advance(5_000)

    assert [(follower, "sync timeout")] == context.removals()
    assert context.events_named("group.member_removed")[0]["partitions"] == ["flights-0"]


def test_once_all_have_synced_the_sync_timer_is_off() -> None:
    """A group at rest stays at rest."""
    context = Context()
    members = context.stable_group(2)
    for _ in range(3 * REBALANCE_MS // 5_000):
        for member in members:
            assert context.beat(member, 1) == 0
        context.advance(5_000)

    assert (context.state, context.generation, context.removals()) == ("Stable", 1, [])


def test_a_sync_answered_at_once_does_not_refresh_the_session() -> None:
    """As in Kafka: only a parked one does."""
    context = Context()
    members = context.stable_group(2)
    context.advance(9_000)
    context.sync(members[1], 1)
    context.beat(members[0], 1)
    context.advance(1_000)

    assert [(members[1], "session expired")] == context.removals()


def test_drained_members_that_the_leader_names_get_nothing() -> None:
    """Whatever the leader sends."""
    context = Context()
    leader, follower = context.stable_group(2)
    context.drain("spark1")
    context.join(follower)
    shown = context.joined(context.join(leader))

    assert [leader] == [member.member_id for member in shown.members]

    token = context.sync(follower, 2)
    context.sync(leader, 2, dict.fromkeys([leader, follower], assignment("flights-0")))

    assert (context.synced(token).error, context.synced(token).assignment) == (0, b"")


def give(context: Context, members: list[str], *given: bytes) -> None:
    """Let the members, the first of them the leader, come to a generation with this assignment."""
    for member in members:
        context.join(member)
    for member in members[1:]:
        context.sync(member, context.generation)
    context.sync(members[0], context.generation, dict(zip(members, given, strict=True)))
    assert context.state == "Stable"


def test_a_member_may_finish_what_it_had_and_nobody_has_now() -> None:
    """So a cooperative member can commit what it is handing over, without stopping the rest."""
    context = Context()
    members = context.stable_group(2)
    leader, loser = members
    give(context, members, assignment("flights-0"), b"")

    assert context.commit(loser, 2, "flights-1") == 0
    assert context.commit(loser, 2, "flights-0") == 1002
    assert context.commit(leader, 2, "flights-1") == 1002

    give(context, members, assignment("flights-0", "flights-1"), b"")

    assert context.commit(loser, 3, "flights-1") == 1002
    assert context.commit(leader, 3, "flights-1") == 0


def test_what_another_has_now_is_nobody_elses() -> None:
    """One owner for a partition, in each generation."""
    context = Context()
    members = context.stable_group(2)
    give(context, members, assignment("flights-1"), b"")

    assert [context.commit(member, 2, "flights-1") for member in members] == [0, 1002]
    assert [context.commit(member, 2, "flights-0") for member in members] == [0, 1002]


def test_the_right_to_finish_ends_with_the_next_assignment() -> None:
    """Only what was owned in the last assigned generation counts, not what could be committed."""
    context = Context()
    members = context.stable_group(2)
    give(context, members, assignment("flights-0"), b"")
    give(context, members, assignment("flights-0"), b"")

    assert context.commit(members[1], 3, "flights-1") == 1002


def test_a_generation_that_was_never_assigned_takes_no_right_away() -> None:
    """Nobody had the partition meanwhile; also when a crash was the reason."""
    for is_crash in (False, True):
        context = Context()
        members = context.stable_group(2)
        for member in members:
            context.join(member)
        assert context.state == "CompletingRebalance"
        if is_crash:
            context.crash()
        else:
            context.join(members[0], protocols={"range": subscription("trains")})
        give(context, members, assignment("flights-0"), b"")

        assert context.generation == 3
        assert context.commit(members[1], context.generation, "flights-1") == 0


def test_the_right_to_finish_is_lost_in_a_crash() -> None:
    """The log says who owns what, and not who did."""
    context = Context()
    members = context.stable_group(2)
    give(context, members, assignment("flights-0"), b"")
    context.crash()

    assert context.commit(members[1], 2, "flights-1") == 1002


def test_beside_an_assignment_that_cannot_be_read_nobody_may_finish() -> None:
    """The partition may be in it."""
    context = Context()
    members = context.stable_group(2)
    give(context, members, b"\xff\xff?", assignment("flights-3"))

    assert context.commit(members[1], 2, "flights-1") == 1002


def test_a_drained_member_may_finish_what_it_had() -> None:
    """Nobody has it before the next rebalance."""
    context = Context()
    members = context.stable_group(2)
    context.drain("spark1")
    give(context, members, assignment("flights-0"), b"")

    assert context.commit(members[1], 2, "flights-1") == 0
