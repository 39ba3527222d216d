"""Connections to a Kafka cluster: what the reader process asks, and what errors mean."""

import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from client.spark.kafka_config import KafkaConfig
from client.spark.log import LogError, LogUnavailable
from client.spark.options import OptionError
from protocol.types import TopicPartition

try:
    from confluent_kafka import (
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
_NO_ENTRY: Final = KafkaError._NOENT  # noqa: SLF001
GONE: Final = frozenset(
    {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
)


def at_time(timestamp_ms: int) -> Any:
    """Return what asks for the first offset at or after a time."""
    return OffsetSpec.for_timestamp(timestamp_ms)


class Reasons:
    """Remembers what librdkafka said last: its timeouts don't tell why."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, error: KafkaError) -> None:
        """Remember *error*, unless it says less than what is known."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._last:  # noqa: SLF001
            self._last = error.str()

    def __str__(self) -> str:
        return f": {self._last}" if self._last else ""


class Admin:
    """What the reader process asks the cluster; all calls end within the timeout."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._reasons = Reasons()
        self._client = made(AdminClient, {**config.admin, "error_cb": self._reasons})

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
        self._client.poll(0)  # For the reason, as in `Reasons`.
        return log_error(error, what, self._config, self._reasons)


def made(kind: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
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


def log_error(error: Exception, what: str, config: KafkaConfig, reasons: Reasons) -> LogError:
    """Return what to raise for an error of the client's."""
    where = f"Kafka at {config.servers}"
    if isinstance(error, TimeoutError):
        return LogUnavailable(f"{what}: no answer from {where}{reasons}")
    cause = error.args[0]
    if cause.code() in _UNKNOWN:
        return LogError(f"{what}: there is none at {where}")
    if cause.code() in PASSING or cause.retriable():
        return LogUnavailable(
            f"{what}: no answer from {where} within {config.timeout_s:g} s (option "
            f"'log.timeout'): {cause.str()}{reasons}"
        )
    return LogError(f"{what}: {where} says: {cause.str()}")
