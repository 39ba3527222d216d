"""How the APIs that find, describe and delete groups, or look after the log, lie on the wire."""

from protocol import messages as m
from protocol.layout import ANY_BYTES, GROUP_ID, NAME, OPTIONAL_TEXT, RETENTION, Api, ApiKey, many
from protocol.schema import CODE, EPOCH, I32, I64, Field, Struct, array, text

API_VERSIONS = Api(
    ApiKey.API_VERSIONS,
    Struct(
        m.ApiVersionsRequest,
        Field("client_id", NAME),
        Field("software_name", text),
        Field("software_version", text),
    ),
    Struct(
        m.ApiVersionsResponse,
        Field("error", CODE),
        Field(
            "apis",
            many(
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
        Field("max_request_bytes", I32),
    ),
)

FIND_COORDINATOR = Api(
    ApiKey.FIND_COORDINATOR,
    Struct(m.FindCoordinatorRequest, Field("key_type", I32), Field("group_ids", array(GROUP_ID))),
    Struct(
        m.FindCoordinatorResponse,
        Field(
            "coordinators",
            many(
                Struct(
                    m.CoordinatorOfGroup,
                    Field("group_id", text),
                    Field("error", CODE),
                    Field("message", OPTIONAL_TEXT),
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

DESCRIBE_GROUPS = Api(
    ApiKey.DESCRIBE_GROUPS,
    Struct(m.DescribeGroupsRequest, Field("group_ids", array(GROUP_ID))),
    Struct(
        m.DescribeGroupsResponse,
        Field(
            "groups",
            many(
                Struct(
                    m.DescribedGroup,
                    Field("error", CODE),
                    Field("message", OPTIONAL_TEXT),
                    Field("group_id", text),
                    Field("state", text),
                    Field("protocol_type", text),
                    Field("protocol_name", text),
                    Field("generation_id", EPOCH),
                    Field(
                        "members",
                        many(
                            Struct(
                                m.DescribedMember,
                                Field("member_id", text),
                                Field("group_instance_id", OPTIONAL_TEXT),
                                Field("client_id", text),
                                Field("client_host", text),
                                Field("metadata", ANY_BYTES),
                                Field("assignment", ANY_BYTES),
                            )
                        ),
                    ),
                    Field("offsets_retention_ms", RETENTION, since=1),
                )
            ),
        ),
    ),
)

LIST_GROUPS = Api(
    ApiKey.LIST_GROUPS,
    Struct(m.ListGroupsRequest, Field("states", array(text)), Field("types", array(text))),
    Struct(
        m.ListGroupsResponse,
        Field("error", CODE),
        Field(
            "groups",
            many(
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

DELETE_GROUPS = Api(
    ApiKey.DELETE_GROUPS,
    Struct(m.DeleteGroupsRequest, Field("group_ids", array(GROUP_ID))),
    Struct(
        m.DeleteGroupsResponse,
        Field(
            "groups",
            many(Struct(m.DeletedGroup, Field("group_id", text), Field("error", CODE))),
        ),
    ),
)

COMPACT_LOG = Api(
    ApiKey.COMPACT_LOG,
    Struct(m.CompactLogRequest),
    Struct(
        m.CompactLogResponse,
        Field("error", CODE),
        Field("message", OPTIONAL_TEXT),
        Field("removed_bytes", I64),
        Field("log_bytes", I64),
        Field("live_bytes", I64),
        Field("duration_ms", I64),
    ),
)
