"""A partition of a topic, and the numbers that stand for "none" or are the largest."""

from typing import NamedTuple


class TopicPartition(NamedTuple):
    """One partition of one topic. A tuple: many dicts have it as their key."""

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the form people know from Kafka's tools, such as ``flights-3``."""
        return f"{self.topic}-{self.partition}"


NO_GENERATION = -1
NO_OFFSET = -1
NO_LEADER_EPOCH = -1

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
