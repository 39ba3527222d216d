"""The nouns of the protocol."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic. A tuple, because it is a dict key on every hot path."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the form people know from Kafka's tools, such as ``flights-3``."""
        return f"{self.topic}-{self.partition}"


class PartitionResult(NamedTuple):
    """The error code of one partition."""

    partition: int
    error: int


class TopicResult(NamedTuple):
    """The error codes of one topic's partitions."""

    topic: str
    partitions: tuple[PartitionResult, ...]


NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
