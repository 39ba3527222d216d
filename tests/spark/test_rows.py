"""What the coordinated source makes of a log's rows, and what it doesn't take."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from client.spark.logs.kafka_log import columns, record_batch
from client.spark.source.reading import SourceRange, with_source_columns

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


class Sent(NamedTuple):
    """A message as confluent-kafka shows it."""

    at: int
    time: tuple[int, int]
    given_headers: list[tuple[str, bytes | None]] | None = None

    def offset(self) -> int:
        """Return the offset."""
        return self.at

    def key(self) -> bytes | None:
        """Return the key."""
        return None

    def value(self) -> bytes | None:
        """Return the value."""
        return b"v%d" % self.at

    def timestamp(self) -> tuple[int, int]:
        """Return kind and milliseconds."""
        return self.time

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers."""
        return self.given_headers


@pytest.mark.parametrize("include_headers", [True, False])
def test_messages_become_rows_of_the_promised_columns(include_headers: bool) -> None:
    """Times may be unknown, or of both kinds; Spark's own source counts them from -1."""
    sent = [
        Sent(4, (1, 1500), [("a", b"1"), ("a", None)]),
        Sent(6, (2, 2500)),
        Sent(9, (0, -1), []),
    ]

    batch = record_batch(sent, include_headers=include_headers)

    rows: list[dict[str, Any]] = batch.to_pylist()
    assert batch.schema.remove(0) == columns(include_headers=include_headers)
    assert [row["offset"] for row in rows] == [4, 6, 9]
    assert [row["value"] for row in rows] == [b"v4", b"v6", b"v9"]
    assert [row["timestampType"] for row in rows] == [0, 1, -1]
    assert [row["timestamp"] and row["timestamp"].timestamp() for row in rows] == [1.5, 2.5, None]
    if include_headers:
        first = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
        assert [row["headers"] for row in rows] == [first, None, []]


def test_times_of_one_kind_are_the_usual_case() -> None:
    """Then the kind isn't looked at row by row."""
    batch = record_batch([Sent(0, (1, 7)), Sent(1, (1, 8))], include_headers=False)

    assert batch["timestampType"].to_pylist() == [0, 0]
    assert batch["timestamp"].null_count == 0
