"""Every API: its key, its versions, and how its request and response lie on the wire."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from protocol import messages as m
from protocol.schema import (
    CODE,
    COUNT,
    EPOCH,
    I32,
    I64,
    OFFSET,
    OFFSET_OR_NONE,
    ArrayOf,
    Check,
    Field,
    Struct,
    array,
    binary,
    boolean,
    name,
    nullable,
    text,
)


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


REQUEST_BYTES_MAX: Final = 1024 * 1024
SYNC_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
RESPONSE_BYTES_MAX: Final = 16 * 1024 * 1024
# One subscription or assignment: 256 KiB hold about 10,000 topics or 60,000 partitions.
MEMBER_BYTES_MAX: Final = 256 * 1024
MEMBER_ID_BYTES_MAX: Final = 300
# An answer lists every offset of a group (at most 100,000) or every group of a node.
RESPONSE_ITEMS_MAX: Final = 1_000_000

_group_id = text  # Its rules have an error code of their own (24), checked per group.
_topic = name(249)
_name = name()
_instance_id = nullable(name())
_member_id = name(MEMBER_ID_BYTES_MAX, allow_empty=True)
_optional_text = nullable(text)
_member_bytes = binary(MEMBER_BYTES_MAX)
_any_bytes = binary(RESPONSE_BYTES_MAX)


def _many(struct: Struct) -> ArrayOf:
    return ArrayOf(struct, RESPONSE_ITEMS_MAX)


_topic_partitions = Struct(
    m.TopicPartitions, Field("topic", _topic), Field("partitions", array(COUNT))
)
_topic_results = Struct(
    m.TopicResult,
    Field("topic", text),
    Field(
        "partitions",
        _many(Struct(m.PartitionResult, Field("partition", I32), Field("error", CODE))),
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


_API_VERSIONS = Api(
    ApiKey.API_VERSIONS,
    Struct(
        m.ApiVersionsRequest,
        Field("client_id", _name),
        Field("software_name", text),
        Field("software_version", text),
    ),
    Struct(
        m.ApiVersionsResponse,
        Field("error", CODE),
        Field(
            "apis",
            _many(
                Struct(
                    m.ApiVersionRange,
                    Field("api_key", I32),
                    Field("min_version", I32),
                    Field("max_version", I32),
                )
            ),
        ),
        Field("server_software", text),
        Field("cluster_id", text),
        Field("node_id", I32),
        Field("max_request_bytes", COUNT),
    ),
)

_FIND_COORDINATOR = Api(
    ApiKey.FIND_COORDINATOR,
    Struct(m.FindCoordinatorRequest, Field("key_type", I32), Field("group_ids", array(_group_id))),
    Struct(
        m.FindCoordinatorResponse,
        Field(
            "coordinators",
            _many(
                Struct(
                    m.CoordinatorOfGroup,
                    Field("group_id", text),
                    Field("error", CODE),
                    Field("message", _optional_text),
                    Field("node_id", I32),
                    Field("host", text),
                    Field("port", I32),
                    Field("offsets_partition", I32),
                    Field("leader_epoch", EPOCH),
                )
            ),
        ),
    ),
)

_JOIN_GROUP = Api(
    ApiKey.JOIN_GROUP,
    Struct(
        m.JoinGroupRequest,
        Field("group_id", _group_id),
        Field("session_timeout_ms", I32),  # Its bounds have an error code of their own (26).
        Field("rebalance_timeout_ms", COUNT),
        Field("member_id", _member_id),
        Field("group_instance_id", _instance_id),
        Field("protocol_type", text),
        Field(
            "protocols",
            ArrayOf(Struct(m.JoinProtocol, Field("name", _name), Field("metadata", _member_bytes))),
        ),
        Field("reason", _optional_text),
    ),
    Struct(
        m.JoinGroupResponse,
        Field("error", CODE),
        Field("generation_id", EPOCH),
        Field("protocol_type", _optional_text),
        Field("protocol_name", _optional_text),
        Field("leader", text),
        Field("skip_assignment", boolean),
        Field("member_id", text),
        Field(
            "members",
            _many(
                Struct(
                    m.JoinGroupMember,
                    Field("member_id", text),
                    Field("group_instance_id", _optional_text),
                    Field("metadata", _any_bytes),
                )
            ),
        ),
    ),
)

_SYNC_GROUP = Api(
    ApiKey.SYNC_GROUP,
    Struct(
        m.SyncGroupRequest,
        Field("group_id", _group_id),
        Field("generation_id", EPOCH),
        Field("member_id", _member_id),
        Field("group_instance_id", _instance_id),
        Field("protocol_type", _optional_text),
        Field("protocol_name", _optional_text),
        Field(
            "assignments",
            ArrayOf(
                Struct(
                    m.MemberAssignment,
                    Field("member_id", _member_id),
                    Field("assignment", _member_bytes),
                )
            ),
        ),
    ),
    Struct(
        m.SyncGroupResponse,
        Field("error", CODE),
        Field("protocol_type", _optional_text),
        Field("protocol_name", _optional_text),
        Field("assignment", _any_bytes),
    ),
)

_HEARTBEAT = Api(
    ApiKey.HEARTBEAT,
    Struct(
        m.HeartbeatRequest,
        Field("group_id", _group_id),
        Field("generation_id", EPOCH),
        Field("member_id", _member_id),
        Field("group_instance_id", _instance_id),
    ),
    Struct(m.HeartbeatResponse, Field("error", CODE)),
)

_LEAVE_GROUP = Api(
    ApiKey.LEAVE_GROUP,
    Struct(
        m.LeaveGroupRequest,
        Field("group_id", _group_id),
        Field(
            "members",
            ArrayOf(
                Struct(
                    m.LeavingMember,
                    Field("member_id", _member_id),
                    Field("group_instance_id", _instance_id),
                    Field("reason", _optional_text),
                )
            ),
        ),
    ),
    Struct(
        m.LeaveGroupResponse,
        Field("error", CODE),
        Field(
            "members",
            _many(
                Struct(
                    m.LeftMember,
                    Field("member_id", text),
                    Field("group_instance_id", _optional_text),
                    Field("error", CODE),
                )
            ),
        ),
    ),
)

_OFFSET_COMMIT = Api(
    ApiKey.OFFSET_COMMIT,
    Struct(
        m.OffsetCommitRequest,
        Field("group_id", _group_id),
        Field("generation_id", EPOCH),
        Field("member_id", _member_id),
        Field("group_instance_id", _instance_id),
        Field(
            "topics",
            ArrayOf(
                Struct(
                    m.TopicCommit,
                    Field("topic", _topic),
                    Field(
                        "partitions",
                        ArrayOf(
                            Struct(
                                m.PartitionCommit,
                                Field("partition", COUNT),
                                Field("offset", OFFSET),
                                Field("leader_epoch", EPOCH),
                                Field("metadata", _optional_text),
                                Field("expected_offset", nullable(OFFSET_OR_NONE), since=1),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
    Struct(m.OffsetCommitResponse, Field("error", CODE), Field("topics", _many(_topic_results))),
)

_OFFSET_FETCH = Api(
    ApiKey.OFFSET_FETCH,
    Struct(
        m.OffsetFetchRequest,
        Field(
            "groups",
            ArrayOf(
                Struct(
                    m.GroupFetch,
                    Field("group_id", _group_id),
                    Field("topics", ArrayOf(_topic_partitions, optional=True)),
                )
            ),
        ),
        Field("require_stable", boolean),
    ),
    Struct(
        m.OffsetFetchResponse,
        Field(
            "groups",
            _many(
                Struct(
                    m.GroupOffsets,
                    Field("group_id", text),
                    Field("error", CODE),
                    Field(
                        "topics",
                        _many(
                            Struct(
                                m.TopicOffsets,
                                Field("topic", text),
                                Field(
                                    "partitions",
                                    _many(
                                        Struct(
                                            m.PartitionOffset,
                                            Field("partition", I32),
                                            Field("offset", I64),
                                            Field("leader_epoch", EPOCH),
                                            Field("metadata", text),
                                            Field("error", CODE),
                                        )
                                    ),
                                ),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

_DESCRIBE_GROUPS = Api(
    ApiKey.DESCRIBE_GROUPS,
    Struct(m.DescribeGroupsRequest, Field("group_ids", array(_group_id))),
    Struct(
        m.DescribeGroupsResponse,
        Field(
            "groups",
            _many(
                Struct(
                    m.DescribedGroup,
                    Field("error", CODE),
                    Field("message", _optional_text),
                    Field("group_id", text),
                    Field("state", text),
                    Field("protocol_type", text),
                    Field("protocol_name", text),
                    Field("generation_id", EPOCH),
                    Field(
                        "members",
                        _many(
                            Struct(
                                m.DescribedMember,
                                Field("member_id", text),
                                Field("group_instance_id", _optional_text),
                                Field("client_id", text),
                                Field("client_host", text),
                                Field("metadata", _any_bytes),
                                Field("assignment", _any_bytes),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

_LIST_GROUPS = Api(
    ApiKey.LIST_GROUPS,
    Struct(m.ListGroupsRequest, Field("states", array(text)), Field("types", array(text))),
    Struct(
        m.ListGroupsResponse,
        Field("error", CODE),
        Field(
            "groups",
            _many(
                Struct(
                    m.ListedGroup,
                    Field("group_id", text),
                    Field("protocol_type", text),
                    Field("state", text),
                    Field("type", text),
                )
            ),
        ),
    ),
)

_DELETE_GROUPS = Api(
    ApiKey.DELETE_GROUPS,
    Struct(m.DeleteGroupsRequest, Field("group_ids", array(_group_id))),
    Struct(
        m.DeleteGroupsResponse,
        Field(
            "groups",
            _many(Struct(m.DeletedGroup, Field("group_id", text), Field("error", CODE))),
        ),
    ),
)

_OFFSET_DELETE = Api(
    ApiKey.OFFSET_DELETE,
    Struct(
        m.OffsetDeleteRequest,
        Field("group_id", _group_id),
        Field("topics", ArrayOf(_topic_partitions)),
    ),
    Struct(m.OffsetDeleteResponse, Field("error", CODE), Field("topics", _many(_topic_results))),
)

_DRAIN_MEMBER = Api(
    ApiKey.DRAIN_MEMBER,
    Struct(m.DrainMemberRequest, Field("group_id", _group_id), Field("client_id", _name)),
    Struct(
        m.DrainMemberResponse,
        Field("error", CODE),
        Field(
            "members",
            _many(Struct(m.DrainedMember, Field("member_id", text), Field("drained", boolean))),
        ),
    ),
)

APIS: Final[Mapping[ApiKey, Api]] = {
    api.key: api
    for api in (
        _OFFSET_COMMIT,
        _OFFSET_FETCH,
        _FIND_COORDINATOR,
        _JOIN_GROUP,
        _HEARTBEAT,
        _LEAVE_GROUP,
        _SYNC_GROUP,
        _DESCRIBE_GROUPS,
        _LIST_GROUPS,
        _API_VERSIONS,
        _DELETE_GROUPS,
        _OFFSET_DELETE,
        _DRAIN_MEMBER,
    )
}

_KEY_OF_REQUEST: Final[Mapping[type, ApiKey]] = {a.request.make: a.key for a in APIS.values()}  # type: ignore[misc]  # make is the NamedTuple class itself


def api_of(request: m.Request) -> ApiKey:
    """Return the API of *request*."""
    return _KEY_OF_REQUEST[type(request)]


def latest_version(key: ApiKey) -> int:
    """Return the newest version of an API that this code speaks."""
    return APIS[key].max_version


def _checks(*, requests: bool) -> dict[tuple[int, int], Check]:
    checks: dict[tuple[int, int], Check] = {}
    for api in APIS.values():
        for version in range(api.max_version + 1):
            struct = api.request if requests else api.response
            checks[api.key, version] = struct.check(version, open_end=not requests)
    return checks


# (api_key, api_version) -> what turns an unpacked body into its message.
REQUEST_CHECKS: Final = _checks(requests=True)
RESPONSE_CHECKS: Final = _checks(requests=False)


def request_body(request: m.Request, version: int) -> tuple[Any, ...]:
    """Return *request* as the array of *version*, newer fields dropped."""
    struct = APIS[api_of(request)].request
    return request if version >= struct.max_version else struct.trim(request, version)


def response_body(response: m.Response, key: ApiKey, version: int) -> tuple[Any, ...]:
    """Return *response* as the array of *version*, newer fields dropped."""
    struct = APIS[key].response
    if version >= struct.max_version or type(response) is m.BareError:
        return response
    return struct.trim(response, version)
