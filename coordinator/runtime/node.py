"""One node: all its shards over one journal, and the tasks that keep them going.

Theory of operation
===================

Everything that decides runs in the event loop without an await in between: a request, an
expired deadline, an answer released. Three tasks drive what is not a request:

- The *flusher* takes whatever was appended since it last looked, writes and syncs it in
  a worker thread, and tells the shards how far their partitions are durable. While one
  flush is on its way the next one gathers: group commit, without a linger timer.
- The *timers* sleep until the earliest deadline of any shard.
- The *janitor* looks twice a second after what need not be exact: answers that have waited
  for the disk too long, and the room that is left on it.

Time, threads and the disk come in from outside, so that a simulation can replace them.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from coordinator.group import Event, GroupConfig, GroupShard, Now, UnknownRecord
from coordinator.log.format import NODE_PARTITION
from coordinator.log.journal import Journal
from coordinator.runtime.shard import ShardRunner, Status
from protocol.groups import offsets_partition

LATE_MS: Final = 500
LOAD_SLICE_ENTRIES: Final = 1_000

RunBlocking = Callable[[Callable[[], None]], Awaitable[None]]
EmitEvent = Callable[[str, dict[str, Any]], None]


class Node:
    """The shards of this process. Make it, serve its `shard_of`, run `run`."""

    def __init__(
        self,
        *,
        journal: Journal,
        group_config: GroupConfig,
        num_partitions: int,
        commit_timeout_ms: int,
        reserve_bytes: int,
        segment_bytes: int,
        new_uuid: Callable[[], str],
        wall_clock_ms: Callable[[], int],
        emit_event: EmitEvent,
        run_blocking: RunBlocking,
    ) -> None:
        self.journal = journal
        self.commit_timeout_ms = commit_timeout_ms
        self.num_partitions = num_partitions
        self.storage_full = False
        # Called after answers were released outside of a session's own turn.
        self.after_release: Callable[[], None] = lambda: None
        self._reserve_bytes = reserve_bytes
        self._segment_bytes = segment_bytes
        self._wall_clock_ms = wall_clock_ms
        self._emit_event = emit_event
        self._run_blocking = run_blocking
        self._flush_wanted = trio.Event()
        self._idle = trio.Event()
        self._timer_kick = trio.Event()
        self._wake_at_ms: int | None = None
        self.shards = [
            ShardRunner(number, GroupShard(config=group_config, new_uuid=new_uuid), self)
            for number in range(num_partitions)
        ]

    # --- for the server -----------------------------------------------------------------

    def shard_of(self, group_id: str) -> ShardRunner:
        """Return the shard that keeps *group_id*."""
        return self.shards[offsets_partition(group_id, self.num_partitions)]

    @property
    def ready(self) -> bool:
        """Whether every partition is loaded."""
        return all(shard.status is Status.ACTIVE for shard in self.shards)

    # --- for the shards (`Services`) ----------------------------------------------------

    def now(self) -> Now:
        """Return the time."""
        return Now(int(trio.current_time() * 1000), self._wall_clock_ms())

    def appended(self) -> None:
        """Wake the flusher."""
        self._flush_wanted.set()

    def deadline_may_be_earlier(self, deadline_ms: int | None) -> None:
        """Wake the timers if they would sleep past *deadline_ms*."""
        if deadline_ms is not None and (self._wake_at_ms is None or deadline_ms < self._wake_at_ms):
            self._timer_kick.set()

    def emit(self, event: Event) -> None:
        """Log an event of the core."""
        self._emit_event(event.name, event.fields)

    # --- tasks --------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the log into every shard, in slices, and start to serve.

        Raises:
            RecordError: An entry is none that this code can know.
        """
        started_ms = self.now().mono_ms
        entries = loaded = 0
        for batch in self.journal.replay():
            if batch.partition == NODE_PARTITION:
                raise UnknownRecord("the log has records of the node's own; a newer release's")
            self.shards[batch.partition].replay(batch)
            entries += len(batch.entries)
            if entries - loaded >= LOAD_SLICE_ENTRIES:
                loaded = entries
                await trio.lowlevel.checkpoint()
        now = self.now()
        for shard in self.shards:
            shard.loaded(now)
        self.check_storage()
        self._emit_event("ready", {"entries": entries, "load_ms": now.mono_ms - started_ms})

    async def run(self) -> None:
        """Run the tasks until cancelled. Call `drain` first to stop without a loss.

        Raises:
            LogFailed: A write or fsync failed; the process must end.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush_for_ever)
            nursery.start_soon(self._expire_for_ever)
            nursery.start_soon(self._look_around_for_ever)

    async def drain(self) -> None:
        """Unload every shard and wait until what was appended is durable and answered."""
        now = self.now()
        for shard in self.shards:
            shard.unload(now)
        self.after_release()
        await self.wait_flushed()

    async def wait_flushed(self) -> None:
        """Return when nothing waits for the disk."""
        while any(len(shard.gate) for shard in self.shards) or self._flush_wanted.is_set():
            self._idle = trio.Event()
            await self._idle.wait()

    async def _flush_for_ever(self) -> None:
        while True:
            await self._flush_wanted.wait()
            flush = self.journal.take_flush()
            if flush is None:
                self._flush_wanted = trio.Event()
                self._idle.set()
                continue
            await self._run_blocking(lambda flush=flush: self.journal.write_flush(flush))  # type: ignore[misc]  # mypy can't infer the default
            for partition, end in flush.ends.items():
                self.shards[partition].advance(end)
            self.after_release()

    async def _expire_for_ever(self) -> None:
        while True:
            self._timer_kick = trio.Event()
            deadlines = [d for s in self.shards if (d := s.next_deadline_ms()) is not None]
            self._wake_at_ms = min(deadlines, default=None)
            if self._wake_at_ms is None:
                await self._timer_kick.wait()
                continue
            # Not longer at a time than what counts as late, so that lateness is how long we
            # stood still and not only how far past the first deadline that went.
            self._wake_at_ms = min(self._wake_at_ms, self.now().mono_ms + LATE_MS)
            # Half a millisecond more: in floating point, the deadline may read as one too early.
            with trio.move_on_at((self._wake_at_ms + 0.5) / 1000):
                await self._timer_kick.wait()
            if self.now().mono_ms >= self._wake_at_ms:
                await self._expire(self._wake_at_ms)

    async def _expire(self, planned_ms: int) -> None:
        late_ms = self.now().mono_ms - planned_ms
        if late_ms > LATE_MS:
            # The process was stopped or starved: nobody could have been heard meanwhile.
            self._emit_event("stalled", {"late_ms": late_ms})
            for shard in self.shards:
                shard.core.shift_deadlines(late_ms)
            return
        # What is readable is handled before what is expired: one turn for the poll of the
        # sockets, one for their tasks.
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        now = self.now()
        for shard in self.shards:
            deadline_ms = shard.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now.mono_ms:
                shard.expire(now)
        self.after_release()

    async def _look_around_for_ever(self) -> None:
        period_s = min(0.5, self.commit_timeout_ms / 2000)
        while True:
            await trio.sleep(period_s)
            now = self.now()
            for shard in self.shards:
                if len(shard.gate):
                    shard.give_up(now)
            self.check_storage()
            self.after_release()

    def check_storage(self) -> None:
        """See whether the disk still has its reserve, and tell the shards."""
        free = self.journal.free_bytes()
        reserve = self._reserve_bytes
        if reserve < 0:
            live = self.journal.size_bytes + 2 * self._segment_bytes
            reserve = max(self.journal.disk_bytes() // 20, live)
        full = free < reserve
        if full != self.storage_full:
            self.storage_full = full
            name = "storage.full" if full else "storage.has_room"
            self._emit_event(name, {"free_bytes": free, "reserve_bytes": reserve})
        for shard in self.shards:
            shard.core.storage_full = full
