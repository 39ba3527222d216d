"""Kafka topics as a partitioned log, read with confluent-kafka (librdkafka) into Arrow batches.

Options that begin with ``kafka.`` go to librdkafka, which checks names and values itself. Refused
is what the log must set itself, and what only Kafka's Java client knows: there a name that is
ignored, or an obscure error, would cost most time.

Offsets have gaps: compaction removes rows, and the markers of transactions take offsets of their
own. A range is therefore read until something beyond its end was seen: a row, or the end of the
partition. A worker process keeps its consumer between tasks, because connecting costs more than
reading a small range.
"""

import gc
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

import pyarrow as pa

from client.kafka_groups.cluster import LastError
from client.spark.logs.partition_log import OFFSET_COLUMN, LogError, LogUnavailable, PartitionLog
from client.spark.options import OptionError, parse_duration_ms
from protocol.partition import TopicPartition

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

_RETRY_PAUSE_S: Final = 0.2

EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]  # It has none.
LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # It has none.

# What passes by itself: elections, restarts, networks.
PASSING: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - librdkafka's own errors are named so.
        KafkaError._TIMED_OUT,  # noqa: SLF001 - likewise.
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001 - likewise.
        KafkaError._TRANSPORT,  # noqa: SLF001 - likewise.
        KafkaError._RESOLVE,  # noqa: SLF001 - likewise.
        KafkaError._WAIT_CACHE,  # noqa: SLF001 - likewise.
        KafkaError._DESTROY,  # noqa: SLF001 - likewise.
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
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - likewise.
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - likewise.
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_NO_ENTRY: Final = KafkaError._NOENT  # noqa: SLF001 - likewise.
GONE: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001 - likewise.
)

PREFIX: Final = "kafka."
ISOLATION: Final = "isolation.level"
# What the log sets itself, and what is for members of a group, which it never is.
_OWN: Final = {
    "allow.auto.create.topics": "false",
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "enable.partition.eof": "true",
}
_OF_GROUPS: Final = {"group.instance.id", "group.protocol", "partition.assignment.strategy"}
_OF_JAVA: Final = {
    "default.api.timeout.ms": "option 'log.timeout'",
    "key.deserializer": "the columns as they are: keys are always bytes",
    "max.poll.records": "option 'maxRowsPerPartition'",
    "request.timeout.ms": "option 'log.timeout'",
    "sasl.jaas.config": "options 'kafka.sasl.username' and 'kafka.sasl.password'",
    "ssl.truststore.location": "option 'kafka.ssl.ca.location', a file in PEM format",
    "ssl.truststore.password": "option 'kafka.ssl.ca.location', a file in PEM format",
    "ssl.truststore.type": "option 'kafka.ssl.ca.location', a file in PEM format",
    "value.deserializer": "the columns as they are: values are always bytes",
}
# A range is known to be there, so nothing is gained by waiting for more of it; and what is
# fetched beyond its end is thrown away.
_DEFAULTS: Final = {
    "fetch.wait.max.ms": "10",
    "fetch.queue.backoff.ms": "5",
    "fetch.error.backoff.ms": "100",
    "queued.max.messages.kbytes": "32768",
    "reconnect.backoff.max.ms": "2000",
}
# What an admin client would complain about.
_CONSUMERS: Final = re.compile(
    r"fetch\..*|queued\..*|max\.partition\.fetch\.bytes|isolation\.level|check\.crcs|group\..*|"
    r"session\.timeout\.ms|heartbeat\.interval\.ms|max\.poll\.interval\.ms|"
    r"enable\..*offset.*|enable\.auto\.commit|enable\.partition\.eof|auto\..*|"
    r"allow\.auto\.create\.topics"
)
_LOG_OPTIONS: Final = ("log.includeHeaders", "log.timeout")

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

# Their types allow None for what only messages that were never sent lack.
Messages = list[Any]

# A record batch is what an executor holds in memory at once, besides librdkafka's queue.
BATCH_ROWS_MAX: Final = 16_384
BATCH_BYTES_MAX: Final = 8 * 2**20
_POLL_S: Final = 0.1
_IDLE_MAX: Final = 2

_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


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
        self._connected: Admin | None = None

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
        earliest = self._admin.list_offsets(partitions, EARLIEST)
        latest = self._admin.list_offsets(
            partitions, LATEST, committed_only=self._config.committed_only
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
        reader = RangeReader(self._config, TopicPartition(topic, partition), start, end)
        return _without_gc(_batches(reader, include_headers=self._config.include_headers))

    @property
    def _admin(self) -> "Admin":
        with self._lock:  # The reader and the group's leader ask in threads of their own.
            if self._connected is None:
                self._connected = Admin(self._config)
            return self._connected


# --- Options -------------------------------------------------------------------------------


class KafkaConfig(NamedTuple):
    """What a Kafka log needs to know."""

    consumer: dict[str, str]
    include_headers: bool
    timeout_s: float

    @property
    def admin(self) -> dict[str, str]:
        """The configuration of an admin client."""
        return {k: v for k, v in self.consumer.items() if not _CONSUMERS.fullmatch(k)}

    @property
    def committed_only(self) -> bool:
        """Whether rows of transactions that are open or aborted stay hidden."""
        return self.consumer[ISOLATION] == "read_committed"

    @property
    def servers(self) -> str:
        """Where the cluster is, for messages."""
        return self.consumer["bootstrap.servers"]


def parse_kafka_options(options: Mapping[str, str]) -> KafkaConfig:
    """Check the options of a Kafka log; names in any case.

    Raises:
        OptionError: one is missing, unknown or impossible.

    """
    values = {name.lower(): value for name, value in options.items()}
    own = {name.lower() for name in _LOG_OPTIONS}
    for name in values:
        if name.startswith("log.") and name not in own:
            raise OptionError(
                f"option {name!r} is unknown to a Kafka log; there are "
                f"{', '.join(_LOG_OPTIONS)}, and 'kafka.<name>' for librdkafka's configuration"
            )
    passed: dict[str, str] = {}
    for name, value in values.items():
        if not name.startswith(PREFIX):
            continue
        setting = name.removeprefix(PREFIX)
        if setting in _OWN or setting in _OF_GROUPS:
            raise OptionError(f"option {name!r} can't be set: a Kafka log decides it itself")
        if setting in _OF_JAVA:
            raise OptionError(
                f"option {name!r} is for Kafka's Java client; use {_OF_JAVA[setting]}"
            )
        passed[setting] = value
    if not passed.get("bootstrap.servers", "").strip():
        raise OptionError(
            "option 'kafka.bootstrap.servers' is missing: the brokers of the Kafka log, host:port"
        )
    isolation = passed.setdefault(ISOLATION, "read_committed")
    if isolation not in {"read_committed", "read_uncommitted"}:
        raise OptionError(
            f"option 'kafka.{ISOLATION}' is {isolation!r}: it must be 'read_committed' or "
            "'read_uncommitted'"
        )
    group = values.get("group", "reader")
    return KafkaConfig(
        {
            # Never joined and never committed to; brokers that check rights on groups may want
            # another name.
            "group.id": f"group-coordinator-{group}",
            "client.id": f"group-coordinator-{group}",
            **_DEFAULTS,
            **passed,
            **_OWN,
        },
        _flag(values, "log.includeHeaders"),
        _timeout_s(values),
    )


def _flag(values: Mapping[str, str], name: str) -> bool:
    value = values.get(name.lower(), "false").strip().lower()
    if value not in {"true", "false"}:
        raise OptionError(f"option {name!r} is {value!r}: it must be 'true' or 'false'")
    return value == "true"


def _timeout_s(values: Mapping[str, str]) -> float:
    value = values.get("log.timeout", "30s").strip()
    timeout_ms = parse_duration_ms(value)
    if not timeout_ms:
        raise OptionError(
            f"option 'log.timeout' is {value!r}: it must be a duration such as '500ms', '30s', "
            "'2m' (a bare number is milliseconds)"
        )
    return timeout_ms / 1000


# --- What the reader process asks ----------------------------------------------------------


class Admin:
    """What the reader process asks the cluster; all calls end within the timeout."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._last_error = LastError()
        self._client = new_client(AdminClient, {**config.admin, "error_cb": self._last_error})

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
        spec: Any,
        *,
        committed_only: bool = False,
    ) -> Callable[[], dict[TopicPartition, int]]:
        """Ask for an offset of each partition; the function that is returned waits for them."""
        if not partitions:
            return dict
        level = IsolationLevel.READ_COMMITTED if committed_only else IsolationLevel.READ_UNCOMMITTED

        def ask() -> dict[KafkaPartition, "Future[Any]"]:
            return self._client.list_offsets(
                {KafkaPartition(*tp): spec for tp in partitions},
                isolation_level=level,
                request_timeout=self._config.timeout_s,
            )

        first = ask()
        return lambda: self._offsets(first, ask)

    def _offsets(
        self,
        futures: "dict[KafkaPartition, Future[Any]]",
        ask: "Callable[[], dict[KafkaPartition, Future[Any]]]",
    ) -> dict[TopicPartition, int]:
        give_up_s = time.monotonic() + self._config.timeout_s
        while True:
            answers = {TopicPartition(p.topic, p.partition): f for p, f in futures.items()}
            try:
                return {tp: self._offset(tp, future) for tp, future in answers.items()}
            except LogUnavailable:
                # Leaders move, and new partitions get one, within moments.
                if time.monotonic() >= give_up_s:
                    raise
            time.sleep(_RETRY_PAUSE_S)
            futures = ask()

    def _offset(self, tp: TopicPartition, future: "Future[Any]") -> int:
        try:
            return int(self._result(future, str(tp)).offset)
        except LogError as error:
            if not _says_no_leader(error):
                raise
        # It says the same of what isn't there.
        if all(found.id != tp.partition for found in self.describe(tp.topic).partitions):
            raise LogError(f"topic {tp.topic!r} at Kafka has no partition {tp.partition}")
        raise LogUnavailable(
            f"{tp} has no leader at Kafka at {self._config.servers} for "
            f"{self._config.timeout_s:g} s (option 'log.timeout')"
        )

    def _result(self, future: Future[T], what: str) -> T:
        try:
            # librdkafka ends it in time; should it not, nor do we wait for it.
            return future.result(self._config.timeout_s + 5)
        except (KafkaException, TimeoutError) as error:
            raise self._failure(error, what) from error

    def _failure(self, error: Exception, what: str) -> LogError:
        self._client.poll(0)  # For the reason, as in `LastError`.
        return log_error(error, what, self._config, self._last_error)


def new_client(kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    """Make a client of some kind.

    Raises:
        OptionError: librdkafka refuses the configuration.

    """
    try:
        return kind(config)
    except KafkaException as error:
        reason = error.args[0].str()
        raise OptionError(f"an option 'kafka.…' is not accepted by librdkafka: {reason}") from error


def _says_no_leader(error: LogError) -> bool:
    """Say whether partitions were asked for that Kafka doesn't show: it doesn't say why."""
    cause = error.__cause__
    return isinstance(cause, KafkaException) and cause.args[0].code() == _NO_ENTRY


def log_error(error: Exception, what: str, config: KafkaConfig, last_error: LastError) -> LogError:
    """Return what to raise for an error of the client's."""
    where = f"Kafka at {config.servers}"
    if isinstance(error, TimeoutError):
        return LogUnavailable(f"{what}: no answer from {where}{last_error}")
    cause = error.args[0]
    if cause.code() in _UNKNOWN:
        return LogError(f"{what}: there is none at {where}")
    if cause.code() in PASSING or cause.retriable():
        return LogUnavailable(
            f"{what}: no answer from {where} within {config.timeout_s:g} s (option "
            f"'log.timeout'): {cause.str()}{last_error}"
        )
    return LogError(f"{what}: {where} says: {cause.str()}")


# --- Ranges, on executors ------------------------------------------------------------------


def _batches(reader: "RangeReader", *, include_headers: bool) -> Iterator[pa.RecordBatch]:
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

    It would look for cycles in thousands of messages, again and again.
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


class RangeReader:
    """Iterates over the messages of one range, some at a time."""

    def __init__(self, config: KafkaConfig, tp: TopicPartition, start: int, end: int) -> None:
        self._config = config
        self._tp = tp
        self._at = start
        self._end = end

    def __iter__(self) -> Iterator[Messages]:
        if self._at >= self._end:
            return
        lease = take_consumer(self._config)
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
                rows = self._accept(messages, lease.last_error)
                now_s = time.monotonic()
                if self._at > before:
                    heard_s = now_s
                elif now_s - heard_s > self._config.timeout_s:
                    raise LogUnavailable(
                        f"{self._tp}: Kafka at {self._config.servers} returned nothing from "
                        f"offset {self._at} on within {self._config.timeout_s:g} s (option "
                        f"'log.timeout'), of a range that ends at {self._end}{lease.last_error}"
                    )
                if rows:
                    yield rows
                    heard_s = time.monotonic()  # The task may have been busy with them for long.
            consumer.unassign()
            whole = True
        finally:
            if whole:
                give_back(lease)
            else:
                consumer.close()

    def _accept(self, messages: Messages, last_error: LastError) -> Messages:
        """Move on behind *messages*; return those that are rows of the range."""
        rows = messages
        if failed := [message for message in messages if message.error()]:
            rows = [message for message in messages if not message.error()]
            for message in failed:
                self._handle_error(message, last_error)
        if rows:
            last = rows[-1].offset()
            if last >= self._end:
                rows = [message for message in rows if message.offset() < self._end]
            self._at = max(self._at, min(last + 1, self._end))
        return rows

    def _handle_error(self, message: Any, last_error: LastError) -> None:
        error = message.error()
        code = error.code()
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001 - likewise.
            # All before it has been fetched, so what is missing up to there is no row.
            self._at = max(self._at, min(message.offset(), self._end))
        elif code in GONE:
            raise LogError(
                f"{self._tp}: the rows from {self._at} to {self._end} are missing: they were "
                f"deleted (retention), or the topic was made anew ({error.str()})"
            )
        elif code in PASSING and not error.fatal():
            last_error(error)
        else:
            raise log_error(KafkaException(error), str(self._tp), self._config, last_error)


class ConsumerLease:
    """A consumer in use."""

    def __init__(self, config: KafkaConfig) -> None:
        self.key = _key(config)
        self.last_error = LastError()
        self.consumer = new_client(Consumer, {**config.consumer, "error_cb": self.last_error})


_idle: list[ConsumerLease] = []


def _key(config: KafkaConfig) -> tuple[int, frozenset[tuple[str, str]]]:
    return os.getpid(), frozenset(config.consumer.items())  # A fork can't use its parent's.


def take_consumer(config: KafkaConfig) -> ConsumerLease:
    """Return an idle consumer of this process with the same configuration, or a new one."""
    key = _key(config)
    for index, lease in enumerate(_idle):
        if lease.key == key:
            return _idle.pop(index)
    return ConsumerLease(config)


def give_back(lease: ConsumerLease) -> None:
    """Keep a consumer for the next range; close the one that is idle for longest if need be."""
    _idle.append(lease)
    while len(_idle) > _IDLE_MAX:
        _idle.pop(0).consumer.close()


# --- Kafka's messages as Arrow batches -----------------------------------------------------


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


def _headers(headers: Sequence[tuple[str, bytes | None]] | None) -> list[dict[str, Any]] | None:
    if headers is None:
        return None
    return [{"key": key, "value": value} for key, value in headers]
