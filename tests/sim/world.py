"""The server over an in-memory disk and network, and ways to treat it badly."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio
import trio.testing

from coordinator.config import Settings, load_settings
from coordinator.group.core import HardGroup
from coordinator.group.records import from_entry
from coordinator.group.shard import GroupShard
from coordinator.log.compaction import Compacted, Job, Progress
from coordinator.log.errors import LogError
from coordinator.log.journal import Journal
from coordinator.runtime.children import CompactionFailed
from coordinator.runtime.compactor import RunChild
from coordinator.runtime.coordination import EmbeddedCoordination, Leader
from coordinator.runtime.loading import Abandoned
from coordinator.runtime.node import Node
from coordinator.server.authorization import Authorizer
from coordinator.server.run import group_config, make_folder, make_node
from coordinator.server.server import Server
from coordinator.server.session import DEFAULT_CLIENT_ID
from coordinator.server.transport import Listener as AnyListener
from tests.fakes.compaction import MemoryChild
from tests.fakes.disk import CrashNow, Disk
from tests.fakes.environment import environment, in_tasks
from tests.sim.history import History
from tests.sim.network import Listener, Network
from tests.sim.workload import BaseWorld

HOST = "coordinator"
PORT = 9310
EPOCH_MS = 1_700_000_000_000
_BLANK = HardGroup(0, None, (), None, ())

SETTINGS = (
    "storage.reserve.bytes=0",
    "offsets.topic.num.partitions=3",
    "offsets.topic.segment.bytes=8192",
    "group.initial.rebalance.delay.ms=300",
    "group.min.session.timeout.ms=1000",
    "offsets.commit.timeout.ms=2000",
)


class Process:
    """One life of the server."""

    def __init__(self, number: int, journal: Journal, node: Node, server: Server) -> None:
        self.number = number
        self.journal = journal
        self.node = node
        self.server = server
        self.scope = trio.CancelScope()
        self.nursery: trio.Nursery | None = None  # Of its tasks.
        self.is_dead = False
        self.ended = trio.Event()

    def load_partition(self, partition: int) -> None:
        """Begin to load a partition that was unloaded."""
        assert self.nursery is not None
        self.nursery.start_soon(self._load_partition, partition)

    async def _load_partition(self, partition: int) -> None:
        with suppress(Abandoned):
            await self.node.load_partition(partition)


class World(BaseWorld):
    """Everything that outlives a process of the server, and the process of the moment."""

    def __init__(
        self, seed: int, clock: trio.testing.MockClock, nursery: trio.Nursery, *, keep_lines: bool
    ) -> None:
        super().__init__(seed, History(trio.current_time, keep_lines=keep_lines))
        self.clock = clock
        self.nursery = nursery
        # As by a certificate: then a member is bound to who joined.
        self.history.tells_principals = self.rng("principals").random() < 0.5
        self.network = Network(self.history, self.rng("network"), nursery)
        self.disk = Disk()
        self.evicted: list[str] = []  # Honest clients whose sessions ended.
        self.process: Process | None = None
        self.starts = 0
        self.usual_disk_delay_s = self.rng("speed").choice((0.001, 0.02, 0.3))
        self.disk_delay_s = self.usual_disk_delay_s
        self.wall_shift_ms = 0
        self._disk_rng = self.rng("disk")
        self._uuid_rng = self.rng("uuid")
        self._child_rng = self.rng("compaction")
        retention_ms = self._child_rng.choice((0, 2_000, 86_400_000))
        retention = f"log.cleaner.delete.retention.ms={retention_ms}"
        self.settings: Settings = load_settings(overrides=(*SETTINGS, retention))

    @property
    def address(self) -> str:
        """Where the coordinator is."""
        return f"{HOST}:{PORT}"

    # --- the server's life --------------------------------------------------------------

    def start_server(self) -> bool:
        """Start a process over the disk as it is; return whether it came up."""
        assert self.process is None
        self.starts += 1
        self.history.note("start", self.starts)
        try:
            journal = Journal(
                self.disk.directory(),
                num_partitions=self.settings.offsets_topic_num_partitions,
                segment_bytes=self.settings.offsets_topic_segment_bytes,
                node_id=self.settings.node_id,
                new_cluster_id=lambda: "A" * 22,
                new_secret=lambda: bytes(16),
            )
        except CrashNow:
            self.disk.crash(self._disk_rng)
            return False
        except LogError as exc:
            if not self.healed and "planned failure" in str(exc):
                self.disk.kill()
                return False
            self.violate("start refused", repr(exc))
            raise
        for name, fields in journal.recovery_events:
            self.history.note("recovery", name, fields)
        surroundings = environment(
            submit=in_tasks(self._run_blocking, self._tasks),
            run_blocking=self._run_blocking,
            run_reading=self._run_blocking,
            new_uuid=lambda: str(uuid.UUID(int=self._uuid_rng.getrandbits(128), version=4)),
            wall_clock_ms=self._wall_clock_ms,
            emit_event=self._on_event,
        )
        folder = make_folder(self.settings, journal, surroundings, self._child(journal))
        node = make_node(self.settings, folder, surroundings)
        leader = Leader(self.settings.node_id, ((HOST, PORT),), journal.leader_epoch)
        server = Server(
            node=node,
            environment=surroundings,
            settings=self.settings,
            coordination=EmbeddedCoordination(leader),
            max_connections=1_000,
            authorizer=Authorizer(
                node.registry.core.rules,
                is_on=self.history.tells_principals,
                allow_everyone=True,  # There are no rules.
                is_registered=lambda _topic: True,
            ),
        )
        self.process = process = Process(self.starts, journal, node, server)
        self.nursery.start_soon(self._run_process, process)
        return True

    def _tasks(self) -> trio.Nursery:
        """Return where the flushes of the process of the moment are tasks."""
        assert self.process is not None
        assert self.process.nursery is not None
        return self.process.nursery

    def _child(self, journal: Journal) -> RunChild:
        """Return what compacts: in steps, while everything else goes on, with the disk as it is."""

        async def pause() -> None:
            await trio.sleep(self._child_rng.expovariate(20))

        child = MemoryChild(journal.directory, pause, step_bytes=1_000)

        async def run_child(job: Job, report: Callable[[Progress], None]) -> Compacted:
            process = self.process
            if self._child_rng.random() < 0.1 and not self.healed:
                child.deaths.append(CompactionFailed("killed by signal 9"))
            try:
                return await child.run(job, report)
            except CrashNow:
                self.kill(process, power=True)
                raise

        return run_child

    async def _run_process(self, process: Process) -> None:
        listener = self.network.listener = Listener()
        try:
            with process.scope:
                async with trio.open_nursery() as nursery:
                    process.nursery = nursery
                    nursery.start_soon(process.node.run)
                    nursery.start_soon(process.server.run, list[AnyListener]([listener]))
                    # A long log takes its time; meanwhile everybody is told so.
                    await trio.sleep(self._disk_rng.choice((0, 0, 0.5, 2)))
                    nursery.start_soon(process.node.load)
        except BaseExceptionGroup as failures:
            known, rest = failures.split((CrashNow, LogError))
            if rest is not None:
                raise rest from None
            self.history.note("process failed", repr(known))
        finally:
            self.kill(process, power=False)
            process.ended.set()

    def kill(self, process: Process | None, *, power: bool) -> None:
        """End the process at once, and with *power* the machine with what wasn't synced."""
        if process is None or process.is_dead:
            return
        self.history.note("kill", process.number, power)
        process.is_dead = True
        self.process = None
        self.network.sever()
        if power:
            self.disk.crash(self._disk_rng)
        else:
            self.disk.kill()
        process.scope.cancel()

    async def stop_cleanly(self) -> None:
        """Stop as after SIGTERM."""
        process = self.process
        if process is None or not process.node.ready:
            return
        self.history.note("stop", process.number)
        with trio.move_on_after(10) as scope:
            await process.node.drain()
        if process.is_dead:
            return
        process.journal.close(clean=not scope.cancelled_caught)
        self.kill(process, power=self._disk_rng.random() < 0.5)

    async def start_until_up(self) -> None:
        """Start a process unless one runs; again, if the disk ends it while it starts."""
        while self.process is None and not self.start_server():  # noqa: ASYNC110 - a pause
            await trio.sleep(0.5)

    async def ensure_server(self) -> Process:
        """Return a process that serves, started if need be."""
        while True:
            if self.process is None:
                self.start_server()
            process = self.process
            if process is not None and process.node.ready:
                return process
            await trio.sleep(0.1)

    async def _run_blocking(self, work: Callable[[], None]) -> None:
        """What a worker thread does in the daemon; the process may end before and behind it."""
        process = self.process
        await trio.sleep(self._disk_rng.uniform(0, self.disk_delay_s))
        try:
            work()
        except CrashNow:
            self.kill(process, power=True)
            raise
        await trio.sleep(self._disk_rng.uniform(0, self.disk_delay_s))

    def _wall_clock_ms(self) -> int:
        return EPOCH_MS + self.wall_shift_ms + int(trio.current_time() * 1000)

    def _on_event(self, name: str, fields: dict[str, Any]) -> None:
        self.history.note("event", name, fields)
        if (
            name == "group.member_removed"
            and fields["reason"] == "session expired"
            and fields["client_id"] != DEFAULT_CLIENT_ID  # Rogues never say who they are.
            and fields["client_id"] not in self.away
        ):
            self.evicted.append(fields["client_id"])

    # --- what must hold -----------------------------------------------------------------

    def check_state_is_replay(self, process: Process) -> None:
        """Compare the memory of each shard with the fold of its part of the log."""
        for runner in process.node.shards:
            fresh = GroupShard(config=group_config(self.settings), new_uuid=lambda: "")
            for batch in process.journal.read(runner.partition):
                for _, entry in batch.entries:
                    fresh.replay(from_entry(*entry))
            live, replayed = _without_blanks(runner.core), _without_blanks(fresh)
            if live != replayed:
                text = f"partition {runner.partition}: {live!r} in memory, {replayed!r} in the log"
                self.violate("I11 state is not replay", text)


def _without_blanks(shard: GroupShard) -> dict[str, HardGroup]:
    """Leave out groups of which nothing is hard yet: a first member that has not joined."""
    return {group_id: group for group_id, group in shard.hard_state().items() if group != _BLANK}
