"""What a sink does with a range that it is given: write it, or know better. Pure.

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
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from client.spark.logs.partition_log import LogError, LogUnavailable, load_log
from client.spark.options import with_secrets

# ------------------------------------------------------------------------------------------
# What a sink does with a range that it is given: write it, or know better. Pure.

OnGap = Literal["error", "accept"]
OnReset = Literal["error", "skip", "append"]

ON_GAP: Final = ("error", "accept")
ON_RESET: Final = ("error", "skip", "append")


class SinkError(RuntimeError):
    """The sink can't take a batch; the message says why, and what to do."""


class PartitionKey(NamedTuple):
    """Whose position: one partition, as read by one group."""

    group: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} of group {self.group!r}"


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


# Says whether a log has no rows of a topic's partition from one offset to another.
IsEmpty = Callable[[str, int, int, int], bool]


class Policy(NamedTuple):
    """What to do about what only the owner of the data can judge."""

    on_gap: OnGap = "error"
    on_reset: OnReset = "error"
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


def checked_policy(on_gap: str, on_reset: str, is_empty: IsEmpty | None = None) -> Policy:
    """Return the policy.

    Raises:
        ValueError: there is no such policy; the message names the argument.

    """
    for name, value, known in (("on_gap", on_gap, ON_GAP), ("on_reset", on_reset, ON_RESET)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}: it must be one of {', '.join(known)}")
    return Policy(on_gap, on_reset, is_empty)  # type: ignore[arg-type]  # Checked just above.


def decide_all(
    group: str,
    ranges: Iterable[SinkRange],
    stored: Mapping[PartitionKey, Stored],
    policy: Policy,
) -> dict[PartitionKey, Decision]:
    """Decide about the ranges of one batch, at most one per partition.

    Raises:
        SinkError: the policy says that one of them must not be taken.

    """
    decisions = {}
    for one in sorted(ranges):
        key = PartitionKey(group, one.topic, one.partition)
        decisions[key] = decide(key, one, stored.get(key), policy)
    return decisions


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
    if policy.on_reset == "append":
        after = Stored(one.start, one.end, one.generation)
        return Decision(one, Verdict.WRITE, one.start, stored, after)
    if policy.on_reset == "skip":
        if one.end <= stored.end:
            return Decision(one, Verdict.REPEAT, one.end, stored, stored)
        after = Stored(one.start, one.end, one.generation)
        return Decision(one, Verdict.WRITE, stored.end, stored, after)
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


# ------------------------------------------------------------------------------------------
# Tells whether a log has rows where a sink has seen none.
#
# Offsets of Kafka have gaps: markers of transactions, aborted rows, and what compaction removed. A
# range that lies in a gap has no row to tell the sink of it, so the next one looks as if rows were
# lost. Whoever gives the log's options to a sink lets it look.


def looks_into(log: Mapping[str, str] | None) -> IsEmpty | None:
    """Return what looks into the log with these options; None if there are none."""
    return None if log is None else partial(_is_empty, dict(log))


def _is_empty(given: Mapping[str, str], topic: str, partition: int, start: int, end: int) -> bool:
    log = load_log(with_secrets({name.lower(): value for name, value in given.items()}))
    try:
        return not any(batch.num_rows for batch in log.read(topic, partition, start, end))
    except LogUnavailable:
        raise  # Nobody knows now; the next run of the batch may.
    except LogError:
        return False  # Rows were there, and were deleted.


# ------------------------------------------------------------------------------------------
# From the DataFrame that ``foreachBatch`` hands over to the ranges in it.

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Transform = Callable[["DataFrame"], "DataFrame"]

RANGE_COLUMNS: Final = ("topic", "partition", "range_start", "range_end", "generation")

logger = logging.getLogger(__name__)


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
        one = self.range
        return {
            "txnAppId": f"{self.group}/{one.topic}/{one.partition}",
            "txnVersion": str(one.end),
        }


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
    """Return the ranges of a batch, as `counted_ranges` does."""
    return list(counted_ranges(batch))


def counted_ranges(batch: "DataFrame") -> dict[SinkRange, int]:
    """Return the ranges of a batch, at most one per partition, and how many rows each has.

    Raises:
        SinkError: the batch isn't one of the coordinated source.

    """
    missing = [name for name in (*RANGE_COLUMNS, "offset") if name not in batch.columns]
    if missing:
        raise SinkError(
            f"the batch has no column {', '.join(map(repr, missing))}: a sink that takes each "
            "range once needs the columns of the coordinated source. Leave them in the query, "
            "and hand what shapes the rows to the sink as transform="
        )
    counted = {
        SinkRange(*row[:-1]): int(row[-1])
        for row in batch.groupBy(*RANGE_COLUMNS).count().collect()
    }
    return {one: counted[one] for one in checked_ranges(counted)}


def checked_ranges(found: Iterable[SinkRange]) -> list[SinkRange]:
    """Return *found* in order.

    Raises:
        SinkError: these can't be the ranges of one batch.

    """
    ranges: dict[tuple[str, int], SinkRange] = {}
    for one in found:
        if None in one or not 0 <= one.start < one.end:
            raise SinkError(
                f"the batch has rows with the range {tuple(one)}, which the coordinated source "
                "does not make; don't change its columns before the sink"
            )
        if (one.topic, one.partition) in ranges:
            raise SinkError(
                f"the batch has two ranges of {one.topic}-{one.partition}; give each coordinated "
                "source a query, and each group a sink, of its own"
            )
        ranges[one.topic, one.partition] = one
    return sorted(ranges.values())


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


def accepted_rows(batch: "DataFrame", decisions: Collection[Decision]) -> "DataFrame":
    """Return the rows that are to be written."""
    if all(d.verdict is Verdict.WRITE and d.from_offset == d.range.start for d in decisions):
        return batch
    return _from(
        batch,
        {
            (d.range.topic, d.range.partition): d.from_offset
            for d in decisions
            if d.verdict is Verdict.WRITE
        },
    )


def log_skipped(decisions: Mapping[PartitionKey, Decision]) -> None:
    """Tell what is not written, and why."""
    for key, decision in decisions.items():
        one = decision.range
        if decision.verdict is Verdict.LATE:
            logger.warning(
                "%s: the rows from %d to %d come from a reader that the group removed; skipped, "
                "the sink has them",
                key,
                one.start,
                one.end,
            )
        elif decision.verdict is Verdict.REPEAT:
            logger.info(
                "%s: the rows from %d to %d are in the sink already; skipped",
                key,
                one.start,
                one.end,
            )


def _from(batch: "DataFrame", starts: Mapping[tuple[str, int], int]) -> "DataFrame":
    """Return the rows of these partitions from these offsets on."""
    wanted = [
        (batch["topic"] == topic) & (batch["partition"] == partition) & (batch["offset"] >= start)
        for (topic, partition), start in starts.items()
    ]
    return batch.where(reduce(lambda a, b: a | b, wanted))
