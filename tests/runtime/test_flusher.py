"""Group commit, with a disk that a test holds back."""

import outcome
import pytest
import trio
import trio.testing

from coordinator.log.errors import LogFailed
from coordinator.log.journal import Journal
from coordinator.runtime.compactor import Compaction
from coordinator.runtime.environment import Done, Work
from coordinator.runtime.flusher import Flusher
from coordinator.runtime.folder import Folder
from tests.fakes.compaction import MemoryChild
from tests.fakes.disk import Disk
from tests.fakes.environment import environment
from tests.log.helpers import append, open_journal


class HeldDisk:
    """A journal whose flushes end when the test says so."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.journal: Journal = open_journal(self.disk)
        self.jobs: list[tuple[Work, Done]] = []
        self.durable: list[dict[int, int]] = []
        self.environment = environment(submit=self._submit)
        self.folder = Folder(
            self.journal,
            self.environment,
            reserve_bytes=0,
            segment_bytes=1_000_000,
            max_log_bytes=1_000_000,
            compaction=Compaction(MemoryChild(self.journal.directory).run),
        )
        self.flusher = Flusher(self.folder, self.environment, self.durable.append)

    def _submit(self, work: Work, done: Done) -> None:
        self.jobs.append((work, done))

    def append(self, number: int) -> None:
        """Append to partition 0."""
        append(self.journal, 0, number)
        self.flusher.want()

    def finish(self) -> None:
        """End the oldest flush."""
        work, done = self.jobs.pop(0)
        done(outcome.capture(work))


async def test_what_gathers_during_a_flush_is_the_next_one() -> None:
    """One sync for many commits, and no timer."""
    held = HeldDisk()
    held.append(0)
    held.flusher.start()
    held.append(1)
    held.append(2)
    held.flusher.start()
    assert len(held.jobs) == 1

    held.finish()
    assert held.durable == [{0: 1}]
    assert len(held.jobs) == 1  # Nobody had to call it.
    held.finish()

    assert held.durable == [{0: 1}, {0: 3}]
    assert held.jobs == []
    assert held.flusher.flushes == 2
    assert held.flusher.flushed_bytes == held.journal.size_bytes


async def test_what_is_appended_outside_of_a_round_is_flushed_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An expired session writes, though no request came."""
    held = HeldDisk()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.flusher.run)
        held.append(0)
        await trio.testing.wait_all_tasks_blocked()
        held.finish()
        assert held.durable == [{0: 1}]
        nursery.cancel_scope.cancel()


async def test_a_round_that_starts_the_flush_itself_wakes_no_task(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Another turn of the event loop is what a lone committer would wait for."""
    held = HeldDisk()
    held.environment.poller.in_round = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.flusher.run)
        held.append(0)
        await trio.testing.wait_all_tasks_blocked()
        assert held.jobs == []
        held.flusher.start()
        assert len(held.jobs) == 1
        nursery.cancel_scope.cancel()


async def test_a_failed_flush_ends_the_run_and_starts_no_other() -> None:
    """Nothing may be acknowledged behind a write that failed."""
    held = HeldDisk()
    held.append(0)
    held.flusher.start()
    held.append(1)
    held.disk.plan(fail_at=0)
    held.finish()

    with pytest.raises(LogFailed):
        await held.flusher.run()
    held.flusher.start()
    assert held.durable == []
    assert held.jobs == []


async def test_idle_is_when_all_is_durable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A clean stop waits for what gathered during the last flush as well."""
    held = HeldDisk()
    held.append(0)
    held.flusher.start()
    held.append(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.flusher.wait_idle)
        await trio.testing.wait_all_tasks_blocked()
        held.finish()
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        held.finish()
    await held.flusher.wait_idle()
