"""Limits of what a group may be asked for, and what the user is told.

What the answer's layout has no room for is in the server's log, as `request.refused`.
"""

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest
import structlog
import trio.testing
from msgspec import structs
from trio.testing import MockClock

from protocol import messages as m
from protocol.connection import encode_error
from protocol.messages import ApiKey
from tests.protocol.frames import frame_of
from tests.server.world import ASSIGNMENT, SUBSCRIPTION, Client, World, beat, commit, join, world

JOIN: dict[str, Any] = {
    "group_id": "g",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": [["range", SUBSCRIPTION]],
    "reason": None,
    "topic_pattern": None,
}
COMMIT: dict[str, Any] = {"topic": "t", "partition": 0, "offset": 1, "leader_epoch": -1}


def join_frame(**changes: Any) -> bytes:
    """Return a JoinGroup of version 1, one field of which is wrong."""
    body: bytes = msgpack.packb(list((JOIN | changes).values()))
    return frame_of(ApiKey.JOIN_GROUP, 1, body)


def commit_frame(**changes: Any) -> bytes:
    """Return an OffsetCommit, one field of which is wrong."""
    topic, *partition = (COMMIT | changes).values()
    body: bytes = msgpack.packb(["g", -1, "", None, [[topic, [[*partition, None]]]]])
    return frame_of(ApiKey.OFFSET_COMMIT, 0, body)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (join_frame(group_instance_id="i\n"), "control characters"),
        (join_frame(group_instance_id="i\0"), "control characters"),
        (join_frame(group_instance_id=""), ">= 1"),
        (join_frame(group_instance_id="i" * 256), "<= 255"),
        (join_frame(member_id="m" * 301), "<= 300"),
        (commit_frame(topic=""), ">= 1"),
        (commit_frame(topic="t\x7f"), "control characters"),
        (commit_frame(topic="т" * 125), "over 249 bytes"),
        (join_frame(group_id="g").replace(b"\xa1g", b"\xa1\xff"), "utf-8"),
        (join_frame(session_timeout_ms=True), "bool"),
        (join_frame(session_timeout_ms=1e4), "float"),
        (join_frame(session_timeout_ms=float("nan")), "float"),
        (join_frame(session_timeout_ms=2**31), "<= 2147483647"),
        (commit_frame(offset=2**63), "int"),
        (commit_frame(offset=-1), ">= 0"),
        (commit_frame(offset=-2), ">= 0"),
        (commit_frame(partition=-1), ">= 0"),
        (join_frame(protocols=[["range", bytes(256 * 1024 + 1)]]), "<= 262144"),
        (join_frame(rebalance_timeout_ms=-1), ">= 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_field_that_cannot_be_is_42_and_named(
    frame: bytes, reason: str, autojump_clock: MockClock
) -> None:
    """Rows 10, 11, 13, 15 and 16: whoever wrote that client reads our log to find its bug."""
    with structlog.testing.capture_logs() as logs:
        async with world() as w:
            client = w.connect()
            client.transport.put(frame)
            await trio.testing.wait_all_tasks_blocked()

            assert bytes(client.transport.received) == encode_error(7, 42)
            assert not client.transport.closed
    (refused,) = [entry for entry in logs if entry["event"] == "request.refused"]
    assert reason in refused["reason"]


async def test_a_sync_with_too_long_an_assignment_is_42(autojump_clock: MockClock) -> None:
    """The request may be 8 MiB, one member's part of it may not."""
    body = ["g", 1, "m", None, None, None, [["m", bytes(256 * 1024 + 1)]]]
    async with world() as w:
        client = w.connect()
        client.transport.put(frame_of(ApiKey.SYNC_GROUP, 0, msgpack.packb(body)))
        await trio.testing.wait_all_tasks_blocked()

        assert bytes(client.transport.received) == encode_error(7, 42)


@pytest.mark.parametrize(
    ("group_id", "reason"),
    [("", "empty"), ("g\n", "control characters"), ("ж" * 128, "longer than 255 bytes")],
)
async def test_a_group_id_that_cannot_be_is_24_in_words(
    group_id: str, reason: str, autojump_clock: MockClock
) -> None:
    """A group id is often made from a user's own text."""
    requests: list[m.Request] = [
        join(group_id),
        m.SyncGroupRequest(group_id, 1, "m", None, None, None, ()),
        beat(group_id=group_id),
        commit(group_id=group_id),
        m.DescribeLagRequest(group_id),
        m.DescribeRebalancesRequest(group_id, 1),
    ]
    async with world() as w:
        client = w.connect()
        answers = [await client.ask(request) for request in requests]

        assert [24] * len(requests) == [answer.error for answer in answers]  # type: ignore[attr-defined]  # all have one
        assert [] == [a for a in answers if reason not in (a.message or "")]  # type: ignore[attr-defined]  # as above


@pytest.mark.parametrize(
    ("topics", "reason"),
    [
        ([("t", (0, 1, 0))], "the same partition twice"),
        ([("t", (0,)), ("t", (0,))], "the same partition twice"),
        ([("t", range(5_001)), ("u", range(5_000))], "10001"),
    ],
    ids=["twice", "twice, apart", "too many"],
)
async def test_a_commit_that_cannot_be_is_42_as_a_whole(
    topics: list[tuple[str, Sequence[int]]], reason: str, autojump_clock: MockClock
) -> None:
    """Rows 12 and 15: which of the two offsets was meant, nobody knows."""
    commits = tuple(
        m.TopicCommit(topic, tuple(m.PartitionCommit(n, 7, -1, None, None) for n in partitions))
        for topic, partitions in topics
    )
    async with world() as w:
        client = w.connect()
        answer = await client.ask(structs.replace(commit(), topics=commits))

        assert isinstance(answer, m.OffsetCommitResponse)
        assert (answer.error, answer.topics) == (42, ())
        assert reason in (answer.message or "")
        fetched = await client.ask(m.OffsetFetchRequest((m.GroupFetch("g", None),), False))
        assert fetched == m.OffsetFetchResponse((m.GroupOffsets("g", 0, ()),))


@pytest.mark.parametrize("metadata", ["x" * 4_097, "я" * 2_049])
async def test_metadata_over_the_limit_fails_its_partition_only(
    metadata: str, autojump_clock: MockClock
) -> None:
    """Bytes of UTF-8 count, and the others are stored."""
    async with world() as w:
        partitions = (
            m.PartitionCommit(0, 5, -1, metadata, None),
            m.PartitionCommit(1, 6, -1, "я" * 2_048, None),
        )
        answer = await w.connect().ask(
            structs.replace(commit(), topics=(m.TopicCommit("t", partitions),))
        )

        assert isinstance(answer, m.OffsetCommitResponse)
        results = (m.PartitionResult(0, 12), m.PartitionResult(1, 0))
        assert answer.topics == (m.TopicResult("t", results),)


@pytest.mark.parametrize("session_ms", [-1, 0, 5_999, 1_800_001])
async def test_a_session_timeout_out_of_bounds_is_26_in_words(
    session_ms: int, autojump_clock: MockClock
) -> None:
    """The user must learn which values are allowed."""
    async with world() as w:
        answer = await w.connect().ask(join(session_ms=session_ms))

        assert isinstance(answer, m.JoinGroupResponse)
        assert answer.error == 26
        assert "6000" in (answer.message or "")
        assert "1800000" in (answer.message or "")


async def described(client: Client) -> m.DescribedGroup:
    """Return group g."""
    answer = await client.ask(m.DescribeGroupsRequest(("g",)))
    assert isinstance(answer, m.DescribeGroupsResponse)
    return answer.groups[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol_type": "connect"}, ["connect", "consumer"]),
        ({"protocols": (m.JoinProtocol("own", b""),)}, ["own", "range"]),
    ],
    ids=["type", "protocols"],
)
async def test_protocols_that_do_not_fit_are_23_and_the_group_goes_on(
    changes: dict[str, Any], words: list[str], autojump_clock: MockClock
) -> None:
    """One driver that was deployed with other settings must not stop the rest."""
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone()
        before = await described(client)
        answer = await w.connect().ask(structs.replace(join(), **changes))

        assert isinstance(answer, m.JoinGroupResponse)
        assert answer.error == 23
        assert [] == [word for word in words if word not in (answer.message or "")]
        assert before == await described(client)
        assert await client.ask(beat(member_id)) == m.HeartbeatResponse(0)


async def two_at_the_barrier(w: World) -> tuple[list[Client], list[str], int]:
    """Return two members that have joined and not synced, the leader first."""
    clients = [w.connect(), w.connect()]
    ids = [await client.member_id() for client in clients]
    sent = []
    for client, id_ in zip(clients, ids, strict=True):
        sent.append(client.send(join(member_id=id_)))
        await trio.testing.wait_all_tasks_blocked()
    await trio.sleep(7)
    joined = (await clients[0].answer(sent[0])).response
    assert isinstance(joined, m.JoinGroupResponse)
    assert joined.leader == ids[0]
    return clients, ids, joined.generation_id


def sync(member_id: str, generation: int, **given: bytes) -> m.SyncGroupRequest:
    """Return a SyncGroup."""
    shares = tuple(m.MemberAssignment(who.replace("_", "-"), data) for who, data in given.items())
    return m.SyncGroupRequest("g", generation, member_id, None, None, None, shares)


@pytest.mark.parametrize("nonsense", ["a stranger", "one partition twice", "a member twice"])
async def test_a_leader_that_assigns_nonsense_is_thrown_out_and_told_why(
    nonsense: str, autojump_clock: MockClock
) -> None:
    """Its assignment is never stored, and the others don't wait for it."""
    async with world() as w:
        clients, (leader, follower), generation = await two_at_the_barrier(w)
        given = {
            "a stranger": (("nobody", ASSIGNMENT),),
            "one partition twice": ((leader, ASSIGNMENT), (follower, ASSIGNMENT)),
            "a member twice": ((leader, ASSIGNMENT), (leader, b"")),
        }[nonsense]
        shares = tuple(m.MemberAssignment(*share) for share in given)
        waits = clients[1].send(sync(follower, generation))
        refused = await clients[0].ask(
            structs.replace(sync(leader, generation), assignments=shares)
        )
        others = (await clients[1].answer(waits)).response

        assert isinstance(refused, m.SyncGroupResponse)
        assert isinstance(others, m.SyncGroupResponse)
        assert (refused.error, others.error) == (42, 27)
        named = {"a stranger": "nobody", "one partition twice": "t-0", "a member twice": "twice"}
        assert named[nonsense] in (refused.message or "")
        assert others.message
        group = await described(clients[1])
        assert (group.state, [member.member_id for member in group.members]) == (
            "PreparingRebalance",
            [follower],
        )
        assert group.members[0].assignment == b""
        gone = await clients[0].ask(beat(leader, generation))
        assert isinstance(gone, m.HeartbeatResponse)
        assert gone.error == 25


async def test_a_member_that_the_leader_leaves_out_gets_nothing(autojump_clock: MockClock) -> None:
    """That is a leader's right, when there are more members than partitions."""
    async with world() as w:
        clients, (leader, follower), generation = await two_at_the_barrier(w)
        waits = clients[1].send(sync(follower, generation))
        shares = (m.MemberAssignment(leader, ASSIGNMENT),)
        first = await clients[0].ask(structs.replace(sync(leader, generation), assignments=shares))
        other = (await clients[1].answer(waits)).response

        assert first == m.SyncGroupResponse(0, "consumer", "range", ASSIGNMENT)
        assert other == m.SyncGroupResponse(0, "consumer", "range", b"")


async def test_an_assignment_of_someone_who_does_not_lead_is_ignored(
    autojump_clock: MockClock,
) -> None:
    """An old leader may not know yet that it leads no more."""
    async with world() as w:
        clients, (leader, follower), generation = await two_at_the_barrier(w)
        shares = (m.MemberAssignment(follower, ASSIGNMENT),)
        waits = clients[1].send(structs.replace(sync(follower, generation), assignments=shares))
        await clients[0].ask(sync(leader, generation))
        other = (await clients[1].answer(waits)).response

        assert other == m.SyncGroupResponse(0, "consumer", "range", b"")


@pytest.mark.parametrize("garbage", [b"\x00", b"\xff" * 40, b"\x00\x01\x7f\xff\xff\xff", b""])
async def test_a_subscription_that_cannot_be_read_stops_nobody(
    garbage: bytes, autojump_clock: MockClock
) -> None:
    """Kafka's join timer dies of it and the group waits for ever; here the bytes are opaque."""
    async with world() as w:
        clients, ids, generation = await two_at_the_barrier(w)
        shares = (m.MemberAssignment(ids[0], ASSIGNMENT),)
        await clients[0].ask(structs.replace(sync(ids[0], generation), assignments=shares))
        newcomer = w.connect()
        given = await newcomer.ask(
            structs.replace(join(), protocols=(m.JoinProtocol("range", garbage),))
        )
        assert isinstance(given, m.JoinGroupResponse)
        request = join(member_id=given.member_id)
        sent = newcomer.send(
            structs.replace(request, protocols=(m.JoinProtocol("range", garbage),))
        )
        await trio.testing.wait_all_tasks_blocked()
        waiting = [
            client.send(join(member_id=id_)) for client, id_ in zip(clients, ids, strict=True)
        ]
        joined = (await newcomer.answer(sent)).response
        leads = (await clients[0].answer(waiting[0])).response

        assert isinstance(joined, m.JoinGroupResponse)
        assert isinstance(leads, m.JoinGroupResponse)
        assert (joined.error, leads.error) == (0, 0)
        assert garbage in [member.metadata for member in leads.members]


async def test_an_assignment_that_cannot_be_read_is_passed_on(autojump_clock: MockClock) -> None:
    """It is checked where it is readable; elsewhere it is the leader's own format."""
    async with world() as w:
        clients, (leader, follower), generation = await two_at_the_barrier(w)
        shares = tuple(m.MemberAssignment(id_, b"\x00\x01own") for id_ in (leader, follower))
        first = await clients[0].ask(structs.replace(sync(leader, generation), assignments=shares))
        second = await clients[1].ask(sync(follower, generation))

        assert first == second == m.SyncGroupResponse(0, "consumer", "range", b"\x00\x01own")
        # Nobody can tell whose it is, so whoever is a member may commit.
        answer = await clients[1].ask(
            structs.replace(commit(5), member_id=follower, generation_id=generation)
        )
        assert isinstance(answer, m.OffsetCommitResponse)
        assert answer.topics[0].partitions[0].error == 0


async def test_who_is_fenced_is_told_by_whom(autojump_clock: MockClock) -> None:
    """Two deployments with one instance id find each other by this text."""
    async with world() as w:
        first, second = w.connect("192.0.2.1"), w.connect("192.0.2.2")
        await second.ask(m.ApiVersionsRequest("twin", "test", "1"))
        static = structs.replace(join(), group_instance_id="i-1")
        sent = first.send(static)
        await trio.sleep(10)
        old = (await first.answer(sent)).response
        assert isinstance(old, m.JoinGroupResponse)
        shares = (m.MemberAssignment(old.member_id, ASSIGNMENT),)
        request = sync(old.member_id, old.generation_id)
        await first.ask(structs.replace(request, group_instance_id="i-1", assignments=shares))
        new = await second.ask(static)
        assert isinstance(new, m.JoinGroupResponse)
        assert new.error == 0
        fenced = await first.ask(
            structs.replace(beat(old.member_id, old.generation_id), group_instance_id="i-1")
        )
        by_id = await first.ask(beat(old.member_id, old.generation_id))
        late = await first.ask(
            structs.replace(
                commit(5),
                member_id=old.member_id,
                generation_id=old.generation_id,
                group_instance_id="i-1",
            )
        )

        assert isinstance(fenced, m.HeartbeatResponse)
        assert isinstance(by_id, m.HeartbeatResponse)
        assert isinstance(late, m.OffsetCommitResponse)
        assert (fenced.error, by_id.error, late.error) == (82, 25, 82)
        for word in ("i-1", new.member_id, "twin", "192.0.2.2"):
            assert word in (fenced.message or "")
            assert word in (late.message or "")
        assert new.member_id in (by_id.message or "")


async def test_a_flood_of_new_members_is_81_until_unused_ids_end(
    autojump_clock: MockClock,
) -> None:
    """Ids that were given out count, and end with their session timeout."""
    async with world("group.max.size=3") as w:
        client = w.connect()
        given = [await client.member_id() for _ in range(3)]
        full = await client.ask(join())

        assert len(set(given)) == 3
        assert isinstance(full, m.JoinGroupResponse)
        assert (full.error, full.member_id) == (81, "")
        assert "group.max.size" in (full.message or "")
        await trio.sleep(10.1)
        assert await client.member_id()
