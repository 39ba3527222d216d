"""Spark, Kafka and a group in memory, for the core of the grouped query, with a mean streak.

A fake query works batch by batch, as `FakeQuery.work` is called: it plans, writes, and then logs
the batch as finished. A driver may die before or after each call that its core makes (`Fuse`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from client.exceptions import CoordinatorUnavailable
from client.offsets import Assignment, OffsetAndMetadata
from client.spark.grouped_core import GroupedCore
from client.spark.grouped_types import GroupedRun, GroupedSettings, Hooks, Progress, trusted_run
from client.spark.kafka_topics import EARLIEST, KafkaTopicError, Where
from client.spark.run_store import StoreUnavailable
from protocol.types import TopicPartition
from tests.fakes.group_session import FakeGroup, FakeSession

TOPIC = "t"
FOREACH = Progress("ForeachBatchSink", ())


def tp(partition: int) -> TopicPartition:
    """Return a partition of the one topic."""
    return TopicPartition(TOPIC, partition)


class Crash(BaseException):
    """The driver's process is gone."""


class Fuse:
    """Ends the process after so many calls; None for never."""

    def __init__(self) -> None:
        self.left: int | None = None

    def burn(self) -> None:
        """Count one call."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash


class FakeTopics:
    """A cluster with one topic."""

    def __init__(self, num_partitions: int) -> None:
        self.ends = {tp(p): 0 for p in range(num_partitions)}
        self.is_away = False

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions."""
        if self.is_away:
            raise CoordinatorUnavailable("Kafka is away")
        if topic != TOPIC:
            raise KafkaTopicError(f"there is no topic {topic!r}")
        return sorted(p.partition for p in self.ends)

    def offsets(self, wanted: Mapping[TopicPartition, Where]) -> dict[TopicPartition, int]:
        """Return the beginning, the end, or what was given."""
        return {
            tp: where if isinstance(where, int) else 0 if where == EARLIEST else self.ends[tp]
            for tp, where in wanted.items()
        }


class FakeStore:
    """Checkpoints that every driver sees."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[TopicPartition, int]] = {}
        self.is_away = False
        self.removed: list[str] = []
        self.old: set[str] = set()  # What was not written to for long.

    def location(self, run: str) -> str:
        """Return the name."""
        return run

    def finished(self, run: str) -> Mapping[TopicPartition, int]:
        """Return what the run's commit log says."""
        if self.is_away:
            raise StoreUnavailable("the store is away")
        return dict(self.runs.get(run, {}))

    def remove(self, run: str) -> None:
        """Delete it."""
        self.runs.pop(run, None)
        self.removed.append(run)

    def sweep(
        self, alive: Collection[str], in_use: Collection[str], older_than_s: float
    ) -> list[str]:
        """Delete the old runs of others."""
        old = self.old & set(self.runs) - set(in_use)
        gone = [run for run in old if run.rpartition(".")[0] not in alive]
        for run in gone:
            self.remove(run)
        return gone


class FakeQuery:
    """One query; what it writes is counted in *written*."""

    def __init__(
        self,
        run: GroupedRun,
        topics: FakeTopics,
        store: FakeStore,
        written: Counter[tuple[int, int]],
        max_rows: int = 10,
    ) -> None:
        self.run = run
        self.ended: Exception | None = None
        self.active = True
        self.seen = FOREACH
        self.told: Progress | None = None
        self.at = dict(run.starting_offsets)
        self.planned: dict[TopicPartition, int] | None = None
        self.is_writing = False
        self.stops = 0
        self.on_stop: Callable[[], None] = lambda: None
        self._topics = topics
        self._store = store
        self._written = written
        self._max_rows = max_rows

    def work(self) -> None:
        """Do one step of a batch: plan it, write it, or log that it is finished."""
        if not self.active:
            return
        if self.planned is None:
            ends = self._topics.ends
            planned = {tp: min(ends[tp], at + self._max_rows) for tp, at in self.at.items()}
            self.planned = planned if planned != self.at else None
        elif not self.is_writing:
            self.is_writing = True
            self._write()
        else:
            self.at, self.planned, self.is_writing = self.planned, None, False
            self._store.runs[self.run.name] = dict(self.at)
            self.told = self.seen

    def batch(self) -> None:
        """Do one whole batch."""
        for _ in range(3):
            self.work()

    def fail(self, error: Exception) -> None:
        """End, as by a sink that raises."""
        self.active, self.ended = False, error

    def is_active(self) -> bool:
        """See `RunningQuery`."""
        return self.active

    def failure(self) -> Exception | None:
        """See `RunningQuery`."""
        return self.ended

    def between_batches(self) -> bool:
        """See `RunningQuery`."""
        return not self.is_writing

    def progress(self) -> Progress | None:
        """See `RunningQuery`."""
        return self.told

    def stop(self) -> None:
        """See `RunningQuery`."""
        if self.active:
            self.on_stop()
            self.stops += 1
            self.active = False

    def _write(self) -> None:
        assert self.planned is not None
        for tp, end in self.planned.items():
            self._written.update((tp.partition, offset) for offset in range(self.at[tp], end))


class HookedSession(FakeSession):
    """A member that is told before its partitions go."""

    def __init__(
        self, group: FakeGroup, client_id: str, hooks: Hooks, fuse: Fuse, *, cooperative: bool
    ) -> None:
        super().__init__(group, client_id, cooperative=cooperative, instance=None)
        self.topics = (TOPIC,)
        self._hooks = hooks
        self._fuse = fuse

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """Join or rejoin."""
        self._fuse.burn()
        if not self.cooperative and self._owned and self.rebalance_needed and not self.lost:
            self._hooks.on_revoked(self._owned)
            self._owned = ()
        found = super().assignment(timeout_s)
        self._fuse.burn()
        return found

    def _take_news(self) -> bool:
        if self._next is not None:
            going = tuple(tp for tp in self._owned if tp not in self._next.partitions)
            if going:
                self._hooks.on_revoked(going)
        return super()._take_news()

    def _lose(self) -> None:
        owned = self._owned
        super()._lose()
        if owned:
            self._hooks.on_lost(owned)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        expected: Mapping[TopicPartition, int],
    ) -> None:
        """Send a commit."""
        self._fuse.burn()
        super().commit(offsets, expected)
        self._fuse.burn()

    def alive_clients(self) -> set[str]:
        """Return the members' client ids."""
        if self.group.outage:
            raise CoordinatorUnavailable("outage")
        return {session.client_id for session in self.group.members.values()}


class FakeDriver:
    """One driver process: a core with everything around it, and a clock of its own.

    Attributes:
        on_sleep: what the rest of the world does meanwhile.
        on_stop: told of a query before it is stopped.
        may_start: judges a new run before it starts.

    """

    def __init__(
        self,
        name: str,
        group: FakeGroup,
        cluster: FakeTopics,
        store: FakeStore,
        written: Counter[tuple[int, int]],
        **given: object,
    ) -> None:
        self.name = name
        self.group = group
        self.now_s = 0.0
        self.fuse = Fuse()
        self.sessions: list[HookedSession] = []
        self.queries: list[FakeQuery] = []
        self.on_sleep: Callable[[], None] = lambda: None
        self.may_start: Callable[[GroupedRun], None] = lambda _: None
        self.on_stop: Callable[[FakeQuery], None] = lambda _: None
        self.max_rows = 10
        self.start_error: Exception | None = None
        self.is_cooperative = False
        self._topics = cluster
        self._store = store
        self._written = written
        settings = {
            "coordinator": "host:1",
            "topics": (TOPIC,),
            "client_id": name,
            "starting_offsets": EARLIEST,
            "rebalance_timeout_s": 60.0,
            "batch_wait_s": 40.0,
            "commit_wait_s": 5.0,
            "outage_limit_s": 10.0,
            "coordinator_timeout_s": 30.0,
            "max_failures": 2,
            "allow_stateful": False,
            **given,
        }
        self.core = GroupedCore(
            GroupedSettings(**settings),  # type: ignore[arg-type] # The defaults above, changed.
            open_session=self._open,
            runs=self,
            store=store,
            topics=cluster,
            clock=lambda: self.now_s,
            sleep=self.sleep,
        )

    @property
    def query(self) -> FakeQuery:
        """The newest query."""
        return self.queries[-1]

    @property
    def session(self) -> HookedSession:
        """The member."""
        return self.sessions[-1]

    def sleep(self, pause_s: float) -> None:
        """Let time go by."""
        self.now_s += max(pause_s, 0.05)
        self.on_sleep()

    def start(self, run: GroupedRun, checkpoint: str) -> FakeQuery:
        """See `Runs.start`."""
        self.fuse.burn()
        if self.start_error is not None:
            raise self.start_error
        self.may_start(run)
        query = FakeQuery(run, self._topics, self._store, self._written, self.max_rows)

        def on_stop() -> None:
            self.fuse.burn()
            self.on_stop(query)

        query.on_stop = on_stop
        self.queries.append(query)
        self._store.runs.setdefault(run.name, {})
        self.fuse.burn()
        return query

    def steps(self, count: int = 1) -> bool:
        """Step so often; return what the last one said."""
        going = True
        for _ in range(count):
            going = self.core.step()
            self.now_s += 0.5
        return going

    def is_trusted(self, query: FakeQuery, partition: TopicPartition) -> bool:
        """Say whether the next owner of a partition will look at this query's checkpoint."""
        stored = self.group.offsets.get(partition)
        return stored is not None and trusted_run(stored.metadata) == query.run.name

    def _open(self, hooks: Hooks) -> HookedSession:
        session = HookedSession(
            self.group, self.name, hooks, self.fuse, cooperative=self.is_cooperative
        )
        self.sessions.append(session)
        return session
