"""Requests about topics: the decisions of the registry.

Effects on groups are decided elsewhere: `take_changes` returns the changes for the group shards
(see `maintenance`). A deleted topic is forgotten (`forget`) once every shard has removed its
offsets.
"""

import bisect
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import islice, takewhile
from typing import Any, Final

from msgspec import Raw, structs

from coordinator.group.core import Handlers, Step
from coordinator.group.end_sources import ADVICE, EndSources
from coordinator.group.lag import STEP_LOOKS, numbers_in_order
from coordinator.group.registry import (
    EndReported,
    EndsRepeated,
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
from protocol.codec import PackedArray, encode
from protocol.errors import ErrorCode
from protocol.messages import (
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribedTopic,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    EndOffset,
    PartitionHosts,
    PartitionResult,
    RegisteredTopic,
    RegisterTopicsRequest,
    RegisterTopicsResponse,
    ReportEndOffsetsRequest,
    ReportEndOffsetsResponse,
    TopicRegistration,
    TopicResult,
)

PARTITIONS_MAX: Final = 100_000
# Maximum hosts in the records of one request, and maximum hosts and end offsets in one page of
# topics. Even with the longest names they fit a batch of the log and an answer.
REQUEST_HOSTS: Final = 100_000
PAGE_ITEMS: Final = 10_000

# Maximum number of changes and topics named in an event; a request may contain thousands.
NAMED_MAX: Final = 10

_OK = ErrorCode.NONE.value
_UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
_FULL = ErrorCode.STORAGE_FULL.value
_INVALID = ErrorCode.INVALID_REQUEST.value

_Refusal = tuple[ErrorCode, str]


class Topics:
    """Handlers of requests about topics, and the resulting changes.

    Attributes:
        registry: All topics.
        handlers: The handler of each request type.
        hard_state: See `Registry.hard_state`.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.hard_state = registry.hard_state
        self.handlers: Handlers = {
            RegisterTopicsRequest: self._register_topics,
            DeleteTopicsRequest: self._delete_topics,
            ReportEndOffsetsRequest: self._report_end_offsets,
        }
        self._is_loaded = False
        self._sources = EndSources()
        self._changes: list[TopicChange] = []
        # Versions decided by this node, each with the end offset of its batch in the log.
        self._appended: deque[tuple[int, int]] = deque()

    def replay(self, record: TopicRecord) -> None:
        """Apply one record of the log; once loaded, records come from another node."""
        change = self.registry.replay(record)
        if change is not None and self._is_loaded:
            self._changes.append(change)

    def loaded(self) -> None:
        """Start to serve; unfinished deletions become changes once more."""
        self._is_loaded = True
        self.registry.fold_changes()
        deleted = {one.version for one in self.registry.topics.values() if one.is_deleted}
        self._changes = [c for c in self.registry.changes_since(0) if c.version in deleted]

    def reset(self) -> None:
        self.registry.reset()
        self._is_loaded = False
        self._sources = EndSources()
        self._changes = []
        self._appended.clear()

    def kept(self, end_offset: int) -> None:
        """Note that the decisions so far are in the log, up to *end_offset*."""
        self._appended.append((self.registry.version, end_offset))

    def take_changes(self, durable_offset: int) -> list[TopicChange]:
        """Return and remove the changes that the group shards must apply.

        Only changes that are durable, up to *durable_offset*, are returned: otherwise the reaction
        of groups could reach their logs while the change itself is lost.
        """
        registry, appended = self.registry, self._appended
        while appended and appended[0][1] <= durable_offset:
            registry.durable_version, _ = appended.popleft()
        if not appended:  # All changes came from the log: another node decided them.
            registry.durable_version = registry.version
        version = registry.durable_version
        changes = list(takewhile(lambda change: change.version <= version, self._changes))
        del self._changes[: len(changes)]
        return changes

    # --- deciding ---------------------------------------------------------------------------

    def forget(self, purged: Iterable[str], step: Step) -> None:
        """Forget deleted topics without any remaining offsets of groups."""
        forgotten = []
        for topic in purged:
            known = self.registry.topics.get(topic)
            if known is not None and known.is_deleted:
                self._emit(step, TopicForgotten(topic))
                forgotten.append(topic)
        if forgotten:
            step.event("topics.forgotten", count=len(forgotten), topics=forgotten[:NAMED_MAX])

    def _emit(self, step: Step, record: TopicRecord) -> None:
        step.outcome.records.append(record)
        self.registry.now_ms = (step.now.mono_ms, step.now.wall_ms)
        change = self.registry.replay(record)
        if change is not None:
            self._changes.append(change)

    def _end_version(self, step: Step, version: int, last_deletion_version: int) -> None:
        before = self.registry.version
        if version == before:
            return
        self._emit(step, RegistryChanged(version, last_deletion_version))
        changes = [str(change) for change in islice(self.registry.changes_since(before), NAMED_MAX)]
        step.event("topics.changed", version=version, count=version - before, changes=changes)

    def _register_topics(
        self, request: RegisterTopicsRequest, step: Step
    ) -> RegisterTopicsResponse:
        registry = self.registry
        version = registry.version
        room = REQUEST_HOSTS
        results = []
        for told in request.topics:
            known = registry.topics.get(told.topic)
            asked = _at_least(told, known) if request.is_observed else told
            record, refusal = self._registration(
                asked,
                known,
                version + 1,
                room,
                step,
                is_observed=request.is_observed,
            )
            if record is not None:
                self._emit(step, record)
                version = max(version, record.version)
                room -= _host_count(record.hosts)
            count = -1 if known is None else known.partition_count
            if refusal is None:
                done = RegisteredTopic(asked.topic, _OK, None, asked.partition_count)
            else:
                done = RegisteredTopic(asked.topic, refusal[0].value, refusal[1], count)
            results.append(done)
        self._end_version(step, version, registry.last_deletion_version)
        return RegisterTopicsResponse(_OK, tuple(results))

    def _registration(
        self,
        asked: TopicRegistration,
        known: Topic | None,
        version: int,
        room: int,
        step: Step,
        *,
        is_observed: bool,
    ) -> tuple[TopicRegistered | None, _Refusal | None]:
        """Return the record that *asked* needs (None: nothing changes), or the refusal."""
        problem = _registration_problem(asked, known)
        if problem is not None:
            return None, problem
        count = asked.partition_count
        hosts = (() if known is None else known.hosts) if asked.hosts is None else asked.hosts
        hosts = tuple(sorted((h for h in hosts if h.hosts), key=lambda h: h.partition))
        owner = step.caller.owner
        if known is not None and (is_observed or not known.is_observed):
            owner = known.owner or owner
        is_observed = is_observed and (known is None or known.is_observed)
        if (
            known is not None
            and known.partition_count == count
            and known.hosts == hosts
            and known.is_observed == is_observed
        ):
            return None, None
        if step.storage_full:
            return None, (ErrorCode.STORAGE_FULL, "the disk is nearly full")
        refusal = self._over_total(asked, known, hosts, owner)
        if refusal is not None:
            return None, (ErrorCode.QUOTA_EXCEEDED, refusal)
        if _host_count(hosts) > room:
            return None, (ErrorCode.QUOTA_EXCEEDED, "too many hosts in one request: ask for less")
        grows = known is None or count > known.partition_count
        made_at = version if grows or known is None else known.version
        return TopicRegistered(asked.topic, count, hosts, False, made_at, is_observed, owner), None

    def _over_total(
        self,
        asked: TopicRegistration,
        known: Topic | None,
        hosts: tuple[PartitionHosts, ...],
        owner: str | None,
    ) -> str | None:
        """Return in words which total of the node, or quota of the owner, would be exceeded."""
        wanted = {
            "topics": 1,
            "topic_partitions": asked.partition_count,
            "topic_host_bytes": host_bytes(hosts),
        }
        more = dict(wanted)
        if known is not None:
            more["topics"] = 0
            more["topic_partitions"] -= known.partition_count
            more["topic_host_bytes"] -= host_bytes(known.hosts)
        is_handed_over = known is not None and known.owner != owner
        own = wanted if is_handed_over else more
        totals = self.registry.totals
        share = totals.share(owner)
        refusals = (
            *(share.own_refusal(name, count) for name, count in own.items() if count > 0),
            *(totals.refusal(name, count) for name, count in more.items() if count > 0),
        )
        return next((text for text in refusals if text is not None), None)

    def _delete_topics(self, request: DeleteTopicsRequest, step: Step) -> DeleteTopicsResponse:
        registry = self.registry
        version = registry.version
        results = []
        for name in dict.fromkeys(request.topics):
            known = registry.topics.get(name)
            if known is None or known.is_deleted:
                results.append(DeletedTopic(name, _UNKNOWN_TOPIC))
                continue
            version += 1
            deleted = known.record(name)._replace(
                hosts=(), is_deleted=True, version=version, is_observed=False
            )
            self._emit(step, deleted)
            self._sources.forget(name)
            results.append(DeletedTopic(name, _OK))
        self._end_version(step, version, version)
        return DeleteTopicsResponse(_OK, tuple(results))

    def _report_end_offsets(
        self, request: ReportEndOffsetsRequest, step: Step
    ) -> ReportEndOffsetsResponse:
        registry = self.registry
        history, now = registry.ends_history, step.now
        results = []
        for ends in request.topics:
            topic = ends.topic
            count = registry.partition_count(topic)
            checked = []
            is_repeated = False
            for end in ends.partitions:
                partition, end_offset = end.partition, end.end_offset
                error = _OK
                before = registry.end_offset(topic, partition)
                if partition >= count:
                    error = _UNKNOWN_TOPIC
                elif before is not None and before.end_offset == end_offset:
                    history.repeated(topic, partition, end_offset, now.mono_ms, now.wall_ms)
                    is_repeated = True
                elif step.storage_full:
                    error = _FULL
                else:
                    self._emit(step, EndReported(topic, partition, end_offset, now.wall_ms))
                    if before is not None:
                        self._compare(step, topic, before, end_offset)
                checked.append(PartitionResult(partition, error))
            if is_repeated and registry.logs_repeats and not step.storage_full:
                repeats = history.of(topic).repeats_to_log(now.mono_ms)
                if repeats:
                    self._emit(step, EndsRepeated(topic, tuple(repeats), tuple(repeats.values())))
            results.append(TopicResult(topic, tuple(checked)))
        return ReportEndOffsetsResponse(_OK, tuple(results))

    def _compare(self, step: Step, topic: str, before: EndOffset, end: int) -> None:
        """Emit an event if two clients report end offsets of different sources."""
        caller = step.caller
        found = self._sources.changed(
            topic, before.partition, before.end_offset, end, caller, step.now.mono_ms
        )
        if found is not None:
            step.event(
                "topics.ends_disagree",
                topic=topic,
                partition=before.partition,
                end=end,
                client_id=found.low.client_id,
                client_host=found.low.client_host,
                other_end=found.high_end,
                other_client_id=found.high.client_id,
                other_client_host=found.high.client_host,
                advice=ADVICE,
            )

    # --- reading ----------------------------------------------------------------------------

    def length(self, request: DescribeTopicsRequest) -> int:
        """Return the number of topics and ends that `describe` reads; for a page the maximum."""
        if request.topics is None:
            return PAGE_ITEMS
        return sum([1 + len(self._ends(request, name)) for name in request.topics])

    def describe(
        self, request: DescribeTopicsRequest, sees: Callable[[str], bool], max_bytes: int
    ) -> Generator[None, None, DescribeTopicsResponse | None]:
        """Return topics by list, by pattern, or all, packed, in steps; None: over *max_bytes*.

        Topics by pattern and all topics come in pages, without those that *sees* rejects; no name
        is empty.
        """
        if request.topics is not None:
            topics = _Described(max_bytes)
            for name in dict.fromkeys(request.topics):
                known = self.registry.topics.get(name)
                yield from topics.add(name, known, self._ends(request, name), self._told_ms(name))
                if topics.are_too_large:
                    break
            return topics.answer(has_more=False)
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
        at = bisect.bisect_right(names, request.start_after) if request.start_after else 0
        return (yield from self._page(names[at:], request, sees, _Described(max_bytes)))

    def _page(
        self,
        names: list[str],
        request: DescribeTopicsRequest,
        sees: Callable[[str], bool],
        topics: "_Described",
    ) -> Generator[None, None, DescribeTopicsResponse | None]:
        items = 0
        for name in names:
            known = self.registry.topics.get(name)
            if known is None or known.is_deleted or not sees(name):  # Deleted since the page began.
                yield
                continue
            if len(topics) == request.max_topics or items >= PAGE_ITEMS:
                return topics.answer(has_more=True)
            ends = self._ends(request, name)
            items += 1 + _host_count(known.hosts) + len(ends)
            yield from topics.add(name, known, ends, self._told_ms(name))
            if topics.are_too_large:
                break
        return topics.answer(has_more=False)

    def _ends(self, request: DescribeTopicsRequest, name: str) -> Mapping[int, EndOffset]:
        return self.registry.ends.get(name, {}) if request.with_end_offsets else {}

    def _told_ms(self, name: str) -> Callable[[EndOffset], int]:
        return self.registry.ends_history.of(name).told_ms


class _Described:
    """Topics for an answer, each packed when it is added."""

    def __init__(self, max_bytes: int) -> None:
        self._left_bytes = max_bytes
        self._topics: list[Any] = []

    def __len__(self) -> int:
        return len(self._topics)

    @property
    def are_too_large(self) -> bool:
        """Whether they exceed the size of an answer."""
        return self._left_bytes < 0

    def add(
        self,
        name: str,
        known: Topic | None,
        ends: Mapping[int, EndOffset],
        told_ms: Callable[[EndOffset], int],
    ) -> Generator[None, None, None]:
        """Add a topic in its current state; *told_ms* returns when an end was last reported."""
        if known is None or known.is_deleted:
            packed = encode(DescribedTopic(name, _UNKNOWN_TOPIC, -1, (), ()))
        else:
            ends = dict(ends)
            by_partition = yield from numbers_in_order(ends)
            array = PackedArray()
            for at in range(0, len(by_partition), STEP_LOOKS):
                some = [ends[partition] for partition in by_partition[at : at + STEP_LOOKS]]
                told = [EndOffset(end.partition, end.end_offset, told_ms(end)) for end in some]
                array.extend(tuple(told))
                yield
            described = (name, _OK, known.partition_count, known.hosts, array.whole())
            packed = encode(DescribedTopic(*described))
        self._topics.append(Raw(packed))
        self._left_bytes -= len(packed)
        yield

    def answer(self, *, has_more: bool) -> DescribeTopicsResponse | None:
        """Return the answer with all topics, None if they are too large."""
        if self.are_too_large:
            return None
        return DescribeTopicsResponse(_OK, None, tuple(self._topics), has_more=has_more)


def _at_least(told: TopicRegistration, known: Topic | None) -> TopicRegistration:
    """Return a consumer's report of a topic, with at least the known number of partitions."""
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
