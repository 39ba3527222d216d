"""How the APIs of a group's members lie on the wire."""

from protocol import messages as m
from protocol.layout import (
    ANY_BYTES,
    GROUP_ID,
    INSTANCE_ID,
    MEMBER_BYTES,
    MEMBER_ID,
    NAME,
    OPTIONAL_TEXT,
    PROTOCOL_TYPE,
    TOPIC_PATTERN,
    Api,
    ApiKey,
    many,
)
from protocol.schema import CODE, COUNT, EPOCH, I32, ArrayOf, Field, Struct, boolean, text

JOIN_GROUP = Api(
    ApiKey.JOIN_GROUP,
    Struct(
        m.JoinGroupRequest,
        Field("group_id", GROUP_ID),
        Field("session_timeout_ms", I32),  # Its bounds have an error code of their own (26).
        Field("rebalance_timeout_ms", COUNT),
        Field("member_id", MEMBER_ID),
        Field("group_instance_id", INSTANCE_ID),
        Field("protocol_type", PROTOCOL_TYPE),
        Field(
            "protocols",
            ArrayOf(Struct(m.JoinProtocol, Field("name", NAME), Field("metadata", MEMBER_BYTES))),
        ),
        Field("reason", OPTIONAL_TEXT),
        Field("topic_pattern", TOPIC_PATTERN, since=1),
    ),
    Struct(
        m.JoinGroupResponse,
        Field("error", CODE),
        Field("generation_id", EPOCH),
        Field("protocol_type", OPTIONAL_TEXT),
        Field("protocol_name", OPTIONAL_TEXT),
        Field("leader", text),
        Field("skip_assignment", boolean),
        Field("member_id", text),
        Field(
            "members",
            many(
                Struct(
                    m.JoinGroupMember,
                    Field("member_id", text),
                    Field("group_instance_id", OPTIONAL_TEXT),
                    Field("metadata", ANY_BYTES),
                )
            ),
        ),
        Field("message", OPTIONAL_TEXT, since=1),
    ),
)

SYNC_GROUP = Api(
    ApiKey.SYNC_GROUP,
    Struct(
        m.SyncGroupRequest,
        Field("group_id", GROUP_ID),
        Field("generation_id", EPOCH),
        Field("member_id", MEMBER_ID),
        Field("group_instance_id", INSTANCE_ID),
        Field("protocol_type", OPTIONAL_TEXT),
        Field("protocol_name", OPTIONAL_TEXT),
        Field(
            "assignments",
            ArrayOf(
                Struct(
                    m.MemberAssignment,
                    Field("member_id", MEMBER_ID),
                    Field("assignment", MEMBER_BYTES),
                )
            ),
        ),
    ),
    Struct(
        m.SyncGroupResponse,
        Field("error", CODE),
        Field("protocol_type", OPTIONAL_TEXT),
        Field("protocol_name", OPTIONAL_TEXT),
        Field("assignment", ANY_BYTES),
        Field("message", OPTIONAL_TEXT, since=1),
    ),
)

HEARTBEAT = Api(
    ApiKey.HEARTBEAT,
    Struct(
        m.HeartbeatRequest,
        Field("group_id", GROUP_ID),
        Field("generation_id", EPOCH),
        Field("member_id", MEMBER_ID),
        Field("group_instance_id", INSTANCE_ID),
    ),
    Struct(m.HeartbeatResponse, Field("error", CODE), Field("message", OPTIONAL_TEXT, since=1)),
)

LEAVE_GROUP = Api(
    ApiKey.LEAVE_GROUP,
    Struct(
        m.LeaveGroupRequest,
        Field("group_id", GROUP_ID),
        Field(
            "members",
            ArrayOf(
                Struct(
                    m.LeavingMember,
                    Field("member_id", MEMBER_ID),
                    Field("group_instance_id", INSTANCE_ID),
                    Field("reason", OPTIONAL_TEXT),
                )
            ),
        ),
    ),
    Struct(
        m.LeaveGroupResponse,
        Field("error", CODE),
        Field(
            "members",
            many(
                Struct(
                    m.LeftMember,
                    Field("member_id", text),
                    Field("group_instance_id", OPTIONAL_TEXT),
                    Field("error", CODE),
                    Field("message", OPTIONAL_TEXT, since=1),
                )
            ),
        ),
    ),
)

DRAIN_MEMBER = Api(
    ApiKey.DRAIN_MEMBER,
    Struct(m.DrainMemberRequest, Field("group_id", GROUP_ID), Field("client_id", NAME)),
    Struct(
        m.DrainMemberResponse,
        Field("error", CODE),
        Field(
            "members",
            many(Struct(m.DrainedMember, Field("member_id", text), Field("drained", boolean))),
        ),
    ),
)
