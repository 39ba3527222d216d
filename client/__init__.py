"""The client of the group coordinator: async (trio) here, blocking in `client.blocking`."""

from client import shadowing  # noqa: F401 - First, as it says which file is in the way.
from client.api import Client, connect
from client.assignors import (
    AssignmentWarning,
    Assignor,
    BaseAssignor,
    CooperativeStickyAssignor,
    InvalidAssignment,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from client.backoff import RetrySettings
from client.exceptions import (
    AuthenticationFailed,
    ClientClosed,
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    NotAuthorized,
    OutcomeUnknown,
    Rebalanced,
    RetriableError,
)
from client.member import Member
from client.membership import Assignment
from client.offsets import OffsetAndMetadata
from client.operators import Acl, GroupSummary, Lag, PositionTooOld, TopicSource
from client.security import Security
from protocol.errors import ErrorCode
from protocol.offset_feed import OffsetEvent
from protocol.partition import TopicPartition

__all__ = [
    "Acl",
    "Assignment",
    "AssignmentWarning",
    "Assignor",
    "AuthenticationFailed",
    "BaseAssignor",
    "Client",
    "ClientClosed",
    "CommitRefused",
    "CooperativeStickyAssignor",
    "CoordinatorError",
    "CoordinatorUnavailable",
    "ErrorCode",
    "FatalError",
    "GroupSummary",
    "InvalidAssignment",
    "Lag",
    "Member",
    "MemberLost",
    "MemberSubscription",
    "NotAuthorized",
    "OffsetAndMetadata",
    "OffsetEvent",
    "OutcomeUnknown",
    "PositionTooOld",
    "RangeAssignor",
    "Rebalanced",
    "RetriableError",
    "RetrySettings",
    "RoundRobinAssignor",
    "Security",
    "StickyAssignor",
    "TopicPartition",
    "TopicSource",
    "connect",
]
