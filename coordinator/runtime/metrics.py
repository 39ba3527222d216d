"""What a node can tell about itself in numbers.

Nothing here costs a request anything: what isn't counted once a flush is looked at when somebody
asks. Names end in their unit; what only grows ends in `_total`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from coordinator.runtime.shard import Status

if TYPE_CHECKING:
    from coordinator.runtime.node import Node


def node_metrics(node: "Node") -> dict[str, Callable[[], float]]:
    """Return the node's own metrics; what compacts, and what serves, adds more."""
    journal = node.journal
    return {
        "uptime_ms": lambda: node.now().mono_ms - node.started_ms,
        "flushes_total": lambda: node.flusher.flushes,
        "flushed_bytes_total": lambda: node.flusher.flushed_bytes,
        "log_bytes": lambda: journal.size_bytes,
        "log_unflushed_bytes": lambda: journal.open_bytes,
        "disk_free_bytes": journal.free_bytes,
        "disk_size_bytes": journal.disk_bytes,
        "groups": lambda: sum(shard.core.group_count() for shard in node.shards),
        "offsets": lambda: sum(shard.core.offset_count() for shard in node.shards),
        "topics": lambda: len(node.registry.core.registry.topics),
        "answers_waiting_for_disk": lambda: sum(len(shard.gate) for shard in node.shards),
        "partitions_active": lambda: _partitions(node, Status.ACTIVE),
        "partitions_loading": lambda: _partitions(node, Status.LOADING),
        "loading_entries": lambda: 0 if (p := node.loader.progress) is None else p.entries,
        "loading_done_bytes": lambda: 0 if (p := node.loader.progress) is None else p.done_bytes,
        "loading_size_bytes": lambda: 0 if (p := node.loader.progress) is None else p.total_bytes,
        "last_load_ms": lambda: node.last_load_ms,
    }


def _partitions(node: "Node", status: Status) -> int:
    return sum(shard.status is status for shard in node.shards)
