"""The client of the group coordinator: async (trio) here, blocking in `client.blocking`."""

from client import shadowing
from client.api import Client, connect
from client.assignors import Assignor, MemberSubscription, RangeAssignor, RoundRobinAssignor
from client.backoff import RetrySettings
from client.exceptions import (
    ClientClosed,
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OutcomeUnknown,
    Rebalanced,
    RetriableError,
)
from client.member import Member
from client.types import Assignment, OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

__all__ = [
    "Assignment",
    "Assignor",
    "Client",
    "ClientClosed",
    "CommitRefused",
    "CoordinatorError",
    "CoordinatorUnavailable",
    "ErrorCode",
    "FatalError",
    "Member",
    "MemberLost",
    "MemberSubscription",
    "OffsetAndMetadata",
    "OutcomeUnknown",
    "RangeAssignor",
    "Rebalanced",
    "RetriableError",
    "RetrySettings",
    "RoundRobinAssignor",
    "TopicPartition",
    "connect",
]

shadowing.warn()
