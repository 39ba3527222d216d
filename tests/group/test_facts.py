"""Groups in numbers: what the metrics, the API and the page show of them."""

from collections.abc import Iterator
from typing import TypeVar

from coordinator.group.facts import (
    GroupFacts,
    MemberFacts,
    PartitionFacts,
    TopicEndFacts,
    TopicFacts,
)
from coordinator.group.lag import Turn
from coordinator.group.lag_samples import MINUTE_MS
from tests.group.context import GROUP, SESSION_MS, assignment, subscription
from tests.group.test_lag import Lagging

T = TypeVar("T")


def _all(found: Iterator[T | None]) -> list[T]:
    return [one for one in found if one is not None]


class Shown(Lagging):
    """Groups whose numbers are asked for."""

    def sample(self) -> None:
        """Let the next minute begin, and note ends and lags."""
        super().sample()
        minute = self.now.mono_ms // MINUTE_MS
        assert list(self.topics.sample_ends(minute, self.now, Turn())) == []

    def consuming(self, members: int, *owned: str) -> list[str]:
        """Let members join; the first of them owns everything."""
        ids = self.completing_group(members, protocols={"range": subscription("t")})
        self.sync(ids[0], self.generation, {ids[0]: assignment(*owned)})
        for member in ids[1:]:
            self.sync(member, self.generation)
        return ids

    def group(self, group: str = GROUP) -> GroupFacts:
        """Return the facts of one group."""
        (one,) = _all(self.shard.facts_of(group, self.mono_ms, Turn()))
        return one

    def topics_of(self, group: str = GROUP) -> list[TopicFacts]:
        """Return those of its topics."""
        return _all(self.shard.topic_facts(group, self.mono_ms, Turn()))

    def partitions(self, group: str = GROUP) -> list[PartitionFacts]:
        """Return those of its partitions."""
        return _all(self.shard.partition_facts(group, self.mono_ms, Turn()))

    def members_of(self, group: str = GROUP) -> list[MemberFacts]:
        """Return those of its members."""
        return _all(self.shard.member_facts(group, self.mono_ms, Turn()))


def test_a_group_its_topics_and_partitions_agree() -> None:
    """Three levels of the same numbers; the page shows them side by side."""
    context = Shown()
    context.register({"t": 3})
    context.report("t", {0: 10, 1: 20})
    context.advance(10_000)
    context.report("t", {0: 20, 1: 20})
    told_ms = context.wall_ms
    context.committed({"t-0": 15, "t-1": 20})
    leader, idle = context.consuming(2, "t-0", "t-1", "t-2")
    context.advance(4_999)  # Beside the one in which they joined.
    group = context.group()

    assert (group.state, group.members, group.empty_members) == ("Stable", 2, 1)
    assert (group.partitions, group.unknown, group.lag, group.lag_seconds) == (3, 1, 5, 10.0)
    assert (group.earlier_lag, group.earlier_ms) == (-1, -1)
    assert _all(context.shard.facts(context.mono_ms, Turn())) == [group]
    assert context.topics_of() == [TopicFacts("t", 3, 1, 3, 35, 5, 10.0)]
    assert context.partitions() == [
        PartitionFacts("t", 0, leader, 15, 20, 5, 10.0, told_ms, told_ms),
        PartitionFacts("t", 1, leader, 20, 20, 0, 0.0, told_ms, told_ms),
        PartitionFacts("t", 2, leader, -1, -1, -1, -1.0, -1, -1),
    ]
    assert context.members_of() == [
        MemberFacts(
            leader,
            None,
            "spark0",
            "10.0.0.1",
            True,
            4_999,
            SESSION_MS,
            3,
            5,
            drained=False,
            waits="",
        ),
        MemberFacts(
            idle,
            None,
            "spark1",
            "10.0.0.1",
            False,
            4_999,
            SESSION_MS,
            0,
            -1,
            drained=False,
            waits="",
        ),
    ]
    assert _all(context.topics.topic_facts(Turn())) == [TopicEndFacts("t", 3, 40, told_ms)]
