"""What a listener knows of each query: how far it got, and whether it missed something. Pure."""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from client.spark.listener_sources import Offsets, Reached
from protocol.types import TopicPartition

# Where a mark of a partition comes from: the how-many-eth run, and the batch.
Mark = tuple[int, int]

NO_BATCH: Final = -1

# Events come late by seconds, but a query that is started each minute has many runs.
EARLIER_RUNS_MAX: Final = 20


class Event(NamedTuple):
    """One progress event, as far as a listener needs it."""

    query_id: str
    run_id: str
    name: str | None
    batch_id: int
    reached: Reached


class Step(NamedTuple):
    """What an event brought.

    Attributes:
        news: offsets to commit.
        missed_after: batches behind this one had no event; None if none is missing.

    """

    news: dict[TopicPartition, int]
    missed_after: int | None = None


class PartitionProgress(NamedTuple):
    """How far a query got in one partition; ``lag`` is None where the end isn't known."""

    finished: int
    end: int | None
    lag: int | None
    moved_s: float


class QueryState:
    """One query, over all its runs."""

    def __init__(self, query_id: str, name: str | None, now_s: float) -> None:
        self.query_id = query_id
        self.name = name
        self.run_id: str | None = None
        self.active = True
        self.batch_id = NO_BATCH
        self.batches = 0
        self.dropped = 0
        self.late = 0
        self.healed = 0
        self.heard_s = now_s
        self.progress_s = now_s
        self._num_runs = 0
        self._earlier: deque[str] = deque(maxlen=EARLIER_RUNS_MAX)
        self._offsets: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, Mark] = {}
        self._moved_s: dict[TopicPartition, float] = {}

    @property
    def run(self) -> int:
        """Which run of the query this is, counted from 1; 0 before the first."""
        return self._num_runs

    def started(self, run_id: str, now_s: float) -> None:
        """Note a new run. It may begin at an older batch, from a restored checkpoint."""
        if run_id != self.run_id and run_id not in self._earlier:
            if self.run_id is not None:
                self._earlier.append(self.run_id)
            self._num_runs += 1
            self.run_id = run_id
            # The batches that ran while nobody listened are in the checkpoint.
            self.batch_id = NO_BATCH
        self.active = True
        self.heard_s = now_s

    def progress(self, event: Event, now_s: float) -> Step:
        """Take one batch's event."""
        self.name = event.name
        if event.run_id in self._earlier or (
            event.run_id == self.run_id and event.batch_id < self.batch_id
        ):
            self.late += 1
            return Step({})
        if event.run_id != self.run_id:
            self.started(event.run_id, now_s)
        before = self.batch_id
        missing = event.batch_id - before - 1 if before != NO_BATCH else 0
        self.dropped += max(missing, 0)
        if event.batch_id != before:
            self.batches += 1
        self.batch_id = event.batch_id
        self.heard_s = self.progress_s = now_s
        self._ends.update(event.reached.ends)
        mark = (self.run, event.batch_id)
        news = self._take({tp: (o, mark) for tp, o in event.reached.finished.items()}, now_s)
        return Step(news, before if missing > 0 else None)

    def read(
        self, found: Mapping[TopicPartition, tuple[int, int]], run: int, now_s: float
    ) -> dict[TopicPartition, int]:
        """Take what the checkpoint says; return what is news.

        Args:
            found: the offset of each partition, and in which batch it was reached.
            run: `run` when the reading began.
            now_s: the time.

        """
        known = dict(self._offsets)
        news = self._take({tp: (o, (run, batch)) for tp, (o, batch) in found.items()}, now_s)
        self.healed += sum(known.get(tp) != offset for tp, offset in news.items())
        return news

    def idle(self, now_s: float) -> None:
        """Note that the query lives, and has nothing to do."""
        self.heard_s = now_s

    def ended(self, now_s: float) -> None:
        """Note the end of a run."""
        self.active = False
        self.heard_s = now_s

    def partitions(self) -> dict[TopicPartition, PartitionProgress]:
        """Return how far the query got."""
        result = {}
        for tp, finished in self._offsets.items():
            end = self._ends.get(tp)
            lag = None if end is None else max(end - finished, 0)
            result[tp] = PartitionProgress(finished, end, lag, self._moved_s[tp])
        return result

    def ends(self) -> Offsets:
        """Return where the partitions end, as far as the sources said."""
        return dict(self._ends)

    def _take(
        self, given: Mapping[TopicPartition, tuple[int, Mark]], now_s: float
    ) -> dict[TopicPartition, int]:
        news = {}
        for tp, (offset, mark) in given.items():
            # What a later batch said stands, in whatever order the two arrive.
            if mark < self._marks.get(tp, mark):
                continue
            if self._offsets.get(tp) != offset:
                self._moved_s[tp] = now_s
            self._offsets[tp] = news[tp] = offset
            self._marks[tp] = mark
        return news
