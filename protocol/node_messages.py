"""Requests and responses about the coordinator itself; import them from `protocol.messages`."""

from typing import NamedTuple

# --- 1010 DescribeNode ------------------------------------------------------------------


class DescribeNodeRequest(NamedTuple):
    """How is this node? Answered at once, also while it loads."""


class NodeProblem(NamedTuple):
    """What is wrong with one part of the node."""

    part: str  # Such as "storage", "loading", "compaction".
    problem: str


class NodePartition(NamedTuple):
    """One partition of the offsets log, the node's own (65535: the topics) among them."""

    offsets_partition: int
    status: str  # "loading", "active", or "closed": not served here.
    loaded_offset: int  # What was read of it; equal to `end_offset` once it is loaded.
    end_offset: int


class NodeMetric(NamedTuple):
    """A number; its unit is the end of its name."""

    name: str
    value: int


class DescribeNodeResponse(NamedTuple):
    """Answer to `DescribeNodeRequest`."""

    error: int
    node_id: int
    leader_epoch: int
    status: str  # "loading", "ready", or "unhealthy": there are problems.
    problems: tuple[NodeProblem, ...]
    partitions: tuple[NodePartition, ...]
    metrics: tuple[NodeMetric, ...]


# --- 1012 ReloadPartition ---------------------------------------------------------------


class ReloadPartitionRequest(NamedTuple):
    """Take one offsets partition out of service, and load it again from the log."""

    offsets_partition: int


class ReloadPartitionResponse(NamedTuple):
    """Answer to `ReloadPartitionRequest`, when the partition is served again."""

    error: int
    message: str | None
    entries: int  # That were read.
    load_ms: int
