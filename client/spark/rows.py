"""The rows of a range, with the columns that the coordinated source adds. Pure.

This is also where a log is held to its word: a range that comes back with a row too few, twice,
or out of order would be silent loss.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from client.spark.log import OFFSET_COLUMN


class SourceRange(NamedTuple):
    """Rows ``start <= offset < end`` of a partition, planned in *generation*."""

    topic: str
    partition: int
    start: int
    end: int
    generation: int


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
