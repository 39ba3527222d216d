"""Why did it rebalance? The history of a group, and errors in words."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from coordinator.group.history import REMOVED_MAX, SLOWEST_MAX
from coordinator.group.records import REBALANCES_KEPT, GroupRebalanced
from protocol.messages import (
    DescribeRebalancesRequest,
    DescribeRebalancesResponse,
    HeartbeatResponse,
    LateMember,
    LeavingMember,
    Rebalance,
)
from tests.group.context import (
    DELAY_MS,
    GROUP,
    REBALANCE_MS,
    SESSION_MS,
    Context,
    assignment,
    subscription,
)

# A heartbeat interval, and the second in which a member that heard of a rebalance comes.
PROMPT_MS = 4_000

OTHER = {"range": subscription("trains")}


def rebalance_all(context: Context, members: list[str]) -> None:
    """Let the members, the first of them the leader, come to the next generation."""
    for member in members:
        context.join(member)
    context.sync_all(members)


def test_the_first_rebalance_tells_who_came_and_how_long_it_took() -> None:
    """All of it is there for a group that was just started."""
    context = Context()
    started_ms = context.wall_ms
    (member,) = context.stable_group(1)

    assert context.rebalances() == (
        Rebalance(
            number=1,
            started_ms=started_ms,
            trigger="member joined",
            member_id=member,
            group_instance_id=None,
            client_id="spark0",
            client_host="10.0.0.1",
            reason="member joined",
            old_generation=0,
            new_generation=1,
            join_ms=DELAY_MS,
            sync_ms=0,
            members=1,
            outcome="stable",
            late=(),
        ),
    )


def test_both_phases_are_measured() -> None:
    """A slow leader is another problem than slow members."""
    context = Context()
    leader, other = context.stable_group(2)
    context.join(leader, reason="new config")
    context.advance(400)
    context.join(other)
    context.advance(500)
    context.sync_all([leader, other])
    rebalance = context.rebalances()[0]

    assert (rebalance.number, rebalance.trigger) == (2, "leader rejoined")
    assert rebalance.reason == "leader rejoined: new config"
    assert (rebalance.join_ms, rebalance.sync_ms) == (400, 500)
    assert (rebalance.old_generation, rebalance.new_generation) == (1, 2)


def lose_a_session(context: Context, members: list[str]) -> None:
    """Let the second member fall silent."""
    context.advance(SESSION_MS - 1)
    context.beat(members[0], 1)
    context.advance(1)


def leave(context: Context, members: list[str]) -> None:
    """Let the second member leave."""
    context.left(LeavingMember(members[1], None, "shutting down"))


def leave_together(context: Context, members: list[str]) -> None:
    """Let two members leave."""
    leaving = LeavingMember(members[1], None, None)
    context.left(leaving, LeavingMember(context.describe().members[2].member_id, None, None))


@pytest.mark.parametrize(
    ("happens", "trigger", "reason"),
    [
        (
            lose_a_session,
            "session expired",
            "no heartbeat for 10.0 s, session timeout 10.0 s",
        ),
        (leave, "member left", "left: shutting down"),
        (leave_together, "member left", "left (and 1 more)"),
        (
            lambda context, members: context.join(context.new_id(), reason="scale out"),
            "member joined",
            "member joined: scale out",
        ),
        (
            lambda context, members: context.join(members[1], protocols=OTHER),
            "member changed its protocols",
            "member changed its protocols",
        ),
        (
            lambda context, members: context.drain("spark1"),
            "drain asked",
            "drain of client spark1 asked",
        ),
    ],
)
def test_the_trigger_is_told_in_words_with_what_was_measured(
    happens: object, trigger: str, reason: str
) -> None:
    """It is the line that an operator looks for."""
    assert callable(happens)
    context = Context()
    members = context.stable_group(3)
    happens(context, members)
    event = context.events_named("group.rebalance_started")[-1]

    assert (event["trigger"], event["detail"]) == (trigger, reason)

    context.advance(200_000)
    rebalance = next(r for r in context.rebalances() if r.number == 2)

    assert (rebalance.trigger, rebalance.reason) == (trigger, reason)
    assert rebalance.member_id == event["member"]


def test_a_replaced_instance_is_told_with_both_parties() -> None:
    """Two processes with one instance id are found by it."""
    context = Context()
    leader, old = context.static_group(2)
    context.join(instance_id="i1", protocols=OTHER, client_id="b", host="10.0.0.9")
    rebalance_reason = context.events_named("group.rebalance_started")[-1]["detail"]

    assert rebalance_reason == (
        f"instance id 'i1': {old} replaced by member i1-0003 (client b) from host 10.0.0.9"
    )

    context.join(leader)
    context.sync(leader, 2)

    assert context.rebalances()[0].group_instance_id == "i1"


def test_those_who_did_not_come_in_time_are_named() -> None:
    """The others waited a minute for them."""
    context = Context()
    leader, gone = context.stable_group(2, session_ms=200_000)
    context.join(leader, session_ms=200_000)
    context.advance(REBALANCE_MS)
    context.sync_all([leader])

    assert context.rebalances()[0].late == (
        LateMember(gone, "spark1", "10.0.0.1", "join", REBALANCE_MS, removed=True),
    )
    assert context.events_named("group.member_removed")[-1]["detail"] == (
        "no JoinGroup within the rebalance timeout of 60.0 s, last heard of 60.0 s ago"
    )


def test_a_leader_that_never_assigns_is_named_in_the_rebalance_that_it_spoils() -> None:
    """That one is overtaken, and the next says why it began."""
    context = Context()
    leader, follower = context.completing_group(2, session_ms=200_000)
    context.sync(follower, 1)
    context.advance(REBALANCE_MS)
    context.join(follower)
    context.sync_all([follower])
    after, spoiled = context.rebalances()

    assert (spoiled.outcome, spoiled.new_generation, spoiled.members) == ("overtaken", 1, 2)
    assert spoiled.late == (
        LateMember(leader, "spark0", "10.0.0.1", "sync", REBALANCE_MS, removed=True),
    )
    assert (after.trigger, after.member_id) == ("sync timeout", leader)
    assert after.reason == "no SyncGroup within 60.0 s of the join, last heard of 60.0 s ago"
    assert (after.old_generation, after.new_generation, after.outcome) == (1, 2, "stable")


def test_the_slowest_that_came_are_named() -> None:
    """Five at most, and only if they missed a heartbeat interval and half of the phase."""
    context = Context()
    members = context.stable_group(10, session_ms=200_000)
    context.join(members[0])
    context.advance(400)
    context.join(members[1])
    for member in members[2:]:
        context.advance(1_500)
        context.join(member)
    context.sync(members[1], 2)
    context.advance(PROMPT_MS)
    context.sync(members[0], 2)
    late = context.rebalances()[0].late

    assert [(m.member_id, m.phase, m.waited_ms, m.removed) for m in late] == [
        (member, "join", 400 + 1_500 * n, False)
        for n, member in reversed(list(enumerate(members, start=-1))[-SLOWEST_MAX:])
    ]


def test_whoever_came_in_the_first_half_is_not_late() -> None:
    """The phase was long because of others."""
    context = Context()
    members = context.stable_group(3, session_ms=200_000)
    for member, then_ms in zip(members, (5_000, 6_000, 0), strict=True):
        context.join(member)
        context.advance(then_ms)
    context.sync_all(members)

    assert [m.member_id for m in context.rebalances()[0].late] == [members[2]]


@pytest.mark.parametrize(
    ("session_ms", "prompt_ms"), [(SESSION_MS, PROMPT_MS), (45_000, PROMPT_MS), (6_000, 3_000)]
)
@pytest.mark.parametrize("over_ms", [0, 1])
def test_a_member_that_came_by_its_next_heartbeat_is_not_late(
    session_ms: int, prompt_ms: int, over_ms: int
) -> None:
    """A heartbeat is how a member hears of a rebalance; a second is left for it to come then."""
    context = Context()
    leader, other = context.stable_group(2, session_ms=session_ms)
    context.join(leader, reason="new config", session_ms=session_ms)
    context.advance(prompt_ms + over_ms)
    context.join(other, session_ms=session_ms)
    context.sync_all([leader, other])
    rebalance = context.rebalances()[0]

    assert rebalance.join_ms == prompt_ms + over_ms
    assert [late.member_id for late in rebalance.late] == [other] * over_ms


def test_a_member_whose_session_ends_while_all_wait_for_it_is_named() -> None:
    """One was killed, another took its place at once: what took so long is asked afterwards."""
    context = Context()
    alive, killed = context.stable_group(2, session_ms=45_000)
    context.advance(1_000)
    new = context.new_id(client_id="spark2")
    context.join(new, client_id="spark2", session_ms=45_000)
    context.advance(2_000)
    context.join(alive, session_ms=45_000)
    context.advance(42_000)
    context.sync_all([alive, new])
    rebalance = context.rebalances()[0]

    assert (rebalance.trigger, rebalance.join_ms) == ("member joined", 44_000)
    assert rebalance.late == (
        LateMember(killed, "spark1", "10.0.0.1", "join", 44_000, removed=True),
    )


def test_a_leader_whose_session_ends_before_it_assigns_is_named() -> None:
    """The others waited for its assignment; the next rebalance has another cause."""
    context = Context()
    leader, follower = context.completing_group(2)
    context.sync(follower, 1)
    context.advance(SESSION_MS)
    context.join(follower)
    context.sync_all([follower])
    after, spoiled = context.rebalances()

    assert (after.trigger, spoiled.outcome) == ("session expired", "overtaken")
    assert spoiled.late == (
        LateMember(leader, "spark0", "10.0.0.1", "sync", SESSION_MS, removed=True),
    )


def test_a_member_that_leaves_while_it_waits_for_its_assignment_is_not_late() -> None:
    """It had asked for it: the others wait for the leader."""
    context = Context()
    leader, follower = context.completing_group(2, session_ms=200_000)
    context.sync(follower, 1)
    context.advance(REBALANCE_MS - 1)
    context.leave(follower)
    context.join(leader)
    context.sync_all([leader])

    assert [one.late for one in context.rebalances()] == [(), ()]


def test_a_client_that_took_an_id_and_never_joined_with_it_is_named() -> None:
    """Its place is kept until its session ends, and the others wait for it."""
    context = Context()
    (member,) = context.stable_group(1)
    pending = context.new_id(client_id="gone", host="10.0.0.9")
    context.join(member, reason="new config")
    context.advance(SESSION_MS)
    context.sync_all([member])

    assert context.rebalances()[0].late == (
        LateMember(pending, "gone", "10.0.0.9", "join", SESSION_MS, removed=True),
    )


def test_a_member_that_was_taken_out_while_all_waited_for_it_is_named() -> None:
    """By an operator who didn't want to wait for its session; one that leaves at once is not."""
    context = Context()
    leader, quick, hung = context.stable_group(3, session_ms=200_000)
    context.join(leader, reason="new config")
    context.advance(PROMPT_MS)
    context.leave(quick)
    context.advance(1_000)
    context.leave(hung)
    context.sync_all([leader])

    assert context.rebalances()[0].late == (
        LateMember(hung, "spark2", "10.0.0.1", "join", PROMPT_MS + 1_000, removed=True),
    )


Fate = tuple[str, int]


@given(
    st.lists(
        st.tuples(st.sampled_from(["comes", "leaves", "is killed"]), st.integers(0, 40_000)),
        min_size=1,
        max_size=6,
    )
)
def test_every_member_that_was_waited_for_and_no_other_is_named(fates: list[Fate]) -> None:
    """Whatever became of the members when another one joined."""
    session_ms = 30_000
    context = Context()
    members = context.stable_group(len(fates) + 1, session_ms=session_ms)
    leader, fated = members[0], dict(zip(members[1:], fates, strict=True))
    began_ms = context.mono_ms
    context.join(leader, reason="new config", session_ms=session_ms)
    gone_ms = {session_ms if fate == "is killed" else at_ms for fate, at_ms in fates}
    last_ms = max(gone_ms)
    for now_ms in sorted({*range(0, last_ms, 2_000), *gone_ms}):
        context.advance(began_ms + now_ms - context.mono_ms)
        for member, (fate, at_ms) in fated.items():
            if fate != "is killed" and now_ms < at_ms:
                context.beat(member, 1)
            elif fate == "comes" and now_ms == at_ms:
                context.join(member, session_ms=session_ms)
            elif fate == "leaves" and now_ms == at_ms:
                context.leave(member)
    stayed = [leader, *(member for member, (fate, _) in fated.items() if fate == "comes")]
    context.sync_all(stayed)
    rebalance = context.rebalances()[0]
    named = {(one.member_id, one.waited_ms, one.removed) for one in rebalance.late}
    expected = set()
    for member, (fate, at_ms) in fated.items():
        if fate == "is killed":
            expected.add((member, session_ms, True))
        elif at_ms > PROMPT_MS and (fate == "leaves" or 2 * at_ms >= last_ms):
            expected.add((member, at_ms, fate == "leaves"))
    came = sorted((one for one in expected if not one[2]), key=lambda one: -one[1])

    assert (rebalance.outcome, rebalance.join_ms) == ("stable", last_ms)
    assert len(named) == len(rebalance.late)
    assert {one for one in named if one[2]} == {one for one in expected if one[2]}
    assert [one.waited_ms for one in rebalance.late if not one.removed] == [
        waited_ms for _, waited_ms, _ in came[:SLOWEST_MAX]
    ]


def test_members_that_come_in_the_initial_delay_are_not_late() -> None:
    """Nobody waited for them."""
    context = Context()
    first = context.join(context.new_id())
    for _ in range(2):  # The last one comes after more than half of what the first one waits.
        context.advance(DELAY_MS - 500)
        context.join(context.new_id())
    context.advance(DELAY_MS + 1_000)
    context.sync_all([context.joined(first).member_id])

    assert (context.rebalances()[0].join_ms, context.rebalances()[0].late) == (3 * DELAY_MS, ())


def test_a_crowd_that_is_late_is_not_listed_in_full() -> None:
    """The record has to stay small."""
    context = Context()
    members = context.stable_group(40, session_ms=200_000)
    context.join(members[0])
    context.advance(REBALANCE_MS)
    context.sync_all([members[0]])

    assert len(context.rebalances()[0].late) == REMOVED_MAX


def test_a_group_that_everybody_left_has_a_last_rebalance() -> None:
    """It ends Empty."""
    context = Context()
    members = context.stable_group(2)
    context.leave(*members)
    last = context.rebalances()[0]

    assert (last.trigger, last.outcome, last.new_generation, last.members) == (
        "member left",
        "empty",
        2,
        0,
    )


def test_the_history_is_there_after_a_crash_and_goes_on() -> None:
    """Why it rebalanced at three is asked in the morning."""
    context = Context()
    members = context.stable_group(2)
    before = context.rebalances()
    context.crash()

    assert before == context.rebalances()

    rebalance_all(context, members)

    assert [r.number for r in context.rebalances()] == [2, 1]


def test_a_rebalance_that_a_crash_cut_short_is_told_by_the_next() -> None:
    """Its own record was not written; that members must rejoin needs a reason."""
    context = Context()
    members = context.stable_group(2)
    for member in members:
        context.join(member)
    context.crash()
    rebalance_all(context, members)
    last = context.rebalances()[0]

    assert (last.number, last.trigger) == (2, "generation was never assigned")
    assert last.reason == "restarted at generation 2, which was told but never assigned"
    assert (last.old_generation, last.new_generation) == (2, 3)


def test_the_last_hundred_are_kept() -> None:
    """In memory as in the log, where each takes the place of the one a hundred before."""
    context = Context()
    members = context.stable_group(1)
    for _ in range(REBALANCES_KEPT + 20):
        rebalance_all(context, members)
    numbers = [r.number for r in context.rebalances(1_000)]

    assert numbers == list(range(REBALANCES_KEPT + 21, 21, -1))
    assert [r.number for r in context.rebalances(2)] == numbers[:2]
    assert context.rebalances(0) == ()

    context.crash()

    assert numbers == [r.number for r in context.rebalances(1_000)]


def test_the_record_is_in_the_batch_that_ends_the_rebalance() -> None:
    """Whoever sees the stable group sees why."""
    context = Context()
    (member,) = context.completing_group(1)
    before = len(context.records)
    context.sync(member, 1)
    kinds = [type(record) for record in context.records[before:]]

    assert kinds[-1] is GroupRebalanced
    assert len(kinds) == 2
    (event,) = context.events_named("group.rebalanced")
    assert event == {"group": GROUP} | structs.asdict(context.rebalances()[0]) | {"late": []}


def test_a_deleted_group_has_no_history() -> None:
    """A group of that name starts anew."""
    context = Context()
    context.leave(*context.stable_group(1))
    context.take(context.shard.delete_group(GROUP, context.now)[0])
    response = context.shard.describe_rebalances(DescribeRebalancesRequest(GROUP, 10))

    assert response == DescribeRebalancesResponse(69, "Group etl not found.", GROUP, ())

    context.stable_group(1)

    assert [r.number for r in context.rebalances()] == [1]


# --- errors in words ------------------------------------------------------------------------


def test_a_member_that_is_gone_is_told_what_became_of_it() -> None:
    """By the next request that it sends."""
    context = Context()
    members = context.stable_group(3)
    context.left(LeavingMember(members[2], None, "shutting down"))
    lose_a_session(context, members)

    gone = context.beaten(members[1], 1)
    assert gone.error == 25
    assert gone.message == (
        f"member {members[1]} is gone: no heartbeat for 10.0 s, session timeout 10.0 s"
    )
    left = context.synced(context.sync(members[2], 1))
    assert left.message == f"member {members[2]} is gone: left: shutting down"
    assert context.beaten("nobody", 1).message == "the group knows no member 'nobody'"
    assert context.beaten(members[0], 1, "other").message == "there is no such group"


def test_so_many_that_are_gone_are_remembered() -> None:
    """Memory is bounded, and a crash forgets them."""
    context = Context()
    keeper = context.stable_group(1)[0]
    gone = []
    for _ in range(101):
        gone.append(context.new_id())
        context.join(gone[-1])
        context.leave(gone[-1])

    assert context.beaten(gone[0], 1).message == f"the group knows no member {gone[0]!r}"
    assert "is gone: left" in (context.beaten(gone[1], 1).message or "")

    context.crash()

    assert context.beaten(gone[1], 1).message == f"the group knows no member {gone[1]!r}"
    assert context.beaten(keeper, 1).message is None


def test_another_generation_is_told_with_both_numbers() -> None:
    """The measured gap."""
    context = Context()
    members = context.stable_group(1)
    rebalance_all(context, members)

    assert context.beaten(members[0], 1).message == "generation 1 is over, the group is at 2"
    assert context.synced(context.sync(members[0], 3)).message == (
        "generation 3 has not begun, the group is at 2"
    )


def test_27_tells_why_the_group_rebalances() -> None:
    """'The group is rebalancing' is what users of Kafka curse."""
    context = Context()
    leader, follower, other = context.completing_group(3)
    parked = context.sync(follower, 1)
    context.left(LeavingMember(other, None, "shutting down"))

    assert context.synced(parked).message == "rebalancing for 0.0 s: left: shutting down"

    context.advance(1_250)
    late = context.synced(context.sync(leader, 1))

    assert (late.error, late.message) == (27, "rebalancing for 1.2 s: left: shutting down")


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"protocol_type": "connect"}, 23, "protocol type 'connect', the group has 'consumer'"),
        ({"protocols": {"x": b"", "y": b""}}, 23, "protocols x, y; all members support range"),
    ],
)
def test_a_refused_join_says_what_would_be_accepted(
    kwargs: dict[str, Any], error: int, message: str
) -> None:
    """Both sides of the disagreement."""
    context = Context()
    context.stable_group(1)
    response = context.joined(context.join(**kwargs))

    assert (response.error, response.message) == (error, message)


def test_answers_that_are_fine_say_nothing() -> None:
    """They are the hot path."""
    context = Context()
    (member,) = context.stable_group(1)

    assert context.beaten(member, 1).message is None
    assert context.joined(context.join()).message is None  # 79: it has its id.
    assert context.synced(context.sync(member, 1)).message is None

    context.join(context.new_id())

    assert context.beaten(member, 1) == HeartbeatResponse(27)
    assert assignment("flights-0") == context.describe().members[0].assignment
