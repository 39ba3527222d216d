"""How the APIs of committed offsets lie on the wire."""

from protocol import messages as m
from protocol.layout import (
    GROUP_ID,
    INSTANCE_ID,
    MEMBER_ID,
    OPTIONAL_TEXT,
    TOPIC,
    TOPIC_PARTITIONS,
    TOPIC_RESULTS,
    Api,
    ApiKey,
    many,
)
from protocol.schema import (
    CODE,
    COUNT,
    EPOCH,
    I32,
    I64,
    OFFSET,
    OFFSET_OR_NONE,
    ArrayOf,
    Field,
    Struct,
    boolean,
    nullable,
    text,
)

PARTITION_COMMIT = Struct(
    m.PartitionCommit,
    Field("partition", COUNT),
    Field("offset", OFFSET),
    Field("leader_epoch", EPOCH),
    Field("metadata", OPTIONAL_TEXT),
    Field("expected_offset", nullable(OFFSET_OR_NONE), since=1),
)

OFFSET_COMMIT = Api(
    ApiKey.OFFSET_COMMIT,
    Struct(
        m.OffsetCommitRequest,
        Field("group_id", GROUP_ID),
        Field("generation_id", EPOCH),
        Field("member_id", MEMBER_ID),
        Field("group_instance_id", INSTANCE_ID),
        Field(
            "topics",
            ArrayOf(
                Struct(
                    m.TopicCommit,
                    Field("topic", TOPIC),
                    Field(
                        "partitions",
                        ArrayOf(PARTITION_COMMIT, plain=True),
                    ),
                )
            ),
        ),
    ),
    Struct(
        m.OffsetCommitResponse,
        Field("error", CODE),
        Field("topics", many(TOPIC_RESULTS)),
        Field("message", OPTIONAL_TEXT, since=2),
    ),
)

OFFSET_FETCH = Api(
    ApiKey.OFFSET_FETCH,
    Struct(
        m.OffsetFetchRequest,
        Field(
            "groups",
            ArrayOf(
                Struct(
                    m.GroupFetch,
                    Field("group_id", GROUP_ID),
                    Field("topics", ArrayOf(TOPIC_PARTITIONS, optional=True)),
                )
            ),
        ),
        Field("require_stable", boolean),
    ),
    Struct(
        m.OffsetFetchResponse,
        Field(
            "groups",
            many(
                Struct(
                    m.GroupOffsets,
                    Field("group_id", text),
                    Field("error", CODE),
                    Field(
                        "topics",
                        many(
                            Struct(
                                m.TopicOffsets,
                                Field("topic", text),
                                Field(
                                    "partitions",
                                    many(
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

OFFSET_DELETE = Api(
    ApiKey.OFFSET_DELETE,
    Struct(
        m.OffsetDeleteRequest,
        Field("group_id", GROUP_ID),
        Field("topics", ArrayOf(TOPIC_PARTITIONS)),
    ),
    Struct(m.OffsetDeleteResponse, Field("error", CODE), Field("topics", many(TOPIC_RESULTS))),
)
