"""One node: all its shards over their logs, and the tasks that keep them going.

Theory of operation
===================

Everything that decides runs in the event loop without an await in between: a request, an
expired deadline, an answer released. Nine tasks drive what is not a request:

- The *flusher* of each log takes whatever was appended since it last looked, has it kept, and
  tells the shards how far their partitions are durable. While one flush is on its way the next
  one gathers: group commit, without a linger timer.
- The *timekeeper* sleeps until the earliest deadline of any shard.
- The *reader* reads changes of offsets back from the log, one request after the other, in a worker
  thread of its own.
- The *store* keeps the logs small.
- The *group lags* answer who asks for the lag of all groups, and note it once a minute.
- The *pattern matcher* finds the topics of a pattern that is new, before its request is decided.
- The *slices* answer what takes long, a millisecond at a time.
- The *reloader* loads partitions again, one after the other, that an operator asked it to.
- The *janitor* looks twice a second after what need not be exact: answers that have waited
  for a flush too long, and the room that is left.

What is the node's own (topics, rules of access, users, quotas) is a shard like the others, over the
node's own partition. What changes of topics, the shards of groups are told once the log has it,
whichever node has decided it (`tell_changes`); when each of them has removed a deleted topic's
offsets, the topic is forgotten.

Time, threads and the rounds in which requests are handled come in from outside, as one
`Environment`, so that a simulation can replace them. An answer that is ready outside of such a
round has one of its own: whoever keeps it for its peer wakes the poller.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import trio

from coordinator.group.core import Caller, Event, GroupConfig, Now
from coordinator.group.node_shard import NodeShard
from coordinator.group.records import RecordError
from coordinator.group.registry import Registry, TopicChange
from coordinator.group.shard import GroupShard
from coordinator.group.totals import Totals
from coordinator.log.errors import LogError
from coordinator.log.format import NODE_PARTITION
from coordinator.runtime.calls import SLICE_S, Call, CallQueue, Share, Slices, Token
from coordinator.runtime.environment import Environment
from coordinator.runtime.flusher import Flusher
from coordinator.runtime.group_lags import GroupLags
from coordinator.runtime.health import Checks, Load
from coordinator.runtime.loading import Abandoned, Loader, Progress
from coordinator.runtime.logs import Store, log_number, log_of
from coordinator.runtime.offset_changes import ChangesReader
from coordinator.runtime.shard import GROUP_CODEC, NODE_CODEC, Codec, Core, ShardRunner, Status
from coordinator.runtime.timekeeper import Timekeeper
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.group_ids import offsets_partition
from protocol.messages import ReadOffsetChangesRequest, ReloadPartitionResponse, Request

FORGET_SLICE: Final = 200
# How many may wait until a pattern is matched.
PATTERNS_WAITING_MAX: Final = 1_000

_NOTHING_TO_LOAD: Final = (
    "a node of a cluster loads no partition: it follows them all, and any other can be made to lead"
)

C = TypeVar("C", bound=Core)


class Node:
    """The shards of this process. Make it, serve its `shard_of`, run `run`.

    Attributes:
        health: What is wrong with it.
        start_flushes: Begins a flush of each log that has something to write, unless one of it is
            on its way.
        checks: How each part of it is.
        started: Whether it has been loaded, after which single partitions may be loaded again.
        draining: Whether it comes to its end.
        users_changed: Called when users may have other passwords, or none.
        quotas_changed: Called when principals may have other quotas.
    """

    def __init__(
        self,
        *,
        store: Store,
        environment: Environment,
        group_config: GroupConfig,
        commit_timeout_ms: int,
        reload_min_interval_ms: int,
        totals: Totals,
    ) -> None:
        self.totals = totals
        self.health = health = store.health
        self.num_partitions = store.num_partitions
        self.commit_timeout_ms = commit_timeout_ms
        self.now = environment.now
        self.started = False
        self._loaded = trio.Event()
        self._load_ms = -1
        self.draining = False
        self.users_changed: Callable[[], None] = lambda: None
        self.quotas_changed: Callable[[], None] = lambda: None
        self._told = (0, 0)  # The versions of users and quotas that were told.
        self._started_ms = 0  # Monotonic; since when the tasks run.
        self._environment = environment
        self._emit_event = environment.emit_event
        self._store = store
        self._flushers = {
            log: Flusher(log, environment, self.advance, self._look_at_backlog)
            for log in store.logs
        }
        starts = [flusher.start for flusher in self._flushers.values()]
        if store.end_round is not None:
            starts.append(store.end_round)
        self.start_flushes = starts[0] if len(starts) == 1 else partial(_call_all, starts)
        topics = Registry(totals)
        self.registry = self._runner(NODE_PARTITION, NodeShard(topics), NODE_CODEC)
        new_uuid = environment.new_uuid
        self.shards = [
            self._runner(
                number,
                GroupShard(config=group_config, new_uuid=new_uuid, registry=topics),
                GROUP_CODEC,
            )
            for number in range(self.num_partitions)
        ]
        # In the order in which they are loaded; the groups look at the topics.
        runners: list[ShardRunner[Any]] = [self.registry, *self.shards]
        self._runner_of = {runner.partition: runner for runner in runners}
        self._timekeeper = Timekeeper(
            runners,
            environment,
            expired=self._collect_purged,
            done=self._forget_topics,
        )
        self._purges = TopicPurges(self.num_partitions)
        # What shards have removed of deleted topics, and has yet to be durable: up to which offset,
        # and how often the shard had been unloaded.
        self._to_collect: list[tuple[ShardRunner[GroupShard], int, int, list[str]]] = []
        self._shards_in: dict[int, list[int]] = {}  # By log.
        for number in range(self.num_partitions):
            log = log_number(number, len(store.logs))
            self._shards_in.setdefault(log, []).append(number)
        self.loader = Loader(
            logs=store.replays,
            runners=self._runner_of,
            health=health,
            environment=environment,
            activated=self.activated,
        )
        self.checks = Checks(
            health,
            environment,
            commit_timeout_ms=commit_timeout_ms,
            load=self._load_of_the_moment,
            is_draining=lambda: self.draining,
        )
        telemetry, clock_s = environment.telemetry, environment.clock_s
        self.patterns = PatternMatcher(topics, Share(lambda: telemetry.received_bytes, clock_s))
        self.slices = Slices(clock_s, lambda: telemetry.received_bytes)
        self.reloader = Reloader(self, reload_min_interval_ms)
        self._changes = ChangesReader(
            environment, max_response_bytes=group_config.max_response_bytes
        )
        self.group_lags = GroupLags(
            self.shards,
            environment.now,
            max_response_bytes=group_config.max_response_bytes,
        )
        environment.telemetry.flush_began_s = self._oldest_flush_s
        environment.metrics.update(
            last_load_ms=lambda: self._load_ms,
            uptime_ms=lambda: self.now().mono_ms - self._started_ms,
            **{name: partial(totals.used, name) for name in Totals.RESOURCES},
            **{f"{name}_limit": partial(self._limit, name) for name in Totals.RESOURCES},
            flushes_total=lambda: sum(f.flushes for f in self._flushers.values()),
            flushed_bytes_total=lambda: sum(f.flushed_bytes for f in self._flushers.values()),
            acls=lambda: len(self.registry.core.rules),
            users=lambda: len(self.registry.core.users),
            answers_waiting_for_disk=lambda: sum(len(shard.gate) for shard in self.shards),
            partitions_active=lambda: self._count(Status.ACTIVE),
            partitions_loading=lambda: self._count(Status.LOADING),
        )

    def _runner(self, partition: int, core: C, codec: Codec) -> ShardRunner[C]:
        log = log_of(self._store.logs, partition)
        return ShardRunner(partition, core, codec, log, self._flushers[log].want, self)

    # --- for the server -----------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """The id of its cluster; "" while that is not known yet."""
        return self._store.cluster_id

    @property
    def leader_epoch(self) -> int:
        """The highest epoch of its logs."""
        return max(log.leader_epoch for log in self._store.logs)

    def shard_of(self, group_id: str) -> ShardRunner[GroupShard]:
        """Return the shard that keeps *group_id*."""
        return self.shards[offsets_partition(group_id, self.num_partitions)]

    @property
    def ready(self) -> bool:
        """Whether every partition is loaded, or followed."""
        return all(runner.is_whole for runner in self._runner_of.values())

    def decide(self, request: Request, token: Token, caller: Caller, now: Now) -> None:
        """Decide a request about what is the node's own, and have told whoever is concerned."""
        self.registry.core.registry.logs_repeats = self._store.logs_repeats
        try:
            self.registry.handle(request, token, caller, now)
        finally:
            self.tell_changes(now)

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
        floor = shard.log.compacted_below.get(shard.partition, 0)
        if not floor <= request.position <= end:
            call.fail(ErrorCode.POSITION_TOO_OLD, -1)
        else:
            self._changes.submit(call, shard.log, end)

    def compact(self, call: Call) -> None:
        """Compact the log, and then answer *call*, a CompactLog."""
        refused = self.registry.refusal()
        if refused is None or self.registry.is_whole:
            self._store.compact(call)
        else:
            call.fail(refused, -1)

    def describe(self, node_id: int) -> m.DescribeNodeResponse:
        """Return status, problems, partitions and metrics of the moment."""
        runners: list[ShardRunner[Any]] = [*self.shards, self.registry]
        status = "ready" if self.ready else "loading"
        metrics = self._environment.metrics
        return m.DescribeNodeResponse(
            0,
            node_id,
            self.leader_epoch,
            "unhealthy" if self.health.problems else status,
            tuple(m.NodeProblem(*item) for item in sorted(self.health.problems.items())),
            tuple(map(self._describe_partition, runners)),
            tuple(m.NodeMetric(name, int(metrics[name]())) for name in sorted(metrics)),
        )

    def _describe_partition(self, runner: ShardRunner[Any]) -> m.NodePartition:
        number, status = runner.partition, runner.status
        end_offset = runner.log.end_offset(number)
        loaded_offset = end_offset if runner.is_whole else self.loader.loaded_offset(number)
        return m.NodePartition(number, status.value, loaded_offset, end_offset)

    def _load_of_the_moment(self) -> Load | None:
        """Return how far the load is, None once it is over."""
        served = sum(runner.is_whole for runner in self._runner_of.values())
        if served == len(self._runner_of):
            return None
        progress, now_ms = self.loader.progress, self.now().mono_ms
        if progress is None:
            age_ms = 0 if self.started else now_ms - self._started_ms
            return Load(0, 0, 0, len(self._runner_of), served, age_ms)
        sizes = (progress.done_bytes, progress.total_bytes, progress.entries)
        return Load(*sizes, len(self._runner_of), served, now_ms - progress.started_ms)

    def _limit(self, resource: str) -> int:
        return self.totals.limits[resource]

    def _count(self, status: Status) -> int:
        return sum(shard.status is status for shard in self.shards)

    # --- for the shards (`Services`) ----------------------------------------------------

    def deadline_may_be_earlier(self, deadline_ms: int | None) -> None:
        """Wake the timers if they would sleep past *deadline_ms*."""
        if deadline_ms is not None and deadline_ms < self._timekeeper.wakes_at_ms:
            self._timekeeper.wake()

    def emit(self, event: Event) -> None:
        """Log an event of the core."""
        self._emit_event(event.name, event.fields)

    # --- tasks --------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the log into every shard, in slices, and start to serve.

        Logs that are followed come by themselves: return when they are here.

        Raises:
            LogError: The log is damaged or can't be read.
            RecordError: An entry is none that this code can know.
        """
        if self.loader.can_load:
            progress = await self.loader.load_all()
            self.loaded(progress.entries, progress.load_ms)
        await self._loaded.wait()

    def loaded(self, entries: int, load_ms: int) -> None:
        """Take note that everything is in memory that the logs say."""
        self.started = True
        self._load_ms = load_ms
        self._loaded.set()
        self.check_storage()
        self._store.begin()
        self._environment.after_load()
        self._emit_event("ready", {"entries": entries, "load_ms": load_ms})

    def unload(self, partition: int) -> None:
        """Stop serving an offsets partition at once, also in the middle of its load.

        What was not appended is answered 16, and what was and isn't durable 1000.
        """
        self.shards[partition].drop(self.now())
        self._emit_event("partition.unloaded", {"partition": partition})

    async def load_partition(self, partition: int) -> Progress:
        """Load an offsets partition that was unloaded, and serve it; the others go on.

        Raises:
            Abandoned: It isn't closed, or was unloaded again meanwhile.
            LogError, RecordError: It can't be read; it stays unloaded.
        """
        progress = await self.loader.load_one(self.shards[partition])
        self._environment.after_load()
        fields = {"entries": progress.entries, "load_ms": progress.load_ms}
        self._emit_event("partition.loaded", {"partition": partition, **fields})
        return progress

    def activated(self, runner: ShardRunner[Any]) -> None:
        """Tell a shard that begins to serve what it may have missed of topics."""
        now = self.now()
        if runner is self.registry:
            self.tell_changes(now)
            self.purged_changed()
            return
        number = log_number(runner.partition, len(self._store.logs))
        self._tell_purged(number)
        to_purge = self._purges.left_for(runner.partition, self._store.purged(number))
        runner.core.topics_changed(to_purge, now)
        self.deadline_may_be_earlier(runner.next_deadline_ms())

    async def run(self) -> None:
        """Run the tasks until cancelled. Call `drain` first to stop without a loss.

        Raises:
            LogFailed: A write or fsync failed; the process must end.
        """
        self._started_ms = self.now().mono_ms
        async with trio.open_nursery() as nursery:
            for flusher in self._flushers.values():
                nursery.start_soon(flusher.run)
            nursery.start_soon(self._changes.run)
            nursery.start_soon(self.group_lags.run)
            nursery.start_soon(self.group_lags.run_sampling)
            nursery.start_soon(self.reloader.run)
            nursery.start_soon(self.patterns.run)
            nursery.start_soon(self.slices.run)
            nursery.start_soon(self._timekeeper.run)
            nursery.start_soon(self._store.run, self)
            nursery.start_soon(self._run_janitor)

    async def hand_over(self) -> None:
        """Have others lead what this node leads, or find that nobody can; `drain` next."""
        self.draining = True
        await self._store.hand_over()

    async def drain(self) -> None:
        """Unload every shard and wait until what was appended is durable and answered."""
        self.draining = True
        now = self.now()
        for runner in reversed(self._runner_of.values()):
            runner.unload(now)
        self._changes.refuse_all(ErrorCode.NOT_COORDINATOR)
        self.group_lags.refuse_all(ErrorCode.NOT_COORDINATOR)
        self.reloader.refuse_all(ErrorCode.NOT_COORDINATOR)
        self.patterns.refuse_all(ErrorCode.NOT_COORDINATOR)
        self.slices.refuse_all(ErrorCode.NOT_COORDINATOR)
        await self._store.stop()
        await self.wait_durable()

    async def wait_durable(self) -> None:
        """Return when all that was appended is durable."""
        for flusher in self._flushers.values():
            await flusher.wait_idle()

    def _oldest_flush_s(self) -> float | None:
        began_s = (flusher.began_s for flusher in self._flushers.values())
        return min((at_s for at_s in began_s if at_s is not None), default=None)

    def runners_in(self, log: int) -> list[ShardRunner[Any]]:
        """Return the shards whose partitions lie in that log; what is the node's own is first."""
        found = self._store.logs[log]
        return [runner for runner in self._runner_of.values() if runner.log is found]

    def want_flushes(self) -> None:
        """Have a flush of each log taken, though nothing may have been appended."""
        for flusher in self._flushers.values():
            flusher.want()

    def advance(self, ends: dict[int, int]) -> None:
        """Let go what waited for these offsets to be durable."""
        now = self.now()
        for partition, end in ends.items():
            self._runner_of[partition].advance(end, now)
        if NODE_PARTITION in ends:
            self.tell_changes(now)
        if self._to_collect:
            self._look_at_purged()
        self._store.flushed()
        self._look_at_backlog(0)
        if self.loader.awaits_flush:
            self.loader.flushed()

    async def _forget_topics(self) -> None:
        """Forget deleted topics whose offsets are gone, not too many in one turn."""
        while self.registry.status is Status.ACTIVE or not self.registry.is_led:
            purged = min(map(self._store.purged, self._shards_in))
            topics = self._purges.take_over(purged, FORGET_SLICE)
            if not topics:
                return
            # Nothing, where another node leads: that forgets them.
            self.registry.change(partial(self.registry.core.forget, topics), self.now())
            await trio.lowlevel.checkpoint()

    def tell_changes(self, now: Now) -> None:
        """Have told what has changed of what is the node's own, here or where it is led.

        Groups are told of topics, also those that are suspended at the moment; and whoever asked
        to be, of users and quotas. Nothing is told while only a part of it is known.
        """
        if not self.registry.is_whole:
            return
        core = self.registry.core
        told, self._told = self._told, (core.users.version, core.quotas.version)
        if told[0] != self._told[0]:
            self.users_changed()
        if told[1] != self._told[1]:
            self.quotas_changed()
        told_version = core.registry.durable_version
        deleted = self._purges.begin(core.take_changes(self.registry.gate.committed_offset))
        if told_version == core.registry.durable_version and not deleted:
            return
        for shard in self.shards:
            if shard.is_led:
                shard.core.topics_changed(deleted, now)
                self.deadline_may_be_earlier(shard.next_deadline_ms())

    def _collect_purged(self) -> None:
        """Note the deleted topics that shards are done with, once that is durable."""
        for shard in self.shards:
            topics = shard.core.take_purged()
            if topics:
                until = shard.log.end_offset(shard.partition)
                self._to_collect.append((shard, shard.unloads, until, topics))
        if self._to_collect:
            self._look_at_purged()

    def _look_at_purged(self) -> None:
        waiting, self._to_collect = self._to_collect, []
        for shard, unloads, until, topics in waiting:
            if shard.unloads != unloads:
                continue  # It may not have reached the log. Whoever serves it next is told again.
            if shard.gate.committed_offset < until:
                self._to_collect.append((shard, unloads, until, topics))
            else:
                self._purges.done(shard.partition, topics)
        if len(self._to_collect) < len(waiting):
            for number in self._shards_in:
                self._tell_purged(number)
            self.purged_changed()

    def _tell_purged(self, log: int) -> None:
        self._store.set_purged(log, self._purges.reached(self._shards_in[log]))

    def purged_changed(self) -> None:
        """Forget deleted topics of which no log has offsets any more."""
        self._timekeeper.wake()

    async def _run_janitor(self) -> None:
        period_s = min(0.5, self.commit_timeout_ms / 2000)
        while True:
            await trio.sleep(period_s)
            now = self.now()
            for runner in self._runner_of.values():
                if len(runner.gate):
                    runner.give_up(now)
            self._store.tend()
            self.check_storage()

    def check_storage(self) -> None:
        """See how much room there is, and tell the shards."""
        store = self._store
        store.look()
        for runner in self._runner_of.values():
            runner.core.storage_full = store.refuses
        for shard in self.shards:
            shard.core.storage_exhausted = store.is_exhausted

    def _look_at_backlog(self, unwritten_bytes: int) -> None:
        """Tell the shards at once when nothing is written: much may come in half a second."""
        if unwritten_bytes > self._store.alarm_bytes and not self._store.is_exhausted:
            self.check_storage()


def _call_all(functions: Iterable[Callable[[], None]]) -> None:
    for function in functions:
        function()


class PatternMatcher:
    """Matches patterns of topics, a few names at a time, for requests that need the result.

    The registry keeps what was found, so the request is decided at once when all is matched. What
    is registered meanwhile, or between that and the end of a rebalance, is little.
    """

    def __init__(self, registry: Registry, share: Share) -> None:
        self._registry = registry
        self._share = share
        self._queue: CallQueue[tuple[str, Callable[[], object]]] = CallQueue()

    def submit(self, call: Call, pattern: str, decide: Callable[[], object]) -> None:
        """Call *decide*, which answers *call*, once *pattern* is matched with every topic."""
        if not self._queue and self._registry.is_up_to_date(pattern):
            decide()
        elif self._queue.is_full_for(call, PATTERNS_WAITING_MAX):
            call.fail(ErrorCode.TOO_MANY_REQUESTS, -1)
        else:
            self._queue.put(call, (pattern, decide))

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        self._queue.refuse_all(error)

    async def run(self) -> None:
        """Match until cancelled."""
        await self._queue.run(self._match)

    async def _match(self, call: Call, wanted: tuple[str, Callable[[], object]]) -> None:
        pattern, decide = wanted
        self._share.begin()
        for _ in self._registry.match(pattern):
            if self._share.worked_s() >= SLICE_S:
                await self._share.pause_for(call.asker)
                self._share.begin()
        call.attempt(decide)
        await self._share.pause_for(call.asker)


class Reloader:
    """Loads partitions anew that an operator asks for, one after the other (ReloadPartition).

    A partition that is served is interrupted by it: for that, its last load must be some time ago.

    Attributes:
        min_interval_ms: How long ago.
    """

    def __init__(self, node: "Node", min_interval_ms: int) -> None:
        self.min_interval_ms = min_interval_ms
        self._node = node
        self._served_since_ms: dict[int, int] = {}  # Monotonic, of those that were loaded again.
        self._queue: CallQueue[int] = CallQueue()  # Each with its partition.
        self._at_work = -1

    def submit(self, call: Call) -> None:
        """Unload the partition of *call*, a valid ReloadPartition; answer when it is loaded."""
        request: Any = call.request
        partition: int = request.offsets_partition
        if not self._node.loader.can_load:
            error = ErrorCode.INVALID_REQUEST
            call.resolve(ReloadPartitionResponse(error, _NOTHING_TO_LOAD, -1, -1), -1)
            return
        status = self._node.shards[partition].status
        waiting = (self._at_work, *(other for _, other in self._queue))
        if status is Status.LOADING or partition in waiting:
            call.fail(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        elif self._node.draining:
            call.fail(ErrorCode.NOT_COORDINATOR, -1)
        elif status is Status.ACTIVE:
            self._interrupt(call, partition)
        else:
            self._queue.put(call, partition)

    def _interrupt(self, call: Call, partition: int) -> None:
        since_ms = self._served_since_ms.get(partition)
        served_ms = None if since_ms is None else self._node.now().mono_ms - since_ms
        if served_ms is not None and served_ms < self.min_interval_ms:
            message = (
                f"partition {partition} was loaded again {served_ms} ms ago; "
                f"partition.reload.min.interval.ms is {self.min_interval_ms}"
            )
            call.resolve(ReloadPartitionResponse(ErrorCode.TOO_MANY_REQUESTS, message, -1, -1), -1)
            return
        self._node.unload(partition)
        self._queue.put(call, partition)

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        self._queue.refuse_all(error)

    async def run(self) -> None:
        """Load until cancelled."""
        while True:
            call, self._at_work = await self._queue.take()
            try:
                progress = await self._node.load_partition(self._at_work)
            except Abandoned:
                call.fail(ErrorCode.NOT_COORDINATOR, -1)
            except (LogError, RecordError) as exc:
                error = ErrorCode.UNKNOWN_SERVER_ERROR
                call.resolve(ReloadPartitionResponse(error, str(exc), -1, -1), -1)
            else:
                self._served_since_ms[self._at_work] = self._node.now().mono_ms
                done = ReloadPartitionResponse(
                    ErrorCode.NONE, None, progress.entries, progress.load_ms
                )
                call.resolve(done, -1)
            finally:
                self._at_work = -1


class TopicPurges:
    """How far the shards are with removing their offsets of deleted topics.

    A shard is told of deletions in their order, and done with them in that order. So one number
    tells it: the version of the registry that the latest of them has made.
    """

    def __init__(self, shards: int) -> None:
        self._version_of: dict[str, int] = {}  # Of topics that are deleted and not forgotten.
        self._reached = [0] * shards

    def begin(self, changes: Iterable[TopicChange]) -> list[str]:
        """Take note of what has changed of topics; return those that were deleted."""
        deleted = []
        for change in changes:
            self._version_of.pop(change.topic, None)
            if not change.after:
                self._version_of[change.topic] = change.version
                deleted.append(change.topic)
        return deleted

    def left_for(self, partition: int, purged: int) -> list[str]:
        """Return the topics that a shard still has to remove; its log has none up to *purged*."""
        since = max(self._reached[partition], purged)
        return [topic for topic, version in self._version_of.items() if version > since]

    def done(self, partition: int, topics: Iterable[str]) -> None:
        """Take note that what a shard removed of *topics* is durable."""
        versions = [self._version_of.get(topic, 0) for topic in topics]
        self._reached[partition] = max(self._reached[partition], *versions)

    def reached(self, partitions: Iterable[int]) -> int:
        """Return up to which version all these shards are done with what was deleted."""
        return min([self._reached[partition] for partition in partitions])

    def take_over(self, purged: int, at_most: int) -> list[str]:
        """Return topics of which no log has offsets: all are purged up to that version."""
        found = (topic for topic, version in self._version_of.items() if version <= purged)
        over = list(islice(found, at_most))
        for topic in over:
            del self._version_of[topic]
        return over
