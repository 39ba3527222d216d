"""The disk is slow, full or broken; the daemon stops."""

import errno

import msgpack
import pytest
import structlog.testing
import trio
from msgspec import structs
from trio.testing import MockClock

from coordinator.group.core import Caller
from coordinator.log.errors import EXIT_WRITE_FAILED, FolderLost, LogFailed
from coordinator.log.format import FlushKey
from coordinator.log.journal import Journal
from coordinator.log.recovery import BALLAST_BYTES
from coordinator.log.state_files import encode_durable
from coordinator.runtime import health
from coordinator.runtime.calls import Call
from coordinator.runtime.shard import Status
from coordinator.server.run import _exit_status_of
from protocol.consumer import Assignment, encode_assignment
from protocol.errors import ErrorCode
from protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    GroupFetch,
    GroupOffsets,
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    MemberAssignment,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionResult,
    Response,
    SyncGroupRequest,
    TopicResult,
)
from protocol.partition import TopicPartition
from tests.fakes.disk import Disk
from tests.log.helpers import append, encode_flush, newest_segment
from tests.log.old_format import old_flush
from tests.packed import fetched as fetched_from
from tests.server.world import (
    ASSIGNMENT,
    WALL_MS,
    Client,
    World,
    beat,
    commit,
    join,
    world,
)

DONE = OffsetCommitResponse(0, (TopicResult("t", (PartitionResult(0, 0),)),))


async def turn() -> None:
    """Let everybody finish what they can do now."""
    await trio.testing.wait_all_tasks_blocked()


async def fetched(client: Client, group_id: str = "g") -> int:
    """Return the committed offset of t-0 in a group, -1 where there is none."""
    answer = await client.ask(OffsetFetchRequest((GroupFetch(group_id, None),), False))
    assert isinstance(answer, OffsetFetchResponse)
    found = [o.offset for g in answer.groups for t in g.topics for o in t.partitions]
    return found[0] if found else -1


async def test_nothing_is_acknowledged_before_it_is_on_disk(autojump_clock: MockClock) -> None:
    """The one promise of the whole thing."""
    async with world() as w:
        client, reader = w.connect(), w.connect()
        w.slow_disk.hold()
        sent = client.send(commit(5))
        await turn()
        read = reader.send(OffsetFetchRequest((GroupFetch("g", None),), False))
        await turn()
        assert client.answers() == {}
        # A read shows only what can't be lost any more, so it waits too.
        assert reader.answers() == {}
        hello = await reader.ask(ApiVersionsRequest("c", "s", "1"))
        assert isinstance(hello, ApiVersionsResponse)
        w.slow_disk.let_go()

        assert (await client.answer(sent)).response == DONE
        assert (await reader.answer(read)).response == OffsetFetchResponse(
            (fetched_from(w.node.shard_of("g").core, GroupFetch("g", None)),)
        )


async def test_a_group_without_changes_is_read_while_the_disk_is_slow(
    autojump_clock: MockClock,
) -> None:
    """Another group's commit must not hold up its reads."""
    async with world() as w:
        client = w.connect()
        assert await client.ask(commit(5)) == DONE
        w.slow_disk.hold()
        client.send(commit(6, group_id="other"))
        await turn()

        assert await fetched(client) == 5


async def test_that_a_group_is_gone_is_told_when_that_is_on_disk(
    autojump_clock: MockClock,
) -> None:
    """Else a crash brings back what somebody saw missing; a group that begins anew waits, too."""
    async with world("offsets.topic.num.partitions=1") as w:
        client, deleter, reader = w.connect(), w.connect(), w.connect()
        assert await client.ask(commit(5)) == DONE
        assert await client.ask(commit(6, group_id="other")) == DONE
        w.slow_disk.hold()
        sent = [deleter.send(DeleteGroupsRequest(("g",)))]
        fetches = [reader.send(OffsetFetchRequest((GroupFetch("g", None),), False))]
        fetches.append(reader.send(OffsetFetchRequest((GroupFetch("g", None),) * 2, False)))
        await turn()
        sent.append(deleter.send(commit(7, 1)))
        await turn()
        fetches.append(reader.send(OffsetFetchRequest((GroupFetch("g", None),), False)))
        await turn()
        assert (deleter.answers(), reader.answers()) == ({}, {})
        assert await fetched(client, "other") == 6  # Another group's is no matter of it.
        w.slow_disk.let_go()

        gone, done = [(await deleter.answer(one)).response for one in sent]
        assert (gone, done.error) == (DeleteGroupsResponse((DeletedGroup("g", 0),)), 0)  # type: ignore[attr-defined]  # these have one
        answers = [(await reader.answer(one)).response for one in fetches]
        nothing = GroupOffsets("g", 0, ())
        assert answers[:2] == [
            OffsetFetchResponse((nothing,)),
            OffsetFetchResponse((nothing, nothing)),
        ]
        again = fetched_from(w.node.shard_of("g").core, GroupFetch("g", None))
        assert answers[2] == OffsetFetchResponse((again,))
        assert [found.partition for found in again.topics[0].partitions] == [1]


async def test_commits_of_one_turn_share_a_sync(autojump_clock: MockClock) -> None:
    """Group commit is what makes it fast."""
    async with world() as w:
        clients = [w.connect() for _ in range(20)]
        await turn()
        before = len([o for o in w.disk.operations if o.startswith("sync ")])
        sent = [client.send(commit(7)) for client in clients]
        await turn()
        after = len([o for o in w.disk.operations if o.startswith("sync ")])

        assert after - before <= 2
        for client, correlation_id in zip(clients, sent, strict=True):
            assert (await client.answer(correlation_id)).response == DONE


async def test_what_is_decided_while_answers_are_sent_is_flushed_too(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A send that fails ends its session, and that may be the last event for a long time."""
    async with world() as w:
        client = w.connect()
        await turn()
        now = w.node.now()
        shard = w.node.shard_of("g")
        answers: list[object] = []

        class Waiting(Call):
            def prepare(
                self, answer: Response, leader_epoch: int, error: int | None = None
            ) -> Response:
                return answer

            def send(self, prepared: Response) -> None:
                answers.append(prepared)

        def decide_and_fail(_data: bytes) -> int:
            shard.handle(commit(5), Waiting(commit(5)), Caller("c", "p"), now)
            raise trio.BrokenResourceError

        monkeypatch.setattr(client.transport, "send_now", decide_and_fail)
        client.send(beat())
        await turn()

        assert [DONE] == answers
        assert client.transport.closed


async def test_a_commit_that_waits_too_long_is_of_unknown_outcome(
    autojump_clock: MockClock,
) -> None:
    """It may still apply, and here does; its one answer has been given."""
    async with world() as w:
        client = w.connect()
        w.slow_disk.hold()
        sent = client.send(commit(5))
        await trio.sleep(4.9)
        assert client.answers() == {}
        await trio.sleep(0.7)
        assert (await client.answer(sent)).response.error == 1000  # type: ignore[attr-defined]  # these have one
        w.slow_disk.let_go()

        assert await fetched(client) == 5
        assert len(client.answers()) == 2
        assert not client.transport.closed


async def test_a_slow_disk_evicts_nobody(autojump_clock: MockClock) -> None:
    """Test 9: heartbeats need no disk."""
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone()
        w.slow_disk.hold()
        client.send(commit(1, group_id="other"))
        for _ in range(10):
            await trio.sleep(3)
            assert await client.ask(beat(member_id)) == HeartbeatResponse(0)


@pytest.mark.parametrize("timeout_ms", [15_000, 60_000])
async def test_who_waited_for_the_disk_past_its_session_is_watched_again(
    timeout_ms: int, autojump_clock: MockClock
) -> None:
    """The answer, or word that there is none, must bring its deadline back, and somebody's eye."""
    async with world(f"offsets.commit.timeout.ms={timeout_ms}") as w:
        client = w.connect()
        member_id = await client.join_alone()
        w.slow_disk.hold()
        client.send(structs.replace(commit(5), generation_id=1, member_id=member_id))
        await trio.sleep(20)
        w.slow_disk.let_go()
        await turn()
        assert "group.member_removed" not in w.event_names()
        await trio.sleep(11)

        assert "group.member_removed" in w.event_names()


async def test_below_the_reserve_new_data_is_refused(autojump_clock: MockClock) -> None:
    """Definite, while members live on and may leave; and it ends without a restart."""
    disk = Disk(total_bytes=1 << 40)
    async with world("storage.reserve.bytes=1000000", disk=disk) as w:
        client = w.connect()
        member_id = await client.join_alone()
        disk.free_bytes = 999_999
        await trio.sleep(1)

        assert w.metrics["disk_reserve_bytes"]() == 1_000_000
        assert await client.error(commit(5, group_id="x")) == 1004
        refused = await client.ask(join("new"))
        assert isinstance(refused, JoinGroupResponse)
        assert refused.error == ErrorCode.STORAGE_FULL
        assert await client.ask(beat(member_id)) == HeartbeatResponse(0)
        left = await client.ask(LeaveGroupRequest("g", (LeavingMember(member_id, None, None),)))
        assert left == LeaveGroupResponse(0, (LeftMember(member_id, None, 0),))
        assert w.event_names().count("storage.full") == 1
        disk.free_bytes = 1_000_000
        await trio.sleep(1)
        assert await client.ask(commit(5, group_id="x")) == DONE
        assert w.event_names().count("storage.has_room") == 1


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("free_bytes", [1, 1 << 30])
async def test_what_was_last_seen_of_the_disk_stands_while_it_cannot_be_seen(
    free_bytes: int, code: int, autojump_clock: MockClock
) -> None:
    """A network file system is away for a moment: a reason to tell, not to end, and told once."""
    async with world("storage.reserve.bytes=1000000") as w:
        client = w.connect()
        w.disk.free_bytes = free_bytes
        await trio.sleep(1)
        w.disk.room_errno = code
        w.disk.free_bytes = 1_000_001
        await trio.sleep(3)

        assert await client.error(commit(5)) == (0 if free_bytes > 1 else 1004)
        assert w.metrics["disk_free_bytes"]() == free_bytes
        told = [f["problem"] for name, f in w.events if name == "health.problem"]
        assert len(told) == 1
        assert ("can't be seen" in w.node.health.problems["storage"]) == (free_bytes > 1)
        w.disk.room_errno = 0
        await trio.sleep(1)
        assert w.metrics["disk_free_bytes"]() == 1_000_001
        assert await client.error(commit(5)) == 0
        assert w.event_names().count("health.recovered") == 1


async def test_a_start_does_not_need_to_see_the_room_on_the_disk(
    autojump_clock: MockClock,
) -> None:
    """The daemon does as on a full disk, and takes its ballast once the room is seen."""
    disk = Disk()
    disk.room_errno = errno.EIO
    async with world("storage.reserve.bytes=1000000", disk=disk) as w:
        client = w.connect()
        assert await client.error(commit(5)) == 0
        assert w.journal.want_roll()
        await trio.sleep(1)
        w.disk.room_errno = 0
        await trio.sleep(1)
        assert len(disk.files()["ballast"]) == BALLAST_BYTES
        assert w.node.health.problems == {}


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("has_ballast", [True, False])
async def test_a_look_at_the_ballast_that_fails_changes_nothing(
    code: int, *, has_ballast: bool, autojump_clock: MockClock
) -> None:
    """The janitor looks again a moment later, and takes what is missing then."""
    async with world("storage.reserve.bytes=1000000") as w:
        client = w.connect()
        if not has_ballast:
            w.disk.delete("ballast")
        before = w.disk.files().get("ballast")
        w.disk.look_errnos["ballast"] = [code] * 10
        await trio.sleep(2)
        assert 0 < len(w.disk.look_errnos["ballast"]) < 10
        assert w.disk.files().get("ballast") == before
        assert await client.error(commit(5)) == 0
        await trio.sleep(5)
        assert len(w.disk.files()["ballast"]) == BALLAST_BYTES


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("part", ["janitor", "flush", "roll"])
async def test_a_look_at_the_lock_that_fails_once_ends_nothing(
    part: str, code: int, autojump_clock: MockClock
) -> None:
    """The next look, at once, shows that nobody else has the folder."""
    async with world() as w:
        client = w.connect()
        assert await client.error(commit(4)) == 0
        w.disk.look_errnos["lock"] = [code]
        if part == "roll":
            w.journal.want_roll()
        if part == "janitor":
            await trio.sleep(1)
        else:
            assert await client.error(commit(5)) == 0
        assert w.disk.look_errnos["lock"] == []
        assert await client.error(commit(6)) == 0


@pytest.mark.parametrize("part", ["janitor", "flush", "roll"])
async def test_nothing_is_acknowledged_while_the_lock_cannot_be_seen(
    part: str, autojump_clock: MockClock
) -> None:
    """The daemon ends with 74 and the reason, as if another process had the folder: one may."""
    clients: list[Client] = []

    async def run_until_it_ends() -> None:
        async with world() as w:
            clients.append(w.connect())
            assert await clients[0].ask(commit(4)) == DONE
            w.disk.look_errnos["lock"] = [errno.ESTALE] * 100
            if part == "roll":
                w.journal.want_roll()
            if part != "janitor":
                clients[0].send(commit(5))
            await trio.sleep(1)

    with pytest.raises(BaseExceptionGroup) as failed:
        await run_until_it_ends()

    assert failed.group_contains(FolderLost, match="lock file of the data folder can't be seen")
    assert _exit_status_of(failed.value) == EXIT_WRITE_FAILED
    assert len(clients[0].answers()) == 1


async def test_a_disk_that_is_filled_in_one_step_refuses_new_data_at_once(
    autojump_clock: MockClock,
) -> None:
    """The ballast has room for the flush that met it, and the next look would be too late."""
    disk = Disk()
    disk.free_bytes = 1_100_000  # Few zeros are written ahead.
    async with world("storage.reserve.bytes=1000000", disk=disk) as w:
        client = w.connect()
        assert await client.error(commit(5)) == 0
        w.disk.limit_bytes = w.disk.used_bytes()
        began_s = trio.current_time()
        errors = []
        while 1004 not in errors:
            errors.append(await client.error(commit(6, *range(200))))
        assert trio.current_time() == began_s
        assert set(errors[:-1]) == {0}
        assert w.event_names().count("storage.full") == 1
        w.disk.limit_bytes, w.disk.free_bytes = None, 1 << 40
        await trio.sleep(1)
        assert await client.error(commit(7)) == 0
        assert len(w.disk.files()["ballast"]) == BALLAST_BYTES


async def test_what_waits_for_a_disk_that_hangs_has_a_bound(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients repeat what was answered "outcome unknown", for as long as the disk hangs."""
    monkeypatch.setattr(health, "UNWRITTEN_BYTES_MAX", 2_000)
    async with world() as w:
        w.slow_disk.hold()
        for offset in range(500):
            w.connect().send(commit(offset))
            if offset % 10 == 0:
                await trio.sleep(0.5)  # The first one is being written; the others wait.
        assert 1_000 < w.journal.open_bytes < 1_200
        client = w.connect()
        assert await client.error(commit(5, group_id="x")) == ErrorCode.STORAGE_FULL
        assert "keep up" in w.node.health.problems["storage"]
        w.slow_disk.let_go()
        await trio.sleep(1)
        assert await client.ask(commit(7)) == DONE
        assert "storage" not in w.node.health.problems
        assert await fetched(client) == 7


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failed_write_ends_the_process_with_nothing_acknowledged(
    operation: str, autojump_clock: MockClock
) -> None:
    """After a failed fsync nobody knows what is on the disk; status 74."""
    disk = Disk()
    clients: list[Client] = []

    async def run_until_it_fails() -> None:
        async with world(disk=disk) as w:
            clients.extend(w.connect() for _ in range(3))
            assert await clients[0].ask(commit(1)) == DONE
            # The next flush is an append and a sync.
            disk.plan(fail_at=0 if operation == "write" else 1)
            for client in clients:
                client.send(commit(2))
            await trio.sleep(60)

    with pytest.raises(BaseExceptionGroup) as failed:
        await run_until_it_fails()

    assert failed.group_contains(LogFailed)
    assert _exit_status_of(failed.value) == EXIT_WRITE_FAILED
    assert disk.operations[-1].startswith(operation)
    assert [len(client.answers()) for client in clients] == [1, 0, 0]
    assert all(client.transport.closed for client in clients)


async def test_nobody_reads_what_a_failed_log_did_not_take(autojump_clock: MockClock) -> None:
    """The disk's thread knows of the failure first; until the process ends, requests come."""
    async with world() as w:
        client, reader = w.connect(), w.connect()
        assert await client.ask(commit(1)) == DONE
        append(w.journal, 0, 1)
        flush = w.journal.take_flush()
        assert flush is not None
        w.disk.plan(fail_at=0)
        with pytest.raises(LogFailed):
            w.journal.write_flush(flush)
        with structlog.testing.capture_logs() as logs:
            client.send(commit(2))
            await trio.sleep(1)
        assert len(client.answers()) == 1  # That of the first commit.
        assert client.transport.closed
        assert logs == []
        answer = await reader.ask(OffsetFetchRequest((GroupFetch("g", None),), False))
        assert isinstance(answer, OffsetFetchResponse)
        assert answer.groups[0].error == ErrorCode.NOT_COORDINATOR
        w.nursery.cancel_scope.cancel()


async def test_a_log_that_reached_its_limit_takes_no_new_data(autojump_clock: MockClock) -> None:
    """As a full disk; whoever raises the limit is served at once."""
    async with world("max.log.bytes=300") as w:
        client = w.connect()
        errors = []
        for _ in range(10):
            errors.append(await client.error(commit(5, group_id="x")))
            await trio.sleep(0.5)
        assert errors == sorted(errors)
        assert 300 <= w.journal.size_bytes < 500
        assert await client.error(commit(5, group_id="x")) == ErrorCode.STORAGE_FULL
        assert "max.log.bytes" in w.node.health.problems["storage"]
        assert w.metrics["log_bytes_limit"]() == 300
        w.store.keep_free(0, 10_000)
        w.node.check_storage()
        assert await client.ask(commit(5, group_id="x")) == DONE


async def test_a_node_tells_what_it_has_and_may_have(autojump_clock: MockClock) -> None:
    """An alert comes before the refusal."""
    async with world("max.offsets=3") as w:
        client = w.connect()
        assert await client.ask(commit(5, group_id="x")) == DONE
        await client.member_id("y")
        told = {name: w.metrics[name]() for name in ("groups", "members", "offsets")}
        assert told == {"groups": 2, "members": 1, "offsets": 1}
        assert (w.metrics["offsets_limit"](), w.metrics["groups_limit"]()) == (3, 1_000_000)


@pytest.mark.parametrize("lacks", ["speed", "room"])
async def test_assignments_cannot_fill_the_disk_or_the_memory(
    lacks: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be 8 MiB, and a member may rebalance its group as often as it likes."""
    monkeypatch.setattr(health, "UNWRITTEN_BYTES_MAX", 1_000_000)
    async with world("storage.reserve.bytes=2000000") as w:
        client = w.connect()
        member_id = await client.join_alone()
        if lacks == "speed":
            w.slow_disk.hold()
            client.send(commit(1, group_id="other"))  # This one is being written.
            await turn()
        else:
            w.disk.free_bytes = 1_500_000
            await trio.sleep(1)
        errors: list[int] = []
        generation = 1
        share = MemberAssignment(member_id, ASSIGNMENT + bytes(30_000))
        for _ in range(100):
            client.send(join("g", member_id))
            await turn()
            generation += 1
            sent = client.send(
                SyncGroupRequest("g", generation, member_id, None, None, None, (share,))
            )
            await turn()
            answered = client.answers().get(sent)
            errors += [] if answered is None else [getattr(answered.response, "error", 0)]
            if lacks == "room" and len(errors) == 20:
                assert set(errors) == {0}  # Groups go on for a while.
                w.disk.free_bytes = 999_999
                await trio.sleep(0.5)
        size_bytes = w.journal.size_bytes
        if lacks == "room":
            assert len(errors) == 100
            assert 0 not in errors[21:]
        else:
            assert 1_000_000 < w.journal.open_bytes < 1_100_000
        assert "assignments" in w.node.health.problems["storage"]

        w.disk.free_bytes = 1 << 40
        w.slow_disk.let_go()
        await trio.sleep(1)
        joined = await client.ask(join("g", member_id))
        assert isinstance(joined, JoinGroupResponse)
        assert joined.error == 0
        assert w.journal.size_bytes - size_bytes < (1_000 if lacks == "room" else 1_200_000)


@pytest.mark.parametrize("asks", ["commits", "only reads"])
async def test_whose_folder_was_taken_acknowledges_nothing_more(
    asks: str, autojump_clock: MockClock
) -> None:
    """A second daemon starts without the lock file; what the first one writes, nobody reads."""
    disk = Disk()
    clients: list[Client] = []

    async def run_until_it_notices() -> None:
        async with world(disk=disk) as w:
            clients.extend((w.connect(), w.connect()))
            assert await clients[0].ask(commit(1)) == DONE
            # A flush is on its way: it is synced, and the other daemon may have looked before.
            w.slow_disk.hold()
            if asks == "commits":
                clients[1].send(commit(2))
                await turn()
            disk.remove_lock()
            async with world(disk=disk) as other:
                assert await fetched(other.connect()) == 1
                w.slow_disk.let_go()
                await trio.sleep(2)

    with pytest.raises(BaseExceptionGroup) as failed:
        await run_until_it_notices()

    assert failed.group_contains(FolderLost)
    assert _exit_status_of(failed.value) == EXIT_WRITE_FAILED
    assert [len(client.answers()) for client in clients] == [1, 0]
    assert await restarted(disk.copy()) == (1, False)


async def restarted(disk: Disk) -> tuple[int, bool]:
    """Return the committed offset after a restart, and whether the stop was a clean one."""
    async with world(disk=disk) as w:
        clean = not w.journal.recovery_events
        return await fetched(w.connect()), clean


async def drained(w: World) -> None:
    """Stop as the daemon does."""
    w.listener.close()
    await w.node.drain()
    await turn()
    w.journal.close(clean=True)


async def test_a_drain_answers_everything(autojump_clock: MockClock) -> None:
    """What was begun is finished and told; what is parked is sent elsewhere."""
    disk = Disk()
    async with world(disk=disk) as w:
        committer, joiner, late = w.connect(), w.connect(), w.connect()
        member_id = await joiner.member_id("h")
        parked = joiner.send(join("h", member_id))
        w.slow_disk.hold()
        sent = committer.send(commit(5))
        await turn()
        w.nursery.start_soon(drained, w)
        await turn()
        # What was not appended is refused at once; what was waits for its flush.
        answer = (await joiner.answer(parked)).response
        assert isinstance(answer, JoinGroupResponse)
        assert answer.error == ErrorCode.NOT_COORDINATOR
        assert await late.error(beat()) == ErrorCode.NOT_COORDINATOR
        assert await late.error(commit(6)) == ErrorCode.NOT_COORDINATOR
        assert committer.answers() == {}
        refused = w.node.shards[0].status
        assert refused is Status.CLOSED
        w.slow_disk.let_go()

        assert (await committer.answer(sent)).response == DONE
    assert await restarted(disk) == (5, True)


async def test_acknowledged_commits_are_there_after_a_kill(autojump_clock: MockClock) -> None:
    """Without the clean marker, too."""
    disk = Disk()
    async with world(disk=disk) as w:
        assert await w.connect().ask(commit(5)) == DONE
        epoch = w.journal.leader_epoch
    disk.kill()

    async with world(disk=disk) as w:
        assert isinstance(w.journal, Journal)
        assert w.journal.leader_epoch == epoch + 1
        assert await fetched(w.connect()) == 5


async def test_a_log_inside_an_assignment_is_never_taken_for_the_log(
    autojump_clock: MockClock,
) -> None:
    """Whole batches of both formats, in a flush that a power cut tears anywhere."""
    packed = msgpack.packb([(0, 1, 0, "g", ("t", 0), (666, -1, "", WALL_MS, -1))])
    user_data = b"".join(
        encode_flush([(p, 10**6, WALL_MS, packed)], 1, start, FlushKey(b"a guess"))
        + old_flush([(p, 10**6, start, WALL_MS, packed)])
        for start in (5_000, 6_000)
        for p in range(4)
    )
    assignment = encode_assignment(Assignment((TopicPartition("t", 0),), user_data))
    disk = Disk()
    async with world(disk=disk) as w:
        client = w.connect()
        assert await client.ask(commit(5)) == DONE
        before = w.journal.size_bytes
        await client.join_alone(assignment=assignment)
        assert w.journal.size_bytes > before + len(user_data)
        crashed = disk.copy()
    name = newest_segment(crashed)
    content = crashed.files()[name]
    crashed.put("durable", encode_durable(before))
    start = content.rindex(user_data)
    for end in range(start + 37, start + len(user_data), 37):
        for torn in (content[:end], content[:start] + bytes(end - start) + content[end:]):
            disk = crashed.copy()
            disk.put(name, torn)
            async with world(disk=disk) as w:
                names = [event for event, _ in w.journal.recovery_events]
                assert names[0] == "log.torn_tail_cut"
                assert await fetched(w.connect(), "g") == 5
