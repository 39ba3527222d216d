"""The topic registry's own decisions, in the form of a shard: the node's partition of the log.

What a change means for groups is not decided here: `take_changes` tells the shards of groups
(see `maintenance`), and when each of them has removed a deleted topic's offsets, the topic is
forgotten (`forget`).
"""

import bisect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Final

from msgspec import structs

from coordinator.group import facts, lag
from coordinator.group.core import Caller, Event, Now, Outcome
from coordinator.group.registry import (
    EndReported,
    HardRegistry,
    InvalidPattern,
    Registry,
    RegistryChanged,
    Topic,
    TopicChange,
    TopicForgotten,
    TopicRecord,
    TopicRegistered,
    host_bytes,
)
from protocol.errors import ErrorCode
from protocol.messages import (
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribedTopic,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionHosts,
    PartitionResult,
    RegisteredTopic,
    RegisterTopicsRequest,
    RegisterTopicsResponse,
    ReportEndOffsetsRequest,
    ReportEndOffsetsResponse,
    Request,
    Response,
    TopicRegistration,
    TopicResult,
)

PARTITIONS_MAX: Final = 100_000
# Hosts in the records of one request, and hosts and end offsets in one page of topics: even with
# the longest names they stay below what a batch of the log, and an answer, can hold.
REQUEST_HOSTS: Final = 100_000
PAGE_ITEMS: Final = 10_000

# Changes and topics that an event tells; a request may bring thousands.
NAMED_MAX: Final = 10

_OK = ErrorCode.NONE.value
_UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
_FULL = ErrorCode.STORAGE_FULL.value
_INVALID = ErrorCode.INVALID_REQUEST.value

_Refusal = tuple[ErrorCode, str]


class RegistryShard:
    """The same shape as `GroupShard` for whoever runs it: `replay`, `loaded`, then the rest.

    Attributes:
        sample_ends: See `lag.sample_ends`.
        topic_facts: See `facts.topic_end_facts`.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.sample_ends = partial(lag.sample_ends, registry)
        self.topic_facts = partial(facts.topic_end_facts, registry)
        self.storage_full = False
        self._changes: list[TopicChange] = []
        self._end_offset = 0
        self._latest: Outcome | None = None  # The decision in the making, see `interrupted`.
        self._handlers: dict[type, Any] = {
            RegisterTopicsRequest: self._register_topics,
            DeleteTopicsRequest: self._delete_topics,
            ReportEndOffsetsRequest: self._report_end_offsets,
        }

    # --- life -------------------------------------------------------------------------------

    def replay(self, record: TopicRecord) -> None:
        """Apply one record of the log; must not be called once `loaded` was."""
        self.registry.replay(record)

    def loaded(self, now: Now) -> list[Outcome]:  # noqa: ARG002  the shape of a shard
        """Start to serve; deletions that were not finished are changes once more."""
        self.registry.fold_changes()
        self._changes = [c for c in self.registry.changes_since(0) if not c.after]
        return []

    def finish_load(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
        """Do the same, in the form of a shard of groups."""
        yield self.loaded(now())

    def unload(self, now: Now) -> list[Outcome]:  # noqa: ARG002  as above
        """Stop serving and forget everything."""
        self.registry.reset()
        self._changes = []
        return []

    def hard_state(self) -> HardRegistry:
        """Return what a crash would leave."""
        return self.registry.hard_state()

    def next_deadline_ms(self) -> int | None:
        """Return None: nothing here waits for the time."""
        return None

    def shift_deadlines(self, by_ms: int) -> None:
        """Do nothing, as there are no deadlines."""

    def expire(self, now: Now) -> list[Outcome]:  # noqa: ARG002  as above
        """Return nothing, as there are no deadlines."""
        return []

    def released(self, member: object, now: Now) -> None:
        """Do nothing: no reply of this shard belongs to a member."""

    def kept(self, group_id: str, end_offset: int) -> None:  # noqa: ARG002  as above
        """Note that what was decided is in the log, up to *end_offset*."""
        self._end_offset = end_offset

    def end_offset(self, group_id: str) -> int:  # noqa: ARG002  as above
        """Return the end offset of the last entry: what is known waits for that."""
        return self._end_offset

    def withdraw(self, token: object, now: Now) -> Outcome | None:  # noqa: ARG002  as above
        """Return None: no request is ever parked here."""
        return None

    def interrupted(self) -> Outcome | None:
        """Return what a `handle` or `forget` that raised had decided, if it had begun."""
        return self._latest

    def take_changes(self) -> list[TopicChange]:
        """Return what the shards of groups must be told, oldest first, and forget it."""
        changes, self._changes = self._changes, []
        return changes

    # --- deciding ---------------------------------------------------------------------------

    def handle(self, request: Request, token: object, caller: Caller, now: Now) -> Outcome:  # noqa: ARG002  as above
        """Decide one request; its reply is gated.

        Raises:
            KeyError: The request is none of RegisterTopics, DeleteTopics, ReportEndOffsets.
        """
        self._latest = None
        handler = self._handlers[type(request)]
        self._latest = outcome = Outcome("")
        response: Response = handler(request, outcome, now)
        outcome.replies.append((token, response, None, True, None))
        return outcome

    def forget(self, purged: Iterable[str]) -> Outcome:
        """Forget deleted topics that no group has offsets of any more."""
        self._latest = outcome = Outcome("")
        forgotten = []
        for topic in purged:
            known = self.registry.topics.get(topic)
            if known is not None and known.is_deleted:
                self._emit(outcome, TopicForgotten(topic))
                forgotten.append(topic)
        if forgotten:
            fields = {"count": len(forgotten), "topics": forgotten[:NAMED_MAX]}
            outcome.events.append(Event("topics.forgotten", fields))
        return outcome

    def _emit(self, outcome: Outcome, record: TopicRecord) -> None:
        records: list[Any] = outcome.records  # Those of groups are of another type.
        records.append(record)
        change = self.registry.replay(record)
        if change is not None:
            self._changes.append(change)

    def _end_version(self, outcome: Outcome, version: int, last_deletion_version: int) -> None:
        before = self.registry.version
        if version == before:
            return
        self._emit(outcome, RegistryChanged(version, last_deletion_version))
        changes = [str(change) for change in islice(self.registry.changes_since(before), NAMED_MAX)]
        fields = {"version": version, "count": version - before, "changes": changes}
        outcome.events.append(Event("topics.changed", fields))

    def _register_topics(
        self, request: RegisterTopicsRequest, outcome: Outcome, _now: Now
    ) -> RegisterTopicsResponse:
        registry = self.registry
        version = registry.version
        room = REQUEST_HOSTS
        results = []
        for told in request.topics:
            known = registry.topics.get(told.topic)
            asked = _at_least(told, known) if request.is_observed else told
            record, refusal = self._registration(
                asked, known, version + 1, room, is_observed=request.is_observed
            )
            if record is not None:
                self._emit(outcome, record)
                version = max(version, record.version)
                room -= _host_count(record.hosts)
            count = -1 if known is None else known.partition_count
            if refusal is None:
                done = RegisteredTopic(asked.topic, _OK, None, asked.partition_count)
            else:
                done = RegisteredTopic(asked.topic, refusal[0].value, refusal[1], count)
            results.append(done)
        self._end_version(outcome, version, registry.last_deletion_version)
        return RegisterTopicsResponse(_OK, tuple(results))

    def _registration(
        self,
        asked: TopicRegistration,
        known: Topic | None,
        version: int,
        room: int,
        *,
        is_observed: bool,
    ) -> tuple[TopicRegistered | None, _Refusal | None]:
        """Return the record that fulfils *asked* (None: it is so already), or why not."""
        problem = _registration_problem(asked, known)
        if problem is not None:
            return None, problem
        count = asked.partition_count
        hosts = (() if known is None else known.hosts) if asked.hosts is None else asked.hosts
        hosts = tuple(sorted((h for h in hosts if h.hosts), key=lambda h: h.partition))
        is_observed = is_observed and (known is None or known.is_observed)
        if (
            known is not None
            and known.partition_count == count
            and known.hosts == hosts
            and known.is_observed == is_observed
        ):
            return None, None
        if self.storage_full:
            return None, (ErrorCode.STORAGE_FULL, "the disk is nearly full")
        refusal = self._over_total(asked, known, hosts)
        if refusal is not None:
            return None, (ErrorCode.QUOTA_EXCEEDED, refusal)
        if _host_count(hosts) > room:
            return None, (ErrorCode.QUOTA_EXCEEDED, "too many hosts in one request: ask for less")
        grows = known is None or count > known.partition_count
        made_at = version if grows or known is None else known.version
        return TopicRegistered(asked.topic, count, hosts, False, made_at, is_observed), None

    def _over_total(
        self, asked: TopicRegistration, known: Topic | None, hosts: tuple[PartitionHosts, ...]
    ) -> str | None:
        """Return which total of the node would be passed, in words."""
        totals = self.registry.totals
        partitions = asked.partition_count - (0 if known is None else known.partition_count)
        names_bytes = host_bytes(hosts) - (0 if known is None else host_bytes(known.hosts))
        more = {
            "topics": known is None,
            "topic_partitions": partitions,
            "topic_host_bytes": names_bytes,
        }
        refusals = (totals.refusal(name, count) for name, count in more.items() if count > 0)
        return next((text for text in refusals if text is not None), None)

    def _delete_topics(
        self, request: DeleteTopicsRequest, outcome: Outcome, _now: Now
    ) -> DeleteTopicsResponse:
        registry = self.registry
        version = registry.version
        results = []
        for name in dict.fromkeys(request.topics):
            known = registry.topics.get(name)
            if known is None or known.is_deleted:
                results.append(DeletedTopic(name, _UNKNOWN_TOPIC))
                continue
            version += 1
            self._emit(outcome, TopicRegistered(name, known.partition_count, (), True, version))
            results.append(DeletedTopic(name, _OK))
        self._end_version(outcome, version, version)
        return DeleteTopicsResponse(_OK, tuple(results))

    def _report_end_offsets(
        self, request: ReportEndOffsetsRequest, outcome: Outcome, now: Now
    ) -> ReportEndOffsetsResponse:
        registry = self.registry
        history = registry.ends_history
        results = []
        for ends in request.topics:
            topic = ends.topic
            count = registry.partition_count(topic)
            checked = []
            for end in ends.partitions:
                partition, end_offset = end.partition, end.end_offset
                error = _OK
                before = registry.end_offset(topic, partition)
                if partition >= count:
                    error = _UNKNOWN_TOPIC
                elif before is not None and before.end_offset == end_offset:
                    history.told(topic, before, before, now.mono_ms, now.wall_ms)
                elif self.storage_full:
                    error = _FULL
                else:
                    record = EndReported(topic, partition, end_offset, now.wall_ms)
                    self._emit(outcome, record)
                    history.told(
                        topic, registry.ends[topic][partition], before, now.mono_ms, now.wall_ms
                    )
                checked.append(PartitionResult(partition, error))
            results.append(TopicResult(topic, tuple(checked)))
        return ReportEndOffsetsResponse(_OK, tuple(results))

    # --- looking ----------------------------------------------------------------------------

    def describe(self, request: DescribeTopicsRequest) -> DescribeTopicsResponse:
        """Return topics by list, by pattern, or all, the latter two by page."""
        if request.topics is not None:
            described = [
                self._described(name, request.with_end_offsets)
                for name in dict.fromkeys(request.topics)
            ]
            return DescribeTopicsResponse(_OK, None, tuple(described), has_more=False)
        if not request.max_topics:
            return DescribeTopicsResponse(_INVALID, "max_topics is 0", (), has_more=False)
        if request.pattern is None:
            names = self.registry.names()
        else:
            try:
                names = self.registry.matching(request.pattern)
            except InvalidPattern as exc:
                error = ErrorCode.INVALID_REGULAR_EXPRESSION.value
                message = f"pattern {request.pattern!r}: {exc}"
                return DescribeTopicsResponse(error, message, (), has_more=False)
        return self._page(names, request)

    def _page(self, names: list[str], request: DescribeTopicsRequest) -> DescribeTopicsResponse:
        at = bisect.bisect_right(names, request.start_after) if request.start_after else 0
        end = min(at + request.max_topics, len(names))
        topics = []
        items = 0
        while at < end and items < PAGE_ITEMS:
            topic = self._described(names[at], request.with_end_offsets)
            items += 1 + _host_count(topic.hosts) + len(topic.end_offsets)
            topics.append(topic)
            at += 1
        return DescribeTopicsResponse(_OK, None, tuple(topics), has_more=at < len(names))

    def _described(self, name: str, with_end_offsets: bool) -> DescribedTopic:
        known = self.registry.topics.get(name)
        if known is None or known.is_deleted:
            return DescribedTopic(name, _UNKNOWN_TOPIC, -1, (), ())
        ends = self.registry.ends.get(name, {}) if with_end_offsets else {}
        by_partition = tuple(ends[partition] for partition in sorted(ends))
        return DescribedTopic(name, _OK, known.partition_count, known.hosts, by_partition)


def _at_least(told: TopicRegistration, known: Topic | None) -> TopicRegistration:
    """Return what a consumer told of a topic: nothing that is known gets smaller by it."""
    if known is None or not 0 < told.partition_count < known.partition_count:
        return told
    return structs.replace(told, partition_count=known.partition_count)


def _registration_problem(asked: TopicRegistration, known: Topic | None) -> _Refusal | None:
    count = asked.partition_count
    if known is not None and known.is_deleted:
        message = "the topic was deleted, and its offsets are still being removed"
        return ErrorCode.COORDINATOR_NOT_AVAILABLE, message
    if not count:
        return ErrorCode.INVALID_REQUEST, "a topic has at least one partition"
    if count > PARTITIONS_MAX:
        message = f"{count} partitions are over the limit of {PARTITIONS_MAX}"
        return ErrorCode.QUOTA_EXCEEDED, message
    if known is not None and count < known.partition_count:
        message = f"the topic has {known.partition_count} partitions and can't shrink to {count}"
        return ErrorCode.INVALID_PARTITIONS, message
    named = [item.partition for item in asked.hosts or ()]
    if len(frozenset(named)) != len(named):
        return ErrorCode.INVALID_REQUEST, "the hosts name one partition twice"
    if named and max(named) >= count:
        message = f"the hosts name partition {max(named)} of a topic with {count}"
        return ErrorCode.INVALID_REQUEST, message
    return None


def _host_count(hosts: tuple[PartitionHosts, ...]) -> int:
    return sum(1 + len(item.hosts) for item in hosts)
