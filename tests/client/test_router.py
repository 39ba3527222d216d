"""Finding the coordinator, and retries inside a deadline. The clock is virtual."""

import random
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from client import CoordinatorUnavailable, ErrorCode, FatalError, OffsetAndMetadata, TopicPartition
from client.backoff import backoff
from protocol import messages as m
from protocol.messages import APIS, ApiKey
from tests.client.conftest import World
from tests.fakes.scripted_server import Answer, Drop, Hang, Raw

T0 = TopicPartition("t", 0)
COMMITTED = m.OffsetCommitResponse(0, (m.TopicResult("t", (m.PartitionResult(0, 0),)),))


def times_s(world: World, kind: type) -> list[float]:
    """Return when requests of *kind* came to the first node."""
    return [seen.at_s for seen in world.server.seen if type(seen.request) is kind]


def test_pauses_double_up_to_a_limit_with_jitter_over_the_upper_half() -> None:
    """Never no pause at all, and never all clients at once."""
    rng = random.Random(1)
    for failures, full_ms in [(1, 100), (2, 200), (5, 1_600), (6, 2_000), (10_000, 2_000)]:
        pauses = {backoff(failures, 100, 2_000, rng) for _ in range(50)}

        assert full_ms / 2 <= min(pauses) < max(pauses) <= full_ms
        assert backoff(failures, 100, 2_000) == full_ms


async def test_the_coordinator_is_found_once_and_remembered(
    autojump_clock: MockClock, world: World
) -> None:
    """A question before every commit would double the load."""
    world.server.coordinator = world.other.address
    async with world.connect() as client:
        for offset in range(3):
            await client.commit("g", {T0: offset})

    assert len(world.server.requests(m.FindCoordinatorRequest)) == 1
    assert len(world.other.requests(m.OffsetCommitRequest)) == 3


@pytest.mark.parametrize("code", [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR])
async def test_a_group_that_moved_is_found_again(
    autojump_clock: MockClock, world: World, code: ErrorCode
) -> None:
    """15 and 16 say: not here, ask anew."""
    async with world.connect() as client:
        await client.commit("g", {T0: 1})
        world.server.coordinator = world.other.address
        world.server.script(m.OffsetCommitRequest, code)
        await client.commit("g", {T0: 2})

    assert len(world.server.requests(m.FindCoordinatorRequest)) == 2
    assert len(world.other.requests(m.OffsetCommitRequest)) == 1


async def test_a_coordinator_that_knows_groups_only_has_the_topics_too(
    autojump_clock: MockClock, world: World
) -> None:
    """One of an older release is one alone, and refuses the question."""
    refused = m.FindCoordinatorResponse(
        (m.find_coordinator_error("", ErrorCode.INVALID_REQUEST, "key type 1 is not known"),)
    )
    world.server.script(m.FindCoordinatorRequest, Answer(refused))
    async with world.connect() as client:
        await client.register_topics({"t": 1})
        await client.register_topics({"t": 2})

    assert len(world.server.requests(m.RegisterTopicsRequest)) == 2


async def test_after_a_doubt_the_coordinator_is_found_again(
    autojump_clock: MockClock, world: World
) -> None:
    """Its log is slow, or is another node's by now, which it can't know."""
    async with world.connect() as client:
        await client.commit("g", {T0: 1})
        world.server.coordinator = world.other.address
        world.server.script(m.OffsetCommitRequest, ErrorCode.OUTCOME_UNKNOWN)
        await client.commit("g", {T0: 2})

    assert len(world.other.requests(m.OffsetCommitRequest)) == 1


async def test_who_does_not_know_is_the_last_to_be_asked_again(
    autojump_clock: MockClock, world: World
) -> None:
    """It may be cut off from its cluster for long, and answers all the quicker."""
    unknown = m.find_coordinator_error("g", ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
    world.server.script(
        m.FindCoordinatorRequest, *[Answer(m.FindCoordinatorResponse((unknown,)))] * 10
    )
    world.other.coordinator = world.other.address
    async with world.connect(["node1:9310", "node2:9310"]) as client:
        await client.commit("g", {T0: 1})

    assert len(world.server.requests(m.FindCoordinatorRequest)) == 1
    assert len(world.other.requests(m.OffsetCommitRequest)) == 1


async def test_a_loading_coordinator_is_asked_again_not_looked_for(
    autojump_clock: MockClock, world: World
) -> None:
    """After a restart the groups are there again within seconds."""
    world.server.script(m.OffsetFetchRequest, 14, 14, 14)
    async with world.connect() as client:
        assert await client.fetch_offsets("g") == {}

    assert len(world.server.requests(m.FindCoordinatorRequest)) == 1
    asked = times_s(world, m.OffsetFetchRequest)
    pauses = [after - before for before, after in pairwise(asked)]
    assert 0.05 <= pauses[0] <= 0.1
    assert 0.1 <= pauses[1] <= 0.2
    assert 0.2 <= pauses[2] <= 0.4


async def test_after_ten_seconds_of_loading_the_coordinator_is_found_again(
    autojump_clock: MockClock, world: World
) -> None:
    """A node that lost the partition may go on saying "loading" for ever."""
    world.server.script(m.OffsetFetchRequest, *[14] * 16)
    async with world.connect() as client:
        assert await client.fetch_offsets("g", timeout_ms=60_000) == {}

    first, second = times_s(world, m.FindCoordinatorRequest)
    assert 10 <= second - first <= 10 + 4.5


async def test_loading_beyond_the_deadline_says_that_nothing_was_applied(
    autojump_clock: MockClock, world: World
) -> None:
    """The caller may try again whenever it likes."""
    world.server.script(m.OffsetCommitRequest, *[14] * 100)
    async with world.connect(request_timeout_ms=5_000) as client:
        began_s = trio.current_time()
        with pytest.raises(CoordinatorUnavailable, match="LOAD_IN_PROGRESS"):
            await client.commit("g", {T0: 1})

        assert trio.current_time() - began_s <= 5

    assert world.server.offsets == {}


async def test_an_answer_of_a_deposed_leader_is_refused(
    autojump_clock: MockClock, world: World
) -> None:
    """It may acknowledge what the new leader never sees."""
    world.server.script(
        m.OffsetCommitRequest,
        Answer(COMMITTED, leader_epoch=7),
        Answer(COMMITTED, leader_epoch=6),
        Answer(COMMITTED, leader_epoch=-1),
        Answer(COMMITTED, leader_epoch=7),
    )
    async with world.connect() as client:
        await client.commit("g", {T0: 1})
        await client.commit("g", {T0: 2})

        assert len(world.server.requests(m.OffsetCommitRequest)) == 3
        assert world.server.connections == 2
        assert len(world.server.requests(m.FindCoordinatorRequest)) == 2

        await client.commit("g", {T0: 3})


async def test_epochs_are_kept_per_group(autojump_clock: MockClock, world: World) -> None:
    """Groups live on different partitions, each with its own epoch."""
    world.server.script(
        m.OffsetCommitRequest,
        Answer(COMMITTED, leader_epoch=7),
        Answer(COMMITTED, leader_epoch=1),
    )
    async with world.connect() as client:
        await client.commit("g", {T0: 1})
        await client.commit("h", {T0: 1})

    assert len(world.server.requests(m.OffsetCommitRequest)) == 2


async def test_a_server_that_asks_for_a_pause_gets_it(
    autojump_clock: MockClock, world: World
) -> None:
    """throttle_time_ms is the server's only way to slow a client down kindly."""
    world.server.script(m.OffsetCommitRequest, Answer(COMMITTED, throttle_time_ms=3_000))
    async with world.connect() as client:
        await client.commit("g", {T0: 1})
        await client.fetch_offsets("g")

    (committed,), (fetched,) = (
        times_s(world, m.OffsetCommitRequest),
        times_s(world, m.OffsetFetchRequest),
    )
    assert pytest.approx(fetched - committed) == 3


async def test_a_pause_longer_than_the_deadline_ends_at_the_deadline(
    autojump_clock: MockClock, world: World
) -> None:
    """L4: every call ends in time."""
    world.server.script(m.OffsetCommitRequest, Answer(COMMITTED, throttle_time_ms=600_000))
    async with world.connect(request_timeout_ms=5_000) as client:
        await client.commit("g", {T0: 1})
        began_s = trio.current_time()
        with pytest.raises(CoordinatorUnavailable):
            await client.commit("g", {T0: 2})

        assert trio.current_time() - began_s <= 5


@pytest.mark.parametrize(
    "step",
    [
        Answer(COMMITTED, correlation_shift=100),
        Raw(b"\xff\xff\xff\xff"),
        Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Raw(b"\x00\x00\x00\x0c" + b"\x00" * 12),
        Answer(m.OffsetFetchResponse(())),
    ],
    ids=["correlation id", "oversize", "http", "empty body", "another response"],
)
async def test_an_answer_that_breaks_the_protocol_ends_the_connection(
    autojump_clock: MockClock, world: World, step: Answer | Raw
) -> None:
    """Nothing that comes behind it could be trusted; the request is repeated elsewhere."""
    world.server.script(m.OffsetFetchRequest, step)
    async with world.connect() as client:
        assert await client.fetch_offsets("g") == {}

    assert world.server.connections == 2


async def test_an_answer_about_another_group_ends_the_connection(
    autojump_clock: MockClock, world: World
) -> None:
    """Offsets of somebody else must never be taken for one's own."""
    stranger = m.OffsetFetchResponse((m.GroupOffsets("h", 0, ()),))
    world.server.script(m.OffsetFetchRequest, Answer(stranger))
    async with world.connect() as client:
        assert await client.fetch_offsets("g") == {}

    assert world.server.connections == 2


async def test_if_one_address_fails_the_others_are_tried(
    autojump_clock: MockClock, world: World
) -> None:
    """A list of addresses is for exactly that."""
    world.server.unreachable = True
    async with world.connect(["gone:1", "node1:9310", "node2:9310"]) as client:
        await client.list_groups()

    assert len(world.other.requests(m.ListGroupsRequest)) == 1


async def test_an_address_that_swallows_connections_does_not_eat_the_deadline(
    autojump_clock: MockClock,
    world: World,
) -> None:
    """A firewall that drops packets: the next address still gets its chance."""
    world.server.script(m.ApiVersionsRequest, *[Hang()] * 10)
    async with world.connect(["node1:9310", "node2:9310"]) as client:
        await client.list_groups()

        assert trio.current_time() <= 6


async def test_nobody_there_is_known_within_the_deadline(
    autojump_clock: MockClock, world: World
) -> None:
    """And every address is named."""
    with pytest.raises(CoordinatorUnavailable, match=r"gone:1 .*; gone:2 "):
        async with world.connect(["gone:1", "gone:2"], request_timeout_ms=4_000):
            pass

    assert 2 <= trio.current_time() <= 4
    assert len(world.network.asked) <= 20 * 4


async def test_a_coordinator_that_restarts_is_found_again(
    autojump_clock: MockClock, world: World
) -> None:
    """A deploy of the daemon is not an error of its clients."""
    async with world.connect() as client:
        await client.commit("g", {T0: 1})
        world.server.unreachable = True
        for stream in world.server.streams:
            await stream.aclose()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.commit, "g", {T0: 2})
            await trio.sleep(5)
            world.server.unreachable = False

        assert trio.current_time() <= 5 + 2.5

    assert {2} == {entry.offset for entry in world.server.offsets.values()}


async def test_who_leads_next_in_a_cluster_is_known_soon(
    autojump_clock: MockClock, world: World
) -> None:
    """Long pauses would come on top of the session that its nodes wait for."""
    async with world.connect() as client:
        world.server.coordinator = world.other.address
        world.other.unreachable = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.commit, "g", {T0: 1})
            await trio.sleep(7)
            world.server.coordinator = world.server.address

        assert trio.current_time() <= 7.4

    # From 0.2 to 0.4 s between them.
    assert 15 <= len(times_s(world, m.FindCoordinatorRequest)) <= 40


async def test_an_outage_is_no_storm(autojump_clock: MockClock, world: World) -> None:
    """At most 20 attempts a second from one client, even with several calls under way."""
    world.server.script(m.OffsetFetchRequest, *[14] * 1_000)
    async with world.connect(request_timeout_ms=30_000) as client:
        with pytest.raises(CoordinatorUnavailable):
            await client.fetch_offsets("g")

    assert len(world.server.requests(m.OffsetFetchRequest)) <= 30


async def test_old_servers_get_the_old_form_of_a_commit(
    autojump_clock: MockClock, world: World
) -> None:
    """Version 0 says everything as long as no offset is expected."""
    world.server.versions[ApiKey.OFFSET_COMMIT] = (0, 0)
    async with world.connect() as client:
        await client.commit("g", {T0: 1})
        with pytest.raises(FatalError, match="OFFSET_COMMIT only in versions") as caught:
            await client.commit("g", {T0: 2}, expected={T0: 1})

    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert [
        seen.api_version
        for seen in world.server.seen
        if isinstance(seen.request, m.OffsetCommitRequest)
    ] == [0]


async def test_a_server_without_a_request_is_named(autojump_clock: MockClock, world: World) -> None:
    """The message says which server lacks what."""
    del world.server.versions[ApiKey.DRAIN_MEMBER]
    async with world.connect() as client:
        with pytest.raises(FatalError, match="scripted/1 at node1:9310 answers DRAIN_MEMBER not"):
            await client.drain_member("g", "x")


async def test_a_drain_tries_for_as_long_as_it_may(autojump_clock: MockClock, world: World) -> None:
    """`drain_and_stop` has a deadline of its own, shorter than the request timeout."""
    world.server.script(m.DrainMemberRequest, *[14] * 1_000)
    async with world.connect() as client:
        started_s = trio.current_time()
        with pytest.raises(CoordinatorUnavailable):
            await client.drain_member("g", "x", timeout_ms=700)

    assert trio.current_time() - started_s <= 0.71


async def test_newer_servers_are_asked_in_the_versions_that_we_know(
    autojump_clock: MockClock, world: World
) -> None:
    """N+1 still speaks N."""
    world.server.versions[ApiKey.OFFSET_COMMIT] = (0, 9)
    async with world.connect() as client:
        await client.commit("g", {T0: 1})

    assert {APIS[ApiKey.OFFSET_COMMIT].max_version} == {
        seen.api_version
        for seen in world.server.seen
        if isinstance(seen.request, m.OffsetCommitRequest)
    }


async def test_a_server_that_refuses_the_greeting_is_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """Such as one that wants authentication, which this client doesn't know."""
    world.server.script(m.ApiVersionsRequest, Answer(m.BareError(42)))
    with pytest.raises(FatalError, match="refused ApiVersions"):
        async with world.connect():
            pass


async def test_whoever_speaks_something_else_is_no_coordinator(
    autojump_clock: MockClock, world: World
) -> None:
    """The port of HTTP is close by, and to wait would not make it another one."""
    world.server.script(m.ApiVersionsRequest, *[Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n")] * 9)
    with pytest.raises(FatalError, match=r"no coordinator is there: node1:9310: .*HTTP"):
        async with world.connect():
            pass

    assert world.server.connections == 1


async def test_a_coordinator_beside_a_stranger_is_waited_for(
    autojump_clock: MockClock, world: World
) -> None:
    """One wrong address in a list says nothing about the others."""
    world.server.script(m.ApiVersionsRequest, *[Raw(b"SSH-2.0-x\r\n")] * 9)
    world.other.script(m.ApiVersionsRequest, Drop())
    async with world.connect(["node1:9310", "node2:9310"]) as client:
        await client.list_groups()

    assert len(world.other.requests(m.ListGroupsRequest)) == 1


async def test_a_stranger_in_the_place_of_a_coordinator_is_an_outage(
    autojump_clock: MockClock, world: World
) -> None:
    """A proxy that says so itself while nobody is behind it must not end whoever is connected."""
    world.server.script(m.OffsetFetchRequest, Drop())
    async with world.connect() as client:
        world.server.script(m.ApiVersionsRequest, Raw(b"HTTP/1.1 503 Busy\r\n\r\n"))

        assert await client.fetch_offsets("g") == {}


async def test_the_greeting_comes_first_with_the_client_id(
    autojump_clock: MockClock, world: World
) -> None:
    """Member ids begin with it, and operators see it."""
    async with world.connect(client_id="driver-7"):
        pass

    (first, *_) = world.server.requests()
    assert isinstance(first, m.ApiVersionsRequest)
    assert first.client_id == "driver-7"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("a\nb", "it contains control characters"),
        ("x" * 256, "it is longer than 255 bytes"),
        ("\ud800", "it is no UTF-8"),
    ],
)
async def test_a_name_that_can_not_be_sent_is_refused_where_it_is_given(
    name: str, wrong: str, autojump_clock: MockClock, world: World
) -> None:
    """A place in a request and a regular expression told nobody which argument was meant."""
    with pytest.raises(ValueError, match=f"^client_id '.*is not legal: {wrong}") as caught:
        async with world.connect(client_id=name):
            pass
    assert len(str(caught.value)) < 200
    async with world.connect() as client:
        with pytest.raises(ValueError, match=f"^group_instance_id '.*is not legal: {wrong}"):
            async with client.join("g", ["t"], group_instance_id=name):
                pass
        with pytest.raises(ValueError, match=r"^topic '.*is not legal: "):
            client.join("g", [name])


async def test_a_request_that_the_server_would_not_take_is_not_sent(
    autojump_clock: MockClock, world: World
) -> None:
    """It would close the connection, for everybody who shares it."""
    world.server.max_request_bytes = 1_000
    async with world.connect() as client:
        with pytest.raises(FatalError, match="send less at a time"):
            await client.commit("g", {T0: OffsetAndMetadata(1, "x" * 2_000)})

        await client.commit("g", {T0: 1})

    assert world.server.connections == 1


async def test_names_that_break_the_protocol_never_leave(
    autojump_clock: MockClock, world: World
) -> None:
    """The message names the field; the connection is not harmed."""
    async with world.connect() as client:
        with pytest.raises(FatalError, match="can't be sent"):
            await client.commit("g", {TopicPartition("", 0): 1})
        await client.commit("g", {T0: 1})


async def test_a_group_id_that_is_refused_while_looking_is_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """No node will ever coordinate it."""
    world.server.script(m.FindCoordinatorRequest, 24)
    async with world.connect() as client:
        with pytest.raises(FatalError, match="INVALID_GROUP_ID"):
            await client.fetch_offsets("\x00")


async def test_a_silent_connection_is_noticed_while_something_is_parked(
    autojump_clock: MockClock, world: World
) -> None:
    """A JoinGroup may be parked for minutes; a peer that vanished must not take as long."""
    world.server.script(m.JoinGroupRequest, Hang())
    async with world.connect() as client, client.join("g", ["t"], {"t": 1}) as member:
        world.server.script(m.ApiVersionsRequest, Hang())
        await member.assignment()

        assert 10 <= trio.current_time() <= 32


async def test_a_live_connection_is_left_alone_while_something_is_parked(
    autojump_clock: MockClock, world: World
) -> None:
    """Silence alone proves nothing: the group may just be waiting for a slow member."""
    world.server.script(m.JoinGroupRequest, Hang())
    async with world.connect() as client, client.join("g", ["t"], {"t": 1}) as member:
        with trio.move_on_after(200):
            await member.assignment()

        assert world.server.connections == 1


async def test_a_parked_join_is_given_up_after_the_rebalance_timeout_and_slack(
    autojump_clock: MockClock,
    world: World,
) -> None:
    """The server should have answered by then, so something else is wrong."""
    world.server.script(m.JoinGroupRequest, Hang())
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 1}, rebalance_timeout_ms=60_000) as member,
    ):
        await member.assignment()

        assert 65 <= trio.current_time() <= 76


async def test_operators_calls(autojump_clock: MockClock, world: World) -> None:
    """Each asks the coordinator of each group, one group at a time."""
    world.server.script(m.DeleteGroupsRequest, 68)
    async with world.connect() as client:
        assert [one.group_id for one in await client.describe_groups(["g", "h"])] == ["g", "h"]
        assert [one.group_id for one in await client.list_groups()] == ["g"]
        assert await client.delete_groups(["g", "h", "g"]) == {
            "g": ErrorCode.NON_EMPTY_GROUP,
            "h": 0,
        }
        world.server.script(m.DrainMemberRequest, 25)
        with pytest.raises(FatalError, match="UNKNOWN_MEMBER_ID"):
            await client.drain_member("g", "x")
        world.server.script(m.ListGroupsRequest, 14, 35)
        with pytest.raises(FatalError, match="UNSUPPORTED_VERSION"):
            await client.list_groups()
