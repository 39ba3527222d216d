"""Consumer groups of a Kafka cluster, read and written with confluent-kafka's admin client."""

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from client.exceptions import RetriableError
from client.offsets import OffsetAndMetadata, Offsets
from protocol.partition import NO_LEADER_EPOCH, NO_OFFSET, TopicPartition
from protocol.text import some_of

# Default time for one call to the cluster, in seconds.
TIMEOUT_S: Final = 10.0

# Kafka's states of a group without members, to which other clients may commit.
INACTIVE: Final = frozenset({"EMPTY", "DEAD"})

# Kafka's names of temporary errors.
_PASSING: Final = frozenset(
    {
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
        "REQUEST_TIMED_OUT",
        "NETWORK_EXCEPTION",
        "UNSTABLE_OFFSET_COMMIT",
        "_ALL_BROKERS_DOWN",
        "_RESOLVE",
        "_TIMED_OUT",
        "_TRANSPORT",
        "_WAIT_COORD",
    }
)

# Kafka's names of the errors of a commit by a non-member to a group with members.
_HAS_MEMBERS: Final = frozenset(
    {"UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS", "NON_EMPTY_GROUP"}
)

T = TypeVar("T")


class KafkaGroupError(Exception):
    """The cluster refused, or can't be used at all; a repetition does not help."""


class KafkaUnavailable(KafkaGroupError, RetriableError):
    """No definite answer in time; a repetition of the call may succeed."""


class KafkaRefused(KafkaGroupError):
    """Some partitions were refused, the others are stored.

    Attributes:
        errors: the reason for each refused partition.

    """

    def __init__(self, message: str, errors: Mapping[TopicPartition, str]) -> None:
        self.errors = dict(errors)
        super().__init__(message)


class KafkaGroup(NamedTuple):
    """One group of a cluster; ``state`` is Kafka's name, such as STABLE or EMPTY."""

    name: str
    state: str

    @property
    def active(self) -> bool:
        """Return whether the group has members; true for unknown states."""
        return self.state not in INACTIVE


class LastError:
    """Callback ``error_cb`` that keeps librdkafka's last error: its timeouts don't give a reason.

    A method of the object that has the client would be a reference cycle. The garbage collector
    may break a cycle in a thread of librdkafka, where the client must not be closed.
    """

    def __init__(self) -> None:
        self._text = ""

    def __call__(self, error: Any) -> None:
        """Keep *error*; ``_ALL_BROKERS_DOWN`` never replaces an error with a more exact reason."""
        if error.name() != "_ALL_BROKERS_DOWN" or not self._text:
            self._text = f" (last: {error.name()}: {error.str()})"

    def __str__(self) -> str:
        return self._text


class KafkaCluster:
    """The groups of a cluster. All calls block, and wait at most *timeout_s* for an answer.

    Args:
        config: "host:9092", or the settings of confluent-kafka (librdkafka), such as
            ``{"bootstrap.servers": …, "security.protocol": "SASL_SSL", …}``. They are never logged.
        timeout_s: how long one call waits for the cluster.

    Raises:
        KafkaGroupError: confluent-kafka isn't installed, or it refuses the settings.

    """

    def __init__(self, config: str | Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> None:
        given = {"bootstrap.servers": config} if isinstance(config, str) else dict(config)
        if not given.get("bootstrap.servers"):
            raise KafkaGroupError("the Kafka settings have no 'bootstrap.servers'")
        self.address = str(given["bootstrap.servers"])
        self._timeout_s = timeout_s
        self._kafka, self._admin_api = _confluent()
        self._last_error = LastError()
        settings = {
            "client.id": "group-coordinator",
            # No lines on standard error: librdkafka writes one per failed attempt to connect, and
            # the exceptions here have the same text.
            "log_level": 0,
            **given,
            "error_cb": self._last_error,
        }
        try:
            self._admin = self._admin_api.AdminClient(settings)
        except (self._kafka.KafkaException, TypeError, ValueError) as exc:
            raise KafkaGroupError(f"the Kafka settings are refused: {_text(exc)}") from None

    def groups(self) -> list[KafkaGroup]:
        """Return the consumer groups, sorted by name.

        Raises:
            KafkaUnavailable: no answer, or not from all brokers.
            KafkaGroupError: the cluster refused.

        """
        found = self._wait(
            self._admin.list_consumer_groups(request_timeout=self._timeout_s), "its groups"
        )
        for error in found.errors:
            raise self._error(error, "its groups")
        return sorted(KafkaGroup(g.group_id, _state(g.state)) for g in found.valid)

    def group(self, name: str) -> KafkaGroup:
        """Return one group; its state is DEAD if it doesn't exist.

        Raises:
            KafkaUnavailable: no answer.
            KafkaGroupError: the cluster refused.

        """
        what = f"group {name!r}"
        asked = self._admin.describe_consumer_groups([name], request_timeout=self._timeout_s)
        try:
            return KafkaGroup(name, _state(self._wait(asked[name], what).state))
        except KafkaGroupError as exc:
            if "GROUP_ID_NOT_FOUND" in str(exc):
                return KafkaGroup(name, "DEAD")
            raise

    def offsets(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group; none if the group doesn't exist.

        Raises:
            KafkaUnavailable: no answer.
            KafkaGroupError: the cluster refused.

        """
        what = f"the offsets of group {name!r}"
        request = self._kafka.ConsumerGroupTopicPartitions(name)
        asked = self._admin.list_consumer_group_offsets([request], request_timeout=self._timeout_s)
        try:
            answer = self._wait(asked[name], what)
        except KafkaGroupError as exc:
            if "GROUP_ID_NOT_FOUND" in str(exc):
                return {}
            raise
        found = {}
        for one in answer.topic_partitions:
            if one.error is not None:
                raise self._error(one.error, f"{what}, {one.topic}-{one.partition}")
            if one.offset > NO_OFFSET:
                epoch = NO_LEADER_EPOCH if one.leader_epoch is None else one.leader_epoch
                value = OffsetAndMetadata(one.offset, one.metadata or "", epoch)
                found[TopicPartition(one.topic, one.partition)] = value
        return found

    def commit(self, name: str, offsets: Offsets) -> None:
        """Store offsets of a group without members, as ``kafka-consumer-groups`` does.

        Raises:
            KafkaRefused: some partitions were refused (the cluster doesn't have them, or the
                group has members); the others are stored.
            KafkaUnavailable: no definite answer.
            KafkaGroupError: the cluster refused the whole commit.

        """
        if not offsets:
            return
        what = f"the commit to group {name!r}"
        request = self._kafka.ConsumerGroupTopicPartitions(
            name, [self._partition(tp, value) for tp, value in sorted(offsets.items())]
        )
        asked = self._admin.alter_consumer_group_offsets([request], request_timeout=self._timeout_s)
        answer = self._wait(asked[name], what)
        failed = {
            TopicPartition(one.topic, one.partition): one.error
            for one in answer.topic_partitions
            if one.error is not None
        }
        for error in failed.values():
            if error.name() in _PASSING:
                raise self._error(error, what)
        if failed:
            errors = {tp: _reason(error) for tp, error in failed.items()}
            raise KafkaRefused(f"{what} was refused for {_listed(errors)}", errors)

    def _partition(self, tp: TopicPartition, value: int | OffsetAndMetadata) -> Any:
        entry = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        known: dict[str, Any] = {"metadata": entry.metadata} if entry.metadata else {}
        if entry.leader_epoch != NO_LEADER_EPOCH:
            known["leader_epoch"] = entry.leader_epoch
        return self._kafka.TopicPartition(tp.topic, tp.partition, entry.offset, **known)

    def _wait(self, asked: "Future[T]", what: str) -> T:
        try:
            # The request has its own timeout; this one applies only if librdkafka misses it.
            return asked.result(self._timeout_s * 2)
        except TimeoutError as exc:
            raise KafkaUnavailable(f"Kafka at {self.address}: no answer about {what}") from exc
        except self._kafka.KafkaException as exc:
            raise self._error(exc.args[0], what) from exc

    def _error(self, error: Any, what: str) -> KafkaGroupError:
        text = f"Kafka at {self.address}: {what}: {_reason(error)}"
        if error.name() in _PASSING:
            self._admin.poll(0)  # Runs the callback `_last_error`.
            return KafkaUnavailable(f"{text}{self._last_error}")
        return KafkaGroupError(text)


def _confluent() -> tuple[Any, Any]:
    try:
        import confluent_kafka  # noqa: PLC0415 - only who has to do with Kafka needs it.
        from confluent_kafka import admin  # noqa: PLC0415 - likewise.
    except ImportError as exc:
        raise KafkaGroupError(
            "a Kafka cluster's groups need confluent-kafka: pip install group-coordinator[kafka]"
        ) from exc
    return confluent_kafka, admin


def _state(state: Any) -> str:
    return getattr(state, "name", str(state))


def _reason(error: Any) -> str:
    if error.name() in _HAS_MEMBERS:
        return f"{error.name()}: the group has members, and only they can commit"
    return f"{error.name()}: {error.str()}"


def _text(exc: BaseException) -> str:
    error = exc.args[0] if exc.args else exc
    return str(error.str() if hasattr(error, "str") else error)


def _listed(errors: Mapping[TopicPartition, str], most: int = 5) -> str:
    return some_of([f"{tp}: {why}" for tp, why in sorted(errors.items())], most)
