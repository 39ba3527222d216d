"""How a node is: its answer to DescribeNode."""

from typing import Any

from coordinator.runtime.node import Node
from coordinator.runtime.shard import ShardRunner, Status
from protocol import messages as m


def described(node: Node, node_id: int) -> m.DescribeNodeResponse:
    """Return status, problems, partitions and metrics of the moment."""
    runners: list[ShardRunner[Any]] = [*node.shards, node.registry]
    partitions = tuple(_partition(node, runner) for runner in runners)
    return m.DescribeNodeResponse(
        0,
        node_id,
        node.journal.leader_epoch,
        _status(node, partitions),
        tuple(m.NodeProblem(*item) for item in sorted(node.health.problems.items())),
        partitions,
        tuple(m.NodeMetric(name, int(node.metrics[name]())) for name in sorted(node.metrics)),
    )


def _status(node: Node, partitions: tuple[m.NodePartition, ...]) -> str:
    if node.health.problems:
        return "unhealthy"
    is_ready = all(partition.status == Status.ACTIVE.value for partition in partitions)
    return "ready" if is_ready else "loading"


def _partition(node: Node, runner: ShardRunner[Any]) -> m.NodePartition:
    number, status = runner.partition, runner.status
    end_offset = node.journal.end_offset(number)
    loaded_offset = end_offset if status is Status.ACTIVE else node.loader.loaded_offset(number)
    return m.NodePartition(number, status.value, loaded_offset, end_offset)
