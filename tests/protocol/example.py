"""What the examples are made of."""

from typing import Final, NamedTuple

from protocol import messages as m
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.types import TopicPartition

GROUP: Final = "etl"
MEMBER: Final = "driver-1-6a1f0c5e-3f0b-4a57-9a55-0f6a3c1d2b7e"
OTHER: Final = "driver-2-0b9e7d21-58c4-4f1c-8f5d-7c2a9e4b6d10"
LEADER_EPOCH: Final = 3

SUBSCRIPTION: Final = encode_subscription(Subscription(("flights",)))
ASSIGNMENT: Final = encode_assignment(
    Assignment((TopicPartition("flights", 0), TopicPartition("flights", 1)))
)


class Example(NamedTuple):
    """A request in one version, and its answer."""

    title: str
    version: int
    request: m.Request
    response: m.Response
    leader_epoch: int = LEADER_EPOCH
