"""Static members: an instance id outlives the member ids that hold it."""

import pytest
from msgspec import structs

from coordinator.group.core import GroupConfig
from coordinator.group.records import GroupGeneration, GroupMetadata, GroupRebalanced
from protocol.consumer import Subscription, encode_subscription
from protocol.messages import DrainedMember, LeavingMember
from protocol.partition import TopicPartition
from tests.group.context import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Context,
    assignment,
    subscription,
)

OTHER = {"range": subscription("trains")}


def stable_record(context: Context) -> GroupMetadata:
    """Return what the log says of the last stable generation."""
    stable = context.shard.hard_state()[GROUP].stable
    assert stable is not None
    return stable


# --- coming in ------------------------------------------------------------------------------


def test_a_static_member_needs_no_second_round_for_its_id() -> None:
    """Its instance id already keeps a lost answer from leaving a member behind."""
    context = Context()
    token = context.join(instance_id="i0", client_id="driver-a")

    assert context.is_parked(token)

    context.advance(DELAY_MS * 2)
    response = context.joined(token)

    assert (response.error, response.member_id) == (0, "i0-0001")
    assert [(m.member_id, m.group_instance_id) for m in response.members] == [("i0-0001", "i0")]
    assert context.describe().members[0].group_instance_id == "i0"


def test_a_first_static_member_makes_the_group_durable() -> None:
    """DescribeGroups after a crash must not say 69, as for a first dynamic one."""
    context = Context()
    context.join(instance_id="i0")

    assert [GroupMetadata(GROUP, "", 0, None, None, context.wall_ms, ())] == context.records


def test_a_new_instance_counts_for_the_size_of_the_group_and_a_known_one_does_not() -> None:
    """Restarting a member of a full group adds nobody."""
    context = Context(GroupConfig(group_max_size=2))
    context.static_group(2)

    assert context.joined(context.join(instance_id="i2")).error == 81
    assert context.joined(context.join(instance_id="i1")).error == 0


def test_new_instances_are_refused_while_the_disk_is_full_and_known_ones_are_not() -> None:
    """What runs goes on."""
    context = Context()
    context.static_group(2)
    context.shard.storage_full = True

    assert context.joined(context.join(instance_id="i2")).error == 1004
    assert context.joined(context.join(instance_id="i1")).error == 0


# --- the fast path --------------------------------------------------------------------------


def test_a_restarted_follower_is_answered_at_once_in_the_same_generation() -> None:
    """No partition moves, and nobody else notices: that is what static members are for."""
    context = Context()
    leader, old = context.static_group(2)
    token = context.join(instance_id="i1", client_id="new", host="10.0.0.9")
    response = context.joined(token)
    new = response.member_id

    assert new not in {leader, old}
    assert (response.error, response.generation_id, response.leader) == (0, 1, leader)
    assert (response.skip_assignment, response.members) == (False, ())
    assert (context.state, context.generation, context.beat(leader, 1)) == ("Stable", 1, 0)
    assert context.synced(context.sync(new, 1)).assignment == assignment("flights-1")
    assert context.commit(new, 1, "flights-1") == 0


def test_a_restarted_leader_leads_and_is_told_not_to_assign() -> None:
    """KIP-814: it needs to know the members, and the assignment stays."""
    context = Context()
    _, follower = context.static_group(2)
    response = context.joined(context.join(instance_id="i0"))

    assert (response.error, response.generation_id) == (0, 1)
    assert response.leader == response.member_id
    assert response.skip_assignment
    assert [m.member_id for m in response.members] == [response.member_id, follower]
    assert context.state == "Stable"


def test_the_newcomer_keeps_the_place_of_the_old_one() -> None:
    """Votes and the next leader go by it."""
    context = Context()
    members = context.static_group(3)
    new = context.joined(context.join(instance_id="i1")).member_id

    assert [members[0], new, members[2]] == [m.member_id for m in context.describe().members]


def test_the_log_knows_the_newcomer_before_it_is_answered() -> None:
    """A crash must bring back the new id with all that belongs to it, and not the old one."""
    context = Context()
    _, old = context.static_group(2)
    context.close_gate()
    newer = {"range": subscription("flights"), "sticky": b""}
    context.join(
        instance_id="i1",
        client_id="new",
        host="10.0.0.9",
        session_ms=20_000,
        rebalance_ms=30_000,
        protocols=newer,
    )
    ((*_, gated, _),) = context.in_gate

    assert gated

    member = stable_record(context).members[1]

    assert (member.group_instance_id, member.client_id, member.client_host) == (
        "i1",
        "new",
        "10.0.0.9",
    )
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (20_000, 30_000)
    assert member.assignment == assignment("flights-1")

    context.open_gate()
    context.crash()

    assert [context.beat(member.member_id, 1), context.beat(old, 1)] == [0, 25]
    assert context.beat(old, 1, instance_id="i1") == 82


def test_its_session_has_its_own_length_at_once() -> None:
    """Kafka arms the old one's, and evicts whoever beats by what it asked for."""
    context = Context()
    leader, _ = context.static_group(2)
    context.join(instance_id="i1", session_ms=20_000)
    for _ in range(3):
        context.advance(6_000)
        context.beat(leader, 1)

    assert context.state == "Stable"

    context.advance(2_000)

    assert context.state == "PreparingRebalance"


@pytest.mark.parametrize(
    ("offer", "stays"),
    [
        ({"range": subscription("flights")}, True),
        ({"range": subscription("flights") + b"tail of a later version"}, True),
        ({"sticky": b"", "range": subscription("flights")}, True),
        ({"range": subscription("flights", "trains")}, False),
        ({"range": subscription()}, False),
        ({"range": b"\x00"}, False),
    ],
)
def test_only_what_the_assignment_depends_on_makes_a_restart_disturb(
    offer: dict[str, bytes], stays: bool
) -> None:
    """Kafka ignores changed topics here, and never assigns them."""
    context = Context()
    context.static_group(2)
    token = context.join(instance_id="i1", protocols=offer)

    assert (context.state == "Stable") == stays
    assert context.is_parked(token) == (not stays)


def test_the_order_of_topics_is_no_change() -> None:
    """A set of topics is subscribed to."""
    context = Context()
    context.static_group(2, protocols={"range": subscription("flights", "trains")})
    context.join(instance_id="i1", protocols={"range": subscription("trains", "flights")})

    assert context.state == "Stable"


def test_a_changed_pattern_makes_the_group_rebalance() -> None:
    """It may match other topics tomorrow."""
    context = Context()
    context.static_group(2, pattern="fli.*")
    context.join(instance_id="i1", pattern="fli.*")

    assert context.state == "Stable"

    context.join(instance_id="i1", pattern="fli.+")

    assert context.state == "PreparingRebalance"


def test_bytes_that_cannot_be_read_may_not_change() -> None:
    """Whether the topics did, nobody knows."""
    context = Context()
    context.static_group(2, protocols={"range": b"\x00"})
    context.join(instance_id="i1", protocols={"range": b"\x00"})

    assert context.state == "Stable"

    context.join(instance_id="i1", protocols={"range": b"\x01"})

    assert context.state == "PreparingRebalance"


def test_other_protocol_types_keep_their_bytes_to_themselves() -> None:
    """A sticky assignor of theirs writes other bytes after every restart."""
    context = Context()
    context.static_group(2, protocol_type="connect", protocols={"x": b"1"})
    context.join(instance_id="i1", protocol_type="connect", protocols={"x": b"2"})

    assert context.state == "Stable"


def test_another_vote_makes_the_group_rebalance() -> None:
    """The assignment was made by the protocol that lost."""
    context = Context()
    both = {"range": subscription("flights"), "sticky": subscription("flights")}
    context.static_group(2, protocols=both)
    context.join(instance_id="i0", protocols=dict(reversed(both.items())))

    assert context.state == "PreparingRebalance"


def test_the_only_member_may_come_back_with_another_assignor() -> None:
    """Its predecessor is no reason to refuse it."""
    context = Context()
    context.static_group(1)
    token = context.join(instance_id="i0", protocols={"sticky": subscription("flights")})

    assert context.joined(token).protocol_name == "sticky"
    assert context.generation == 2


def test_a_newcomer_must_fit_the_others() -> None:
    """As any member must; and nothing happens to the one that is there."""
    context = Context()
    _, old = context.static_group(2)
    refused = context.joined(context.join(instance_id="i1", protocols={"sticky": b""}))

    assert refused.error == 23
    assert refused.message == "protocols sticky; all members support range"
    assert context.beat(old, 1, instance_id="i1") == 0


def test_a_newcomer_that_has_no_room_changes_nothing() -> None:
    """The others could never be told their generation."""
    context = Context(GroupConfig(max_response_bytes=300_000))
    members = context.static_group(2)
    before = list(context.records)
    big = {"range": bytes(300_000)}

    assert context.joined(context.join(instance_id="i1", protocols=big)).error == 81
    assert [context.beat(m, 1) for m in members] == [0, 0]
    assert before == context.records


def test_a_drain_ends_with_the_process_that_was_asked_to_give_up() -> None:
    """The mark would keep the restarted one without partitions for good."""
    context = Context()
    leader, old = context.static_group(2)
    context.drain("spark1")
    context.join(old)
    context.join(leader)
    context.sync(old, 2)
    context.sync(leader, 2, {leader: assignment("flights-0", "flights-1")})

    assert context.drain("spark1").members == (DrainedMember(old, True),)

    token = context.join(instance_id="i1", client_id="spark1")

    assert context.is_parked(token)

    shown = context.joined(context.join(leader)).members

    assert [m.member_id for m in shown] == [leader, context.joined(token).member_id]


def test_a_crash_does_not_make_a_drain_last_for_ever() -> None:
    """It forgets who was drained: who has nothing then may have been, and is let in anew once."""
    context = Context()
    leader, drained = context.static_group(2)
    context.drain("spark1")
    context.join(drained)
    context.join(leader)
    context.sync(drained, 2)
    context.sync(leader, 2, {leader: assignment("flights-0", "flights-1")})
    context.crash()

    assert not context.is_parked(context.join(instance_id="i0"))

    token = context.join(instance_id="i1")

    assert context.is_parked(token)


def test_who_has_nothing_otherwise_restarts_without_a_rebalance() -> None:
    """There may be more members than partitions."""
    context = Context()
    context.static_group(2)
    leader, idle = (m.member_id for m in context.describe().members)
    context.join(leader)
    context.join(idle)
    context.sync(idle, 2)
    context.sync(leader, 2, {leader: assignment("flights-0", "flights-1")})

    assert not context.is_parked(context.join(instance_id="i1"))


@pytest.mark.parametrize("crashes", [False, True])
def test_who_went_before_it_gave_a_partition_up_is_followed_by_a_rebalance(crashes: bool) -> None:
    """A cooperative member joins again for that; nobody else does, and nobody had the partition."""
    context = Context()
    claims = (TopicPartition("flights", 1), TopicPartition("flights", 2))
    had = encode_subscription(Subscription(("flights",), owned_partitions=claims))
    leader, _ = context.static_group(2, protocols={"range": had})
    if crashes:
        context.crash()
    again = {"range": subscription("flights")}
    token = context.join(instance_id="i1", protocols=again)

    assert context.is_parked(token)
    assert context.beat(leader, 1) == 27
    second = context.join(leader, protocols=again)
    new = context.joined(token).member_id
    context.joined(second)
    context.sync_all([leader, new])
    assert not context.is_parked(context.join(instance_id="i1", protocols=again))


def test_a_pattern_that_changes_with_a_rejoin_counts_too() -> None:
    """Under the member's own id, static or not."""
    context = Context()
    context.static_group(2)
    member = context.describe().members[1].member_id
    context.join(member)

    assert context.state == "Stable"

    context.join(member, pattern="fli.*")

    assert context.state == "PreparingRebalance"


def test_the_newcomer_must_fetch_its_assignment_if_the_old_one_had_not() -> None:
    """The sync timer asks who holds partitions without knowing of them."""
    context = Context()
    leader, old = context.static_group(2, session_ms=200_000)
    for member in (leader, old):
        context.join(member, session_ms=200_000)
    context.sync(leader, 2, {old: assignment("flights-0")})
    new = context.joined(context.join(instance_id="i1", session_ms=200_000)).member_id
    context.advance(REBALANCE_MS)

    assert context.removals() == [(new, "sync timeout")]


def test_a_newcomer_does_not_sync_in_anybody_elses_place() -> None:
    """The old one had synced: that it asks again must not hide who never did."""
    context = Context()
    leader, old, silent = context.static_group(3, session_ms=200_000)
    for member in (leader, old, silent):
        context.join(member, session_ms=200_000)
    context.sync(old, 2)
    context.sync(leader, 2, {silent: assignment("flights-0")})
    new = context.joined(context.join(instance_id="i1", session_ms=200_000)).member_id
    context.sync(new, 2)
    context.advance(REBALANCE_MS)

    assert context.removals() == [(silent, "sync timeout")]


# --- replaced in the middle of a rebalance --------------------------------------------------


def test_in_the_join_phase_the_parked_request_of_the_old_one_is_fenced() -> None:
    """Two processes with one instance id: the one that came last wins, and the other is told."""
    context = Context()
    leader, old = context.static_group(2)
    parked = context.join(old, protocols=OTHER)
    token = context.join(instance_id="i1", client_id="b", host="10.0.0.9")
    fenced = context.joined(parked)

    assert (fenced.error, fenced.member_id, fenced.generation_id) == (82, old, -1)
    assert fenced.message == (
        "instance id 'i1' is held by member i1-0003 (client b) from host 10.0.0.9"
    )
    assert context.is_parked(token)
    assert context.joined(context.join(leader)).generation_id == 2
    assert context.joined(token).member_id == "i1-0003"


def test_in_the_sync_phase_the_group_joins_again() -> None:
    """The leader's assignment would name the old id."""
    context = Context()
    leader, old, other = context.static_group(3)
    context.join(old, protocols=OTHER)
    context.join(leader)
    context.join(other)
    parked = [context.sync(old, 2), context.sync(other, 2)]
    token = context.join(instance_id="i1")

    assert [context.synced(t).error for t in parked] == [82, 27]
    assert (context.state, context.is_parked(token)) == ("PreparingRebalance", True)


@pytest.mark.parametrize("crashes", [False, True])
def test_a_replacement_in_the_sync_phase_gives_no_generation_out_twice(crashes: bool) -> None:
    """It writes the last stable generation again, after a newer one that members were told."""
    context = Context()
    leader, old = context.static_group(2)
    context.join(old, protocols=OTHER)
    told = context.joined(context.join(leader)).generation_id
    token = context.join(instance_id="i1")
    if crashes:
        context.crash()
        token = context.join(instance_id="i1")
    context.join(leader)

    assert (told, context.joined(token).generation_id) == (2, 3)


@pytest.mark.parametrize("state", ["Stable", "PreparingRebalance", "CompletingRebalance"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_fenced_member_stays_fenced_over_a_crash(state: str, which: int) -> None:
    """In every state: the stable generation is in the log with the new id, before any answer."""
    context = Context()
    members = context.static_group(2)
    if state != "Stable":
        context.join(members[1 - which], protocols=OTHER)
    if state == "CompletingRebalance":
        context.join(members[which])
    assert context.state == state
    context.join(instance_id=f"i{which}")
    new = f"i{which}-0003"
    record = stable_record(context)

    assert new == record.members[which].member_id
    assert record.leader == (new if which == 0 else members[0])
    assert record.generation == 1

    context.crash()
    old = members[which]

    assert context.beat(old, 1, instance_id=f"i{which}") == 82
    assert context.beat(old, 1) == 25
    assert context.commit(old, 1, f"flights-{which}") == 25
    assert context.commit(old, 1, f"flights-{which}", instance_id=f"i{which}") == 82
    assert context.beat(new, 1, instance_id=f"i{which}") in {0, 27}


def test_an_instance_that_had_left_is_not_brought_back_to_fence_the_living_one() -> None:
    """Its old id is in the last stable generation, which is what a crash restores."""
    context = Context()
    leader, _ = context.static_group(2)
    context.advance(SESSION_MS // 2)
    context.beat(leader, 1)
    context.advance(SESSION_MS // 2)

    assert context.state == "PreparingRebalance"

    context.join(instance_id="i1")
    context.join(leader)

    assert (context.state, context.generation) == ("CompletingRebalance", 2)

    new = context.describe().members[1].member_id
    context.crash()

    assert context.beat(new, 2, instance_id="i1") == 27


def test_a_replaced_member_that_owns_partitions_owns_them_still() -> None:
    """Also what it had before, while it waits for the join to complete."""
    context = Context()
    leader, _, _ = context.static_group(3)
    context.join(leader, protocols=OTHER)
    context.join(instance_id="i1")
    new = context.describe().members[1].member_id

    assert context.describe().members[1].assignment == assignment("flights-1")
    assert context.commit(new, 1, "flights-1") == 0
    assert context.commit(leader, 1, "flights-1") == 1002


def test_the_replaced_one_no_longer_expires() -> None:
    """Its session ended with it."""
    context = Context()
    leader, _ = context.static_group(2)
    context.advance(SESSION_MS - 1)
    context.beat(leader, 1)
    context.join(instance_id="i1")
    context.advance(SESSION_MS - 1)

    assert (context.state, context.removals()) == ("Stable", [])


def test_a_replaced_join_is_not_bound_to_the_five_minutes_of_a_new_member() -> None:
    """It is no newcomer: the rebalance itself is the limit, as for whoever rejoins."""
    context = Context()
    long = {"rebalance_ms": 900_000, "session_ms": 1_000_000}
    leader, _ = context.static_group(2, **long)
    token = context.join(instance_id="i1", protocols=OTHER, rebalance_ms=900_000)
    context.advance(400_000)

    assert context.is_parked(token)

    context.join(leader)

    assert context.joined(token).generation_id == 2


# --- who may speak --------------------------------------------------------------------------


def test_every_request_with_the_instance_id_must_come_from_its_holder() -> None:
    """Otherwise two processes would take turns."""
    context = Context()
    leader, old = context.static_group(2)
    context.join(instance_id="i1")
    words = "instance id 'i1' is held by member i1-0003 (client spark) from host 10.0.0.1"
    beaten = context.beaten(old, 1, instance_id="i1")
    synced = context.synced(context.sync(old, 1, instance_id="i1"))
    joined = context.joined(context.join(old, instance_id="i1"))
    (left,) = context.left(LeavingMember(old, "i1", None))

    assert {(r.error, r.message) for r in (beaten, synced, joined, left)} == {(82, words)}
    assert joined.member_id == old
    assert context.commit(old, 1, "flights-1", instance_id="i1") == 82
    assert context.beat(leader, 1, instance_id="i1") == 82


def test_the_old_id_alone_is_unknown_and_told_what_became_of_it() -> None:
    """Whoever reads the client's log must find out who took over."""
    context = Context()
    _, old = context.static_group(2)
    context.join(instance_id="i1", client_id="b", host="10.0.0.9")
    text = f"member {old} is gone: replaced by member i1-0003 (client b) from host 10.0.0.9"
    beaten = context.beaten(old, 1)

    assert (beaten.error, beaten.message) == (25, text)
    assert context.joined(context.join(old)).error == 25


def test_a_static_member_may_leave_its_instance_id_out() -> None:
    """As in Kafka."""
    context = Context()
    _, member = context.static_group(2)

    assert context.beat(member, 1) == 0
    assert context.commit(member, 1, "flights-1") == 0
    assert context.synced(context.sync(member, 1)).error == 0
    assert context.joined(context.join(member)).error == 0


def test_an_instance_that_nobody_holds_is_unknown() -> None:
    """Also with the id of a member that has none, or one that was given out."""
    context = Context()
    (dynamic,) = context.stable_group(1)
    pending = context.new_id()

    for member_id in (dynamic, pending, "nobody"):
        response = context.joined(context.join(member_id, instance_id="i7"))

        assert (response.error, response.message) == (25, "no member holds the instance id 'i7'")
    assert context.beat(dynamic, 1, instance_id="i7") == 25


def test_a_pending_id_is_not_that_of_an_instance() -> None:
    """Kafka fails with -1."""
    context = Context()
    context.static_group(1)
    pending = context.new_id()

    assert context.joined(context.join(pending, instance_id="i0")).error == 82


# --- leaving --------------------------------------------------------------------------------


def test_an_operator_removes_an_instance_without_knowing_its_member_id() -> None:
    """All of a batch in one rebalance; each answer names what was asked."""
    context = Context()
    _, one, two, three = context.static_group(4)
    left = context.left(
        LeavingMember("", "i1", "shrink"),
        LeavingMember("", "i9", None),
        LeavingMember(two, "i2", None),
        LeavingMember(three, "i2", None),
        LeavingMember(three, None, None),
        LeavingMember("", None, None),
    )

    assert [structs.astuple(member)[:3] for member in left] == [
        ("", "i1", 0),
        ("", "i9", 25),
        (two, "i2", 0),
        (three, "i2", 25),
        (three, None, 0),
        ("", None, 25),
    ]
    assert len(context.events_named("group.rebalance_started")) == 2
    text = f"member {one} is gone: instance id 'i1' removed on request: shrink"
    assert context.beaten(one, 1).message == text


def test_a_pending_id_leaves_whatever_instance_it_names() -> None:
    """It disturbs nobody."""
    context = Context()
    context.static_group(1)

    assert context.left(LeavingMember(context.new_id(), "i0", None))[0].error == 0
    assert context.state == "Stable"


# --- those who are away ---------------------------------------------------------------------


def test_a_static_member_that_is_away_keeps_its_place_over_the_join_timer() -> None:
    """It is restarting: its session decides, and the leader still sees it."""
    context = Context()
    leader, away = context.static_group(2, session_ms=200_000)
    token = context.join(leader, protocols=OTHER, session_ms=200_000)
    context.advance(REBALANCE_MS)
    response = context.joined(token)

    assert (response.generation_id, context.removals()) == (2, [])
    assert [m.member_id for m in response.members] == [leader, away]

    context.sync(leader, 2, {away: assignment("flights-0")})

    assert context.state == "Stable"
    assert context.beat(away, 1) == 22
    assert context.joined(context.join(away, session_ms=200_000)).generation_id == 2
    assert context.synced(context.sync(away, 2)).assignment == assignment("flights-0")


def test_the_join_timer_that_starts_anew_is_that_of_those_who_are_left() -> None:
    """A newcomer beside a static member that is away doesn't wait for who was removed."""
    context = Context()
    (away,) = context.static_group(1, session_ms=900_000, rebalance_ms=20_000)
    slow = context.new_id(session_ms=900_000)
    token = context.join(slow, session_ms=900_000, rebalance_ms=100_000)
    context.join(away, session_ms=900_000, rebalance_ms=20_000)
    context.sync_all([away, slow])
    assert context.joined(token).generation_id == 2

    context.withdraw(context.join(slow, protocols=OTHER, session_ms=900_000, rebalance_ms=100_000))
    context.advance(100_000)
    assert context.removals() == [(slow, "rebalance timeout")]

    token = context.join(context.new_id(), rebalance_ms=20_000)
    context.advance(20_000)

    assert context.joined(token).generation_id == 3


def test_a_dynamic_member_that_is_away_is_removed_beside_it() -> None:
    """Its client does not come back under the same name."""
    context = Context()
    leader, away = context.static_group(2, session_ms=200_000)
    newcomer = context.new_id(session_ms=200_000)
    tokens = [
        context.join(newcomer, session_ms=200_000),
        context.join(away, session_ms=200_000),
        context.join(leader, session_ms=200_000),
    ]
    context.sync_all([leader, away, newcomer])

    assert {context.joined(t).generation_id for t in tokens} == {2}

    context.join(leader, protocols=OTHER, session_ms=200_000)
    context.advance(REBALANCE_MS)

    assert context.removals() == [(newcomer, "rebalance timeout")]
    assert [m.member_id for m in context.describe().members] == [leader, away]


def test_a_leader_that_is_away_loses_the_lead() -> None:
    """Somebody has to assign."""
    context = Context()
    _, follower = context.static_group(2, session_ms=200_000)
    token = context.join(follower, protocols=OTHER, session_ms=200_000)
    context.advance(REBALANCE_MS)

    assert context.joined(token).leader == follower


def test_while_nobody_joined_the_join_timer_runs_again() -> None:
    """There is nobody to give a generation to; sessions decide who is still there."""
    context = Context()
    members = context.static_group(2, session_ms=200_000)
    context.drain("spark0")
    context.advance(2 * REBALANCE_MS)

    assert (context.state, context.generation) == ("PreparingRebalance", 1)
    assert members == [m.member_id for m in context.describe().members]

    token = context.join(members[0], session_ms=200_000)
    context.advance(REBALANCE_MS)

    assert context.joined(token).generation_id == 2

    other = Context()
    other.static_group(2, session_ms=200_000)
    other.drain("spark0")
    other.advance(200_000)

    assert (other.state, other.generation) == ("Empty", 2)


def test_a_static_member_that_does_not_fetch_its_assignment_is_removed() -> None:
    """It holds partitions that it does not know of; as in Kafka, long before a long session."""
    context = Context()
    leader, away = context.static_group(2, session_ms=500_000)
    context.join(leader, protocols=OTHER, session_ms=500_000)
    context.advance(REBALANCE_MS)
    context.sync(leader, 2)
    context.advance(REBALANCE_MS)

    assert context.removals() == [(away, "sync timeout")]


def test_its_session_ends_while_it_is_away() -> None:
    """Staying in a generation is no sign of life."""
    context = Context()
    leader, away = context.static_group(2, session_ms=70_000)
    context.join(leader, protocols=OTHER, session_ms=200_000)
    context.advance(REBALANCE_MS)
    context.sync(leader, 2)
    context.advance(10_000)

    assert context.removals() == [(away, "session expired")]


# --- what is written ------------------------------------------------------------------------


def test_a_restart_in_a_stable_group_writes_one_record_and_no_generation() -> None:
    """Nothing else has changed."""
    context = Context()
    context.static_group(3)
    before = len(context.records)
    context.join(instance_id="i2")

    assert [GroupMetadata] == [type(record) for record in context.records[before:]]


def test_a_restart_in_the_join_phase_keeps_what_the_stable_generation_agreed_on() -> None:
    """The new subscription was not voted on; only who holds the instance has changed."""
    context = Context()
    context.static_group(2)
    before = stable_record(context)
    context.join(instance_id="i1", protocols=OTHER, client_id="b", session_ms=20_000)
    after = stable_record(context)

    assert after.members[1]._replace(member_id="i1-0002") == before.members[1]
    assert before._replace(members=()) == after._replace(members=())


def test_an_instance_that_is_not_on_record_writes_nothing() -> None:
    """A storm of restarts before the first assignment costs no log."""
    context = Context()
    context.join(instance_id="i0")
    before = list(context.records)
    context.join(instance_id="i0")

    assert before == context.records

    context.advance(2 * DELAY_MS)

    assert [GroupGeneration] == [type(record) for record in context.records[len(before) :]]
    assert not [r for r in context.records if isinstance(r, GroupRebalanced)]
