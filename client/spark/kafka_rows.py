"""Kafka's messages as Arrow batches. Pure."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from client.spark.log import OFFSET_COLUMN

_HEADERS: Final = pa.list_(
    pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
)
_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
_MICROSECONDS: Final = pa.timestamp("us", tz="UTC")
_OFFSET: Final = pa.field(OFFSET_COLUMN, pa.int64())
_COLUMNS: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", _MICROSECONDS),
        pa.field("timestampType", pa.int32()),
    ]
)
# Kafka says 0 where the producer set the time and 1 where the broker did; librdkafka says 1 and
# 2, and 0 where there is none.
_NO_TIME: Final = 0


def columns(*, include_headers: bool) -> pa.Schema:
    """Return the columns of any topic: those of Spark's own Kafka source, named the same."""
    return _COLUMNS.append(pa.field("headers", _HEADERS)) if include_headers else _COLUMNS


def record_batch(messages: Sequence[Any], *, include_headers: bool) -> pa.RecordBatch:
    """Return messages as rows, with their offsets in the first column."""
    kinds, times = zip(*[message.timestamp() for message in messages], strict=True)
    arrays = [
        pa.array([message.offset() for message in messages], pa.int64()),
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        *_times(kinds, times),
    ]
    if include_headers:
        arrays.append(pa.array([_headers(message.headers()) for message in messages], _HEADERS))
    schema = columns(include_headers=include_headers)
    return pa.RecordBatch.from_arrays(arrays, schema=schema.insert(0, _OFFSET))


def _times(kinds: Sequence[int], times: Sequence[int]) -> tuple[pa.Array, pa.Array]:
    """Return the columns ``timestamp`` and ``timestampType``."""
    known = set(kinds)
    stamps: Sequence[int | None] = times
    if _NO_TIME in known:
        stamps = [ms if kind != _NO_TIME else None for kind, ms in zip(kinds, times, strict=True)]
    types = (
        pa.repeat(pa.scalar(kinds[0] - 1, pa.int32()), len(kinds))  # As a rule they are all alike.
        if len(known) == 1
        else pa.array([kind - 1 for kind in kinds], pa.int32())
    )
    return pa.array(stamps, _MILLISECONDS).cast(_MICROSECONDS), types


def _headers(given: Sequence[tuple[str, bytes | None]] | None) -> list[dict[str, Any]] | None:
    if given is None:
        return None
    return [{"key": key, "value": value} for key, value in given]
