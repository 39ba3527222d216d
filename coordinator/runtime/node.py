"""One node: all its shards over one journal, and the tasks that keep them going.

Theory of operation
===================

Everything that decides runs in the event loop without an await in between: a request, an
expired deadline, an answer released. Five tasks drive what is not a request:

- The *flusher* takes whatever was appended since it last looked, has it written and synced in
  a worker thread, and tells the shards how far their partitions are durable. While one
  flush is on its way the next one gathers: group commit, without a linger timer.
- The *timers* sleep until the earliest deadline of any shard.
- The *reader* reads changes of offsets back from the log, one request after the other, in a worker
  thread of its own.
- The *compactor* keeps the log small; what takes long about that is done by a child process.
- The *reloader* loads partitions again, one after the other, that an operator asked it to.
- The *janitor* looks twice a second after what need not be exact: answers that have waited
  for the disk too long, and the room that is left on it.

The topics are a shard like the others, over the node's own partition. What it changes, the shards
of groups are told at once (`decide_topics`); when each of them has removed a deleted topic's
offsets, the topic is forgotten.

Time, threads and the disk come in from outside, so that a simulation can replace them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import trio

from coordinator.group import Caller, Event, GroupConfig, GroupShard, Now
from coordinator.group.records import RecordError
from coordinator.group.registry import Registry
from coordinator.group.registry_shard import RegistryShard
from coordinator.log.errors import LogError
from coordinator.log.format import NODE_PARTITION
from coordinator.log.journal import Journal
from coordinator.runtime.calls import Call, Token
from coordinator.runtime.changes import ChangesReader, EmitEvent
from coordinator.runtime.compactor import Compaction, Compactor
from coordinator.runtime.flusher import Flusher
from coordinator.runtime.health import Health, StorageWatch
from coordinator.runtime.loading import Abandoned, Loader, Progress
from coordinator.runtime.shard import GROUP_CODEC, TOPIC_CODEC, ShardRunner, Status
from coordinator.runtime.timekeeper import Timekeeper
from coordinator.runtime.worker import ByTask, RunBlocking, Submit
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.groups import offsets_partition
from protocol.messages import ReadOffsetChangesRequest, ReloadPartitionResponse, Request

# ------------------------------------------------------------------------------------------
# One node: all its shards over one journal, and the tasks that keep them going.

FORGET_SLICE: Final = 200


class Node:
    """The shards of this process. Make it, serve its `shard_of`, run `run`.

    Attributes:
        health: What is wrong with it.
        metrics: Name -> what to call for the value of the moment; anybody may add to it.
        started: Whether it has been loaded, after which single partitions may be loaded again.
        draining: Whether it comes to its end.
    """

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
        run_reading: RunBlocking,
        submit: Submit | None = None,
        compaction: Compaction | None = None,
    ) -> None:
        """Make it; *submit* does the flusher's work, by default in a task that runs it blocking."""
        self.journal = journal
        self.commit_timeout_ms = commit_timeout_ms
        self.num_partitions = num_partitions
        self.started = False
        self.draining = False
        self.started_ms = 0  # Monotonic; since when the tasks run.
        self.last_load_ms = -1  # Of all partitions, at the start.
        self.health = Health(emit_event)
        self.storage = StorageWatch(
            journal,
            self.health,
            emit_event,
            reserve_bytes=reserve_bytes,
            segment_bytes=segment_bytes,
        )
        # Called when what was loaded is there to stay.
        self.after_load: Callable[[], None] = lambda: None
        # Called after answers were released outside of a session's own turn.
        self.after_release: Callable[[], None] = lambda: None
        self._wall_clock_ms = wall_clock_ms
        self._emit_event = emit_event
        self._run_blocking = run_blocking
        self._by_task = ByTask(run_blocking)
        self.flusher = Flusher(journal, submit or self._by_task.submit, self._advance)
        topics = Registry()
        self.registry = ShardRunner(NODE_PARTITION, RegistryShard(topics), TOPIC_CODEC, self)
        self.shards = [
            ShardRunner(
                number,
                GroupShard(config=group_config, new_uuid=new_uuid, registry=topics),
                GROUP_CODEC,
                self,
            )
            for number in range(num_partitions)
        ]
        # In the order in which they are loaded; the groups look at the topics.
        self._runners: list[ShardRunner[RegistryShard] | ShardRunner[GroupShard]] = [
            self.registry,
            *self.shards,
        ]
        self._runner_of: dict[int, ShardRunner[Any]] = {
            runner.partition: runner for runner in self._runners
        }
        self.timekeeper = Timekeeper(
            self._runners,
            now=self.now,
            expired=self._turn,
            done=self._forget_topics,
            emit_event=emit_event,
        )
        self._purges = Purges(num_partitions)
        self._to_forget: list[str] = []  # Deleted topics that all shards are done with.
        self.loader = Loader(
            journal=journal,
            runners=self._runner_of,
            health=self.health,
            run_reading=run_reading,
            emit_event=emit_event,
            now=self.now,
            activated=self._activated,
        )
        self.reloader = Reloader(self)
        self._changes = ChangesReader(
            journal,
            max_response_bytes=group_config.max_response_bytes,
            run_blocking=run_reading,
            emit_event=emit_event,
            answered=self._send_answers,
        )
        self.metrics: dict[str, Callable[[], float]] = node_metrics(self)
        self._compactor: Compactor | None = None
        if compaction is not None:
            self._compactor = Compactor(
                journal,
                compaction,
                segment_bytes=segment_bytes,
                spare_bytes=segment_bytes if reserve_bytes else 0,
                health=self.health,
                emit_event=emit_event,
                wall_clock_ms=wall_clock_ms,
                run_blocking=run_blocking,
                run_reading=run_reading,
                after_release=self._send_answers,
                want_flush=self.appended,
            )
            self.metrics.update(self._compactor.metrics)

    # --- for the server -----------------------------------------------------------------

    def shard_of(self, group_id: str) -> ShardRunner[GroupShard]:
        """Return the shard that keeps *group_id*."""
        return self.shards[offsets_partition(group_id, self.num_partitions)]

    @property
    def ready(self) -> bool:
        """Whether every partition is loaded."""
        return all(runner.status is Status.ACTIVE for runner in self._runners)

    def decide_topics(self, request: Request, token: Token, caller: Caller, now: Now) -> None:
        """Decide a request that may change topics, and have the groups concerned told."""
        try:
            self.registry.handle(request, token, caller, now)
        finally:
            self._tell_shards(now)

    def read_changes(self, call: Call) -> None:
        """Answer a valid ReadOffsetChanges with what is durable now."""
        request = call.request
        assert type(request) is ReadOffsetChangesRequest
        shard = self.shards[request.offsets_partition]
        refused = shard.refusal()
        if refused is not None:
            call.fail(refused, -1)
            return
        end = shard.gate.committed_offset
        floor = self.journal.compacted_below.get(shard.partition, 0)
        if not floor <= request.position <= end:
            call.fail(ErrorCode.POSITION_TOO_OLD, -1)
        else:
            self._changes.submit(call, end)

    def compact(self, call: Call) -> None:
        """Compact the log, and then answer *call*, a CompactLog."""
        refused = self.registry.refusal()
        if refused is not None:
            call.fail(refused, -1)
        elif self._compactor is None:
            call.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        else:
            self._compactor.submit(call)

    # --- for the shards (`Services`) ----------------------------------------------------

    def now(self) -> Now:
        """Return the time."""
        return Now(int(trio.current_time() * 1000), self._wall_clock_ms())

    def appended(self) -> None:
        """Have it flushed."""
        self.flusher.want()

    def deadline_may_be_earlier(self, deadline_ms: int | None) -> None:
        """Wake the timers if they would sleep past *deadline_ms*."""
        if deadline_ms is not None:
            self.timekeeper.wake_before(deadline_ms)

    def _send_answers(self) -> None:
        self.after_release()

    def emit(self, event: Event) -> None:
        """Log an event of the core."""
        self._emit_event(event.name, event.fields)

    # --- tasks --------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the log into every shard, in slices, and start to serve.

        Raises:
            LogError: The log is damaged or can't be read.
            RecordError: An entry is none that this code can know.
        """
        progress = await self.loader.load_all()
        self.started = True
        self.check_storage()
        if self._compactor is not None:
            self._compactor.begin()
        self.after_load()
        self.last_load_ms = progress.load_ms
        fields = {"entries": progress.entries, "load_ms": progress.load_ms}
        self._emit_event("ready", fields)

    def unload(self, partition: int) -> None:
        """Stop serving an offsets partition at once, also in the middle of its load.

        What was not appended is answered 16, and what was and isn't durable 1000.
        """
        self.shards[partition].drop(self.now())
        self._emit_event("partition.unloaded", {"partition": partition})
        self._send_answers()

    async def load_partition(self, partition: int) -> Progress:
        """Load an offsets partition that was unloaded, and serve it; the others go on.

        Raises:
            Abandoned: It isn't closed, or was unloaded again meanwhile.
            LogError, RecordError: It can't be read; it stays unloaded.
        """
        try:
            progress = await self.loader.load_one(self.shards[partition])
        except (LogError, RecordError):
            self._send_answers()
            raise
        self.after_load()
        fields = {"entries": progress.entries, "load_ms": progress.load_ms}
        self._emit_event("partition.loaded", {"partition": partition, **fields})
        return progress

    def _activated(self, runner: ShardRunner[Any]) -> None:
        """Tell a shard that begins to serve which deletions of topics it has to finish."""
        now = self.now()
        if runner is self.registry:
            self._tell_shards(now)
            return
        to_purge = self._purges.left_for(runner.partition)
        if to_purge:
            runner.core.topics_changed(to_purge, now)
            self.deadline_may_be_earlier(runner.next_deadline_ms())

    async def run(self) -> None:
        """Run the tasks until cancelled. Call `drain` first to stop without a loss.

        Raises:
            LogFailed: A write or fsync failed; the process must end.
        """
        self.started_ms = self.now().mono_ms
        async with trio.open_nursery() as nursery:
            self._by_task.nursery = nursery
            nursery.start_soon(self.flusher.run)
            nursery.start_soon(self._changes.run)
            nursery.start_soon(self.reloader.run)
            nursery.start_soon(self.timekeeper.run)
            nursery.start_soon(self._look_around_for_ever)
            if self._compactor is not None:
                nursery.start_soon(self._compactor.run)

    async def drain(self) -> None:
        """Unload every shard and wait until what was appended is durable and answered."""
        self.draining = True
        now = self.now()
        for runner in reversed(self._runners):
            runner.unload(now)
        self._changes.refuse_all(ErrorCode.NOT_COORDINATOR)
        self.reloader.refuse_all(ErrorCode.NOT_COORDINATOR)
        self.after_release()
        if self._compactor is not None:
            await self._compactor.stop()
        await self.wait_flushed()

    async def wait_flushed(self) -> None:
        """Return when nothing waits for the disk."""
        await self.flusher.wait_idle()

    def _advance(self, ends: dict[int, int]) -> None:
        """Let go what waited for these offsets to be durable."""
        now = self.now()
        for partition, end in ends.items():
            self._runner_of[partition].advance(end, now)
        if self._compactor is not None:
            self._compactor.flushed()
        self.loader.flushed()
        self.after_release()

    async def _turn(self) -> None:
        """Finish what an expiry has brought, and let others have their turn."""
        self._collect_purged()
        self.after_release()
        await trio.lowlevel.checkpoint()

    async def _forget_topics(self) -> None:
        while self._to_forget:
            self._forget_some(self.now())
            await trio.lowlevel.checkpoint()

    def _tell_shards(self, now: Now) -> None:
        changes = self.registry.core.take_changes()
        if not changes:
            return
        deleted = [change.topic for change in changes if not change.after]
        self._purges.begin(deleted)
        for shard in self.shards:
            if shard.status is Status.ACTIVE:
                shard.core.topics_changed(deleted, now)
                self.deadline_may_be_earlier(shard.next_deadline_ms())

    def _collect_purged(self) -> None:
        """Note the deleted topics that every shard is done with."""
        for shard in self.shards:
            self._to_forget += self._purges.done(shard.partition, shard.core.take_purged())

    def _forget_some(self, now: Now) -> None:
        """Forget deleted topics whose offsets are gone, not too many in one turn."""
        topics = self._to_forget[:FORGET_SLICE]
        del self._to_forget[:FORGET_SLICE]
        self.registry.change(partial(self.registry.core.forget, topics), now)

    async def _look_around_for_ever(self) -> None:
        period_s = min(0.5, self.commit_timeout_ms / 2000)
        while True:
            await trio.sleep(period_s)
            now = self.now()
            for runner in self._runners:
                if len(runner.gate):
                    runner.give_up(now)
            self.check_storage()
            self.after_release()

    def check_storage(self) -> None:
        """See whether the disk has room and keeps up, and tell the shards."""
        if self.storage.look() and self._compactor is not None:
            self._compactor.look(storage_is_full=self.storage.is_full)
        for runner in self._runners:
            runner.core.storage_full = self.storage.refuses


# ------------------------------------------------------------------------------------------
# What a node can tell about itself in numbers.
#
# Nothing here costs a request anything: what isn't counted once a flush is looked at when somebody
# asks. Names end in their unit; what only grows ends in `_total`.


def node_metrics(node: "Node") -> dict[str, Callable[[], float]]:
    """Return the node's own metrics; what compacts, and what serves, adds more."""
    journal = node.journal
    return {
        "uptime_ms": lambda: node.now().mono_ms - node.started_ms,
        "flushes_total": lambda: node.flusher.flushes,
        "flushed_bytes_total": lambda: node.flusher.flushed_bytes,
        "log_bytes": lambda: journal.size_bytes,
        "log_unflushed_bytes": lambda: journal.open_bytes,
        "disk_free_bytes": journal.free_bytes,
        "disk_size_bytes": journal.disk_bytes,
        "groups": lambda: sum(shard.core.group_count() for shard in node.shards),
        "offsets": lambda: sum(shard.core.offset_count() for shard in node.shards),
        "topics": lambda: len(node.registry.core.registry.topics),
        "answers_waiting_for_disk": lambda: sum(len(shard.gate) for shard in node.shards),
        "partitions_active": lambda: _partitions(node, Status.ACTIVE),
        "partitions_loading": lambda: _partitions(node, Status.LOADING),
        "loading_entries": lambda: 0 if (p := node.loader.progress) is None else p.entries,
        "loading_done_bytes": lambda: 0 if (p := node.loader.progress) is None else p.done_bytes,
        "loading_size_bytes": lambda: 0 if (p := node.loader.progress) is None else p.total_bytes,
        "last_load_ms": lambda: node.last_load_ms,
    }


def _partitions(node: "Node", status: Status) -> int:
    return sum(shard.status is status for shard in node.shards)


# ------------------------------------------------------------------------------------------
# Partitions that an operator wants to be loaded again: one after the other.


class Reloader:
    """Answers ReloadPartition when it is done."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._waiting: deque[Call] = deque()
        self._at_work = -1
        self._wanted = trio.Event()

    def submit(self, call: Call) -> None:
        """Unload the partition of *call*, a valid ReloadPartition; answer when it is loaded."""
        partition = _partition(call)
        status = self._node.shards[partition].status
        waiting = (self._at_work, *map(_partition, self._waiting))
        if status is Status.LOADING or partition in waiting:
            call.fail(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        elif self._node.draining:
            call.fail(ErrorCode.NOT_COORDINATOR, -1)
        else:
            if status is Status.ACTIVE:
                self._node.unload(partition)
            self._waiting.append(call)
            self._wanted.set()

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.fail(error, -1)

    async def run(self) -> None:
        """Load until cancelled."""
        while True:
            if not self._waiting:
                self._wanted = trio.Event()
                await self._wanted.wait()
                continue
            call = self._waiting.popleft()
            self._at_work = _partition(call)
            try:
                progress = await self._node.load_partition(self._at_work)
            except Abandoned:
                call.fail(ErrorCode.NOT_COORDINATOR, -1)
            except (LogError, RecordError) as exc:
                error = ErrorCode.UNKNOWN_SERVER_ERROR
                call.resolve(ReloadPartitionResponse(error, str(exc), -1, -1), -1)
            else:
                done = ReloadPartitionResponse(
                    ErrorCode.NONE, None, progress.entries, progress.load_ms
                )
                call.resolve(done, -1)
            finally:
                self._at_work = -1
            self._node.after_release()


def _partition(call: Call) -> int:
    request: Any = call.request
    partition: int = request.offsets_partition
    return partition


# ------------------------------------------------------------------------------------------
# Which shards have removed their offsets of which deleted topics.


class Purges:
    """A deleted topic is forgotten once every shard is done with it, loaded anew or not."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._done_in: dict[str, set[int]] = {}

    def begin(self, topics: Iterable[str]) -> None:
        """Take note of deleted *topics*."""
        for topic in topics:
            self._done_in.setdefault(topic, set())

    def left_for(self, partition: int) -> list[str]:
        """Return the topics that the shard of *partition* still has to remove."""
        return [topic for topic, done in self._done_in.items() if partition not in done]

    def done(self, partition: int, topics: Iterable[str]) -> list[str]:
        """Take note that a shard is done with *topics*; return those that all are done with."""
        over = []
        for topic in topics:
            done_in = self._done_in[topic]
            done_in.add(partition)
            if len(done_in) == self._shards:
                del self._done_in[topic]
                over.append(topic)
        return over


# ------------------------------------------------------------------------------------------
# How a node is: its answer to DescribeNode.


def described(node: Node, node_id: int) -> m.DescribeNodeResponse:
    """Return status, problems, partitions and metrics of the moment."""
    runners: list[ShardRunner[Any]] = [*node.shards, node.registry]
    partitions = tuple(_describe_partition(node, runner) for runner in runners)
    return m.DescribeNodeResponse(
        0,
        node_id,
        node.journal.leader_epoch,
        _status(node, partitions),
        tuple(m.NodeProblem(*item) for item in sorted(node.health.problems.items())),
        partitions,
        tuple(m.NodeMetric(name, int(node.metrics[name]())) for name in sorted(node.metrics)),
    )


def _status(node: Node, partitions: tuple[m.NodePartition, ...]) -> str:
    if node.health.problems:
        return "unhealthy"
    is_ready = all(partition.status == Status.ACTIVE.value for partition in partitions)
    return "ready" if is_ready else "loading"


def _describe_partition(node: Node, runner: ShardRunner[Any]) -> m.NodePartition:
    number, status = runner.partition, runner.status
    end_offset = node.journal.end_offset(number)
    loaded_offset = end_offset if status is Status.ACTIVE else node.loader.loaded_offset(number)
    return m.NodePartition(number, status.value, loaded_offset, end_offset)
