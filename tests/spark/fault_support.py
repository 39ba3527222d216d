"""The faults that the coordinated source must survive, and a log that has them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from client.spark.source.core import Task
from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import MemoryLog, Query, tp

# Each has a test of the core and one with real Spark; see test_core_faults.py.
FAULTS = (
    "coordinator down at start",
    "coordinator down during a batch",
    "coordinator down for 60 s",
    "coordinator restarted",
    "coordinator loading",
    "member frozen past its session and thawed",
    "killed before the sink",
    "killed after the sink",
    "killed after the commit log",
    "checkpoint of another group",
    "checkpoint of another topic set",
    "checkpoint from a newer version",
    "topic shrinks",
    "topic recreated",
    "offsets out of bounds, earliest",
    "offsets out of bounds, latest",
    "offsets out of bounds, error",
    "log raises",
    "log blocks",
    "two queries on one checkpoint",
)

F = TypeVar("F", bound=Callable[..., object])


def shows(*faults: str) -> Callable[[F], F]:
    """Mark a test as the evidence for some of `FAULTS`."""
    assert set(faults) <= set(FAULTS), faults
    return lambda test: test


class FaultyLog(MemoryLog):
    """A log whose topic can be made anew, and whose partitions can fail."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        super().__init__(ends)
        self.id: str | None = None
        self.failing: dict[int, Exception] = {}
        self.asked: Counter[int] = Counter()

    def topic_id(self, topic: str) -> str | None:
        """Return what the test set."""
        return self.id

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the bounds, or fail."""
        self.asked[partition] += 1
        if error := self.failing.get(partition):
            raise error
        return super().bounds(topic, partition)


def make(ends: Mapping[int, int]) -> tuple[FakeGroup, FaultyLog]:
    """Return a group and a log with these partitions."""
    return FakeGroup([tp(p) for p in ends]), FaultyLog(ends)


def expect_all(written: Iterable[Task], ends: Mapping[int, int], *, repeated: int = 0) -> None:
    """Check that there is no gap, and that at most so many ranges were written twice."""
    counts = Counter((t.tp.partition, t.range.start, t.range.end) for t in written)
    for partition, end in ends.items():
        at = 0
        for _, start, stop in sorted(key for key in counts if key[0] == partition):
            assert start == at, f"partition {partition}: a gap or an overlap at {at}"
            at = stop
        assert at == end, f"partition {partition} ends at {at}"
    assert sum(counts.values()) - len(counts) <= repeated


def finish(*queries: Query, triggers: int = 40) -> list[Task]:
    """Let all queries run in turn; return all that they ever wrote."""
    for _ in range(triggers):
        for query in queries:
            query.trigger()
    return [task for query in queries for task in query.sunk]
