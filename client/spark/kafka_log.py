"""Kafka topics as a partitioned log, read with confluent-kafka (librdkafka) into Arrow batches.

Bounds are asked for all partitions at once. Offsets have gaps: compaction removes rows, and the
markers of transactions take offsets of their own. A range is therefore read until something
beyond its end was seen: a row, or the end of the partition.

A worker process of an executor keeps its consumer between tasks, because connecting costs more
than reading a small range.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Final, TypeVar

import pyarrow as pa

from client.spark.kafka_config import KafkaConfig, parse_kafka_options
from client.spark.kafka_rows import columns, record_batch
from client.spark.log import LogError, LogUnavailable, PartitionLog
from client.spark.options import OptionError
from protocol.types import TopicPartition

try:
    from confluent_kafka import (
        Consumer,
        IsolationLevel,
        KafkaError,
        KafkaException,
        TopicCollection,
        TopicPartition as KafkaPartition,
    )
    from confluent_kafka.admin import AdminClient, OffsetSpec
except ImportError as missing:
    raise OptionError(
        "option 'log' is 'kafka', which needs confluent-kafka: pip install "
        f"group-coordinator[kafka] on the driver and on all executors ({missing})"
    ) from missing

T = TypeVar("T")

# Their types allow None for what only messages that were never sent lack.
Messages = list[Any]

# A record batch is what an executor holds in memory at once, besides librdkafka's queue.
BATCH_ROWS_MAX: Final = 16_384
BATCH_BYTES_MAX: Final = 8 * 2**20
_POLL_S: Final = 0.1
_EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # It has none.
_LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # It has none.
_IDLE_MAX: Final = 2

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})

# What passes by itself: elections, restarts, networks.
_PASSING: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own errors are named so.
        KafkaError._TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
        KafkaError._TRANSPORT,  # noqa: SLF001
        KafkaError._RESOLVE,  # noqa: SLF001
        KafkaError._WAIT_CACHE,  # noqa: SLF001
        KafkaError._DESTROY,  # noqa: SLF001
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
_UNKNOWN: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_GONE: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
)


class KafkaLog(PartitionLog):
    """Reads the topics of the cluster that the option ``kafka.bootstrap.servers`` names.

    Raises:
        OptionError: an option is missing, unknown or impossible.

    """

    dense_offsets: ClassVar[bool] = False

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._config = parse_kafka_options(options)
        self._lock = threading.Lock()
        self._connected: _Admin | None = None

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*, ascending."""
        return sorted(p.id for p in self._admin.describe(topic).partitions)

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the log start offset and the end: of committed rows, unless told otherwise."""
        tp = TopicPartition(topic, partition)
        return self.all_bounds([tp])[tp]

    def all_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the bounds of several partitions with two requests per broker."""
        earliest = self._admin.list_offsets(partitions, _EARLIEST)
        latest = self._admin.list_offsets(
            partitions, _LATEST, committed_only=self._config.committed_only
        )
        starts, ends = earliest(), latest()
        return {tp: (starts[tp], max(starts[tp], ends[tp])) for tp in partitions}

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset whose row has this timestamp or a later one, else the end."""
        found = self._admin.list_offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms))()
        behind = self.all_bounds([tp for tp in partitions if found[tp] < 0])
        return {tp: behind[tp][1] if tp in behind else found[tp] for tp in partitions}

    def topics(self) -> list[str]:
        """Return the names of all topics but Kafka's internal ones."""
        return sorted(set(self._admin.names()) - _INTERNAL)

    def hosts(self, topic: str, partition: int) -> Sequence[str]:
        """Return the host of the partition's leader."""
        for found in self._admin.describe(topic).partitions:
            if found.id == partition and found.leader is not None:
                return (found.leader.host,)
        return ()

    def topic_id(self, topic: str) -> str | None:
        """Return the id that Kafka gave the topic when it was made."""
        return str(self._admin.describe(topic).topic_id)

    def schema(self, topic: str) -> pa.Schema:
        """Return the columns that every topic has."""
        del topic
        return columns(include_headers=self._config.include_headers)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows ``start <= offset < end``, with their offsets.

        Raises:
            LogUnavailable: nothing came for as long as option ``log.timeout`` says.
            LogError: some of the rows are not there (any more).

        """
        reader = _RangeReader(self._config, TopicPartition(topic, partition), start, end)
        rows: Messages = []
        size = 0
        for messages in reader:
            rows += messages
            size += sum(map(len, messages))
            if len(rows) >= BATCH_ROWS_MAX or size >= BATCH_BYTES_MAX:
                yield record_batch(rows, include_headers=self._config.include_headers)
                rows, size = [], 0
        if rows:
            yield record_batch(rows, include_headers=self._config.include_headers)

    @property
    def _admin(self) -> "_Admin":
        with self._lock:  # The reader and the group's leader ask in threads of their own.
            if self._connected is None:
                self._connected = _Admin(self._config)
            return self._connected


class _Admin:
    """What the reader process asks the cluster; all calls end within the timeout."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._reasons = _Reasons()
        self._client = _made(AdminClient, {**config.admin, "error_cb": self._reasons})

    def describe(self, topic: str) -> Any:
        """Return the description of a topic."""
        futures = self._client.describe_topics(
            TopicCollection([topic]), request_timeout=self._config.timeout_s
        )
        return self._result(futures[topic], f"topic {topic!r}")

    def names(self) -> list[str]:
        """Return the names of all topics."""
        try:
            return list(self._client.list_topics(timeout=self._config.timeout_s).topics)
        except KafkaException as error:
            raise self._failure(error, "the topics") from error

    def list_offsets(
        self,
        partitions: Collection[TopicPartition],
        spec: OffsetSpec,
        *,
        committed_only: bool = False,
    ) -> Callable[[], dict[TopicPartition, int]]:
        """Ask for an offset of each partition; the function that is returned waits for them."""
        if not partitions:
            return dict
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED
        futures = self._client.list_offsets(
            {KafkaPartition(*tp): spec for tp in partitions},
            isolation_level=level,
            request_timeout=self._config.timeout_s,
        )

        def wait() -> dict[TopicPartition, int]:
            return {
                TopicPartition(asked.topic, asked.partition): self._result(
                    future, f"{asked.topic}-{asked.partition}"
                ).offset
                for asked, future in futures.items()
            }

        return wait

    def _result(self, future: Future[T], what: str) -> T:
        try:
            # librdkafka ends it in time; should it not, nor do we wait for it.
            return future.result(self._config.timeout_s + 5)
        except (KafkaException, TimeoutError) as error:
            raise self._failure(error, what) from error

    def _failure(self, error: Exception, what: str) -> LogError:
        self._client.poll(0)  # For the reason, as in `_Reasons`.
        return _log_error(error, what, self._config, self._reasons)


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
            consumer.unassign()
            whole = True
        finally:
            if whole:
                _give_back(lease)
            else:
                consumer.close()

    def _accept(self, messages: Messages, reasons: "_Reasons") -> Messages:
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

    def _heed(self, message: Any, reasons: "_Reasons") -> None:
        error = message.error()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # All before it has been fetched, so what is missing up to there is no row.
            self._at = max(self._at, min(message.offset(), self._end))
        elif code in _GONE:
            raise LogError(
                f"{self._tp}: the rows from {self._at} to {self._end} are missing: they were "
                f"deleted (retention), or the topic was made anew ({error.str()})"
            )
        elif code in _PASSING and not error.fatal():
            reasons(error)
        else:
            raise _log_error(KafkaException(error), str(self._tp), self._config, reasons)

    def _stalled(self, reasons: "_Reasons") -> LogUnavailable:
        return LogUnavailable(
            f"{self._tp}: Kafka at {self._config.servers} returned nothing from offset {self._at} "
            f"on within {self._config.timeout_s:g} s (option 'log.timeout'), of a range that ends "
            f"at {self._end}{reasons}"
        )


class _Reasons:
    """Remembers what librdkafka said last: its timeouts don't tell why."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._last:  # noqa: SLF001
            self._last = error.str()

    def __str__(self) -> str:
        return f": {self._last}" if self._last else ""


class _Lease:
    """A consumer in use."""

    def __init__(self, config: KafkaConfig) -> None:
        self.key = frozenset(config.consumer.items())
        self.reasons = _Reasons()
        self.consumer = _made(Consumer, {**config.consumer, "error_cb": self.reasons})


_idle: list[_Lease] = []


def _take(config: KafkaConfig) -> _Lease:
    key = frozenset(config.consumer.items())
    for index, lease in enumerate(_idle):
        if lease.key == key:
            return _idle.pop(index)
    return _Lease(config)


def _give_back(lease: _Lease) -> None:
    _idle.append(lease)
    while len(_idle) > _IDLE_MAX:
        _idle.pop(0).consumer.close()


def _made(kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    try:
        return kind(config)
    except KafkaException as error:
        reason = error.args[0].str()
        raise OptionError(f"an option 'kafka.…' is not accepted by librdkafka: {reason}") from error


def _log_error(error: Exception, what: str, config: KafkaConfig, reasons: _Reasons) -> LogError:
    where = f"Kafka at {config.servers}"
    if isinstance(error, TimeoutError):
        return LogUnavailable(f"{what}: no answer from {where}{reasons}")
    cause = error.args[0]
    if cause.code() in _UNKNOWN:
        return LogError(f"{what}: there is none at {where}")
    if cause.code() in _PASSING or cause.retriable():
        return LogUnavailable(
            f"{what}: no answer from {where} within {config.timeout_s:g} s (option "
            f"'log.timeout'): {cause.str()}{reasons}"
        )
    return LogError(f"{what}: {where} says: {cause.str()}")
