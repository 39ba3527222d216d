"""Tells whether a log has rows where a sink has seen none.

Offsets of Kafka have gaps: markers of transactions, aborted rows, and what compaction removed. A
range that lies in a gap has no row to tell the sink of it, so the next one looks as if rows were
lost. Whoever gives the log's options to a sink lets it look.
"""

from collections.abc import Mapping
from functools import partial

from client.spark.log import LogError, LogUnavailable, load_log
from client.spark.secrets import with_secrets
from client.spark.sinks.ranges import IsEmpty


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
