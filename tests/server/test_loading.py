"""Loading: all partitions at the start, one alone, and what everybody is told meanwhile."""

from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings, strategies as st
from trio.testing import MockClock

from coordinator.group import shard
from coordinator.log.errors import LogCorrupt
from coordinator.log.format import NODE_PARTITION, Entry, Items, split_item
from coordinator.runtime.loading import LOAD_SLICE_ENTRIES, Abandoned
from coordinator.runtime.shard import Status
from protocol import messages as m
from protocol.errors import ErrorCode
from tests.fakes.disk import Disk
from tests.server.world import Client, World, beat, commit, join, world

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
ELSEWHERE = ErrorCode.NOT_COORDINATOR
UNKNOWN = ErrorCode.OUTCOME_UNKNOWN


def groups_by_partition(w: World) -> dict[int, str]:
    """Return a group of each partition."""
    found: dict[int, str] = {}
    for number in range(1_000):
        found.setdefault(w.node.shard_of(f"g{number}").partition, f"g{number}")
    assert len(found) == len(w.node.shards)
    return found


async def offset_of(client: Client, group_id: str) -> int:
    """Return the group's offset of t-0."""
    answer: Any = await client.ask(m.OffsetFetchRequest((m.GroupFetch(group_id, None),), False))
    (group,) = answer.groups
    assert not group.error, group
    offset: int = group.topics[0].partitions[0].offset if group.topics else -1
    return offset


async def test_a_partition_is_what_it_was_after_it_was_loaded_alone(
    autojump_clock: MockClock,
) -> None:
    """State is the fold of the log, whoever folds it."""
    async with world() as w:
        client = w.connect()
        groups = groups_by_partition(w)
        for group_id in groups.values():
            assert await client.error(commit(7, 0, 1, group_id=group_id)) == 0
        await client.join_alone(groups[2])
        before = [shard.core.hard_state() for shard in w.node.shards]

        w.node.unload(2)
        assert w.node.shards[2].core.hard_state() == {}
        await w.node.load_partition(2)

        assert before == [shard.core.hard_state() for shard in w.node.shards]
        assert await offset_of(client, groups[2]) == 7
        assert ("partition.unloaded", {"partition": 2}) in w.events
        assert w.event_names()[-1] == "partition.loaded"


async def test_a_partition_that_is_dropped_while_it_comes_to_rest_holds_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand-over lets go of what is soft some groups at a time; the node may be deposed meanwhile.

    What came to rest afterwards would be there beside what the log says.
    """
    monkeypatch.setattr(shard, "_SLICE_RESTS", 1)
    async with world("offsets.topic.num.partitions=1") as w:
        client = w.connect()
        for number in range(9):
            assert await client.error(commit(7, group_id=f"g{number}")) == 0
        runner = w.node.shards[0]
        before = runner.core.hard_state()
        runner.hand_over()
        assert await client.error(commit(8)) == ELSEWHERE
        resting = runner.rest(w.node.now)
        for _ in range(3):
            next(resting)
        assert runner.core.hard_state() == before
        w.node.unload(0)
        assert list(resting) == []
        assert runner.core.hard_state() == {}
        assert w.node.totals.used("groups") == 0
        await w.node.load_partition(0)

        assert runner.core.hard_state() == before


async def test_a_node_may_stop_while_a_partition_comes_to_rest(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for what is forgotten anyway, and who is parked in what is left is answered."""
    monkeypatch.setattr(shard, "_SLICE_RESTS", 1)
    async with world("offsets.topic.num.partitions=1") as w:
        client = w.connect()
        for number in range(9):
            assert await client.error(commit(7, group_id=f"g{number}")) == 0
        parked = client.send(join("g8", await client.member_id("g8")))
        await trio.testing.wait_all_tasks_blocked()
        runner = w.node.shards[0]
        runner.hand_over()
        resting = runner.rest(w.node.now)
        next(resting)
        assert parked not in client.answers()
        runner.unload(w.node.now())

        assert list(resting) == []
        answer: Any = (await client.answer(parked)).response
        assert answer.error == ELSEWHERE


async def test_a_commit_in_doubt_is_there_after_the_load(autojump_clock: MockClock) -> None:
    """It was appended, so it becomes durable; the load waits for that."""
    async with world() as w:
        client = w.connect()
        group_id = groups_by_partition(w)[3]
        w.slow_disk.hold()
        sent = client.send(commit(5, group_id=group_id))
        elsewhere = client.send(commit(5, group_id=groups_by_partition(w)[0]))
        await trio.testing.wait_all_tasks_blocked()

        w.node.unload(3)
        answer: Any = (await client.answer(sent)).response
        assert answer.error == UNKNOWN
        assert elsewhere not in client.answers()  # Of another partition: it waits on.
        assert await client.error(beat(group_id=group_id)) == ELSEWHERE

        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.node.load_partition, 3)
            await trio.testing.wait_all_tasks_blocked()
            assert w.node.shards[3].status is Status.LOADING
            assert await client.error(commit(6, group_id=group_id)) == LOADING
            w.slow_disk.let_go()

        assert await offset_of(client, group_id) == 5
        answer = (await client.answer(elsewhere)).response
        assert answer.error == 0


async def test_a_parked_join_is_told_16_at_once(autojump_clock: MockClock) -> None:
    """Nothing of it was appended; it need not wait for the disk either."""
    async with world() as w:
        client = w.connect()
        group_id = groups_by_partition(w)[0]
        member_id = await client.member_id(group_id)
        parked = client.send(join(group_id, member_id))
        await trio.testing.wait_all_tasks_blocked()
        assert parked not in client.answers()
        w.slow_disk.hold()
        kept = client.send(m.AlterGroupRetentionRequest(group_id, 5))
        await trio.testing.wait_all_tasks_blocked()

        w.node.unload(0)

        answer: Any = (await client.answer(parked)).response
        assert answer.error == ELSEWHERE
        answer = (await client.answer(kept)).response
        assert answer.error == UNKNOWN


async def test_loads_of_one_partition_hold_up_nobody_and_lose_nothing(
    autojump_clock: MockClock,
) -> None:
    """Fifty times under load: every commit that was acknowledged is there."""
    async with world() as w:
        groups = groups_by_partition(w)
        acknowledged = dict.fromkeys(groups.values(), 0)
        in_doubt = {group_id: {0} for group_id in groups.values()}
        moving = -1

        async def commit_for_ever(group_id: str, partition: int) -> None:
            client = w.connect()
            offset = 0
            while True:
                offset += 1
                was_moving = moving == partition
                error = await client.error(commit(offset, group_id=group_id))
                assert error == 0 or was_moving or moving == partition, error
                assert error in {0, LOADING, ELSEWHERE, UNKNOWN}
                if error == 0:
                    acknowledged[group_id] = offset
                    in_doubt[group_id] = {offset}
                elif error == UNKNOWN:
                    in_doubt[group_id].add(offset)
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            for partition, group_id in groups.items():
                nursery.start_soon(commit_for_ever, group_id, partition)
            for number in range(50):
                await trio.sleep(0.01)
                moving = number % len(groups)
                w.node.unload(moving)
                await trio.sleep(0.002)
                await w.node.load_partition(moving)
                await trio.testing.wait_all_tasks_blocked(0.0005)
            nursery.cancel_scope.cancel()
        await w.node.wait_durable()

        client = w.connect()
        for group_id in groups.values():
            found = await offset_of(client, group_id)
            assert found >= acknowledged[group_id] > 0
            assert found in in_doubt[group_id] or found > acknowledged[group_id]


async def load_if_wanted(w: World, partition: int) -> None:
    """Load a partition, unless it is served or being loaded, or is unloaded again."""
    with suppress(Abandoned):
        await w.node.load_partition(partition)


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["commit", "unload", "load"]))))
def test_any_order_of_unloads_and_loads_leaves_what_was_committed(
    steps: list[tuple[int, str]],
) -> None:
    """Also twice in a row, and in the middle of one another."""

    async def run() -> None:
        async with world() as w:
            client = w.connect()
            groups = groups_by_partition(w)
            kept: dict[int, int] = {}
            async with trio.open_nursery() as nursery:
                for number, (partition, step) in enumerate(steps):
                    if step == "unload":
                        w.node.unload(partition)
                    elif step == "load":
                        nursery.start_soon(load_if_wanted, w, partition)
                    elif await client.error(commit(number, group_id=groups[partition])) == 0:
                        kept[partition] = number
            for partition in groups:
                await load_if_wanted(w, partition)
            for partition, offset in kept.items():
                assert await offset_of(client, groups[partition]) == offset

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_a_load_that_nobody_wants_any_more_ends(autojump_clock: MockClock) -> None:
    """An election may be lost again before the log was read."""
    async with world() as w:
        w.slow_disk.hold()
        w.node.unload(1)
        async with trio.open_nursery() as nursery:

            async def load() -> None:
                with pytest.raises(Abandoned):
                    await w.node.load_partition(1)

            nursery.start_soon(load)
            await trio.testing.wait_all_tasks_blocked()
            w.node.unload(1)
            w.slow_disk.let_go()
        assert w.node.shards[1].status is Status.CLOSED

        await w.node.load_partition(1)
        with pytest.raises(Abandoned):
            await w.node.load_partition(1)
        assert w.node.ready


def big_log(entries_per_batch: int, batches: int, *, wide: bool = False) -> Disk:
    """Return a disk with a log of many entries of group "g" in one partition.

    With *wide*, one entry stands for those of a batch.
    """
    disk = Disk()

    async def write() -> None:
        async with world("offsets.topic.num.partitions=1", disk=disk) as w:
            for number in range(batches):
                value = (number, -1, "", 1, -1)
                entries = [Entry(1, 0, "g", ("t", p), value) for p in range(entries_per_batch)]
                if wide:
                    partitions = tuple(range(entries_per_batch))
                    columns = (tuple(number + p for p in partitions), *value[1:])
                    entries = [Entry(1, 1, "g", ("t", partitions), columns)]
                w.journal.append(0, entries, 1)
            w.node.want_flushes()
            await w.node.wait_durable()
            await trio.testing.wait_all_tasks_blocked()
            w.journal.close(clean=True)

    trio.run(write, clock=MockClock(autojump_threshold=0))
    return disk


@pytest.mark.parametrize(
    ("entries_per_batch", "batches", "wide"),
    [(1, 10_000, False), (10_000, 1, False), (100, 100, True), (10_000, 1, True)],
)
def test_requests_are_answered_between_the_slices_of_a_load(
    entries_per_batch: int, batches: int, monkeypatch: pytest.MonkeyPatch, *, wide: bool
) -> None:
    """Of many small batches and of a single large one, and of entries for many partitions."""
    disk = big_log(entries_per_batch, batches, wide=wide)
    turns = 0

    async def run() -> None:
        nonlocal turns
        async with world("offsets.topic.num.partitions=1", disk=disk, load=False) as w:
            client = w.connect()
            assert await client.error(commit()) == LOADING
            replayed: list[int] = []
            shard = w.node.shards[0]
            replay = shard.replay

            def count(items: Items) -> None:
                replayed.append(sum(len(split_item(item)) for item in items))
                replay(items)

            monkeypatch.setattr(shard, "replay", count)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(w.node.load)
                seen = 0
                while not w.node.ready:
                    await trio.lowlevel.checkpoint()
                    assert sum(replayed) - seen <= 2 * LOAD_SLICE_ENTRIES
                    turns += sum(replayed) > seen
                    seen = sum(replayed)
            assert sum(replayed) == 10_000
            assert await client.error(commit()) == 0

    trio.run(run, clock=MockClock(autojump_threshold=0))
    assert turns >= 5


def test_nothing_is_left_of_a_load_that_ends_between_two_slices() -> None:
    """What is unloaded is forgotten, also what was read a moment ago."""
    disk = big_log(1, 10_000)

    async def run() -> None:
        async with world("offsets.topic.num.partitions=1", disk=disk) as w:
            shard = w.node.shards[0]
            w.node.unload(0)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(load_if_wanted, w, 0)
                while not shard.core.hard_state():
                    await trio.lowlevel.checkpoint()
                assert shard.status is Status.LOADING
                w.node.unload(0)
            assert shard.core.hard_state() == {}

    trio.run(run, clock=MockClock(autojump_threshold=0))


async def test_a_node_says_how_far_its_load_is(autojump_clock: MockClock) -> None:
    """For whoever waits for it, and for health checks."""
    disk = Disk()
    async with world(disk=disk) as w:
        client = w.connect()
        assert await client.error(commit(3, 0, 1, 2)) == 0
        partition = w.node.shard_of("g").partition
        await w.node.drain()
        w.journal.close(clean=True)

    async with world(disk=disk, load=False) as w:
        client = w.connect()
        w.slow_disk.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(w.node.load)
            loading: Any = await client.ask(m.DescribeNodeRequest())
            w.slow_disk.let_go()
        ready: Any = await client.ask(m.DescribeNodeRequest())

    assert (0, 1, 2) == (loading.error, loading.node_id, loading.leader_epoch)
    assert (loading.status, ready.status) == ("loading", "ready")
    assert loading.partitions[partition] == m.NodePartition(partition, "loading", 0, 3)
    assert ready.partitions[partition] == m.NodePartition(partition, "active", 3, 3)
    assert [p.offsets_partition for p in ready.partitions] == [0, 1, 2, 3, NODE_PARTITION]
    before, after = ({one.name: one.value for one in a.metrics} for a in (loading, ready))
    assert (before["partitions_loading"], after["partitions_loading"]) == (4, 0)
    assert (after["groups"], after["offsets"]) == (1, 3)
    assert after["log_bytes"] > 0
    assert list(after) == sorted(after)


async def test_a_problem_makes_a_node_unhealthy_until_it_is_gone(
    autojump_clock: MockClock,
) -> None:
    """A full disk, for one."""
    disk = Disk()
    async with world("storage.reserve.bytes=1000", disk=disk) as w:
        client = w.connect()
        disk.free_bytes = 500
        await trio.sleep(1)
        full: Any = await client.ask(m.DescribeNodeRequest())
        disk.free_bytes = 5_000
        await trio.sleep(1)
        well: Any = await client.ask(m.DescribeNodeRequest())

    assert (full.status, well.status) == ("unhealthy", "ready")
    (problem,) = full.problems
    assert problem.part == "storage"
    assert "reserve" in problem.problem
    assert well.problems == ()


async def test_an_operator_has_a_partition_loaded_again(autojump_clock: MockClock) -> None:
    """As another node would that takes it over."""
    async with world() as w:
        client = w.connect()
        assert await client.error(commit(3, 0, 1, 2)) == 0
        partition = w.node.shard_of("g").partition

        w.slow_disk.hold()
        first = client.send(m.ReloadPartitionRequest(partition))
        await trio.testing.wait_all_tasks_blocked()
        assert await client.error(m.ReloadPartitionRequest(partition)) == LOADING
        assert await client.error(commit()) == LOADING
        w.slow_disk.let_go()
        done: Any = (await client.answer(first)).response

        assert (0, None, 3) == (done.error, done.message, done.entries)
        assert await offset_of(client, "g") == 3
        assert await client.error(m.ReloadPartitionRequest(4)) == ErrorCode.INVALID_REQUEST


async def test_a_partition_is_not_loaded_again_and_again(autojump_clock: MockClock) -> None:
    """Each time its groups are sent away: in a loop, nearly none of their commits succeed."""
    async with world("partition.reload.min.interval.ms=5000") as w:
        client = w.connect()
        partition = w.node.shard_of("g").partition
        again = m.ReloadPartitionRequest(partition)
        assert await client.error(again) == 0
        await trio.sleep(4)

        refused: Any = await client.ask(again)
        assert (refused.error, refused.entries) == (ErrorCode.TOO_MANY_REQUESTS, -1)
        assert "4000 ms ago; partition.reload.min.interval.ms is 5000" in refused.message
        assert await client.error(commit()) == 0
        assert await client.error(m.ReloadPartitionRequest((partition + 1) % 4)) == 0
        await trio.sleep(1)
        assert await client.error(again) == 0


async def test_a_partition_that_cannot_be_read_stays_closed_and_the_others_do_not(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in memory of the others is whole."""
    async with world() as w:
        client = w.connect()
        groups = groups_by_partition(w)
        for group_id in groups.values():
            assert await client.error(commit(3, group_id=group_id)) == 0

        def damaged(partition: int) -> None:
            raise LogCorrupt(f"partition {partition} is damaged")

        with monkeypatch.context() as patch:
            patch.setattr(w.store, "load_partition", damaged)
            failed: Any = await client.ask(m.ReloadPartitionRequest(1))
            await client.ask(m.ReloadPartitionRequest(2))
        assert await client.error(m.ReloadPartitionRequest(2)) == 0
        assert (failed.error, failed.message) == (-1, "partition 1 is damaged")
        assert await client.error(commit(4, group_id=groups[1])) == ELSEWHERE
        assert await client.error(commit(4, group_id=groups[0])) == 0
        node: Any = await client.ask(m.DescribeNodeRequest())
        assert node.status == "unhealthy"
        assert node.partitions[1].status == "closed"

        assert await client.error(m.ReloadPartitionRequest(1)) == 0
        node = await client.ask(m.DescribeNodeRequest())
        assert node.status == "ready"
        assert await offset_of(client, groups[1]) == 3


async def test_a_reload_that_the_end_of_the_node_overtakes_is_answered(
    autojump_clock: MockClock,
) -> None:
    """Nobody waits for ever; and the stop is a clean one."""
    async with world() as w:
        client = w.connect()
        w.slow_disk.hold()
        sent = [client.send(m.ReloadPartitionRequest(partition)) for partition in (0, 1)]
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await w.node.drain()
        w.slow_disk.let_go()
        await trio.sleep(1)

        answers: list[Any] = [client.answers()[i].response for i in sent]
        assert [a.error for a in answers] == [ELSEWHERE, ELSEWHERE]
        assert await client.error(m.ReloadPartitionRequest(0)) == ELSEWHERE


async def test_a_topic_that_was_deleted_meanwhile_is_purged_by_a_partition_that_comes_back(
    autojump_clock: MockClock,
) -> None:
    """A deletion is not over before every shard is done with it, one that was away too."""
    async with world() as w:
        client = w.connect()
        topic = m.TopicRegistration("t", 3, None)
        assert await client.error(m.RegisterTopicsRequest((topic,))) == 0
        groups = groups_by_partition(w)
        for group_id in groups.values():
            assert await client.error(commit(3, group_id=group_id)) == 0
        w.node.unload(2)
        assert await client.error(m.DeleteTopicsRequest(("t",))) == 0
        await trio.sleep(1)
        assert "t" in w.node.registry.core.registry.topics

        await w.node.load_partition(2)
        await trio.sleep(1)

        assert "t" not in w.node.registry.core.registry.topics
        assert await offset_of(client, groups[2]) == -1


async def test_reloads_that_are_pipelined_into_a_reset_leave_nothing_counted(
    autojump_clock: MockClock,
) -> None:
    """A connection once ended within its own turn, and went on with requests it no longer had."""
    async with world("partition.reload.min.interval.ms=0") as w:
        for cut_after in range(12):
            client = w.connect()
            await client.ask(commit(cut_after))
            requests = [commit(1), m.ReloadPartitionRequest(cut_after % 4), commit(2)] * 40
            client.transport.put(b"".join(client.frame(request)[1] for request in requests))
            for _ in range(cut_after):
                await trio.lowlevel.checkpoint()
            client.transport.reset()
            await trio.sleep(1)

        assert client.transport.closed
        assert w.metrics["requests_waiting_bytes"]() == w.metrics["requests_parked"]() == 0
        assert w.metrics["connections"]() == 0
        assert await w.connect().error(commit(7)) == 0
        assert w.environment.telemetry.refused.get("failed", 0) == 0
        assert w.environment.telemetry.connections_closed.get("failed", 0) == 0
