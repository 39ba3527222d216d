"""What a Kafka cluster says of its topics: which partitions there are, and which offsets.

Needs confluent-kafka, which is loaded on first use. The settings may be those of Spark's Kafka
source: the few that have the same meaning in both are taken over.
"""

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol

from client.kafka_groups.cluster import KafkaUnavailable
from client.spark.errors import CoordinatedSourceError
from protocol.types import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

logger = logging.getLogger(__name__)

# Where a partition begins: "earliest", "latest", an offset, or the first message at or after a
# time.
Where = str | int | datetime

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# Options of Spark's Kafka source with the same name and meaning in confluent-kafka.
_SHARED: Final = ("bootstrap.servers", "security.protocol", "sasl.mechanism", "client.dns.lookup")
_PREFIX: Final = "kafka."

ANSWER_S: Final = 10.0


class KafkaTopicError(CoordinatedSourceError):
    """A topic or partition that is not there, or a request that the cluster refuses for good."""


class Topics(Protocol):
    """What is asked of a cluster; the tests bring one in memory."""

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic, sorted.

        Raises:
            KafkaTopicError: there is no such topic.
            KafkaUnavailable: no answer in time.

        """

    def offsets(self, wanted: Mapping[TopicPartition, Where]) -> dict[TopicPartition, int]:
        """Return the offset that each partition's `Where` stands for.

        A time after the last message is the end of the partition.

        Raises:
            KafkaTopicError: there is no such partition.
            KafkaUnavailable: no answer in time.

        """


class KafkaTopics:
    """Asks a real cluster.

    Args:
        settings: of confluent-kafka, such as ``bootstrap.servers``.
        answer_s: how long one question may take, in seconds.

    Raises:
        KafkaTopicError: confluent-kafka is not installed, or refuses the settings.

    """

    def __init__(self, settings: Mapping[str, str], answer_s: float = ANSWER_S) -> None:
        self._where = settings.get("bootstrap.servers", "?")
        self._answer_s = answer_s
        try:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - an optional extra.
            from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - the same.
        except ImportError as error:
            raise KafkaTopicError(
                "asking Kafka for partitions and offsets needs confluent-kafka: "
                "pip install group-coordinator[kafka]"
            ) from error
        try:
            # Its own logger, because librdkafka else writes to standard error.
            self._admin = AdminClient(dict(settings), logger=logger)
        except (KafkaException, ValueError) as error:
            raise KafkaTopicError(f"settings of confluent-kafka: {error}") from error

    def partitions(self, topic: str) -> list[int]:
        """See `Topics.partitions`."""
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - an optional extra.

        what = f"the partitions of {topic!r}"
        try:
            found = self._admin.list_topics(topic, timeout=self._answer_s).topics[topic]
        except KafkaException as error:
            raise self._failed(what, error.args[0]) from error
        if found.error is None:
            return sorted(found.partitions)
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaTopicError(
                f"there is no topic {topic!r} at {self._where}: check the name, or create it"
            )
        raise self._failed(what, found.error)

    def offsets(self, wanted: Mapping[TopicPartition, Where]) -> dict[TopicPartition, int]:
        """See `Topics.offsets`."""
        found = {tp: where for tp, where in wanted.items() if isinstance(where, int)}
        found |= self._listed({tp: w for tp, w in wanted.items() if not isinstance(w, int)})
        # A time after the last message has no offset: what comes next is at the end.
        late = {tp: LATEST for tp, offset in found.items() if offset < 0}
        return found | self._listed(late)

    def _listed(self, wanted: Mapping[TopicPartition, str | datetime]) -> dict[TopicPartition, int]:
        import confluent_kafka as kafka  # noqa: PLC0415 - an optional extra.

        if not wanted:
            return {}
        request = {kafka.TopicPartition(*tp): _spec(where) for tp, where in wanted.items()}
        try:
            futures = self._admin.list_offsets(request, request_timeout=self._answer_s)
            return {
                TopicPartition(tp.topic, tp.partition): future.result(self._answer_s * 2).offset
                for tp, future in futures.items()
            }
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaTopicError(
                    f"not all of {_listing(wanted)} are there at {self._where}"
                ) from error
            raise self._failed(f"the offsets of {_listing(wanted)}", error.args[0]) from error
        except TimeoutError as error:
            raise KafkaUnavailable(
                f"no answer about the offsets of {_listing(wanted)} from {self._where}"
            ) from error

    def _failed(self, what: str, error: "KafkaError") -> Exception:
        # What librdkafka itself says (no broker, timed out) has negative codes: it passes.
        passes = error.retriable() or error.code() < 0
        return (KafkaUnavailable if passes else KafkaTopicError)(
            f"no answer about {what} from {self._where}: {error.str()}"
        )


def client_settings(
    kafka_options: Mapping[str, str], given: Mapping[str, str] | None
) -> dict[str, str]:
    """Return settings for confluent-kafka: *given*, or what Spark's options have in common with it.

    Args:
        kafka_options: options of Spark's Kafka source.
        given: settings of confluent-kafka; None to take them from the options.

    Raises:
        ValueError: the cluster needs settings that Spark's options say in Java's way.

    """
    servers = kafka_options.get(_PREFIX + "bootstrap.servers", "")
    if given is not None:
        return {"bootstrap.servers": servers, **given} if servers else dict(given)
    shared = {name: kafka_options.get(_PREFIX + name) for name in _SHARED}
    protocol = (shared["security.protocol"] or "PLAINTEXT").upper()
    if protocol != "PLAINTEXT":
        raise ValueError(
            f"option 'kafka.security.protocol' is {protocol!r}: give the same credentials in "
            "confluent-kafka's settings as well, such as kafka_client={'security.protocol': "
            "'SASL_SSL', 'sasl.mechanism': 'PLAIN', 'sasl.username': …, 'sasl.password': …, "
            "'ssl.ca.location': …}"
        )
    return {name: value for name, value in shared.items() if value is not None}


def _spec(where: str | datetime) -> Any:
    from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415 - an optional extra.

    if isinstance(where, datetime):
        return OffsetSpec.for_timestamp(int(where.timestamp() * 1000))
    spec: Any = OffsetSpec  # Its methods have no types.
    return spec.earliest() if where == EARLIEST else spec.latest()


def _listing(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in sorted(partitions))
