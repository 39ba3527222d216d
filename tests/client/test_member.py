"""A member from joining to leaving: over the wire, static, by a pattern, and how its life ends."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from client import (
    Assignment,
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OffsetAndMetadata,
    Rebalanced,
    TopicPartition,
)
from client.api import LEAVE_TIMEOUT_MS
from client.assignors import AssignmentWarning
from protocol import consumer, messages as m
from protocol.messages import ApiKey
from tests.client.conftest import World
from tests.fakes.scripted_server import MEMBER_ID, Answer, Hang, Hold, group_requests

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_heartbeats_go_on_while_the_caller_works(
    autojump_clock: MockClock, world: World
) -> None:
    """A batch may take longer than the session."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 1}, session_timeout_ms=6_000) as member,
    ):
        await member.assignment()
        await trio.sleep(60)
        await member.commit({T0: 1})

    beats = [s.at_s for s in world.server.seen if isinstance(s.request, m.HeartbeatRequest)]
    assert {2.0} == {round(after - before, 2) for before, after in pairwise(beats)}
    assert 29 <= len(beats) <= 30


async def test_a_parked_join_holds_up_nobody_on_the_connection(
    autojump_clock: MockClock, world: World
) -> None:
    """Another member's heartbeats and commits share the connection with it."""
    parked = trio.Event()
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 1}) as one,
        client.join("h", ["t"], {"t": 1}) as two,
    ):
        await one.assignment()
        async with trio.open_nursery() as nursery:
            world.server.script(m.JoinGroupRequest, Hold(parked))
            nursery.start_soon(two.assignment)
            await trio.sleep(100)
            await one.commit({T0: 1})

            assert trio.current_time() == 100
            assert len(world.server.requests(m.HeartbeatRequest)) > 30

            parked.set()

    assert world.server.connections == 1


async def test_a_rebalance_is_followed_when_the_caller_asks(
    autojump_clock: MockClock, world: World
) -> None:
    """Between the news and the call, the partitions are still ours and commits count."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.HeartbeatRequest, 27)
        await member.wait_rebalance_needed()

        assert (member.rebalance_needed, member.lost) == (True, False)

        await member.commit({T0: 1})

        assert (await member.assignment()).generation == 2
        assert (member.rebalance_needed, member.lost) == (False, False)


@pytest.mark.parametrize(
    ("code", "error", "next_id"),
    [
        (22, Rebalanced, MEMBER_ID),
        (27, Rebalanced, MEMBER_ID),
        (25, MemberLost, ""),
        (69, MemberLost, ""),
    ],
)
async def test_a_refused_commit_says_what_to_do(
    autojump_clock: MockClock,
    world: World,
    code: int,
    error: type[Rebalanced],
    next_id: str,
) -> None:
    """The next assignment() does it."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, code)
        with pytest.raises(error) as caught:
            await member.commit({T0: 1})

        assert error is type(caught.value)
        assert member.rebalance_needed
        assert (code != 27) == member.lost

        before = len(world.server.requests(m.JoinGroupRequest))
        await member.assignment()
        request = world.server.requests(m.JoinGroupRequest)[before]

        assert isinstance(request, m.JoinGroupRequest)
        assert next_id == request.member_id
        await member.commit({T0: 1})


async def test_a_late_refusal_of_the_old_generation_disturbs_nobody(
    autojump_clock: MockClock, world: World
) -> None:
    """The commit fails, but the new generation that was joined meanwhile stands."""
    held = trio.Event()
    refused = m.OffsetCommitResponse(22, ())
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hold(held, refused))
        outcome: list[type] = []

        async def commit() -> None:
            try:
                await member.commit({T0: 1})
            except Rebalanced as exc:
                outcome.append(type(exc))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            await member.request_rejoin("test")
            await member.assignment()
            held.set()

        assert [Rebalanced] == outcome
        assert (member.generation, member.rebalance_needed, member.lost) == (2, False, False)


async def test_a_fenced_member_stays_out(autojump_clock: MockClock, world: World) -> None:
    """Joining again would fence the other one, and so on for ever."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.HeartbeatRequest, 82)
        await member.wait_rebalance_needed()
        for _ in range(2):
            with pytest.raises(FatalError, match="FENCED_INSTANCE_ID"):
                await member.assignment()
        with pytest.raises(FatalError):
            await member.commit({T0: 1})

    assert len(world.server.requests(m.JoinGroupRequest)) == 2


async def test_two_tasks_that_ask_get_the_same_assignment(
    autojump_clock: MockClock, world: World
) -> None:
    """One join serves both."""
    got: list[Assignment] = []
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:

        async def ask() -> None:
            got.append(await member.assignment())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)

    assert got[0] is got[1]
    assert len(world.server.requests(m.JoinGroupRequest)) == 2


async def test_giving_up_on_waiting_does_not_give_up_the_join(
    autojump_clock: MockClock, world: World
) -> None:
    """A driver looks in between for what else it has to do."""
    parked = trio.Event()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        world.server.script(m.JoinGroupRequest, Hold(parked))
        with trio.move_on_after(5) as scope:
            await member.assignment()

        assert scope.cancelled_caught

        parked.set()
        await trio.sleep(5)

        assert not member.rebalance_needed
        assert (await member.assignment()).generation == 1
        assert trio.current_time() == 5 + 5


async def test_a_coordinator_that_is_away_while_joining_is_an_error_that_passes(
    autojump_clock: MockClock, world: World
) -> None:
    """The same member joins when it is back."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, request_timeout_ms=3_000) as member,
    ):
        world.server.script(m.JoinGroupRequest, *[15] * 30)
        with pytest.raises(CoordinatorUnavailable):
            await member.assignment()

        assert trio.current_time() <= 3

        world.server.forget_script()

        assert (await member.assignment()).generation == 1


async def test_joins_that_come_to_nothing_are_paused_between(
    autojump_clock: MockClock, world: World
) -> None:
    """A client and a server that disagree must not spin."""
    world.server.script(m.JoinGroupRequest, *[25] * 8)
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()

    assert trio.current_time() >= 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1 + 1


async def test_partitions_may_come_from_an_async_function(
    autojump_clock: MockClock, world: World
) -> None:
    """Listing them may take long; heartbeats go on meanwhile."""

    async def partitions(topic: str) -> list[int]:
        await trio.sleep(10)
        return [4, 2, 4]

    async with world.connect() as client, client.join("g", ["t"], partitions) as member:
        assignment = await member.assignment()

        assert (TopicPartition("t", 2), TopicPartition("t", 4)) == assignment.partitions

    assert len(world.server.requests(m.HeartbeatRequest)) == 3


async def test_a_member_joins_commits_fetches_and_leaves(
    autojump_clock: MockClock, world: World
) -> None:
    """The whole life once: it is what the README's example does."""
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}) as member:
            assignment = await member.assignment()

            assert Assignment(1, MEMBER_ID, (T0, T1), is_leader=True) == assignment

            await member.commit({T0: 5, T1: OffsetAndMetadata(7, "pin")})

            assert {
                T0: OffsetAndMetadata(5),
                T1: OffsetAndMetadata(7, "pin"),
            } == await member.fetch()

        assert client.cluster_id == "scripted-cluster"

    assert group_requests(world.server) == [
        "JoinGroup",
        "JoinGroup",
        "RegisterTopics",
        "SyncGroup",
        "OffsetCommit",
        "OffsetFetch",
        "LeaveGroup",
    ]


async def test_commits_of_one_partition_wait_for_each_other(
    autojump_clock: MockClock, world: World
) -> None:
    """Two in flight could be stored in either order once a connection breaks between them."""
    held = trio.Event()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hold(held))
        async with trio.open_nursery() as nursery:
            for offset in range(1, 6):
                nursery.start_soon(member.commit, {T0: offset})
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(member.commit, {T1: 9})
            await trio.testing.wait_all_tasks_blocked()

            assert len(world.server.requests(m.OffsetCommitRequest)) == 2

            held.set()

    offsets = [
        request.topics[0].partitions[0].offset
        for request in world.server.requests(m.OffsetCommitRequest)
        if isinstance(request, m.OffsetCommitRequest)
    ]
    assert offsets == [1, 9, 2, 3, 4, 5]


async def test_without_an_assignment_nothing_is_sent(
    autojump_clock: MockClock, world: World
) -> None:
    """The coordinator would refuse it, too; this way it is surely not stored."""
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}) as member:
            with pytest.raises(Rebalanced, match="no assignment now"):
                await member.commit({T0: 1})
            await member.assignment()
            world.server.script(m.HeartbeatRequest, 25)
            await member.wait_rebalance_needed()
            with pytest.raises(MemberLost):
                await member.commit({T0: 1})
        with pytest.raises(ClientClosed):
            await member.commit({T0: 1})

    assert world.server.requests(m.OffsetCommitRequest) == []


async def test_the_callers_own_exception_comes_back_unwrapped(
    autojump_clock: MockClock, world: World
) -> None:
    """From the partitions function, and from the block."""

    def partitions(topic: str) -> list[int]:
        raise LookupError(topic)

    with pytest.raises(LookupError, match="t"):
        async with world.connect() as client, client.join("g", ["t"], partitions) as member:
            await member.assignment()

    assert len(world.server.requests(m.LeaveGroupRequest)) == 1


async def test_leaving_is_bounded(autojump_clock: MockClock, world: World) -> None:
    """A program that ends must not hang because the coordinator does."""
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}) as member:
            await member.assignment()
            world.server.script(m.LeaveGroupRequest, Hang())
            began_s = trio.current_time()

        assert trio.current_time() - began_s == LEAVE_TIMEOUT_MS / 1000
        assert not await member.leave()


async def test_a_cancelled_block_still_leaves(autojump_clock: MockClock, world: World) -> None:
    """Control-C is the usual end of a consumer."""
    with trio.move_on_after(5):
        async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
            await member.assignment()
            await trio.sleep_forever()

    assert len(world.server.requests(m.LeaveGroupRequest)) == 1
    assert world.server.open_connections == 0


async def test_closing_the_client_leaves_every_group(
    autojump_clock: MockClock, world: World
) -> None:
    """All at the same time, so that many members don't take many seconds."""
    async with world.connect() as client:
        for group in ["g", "h", "i"]:
            member = await client.join(group, ["t"], {"t": 2}).__aenter__()
            await member.assignment()
        world.server.script(m.LeaveGroupRequest, Hang(), Hang(), Hang())
        began_s = trio.current_time()

    assert trio.current_time() - began_s == LEAVE_TIMEOUT_MS / 1000
    assert len(world.server.requests(m.LeaveGroupRequest)) == 3


async def test_a_closed_client_says_so(autojump_clock: MockClock, world: World) -> None:
    """Not "unavailable": trying again won't help."""
    async with world.connect() as client:
        member = client.join("g", ["t"], {"t": 2})
        with pytest.raises(RuntimeError, match="async with"):
            await member.assignment()
    with pytest.raises(ClientClosed):
        await client.list_groups()
    with pytest.raises(ClientClosed):
        async with client.join("g", ["t"], {"t": 2}):
            pass


async def test_arguments_that_make_no_sense_are_refused_at_once(
    autojump_clock: MockClock, world: World
) -> None:
    """Not by a rebalance later."""
    async with world.connect() as client:
        with pytest.raises(ValueError, match="topics"):
            client.join("g", "flights", {})
        with pytest.raises(ValueError, match="topics"):
            client.join("g", [], {})
        with pytest.raises(ValueError, match="assignor"):
            client.join("g", ["t"], {}, assignors=())


async def test_a_commit_waits_for_its_turn_no_longer_than_it_may(
    autojump_clock: MockClock, world: World
) -> None:
    """An earlier commit that can't get through must not hold this one beyond its own time."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hang())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.commit, {T0: 1})
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(CoordinatorUnavailable, match="earlier commit"):
                await member.commit({T0: 2}, timeout_ms=3_000)

            assert trio.current_time() == 3

        assert await member.fetch() == {T0: OffsetAndMetadata(1)}
        assert await member.fetch([]) == {}


async def test_a_refusal_after_leaving_changes_nothing(
    autojump_clock: MockClock, world: World
) -> None:
    """The member is gone whatever a late answer says."""
    held = trio.Event()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hold(held, m.OffsetCommitResponse(82, ())))
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                with pytest.raises(FatalError, match="FENCED"):
                    await member.commit({T0: 1})

            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            await member.leave()
            held.set()

        with pytest.raises(ClientClosed):
            await member.assignment()


def joins(world: World) -> list[m.JoinGroupRequest]:
    """Return the JoinGroup requests that came."""
    return [r for r in world.server.requests() if isinstance(r, m.JoinGroupRequest)]


def subscription(request: m.JoinGroupRequest) -> consumer.Subscription:
    """Return what it subscribes to with its first assignor."""
    decoded = consumer.decode_subscription(request.protocols[0].metadata)
    assert decoded is not None
    return decoded


def register(world: World, **topics: int) -> None:
    """Make topics known."""
    for name, count in topics.items():
        hosts = (m.PartitionHosts(0, ("h1",)),)
        world.server.topics[name] = m.TopicRegistration(name, count, hosts)


@pytest.mark.parametrize("how", ["the block ends", "it leaves"])
async def test_a_static_member_keeps_its_place_when_it_ends(
    autojump_clock: MockClock, world: World, how: str
) -> None:
    """It is restarted soon, and nobody wants a rebalance for that."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, group_instance_id="i1") as member,
    ):
        await member.assignment()
        if how == "it leaves":
            assert not await member.leave("a restart")

    assert {"i1"} == {request.group_instance_id for request in joins(world)}
    assert world.server.requests(m.LeaveGroupRequest) == []


async def test_a_static_member_leaves_for_good_if_told_so(
    autojump_clock: MockClock, world: World
) -> None:
    """It won't come back, so that the others needn't wait for its session."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, group_instance_id="i1") as member,
    ):
        await member.assignment()

        assert await member.leave("scaled in", remove=True)

    (request,) = world.server.requests(m.LeaveGroupRequest)
    assert isinstance(request, m.LeaveGroupRequest)
    assert request.members == (m.LeavingMember("client-1", "i1", "scaled in"),)


async def test_a_fenced_instance_says_who_has_its_name(
    autojump_clock: MockClock, world: World
) -> None:
    """The usual cause is two programs with the same setting: it must say which."""
    message = "instance id 'i1' is held by member i1-7 (client two) from host 192.0.2.9"
    fenced = Answer(m.OffsetCommitResponse(82, (), message))
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, group_instance_id="i1") as member,
    ):
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, fenced)
        for call in (lambda: member.commit({T0: 1}), member.assignment, member.commit):
            with pytest.raises(FatalError, match=r"held by member i1-7 .* from host 192\.0\.2\.9"):
                await call()


async def test_a_pattern_is_resolved_before_every_join(
    autojump_clock: MockClock, world: World
) -> None:
    """The coordinator compares it with what it knows; clients never evaluate patterns."""
    register(world, t1=1, t2=2, u=1)
    async with world.connect() as client, client.join("g", pattern="t[0-9]") as member:
        assert (await member.assignment()).partitions == (("t1", 0), ("t2", 0), ("t2", 1))

        register(world, t3=1)
        await member.request_rejoin("test")
        assignment = await member.assignment()

        assert TopicPartition("t3", 0) in assignment.partitions

    first, *_, last = joins(world)
    assert (first.topic_pattern, subscription(first).topics) == ("t[0-9]", ("t1", "t2"))
    assert subscription(last).topics == ("t1", "t2", "t3")


async def test_a_member_can_change_what_it_reads(autojump_clock: MockClock, world: World) -> None:
    """For programs that find out themselves which topics there are."""
    register(world, t1=1, t2=2)
    async with world.connect() as client, client.join("g", ["t1"]) as member:
        await member.assignment()

        await member.request_rejoin("one more", ["t2", "t1"])
        more = await member.assignment()
        await member.request_rejoin("as before")
        again = await member.assignment()

    assert {tp.topic for tp in more.partitions} == {"t1", "t2"}
    assert again.partitions == more.partitions
    assert [subscription(one).topics for one in joins(world)][-2:] == [("t1", "t2")] * 2


async def test_what_matches_a_pattern_is_not_for_the_caller_to_say(
    autojump_clock: MockClock, world: World
) -> None:
    """The next join would ask the registry again, and forget what was said."""
    async with world.connect() as client, client.join("g", pattern="t") as member:
        with pytest.raises(ValueError, match="pattern"):
            await member.request_rejoin("one more", ["u"])


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        (ApiKey.DESCRIBE_TOPICS, "DESCRIBE_TOPICS not at all"),
        (None, "JOIN_GROUP .* needs version 1"),
    ],
)
async def test_a_server_without_patterns_is_told_apart(
    autojump_clock: MockClock, world: World, removed: ApiKey | None, named: str
) -> None:
    """Joining without the pattern would look fine and never see a new topic."""
    world.server.versions[ApiKey.JOIN_GROUP] = (0, 0)
    if removed is not None:
        del world.server.versions[removed]
    async with world.connect() as client, client.join("g", pattern="t") as member:
        with pytest.raises(FatalError, match=named):
            await member.assignment()

    assert joins(world) == []


async def test_an_old_server_still_serves_members_without_a_pattern(
    autojump_clock: MockClock, world: World
) -> None:
    """Version 0 has all that they need."""
    for key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP):
        world.server.versions[key] = (0, 0)
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        await trio.sleep(10)

        assert not member.rebalance_needed


async def test_a_pattern_that_is_none_is_an_error_at_once(
    autojump_clock: MockClock, world: World
) -> None:
    """With what the coordinator's parser said."""
    refused = m.DescribeTopicsResponse(128, "missing ]: [a-", (), has_more=False)
    world.server.script(m.DescribeTopicsRequest, Answer(refused))
    async with world.connect() as client, client.join("g", pattern="[a-") as member:
        for _ in range(2):
            with pytest.raises(FatalError, match=r"missing \]"):
                await member.assignment()

    assert len(world.server.requests(m.DescribeTopicsRequest)) == 1


async def test_the_leader_asks_the_registry_where_the_caller_knows_no_partitions(
    autojump_clock: MockClock, world: World
) -> None:
    """Whoever knows the source has registered it."""
    register(world, t=2)
    async with world.connect() as client, client.join("g", ["t"]) as member:
        assert (await member.assignment()).partitions == (T0, T1)


async def test_a_topic_that_is_not_registered_has_no_partitions(
    autojump_clock: MockClock, world: World
) -> None:
    """It may be registered any moment; until then a warning says why nothing is read."""
    async with world.connect() as client, client.join("g", ["t"]) as member:
        with pytest.warns(AssignmentWarning, match="'t'.*no partitions"):
            assignment = await member.assignment()

        assert assignment.partitions == ()


async def test_host_and_the_past_travel_with_the_subscription(
    autojump_clock: MockClock, world: World
) -> None:
    """The leader places by host; an eager member claims nothing, as it gave everything up."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, host="h1") as member,
    ):
        await member.assignment()
        await member.request_rejoin("test")
        await member.assignment()

    first, _, last = joins(world)
    assert (subscription(last).rack_id, subscription(last).owned_partitions) == ("h1", ())
    assert first.protocols != last.protocols  # Or a follower would get its old assignment back.
