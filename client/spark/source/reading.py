"""Reading a range on an executor: its rows, with the source's columns, and names for what fails.

This is also where a log is held to its word: a range that comes back with a row too few, twice, or
out of order would be silent loss.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from client.spark.errors import LogFailed
from client.spark.logs.partition_log import OFFSET_COLUMN, PartitionLog

logger = logging.getLogger(__name__)

# How often reads are looked at.
LOOK_S: Final = 1.0


class SourceRange(NamedTuple):
    """Rows ``start <= offset < end`` of a partition, planned in *generation*."""

    topic: str
    partition: int
    start: int
    end: int
    generation: int


class ReadMonitor:
    """Says so when a read yields nothing for long; one thread for all reads of a process.

    Args:
        clock: a monotonic clock in seconds.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads: dict[object, tuple[str, float, float]] = {}
        self._started = False
        self._lock = threading.Lock()

    def watch(self, read: object, what: str, silence_s: float) -> None:
        """Begin to watch *read*, or note that it yielded something."""
        self._reads[read] = (what, self._clock(), silence_s)
        with self._lock:
            if not self._started:
                threading.Thread(target=self._watch, name="read-monitor", daemon=True).start()
                self._started = True

    def done(self, read: object) -> None:
        """Stop watching it."""
        self._reads.pop(read, None)

    def look(self) -> None:
        """Log a warning for each read that is silent; for the same one, each time as long."""
        now_s = self._clock()
        for read, (what, since_s, silence_s) in list(self._reads.items()):
            if now_s - since_s >= silence_s:
                logger.warning("%s has yielded nothing for %.0f s", what, now_s - since_s)
                if read in self._reads:
                    self._reads[read] = (what, since_s, now_s - since_s + silence_s)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look()


_monitor = ReadMonitor()


def read_range(
    log: PartitionLog, task: SourceRange, silence_s: float, monitor: ReadMonitor = _monitor
) -> Iterator[pa.RecordBatch]:
    """Yield what *log* reads of a range.

    Args:
        log: where the rows are.
        task: the range.
        silence_s: how long the log may yield nothing until that is said.
        monitor: says it.

    Raises:
        LogFailed: the log raised something; the message names the range.

    """
    what = (
        f"{task.topic}-{task.partition}: read({task.start}, {task.end}) of the log "
        f"{type(log).__name__}"
    )
    read = object()
    try:
        monitor.watch(read, what, silence_s)
        for rows in log.read(task.topic, task.partition, task.start, task.end):
            monitor.done(read)  # What Spark does with them is not the log's time.
            yield rows
            monitor.watch(read, what, silence_s)
    except Exception as error:
        raise LogFailed(f"{what} failed: {type(error).__name__}: {error}") from error
    finally:
        monitor.done(read)


def with_source_columns(
    rows: Iterator[pa.RecordBatch], task: SourceRange, schema: pa.Schema, *, dense: bool = True
) -> Iterator[pa.RecordBatch]:
    """Add the source's own columns to a range's rows, in the types of *schema*.

    Args:
        rows: what the log yields for the range.
        task: the range.
        schema: all columns, the log's and the source's own.
        dense: whether offsets have no gaps; else *rows* have a column ``offset``.

    Raises:
        ValueError: the log returned fewer or more rows than the range holds, or others.

    """
    at = task.start
    for batch in rows:
        count = batch.num_rows
        if not count:
            continue
        offsets = dense_offsets(at, count) if dense else _sparse_offsets(batch, at, task)
        columns: dict[str, pa.Array] = {
            "topic": pa.repeat(pa.scalar(task.topic, pa.string()), count),
            "partition": pa.repeat(pa.scalar(task.partition, pa.int32()), count),
            OFFSET_COLUMN: offsets,
            "range_start": pa.repeat(pa.scalar(task.start, pa.int64()), count),
            "range_end": pa.repeat(pa.scalar(task.end, pa.int64()), count),
            "generation": pa.repeat(pa.scalar(task.generation, pa.int32()), count),
        }
        at = offsets[-1].as_py() + 1
        yield pa.RecordBatch.from_arrays(
            [
                (columns[f.name] if f.name in columns else batch.column(f.name)).cast(f.type)
                for f in schema
            ],
            schema=schema,
        )
    if at > task.end or (dense and at != task.end):
        raise ValueError(
            f"{task.topic}-{task.partition}: the log returned the rows from {task.start} to "
            f"{at} for a range that ends at {task.end}"
        )


def dense_offsets(first: int, count: int) -> pa.Array:
    """Return *count* offsets from *first* on."""
    return pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count), start=first - 1)


def _sparse_offsets(batch: pa.RecordBatch, at: int, task: SourceRange) -> pa.Array:
    if OFFSET_COLUMN not in batch.schema.names:
        raise ValueError(
            f"{task.topic}-{task.partition}: the log's offsets have gaps ('dense_offsets' is "
            f"False), but its batches have no column '{OFFSET_COLUMN}'"
        )
    offsets = batch.column(OFFSET_COLUMN).cast(pa.int64())
    rising = offsets.null_count == 0 and offsets[0].as_py() >= at
    if rising and len(offsets) > 1:
        rising = pc.all(pc.less(offsets[:-1], offsets[1:])).as_py()
    if not rising or offsets[-1].as_py() >= task.end:
        raise ValueError(
            f"{task.topic}-{task.partition}: the log returned offsets that do not rise from "
            f"{at} to below {task.end}"
        )
    return offsets
