"""A few groups in memory, with as much of a coordinator as the command line asks for."""

from collections.abc import Mapping
from typing import Any

from protocol import messages as m
from protocol.messages import PartitionResult, TopicResult


class Memory:
    """Answers like a coordinator; tests change what it knows."""

    def __init__(self) -> None:
        self.states = {"g": "Empty", "h": "Empty", "busy": "Stable"}
        self.offsets: dict[str, dict[tuple[str, int], int]] = {
            "g": {("t", 0): 50, ("t", 1): 60, ("u", 0): 7},
            "h": {("t", 0): 10},
        }
        self.counts = {"t": 3}
        self.ends = {("t", 0): 100, ("t", 1): 55}

    def answers(self) -> Mapping[type[m.Request], Any]:
        """Return what a command line gets, by request."""
        groups = tuple(m.ListedGroup(g, "consumer", s, "classic") for g, s in self.states.items())
        return {
            m.ListGroupsRequest: m.ListGroupsResponse(0, groups),
            m.DescribeGroupsRequest: self.describe,
            m.OffsetFetchRequest: self.fetch,
            m.DescribeTopicsRequest: self.topic,
            m.AlterOffsetsRequest: self.alter,
        }

    def describe(self, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        """Tell only the state."""
        (group_id,) = request.group_ids
        state = self.states.get(group_id)
        error = 0 if state else 69
        group = m.DescribedGroup(error, None, group_id, state or "Dead", "consumer", "", 1, ())
        return m.DescribeGroupsResponse((group,))

    def fetch(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        """Return all offsets of some groups."""
        return m.OffsetFetchResponse(tuple(self._fetched(one.group_id) for one in request.groups))

    def _fetched(self, group_id: str) -> m.GroupOffsets:
        topics: dict[str, list[m.PartitionOffset]] = {}
        for (topic, partition), offset in self.offsets.get(group_id, {}).items():
            found = m.PartitionOffset(partition, offset, -1, "", 0)
            topics.setdefault(topic, []).append(found)
        return m.GroupOffsets(
            group_id, 0, tuple(m.TopicOffsets(t, tuple(p)) for t, p in topics.items())
        )

    def topic(self, request: m.DescribeTopicsRequest) -> m.DescribeTopicsResponse:
        """Tell one topic of the registry, or all."""
        names = tuple(self.counts) if request.topics is None else request.topics
        return m.DescribeTopicsResponse(0, None, tuple(map(self._topic, names)), has_more=False)

    def _topic(self, name: str) -> m.DescribedTopic:
        ends = tuple(
            m.EndOffset(p, end, 1_000) for (t, p), end in sorted(self.ends.items()) if t == name
        )
        count = self.counts.get(name)
        return m.DescribedTopic(name, 3 if count is None else 0, count or -1, (), ends)

    def alter(self, request: m.AlterOffsetsRequest) -> m.AlterOffsetsResponse:
        """Store offsets, if they are where they are expected and no member has them."""
        is_owned = self.states.get(request.group_id, "Empty") != "Empty"
        stored = self.offsets.setdefault(request.group_id, {})
        results = []
        for named in request.topics:
            topic = named.topic
            checked = []
            for p in named.partitions:
                is_moved = p.expected_offset != stored.get((topic, p.partition), -1)
                error = 1009 if is_owned else 1003 if is_moved else 0
                checked.append(PartitionResult(p.partition, error))
                if not error:
                    stored[topic, p.partition] = p.offset
            results.append(TopicResult(topic, tuple(checked)))
        return m.AlterOffsetsResponse(0, None, tuple(results), ())
