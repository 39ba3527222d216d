"""The log of a running daemon stays small, and nobody notices how."""

import errno
import random
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from coordinator.log.journal import Journal
from coordinator.log.recovery import BALLAST_BYTES
from coordinator.log.state_files import STATE_NAMES
from coordinator.runtime import compactor
from coordinator.runtime.children import CompactionFailed
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.messages import error_response
from tests.fakes.disk import Disk
from tests.log.helpers import loaded
from tests.server.world import Client, World, commit, world

SEGMENT_BYTES: Final = 4096
SMALL: Final = f"offsets.topic.segment.bytes={SEGMENT_BYTES}"
MANUAL: Final = "log.cleaner.enable=false"
AT_ONCE: Final = "log.cleaner.delete.retention.ms=0"
DIED: Final = CompactionFailed("the compaction process was killed by signal 9")
DAMAGED: Final = CompactionFailed("segment s is damaged", is_damage=True)


async def turn() -> None:
    """Let everybody finish what they can do now."""
    await trio.testing.wait_all_tasks_blocked()


def compacted(w: World) -> int:
    """Return how many compactions have come to their end."""
    return w.event_names().count("compaction.finished")


def content(journal: Journal) -> list[tuple[int, int, Any]]:
    """Return partition, offset and entry of everything in the log."""
    return [(b.partition, offset, e) for b in loaded(journal) for offset, e in b.entries]


def on_disk(disk: Disk) -> int:
    """Return the size of everything that a compaction may shrink, or leaves behind."""
    files = disk.files().items()
    return sum(len(data) for name, data in files if name.endswith((".segment", ".tmp")))


def left_behind(w: World) -> list[str]:
    """Return the files that no start should find."""
    listed = {s.name for s in w.journal.manifest.segments} | STATE_NAMES
    return [name for name in w.disk.files() if name not in listed]


async def overwrite(client: Client, rounds: int, *, keys: int = 10, first: int = 0) -> None:
    """Commit the same partitions again and again."""
    for number in range(first, first + rounds):
        answer: Any = await client.ask(commit(number, number % keys))
        assert answer.error == 0


async def ask_to_compact(client: Client) -> m.CompactLogResponse:
    """Send a CompactLog and return its answer."""
    answer = await client.ask(m.CompactLogRequest())
    assert isinstance(answer, m.CompactLogResponse)
    return answer


async def offsets(client: Client) -> dict[int, int]:
    """Return what is committed."""
    answer: Any = await client.ask(m.OffsetFetchRequest((m.GroupFetch("g", None),), False))
    return {o.partition: o.offset for g in answer.groups for t in g.topics for o in t.partitions}


async def test_under_a_steady_load_of_overwrites_the_log_stays_small(
    autojump_clock: MockClock,
) -> None:
    """Below 2 times what is live and a segment; 3 times and two while a compaction runs."""
    async with world(SMALL) as w:
        client = w.connect()
        keys = 100
        await overwrite(client, keys, keys=keys)
        live_bytes = w.journal.size_bytes
        assert live_bytes > SEGMENT_BYTES
        # Indexes count, too: here a tenth of a segment of such small batches.
        resting_bytes = 1.1 * (2 * live_bytes + SEGMENT_BYTES)
        running_bytes = 1.1 * (3 * live_bytes + 2 * SEGMENT_BYTES)
        seen: dict[bool, list[int]] = {False: [], True: []}

        async def look() -> None:
            await trio.lowlevel.checkpoint()
            seen[True].append(on_disk(w.disk))

        w.child.between_steps = look
        for number in range(keys, 3_000):
            await overwrite(client, 1, keys=keys, first=number)
            running = bool(w.metrics["compaction_running"]())
            # The tests' disk is as fast as its client: between two commits all is done.
            seen[running].append(on_disk(w.disk))

        assert compacted(w) > 20
        assert max(seen[False]) < resting_bytes
        assert max(seen[True]) < running_bytes
        assert left_behind(w) == []
        assert {k: 2_900 + k for k in range(keys)} == await offsets(client)
        assert w.journal.live_bytes < resting_bytes


@pytest.mark.parametrize("step", ["write manifest.tmp", "rename manifest.tmp manifest", "rename c"])
async def test_a_compaction_that_finds_no_room_for_the_manifest_is_tried_again_later(
    step: str, autojump_clock: MockClock
) -> None:
    """Neither in that of the ballast: it is one that failed, and commits go on meanwhile."""
    failing = 1_000_000
    for _ in range(2):
        async with world(SMALL, MANUAL) as w:
            client = w.connect()
            await overwrite(client, 100)
            w.disk.plan(fail_at=failing, error=errno.ENOSPC, fails_again=True)
            answer = await ask_to_compact(client)
            if failing == 1_000_000:
                assert answer.error == 0
                steps = w.disk.operations
                failing = max(n for n, name in enumerate(steps) if name.startswith(step))
                continue
            assert answer.error == ErrorCode.OUTCOME_UNKNOWN
            assert "no room" in (answer.message or "")
            assert w.event_names().count("compaction.failed") == 1
            assert "no room" in w.node.health.problems["compaction"]
            await overwrite(client, 1, keys=1, first=100)
            w.disk.plan()
            await trio.sleep(2)
            assert compacted(w) == 1
            assert w.node.health.problems == {}
            assert len(w.disk.files()["ballast"]) == BALLAST_BYTES
            assert left_behind(w) == []
            assert {**{k: 90 + k for k in range(10)}, 0: 100} == await offsets(client)


@pytest.mark.parametrize("seed", range(6))
async def test_the_state_after_a_restart_is_that_before_whatever_was_compacted(
    seed: int, autojump_clock: MockClock
) -> None:
    """Commits, removals, groups and topics that come and go; memory is what the log says."""
    rng = random.Random(seed)
    disk = Disk()
    told: dict[str, Any] = {}
    done = 0
    for life in range(4):
        async with world(SMALL, *rng.choice([(AT_ONCE,), ()]), disk=disk) as w:
            assert told == state_of(w) or life == 0
            client = w.connect()
            for number in range(rng.randrange(60, 160)):
                await client.ask(some_request(rng))
                w.wall_ms += rng.choice((0, 1, 1_000))
                if rng.random() < 0.05:
                    await client.join_alone(f"members-{life}-{number}")
                if rng.random() < 0.03:
                    await ask_to_compact(client)
            await turn()
            done += compacted(w)
            told = state_of(w)
            if rng.random() < 0.5:
                await w.node.drain()
                w.journal.close(clean=True)
        disk.kill()

    assert done > 3


def some_request(rng: random.Random) -> m.Request:
    """Return a request that may change something that is kept."""
    group = rng.choice("abcdefgh")
    topic = rng.choice(("t", "u"))
    kind = rng.random()
    if kind < 0.7:
        numbers = range(rng.randrange(1, 4))
        partitions = tuple(
            m.PartitionCommit(p, rng.randrange(99), -1, "x" * 30, None) for p in numbers
        )
        return m.OffsetCommitRequest(group, -1, "", None, (m.TopicCommit(topic, partitions),))
    if kind < 0.78:
        return m.OffsetDeleteRequest(group, (m.TopicPartitions(topic, (0, 1)),))
    if kind < 0.84:
        return m.DeleteGroupsRequest((group,))
    if kind < 0.88:
        return m.AlterGroupRetentionRequest(group, rng.choice((None, -1, 10**9)))
    if kind < 0.93:
        return m.RegisterTopicsRequest((m.TopicRegistration(topic, rng.randrange(1, 4), None),))
    if kind < 0.97:
        ends = (m.TopicEnds(topic, (m.PartitionEnd(0, rng.randrange(99)),)),)
        return m.ReportEndOffsetsRequest(ends)
    return m.DeleteTopicsRequest((topic,))


def state_of(w: World) -> dict[str, Any]:
    """Return all hard state, but for groups of which nothing is left."""
    groups = [shard.core.hard_state() for shard in w.node.shards]
    known = {
        group_id: group
        for shard in groups
        for group_id, group in shard.items()
        if any((group.generation, group.stable, group.offsets, group.retention_ms is not None))
        or group.rebalances
    }
    return {"groups": known, "topics": w.node.registry.core.hard_state()}


async def test_a_compaction_by_command_takes_in_all_that_was_written(
    autojump_clock: MockClock,
) -> None:
    """Also what is in the newest segment, which is sealed for it."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 200)
        before = w.journal.size_bytes
        answer = await ask_to_compact(client)

        assert answer.error == 0
        assert answer.log_bytes == w.journal.size_bytes == before - answer.removed_bytes
        assert answer.live_bytes == answer.log_bytes < before / 10
        assert len(content(w.journal)) == 10
        assert {k: 190 + k for k in range(10)} == await offsets(client)
        assert left_behind(w) == []

        assert w.journal.manifest.dispensable == ()

        again = await ask_to_compact(client)
        assert (again.error, again.removed_bytes) == (0, 0)
        assert again.log_bytes == answer.log_bytes


async def test_how_much_is_dirty_is_told(autojump_clock: MockClock) -> None:
    """Whoever waits for the next compaction sees it come."""
    async with world(MANUAL, SMALL) as w:
        client = w.connect()
        dirty = w.metrics["log_dirty_percent"]
        assert dirty() == 0
        await overwrite(client, 200)
        assert dirty() == 100
        await ask_to_compact(client)

        assert dirty() == 0


async def test_what_compactions_removed_never_goes_back(autojump_clock: MockClock) -> None:
    """A commit of which every second offset was overwritten is cut to pieces that take more."""
    async with world(MANUAL) as w:
        client = w.connect()
        for partitions in (range(200), range(0, 200, 2)):
            commits = tuple(m.PartitionCommit(p, 1, -1, "", None) for p in partitions)
            topics = (m.TopicCommit("t", commits),)
            await client.ask(m.OffsetCommitRequest("g", -1, "", None, topics))
        before = w.journal.size_bytes
        answer = await ask_to_compact(client)

        assert answer.log_bytes == before - answer.removed_bytes > before
        assert w.metrics["compaction_removed_bytes_total"]() == 0


async def test_what_is_live_is_known_better_after_a_compaction(
    autojump_clock: MockClock,
) -> None:
    """The reserve of the disk follows from it: three logs' worth of room is a lot to ask for."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 200)
        assert w.journal.live_bytes == w.journal.size_bytes
        live_bytes = (await ask_to_compact(client)).live_bytes
        await overwrite(client, 200)

        assert live_bytes < w.journal.live_bytes <= 2 * live_bytes < w.journal.size_bytes / 5


async def test_an_empty_log_is_compacted_at_once(autojump_clock: MockClock) -> None:
    """There is nothing to do, and that is no error."""
    async with world() as w:
        answer = await ask_to_compact(w.connect())

        assert answer == m.CompactLogResponse(0, None, 0, 0, 0, 0)


async def test_nothing_is_compacted_by_itself_where_that_is_switched_off(
    autojump_clock: MockClock,
) -> None:
    """The command works all the same."""
    async with world(SMALL, MANUAL) as w:
        client = w.connect()
        await overwrite(client, 500)
        await turn()
        assert w.child.jobs == []

        assert (await ask_to_compact(client)).removed_bytes > 5 * SEGMENT_BYTES


async def test_old_segments_are_looked_at_after_the_load(autojump_clock: MockClock) -> None:
    """A daemon that was stopped in time to save it the work has it still to do."""
    disk = Disk()
    async with world(SMALL, MANUAL, disk=disk) as w:
        await overwrite(w.connect(), 200)
    disk.kill()
    async with world(SMALL, disk=disk, load=False) as w:
        await turn()
        assert w.child.jobs == []
        await w.node.load()
        await turn()

        assert compacted(w) == 1


async def test_a_child_that_dies_is_told_and_started_again_later_and_later(
    autojump_clock: MockClock,
) -> None:
    """Commits go on meanwhile, and what it had written is gone."""
    async with world(SMALL) as w:
        client = w.connect()
        w.child.deaths = [DIED] * 4
        await overwrite(client, 80)
        await turn()
        failures = [fields for name, fields in w.events if name == "compaction.failed"]
        assert failures == [{"reason": str(DIED), "retry_in_ms": 1_000}]
        assert w.node.health.problems == {"compaction": str(DIED)}
        assert left_behind(w) == []
        assert w.metrics["compaction_failures_total"]() == 1

        started = trio.current_time()
        while w.node.health.problems:
            await trio.sleep(0.25)
            await overwrite(client, 1)
        failures = [fields for name, fields in w.events if name == "compaction.failed"]

        assert [f["retry_in_ms"] for f in failures] == [1_000, 2_000, 4_000, 8_000]
        assert trio.current_time() - started == pytest.approx(15, abs=0.5)
        assert compacted(w) == 1
        assert "health.recovered" in w.event_names()

        w.child.deaths = [DIED]
        await overwrite(client, 200)
        await turn()
        assert [f for n, f in w.events if n == "compaction.failed"][-1]["retry_in_ms"] == 1_000


async def test_the_pause_between_tries_does_not_grow_for_ever(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that had room again an hour ago should be noticed."""
    monkeypatch.setattr(compactor, "RETRY_LAST_S", 10.0)
    async with world(SMALL) as w:
        w.child.deaths = [DIED] * 30
        await overwrite(w.connect(), 80)
        await trio.sleep(350)
        pauses = [f["retry_in_ms"] for name, f in w.events if name == "compaction.failed"]

        assert pauses == [1_000, 2_000, 4_000, 8_000] + [10_000] * 26
        assert w.child.deaths == []


async def test_damage_is_told_and_not_tried_again(autojump_clock: MockClock) -> None:
    """It would be found again and again; a person has to look, and may then ask for another."""
    async with world(SMALL) as w:
        client = w.connect()
        w.child.deaths = [DAMAGED]
        await overwrite(client, 300)
        await trio.sleep(300)
        assert len(w.child.jobs) == 1
        assert w.node.health.problems == {"compaction": str(DAMAGED)}
        assert ("compaction.failed", {"reason": str(DAMAGED), "retry_in_ms": -1}) in w.events

        assert (await ask_to_compact(w.connect())).error == 0
        assert w.node.health.problems == {}


async def test_who_asked_is_told_why_it_failed(autojump_clock: MockClock) -> None:
    """In words; it is tried again without being asked."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 20)
        w.child.deaths = [DIED]
        answer = await ask_to_compact(client)

        assert answer == m.CompactLogResponse(1000, str(DIED), -1, -1, -1, -1)

        await trio.sleep(1.5)
        assert compacted(w) == 1


async def test_requests_share_a_compaction_that_has_not_begun(autojump_clock: MockClock) -> None:
    """Those that come later may not be answered with what was done before."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 20)
        gate = trio.Event()
        w.child.between_steps = gate.wait
        sent = [client.send(m.CompactLogRequest()) for _ in range(2)]
        await turn()
        sent += [client.send(m.CompactLogRequest()) for _ in range(3)]
        await turn()
        gate.set()
        answers: list[Any] = [(await client.answer(s)).response for s in sent]

        assert [a.error for a in answers] == [0] * 5
        assert len(w.child.jobs) in {2, 3}


async def test_too_many_requests_are_refused(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is kept until its answer."""
    monkeypatch.setattr(compactor, "REQUESTS_WAITING_MAX", 2)
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 20)
        gate = trio.Event()
        w.child.between_steps = gate.wait
        first = client.send(m.CompactLogRequest())
        await turn()
        sent = [client.send(m.CompactLogRequest()) for _ in range(3)]
        refused = await client.answer(sent[-1])

        assert refused.response == error_response(
            m.CompactLogRequest(), ErrorCode.TOO_MANY_REQUESTS
        )
        assert first not in client.answers()


async def test_a_stop_ends_the_child_and_leaves_nothing(autojump_clock: MockClock) -> None:
    """Nobody waits for a compaction that the next start can do as well."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 50)
        w.child.step_bytes = 100

        async def begin_to_write() -> None:
            if left_behind(w):
                await trio.sleep_forever()

        w.child.between_steps = begin_to_write
        asked, waiting = (client.send(m.CompactLogRequest()) for _ in range(2))
        await turn()
        assert left_behind(w) != []
        await w.node.drain()
        codes = [(await client.answer(sent)).response for sent in (asked, waiting)]

        assert codes == [error_response(m.CompactLogRequest(), 16)] * 2
        assert left_behind(w) == []

        w.journal.close(clean=True)
        assert "clean" in w.disk.files()


async def test_a_stop_lets_a_swap_end(autojump_clock: MockClock) -> None:
    """A folder must not be given back while its manifest is being replaced."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 50)
        w.slow_disk.has_one_lane = False
        held = False

        async def hold_then_go() -> None:
            nonlocal held
            if not held:
                held = True
                w.slow_disk.hold()

        w.child.between_steps = hold_then_go
        client.send(m.CompactLogRequest())
        await turn()
        stopped = trio.Event()

        async def stop() -> None:
            await w.node.drain()
            stopped.set()

        w.nursery.start_soon(stop)
        await turn()
        assert not stopped.is_set()
        w.slow_disk.let_go()
        await stopped.wait()
        w.journal.close(clean=True)
        journal_files = w.disk.files()

    assert "clean" in journal_files
    async with world(disk=w.disk) as after:
        assert after.event_names().count("log.file_moved_aside") == 0
        assert left_behind(after) == []
        assert {k: 40 + k for k in range(10)} == await offsets(after.connect())


async def test_files_stay_as_long_as_somebody_reads_them(autojump_clock: MockClock) -> None:
    """A reader in its thread has the old manifest."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 50)
        journal = w.journal
        (partition,) = filter(journal.end_offset, range(journal.meta.num_partitions))
        reading = journal.read(partition)
        next(reading)
        old = set(w.disk.files())
        sent = client.send(m.CompactLogRequest())
        await trio.sleep(60)
        assert sent not in client.answers()
        assert old - set(w.disk.files()) == set()

        assert len(list(reading)) == 49
        await trio.sleep(1)
        assert sent in client.answers()
        assert left_behind(w) == []


async def test_removals_are_kept_for_their_time(autojump_clock: MockClock) -> None:
    """A day, unless the setting says something else."""
    async with world(MANUAL) as w:
        client = w.connect()
        await client.ask(commit(1))
        await client.ask(m.OffsetDeleteRequest("g", (m.TopicPartitions("t", (0,)),)))
        w.wall_ms += 86_400_000
        await ask_to_compact(client)
        assert w.journal.compacted_below == {}

        w.wall_ms += 1
        await ask_to_compact(client)
        assert list(w.journal.compacted_below.values()) == [2]


async def test_a_position_below_dropped_tombstones_is_1008(autojump_clock: MockClock) -> None:
    """Who reads on from there would never hear of the removal."""
    async with world(MANUAL, AT_ONCE) as w:
        client = w.connect()
        await client.ask(commit(1, group_id="h"))
        shard = w.node.shard_of("h")
        at = w.journal.end_offset(shard.partition)
        await client.ask(m.OffsetDeleteRequest("h", (m.TopicPartitions("t", (0,)),)))
        w.wall_ms += 10
        await ask_to_compact(client)

        async def changes_from(position: int) -> Any:
            return await client.ask(m.ReadOffsetChangesRequest(shard.partition, position, 9))

        assert (await changes_from(at)).error == ErrorCode.POSITION_TOO_OLD
        assert (await changes_from(0)).error == ErrorCode.POSITION_TOO_OLD
        assert (await changes_from(at + 1)).error == 0


async def test_a_read_that_was_overtaken_by_a_compaction_is_1008_too(
    autojump_clock: MockClock,
) -> None:
    """It was let in when its position was good, and is read when it no longer is."""
    async with world(MANUAL, AT_ONCE) as w:
        client, reader = w.connect(), w.connect()
        await client.ask(commit(1, group_id="h"))
        shard = w.node.shard_of("h")
        at = w.journal.end_offset(shard.partition)
        await client.ask(m.OffsetDeleteRequest("h", (m.TopicPartitions("t", (0,)),)))
        await client.ask(commit(2, 1, group_id="h"))
        w.wall_ms += 10
        read_may_begin = w.slow_disk.hold_next_read()
        read = reader.send(m.ReadOffsetChangesRequest(shard.partition, at, 9))
        await turn()
        await ask_to_compact(client)
        assert w.journal.compacted_below
        read_may_begin.set()
        answer: Any = (await reader.answer(read)).response

        assert answer.error == ErrorCode.POSITION_TOO_OLD


async def test_a_disk_that_fills_up_is_a_reason_to_compact(autojump_clock: MockClock) -> None:
    """Whatever the ratio says: room is needed now, and new data is refused meanwhile."""
    disk = Disk(total_bytes=1 << 20)
    reserve = "storage.reserve.bytes=910000"
    async with world(SMALL, "log.cleaner.min.cleanable.ratio=1", reserve, disk=disk) as w:
        client = w.connect()
        await overwrite(client, 50, keys=50)
        await ask_to_compact(client)
        await overwrite(client, 200, first=100)
        await turn()
        assert len(w.child.jobs) == 1
        disk.free_bytes = 900_000
        await trio.sleep(1)

        assert await client.error(commit(1)) == ErrorCode.STORAGE_FULL
        assert compacted(w) == 2
        await trio.sleep(60)
        assert len(w.child.jobs) == 2


async def test_a_segment_that_is_sealed_at_once_is_not_waited_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flusher's thread may seal it while this task looks whether it has."""
    async with world(MANUAL) as w:
        client = w.connect()
        await overwrite(client, 3)
        fall_asleep = compactor.Compactor._sleep_from_here

        def sealed_just_before(self: compactor.Compactor) -> None:
            flush = w.journal.take_flush()
            if flush is not None:
                w.journal.write_flush(flush)
            fall_asleep(self)
            if w.journal.manifest is not self.looked_at:
                self.wake()

        monkeypatch.setattr(compactor.Compactor, "_sleep_from_here", sealed_just_before)
        with trio.fail_after(60):
            answer = await ask_to_compact(client)

        assert answer.error == 0
