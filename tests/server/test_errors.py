"""Requests that can't be handled."""

from typing import Any

import msgpack
import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

from coordinator.group.records import RecordError
from coordinator.group.shard import GroupShard
from coordinator.log.errors import LogCorrupt
from protocol.connection import encode_error
from protocol.errors import ErrorCode
from protocol.group_ids import NODE_PARTITION
from protocol.messages import (
    APIS,
    KEY_TYPE_CLUSTER,
    KEY_TYPE_PARTITION,
    ApiKey,
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BareError,
    CoordinatorOfGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DrainMemberRequest,
    Example,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupFetch,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberAssignment,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    PartitionResult,
    Request,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicCommit,
    TopicResult,
    api_of,
    error_response,
)
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import frame_of
from tests.protocol.invalid import CLOSE, CLOSE_42, INVALID_REQUESTS, KEEP_35
from tests.server.world import Client, World, beat, commit, join, without_words, world

ANSWERED = [bad for bad in INVALID_REQUESTS if bad.verdict != CLOSE]


async def turn() -> None:
    """Let everybody finish what they can do now."""
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("bad", ANSWERED, ids=lambda bad: bad.name)
async def test_invalid_requests_end_as_the_vectors_say(bad: Any, autojump_clock: MockClock) -> None:
    """Rows 6-11 and 13: the answer says why, and only unsound bytes end the connection."""
    async with world() as w:
        client = w.connect()
        client.transport.put(bad.frame)
        await turn()
        code = ErrorCode.UNSUPPORTED_VERSION if bad.verdict == KEEP_35 else 42

        assert bytes(client.transport.received) == encode_error(7, code)
        assert client.transport.closed is (bad.verdict == CLOSE_42)


async def test_requests_behind_unsound_bytes_are_not_handled(autojump_clock: MockClock) -> None:
    """Whoever sent those does not know what it sends."""
    async with world() as w:
        client = w.connect()
        client.transport.put(frame_of(ApiKey.HEARTBEAT, 0, b"\xc1", 50))
        client.send(commit(7))
        await turn()

        assert bytes(client.transport.received) == encode_error(50, 42)
        assert await fetched(w.connect()) == -1


async def fetched(client: Client, group_id: str = "g", partition: int = 0) -> int:
    """Return the committed offset, -1 where there is none."""
    answer = await client.ask(OffsetFetchRequest((GroupFetch(group_id, None),), False))
    assert isinstance(answer, OffsetFetchResponse)
    (group,) = answer.groups
    assert group.error == 0
    found = [o.offset for t in group.topics for o in t.partitions if o.partition == partition]
    return found[0] if found else -1


async def test_duplicates_are_refused_whole_in_full_shape(autojump_clock: MockClock) -> None:
    """The body could be read, so its answer has its shape."""
    async with world() as w:
        client = w.connect()

        assert await client.error(commit(7, 0, 1, 0)) == 42
        assert await fetched(client) == -1
        assert await client.error(commit(6)) == 0
        assert await client.error(commit(7, 0, 1, 0)) == 42
        assert await fetched(client) == 6


async def test_long_metadata_fails_its_partition_only(autojump_clock: MockClock) -> None:
    """The others are stored."""
    async with world() as w:
        client = w.connect()
        partitions = (
            PartitionCommit(0, 5, -1, "x" * 4097, None),
            PartitionCommit(1, 6, -1, "x" * 4096, None),
        )
        answer = await client.ask(structs.replace(commit(), topics=(TopicCommit("t", partitions),)))

        results = (PartitionResult(0, 12), PartitionResult(1, 0))
        assert answer == OffsetCommitResponse(0, (TopicResult("t", results),))
        assert (await fetched(client), await fetched(client, partition=1)) == (-1, 6)


@pytest.mark.parametrize("group_id", ["", "a\nb", "g" * 256])
async def test_a_group_id_that_is_not_legal_is_24(group_id: str, autojump_clock: MockClock) -> None:
    """In a request over several groups only for that one."""
    async with world() as w:
        client = w.connect()

        for request in (
            beat(group_id=group_id),
            commit(group_id=group_id),
            join(group_id, "m"),
            DrainMemberRequest(group_id, "c"),
        ):
            answer = await client.ask(request)
            assert without_words(answer) == error_response(request, 24)
        found = await client.ask(FindCoordinatorRequest(0, (group_id, "g")))
        assert isinstance(found, FindCoordinatorResponse)
        assert [c.error for c in found.coordinators] == [24, 0]
        fetch = OffsetFetchRequest((GroupFetch(group_id, None), GroupFetch("g", None)), False)
        offsets = await client.ask(fetch)
        assert isinstance(offsets, OffsetFetchResponse)
        assert [g.error for g in offsets.groups] == [24, 0]
        described = await client.ask(DescribeGroupsRequest((group_id, "g")))
        assert isinstance(described, DescribeGroupsResponse)
        assert [g.error for g in described.groups] == [24, 69]
        deleted = await client.ask(DeleteGroupsRequest((group_id, "g")))
        assert isinstance(deleted, DeleteGroupsResponse)
        assert [g.error for g in deleted.groups] == [24, 69]


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
async def test_session_timeouts_are_legal_up_to_and_with_the_bounds(
    session_ms: int, autojump_clock: MockClock
) -> None:
    """Off by one here locks out a client that uses the documented limit."""
    async with world() as w:
        assert await w.connect().member_id(session_ms=session_ms)


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001, 2**31 - 1])
async def test_a_session_timeout_out_of_bounds_is_26(
    session_ms: int, autojump_clock: MockClock
) -> None:
    """Too short evicts for a hiccup, too long keeps partitions of the dead."""
    async with world() as w:
        request = join(member_id="m", session_ms=session_ms)

        answer = await w.connect().ask(request)
        assert without_words(answer) == error_response(request, 26)


# The session answers these once it asks who somebody is.
AWAITED = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
SERVED = [
    e
    for e in EXAMPLES
    if e.version >= APIS[api_of(e.request)].min_version and api_of(e.request) not in AWAITED
]


@pytest.mark.parametrize("example", SERVED, ids=lambda example: example.title)
async def test_every_request_of_the_protocol_is_served(
    example: Example, autojump_clock: MockClock
) -> None:
    """In each version that ApiVersions lists, and with an answer in its full shape."""
    async with world() as w:
        answer = await w.connect().ask(example.request, example.version)

        assert type(answer) is type(example.response)


async def test_another_key_type_is_refused_per_group(autojump_clock: MockClock) -> None:
    """Transactions are not coordinated here."""
    async with world() as w:
        answer = await w.connect().ask(FindCoordinatorRequest(3, ("g", "h")))

        assert isinstance(answer, FindCoordinatorResponse)
        assert [(c.group_id, c.error, c.node_id) for c in answer.coordinators] == [
            ("g", 42, -1),
            ("h", 42, -1),
        ]


async def test_what_is_the_clusters_own_has_a_coordinator(autojump_clock: MockClock) -> None:
    """Whoever registers topics has to know where, and no group says so."""
    async with world() as w:
        answer = await w.connect().ask(FindCoordinatorRequest(KEY_TYPE_CLUSTER, ("", "any")))

        assert isinstance(answer, FindCoordinatorResponse)
        assert [(c.group_id, c.error, c.offsets_partition) for c in answer.coordinators] == [
            ("", 0, NODE_PARTITION),
            ("any", 0, NODE_PARTITION),
        ]


async def test_all_offsets_partitions_have_coordinators(autojump_clock: MockClock) -> None:
    """Whoever wants all groups asks each node for those of its own; numbers are checked."""
    async with world() as w:
        client = w.connect()
        every = await client.ask(FindCoordinatorRequest(KEY_TYPE_PARTITION, ()))
        some = await client.ask(FindCoordinatorRequest(KEY_TYPE_PARTITION, ("1", "50", "-1", "x")))

        assert isinstance(every, FindCoordinatorResponse)
        assert isinstance(some, FindCoordinatorResponse)
        found = [(c.group_id, c.error, c.offsets_partition) for c in every.coordinators]
        assert found == [(str(n), 0, n) for n in range(w.node.num_partitions)]
        assert [c.error for c in some.coordinators] == [0, 42, 42, 42]


# --- while loading ----------------------------------------------------------------------

LOADING_REQUESTS: list[Request] = [
    join(member_id="m"),
    SyncGroupRequest("g", 1, "m", None, None, None, ()),
    beat(),
    LeaveGroupRequest("g", (LeavingMember("m", None, None),)),
    commit(),
    OffsetFetchRequest((GroupFetch("g", None), GroupFetch("h", None)), False),
    DescribeGroupsRequest(("g", "h")),
    ListGroupsRequest((), ()),
    DeleteGroupsRequest(("g", "h")),
    DrainMemberRequest("g", "c"),
]


@pytest.mark.parametrize("request_", LOADING_REQUESTS, ids=lambda r: type(r).__name__)
async def test_while_loading_everything_about_groups_is_14(
    request_: Request, autojump_clock: MockClock
) -> None:
    """Heartbeats too, or a client would learn of its eviction by silence."""
    async with world(load=False) as w:
        answer = await w.connect().ask(request_)

        assert without_words(answer) == error_response(request_, 14)


async def test_while_loading_the_first_questions_are_answered(autojump_clock: MockClock) -> None:
    """Clients find their coordinator before it is ready."""
    async with world(load=False) as w:
        client = w.connect()
        found = await client.ask(FindCoordinatorRequest(0, ("g",)))
        assert isinstance(found, FindCoordinatorResponse)
        (where,) = found.coordinators
        assert isinstance(where, CoordinatorOfGroup)
        assert (where.error, where.host, where.port) == (0, "127.0.0.1", 9310)
        hello = await client.ask(ApiVersionsRequest("c", "s", "1"))
        assert isinstance(hello, ApiVersionsResponse)
        assert hello.error == 0

        # What needs no group is judged first, as in Kafka.
        assert await client.error(beat(group_id="")) == 24
        assert await client.error(join(session_ms=1)) == 26
        await w.node.load()
        assert await client.error(beat()) == 25


async def test_api_versions_lists_what_is_served(autojump_clock: MockClock) -> None:
    """A client chooses its versions by this, and its limit."""
    async with world() as w:
        answer = await w.connect().ask(ApiVersionsRequest("c", "s", "1"))

        assert isinstance(answer, ApiVersionsResponse)
        assert answer.apis == tuple(
            ApiVersionRange(key, int(key == ApiKey.SCAN_OFFSETS), APIS[key].max_version)
            for key in sorted(APIS)
        )
        assert (answer.node_id, answer.max_request_bytes) == (1, 1024 * 1024)
        assert answer.cluster_id == w.journal.meta.cluster_id


async def test_api_versions_of_any_version_is_answered(autojump_clock: MockClock) -> None:
    """Also one that is newer than this code."""
    async with world() as w:
        client = w.connect()
        body = msgpack.packb(("c", "s", "1"))
        client.transport.put(frame_of(ApiKey.API_VERSIONS, 9, body))
        client.transport.put(frame_of(ApiKey.API_VERSIONS, -1, body))
        await turn()
        received = bytes(client.transport.received)
        half = len(received) // 2

        assert received[:half] == received[half:]
        assert msgpack.unpackb(received[16:half])[0] == 0


async def test_the_client_id_names_the_members(autojump_clock: MockClock) -> None:
    """An operator finds the process by it; without it a member is a `client`."""
    async with world() as w:
        client = w.connect()
        assert (await client.member_id()).startswith("client-")
        await client.ask(ApiVersionsRequest("driver-1", "s", "1"))
        assert (await client.member_id()).startswith("driver-1-")


async def test_the_header_names_the_epoch_of_one_group_only(autojump_clock: MockClock) -> None:
    """A client compares it with what it has seen for that group."""
    async with world() as w:
        client = w.connect()
        epoch = w.journal.leader_epoch

        async def header(request: Request) -> int:
            return (await client.answer(client.send(request))).leader_epoch

        assert await header(beat()) == epoch
        assert await header(commit()) == epoch
        assert await header(OffsetFetchRequest((GroupFetch("g", None),), False)) == epoch
        assert await header(DescribeGroupsRequest(("g",))) == epoch
        assert await header(DescribeGroupsRequest(("g", "h"))) == -1
        assert await header(ListGroupsRequest((), ())) == -1
        assert await header(ApiVersionsRequest("c", "s", "1")) == -1


# --- bugs -------------------------------------------------------------------------------


async def test_a_bug_in_a_handler_ends_one_connection(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """-1 to the asker, whose connection closes; everybody else goes on."""
    original = GroupShard.handle

    def broken(self: GroupShard, request: Request, *rest: Any) -> Any:
        if type(request) is HeartbeatRequest and request.member_id == "boom":
            raise ZeroDivisionError("a planted bug")
        return original(self, request, *rest)

    monkeypatch.setattr(GroupShard, "handle", broken)
    async with world() as w:
        asker, friend = w.connect(), w.connect()
        friend_id = await friend.join_alone("other")
        asker.send(commit(5))
        sent = asker.send(beat("boom"))
        asker.send(commit(6))
        await turn()

        assert asker.answers()[sent].response == BareError(-1)
        assert asker.transport.closed
        assert await friend.ask(beat(friend_id, group_id="other")) == HeartbeatResponse(0)
        # What came before it was decided, what came behind it was not.
        assert await fetched(friend) == 5


async def test_a_bug_over_several_groups_ends_one_connection(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The same where no single shard is asked."""
    async with world() as w:
        asker, friend = w.connect(), w.connect()

        def broken(*_: Any) -> Any:
            raise ZeroDivisionError("a planted bug")

        for shard in w.node.shards:
            monkeypatch.setattr(shard.core, "list_groups", broken)
        sent = asker.send(ListGroupsRequest((), ()))
        await turn()

        assert asker.answers()[sent].response == BareError(-1)
        assert asker.transport.closed
        assert await friend.error(beat()) == 25
        monkeypatch.undo()
        assert await friend.ask(ListGroupsRequest((), ())) == ListGroupsResponse(0, ())


async def test_an_answer_that_cannot_be_packed_passes_a_new_epoch(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The answer waits with others for the log; the node renews all, and must not end by it."""

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a planted bug")

    calls: list[Any] = []
    async with world() as w:
        client = w.connect()
        monkeypatch.setattr(w.server.dispatcher, "dispatch", lambda call, *_: calls.append(call))
        client.send(beat())
        await turn()
        monkeypatch.setattr("coordinator.server.session.encode_response", broken)
        prepared = calls[0].prepare(HeartbeatResponse(0), 1)

        calls[0].send(calls[0].renew(prepared, 2))
        await turn()
        assert client.transport.closed


@pytest.mark.parametrize("error", [RecordError, LogCorrupt])
@pytest.mark.parametrize("where", ["handler", "slice", "answer"])
async def test_an_error_of_the_log_in_a_request_ends_the_process(
    where: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Nothing may be decided after it, and an answer with -1 would hide it."""

    def broken(*_: Any) -> Any:
        raise error("entry")

    async def ask() -> None:
        async with world() as w:
            client = w.connect()
            if where == "slice":
                monkeypatch.setattr(w.node.shard_of("g").core, "list_groups", broken)
                client.send(ListGroupsRequest((), ()))
            elif where == "handler":
                monkeypatch.setattr(GroupShard, "handle", broken)
                client.send(beat())
            else:
                monkeypatch.setattr("coordinator.server.session.encode_response", broken)
                client.send(beat())
            await turn()

    with pytest.raises(BaseExceptionGroup) as failed:
        await ask()

    assert failed.group_contains(error)


# --- clients that vanish ----------------------------------------------------------------


async def parked_join(w: World) -> tuple[Client, str, int]:
    """Return a client whose JoinGroup waits, its member id, and the correlation id."""
    client = w.connect()
    member_id = await client.member_id()
    sent = client.send(join(member_id=member_id))
    await turn()
    assert sent not in client.answers()
    return client, member_id, sent


@pytest.mark.parametrize("how", ["half-close", "reset"])
async def test_a_client_that_vanishes_while_joining_is_withdrawn(
    how: str, autojump_clock: MockClock
) -> None:
    """Nobody else notices: the others' join completes, and its own place ends with its session."""
    async with world() as w:
        gone, gone_id, _ = await parked_join(w)
        stays, stays_id, sent = await parked_join(w)
        friend = w.connect()
        if how == "half-close":
            gone.transport.end()
        else:
            gone.transport.reset()
        await turn()
        assert gone.transport.closed
        assert w.metrics["requests_parked"]() == 1
        assert await friend.error(beat()) == 25
        await trio.sleep(15)

        answer = (await stays.answer(sent)).response
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error == 0
        assert {member.member_id for member in answer.members} == {stays_id}
        assert await friend.error(beat(gone_id)) == 25


async def test_a_client_that_vanishes_with_a_commit_in_flight_has_committed(
    autojump_clock: MockClock,
) -> None:
    """It was decided, and must not be undone by who listens."""
    async with world() as w:
        client = w.connect()
        w.slow_disk.hold()
        client.send(commit(9))
        await turn()
        client.transport.end()
        await turn()
        w.slow_disk.let_go()
        await turn()

        assert await fetched(w.connect()) == 9


async def test_a_client_that_vanishes_while_syncing_is_withdrawn(
    autojump_clock: MockClock,
) -> None:
    """The leader's assignment comes later and finds nobody waiting; nobody else is told."""
    async with world() as w:
        leader, leader_id, first = await parked_join(w)
        other, other_id, second = await parked_join(w)
        await trio.sleep(6.5)  # The second join made the first wait longer.
        joined = (await leader.answer(first)).response
        assert isinstance(joined, JoinGroupResponse)
        assert (await other.answer(second)).response.error == 0  # type: ignore[attr-defined]  # these have one
        if joined.leader != leader_id:
            leader, other, leader_id, other_id = other, leader, other_id, leader_id
        generation = joined.generation_id
        other.send(SyncGroupRequest("g", generation, other_id, None, None, None, ()))
        await turn()
        other.transport.end()
        await turn()
        shares = (MemberAssignment(leader_id, b"a"), MemberAssignment(other_id, b"b"))
        synced = await leader.ask(
            SyncGroupRequest("g", generation, leader_id, None, None, None, shares)
        )

        assert synced == SyncGroupResponse(0, "consumer", "range", b"a")
        assert await leader.ask(beat(leader_id, generation)) == HeartbeatResponse(0)
        # Its session runs on: it may come back and ask again.
        again = await w.connect().ask(
            SyncGroupRequest("g", generation, other_id, None, None, None, ())
        )
        assert again == SyncGroupResponse(0, "consumer", "range", b"b")
