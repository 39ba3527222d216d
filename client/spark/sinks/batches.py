"""From the DataFrame that ``foreachBatch`` hands over to the ranges in it."""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

from client.spark.sinks.ranges import Decision, PartitionKey, SinkError, SinkRange, Verdict

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
