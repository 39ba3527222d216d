"""How the APIs of the topic registry lie on the wire."""

from protocol import messages as m
from protocol.layout import (
    NAME,
    OPTIONAL_TEXT,
    TOPIC,
    TOPIC_PATTERN,
    TOPIC_RESULTS,
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
    ArrayOf,
    Field,
    Struct,
    array,
    boolean,
    nullable,
    text,
)

_HOSTS = Struct(m.PartitionHosts, Field("partition", COUNT), Field("hosts", array(NAME, 16)))

REGISTER_TOPICS = Api(
    ApiKey.REGISTER_TOPICS,
    Struct(
        m.RegisterTopicsRequest,
        Field(
            "topics",
            ArrayOf(
                Struct(
                    m.TopicRegistration,
                    Field("topic", TOPIC),
                    Field("partition_count", COUNT),
                    Field("hosts", ArrayOf(_HOSTS, optional=True)),
                )
            ),
        ),
    ),
    Struct(
        m.RegisterTopicsResponse,
        Field("error", CODE),
        Field(
            "topics",
            many(
                Struct(
                    m.RegisteredTopic,
                    Field("topic", text),
                    Field("error", CODE),
                    Field("message", OPTIONAL_TEXT),
                    Field("partition_count", I32),
                )
            ),
        ),
    ),
)

DELETE_TOPICS = Api(
    ApiKey.DELETE_TOPICS,
    Struct(m.DeleteTopicsRequest, Field("topics", array(TOPIC))),
    Struct(
        m.DeleteTopicsResponse,
        Field("error", CODE),
        Field("topics", many(Struct(m.DeletedTopic, Field("topic", text), Field("error", CODE)))),
    ),
)

DESCRIBE_TOPICS = Api(
    ApiKey.DESCRIBE_TOPICS,
    Struct(
        m.DescribeTopicsRequest,
        Field("topics", nullable(array(TOPIC))),
        Field("pattern", TOPIC_PATTERN),
        Field("with_end_offsets", boolean),
        Field("start_after", text),
        Field("max_topics", COUNT),
    ),
    Struct(
        m.DescribeTopicsResponse,
        Field("error", CODE),
        Field("message", OPTIONAL_TEXT),
        Field(
            "topics",
            many(
                Struct(
                    m.DescribedTopic,
                    Field("topic", text),
                    Field("error", CODE),
                    Field("partition_count", I32),
                    Field("hosts", many(_HOSTS)),
                    Field(
                        "end_offsets",
                        many(
                            Struct(
                                m.EndOffset,
                                Field("partition", COUNT),
                                Field("end_offset", OFFSET),
                                Field("reported_ms", I64),
                            )
                        ),
                    ),
                )
            ),
        ),
        Field("has_more", boolean),
    ),
)

REPORT_END_OFFSETS = Api(
    ApiKey.REPORT_END_OFFSETS,
    Struct(
        m.ReportEndOffsetsRequest,
        Field(
            "topics",
            ArrayOf(
                Struct(
                    m.TopicEnds,
                    Field("topic", TOPIC),
                    Field(
                        "partitions",
                        ArrayOf(
                            Struct(
                                m.PartitionEnd,
                                Field("partition", COUNT),
                                Field("end_offset", OFFSET),
                            )
                        ),
                    ),
                )
            ),
        ),
    ),
    Struct(
        m.ReportEndOffsetsResponse,
        Field("error", CODE),
        Field("topics", many(TOPIC_RESULTS)),
    ),
)
