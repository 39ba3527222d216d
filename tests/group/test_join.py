"""JoinGroup: ids, the first barrier, the vote, the leader, the limits."""

import pytest

from coordinator.group.core import GroupConfig
from coordinator.group.records import GroupGeneration, GroupMetadata
from protocol.errors import ErrorCode
from protocol.messages import JoinGroupMember
from protocol.partition import INT32_MAX
from tests.group.context import DELAY_MS, GROUP, REBALANCE_MS, SESSION_MS, Context, subscription


def test_a_new_member_gets_an_id_made_of_its_client_id() -> None:
    """So that an operator can tell members apart."""
    context = Context()

    response = context.joined(context.join(client_id="driver-a"))

    assert (
        response.error,
        response.member_id,
        response.generation_id,
    ) == (79, "driver-a-0001", -1)
    assert (context.state, context.describe().members) == ("Empty", ())


def test_giving_out_an_id_makes_the_group_durable() -> None:
    """DescribeGroups right after must not say 69, also after a crash."""
    context = Context()
    context.new_id()

    assert [GroupMetadata(GROUP, "", 0, None, None, context.wall_ms, ())] == context.records

    context.crash()

    assert (context.state, context.generation) == ("Empty", 0)


def test_a_second_id_writes_nothing() -> None:
    """A flood of new members must not fill the log."""
    context = Context()
    context.new_id()
    context.new_id()

    assert len(context.records) == 1


def test_an_id_that_is_not_used_in_time_is_taken_back() -> None:
    """Otherwise lost answers would fill the group."""
    context = Context()
    member = context.new_id()
    context.advance(SESSION_MS - 1)

    assert context.is_parked(context.join(member))

    other = context.new_id()
    context.advance(SESSION_MS)

    assert context.joined(context.join(other)).error == 25


@pytest.mark.parametrize(("protocol_type", "protocols"), [("", {"range": b""}), ("consumer", {})])
def test_a_first_member_needs_a_protocol(protocol_type: str, protocols: dict[str, bytes]) -> None:
    """There would be nothing to agree on."""
    context = Context()
    token = context.join(protocol_type=protocol_type, protocols=protocols)

    assert context.joined(token).error == 23
    assert context.records == []


@pytest.mark.parametrize(
    ("protocol_type", "protocols", "error"),
    [
        ("connect", {"range": b""}, 23),
        ("consumer", {"sticky": b""}, 23),
        ("consumer", {}, 23),
        ("consumer", {"sticky": b"", "range": b""}, 79),
    ],
)
def test_later_members_must_fit_the_others(
    protocol_type: str, protocols: dict[str, bytes], error: int
) -> None:
    """And the group does not notice the ones that don't."""
    context = Context()
    context.stable_group(2)
    token = context.join(protocol_type=protocol_type, protocols=protocols)

    assert error == context.joined(token).error
    assert context.state == "Stable"


def test_the_first_generation_waits_for_more_members() -> None:
    """Ten drivers that start together should not rebalance ten times."""
    context = Context()
    tokens = [context.join(context.new_id())]
    context.advance(DELAY_MS - 1)
    tokens.append(context.join(context.new_id()))
    context.advance(1)

    assert all(context.is_parked(token) for token in tokens)

    context.advance(DELAY_MS - 1)

    assert all(context.is_parked(token) for token in tokens)

    context.advance(1)

    assert [context.joined(token).generation_id for token in tokens] == [1, 1]


def test_the_initial_delay_ends_with_the_rebalance_timeout() -> None:
    """A steady trickle of members must not keep the first ones waiting for ever."""
    context = Context()
    first = context.join(context.new_id(rebalance_ms=10_000), rebalance_ms=10_000)
    for _ in range(20):
        if not context.is_parked(first):
            break
        context.join(context.new_id(rebalance_ms=10_000), rebalance_ms=10_000)
        context.advance(1_000)

    assert context.mono_ms == 1_000_000 + 10_000
    assert context.joined(first).generation_id == 1


def test_a_delay_of_zero_completes_on_the_next_tick() -> None:
    """Tests and single drivers don't want to wait."""
    context = Context(GroupConfig(group_initial_rebalance_delay_ms=0))
    token = context.join(context.new_id())

    assert context.is_parked(token)

    context.advance(0)

    assert context.joined(token).generation_id == 1


def test_the_initial_delay_applies_to_a_group_that_was_used_before() -> None:
    """A restarted job starts all its drivers together, too."""
    context = Context()
    context.leave(*context.stable_group(2))
    token = context.join(context.new_id())
    context.advance(DELAY_MS - 1)

    assert context.is_parked(token)

    context.advance(1)

    assert context.joined(token).generation_id == 3


def test_the_generation_is_a_record_before_anyone_is_told() -> None:
    """A crash must not hand it out again."""
    context = Context()
    context.completing_group(2)

    assert GroupGeneration(GROUP, 1, context.wall_ms) == context.records[-1]


def test_the_leader_sees_all_members_and_the_others_none() -> None:
    """Only the leader assigns."""
    context = Context()
    members = [context.new_id(client_id=c) for c in "ab"]
    tokens = [context.join(m, protocols={"range": m.encode()}) for m in members]
    context.advance(2 * DELAY_MS)
    first, second = (context.joined(token) for token in tokens)

    assert first.leader == second.leader == members[0]
    assert first.members == tuple(JoinGroupMember(m, None, m.encode()) for m in members)
    assert second.members == ()
    assert (second.protocol_type, second.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize(
    ("offers", "winner"),
    [
        (["range", "range"], "range"),
        (["range robin", "robin range"], "range"),
        (["robin range", "range robin"], "robin"),
        (["range robin", "robin range", "robin range"], "robin"),
        (["sticky robin", "robin range", "range robin"], "robin"),
        (["sticky range robin", "robin range", "range robin"], "range"),
    ],
)
def test_most_votes_win_and_a_tie_goes_to_the_first_voter(offers: list[str], winner: str) -> None:
    """Deterministic, or a replay would choose another."""
    context = Context()
    members = [context.new_id(protocols=dict.fromkeys(o.split(), b"")) for o in offers]
    for member, offer in zip(members, offers, strict=True):
        context.join(member, protocols=dict.fromkeys(offer.split(), b""))
    context.advance(4 * DELAY_MS)
    context.sync(members[0], 1)

    assert winner == context.describe().protocol_name


def test_all_back_completes_at_once() -> None:
    """A rebalance between live members costs no waiting."""
    context = Context()
    members = context.stable_group(3)
    tokens = [context.join(member) for member in members]

    assert [context.joined(token).generation_id for token in tokens] == [2, 2, 2]


def test_a_new_member_makes_a_stable_group_rebalance() -> None:
    """The members learn of it by their heartbeats."""
    context = Context()
    old = context.stable_group(2)
    new = context.new_id()

    assert context.state == "Stable"

    token = context.join(new)

    assert [context.beat(member, 1) for member in old] == [27, 27]

    for member in old:
        context.join(member)

    assert context.joined(token).generation_id == 2


def test_an_id_that_was_given_out_holds_the_join_open() -> None:
    """Its owner is about to join; without it a second rebalance would follow at once."""
    context = Context()
    members = context.stable_group(2)
    context.join(members[0])
    pending = context.new_id()
    last = context.join(members[1])

    assert context.is_parked(last)

    token = context.join(pending)

    assert 2 == context.joined(token).generation_id == context.joined(last).generation_id


def test_a_pending_id_that_expires_lets_the_join_complete() -> None:
    """Nobody must wait for a client that is gone."""
    context = Context()
    members = context.stable_group(2)
    context.join(members[0])
    context.new_id()
    last = context.join(members[1])
    context.advance(SESSION_MS)

    assert context.joined(last).generation_id == 2


def test_those_who_do_not_come_back_are_removed_by_the_join_timer() -> None:
    """A member that only heartbeats must not block the others."""
    context = Context()
    members = context.stable_group(2)
    token = context.join(members[0])
    for _ in range(REBALANCE_MS // 5_000):
        assert context.is_parked(token)
        context.beat(members[1], 1)
        context.advance(5_000)

    assert context.joined(token).generation_id == 2
    assert [(members[1], "rebalance timeout")] == context.removals()


def test_the_longest_rebalance_timeout_of_the_members_counts() -> None:
    """Each knows best how long its batches take."""
    context = Context()
    slow = context.stable_group(1, rebalance_ms=200_000, session_ms=1_000_000)[0]
    token = context.join(context.new_id(rebalance_ms=10_000), rebalance_ms=10_000)
    context.advance(199_999)

    assert context.is_parked(token)

    context.advance(1)

    assert (2, [(slow, "rebalance timeout")]) == (
        context.joined(token).generation_id,
        context.removals(),
    )


def test_the_leader_stays_while_it_comes_back_in_time() -> None:
    """Leaders keep what they know about the assignment."""
    context = Context()
    members = context.stable_group(3)
    context.join(members[2], protocols={"range": subscription("trains")})
    tokens = [context.join(member) for member in reversed(members)]

    assert {members[0]} == {context.joined(token).leader for token in tokens}


def test_a_leader_that_is_lost_is_followed_by_the_next_that_joined() -> None:
    """Deterministic, or a replay would choose another."""
    context = Context()
    members = context.stable_group(3)
    context.leave(members[0])
    tokens = [context.join(member) for member in reversed(members[1:])]

    assert {members[1]} == {context.joined(token).leader for token in tokens}


def test_a_follower_that_rejoins_unchanged_disturbs_nobody() -> None:
    """A client that lost its answer asks again."""
    context = Context()
    members = context.stable_group(2)
    response = context.joined(context.join(members[1]))

    assert (response.error, response.generation_id, response.members) == (0, 1, ())
    assert context.state == "Stable"


@pytest.mark.parametrize("which", [0, 1])
def test_a_changed_member_makes_the_group_rebalance(which: int) -> None:
    """Its subscription decides what it can be given."""
    context = Context()
    members = context.stable_group(2)
    context.join(members[which], protocols={"range": subscription("trains")})

    assert context.state == "PreparingRebalance"


def test_a_rejoin_in_the_sync_phase_is_answered_with_the_generation_again() -> None:
    """The first answer may have been lost with its connection."""
    context = Context()
    members = context.completing_group(2)
    leader, follower = (context.joined(context.join(member)) for member in members)

    assert (leader.generation_id, len(leader.members)) == (1, 2)
    assert (follower.generation_id, len(follower.members)) == (1, 0)
    assert context.state == "CompletingRebalance"


def test_a_newer_join_takes_the_place_of_the_parked_one() -> None:
    """Every request gets exactly one answer."""
    context = Context()
    member = context.new_id()
    old, new = context.join(member), context.join(member)

    assert (1007, member) == (context.joined(old).error, context.joined(old).member_id)
    assert context.is_parked(new)


def test_ids_that_were_given_out_count_for_the_size_of_the_group() -> None:
    """Else a flood of joins passes the limit."""
    context = Context(GroupConfig(group_max_size=2))
    member = context.new_id()
    context.new_id()
    refused = context.joined(context.join())

    assert (refused.error, refused.member_id) == (81, "")

    assert context.is_parked(context.join(member))


def test_a_surplus_of_members_is_shed_after_a_load() -> None:
    """The limit may have been lowered."""
    context = Context()
    members = context.stable_group(3)
    smaller = Context(GroupConfig(group_max_size=2), records=context.records)

    assert smaller.state == "PreparingRebalance"

    tokens = [smaller.join(member) for member in members]

    assert [smaller.joined(token).error for token in tokens] == [0, 0, 81]
    assert [(members[2], "group full")] == smaller.removals()


@pytest.mark.parametrize(
    "limits",
    [
        GroupConfig(max_response_bytes=600_000),
        GroupConfig(max_batch_bytes=600_000, max_assignments_bytes=100_000),
    ],
)
def test_a_joiner_that_would_make_the_answer_or_the_record_too_large_is_refused(
    limits: GroupConfig,
) -> None:
    """The others could never be told their generation."""
    context = Context(limits)
    big = {"range": bytes(200_000)}
    members = [context.new_id(protocols=big) for _ in range(3)]
    tokens = [context.join(member, protocols=big) for member in members]

    assert [context.is_parked(token) for token in tokens] == [True, True, False]
    assert (context.joined(tokens[2]).error, context.joined(tokens[2]).member_id) == (81, "")

    context.advance(2 * DELAY_MS)

    assert [context.joined(token).generation_id for token in tokens[:2]] == [1, 1]


def test_a_refused_joiner_does_not_hold_the_join_open() -> None:
    """The place of its id is free at once."""
    context = Context(GroupConfig(max_response_bytes=300_000))
    members = context.stable_group(1)
    big = {"range": bytes(299_000)}
    pending = context.new_id(protocols=big)
    changed = {"range": subscription("trains")}
    token = context.join(members[0], protocols=changed)

    assert context.is_parked(token)

    context.join(pending, protocols=big)

    assert context.joined(token).generation_id == 2


def test_a_member_that_grows_too_large_is_removed() -> None:
    """It was told no id to go on with, so the group must not wait for it."""
    context = Context(GroupConfig(max_response_bytes=300_000))
    members = context.stable_group(2)
    token = context.join(members[1], protocols={"range": bytes(300_000)})

    assert context.joined(token).error == 81
    assert context.state == "PreparingRebalance"
    assert [members[0]] == [member.member_id for member in context.describe().members]


def test_new_members_are_refused_while_the_disk_is_full_and_old_ones_are_not() -> None:
    """Definite, and what runs goes on."""
    context = Context()
    members = context.stable_group(2)
    pending = context.new_id()
    context.shard.storage_full = True

    assert context.joined(context.join()).error == 1004
    assert context.joined(context.join(pending)).error == 1004
    assert context.is_parked(context.join(members[0]))

    context.shard.storage_full = False

    assert context.is_parked(context.join(pending))


def test_the_last_generation_is_never_followed_by_an_older_one() -> None:
    """Fencing is worth nothing when the number wraps."""
    context = Context(records=[GroupMetadata(GROUP, "", INT32_MAX - 1, None, None, 0, ())])
    members = context.completing_group(2)
    context.sync_all(members)

    assert context.generation == INT32_MAX

    tokens = [context.join(member) for member in members]

    assert [context.joined(token).error for token in tokens] == [1005, 1005]
    assert (context.state, context.generation) == ("Empty", INT32_MAX)
    assert context.joined(context.join()).error == 1005

    context.crash()

    assert (context.state, context.generation) == ("Empty", INT32_MAX)


def test_a_new_members_first_join_is_parked_for_five_minutes_at_most() -> None:
    """It can't heartbeat yet, so nothing else bounds it."""
    context = Context()
    stuck = context.stable_group(1, rebalance_ms=900_000, session_ms=1_000_000)[0]
    token = context.join(context.new_id())
    context.advance(299_999)

    assert context.is_parked(token)

    context.advance(1)

    assert (context.joined(token).error, context.joined(token).member_id) == (25, "")
    assert [stuck] == [member.member_id for member in context.describe().members]


def test_a_pattern_that_is_none_is_refused_in_words() -> None:
    """It would match nothing for ever, and nobody would know why."""
    context = Context()

    answer = context.joined(context.join(pattern="flights-(", instance_id="a"))

    assert answer.error == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert answer.message is not None
    assert "'flights-('" in answer.message
