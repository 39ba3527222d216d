"""What a listener knows of each query: how far it got, and whether it missed something. Pure.

Progress events and checkpoints say where each source of a query is, in the source's own form;
`Rules` turn that into topics and partitions. `QueryState` puts together what events and
checkpoint tell, whichever comes first.
"""

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from client.spark.listener.metrics import PartitionLag, QueryMetrics
from client.spark.source.stream_offsets import (
    READER_KEY,
    OffsetFormatError,
    decode_end,
    finished_offsets,
)
from protocol.partition import INT64_MAX, TopicPartition

Offsets = Mapping[TopicPartition, int]

# Takes a source's offset as Spark has it in JSON; None or nothing where it isn't this source's.
Decode = Callable[[Any], Mapping[tuple[str, int], int] | None]

FILE_OFFSET: Final = {"logOffset"}
_FILE_SOURCE: Final = re.compile(r"FileStreamSource\[(.*)\]", re.DOTALL)


class Rules(NamedTuple):
    """How the offsets of the sources are read.

    Attributes:
        topics: only these, None for all.
        file_topics: a topic for each folder that a file source reads.
        decode: reads the offsets that nobody else understands.

    """

    topics: frozenset[str] | None = None
    file_topics: Mapping[str, str] = {}
    decode: Decode | None = None


class Reached(NamedTuple):
    """How far a source got: what is finished, and where the source ends as far as is known."""

    finished: dict[TopicPartition, int]
    ends: dict[TopicPartition, int]


class DecodeFailed(Exception):
    """The user's function raised, or returned what are no offsets."""


def source_reached(
    end_json: str | None, latest_json: str | None, description: str | None, rules: Rules
) -> Reached:
    """Return how far one source of a query got.

    Args:
        end_json: the end offset of a batch.
        latest_json: the source's own end; not every source tells it.
        description: what Spark calls the source, such as ``FileStreamSource[file:/in]``.
        rules: how to read offsets.

    Raises:
        DecodeFailed: `Rules.decode` failed.

    """
    offset = _parsed(end_json)
    if offset is None:
        return Reached({}, {})
    if isinstance(offset, dict) and set(offset) == FILE_OFFSET:
        return Reached(_only(_file_finished(offset, description, rules), rules), {})
    finished = finished_offsets(end_json)
    ends = finished_offsets(latest_json) | _log_ends(latest_json)
    if not finished and not _is_ours(offset) and rules.decode is not None:
        finished = _decoded(rules.decode, offset)
        latest = _parsed(latest_json)
        ends = {} if latest is None else _decoded(rules.decode, latest)
    return Reached(_only(finished, rules), _only(ends, rules))


def merged(sources: Iterable[Reached]) -> Reached:
    """Return how far a query got: where two sources read the same, the one that is behind."""
    finished: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for source in sources:
        for tp, offset in source.finished.items():
            finished[tp] = min(offset, finished.get(tp, offset))
        for tp, end in source.ends.items():
            ends[tp] = max(end, ends.get(tp, end))
    return Reached(finished, ends)


def batch_offsets(
    batches: Iterable[tuple[int, Mapping[str, str]]], rules: Rules
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offset that each partition reached in finished batches, and in which batch.

    Each batch is its number and the end offset of each source, JSON text by the source's name.

    A coordinated source's offset tells only of its own batch, so older batches count as well;
    but not those of earlier generations, whose partitions may be others' by now.

    Raises:
        DecodeFailed: `Rules.decode` failed.

    """
    found: dict[TopicPartition, tuple[int, int]] = {}
    generation: dict[str, int] = {}
    for batch_id, sources in reversed(list(batches)):
        one_file = sum(_is_file(offset) for offset in sources.values()) == 1
        # With several file sources nothing here says which is which.
        folder = next(iter(rules.file_topics), None) if len(rules.file_topics) == 1 else None
        description = f"FileStreamSource[{folder}]" if one_file and folder else None
        reached = []
        for name, offset in sources.items():
            ranges = _generation(offset)
            if ranges is not None and ranges < generation.setdefault(name, ranges):
                continue
            reached.append(source_reached(offset, None, description, rules))
        for tp, end in merged(reached).finished.items():
            found.setdefault(tp, (end, batch_id))
    return found


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or "")
    except ValueError:
        return None


def _is_file(offset_json: str) -> bool:
    offset = _parsed(offset_json)
    return isinstance(offset, dict) and set(offset) == FILE_OFFSET


def _file_finished(
    offset: Mapping[str, Any], description: str | None, rules: Rules
) -> dict[TopicPartition, int]:
    match = _FILE_SOURCE.fullmatch(description or "")
    number = offset["logOffset"]
    if match is None or type(number) is not int or number < 0:
        return {}
    path = _plain(match[1])
    for folder, topic in rules.file_topics.items():
        if _plain(folder) == path:
            # Spark numbers the groups of new files that it saw; the next one is what comes next.
            return {TopicPartition(topic, 0): number + 1}
    return {}


def _plain(folder: str) -> str:
    # Spark writes file:/in, people also write file:///in and /in/.
    return re.sub(r"^file:/+", "/", folder).rstrip("/")


def _log_ends(latest_json: str | None) -> dict[TopicPartition, int]:
    """Return the ends that a coordinated source reports, ``{"topic-3": 25}``."""
    latest = _parsed(latest_json)
    ends = {}
    for key, end in latest.items() if isinstance(latest, dict) else ():
        topic, _, partition = key.rpartition("-")
        if topic and partition.isdecimal() and type(end) is int and end >= 0:
            ends[TopicPartition(topic, int(partition))] = end
    return ends


def _is_ours(offset: object) -> bool:
    return isinstance(offset, dict) and READER_KEY in offset


def _generation(offset_json: str) -> int | None:
    offset = _parsed(offset_json)
    if not _is_ours(offset):
        return None
    try:
        return max((r.generation for r in decode_end(offset).ranges.values()), default=None)
    except OffsetFormatError:
        return None


def _decoded(decode: Decode, offset: object) -> dict[TopicPartition, int]:
    try:
        returned = dict(decode(offset) or {})
        decoded = {TopicPartition(*key): value for key, value in returned.items()}
    except Exception as exc:
        raise DecodeFailed(f"decode({offset!r}) raised {exc!r}") from exc
    for (topic, partition), value in decoded.items():
        # What a user's function returns may be anything, whatever its annotations say.
        types = (type(topic), type(partition), type(value))
        if types != (str, int, int) or partition < 0 or not 0 <= value <= INT64_MAX:
            raise DecodeFailed(
                f"decode({offset!r}) returned {returned!r}: no offsets by (topic, 0)"
            )
    return decoded


def _only(offsets: dict[TopicPartition, int], rules: Rules) -> dict[TopicPartition, int]:
    if rules.topics is None:
        return offsets
    return {tp: offset for tp, offset in offsets.items() if tp.topic in rules.topics}


NO_BATCH: Final = -1

# Events come late by seconds, but a query that is started each minute has many runs.
EARLIER_RUNS_MAX: Final = 20

# What told of a partition last: the number of the run, and the batch.
Source = tuple[int, int]


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


class QueryState:
    """One query, over all its runs."""

    def __init__(self, query_id: str, name: str | None, now_s: float) -> None:
        self.query_id = query_id
        self.name = name
        self.run = 0  # Which run of the query this is, counted from 1; 0 before the first.
        self.run_id: str | None = None
        self.active = True
        self.batch_id = NO_BATCH
        self._batches = 0
        self._dropped = 0
        self._late = 0
        self._healed = 0
        self._heard_s = now_s
        self._progress_s = now_s
        self._earlier: deque[str] = deque(maxlen=EARLIER_RUNS_MAX)
        self._offsets: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._sources: dict[TopicPartition, Source] = {}
        self._moved_s: dict[TopicPartition, float] = {}

    def started(self, run_id: str, now_s: float) -> None:
        """Note a new run. It may begin at an older batch, from a restored checkpoint."""
        if run_id != self.run_id and run_id not in self._earlier:
            if self.run_id is not None:
                self._earlier.append(self.run_id)
            self.run += 1
            self.run_id = run_id
            # The batches that ran while nobody listened are in the checkpoint.
            self.batch_id = NO_BATCH
        self.active = True
        self._heard_s = now_s

    def progress(self, event: Event, now_s: float) -> Step:
        """Take one batch's event."""
        self.name = event.name
        if event.run_id in self._earlier or (
            event.run_id == self.run_id and event.batch_id < self.batch_id
        ):
            self._late += 1
            return Step({})
        if event.run_id != self.run_id:
            self.started(event.run_id, now_s)
        before = self.batch_id
        missing = event.batch_id - before - 1 if before != NO_BATCH else 0
        self._dropped += max(missing, 0)
        if event.batch_id != before:
            self._batches += 1
        self.batch_id = event.batch_id
        self._heard_s = self._progress_s = now_s
        self._ends.update(event.reached.ends)
        source = (self.run, event.batch_id)
        news = self._take({tp: (o, source) for tp, o in event.reached.finished.items()}, now_s)
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
        self._healed += sum(known.get(tp) != offset for tp, offset in news.items())
        return news

    def idle(self, now_s: float) -> None:
        """Note that the query lives, and has nothing to do."""
        self._heard_s = now_s

    def ended(self, now_s: float) -> None:
        """Note the end of a run."""
        self.active = False
        self._heard_s = now_s

    def metrics(self, now_s: float) -> QueryMetrics:
        """Return how far the query got."""
        partitions = {}
        for tp, finished in self._offsets.items():
            end = self._ends.get(tp)
            lag = None if end is None or end < finished else end - finished
            partitions[tp] = PartitionLag(finished, end, lag, now_s - self._moved_s[tp])
        return QueryMetrics(
            query_id=self.query_id,
            name=self.name,
            active=self.active,
            batch_id=self.batch_id,
            quiet_s=now_s - self._progress_s,
            silent_s=now_s - self._heard_s,
            batches=self._batches,
            dropped_events=self._dropped,
            late_events=self._late,
            healed=self._healed,
            partitions=partitions,
        )

    def ends(self) -> Offsets:
        """Return where the partitions end, as far as the sources said."""
        return dict(self._ends)

    def _take(
        self, told: Mapping[TopicPartition, tuple[int, Source]], now_s: float
    ) -> dict[TopicPartition, int]:
        news = {}
        for tp, (offset, source) in told.items():
            # What a later batch said stands, in whatever order the two arrive.
            if source < self._sources.get(tp, source):
                continue
            if self._offsets.get(tp) != offset:
                self._moved_s[tp] = now_s
            self._offsets[tp] = news[tp] = offset
            self._sources[tp] = source
        return news
