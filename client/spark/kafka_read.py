"""Reads ranges of Kafka's partitions into Arrow batches. Runs on executors.

Offsets have gaps: compaction removes rows, and the markers of transactions take offsets of their
own. A range is therefore read until something beyond its end was seen: a row, or the end of the
partition.

A worker process keeps its consumer between tasks, because connecting costs more than reading a
small range.
"""

import gc
import os
import time
from collections.abc import Iterator
from typing import Any, Final, TypeVar

import pyarrow as pa
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition as KafkaPartition,
)

from client.spark.kafka_client import GONE, PASSING, Reasons, log_error, made
from client.spark.kafka_config import KafkaConfig
from client.spark.kafka_rows import record_batch
from client.spark.log import LogError, LogUnavailable
from protocol.types import TopicPartition

T = TypeVar("T")

# Their types allow None for what only messages that were never sent lack.
Messages = list[Any]

# A record batch is what an executor holds in memory at once, besides librdkafka's queue.
BATCH_ROWS_MAX: Final = 16_384
BATCH_BYTES_MAX: Final = 8 * 2**20
_POLL_S: Final = 0.1
_IDLE_MAX: Final = 2


def read_range(
    config: KafkaConfig, tp: TopicPartition, start: int, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows ``start <= offset < end``, with their offsets.

    Raises:
        LogUnavailable: nothing came for as long as option ``log.timeout`` says.
        LogError: some of the rows are not there (any more).

    """
    reader = _RangeReader(config, tp, start, end)
    return _without_gc(_batches(reader, include_headers=config.include_headers))


def _batches(reader: "_RangeReader", *, include_headers: bool) -> Iterator[pa.RecordBatch]:
    rows: Messages = []
    size = 0
    for messages in reader:
        rows += messages
        size += sum(map(len, messages))
        if len(rows) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
            batch = record_batch(rows, include_headers=include_headers)
            rows, size = [], 0
            yield batch
    if rows:
        yield record_batch(rows, include_headers=include_headers)


def _without_gc(batches: Iterator[T]) -> Iterator[T]:
    """Make each of *batches* with the garbage collector paused.

    It would look for cycles in thousands of messages, again and again: half of the time.
    """
    while True:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            batch = next(batches, None)
        finally:
            if was_enabled:
                gc.enable()
        if batch is None:
            return
        yield batch


class _RangeReader:
    """Iterates over the messages of one range, some at a time."""

    def __init__(self, config: KafkaConfig, tp: TopicPartition, start: int, end: int) -> None:
        self._config = config
        self._tp = tp
        self._at = start
        self._end = end

    def __iter__(self) -> Iterator[Messages]:
        if self._at >= self._end:
            return
        lease = _take(self._config)
        consumer = lease.consumer
        whole = False
        try:
            consumer.assign([KafkaPartition(*self._tp, self._at)])
            heard_s = time.monotonic()
            while self._at < self._end:
                messages: Messages = consumer.consume(min(BATCH_ROWS_MAX, self._end - self._at), 0)
                if not messages and (message := consumer.poll(_POLL_S)) is not None:
                    messages = [message]
                before = self._at
                rows = self._accept(messages, lease.reasons)
                now_s = time.monotonic()
                if self._at > before:
                    heard_s = now_s
                elif now_s - heard_s > self._config.timeout_s:
                    raise self._stalled(lease.reasons)
                if rows:
                    yield rows
                    heard_s = time.monotonic()  # The task may have been busy with them for long.
            consumer.unassign()
            whole = True
        finally:
            if whole:
                _give_back(lease)
            else:
                consumer.close()

    def _accept(self, messages: Messages, reasons: "Reasons") -> Messages:
        """Move on behind *messages*; return those that are rows of the range."""
        rows = messages
        if any(message.error() for message in messages):
            rows = [message for message in messages if not message.error()]
            for message in messages:
                if message.error():
                    self._heed(message, reasons)
        if rows:
            last = rows[-1].offset()
            if last >= self._end:
                rows = [message for message in rows if message.offset() < self._end]
            self._at = max(self._at, min(last + 1, self._end))
        return rows

    def _heed(self, message: Any, reasons: "Reasons") -> None:
        error = message.error()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # All before it has been fetched, so what is missing up to there is no row.
            self._at = max(self._at, min(message.offset(), self._end))
        elif code in GONE:
            raise LogError(
                f"{self._tp}: the rows from {self._at} to {self._end} are missing: they were "
                f"deleted (retention), or the topic was made anew ({error.str()})"
            )
        elif code in PASSING and not error.fatal():
            reasons(error)
        else:
            raise log_error(KafkaException(error), str(self._tp), self._config, reasons)

    def _stalled(self, reasons: "Reasons") -> LogUnavailable:
        return LogUnavailable(
            f"{self._tp}: Kafka at {self._config.servers} returned nothing from offset {self._at} "
            f"on within {self._config.timeout_s:g} s (option 'log.timeout'), of a range that ends "
            f"at {self._end}{reasons}"
        )


class _Lease:
    """A consumer in use."""

    def __init__(self, config: KafkaConfig) -> None:
        self.key = _key(config)
        self.reasons = Reasons()
        self.consumer = made(Consumer, {**config.consumer, "error_cb": self.reasons})


_idle: list[_Lease] = []


def _key(config: KafkaConfig) -> tuple[int, frozenset[tuple[str, str]]]:
    return os.getpid(), frozenset(config.consumer.items())  # A fork can't use its parent's.


def _take(config: KafkaConfig) -> _Lease:
    key = _key(config)
    for index, lease in enumerate(_idle):
        if lease.key == key:
            return _idle.pop(index)
    return _Lease(config)


def _give_back(lease: _Lease) -> None:
    _idle.append(lease)
    while len(_idle) > _IDLE_MAX:
        _idle.pop(0).consumer.close()
