"""How the APIs about the coordinator itself lie on the wire."""

from protocol import messages as m
from protocol.layout import OPTIONAL_TEXT, Api, ApiKey, many
from protocol.schema import CODE, COUNT, I32, I64, Field, Struct, text

DESCRIBE_NODE = Api(
    ApiKey.DESCRIBE_NODE,
    Struct(m.DescribeNodeRequest),
    Struct(
        m.DescribeNodeResponse,
        Field("error", CODE),
        Field("node_id", I32),
        Field("leader_epoch", I32),
        Field("status", text),
        Field("problems", many(Struct(m.NodeProblem, Field("part", text), Field("problem", text)))),
        Field(
            "partitions",
            many(
                Struct(
                    m.NodePartition,
                    Field("offsets_partition", COUNT),
                    Field("status", text),
                    Field("loaded_offset", I64),
                    Field("end_offset", I64),
                )
            ),
        ),
        Field("metrics", many(Struct(m.NodeMetric, Field("name", text), Field("value", I64)))),
    ),
)

RELOAD_PARTITION = Api(
    ApiKey.RELOAD_PARTITION,
    Struct(m.ReloadPartitionRequest, Field("offsets_partition", COUNT)),
    Struct(
        m.ReloadPartitionResponse,
        Field("error", CODE),
        Field("message", OPTIONAL_TEXT),
        Field("entries", I64),
        Field("load_ms", I64),
    ),
)
