"""A log in memory, a clock, and one reader process with a stand-in for Spark's query loop."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from client.spark.logs.partition_log import LogError, PartitionLog
from client.spark.source.core import ReaderCore, Task
from client.spark.source.log_calls import Runner, run_here
from client.spark.source.reader_options import COOPERATIVE, ReaderOptions, parse_options
from client.spark.source.stream_offsets import decode_end
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup, FakeSession

TOPIC = "flights"


def tp(partition: int) -> TopicPartition:
    """Return a partition of the one topic that these tests use."""
    return TopicPartition(TOPIC, partition)


def options(**given: str) -> ReaderOptions:
    """Return checked options; names with their usual spelling. Eager, unless asked otherwise."""
    return parse_options(
        {
            "coordinator": "localhost:9310",
            "group": "g",
            **({} if "topicsPattern" in given else {"topics": TOPIC}),
            "assignor": "range",
            "sessionTimeout": "10s",
            "rebalanceTimeout": "60s",
            "coordinatorTimeout": "30s",
            **given,
        }
    )


class MemoryLog(PartitionLog):
    """Only bounds: the rows themselves don't matter to the core."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        super().__init__({})
        self.starts = dict.fromkeys(ends, 0)
        self.ends = dict(ends)

        self.others: dict[str, dict[int, int]] = {}
        self.columns: dict[str, pa.Schema] = {}

    def topics(self) -> list[str]:
        """Return the one topic that all tests have, and the others."""
        return sorted([TOPIC, *self.others])

    def partitions(self, topic: str) -> list[int]:
        """Return all partitions."""
        return sorted(self._ends(topic))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the bounds as set by the test."""
        start = self.starts.get(partition, 0) if topic == TOPIC else 0
        return start, self._ends(topic)[partition]

    def schema(self, topic: str) -> pa.Schema:
        """Return no columns, unless the test has set some."""
        return self.columns.get(topic, pa.schema([]))

    def _ends(self, topic: str) -> dict[int, int]:
        if topic != TOPIC and topic not in self.others:
            raise LogError(f"no topic {topic!r}")
        return self.ends if topic == TOPIC else self.others[topic]

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Never called by the core."""
        raise NotImplementedError


def group_and_log(ends: dict[int, int]) -> tuple[FakeGroup, MemoryLog]:
    """Return a group and a log with these partitions."""
    return FakeGroup([tp(p) for p in ends]), MemoryLog(ends)


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []
        self.on_sleep: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Let time pass, and the test act."""
        self.slept.append(seconds)
        self.now_s += seconds
        self.on_sleep()


@dataclass
class Checkpoint:
    """What Spark keeps of a query over restarts."""

    offsets: list[str] = field(default_factory=list)
    commits: int = 0


Offset = dict[str, Any]


class Query:
    """One run of one query: calls a reader process in the order in which Spark does."""

    def __init__(
        self,
        group: FakeGroup,
        log: MemoryLog,
        *,
        checkpoint: Checkpoint | None = None,
        client_id: str = "reader",
        max_rows: int | None = 10,
        run: Runner = run_here,
        clock: Clock | None = None,
        refused: Callable[[], str | None] = lambda: None,
        warms_up: bool = False,
        **given: str,
    ) -> None:
        self.group = group
        self.clock = clock or Clock()
        checked = options(**given)
        self.session: FakeSession = group.session(
            client_id,
            cooperative=checked.assignors == (COOPERATIVE,),
            instance=checked.group_instance_id,
        )
        self.checkpoint = checkpoint or Checkpoint()
        self.max_rows = max_rows
        self.sunk: list[Task] = []
        self.in_flight: list[Task] = []
        self.core = ReaderCore(
            checked,
            log,
            open_session=self._open,
            client_id=client_id,
            clock=self.clock,
            sleep=self.clock.sleep,
            run=run,
            refused=refused,
            warms_up=warms_up,
        )

    def _open(self, topics: Sequence[str], eager: bool) -> FakeSession:
        if self.session.left:  # Opened anew: another member of the same process.
            old = self.session
            self.session = self.group.session(old.client_id, cooperative=False)
        self.session.topics = tuple(topics)
        self.session.cooperative = self.session.cooperative and not eager
        return self.session

    def trigger(self) -> bool:
        """Run one trigger to its end; say whether there was a batch."""
        for batch_planned in self.steps():
            if batch_planned is not None:
                return batch_planned
        raise AssertionError("a trigger ends with a verdict")

    def crash_before_commit_log(self) -> None:
        """Die after the sink, before Spark notes that the batch is done; the group notices."""
        self.checkpoint.commits -= 1
        self.group.evict(self.session)

    def triggers(self, count: int) -> list[Task]:
        """Run some triggers; return what they wrote."""
        before = len(self.sunk)
        for _ in range(count):
            self.trigger()
        return self.sunk[before:]

    def steps(self) -> Iterator[bool | None]:
        """Go through one trigger; each yield is a place where the process may die.

        The last value says whether there was a batch, all before are None.
        """
        checkpoint = self.checkpoint
        if len(checkpoint.offsets) > checkpoint.commits:  # The replay, before any latestOffset.
            yield from self._batch(self._start())
            return
        start = self._start()
        yield None
        end = self.core.latest_offset(json.loads(json.dumps(start)), self.max_rows)
        if end == start:
            yield False
            return
        planned = decode_end(end).ranges.items()
        self.in_flight = [Task(partition, planned_range) for partition, planned_range in planned]
        yield None
        checkpoint.offsets.append(json.dumps(end))
        yield None
        # As long as there is no commit, Spark asks for the initial offset here once more.
        yield from self._batch(self._start())

    def _start(self) -> Offset:
        if self.checkpoint.commits:
            offset: Offset = json.loads(self.checkpoint.offsets[self.checkpoint.commits - 1])
            return offset
        return self.core.initial_offset()

    def _batch(self, start: Offset) -> Iterator[bool | None]:
        tasks = self.core.partitions(start, json.loads(self.checkpoint.offsets[-1]))
        self.in_flight = tasks
        yield None
        for task in tasks:
            self.sunk.append(task)
            yield None
        self.checkpoint.commits += 1
        yield True


def ranges(tasks: list[Task]) -> list[tuple[int, int, int]]:
    """Return (partition, start, end) of tasks, for short assertions."""
    return [(task.tp.partition, task.range.start, task.range.end) for task in tasks]
