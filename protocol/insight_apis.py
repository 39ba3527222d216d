"""How the APIs that look into groups lie on the wire."""

from protocol import messages as m
from protocol.layout import (
    ANY_BYTES,
    GROUP_ID,
    OPTIONAL_TEXT,
    RESPONSE_ITEMS_MAX,
    RETENTION,
    Api,
    ApiKey,
    many,
)
from protocol.schema import (
    CODE,
    COUNT,
    I32,
    I64,
    OFFSET,
    Field,
    Struct,
    array,
    binary,
    boolean,
    nullable,
    text,
)

# A cursor names a group, a topic and a partition.
_CURSOR = binary(1_024)

DESCRIBE_REBALANCES = Api(
    ApiKey.DESCRIBE_REBALANCES,
    Struct(
        m.DescribeRebalancesRequest, Field("group_id", GROUP_ID), Field("max_rebalances", COUNT)
    ),
    Struct(
        m.DescribeRebalancesResponse,
        Field("error", CODE),
        Field("message", OPTIONAL_TEXT),
        Field("group_id", text),
        Field(
            "rebalances",
            many(
                Struct(
                    m.Rebalance,
                    Field("number", I64),
                    Field("started_ms", I64),
                    Field("trigger", text),
                    Field("member_id", text),
                    Field("group_instance_id", OPTIONAL_TEXT),
                    Field("client_id", text),
                    Field("client_host", text),
                    Field("reason", text),
                    Field("old_generation", I32),
                    Field("new_generation", I32),
                    Field("join_ms", I64),
                    Field("sync_ms", I64),
                    Field("members", I32),
                    Field("outcome", text),
                    Field(
                        "late",
                        many(
                            Struct(
                                m.LateMember,
                                Field("member_id", text),
                                Field("client_id", text),
                                Field("client_host", text),
                                Field("phase", text),
                                Field("waited_ms", I64),
                                Field("removed", boolean),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

SCAN_OFFSETS = Api(
    ApiKey.SCAN_OFFSETS,
    Struct(
        m.ScanOffsetsRequest,
        Field("offsets_partition", COUNT),
        Field("cursor", _CURSOR),
        Field("max_offsets", COUNT),
        Field("in_columns", boolean, since=1),
        Field("group_ids", nullable(array(text)), since=1),
        Field("topics", nullable(array(text)), since=1),
    ),
    Struct(
        m.ScanOffsetsResponse,
        Field("error", CODE),
        Field("position", I64),
        Field(
            "offsets",
            many(
                Struct(
                    m.ScannedOffset,
                    Field("group_id", text),
                    Field("topic", text),
                    Field("partition", COUNT),
                    Field("offset", OFFSET),
                    Field("leader_epoch", I32),
                    Field("metadata", text),
                    Field("commit_timestamp_ms", I64),
                    Field("expire_timestamp_ms", I64),
                )
            ),
        ),
        Field("cursor", ANY_BYTES),
        Field(
            "columns",
            many(
                Struct(
                    m.OffsetColumns,
                    Field("group_ids", array(text, RESPONSE_ITEMS_MAX)),
                    Field("topics", array(text, RESPONSE_ITEMS_MAX)),
                    Field("counts", ANY_BYTES),
                    Field("rows", ANY_BYTES),
                    Field("sizes", ANY_BYTES),
                    Field("committed_ms", ANY_BYTES),
                    Field("expire_ms", ANY_BYTES),
                )
            ),
            since=1,
        ),
    ),
)

READ_OFFSET_CHANGES = Api(
    ApiKey.READ_OFFSET_CHANGES,
    Struct(
        m.ReadOffsetChangesRequest,
        Field("offsets_partition", COUNT),
        Field("position", OFFSET),
        Field("max_changes", COUNT),
    ),
    Struct(
        m.ReadOffsetChangesResponse,
        Field("error", CODE),
        Field(
            "changes",
            many(
                Struct(
                    m.OffsetChange,
                    Field("position", OFFSET),
                    Field("kind", text),
                    Field("group_id", text),
                    Field("topic", text),
                    Field("partition", I32),
                    Field("offset", I64),
                    Field("leader_epoch", I32),
                    Field("metadata", text),
                    Field("timestamp_ms", I64),
                )
            ),
        ),
        Field("next_position", I64),
        Field("end_position", I64),
    ),
)

DESCRIBE_LAG = Api(
    ApiKey.DESCRIBE_LAG,
    Struct(m.DescribeLagRequest, Field("group_id", GROUP_ID)),
    Struct(
        m.DescribeLagResponse,
        Field("error", CODE),
        Field("message", OPTIONAL_TEXT),
        Field("group_id", text),
        Field(
            "topics",
            many(
                Struct(
                    m.TopicLag,
                    Field("topic", text),
                    Field(
                        "partitions",
                        many(
                            Struct(
                                m.PartitionLag,
                                Field("partition", COUNT),
                                Field("committed_offset", I64),
                                Field("end_offset", I64),
                                Field("lag", I64),
                                Field("commit_timestamp_ms", I64),
                                Field("end_reported_ms", I64),
                                Field("member_id", text),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
)

ALTER_GROUP_RETENTION = Api(
    ApiKey.ALTER_GROUP_RETENTION,
    Struct(
        m.AlterGroupRetentionRequest,
        Field("group_id", GROUP_ID),
        Field("retention_ms", nullable(RETENTION)),
    ),
    Struct(m.AlterGroupRetentionResponse, Field("error", CODE)),
)
