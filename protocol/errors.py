"""Errors of the wire protocol: what each says about the request, and what a client does about it.

The numbers are Kafka's where Kafka has the error; those from 1000 on are our own.
`ERRORS` is the one place that says what a code means; docs/wire-protocol.md prints it.
"""

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import Final, NamedTuple


class ProtocolError(Exception):
    """Base class; never raised itself."""


class LocalProtocolError(ProtocolError):
    """We asked for something that the protocol forbids: a bug or a bad argument on this side."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids."""


class ErrorCode(IntEnum):
    """Codes as on the wire."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    INVALID_PARTITIONS = 37
    INVALID_REQUEST = 42
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INVALID_REGULAR_EXPRESSION = 128
    OUTCOME_UNKNOWN = 1000
    INVALID_OFFSET = 1001
    NOT_PARTITION_OWNER = 1002
    OFFSET_CONFLICT = 1003
    STORAGE_FULL = 1004
    QUOTA_EXCEEDED = 1005
    RESPONSE_TOO_LARGE = 1006
    SUPERSEDED = 1007
    POSITION_TOO_OLD = 1008
    PARTITION_OWNED = 1009
    TOO_MANY_REQUESTS = 1010


def error_name(code: int) -> str:
    """Return the name of *code*, or its number if it has none here."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


class Applied(Enum):
    """What an answer with this code says about the request's effect."""

    YES = "applied"
    NO = "not applied"
    UNKNOWN = "unknown"


class Remedy(Enum):
    """What helps."""

    NONE_NEEDED = "nothing to do"
    RETRY = "retry the same request to the same coordinator after a pause"
    FIND_COORDINATOR = "find the coordinator again, then retry"
    REJOIN = "join the group again, keeping the member id"
    REJOIN_AS_NEW = "join the group again without a member id"
    JOIN_WITH_ID = "join at once with the member id in the answer"
    REPEAT_AND_CHECK = "repeat the same request, or read back what is stored"
    READ_BACK = "read what is stored and decide anew"
    ASK_FOR_LESS = "ask for less at a time"
    MAKE_ROOM = "tell the user: remove something, or have the limit raised"
    LOG_IN = "log in again if the credentials can be others now; else tell the user"
    REPORT = "tell the user; repeating it does not help"


class ErrorInfo(NamedTuple):
    """One line of the table of errors."""

    applied: Applied
    remedy: Remedy
    meaning: str


_NO, _UNKNOWN = Applied.NO, Applied.UNKNOWN
_E, _R = ErrorCode, Remedy

ERRORS: Final[Mapping[ErrorCode, ErrorInfo]] = {
    _E.UNKNOWN_SERVER_ERROR: ErrorInfo(
        _UNKNOWN, _R.REPEAT_AND_CHECK, "A bug in the server; the connection is closed."
    ),
    _E.NONE: ErrorInfo(Applied.YES, _R.NONE_NEEDED, "Done, and on disk where it is a change."),
    _E.UNKNOWN_TOPIC_OR_PARTITION: ErrorInfo(
        _NO, _R.REPORT, "The topic was deleted or has no such partition."
    ),
    _E.OFFSET_METADATA_TOO_LARGE: ErrorInfo(
        _NO, _R.REPORT, "The metadata of this partition is over offset.metadata.max.bytes."
    ),
    _E.COORDINATOR_LOAD_IN_PROGRESS: ErrorInfo(
        _NO, _R.RETRY, "The offsets partition of the group is being loaded."
    ),
    _E.COORDINATOR_NOT_AVAILABLE: ErrorInfo(
        _NO, _R.FIND_COORDINATOR, "The coordinator is starting, stopping or without a leader."
    ),
    _E.NOT_COORDINATOR: ErrorInfo(_NO, _R.FIND_COORDINATOR, "Another node coordinates this group."),
    _E.ILLEGAL_GENERATION: ErrorInfo(
        _NO, _R.REJOIN, "The request's generation is not the group's current one."
    ),
    _E.INCONSISTENT_GROUP_PROTOCOL: ErrorInfo(
        _NO, _R.REPORT, "Protocol type or protocols don't fit those of the group."
    ),
    _E.INVALID_GROUP_ID: ErrorInfo(
        _NO, _R.REPORT, "A group id is 1-255 bytes of UTF-8 without control characters."
    ),
    _E.UNKNOWN_MEMBER_ID: ErrorInfo(
        _NO, _R.REJOIN_AS_NEW, "The group has no such member (any more)."
    ),
    _E.INVALID_SESSION_TIMEOUT: ErrorInfo(
        _NO, _R.REPORT, "The session timeout is outside the server's bounds."
    ),
    _E.REBALANCE_IN_PROGRESS: ErrorInfo(_NO, _R.REJOIN, "The group is rebalancing."),
    _E.TOPIC_AUTHORIZATION_FAILED: ErrorInfo(
        _NO, _R.REPORT, "The principal may not do this with the topic."
    ),
    _E.GROUP_AUTHORIZATION_FAILED: ErrorInfo(
        _NO, _R.REPORT, "The principal may not do this with the group."
    ),
    _E.CLUSTER_AUTHORIZATION_FAILED: ErrorInfo(
        _NO, _R.REPORT, "The principal may not do this with the coordinator itself."
    ),
    _E.UNSUPPORTED_SASL_MECHANISM: ErrorInfo(
        _NO, _R.REPORT, "The server doesn't take this mechanism; the answer lists those it takes."
    ),
    _E.ILLEGAL_SASL_STATE: ErrorInfo(
        _NO, _R.LOG_IN, "The request isn't due now: first SaslHandshake, then SaslAuthenticate."
    ),
    _E.UNSUPPORTED_VERSION: ErrorInfo(
        _NO, _R.REPORT, "This server doesn't know the request, or not in this version or form."
    ),
    _E.INVALID_PARTITIONS: ErrorInfo(
        _NO, _R.REPORT, "A topic's number of partitions can't shrink."
    ),
    _E.INVALID_REQUEST: ErrorInfo(
        _NO, _R.REPORT, "The request's bytes or values break the protocol."
    ),
    _E.SASL_AUTHENTICATION_FAILED: ErrorInfo(
        _NO, _R.LOG_IN, "The log-in failed, or what it rested on has ended; why isn't told."
    ),
    _E.NON_EMPTY_GROUP: ErrorInfo(_NO, _R.REPORT, "The group still has members."),
    _E.GROUP_ID_NOT_FOUND: ErrorInfo(_NO, _R.REPORT, "There is no such group."),
    _E.MEMBER_ID_REQUIRED: ErrorInfo(
        _NO, _R.JOIN_WITH_ID, "A new member: the answer carries the id to join with."
    ),
    _E.GROUP_MAX_SIZE_REACHED: ErrorInfo(
        _NO, _R.REPORT, "The group is full (group.max.size, or its record's size)."
    ),
    _E.FENCED_INSTANCE_ID: ErrorInfo(
        _NO, _R.REPORT, "Another member took over this group instance id."
    ),
    _E.GROUP_SUBSCRIBED_TO_TOPIC: ErrorInfo(
        _NO, _R.REPORT, "Members of the group still subscribe to the topic."
    ),
    _E.RESOURCE_NOT_FOUND: ErrorInfo(_NO, _R.REPORT, "There is no such user or credential."),
    _E.DUPLICATE_RESOURCE: ErrorInfo(_NO, _R.REPORT, "The request names the same thing twice."),
    _E.UNACCEPTABLE_CREDENTIAL: ErrorInfo(
        _NO,
        _R.REPORT,
        "The credential's iterations, salt or keys, or the user's name, can't be such.",
    ),
    _E.INVALID_REGULAR_EXPRESSION: ErrorInfo(
        _NO, _R.REPORT, "The pattern of topics is no regular expression of RE2's syntax."
    ),
    _E.OUTCOME_UNKNOWN: ErrorInfo(
        _UNKNOWN,
        _R.REPEAT_AND_CHECK,
        "The write was begun but not confirmed in time; it may still apply.",
    ),
    _E.INVALID_OFFSET: ErrorInfo(_NO, _R.REPORT, "The offset is not one that can be stored."),
    _E.NOT_PARTITION_OWNER: ErrorInfo(
        _NO, _R.REPORT, "The member doesn't own this partition in this generation."
    ),
    _E.OFFSET_CONFLICT: ErrorInfo(
        _NO, _R.READ_BACK, "The committed offset is not the expected one."
    ),
    _E.STORAGE_FULL: ErrorInfo(
        _NO, _R.RETRY, "The disk is nearly full; new data is refused until there is room."
    ),
    _E.QUOTA_EXCEEDED: ErrorInfo(
        _NO,
        _R.MAKE_ROOM,
        "A limit of this server or principal is reached.",
    ),
    _E.RESPONSE_TOO_LARGE: ErrorInfo(
        _UNKNOWN, _R.ASK_FOR_LESS, "The answer would pass the response limit."
    ),
    _E.SUPERSEDED: ErrorInfo(
        _NO, _R.NONE_NEEDED, "A newer request of the same member took this one's place."
    ),
    _E.POSITION_TOO_OLD: ErrorInfo(
        _NO, _R.READ_BACK, "The stream of changes no longer reaches back so far; scan anew."
    ),
    _E.PARTITION_OWNED: ErrorInfo(
        _NO, _R.REPORT, "A member of the group owns the partition, or is giving it up."
    ),
    _E.TOO_MANY_REQUESTS: ErrorInfo(
        _NO, _R.RETRY, "Too many such requests wait, or the last one was a moment ago."
    ),
}
