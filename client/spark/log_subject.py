"""What the rules for a `PartitionLog` are checked on; see `client.spark.log_testkit`."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from client.spark.log import OFFSET_COLUMN, LogError, PartitionLog, load_log

POLL_S: Final = 0.02


class LogCheckFailed(AssertionError):
    """A log breaks a rule; the message says which, and how it showed."""


class LogSubject(ABC):
    """A topic of the log under test, and how to change it.

    Attributes:
        topic: a topic that is there, with at least one partition and no rows.
        patience_s: how soon appended or deleted rows show in the bounds.
        bounds_limit_s: how long the bounds of all partitions may take; they are asked for on
            every trigger.

    """

    topic: str = "t"
    patience_s: float = 5.0
    bounds_limit_s: float = 1.0

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """Return the options of a stream over the log, ``log`` among them."""

    @abstractmethod
    def append(self, partition: int, count: int) -> None:
        """Append *count* rows, any, to a partition of the topic."""

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete the rows before *offset*, or as many of them as the log can."""
        raise NotImplementedError

    def grow(self) -> None:
        """Give the topic one more partition."""
        raise NotImplementedError


def failed(why: str) -> LogCheckFailed:
    """Return the failure to raise."""
    return LogCheckFailed(why)


def open_log(subject: LogSubject) -> PartitionLog:
    """Make a log as each process does: from the options, with names in lower case."""
    return load_log({name.lower(): value for name, value in subject.options().items()})


def bounds_of(log: PartitionLog, subject: LogSubject, partition: int = 0) -> tuple[int, int]:
    """Return the bounds of a partition, if they can be true."""
    start, end = log.bounds(subject.topic, partition)
    if not 0 <= start <= end:
        raise failed(
            f"bounds({subject.topic!r}, {partition}) returned ({start}, {end}): the first offset "
            "is at least 0 and never after the end"
        )
    return start, end


def offsets_of(
    log: PartitionLog, subject: LogSubject, start: int, end: int, partition: int = 0
) -> list[Any]:
    """Read a range; return the offset of each row, and check what can be seen of it alone."""
    call = f"read({subject.topic!r}, {partition}, {start}, {end})"
    schema = log.schema(subject.topic)
    found: list[Any] = []
    for batch in log.read(subject.topic, partition, start, end):
        if not isinstance(batch, pa.RecordBatch):
            raise failed(f"{call} yielded a {type(batch).__name__}, not a pyarrow.RecordBatch")
        _check_columns(call, batch, schema, dense=log.dense_offsets)
        if log.dense_offsets:
            first = start + len(found)
            found += range(first, first + batch.num_rows)
        else:
            found += batch.column(OFFSET_COLUMN).to_pylist()
    if log.dense_offsets and len(found) != end - start:
        raise failed(
            f"{call} yielded {len(found)} rows, not {end - start}: a dense log has one row per "
            "offset, and raises LogError where it hasn't (or sets dense_offsets = False)"
        )
    for before, after in zip([start - 1, *found], [*found, end], strict=True):
        if after is None or not before < after:
            raise failed(
                f"{call} yielded the offset {after} after {before}: offsets rise, from "
                f"{start} to below {end}"
            )
    return found


def _check_columns(call: str, batch: pa.RecordBatch, schema: pa.Schema, *, dense: bool) -> None:
    names = list(batch.schema.names)
    if not dense:
        if OFFSET_COLUMN not in names:
            raise failed(
                f"{call}: dense_offsets is False, but there is no column '{OFFSET_COLUMN}'"
            )
        names.remove(OFFSET_COLUMN)
    missing = set(schema.names) - set(names)
    if missing:
        raise failed(f"{call}: the column(s) {', '.join(sorted(missing))} of schema() are missing")
    for field in schema:
        found = batch.schema.field(field.name).type
        if found != field.type:
            raise failed(
                f"{call}: column {field.name!r} is {found}, but schema() says {field.type}"
            )


def rows_of(log: PartitionLog, subject: LogSubject, start: int, end: int) -> list[object]:
    """Return the rows of a range of partition 0."""
    return [row for batch in log.read(subject.topic, 0, start, end) for row in batch.to_pylist()]


def appended(log: PartitionLog, subject: LogSubject, count: int) -> tuple[int, int]:
    """Append to partition 0 and wait until the bounds show it; return them."""
    end = bounds_of(log, subject)[1]
    subject.append(0, count)
    return wait_for_bounds(
        log,
        subject,
        lambda now: now[1] >= end + count,
        f"of {count} rows appended after offset {end} the end must show",
    )


def wait_for_bounds(
    log: PartitionLog,
    subject: LogSubject,
    done: Callable[[tuple[int, int]], bool],
    what: str,
) -> tuple[int, int]:
    """Wait until the bounds of partition 0 are as they must become; return them."""
    give_up_s = time.monotonic() + subject.patience_s
    while not done(now := bounds_of(log, subject)):
        if time.monotonic() > give_up_s:
            raise failed(f"{what} within {subject.patience_s:g} s, but the bounds are {now}")
        time.sleep(POLL_S)
    return now


def refuses(call: str, action: Callable[[], object]) -> None:
    """Check that a call raises a `LogError`."""
    try:
        result = action()
    except LogError as error:
        if not str(error):
            raise failed(f"{call} raised a LogError without a message") from error
    except Exception as error:
        raise failed(
            f"{call} raised {type(error).__name__} ({error}), not a LogError that says what is "
            "wrong and where"
        ) from error
    else:
        raise failed(f"{call} returned {result!r}, where it must raise a LogError")
