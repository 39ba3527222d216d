"""What the layouts of all APIs share: keys, size limits, and the checks of common fields."""

from enum import IntEnum
from typing import Final, NamedTuple

from protocol import messages as m
from protocol.schema import (
    CODE,
    COUNT,
    I32,
    ArrayOf,
    Field,
    Struct,
    array,
    binary,
    integer,
    name,
    nullable,
    text,
)
from protocol.types import INT64_MAX


class ApiKey(IntEnum):
    """Kafka's numbers; from 1000 on our own. 17 and 36 are kept for authentication."""

    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    DELETE_GROUPS = 42
    OFFSET_DELETE = 47
    DRAIN_MEMBER = 1000
    REGISTER_TOPICS = 1001
    DELETE_TOPICS = 1002
    DESCRIBE_TOPICS = 1003
    REPORT_END_OFFSETS = 1004
    DESCRIBE_REBALANCES = 1005
    SCAN_OFFSETS = 1006
    READ_OFFSET_CHANGES = 1007
    DESCRIBE_LAG = 1008
    ALTER_GROUP_RETENTION = 1009
    DESCRIBE_NODE = 1010
    COMPACT_LOG = 1011
    RELOAD_PARTITION = 1012

    # Enum's own is written in Python, and keys are looked up several times a request.
    __hash__ = int.__hash__


REQUEST_BYTES_MAX: Final = 1024 * 1024
SYNC_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
# One subscription or assignment: 256 KiB hold about 10,000 topics or 60,000 partitions.
MEMBER_BYTES_MAX: Final = 256 * 1024
MEMBER_ID_BYTES_MAX: Final = 300
# A pattern of topics; long alternatives of names fit, and matching stays cheap.
PATTERN_BYTES_MAX: Final = 4_096
# An answer lists every offset of a group (at most 100,000) or every group of a node.
RESPONSE_ITEMS_MAX: Final = 1_000_000

GROUP_ID = text  # Its rules have an error code of their own (24), checked per group.
TOPIC = name(249)
TOPIC_PATTERN = nullable(name(PATTERN_BYTES_MAX))
NAME = name()
INSTANCE_ID = nullable(name())
MEMBER_ID = name(MEMBER_ID_BYTES_MAX, allow_empty=True)
OPTIONAL_TEXT = nullable(text)
PROTOCOL_TYPE = name(allow_empty=True)  # An empty one has an error code of its own (23).
MEMBER_BYTES = binary(MEMBER_BYTES_MAX)
ANY_BYTES = binary(RESPONSE_BYTES_MAX)
RETENTION = integer(-1, INT64_MAX)  # In ms; -1 is for ever.


def many(struct: Struct) -> ArrayOf:
    """Return an array of a response, as long as an answer may be."""
    return ArrayOf(struct, RESPONSE_ITEMS_MAX)


TOPIC_PARTITIONS = Struct(
    m.TopicPartitions, Field("topic", TOPIC), Field("partitions", array(COUNT))
)
TOPIC_RESULTS = Struct(
    m.TopicResult,
    Field("topic", text),
    Field(
        "partitions",
        many(Struct(m.PartitionResult, Field("partition", I32), Field("error", CODE))),
    ),
)


class Api(NamedTuple):
    """One API."""

    key: ApiKey
    request: Struct
    response: Struct

    @property
    def max_version(self) -> int:
        """The newest version; 0 is the oldest of all."""
        return max(self.request.max_version, self.response.max_version)
