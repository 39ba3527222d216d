"""A group context with a topic registry next to it, wired as a node wires them.

As with groups, every record of the registry goes through the log's encoding into a second one,
and both must be the same after every step.
"""

from collections.abc import Iterable, Mapping

from coordinator.group.core import Caller, GroupConfig, Outcome
from coordinator.group.node_shard import NodeShard
from coordinator.group.registry import HardRegistry, Registry, TopicRecord
from coordinator.group.shard import GroupShard
from protocol.codec import RESPONSE_CODECS
from protocol.messages import (
    ApiKey,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionEnd,
    PartitionHosts,
    RegisterTopicsRequest,
    RegisterTopicsResponse,
    ReportEndOffsetsRequest,
    ReportEndOffsetsResponse,
    Request,
    TopicEnds,
    TopicRegistration,
)
from tests.group.context import Context, R, returned
from tests.group.node_context import last_per_key, roundtrip

SPARK = Caller("spark", "10.0.0.1")

Hosts = Mapping[int, tuple[str, ...]]


def replayed(records: Iterable[TopicRecord]) -> HardRegistry:
    """Return the hard state that *records* leave."""
    registry = Registry()
    for record in records:
        registry.replay(roundtrip(record))
    return registry.hard_state()


class TopicsContext(Context):
    """A shard of groups, and the registry that it reads.

    Attributes:
        is_held: Whether what the registry decides stays on its way to the log.
    """

    def __init__(self, config: GroupConfig | None = None) -> None:
        self.topics = NodeShard(Registry())
        self.topic_records: list[TopicRecord] = []
        self.is_held = False
        self._durable_offset = 0
        super().__init__(config)

    def _new_shard(self) -> GroupShard:
        return GroupShard(
            config=self.config,
            new_uuid=lambda: f"{next(self._uuids):04d}",
            registry=self.topics.registry,
        )

    def crash(self, lost_batches: int = 0, *, is_compacted: bool = False) -> None:
        """Lose all soft state, of the registry first, as a node loads it first."""
        self.topics = NodeShard(Registry())
        records = self.topic_records
        self.topics.begin_replay(self.now)
        for record in last_per_key(records) if is_compacted else records:
            self.topics.replay(roundtrip(record))
        assert self.topics.loaded(self.now) == []
        super().crash(lost_batches)
        self.tell()

    def ask(self, request: Request, of: type[R], caller: Caller = SPARK) -> R:
        """Hand a request to the registry, and tell the groups what it changes."""
        outcome = self.topics.handle(request, "token", caller, self.now)
        self.keep(outcome)
        ((_, response, _, gated, _),) = outcome.replies
        assert gated
        assert isinstance(response, of)
        self.tell()
        return response

    def keep(self, outcome: Outcome) -> None:
        """Log what the registry decided; memory is the fold of the log, compacted or not."""
        records: list[TopicRecord] = outcome.records
        self.topic_records += records
        self.topics.kept("", len(self.topic_records))
        self.events += outcome.events
        live = self.topics.registry.hard_state()
        assert live == replayed(self.topic_records) == replayed(last_per_key(self.topic_records))

    def tell(self) -> None:
        """Tell the shard of groups what changed, as far as the log has it."""
        if not self.is_held:
            self._durable_offset = len(self.topic_records)
        changes = self.topics.take_changes(self._durable_offset)
        self.shard.topics_changed([c.topic for c in changes if not c.after], self.now)

    def advance(self, by_ms: int) -> None:
        """Let time pass, and forget the topics that were purged."""
        super().advance(by_ms)
        self.keep(self.topics.forget(self.shard.take_purged()))

    def register(self, counts: Mapping[str, int], hosts: Hosts | None = None) -> list[int]:
        """Register topics, the same *hosts* for each; return the errors."""
        response = self.registered(counts, hosts)
        assert response.error == 0
        return [topic.error for topic in response.topics]

    def registered(
        self, counts: Mapping[str, int], hosts: Hosts | None = None
    ) -> RegisterTopicsResponse:
        """Register topics; return the answer."""
        named = None if hosts is None else tuple(PartitionHosts(*item) for item in hosts.items())
        topics = tuple(TopicRegistration(name, count, named) for name, count in counts.items())
        return self.ask(RegisterTopicsRequest(topics), RegisterTopicsResponse)

    def delete_topics(self, *names: str) -> list[int]:
        """Delete topics; return the errors."""
        response = self.ask(DeleteTopicsRequest(names), DeleteTopicsResponse)
        assert response.error == 0
        return [topic.error for topic in response.topics]

    def report(self, topic: str, ends: Mapping[int, int]) -> list[int]:
        """Report end offsets; return the errors."""
        partitions = tuple(PartitionEnd(*item) for item in ends.items())
        request = ReportEndOffsetsRequest((TopicEnds(topic, partitions),))
        response = self.ask(request, ReportEndOffsetsResponse)
        assert response.error == 0
        return [partition.error for partition in response.topics[0].partitions]

    def described(
        self,
        *topics: str,
        pattern: str | None = None,
        start_after: str = "",
        max_topics: int = 100,
    ) -> DescribeTopicsResponse:
        """Describe topics: those named, or else by *pattern*, or all."""
        return self.ask_for_topics(
            DescribeTopicsRequest(topics or None, pattern, True, start_after, max_topics)
        )

    def ask_for_topics(self, request: DescribeTopicsRequest) -> DescribeTopicsResponse:
        """Return what is answered, as its asker reads it."""
        described = returned(self.topics.describe(request, bool, 1 << 30))
        assert described is not None
        codec = RESPONSE_CODECS[ApiKey.DESCRIBE_TOPICS, 0]
        answer = codec.decode(codec.encode(described))
        assert isinstance(answer, DescribeTopicsResponse)
        return answer

    def names(self, pattern: str | None = None) -> list[str]:
        """Return the topics that match, or all."""
        response = self.described(pattern=pattern)
        assert (response.error, response.has_more) == (0, False)
        return [topic.topic for topic in response.topics]
