"""What a connection may cost."""

import errno
import gc
import weakref

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.connection import REQUEST_HEADER
from protocol.errors import ErrorCode
from protocol.messages import (
    ApiKey,
    ApiVersionsRequest,
    BareError,
    GroupFetch,
    HeartbeatResponse,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
)
from tests.server.world import Client, World, beat, commit, join, world

HELLO = ApiVersionsRequest("c", "s", "1")


async def turn() -> None:
    """Let everybody finish what they can do now."""
    await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        b"\x00\x00\x00\x07" + bytes(7),
        REQUEST_HEADER.pack(1024 * 1024 + 1, ApiKey.HEARTBEAT, 0, 1),
        REQUEST_HEADER.pack(8 * 1024 * 1024 + 1, ApiKey.SYNC_GROUP, 0, 1),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["size 0", "size 7", "over 1 MiB", "sync over 8 MiB", "TLS", "HTTP"],
)
async def test_a_frame_that_is_not_allowed_closes_without_an_answer(
    data: bytes, autojump_clock: MockClock
) -> None:
    """Rows 1, 2 and 4: nothing can be said to whoever does not speak the protocol."""
    async with world() as w:
        stranger, friend = w.connect(), w.connect()
        stranger.transport.put(data)
        await turn()

        assert stranger.transport.closed
        assert not stranger.transport.received
        assert isinstance(await friend.ask(beat()), HeartbeatResponse)


async def test_limits_of_frames_are_settings(autojump_clock: MockClock) -> None:
    """An operator may want them lower."""
    async with world("socket.request.max.bytes=1024", "sync.request.max.bytes=2048") as w:
        client = w.connect()
        client.transport.put(REQUEST_HEADER.pack(1025, ApiKey.HEARTBEAT, 0, 1))
        await turn()

        assert client.transport.closed


async def test_a_new_connection_must_ask_something_soon(autojump_clock: MockClock) -> None:
    """10 seconds, found by a sweep each second."""
    async with world() as w:
        silent = w.connect()
        await trio.sleep(9.5)
        assert not silent.transport.closed
        await trio.sleep(2)

        assert silent.transport.closed


async def test_a_silent_connection_lasts_ten_minutes(autojump_clock: MockClock) -> None:
    """A crashed peer says nothing either."""
    async with world() as w:
        client = w.connect()
        await client.ask(HELLO)
        await trio.sleep(599)
        assert not client.transport.closed
        await trio.sleep(3)

        assert client.transport.closed


async def test_a_parked_join_keeps_a_silent_connection(autojump_clock: MockClock) -> None:
    """It waits for us, and must not be punished for it."""
    async with world("connections.max.idle.ms=1000", "group.initial.rebalance.delay.ms=5000") as w:
        client = w.connect()
        member_id = await client.member_id()
        sent = client.send(join(member_id=member_id))
        await trio.sleep(5.5)

        answer = (await client.answer(sent)).response
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error == 0
        assert not client.transport.closed


@pytest.mark.parametrize("size", [100, 640 * 1024])
async def test_a_frame_must_be_finished_in_time(size: int, autojump_clock: MockClock) -> None:
    """10 s, however slowly the bytes drip."""
    async with world() as w:
        client = w.connect()
        await client.ask(HELLO)
        client.transport.put(REQUEST_HEADER.pack(size, ApiKey.HEARTBEAT, 0, 1))
        for _ in range(9):
            client.transport.put(b"\x00")
            await trio.sleep(1)
        assert not client.transport.closed
        for _ in range(3):
            if not client.transport.closed:
                client.transport.put(b"\x00")
            await trio.sleep(1)

        assert client.transport.closed


async def test_the_first_frame_must_be_finished_in_time_too(autojump_clock: MockClock) -> None:
    """The time counts until the first whole request, not the first byte."""
    async with world() as w:
        client = w.connect()
        client.transport.put(b"\x00\x00")
        await trio.sleep(12)

        assert client.transport.closed


async def test_a_client_that_takes_no_byte_is_closed(autojump_clock: MockClock) -> None:
    """10 seconds without progress."""
    async with world() as w:
        client = w.connect()
        client.transport.give_room(5)
        client.send(HELLO)
        await trio.sleep(9)
        assert not client.transport.closed
        await trio.sleep(3)

        assert client.transport.closed
        assert len(client.transport.received) == 5


@pytest.mark.parametrize(("a_second", "is_served"), [(70_000, True), (50_000, False)])
async def test_a_reader_must_keep_the_least_rate(
    a_second: int, is_served: bool, autojump_clock: MockClock
) -> None:
    """64 KiB a second is slow; who takes a byte every few seconds only holds our memory."""
    async with world("offset.metadata.max.bytes=32000") as w:
        client = w.connect()
        for number in range(40):
            commits = tuple(
                PartitionCommit(40 * number + p, 1, -1, "m" * 900, None) for p in range(40)
            )
            await client.ask(OffsetCommitRequest("g", -1, "", None, (TopicCommit("t", commits),)))
        client.transport.give_room(0)
        sent = client.send(OffsetFetchRequest((GroupFetch("g", None),), False))
        for _ in range(25):
            client.transport.give_room(a_second)
            await trio.sleep(1)

        assert is_served == (sent in client.answers())
        assert is_served != client.transport.closed


@pytest.mark.parametrize(("a_second", "is_read"), [(70_000, True), (50_000, False)])
async def test_a_sender_must_keep_the_least_rate(
    a_second: int, is_read: bool, autojump_clock: MockClock
) -> None:
    """The same for frames, as long as they may be."""
    async with world() as w:
        client = w.connect()
        client.transport.put(REQUEST_HEADER.pack(8 * 1024 * 1024, ApiKey.SYNC_GROUP, 0, 1))
        for _ in range(100):
            if not client.transport.closed:
                client.transport.put(bytes(a_second))
            await trio.sleep(1)

        assert is_read != client.transport.closed


async def reader_of_long_lists(w: World, *, groups: int) -> Client:
    """Return a client that takes nothing yet, of a coordinator with so many groups."""
    for number in range(groups):
        await w.connect().ask(commit(group_id=f"group-{number}" + "x" * 100))
    client = w.connect()
    client.transport.give_room(0)
    return client


async def test_answers_over_the_buffer_stop_the_reading(autojump_clock: MockClock) -> None:
    """A client that takes no answers must not make us hold more of them."""
    async with world("send.buffer.max.bytes=1024", "send.timeout.ms=100000") as w:
        client = await reader_of_long_lists(w, groups=20)
        for _ in range(5):
            client.send(ListGroupsRequest((), ()))
            await turn()

        # The first answer alone passes the limit, so the later requests were not even read.
        assert client.transport.unread_bytes > 0
        assert not client.transport.closed
        client.transport.give_room(None)
        await turn()
        answers = client.answers()
        assert len(answers) == 5
        assert {type(event.response) for event in answers.values()} == {ListGroupsResponse}


async def test_a_slow_reader_of_large_answers_is_not_closed_for_their_size(
    autojump_clock: MockClock,
) -> None:
    """The limit bounds what waits, not one answer: the next request is read when there is room."""
    async with world("send.buffer.max.bytes=1024", "send.timeout.ms=100000") as w:
        client = await reader_of_long_lists(w, groups=20)
        sent = [client.send(ListGroupsRequest((), ())) for _ in range(5)]
        await turn()
        while len(client.answers()) < len(sent):
            client.transport.give_room(700)
            await turn()
            assert not client.transport.closed

        assert sent == sorted(client.answers())


async def test_a_slow_reader_of_lists_that_take_long_is_not_closed_for_their_size(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """They come outside of its turns, and work on one may begin before the last is sent."""
    monkeypatch.setattr("coordinator.runtime.calls.SLICE_S", 0)
    async with world("send.buffer.max.bytes=1024", "send.timeout.ms=100000") as w:
        client = await reader_of_long_lists(w, groups=40)
        sent = [client.send(ListGroupsRequest((), ())) for _ in range(5)]
        while len(client.answers()) < len(sent):
            client.transport.give_room(700)
            await trio.sleep(0.1)
            (session,) = [s for s in w.server.sessions if s.transport is client.transport]
            assert len(session.unsent) < 16 * 1024

        assert sent == sorted(client.answers())


async def test_more_than_the_limit_behind_the_answer_being_sent_closes(
    autojump_clock: MockClock,
) -> None:
    """What was in flight when reading stopped can still be too much."""
    async with world("send.buffer.max.bytes=1024", "send.timeout.ms=100000") as w:
        client, friend = w.connect(), w.connect()
        w.slow_disk.hold()
        client.send(commit(0))
        await turn()  # The first flush is on its way; what follows goes into the second.
        for number in range(20):
            client.send(commit(number, *range(100)))
        await turn()
        client.transport.give_room(0)
        w.slow_disk.let_go()
        await turn()

        assert client.transport.closed
        assert isinstance(await friend.ask(commit(7)), OffsetCommitResponse)


async def test_a_reset_while_answers_wait_ends_only_that_connection(
    autojump_clock: MockClock,
) -> None:
    """The flusher answers a session that has just found out that it is over."""
    async with world() as w:
        client, friend = w.connect(), w.connect()
        w.slow_disk.hold()
        client.send(commit())
        await turn()
        client.transport.give_room(3)
        client.send(beat(group_id="other"))
        await turn()
        (session,) = [s for s in w.server.sessions if s.transport is client.transport]
        assert session.has_unsent
        client.transport.reset()
        w.slow_disk.let_go()
        await turn()

        assert client.transport.closed
        assert isinstance(await friend.ask(commit(7)), OffsetCommitResponse)


async def test_a_socket_that_is_writable_as_its_session_ends_harms_nobody(
    autojump_clock: MockClock,
) -> None:
    """It may be about to be called back when what is unsent is emptied under it."""
    async with world() as w:
        client, friend = w.connect(), w.connect()
        client.transport.give_room(3)
        client.send(beat())
        await turn()
        (session,) = [s for s in w.server.sessions if s.transport is client.transport]
        client.transport.give_room(None)
        session.close()
        await turn()

        assert isinstance(await friend.ask(commit(7)), OffsetCommitResponse)


async def test_64_requests_in_flight_stop_the_reading(autojump_clock: MockClock) -> None:
    """Pipelining is bounded, and goes on when answers leave."""
    async with world() as w:
        client = w.connect()
        w.slow_disk.hold()
        for number in range(64):
            client.send(commit(number))
            await turn()
        assert client.transport.unread_bytes == 0
        client.send(commit(64))
        await turn()
        assert client.transport.unread_bytes > 0
        w.slow_disk.let_go()
        await turn()

        assert client.transport.unread_bytes == 0
        assert len(client.answers()) == 65


async def test_parked_joins_do_not_count_as_in_flight(autojump_clock: MockClock) -> None:
    """They wait for other members, and heartbeats must pass them."""
    async with world("max.in.flight.requests=1") as w:
        client = w.connect()
        member_id = await client.member_id()
        client.send(join(member_id=member_id))
        await turn()

        assert isinstance(await client.ask(beat(member_id)), HeartbeatResponse)


async def test_connections_over_the_maximum_are_closed_at_once(autojump_clock: MockClock) -> None:
    """Those that are there go on."""
    async with world(max_connections=2) as w:
        first, second, third = w.connect(), w.connect(), w.connect()
        await turn()

        assert third.transport.closed
        assert isinstance(await first.ask(beat()), HeartbeatResponse)
        second.transport.end()
        await turn()
        assert isinstance(await w.connect().ask(beat()), HeartbeatResponse)


async def test_no_descriptors_pause_the_door(autojump_clock: MockClock) -> None:
    """EMFILE must not end the server."""
    async with world() as w:
        w.listener.arrive(OSError(errno.EMFILE, "too many open files"))
        client = w.connect()
        sent = client.send(beat())
        await turn()
        assert client.answers() == {}
        await trio.sleep(0.2)

        assert sent in client.answers()


async def test_a_frame_may_come_byte_by_byte(autojump_clock: MockClock) -> None:
    """The session keeps the pieces."""
    async with world() as w:
        client = w.connect()
        sent, frame = client.frame(beat())
        for byte in frame:
            client.transport.put(bytes([byte]))
            await turn()

        assert sent in client.answers()


async def test_what_is_read_with_the_end_of_the_connection_is_answered(
    autojump_clock: MockClock,
) -> None:
    """A client may half-close after its last request."""
    async with world() as w:
        client = w.connect()
        sent = client.send(beat())
        client.transport.end()
        await turn()

        assert sent in client.answers()
        assert client.transport.closed


async def test_an_answer_over_the_limit_is_an_error(autojump_clock: MockClock) -> None:
    """The frame's limit holds for the server too; the connection is kept."""
    async with world("response.max.bytes=65536") as w:
        client = w.connect()
        for number in range(400):
            answer = await client.ask(commit(group_id=f"group-{number}" + "x" * 200))
            assert isinstance(answer, OffsetCommitResponse)

        answer = await client.ask(ListGroupsRequest((), ()))
        assert answer == BareError(ErrorCode.RESPONSE_TOO_LARGE)
        assert not client.transport.closed


async def test_limits_hold_within_one_read(autojump_clock: MockClock) -> None:
    """A read of 64 KiB holds 2700 requests, each of which may ask for a large answer."""
    async with world("send.buffer.max.bytes=4096", "send.timeout.ms=100000") as w:
        client = await reader_of_long_lists(w, groups=30)
        sent = [client.send(ListGroupsRequest((), ())) for _ in range(500)]
        await turn()
        (session,) = [s for s in w.server.sessions if s.transport is client.transport]
        assert client.transport.unread_bytes == 0
        assert len(session.unsent) < 16 * 1024
        client.transport.give_room(None)
        await turn()

        assert sorted(client.answers()) == sent


async def test_64_requests_in_flight_hold_within_one_read(autojump_clock: MockClock) -> None:
    """The limit counts requests, however they were packed."""
    async with world() as w:
        client = w.connect()
        w.slow_disk.hold()
        sent = [client.send(commit(number)) for number in range(200)]
        await turn()
        (session,) = w.server.sessions
        assert len(session.in_flight) == 64
        w.slow_disk.let_go()
        await turn()

        assert sorted(client.answers()) == sent


async def test_time_in_which_the_server_does_not_read_is_not_the_clients(
    autojump_clock: MockClock,
) -> None:
    """Its frame is half read because we stopped, not because it did."""
    async with world("max.in.flight.requests=1", "offsets.commit.timeout.ms=60000") as w:
        client = w.connect()
        w.slow_disk.hold()
        client.send(commit(1))
        later, frame = client.frame(commit(2))
        client.transport.put(frame[:20])
        await trio.sleep(30)
        assert not client.transport.closed
        w.slow_disk.let_go()
        await trio.sleep(3)
        client.transport.put(frame[20:])
        await turn()

        assert later in client.answers()


async def test_an_ended_daemon_leaves_nothing_in_memory(autojump_clock: MockClock) -> None:
    """What is not tracked by the garbage collector, and part of a cycle, would stay for ever."""
    async with world() as w:
        client = w.connect()
        assert 0 == await client.error(commit(5))
        await client.join_alone("h")
        (session,) = w.server.sessions
        node_left, session_left = weakref.ref(w.node), weakref.ref(session)
    del w, client, session
    gc.collect()
    assert node_left() is None
    assert session_left() is None
