"""The rows of a range on an executor: what is held against the log, and reads that fail."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from client.spark.errors import LogFailed
from client.spark.logs.partition_log import LogError
from client.spark.source.reading import ReadMonitor, SourceRange, read_range, with_source_columns
from tests.spark.helpers import MemoryLog

OUT = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("id", pa.int64()),
        ("range_start", pa.int64()),
        ("range_end", pa.int64()),
        ("generation", pa.int32()),
    ]
)


def of(start: int, end: int) -> SourceRange:
    """Return a range of t-0."""
    return SourceRange("t", 0, start, end, generation=7)


def batches(*parts: Sequence[int]) -> list[pa.RecordBatch]:
    """Return batches of a sparse log; the id is the offset."""
    return [
        pa.RecordBatch.from_pydict(
            {"offset": pa.array(part, pa.int64()), "id": pa.array(part, pa.int64())}
        )
        for part in parts
    ]


def sparse(*parts: Sequence[int], start: int = 10, end: int = 20) -> pa.Table:
    """Return what the source makes of such batches."""
    rows = with_source_columns(iter(batches(*parts)), of(start, end), OUT, dense=False)
    return pa.Table.from_batches(rows, OUT)


@settings(deadline=None)  # The first example loads Arrow's functions.
@given(offsets=st.sets(st.integers(10, 19)), cut=st.integers(0, 10))
def test_gaps_are_the_logs_own_business(offsets: set[int], cut: int) -> None:
    """Compaction and markers of transactions leave them anywhere."""
    rising = sorted(offsets)

    table = sparse(rising[:cut], rising[cut:])

    assert table["offset"].to_pylist() == table["id"].to_pylist() == rising
    assert set(table["range_end"].to_pylist()) <= {20}


@pytest.mark.parametrize(
    "parts", [([9],), ([20],), ([12, 11],), ([12, 12],), ([12], [12]), ([12], [11])]
)
def test_offsets_must_rise_within_the_range(parts: Sequence[Sequence[int]]) -> None:
    """Anything else is a row twice, or of another range."""
    with pytest.raises(ValueError, match="t-0: the log returned offsets that do not rise from"):
        sparse(*parts)


def test_gaps_need_a_column_that_tells_them() -> None:
    """Else rows would be counted, and get the offsets of others."""
    rows = pa.RecordBatch.from_pydict({"id": [1]})

    with pytest.raises(ValueError, match="no column 'offset'"):
        list(with_source_columns(iter([rows]), of(0, 5), OUT, dense=False))


def test_dense_rows_are_counted_over_empty_batches() -> None:
    """A log may yield whatever cut it likes."""
    ids = [pa.RecordBatch.from_pydict({"id": pa.array(p, pa.int64())}) for p in ([1], [], [2, 3])]

    made = with_source_columns(iter(ids), of(4, 7), OUT)

    assert [row["offset"] for batch in made for row in batch.to_pylist()] == [4, 5, 6]


# --- Reads that fail or are silent ---------------------------------------------------------


class ReadingLog(MemoryLog):
    """Yields what it is given, or raises it."""

    rows: tuple[pa.RecordBatch | Exception, ...] = ()

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield or raise."""
        for rows in self.rows:
            if isinstance(rows, Exception):
                raise rows
            yield rows


TASK: Any = SimpleNamespace(topic="flights", partition=3, start=10, end=20, generation=1)
ROWS = pa.RecordBatch.from_pydict({"id": [1]})


@pytest.mark.parametrize("error", [LogError("gone"), ZeroDivisionError("gone")])
def test_a_read_that_fails_names_its_range(error: Exception) -> None:
    """Spark shows the message of one task of many."""
    log = ReadingLog({3: 20})
    log.rows = (ROWS, error)
    rows = read_range(log, TASK, 10.0)
    assert next(rows) is ROWS

    words = rf"flights-3: read\(10, 20\) of the log ReadingLog failed: {type(error).__name__}: gone"
    with pytest.raises(LogFailed, match=words):
        next(rows)


def test_a_silent_read_is_warned_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """It can't be given up, but a hanging task without a word is a riddle."""
    now = [0.0]
    monitor = ReadMonitor(clock=lambda: now[0])
    monitor.watch("read", "flights-3: read(10, 20)", 30.0)
    for now[0] in (29.0, 30.0, 31.0, 59.0, 60.0):
        monitor.look()

    assert [record.getMessage() for record in caplog.records] == [
        f"flights-3: read(10, 20) has yielded nothing for {seconds} s" for seconds in (30, 60)
    ]
    monitor.done("read")
    now[0] = 200.0
    monitor.look()
    assert len(caplog.records) == 2


def test_what_spark_does_with_rows_is_not_the_logs_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slow sink is another matter."""
    now = [0.0]
    monitor = ReadMonitor(clock=lambda: now[0])
    log = ReadingLog({3: 20})
    log.rows = (ROWS, ROWS)

    for _ in read_range(log, TASK, 10.0, monitor):
        now[0] += 100.0
        monitor.look()

    assert caplog.text == ""
