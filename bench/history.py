"""What an hour's history takes in memory: ``python -m bench.history '{"groups": …}'``, a `History`.

The shard and the registry alone, with a clock that is set forward: an hour of samples is taken of
each partition's lag and of each group, as the daemon takes them once a minute, and the curve of
each end is made of what is reported. Every partition moves in each minute.
"""

import gc
import os
from dataclasses import dataclass
from typing import Final

from bench.processes import resident_mb, run_plan
from coordinator.config import Settings
from coordinator.group.core import Now
from coordinator.group.lag import Turn
from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT
from coordinator.group.records import OffsetsCommitted
from coordinator.group.registry import EndReported, Registry, TopicRegistered
from coordinator.group.shard import GroupShard
from coordinator.server.run import group_config
from protocol.messages import PartitionOffset

_WALL_MS: Final = 1_750_000_000_000
_AN_HOUR: Final = SAMPLES_KEPT + 1


@dataclass(frozen=True, slots=True)
class History:
    """How many groups there are; each reads *partitions* of a topic of its own."""

    groups: int
    partitions: int


class _Node:
    """The groups and the topics, and one minute after the other."""

    def __init__(self, plan: History) -> None:
        self._plan = plan
        self.registry = Registry()
        self.shard = GroupShard(
            config=group_config(Settings()), new_uuid=lambda: "id", registry=self.registry
        )
        for number in range(plan.groups):
            topic = f"topic-{number}"
            self.registry.replay(TopicRegistered(topic, plan.partitions, (), False, number + 1))
        self.move(0)
        self.shard.loaded(Now(0, _WALL_MS))

    def move(self, minute: int) -> None:
        """Have all ends reported and all offsets committed anew."""
        wall_ms = _WALL_MS + minute * MINUTE_MS
        self.registry.now_ms = (minute * MINUTE_MS, wall_ms)
        for number in range(self._plan.groups):
            topic = f"topic-{number}"
            offsets = {}
            for partition in range(self._plan.partitions):
                last = 1_000_000 + minute * (1_000 + partition)
                self.registry.replay(EndReported(topic, partition, last, wall_ms))
                offsets[partition] = PartitionOffset(partition, last - 500, -1, "", 0)
            self.shard.replay(OffsetsCommitted(f"group-{number}", topic, offsets, wall_ms))

    def sample(self, minute: int) -> None:
        """Take the samples of a minute."""
        for _ in self.shard.sample_lags(minute, Turn()):
            pass


def history(plan: History) -> dict[str, float]:
    """Return how much memory the history took, and whether a sample is ``wrong``."""
    node = _Node(plan)
    # What a commit replaces is given back only in part; that is no history.
    for _ in range(3):
        node.move(0)
    gc.collect()
    before_mb = resident_mb(os.getpid())
    for minute in range(1, _AN_HOUR + 1):
        node.move(minute)
        node.sample(minute)
    gc.collect()
    after_mb = resident_mb(os.getpid())
    curve = node.shard.curve("group-0", "topic-0", 0, _AN_HOUR + 1)
    return {
        "history_mb": after_mb - before_mb,
        "wrong": float(set(curve) != {500} or len(curve) != SAMPLES_KEPT),
    }


if __name__ == "__main__":
    run_plan("bench.history", History, history)
