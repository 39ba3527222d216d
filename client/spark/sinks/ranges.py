"""Which ranges of a batch a sink takes, and what all sinks that take each range once share.

Theory of operation
-------------------
The coordinated source reads each partition in ranges, one after the other, and pins a range
before it starts. So whoever runs a range, it has the same bounds, and it starts only after the
one before it is finished. A sink that keeps, in the same transaction as the rows, up to where it
has a partition (`Stored`) can therefore tell from a range alone:

- it begins where the last one ended: it is the next one, written now;
- it is the last one again: its first writer died before it could say so, or is still at it;
- it is older, and of an older generation: a late writer, which the group removed meanwhile;
- it is older, and of the same or a newer generation: the group's offsets were moved back;
- it begins later: rows in between never came here, or there are none: offsets of Kafka have gaps,
  and a range that lies in one comes to no sink.

A late writer runs one batch, then learns from the coordinator that it was removed. So two late
ranges in a row are none: that is a group that was deleted and made anew, whose generations
began again. The end of the last late range is kept for this.

Offsets of Kafka have gaps: markers of transactions, aborted rows, and what compaction removed. A
range that lies in a gap has no row to tell the sink of it, so the next one looks as if rows were
lost. Whoever gives the log's options to a sink lets it look.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial, reduce
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, get_args
from urllib.parse import unquote

from client.spark.logs.partition_log import LogError, LogUnavailable, load_log
from client.spark.options import with_secrets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

OnGap = Literal["error", "accept"]
OnReset = Literal["error", "skip", "append"]

Transform = Callable[["DataFrame"], "DataFrame"]

# What stores that have only numbers hold where there is none.
NO_NUMBER: Final = -1

RANGE_COLUMNS: Final = ("topic", "partition", "range_start", "range_end", "generation")


class SinkError(RuntimeError):
    """The sink can't take a batch; the message says why, and what to do."""


class PartitionKey(NamedTuple):
    """Whose position: one partition, as read by one group."""

    group: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} of group {self.group!r}"

    @property
    def app_id(self) -> str:
        """Its name as an application transaction of a Delta table."""
        return f"{_without_slashes(self.group)}/{_without_slashes(self.topic)}/{self.partition}"

    @classmethod
    def of_app_id(cls, app_id: str) -> "PartitionKey | None":
        """Return whose name that is; None if it is nobody's."""
        match app_id.split("/"):
            case [group, topic, partition] if partition.isdecimal() and partition.isascii():
                return cls(unquote(group), unquote(topic), int(partition))
        return None


def _without_slashes(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F")


class SinkRange(NamedTuple):
    """Rows ``start <= offset < end`` of one partition, planned in *generation*."""

    topic: str
    partition: int
    start: int
    end: int
    generation: int


class Stored(NamedTuple):
    """Up to where a sink has a partition: the last range it took, and the last late one."""

    start: int
    end: int
    generation: int
    late_end: int | None = None

    def numbers(self) -> tuple[int, int, int, int]:
        """Return it as a store has it that holds only numbers."""
        late_end = NO_NUMBER if self.late_end is None else self.late_end
        return self.start, self.end, self.generation, late_end

    @classmethod
    def of_numbers(cls, start: int, end: int, generation: int, late_end: int) -> "Stored":
        """Return what such a store has."""
        return cls(start, end, generation, None if late_end == NO_NUMBER else late_end)


# Says whether a log has no rows of a topic's partition from one offset to another.
IsEmpty = Callable[[str, int, int, int], bool]


class Policy(NamedTuple):
    """What to do about what only the owner of the data can judge.

    Attributes:
        on_gap: ``error`` or ``accept``, where rows before a range never came.
        on_reset: ``error``, ``skip`` or ``append``, where rows come again because the group's
            offsets were moved back.
        is_empty: looks whether a gap holds rows; None where nothing can.

    """

    on_gap: str = "error"
    on_reset: str = "error"
    is_empty: IsEmpty | None = None


class Verdict(Enum):
    """What becomes of a range."""

    WRITE = "write"
    REPEAT = "repeat"
    LATE = "late"


class Decision(NamedTuple):
    """What becomes of a range: its rows from *from_offset* on are written, or none."""

    range: SinkRange
    verdict: Verdict
    from_offset: int
    before: Stored | None
    after: Stored

    @property
    def changes(self) -> bool:
        """Whether the sink's position changes."""
        return self.after != self.before


def checked_policy(on_gap: str, on_reset: str, log: Mapping[str, str] | None = None) -> Policy:
    """Return the policy; with the options of a *log*, gaps are looked at in it.

    Raises:
        ValueError: there is no such policy; the message names the argument.

    """
    for name, value, choice in (("on_gap", on_gap, OnGap), ("on_reset", on_reset, OnReset)):
        if value not in get_args(choice):
            raise ValueError(
                f"{name} is {value!r}: it must be one of {', '.join(get_args(choice))}"
            )
    return Policy(on_gap, on_reset, None if log is None else partial(_is_empty, dict(log)))


def decide(key: PartitionKey, one: SinkRange, stored: Stored | None, policy: Policy) -> Decision:
    """Decide about one range.

    Raises:
        SinkError: the policy says that it must not be taken.

    """
    if stored is None:
        return _write(one, None)
    if one.start >= stored.end:
        if one.start > stored.end and not _may_miss(one, stored, policy):
            raise _gap(key, one, stored)
        return _write(one, stored)
    if (one.start, one.end) == (stored.start, stored.end):
        return Decision(one, Verdict.REPEAT, one.end, stored, stored)
    is_late = one.generation < stored.generation and one.end <= stored.end
    if is_late and one.start != stored.late_end:
        after = stored._replace(late_end=one.end)
        return Decision(one, Verdict.LATE, one.end, stored, after)
    return _moved_back(key, one, stored, policy)


def _may_miss(one: SinkRange, stored: Stored, policy: Policy) -> bool:
    if policy.on_gap == "accept":
        return True
    return policy.is_empty is not None and policy.is_empty(
        one.topic, one.partition, stored.end, one.start
    )


def _write(one: SinkRange, stored: Stored | None) -> Decision:
    generation = one.generation if stored is None else max(one.generation, stored.generation)
    after = Stored(one.start, one.end, generation)
    return Decision(one, Verdict.WRITE, one.start, stored, after)


def _moved_back(key: PartitionKey, one: SinkRange, stored: Stored, policy: Policy) -> Decision:
    if policy.on_reset == "skip" and one.end <= stored.end:
        return Decision(one, Verdict.REPEAT, one.end, stored, stored)
    if policy.on_reset != "error":
        from_offset = one.start if policy.on_reset == "append" else stored.end
        after = Stored(one.start, one.end, one.generation)
        return Decision(one, Verdict.WRITE, from_offset, stored, after)
    raise SinkError(
        f"{key}: the rows from {one.start} to {one.end} come again, but the sink has them up to "
        f"{stored.end}. The group's offsets were moved back, or the group or the log was made "
        "anew. To write them once more call forget() of the sink for this partition and reset "
        "the group's offsets again, or set on_reset='append'; to leave out what the sink has "
        "set on_reset='skip'"
    )


def _gap(key: PartitionKey, one: SinkRange, stored: Stored) -> SinkError:
    return SinkError(
        f"{key}: the rows from {one.start} on come next, but the sink has them up to "
        f"{stored.end} only. The rows between were lost from the log, the group's offsets were "
        "moved forward, the sink was restored from a backup, a filter before the sink dropped a "
        "whole range (hand it to the sink as transform= instead), or the log's offsets have gaps, "
        "as Kafka's have (hand the log's options to the sink as log=, so that it can look). To go "
        "on without these rows set on_gap='accept'"
    )


def _is_empty(options: Mapping[str, str], topic: str, partition: int, start: int, end: int) -> bool:
    log = load_log(with_secrets({name.lower(): value for name, value in options.items()}))
    try:
        return not any(batch.num_rows for batch in log.read(topic, partition, start, end))
    except LogUnavailable:
        raise  # Nobody knows now; the next run of the batch may.
    except LogError:
        return False  # Rows were there, and were deleted.


class RangeBatch(NamedTuple):
    """One range of a batch, with its rows."""

    group: str
    range: SinkRange
    rows: "DataFrame"

    @property
    def key(self) -> str:
        """The same text whoever runs the range, and another one for each range."""
        one = self.range
        return f"{self.group}/{one.topic}/{one.partition}/{one.end}"

    def delta_options(self) -> dict[str, str]:
        """Return the writer options with which a Delta table takes each range once."""
        key = PartitionKey(self.group, self.range.topic, self.range.partition)
        return {"txnAppId": key.app_id, "txnVersion": str(self.range.end)}


def each_range(batch: "DataFrame", group: str) -> Iterator[RangeBatch]:
    """Yield the ranges of a batch one by one, for a sink of your own.

    A sink that takes each `RangeBatch.key` once, whoever brings it, and however often, makes
    the query effectively once.

    Args:
        batch: what ``foreachBatch`` hands over, with the columns of the coordinated source.
        group: the group that reads.

    Raises:
        SinkError: the batch isn't one of the coordinated source.

    """
    with persisted(batch):
        for one in ranges_of(batch):
            yield RangeBatch(group, one, _from(batch, {(one.topic, one.partition): one.start}))


def ranges_of(batch: "DataFrame") -> list[SinkRange]:
    """Look for the ranges of a batch, in a job of its own; at most one per partition.

    Raises:
        SinkError: the batch isn't one of the coordinated source.

    """
    check_range_columns(batch)
    return checked_ranges(
        SinkRange(*row) for row in batch.select(*RANGE_COLUMNS).distinct().collect()
    )


def check_range_columns(batch: "DataFrame") -> None:
    """Raise `SinkError` unless the batch has the columns that tell its ranges."""
    missing = [name for name in (*RANGE_COLUMNS, "offset") if name not in batch.columns]
    if missing:
        raise SinkError(
            f"the batch has no column {', '.join(map(repr, missing))}: a sink that takes each "
            "range once needs the columns of the coordinated source. Leave them in the query, "
            "and hand what shapes the rows to the sink as transform="
        )


def checked_ranges(found: Iterable[SinkRange]) -> list[SinkRange]:
    """Return the ranges that were found in a batch, in order, each once.

    Raises:
        SinkError: no batch of the coordinated source has such ranges.

    """
    ranges = set(found)
    partitions = set()
    for one in ranges:
        if None in one or not 0 <= one.start < one.end:
            raise SinkError(
                f"the batch has rows with the range {tuple(one)}, which the coordinated source "
                "does not make; don't change its columns before the sink"
            )
        if (one.topic, one.partition) in partitions:
            raise SinkError(
                f"the batch has two ranges of {one.topic}-{one.partition}; give each coordinated "
                "source a query, and each group a sink, of its own"
            )
        partitions.add((one.topic, one.partition))
    return sorted(ranges)


@contextmanager
def persisted(batch: "DataFrame") -> Iterator[None]:
    """Keep a batch while it is looked at more than once, or every look would read the log."""
    already = batch.storageLevel.useMemory or batch.storageLevel.useDisk
    if not already:
        batch.persist()
    try:
        yield
    finally:
        if not already:
            batch.unpersist()


# What `RangeSink._store` does.
Store = Callable[["DataFrame | None", Mapping[PartitionKey, Decision]], bool]


class RangeSink(ABC):
    """Writes batches of a coordinated source, each range once; the base of the sinks.

    Args:
        where: the place, for messages.
        group: the group that reads.
        transform: shapes the rows before they are written.
        policy: what to do about gaps and resets.
        clock: returns the time in seconds since 1970.

    """

    # Somebody else's change of the sink comes between ours at most so often in a row; each time
    # that other one got on.
    tries_max: ClassVar[int]

    def __init__(
        self,
        where: str,
        group: str,
        transform: Transform | None,
        policy: Policy,
        clock: Callable[[], float],
    ) -> None:
        self.group = group
        self._where = where
        self._transform = transform
        self._policy = policy
        self._clock = clock

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        """Write the ranges of *batch* that are new, all or none of them.

        Raises:
            SinkError: a range must not be taken, or the batch doesn't fit.
            Exception: whatever a database's driver raises; nothing was written then, or the
                answer to COMMIT was lost, which the next run of the batch finds out.

        """
        with persisted(batch):
            self._take(batch, batch_id, ranges_of(batch), self._store)

    def _take(
        self, batch: "DataFrame", batch_id: int, ranges: Collection[SinkRange], store: Store
    ) -> None:
        """Store what is new of these ranges, decided anew as long as somebody else is faster."""
        by_key = {PartitionKey(self.group, one.topic, one.partition): one for one in ranges}
        for _ in range(self.tries_max):
            stored = self._stored()
            decisions = {
                key: decide(key, one, stored.get(key), self._policy) for key, one in by_key.items()
            }
            changed = {key: d for key, d in decisions.items() if d.changes}
            if not changed or store(self._rows(batch, decisions), changed):
                log_skipped(decisions)
                return
        raise SinkError(
            f"{self._where}: other drivers keep writing the ranges of batch {batch_id}; do two "
            "groups of the same name write here?"
        )

    def positions(self) -> dict[PartitionKey, int]:
        """Return up to where the sink has each partition."""
        return {key: stored.end for key, stored in self._stored().items()}

    def forget(self, topic: str | None = None, partition: int | None = None) -> int:
        """Take whatever range comes next, of one partition, of a topic, or of the group.

        The rows stay. For a log that was made anew, and to write rows once more.

        Returns:
            How many partitions were forgotten.

        """
        for _ in range(self.tries_max):
            keys = [
                key
                for key in self._stored()
                if key.group == self.group
                and topic in (None, key.topic)
                and partition in (None, key.partition)
            ]
            if not keys or self._forget(keys):
                return len(keys)
        raise SinkError(f"{self._where} is changed faster than its positions can be forgotten")

    @abstractmethod
    def _stored(self) -> Mapping[PartitionKey, Stored]:
        """Return the newest positions."""

    @abstractmethod
    def _store(self, rows: "DataFrame | None", changed: Mapping[PartitionKey, Decision]) -> bool:
        """Write rows (None for none) and positions; return False if a position moved meanwhile."""

    @abstractmethod
    def _forget(self, keys: Collection[PartitionKey]) -> bool:
        """Delete positions; return False if somebody else changed the sink meanwhile."""

    def _rows(
        self, batch: "DataFrame", decisions: Mapping[PartitionKey, Decision]
    ) -> "DataFrame | None":
        """Return the rows that are to be written; None if no range is, *batch* if all are."""
        starts = {
            (d.range.topic, d.range.partition): d.from_offset
            for d in decisions.values()
            if d.verdict is Verdict.WRITE
        }
        if not starts:
            return None
        if any(d.from_offset != d.range.start for d in decisions.values()):
            batch = _from(batch, starts)
        return batch if self._transform is None else self._transform(batch)


def log_skipped(decisions: Mapping[PartitionKey, Decision]) -> None:
    """Tell what is not written, and why."""
    reasons = {
        Verdict.LATE: (
            logging.WARNING,
            "come from a reader that the group removed; skipped, the sink has them",
        ),
        Verdict.REPEAT: (logging.INFO, "are in the sink already; skipped"),
    }
    for key, decision in decisions.items():
        if decision.verdict in reasons:
            level, reason = reasons[decision.verdict]
            bounds = decision.range.start, decision.range.end
            logger.log(level, "%s: the rows from %d to %d %s", key, *bounds, reason)


def _from(batch: "DataFrame", starts: Mapping[tuple[str, int], int]) -> "DataFrame":
    """Return the rows of these partitions from these offsets on."""
    wanted = [
        (batch["topic"] == topic) & (batch["partition"] == partition) & (batch["offset"] >= start)
        for (topic, partition), start in starts.items()
    ]
    return batch.where(reduce(lambda a, b: a | b, wanted))
