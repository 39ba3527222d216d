"""Which topics there are: their records in the log, what groups ask, and what a crash leaves.

Every structural change (a new topic, one that grew, one that is deleted) raises the version.
So "what changed since my assignment was made?" is one comparison for nearly every group that
asks, and a walk over the newer changes for the rest.

A topic is the scope of its log entries, so that forgetting it is one entry. What belongs to no
topic lies in the scope "".
"""

import bisect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import re2
from msgspec import structs

from coordinator.group.ends_history import EndsHistory
from coordinator.group.records import GROUP_DELETED, RECORD_VERSION, EntryFields, Reader, Writer
from coordinator.group.totals import LogSize, Totals, utf8_bytes
from protocol.messages import EndOffset, PartitionHosts
from protocol.partition import INT32_MAX

TOPIC: Final = 1010
TOPIC_END: Final = 1011
REGISTRY: Final = 1012
ENDS_REPEATED: Final = 1013
# The tombstone of a scope, as for groups: everything of the topic that is older is gone.
TOPIC_FORGOTTEN: Final = GROUP_DELETED

# Only a topic that bounds no commits is written so: what older code can read, it still can.
OBSERVED_VERSION: Final = 1
# Likewise only what belongs to somebody who said who he is.
OWNED_VERSION: Final = 2

# Matching a pattern against 100,000 topics takes long, so what matched is kept for the patterns
# that were used last: at most so many, and so many names in all of them.
PATTERNS_KEPT: Final = 4_096
NAMES_KEPT: Final = 1_000_000
# Of one compiled pattern. RE2's time is linear in the length of the name, but also in the number of
# instructions that the pattern compiles to, if it needs more states than this memory holds: then a
# name of 249 bytes may take a microsecond for each of them.
PATTERN_MEMORY_BYTES: Final = 1024 * 1024
PATTERN_INSTRUCTIONS_MAX: Final = 1_000
# A list of names, which is as long as it likes: RE2 is in few states at a time.
_LIST_OF_NAMES: Final = re.compile(r"(?:[^*+?{}()\[\]\\]|\\[.|-])*")
# The least that matching a name takes.
_MATCH_US: Final = 4
# Changes beyond twice the number of topics and this are folded to one per topic.
CHANGES_SLACK: Final = 1_000

UNKNOWN_COUNT: Final = -1


class TopicRegistered(NamedTuple):
    """A topic as it is from here on."""

    topic: str
    partition_count: int
    hosts: tuple[PartitionHosts, ...]  # By partition.
    is_deleted: bool  # Nobody sees it any more, but offsets of it may still be there.
    version: int  # Of the registry, when the topic's structure last changed.
    # Only consumers have told of it. They may not know all of it, so it bounds no commits.
    is_observed: bool = False
    owner: str | None = None  # None: the anonymous principal.


class EndReported(NamedTuple):
    """How far one partition reaches."""

    topic: str
    partition: int
    end_offset: int
    reported_ms: int


class EndsRepeated(NamedTuple):
    """Some partitions of a topic were reported again, and reach as far as before.

    In the log one wide entry stands for all of them.
    """

    topic: str
    partitions: tuple[int, ...]
    reported_ms: tuple[int, ...]  # Of each.


class RegistryChanged(NamedTuple):
    """The registry as a whole."""

    version: int
    last_deletion_version: int  # The version that the latest deletion of a topic made.


class TopicForgotten(NamedTuple):
    """The topic, and everything that was known of it, is gone."""

    topic: str


TopicRecord = TopicRegistered | EndReported | EndsRepeated | RegistryChanged | TopicForgotten


class TopicChange(NamedTuple):
    """One structural change, as groups are told of it."""

    version: int  # Of the registry, which the change made.
    topic: str
    before: int  # Partitions; 0 if it was new, UNKNOWN_COUNT if that isn't known any more.
    after: int  # 0: it was deleted.

    def __str__(self) -> str:
        """Say it in words."""
        if not self.after:
            return f"topic {self.topic} was deleted"
        if self.before == UNKNOWN_COUNT:
            return f"topic {self.topic} has {self.after} partitions now"
        if not self.before:
            return f"topic {self.topic} is new, with {self.after} partitions"
        if self.after <= self.before:
            return f"topic {self.topic} was deleted and made anew, with {self.after} partitions"
        return f"topic {self.topic} grew from {self.before} to {self.after}"


class Topic:
    """One topic.

    Attributes:
        open_partitions: How many partitions it has, 0 once it is deleted.
        commit_bound: Commits are for partitions below it.
    """

    __slots__ = (
        "commit_bound",
        "hosts",
        "is_deleted",
        "is_observed",
        "open_partitions",
        "owner",
        "partition_count",
        "version",
    )

    def __init__(self, record: TopicRegistered) -> None:
        self.partition_count = record.partition_count
        self.hosts: tuple[PartitionHosts, ...] = record.hosts
        self.is_deleted = record.is_deleted
        self.version = record.version
        self.is_observed = record.is_observed
        self.owner = record.owner
        self.open_partitions = 0 if record.is_deleted else record.partition_count
        is_open = record.is_observed and not record.is_deleted
        self.commit_bound = INT32_MAX + 1 if is_open else self.open_partitions

    def record(self, name: str) -> TopicRegistered:
        """Return the record that leaves it as it is."""
        return TopicRegistered(
            name,
            self.partition_count,
            self.hosts,
            self.is_deleted,
            self.version,
            self.is_observed,
            self.owner,
        )


def host_bytes(hosts: Iterable[PartitionHosts]) -> int:
    """Return how long the names in *hosts* are, all together."""
    return sum([len(name) for item in hosts for name in item.hosts])


def _log_bytes(name: str, topic: Topic) -> int:
    """Return what *topic* takes in the log once all of its ends are known."""
    ends_bytes = topic.partition_count * (LogSize.PARTITION + len(name))
    return LogSize.TOPIC + utf8_bytes([name]) + host_bytes(topic.hosts) + ends_bytes


class HardRegistry(NamedTuple):
    """What a crash leaves of the registry."""

    version: int
    last_deletion_version: int
    topics: tuple[TopicRegistered, ...]  # By name.
    ends: tuple[EndReported, ...]  # By topic and partition.


class InvalidPattern(ValueError):
    """The pattern is no regular expression of RE2's syntax, or compiles to too much."""


class _Matches:
    """The topics that match one pattern, up to a version."""

    __slots__ = ("cost_us", "names", "version")

    def __init__(self, size: int) -> None:
        # Of one name, at most: what was measured of the worst patterns of that size. A list of
        # names may be larger than it is costly.
        size = min(size, PATTERN_INSTRUCTIONS_MAX)
        self.cost_us = _MATCH_US + size * size // 500
        self.names: list[str] = []
        self.version = 0

    def __contains__(self, topic: str) -> bool:
        at = bisect.bisect_left(self.names, topic)
        return at < len(self.names) and self.names[at] == topic


@lru_cache(maxsize=128)  # Each with its memory.
def _compiled(pattern: str) -> Any:
    """Return the compiled *pattern*.

    Raises:
        InvalidPattern: It is no regular expression, or too large a one.
    """
    options = re2.Options()
    options.max_mem = PATTERN_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        regex = re2.compile(pattern, options)
    except re2.error as exc:
        reason = exc.args[0] if exc.args else ""
        text = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        raise InvalidPattern(text) from exc
    size = regex.programsize
    if size > PATTERN_INSTRUCTIONS_MAX and not _LIST_OF_NAMES.fullmatch(pattern):
        text = f"it compiles to {size} instructions, and {PATTERN_INSTRUCTIONS_MAX} is the most"
        raise InvalidPattern(text)
    return regex


def _does_match(regex: Any, name: str) -> bool:
    # As bytes: the wrapper maps the offsets of a str's match back, which nobody wants.
    return regex.fullmatch(name.encode()) is not None


class Registry:
    """All topics. Groups only read it; `replay` alone changes what is hard.

    Attributes:
        version: Of what is in memory.
        now_ms: When what comes is replayed, monotonic and by the clock of the day.
        logs_repeats: Whether all nodes read `EndsRepeated`.
        durable_version: Up to which version the log has it, as `Topics.take_changes` has heard. No
            group takes note of more: its own log may be another one, and a crash leave that longer.
    """

    def __init__(self, totals: Totals | None = None) -> None:
        """Begin empty; *totals* are of the whole node."""
        self.totals = Totals() if totals is None else totals
        self.now_ms = (0, 0)
        self.logs_repeats = True
        self.topics: dict[str, Topic] = {}  # The deleted ones too, until they are forgotten.
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        for name, topic in self.topics.items():
            self._count(name, topic, -1)
        # Hard: changed by replay alone.
        self.topics = {}
        self.ends: dict[str, dict[int, EndOffset]] = {}
        self.version = 0
        self.last_deletion_version = 0
        # Soft.
        self.durable_version = 0
        self._names: list[str] | None = None  # Of the topics that aren't deleted, sorted.
        self._changes: list[TopicChange] = []  # By version; each topic's latest is there.
        self._by_topic: dict[str, list[TopicChange]] = {}  # The same.
        # Changes up to this version may be missing: the log that was loaded had lost some.
        self._complete_since = 0
        self._seen_version = 0  # Of the latest change that was replayed.
        self._kept: dict[str, _Matches] = {}  # By pattern, the one used last at the end.
        self.ends_history = EndsHistory()

    def replay(self, record: TopicRecord) -> TopicChange | None:
        """Apply one record; return what it means for groups, None if nothing. It can't fail."""
        if type(record) is EndReported:
            end = EndOffset(record.partition, record.end_offset, record.reported_ms)
            # Also of a topic not seen yet: its last record may be behind this one.
            self.ends.setdefault(record.topic, {})[record.partition] = end
            at_ms = self._at_ms(record.reported_ms)
            self.ends_history.told(record.topic, record.partition, record.end_offset, at_ms)
        elif type(record) is EndsRepeated:
            self._repeat(record)
        elif type(record) is TopicRegistered:
            return self._register(record)
        elif type(record) is RegistryChanged:
            self._see(record.version, record.version)
            self.version = record.version
            self.last_deletion_version = record.last_deletion_version
        elif type(record) is TopicForgotten:
            self._count(record.topic, self.topics.pop(record.topic, None), -1)
            self.ends.pop(record.topic, None)
            self.ends_history.forget(record.topic)
            self._names = None
        return None

    def _at_ms(self, reported_ms: int) -> int:
        """Return when something was reported, monotonic, and not later than now."""
        mono_ms, wall_ms = self.now_ms
        return mono_ms - max(wall_ms - reported_ms, 0)

    def _repeat(self, record: EndsRepeated) -> None:
        topic, ends, history = record.topic, self.ends.get(record.topic, {}), self.ends_history
        for partition, reported_ms in zip(record.partitions, record.reported_ms, strict=True):
            end = ends.get(partition)
            if end is None:
                continue  # A compaction has dropped it, and what it became follows.
            ends[partition] = EndOffset(partition, end.end_offset, reported_ms)
            history.told(topic, partition, end.end_offset, self._at_ms(reported_ms))
        if ends:
            history.logged(topic, self._at_ms(max(record.reported_ms)))

    def _register(self, record: TopicRegistered) -> TopicChange | None:
        before = self.topics.get(record.topic)
        self.topics[record.topic] = topic = Topic(record)
        self._count(record.topic, before, -1)
        self._count(record.topic, topic, 1)
        if before is not None and before.version == topic.version:
            return None
        if before is None or topic.is_deleted:
            self._names = None
        self._see(topic.version, topic.version - 1)
        count = 0 if before is None else before.partition_count
        change = TopicChange(topic.version, record.topic, count, topic.open_partitions)
        self._changes.append(change)
        self._by_topic.setdefault(record.topic, []).append(change)
        if len(self._changes) > 2 * len(self.topics) + CHANGES_SLACK:
            self._complete_since = self._seen_version
            self.fold_changes()
        return change

    def _see(self, version: int, before: int) -> None:
        """Note a change; unless it is the next one, changes up to the version *before* it are lost.

        Versions have no gaps, but for what a compaction has dropped: a follower has seen them all.
        """
        if version > self._seen_version:
            if before > self._seen_version:
                self._complete_since = before
            self._seen_version = version

    def _count(self, name: str, topic: Topic | None, by: int) -> None:
        if topic is None:
            return
        share = self.totals.share(topic.owner)
        share.count("topics", by)
        share.count("topic_partitions", by * topic.partition_count)
        share.count("topic_host_bytes", by * host_bytes(topic.hosts))
        share.count_log(by * _log_bytes(name, topic))

    def fold_changes(self) -> None:
        """Where changes may be missing, keep the latest of each topic, without what was before."""
        known = self._complete_since
        folded = sorted(
            TopicChange(topic.version, name, UNKNOWN_COUNT, topic.open_partitions)
            for name, topic in self.topics.items()
            if topic.version <= known
        )
        newer = [change for change in self._changes if change.version > known]
        if known:  # Of a topic that seems to be new, what it was may be among what is missing.
            newer = [c if c.before else c._replace(before=UNKNOWN_COUNT) for c in newer]
        self._changes = folded + newer
        self._by_topic = {}
        for change in self._changes:
            self._by_topic.setdefault(change.topic, []).append(change)
        self._kept.clear()

    def hard_state(self) -> HardRegistry:
        """Return all hard state as a value, to compare with that of a replay."""
        return HardRegistry(
            self.version,
            self.last_deletion_version,
            tuple(topic.record(name) for name, topic in sorted(self.topics.items())),
            tuple(
                EndReported(name, *structs.astuple(ends[partition]))
                for name, ends in sorted(self.ends.items())
                for partition in sorted(ends)
            ),
        )

    # --- what groups ask --------------------------------------------------------------------

    def partition_count(self, topic: str) -> int:
        """Return how many partitions *topic* has, 0 if it isn't registered."""
        known = self.topics.get(topic)
        return 0 if known is None else known.open_partitions

    def ends_of(self, topic: str) -> Mapping[int, EndOffset]:
        """Return how far the partitions of *topic* reach, as far as somebody has said."""
        return self.ends.get(topic, {}) if self.partition_count(topic) else {}

    def end_offset(self, topic: str, partition: int) -> EndOffset | None:
        """Return how far one partition reaches, None if nobody has said."""
        if partition >= self.partition_count(topic):
            return None
        return self.ends.get(topic, {}).get(partition)

    def names(self) -> list[str]:
        """Return the names of all topics, sorted; not to be changed."""
        if self._names is None:
            self._names = sorted(name for name, t in self.topics.items() if t.open_partitions)
        return self._names

    def changes_since(self, version: int) -> Iterator[TopicChange]:
        """Yield the changes after *version*, oldest first."""
        start = bisect.bisect_left(self._changes, (version + 1,))
        for at in range(start, len(self._changes)):
            yield self._changes[at]

    def number_of_changes_since(self, version: int) -> int:
        """Return how many `changes_since` yields."""
        return len(self._changes) - bisect.bisect_left(self._changes, (version + 1,))

    def change_of(self, topic: str, since_version: int) -> TopicChange | None:
        """Return what happened to *topic* after a version, as one change; None if nothing."""
        newer = [c for c in self._by_topic.get(topic, ()) if c.version > since_version]
        return newer[-1]._replace(before=newer[0].before) if newer else None

    def may_be_another(self, topic: str, since_version: int) -> bool:
        """Say whether *topic* may have been deleted after a version, and then made anew."""
        newer = (c for c in self._by_topic.get(topic, ()) if c.version > since_version)
        return self.may_miss_deletions_since(since_version) or any(not c.after for c in newer)

    def may_miss_deletions_since(self, version: int) -> bool:
        """Say whether a topic may have been deleted after *version* that no change tells of."""
        return version < min(self._complete_since, self.last_deletion_version)

    # --- patterns ---------------------------------------------------------------------------

    def pattern_problem(self, pattern: str) -> str | None:
        """Return what is wrong with *pattern*, None if nothing."""
        try:
            _compiled(pattern)
        except InvalidPattern as exc:
            return str(exc)
        return None

    def matches(self, pattern: str, name: str) -> bool:
        """Say whether *pattern* matches the whole of *name*; an invalid one matches nothing."""
        try:
            return _does_match(_compiled(pattern), name)
        except InvalidPattern:
            return False

    def is_matched(self, pattern: str, topic: str) -> bool:
        """Say the same of a topic that is there; nothing is matched if `match` is done."""
        try:
            return topic in self._matched(pattern)
        except InvalidPattern:
            return False

    def matching(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches, sorted; not to be changed.

        Raises:
            InvalidPattern: It is no regular expression, or too large a one.
        """
        return self._matched(pattern).names

    def is_up_to_date(self, pattern: str) -> bool:
        """Say whether `matching` would return at once."""
        found = self._kept.get(pattern)
        return found is not None and found.version == self.version

    def match(self, pattern: str) -> Iterator[int]:
        """Find what `matching` returns, name by name, and keep it.

        It yields how many microseconds each has taken at most, so that whoever has others to serve
        knows when. What is registered meanwhile is looked at last. An invalid pattern matches
        nothing.
        """
        try:
            regex = _compiled(pattern)
        except InvalidPattern:
            return
        found = self._found(pattern, regex)
        while found.version != self.version:
            version = self.version
            if not found.version:
                names = []
                for name in self.names():
                    if _does_match(regex, name):
                        names.append(name)
                    yield found.cost_us
                found.names = names
            else:
                for topic in {change.topic: None for change in self.changes_since(found.version)}:
                    self._look_at(found, regex, topic)
                    yield found.cost_us
            found.version = version
        self._evict()

    def _matched(self, pattern: str) -> _Matches:
        if self.is_up_to_date(pattern):
            found = self._kept[pattern] = self._kept.pop(pattern)
            return found
        found = self._found(pattern, _compiled(pattern))
        for _ in self.match(pattern):
            pass
        return found

    def _found(self, pattern: str, regex: Any) -> _Matches:
        found = self._kept.pop(pattern, None) or _Matches(regex.programsize)
        self._kept[pattern] = found
        if len(self._kept) > PATTERNS_KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def _look_at(self, found: _Matches, regex: Any, topic: str) -> None:
        """Have *topic* among the names if it is there and matches, and not otherwise."""
        at = bisect.bisect_left(found.names, topic)
        is_listed = at < len(found.names) and found.names[at] == topic
        is_wanted = self.partition_count(topic) > 0 and _does_match(regex, topic)
        if is_listed and not is_wanted:
            del found.names[at]
        elif is_wanted and not is_listed:
            found.names.insert(at, topic)

    def _evict(self) -> None:
        total = sum(len(found.names) for found in self._kept.values())
        while total > NAMES_KEPT and len(self._kept) > 1:
            oldest = next(iter(self._kept))
            total -= len(self._kept.pop(oldest).names)


def _write_topic(record: TopicRegistered) -> EntryFields:
    hosts = [(one.partition, one.hosts) for one in record.hosts]
    described = (record.partition_count, hosts, record.is_deleted, record.version)
    if record.owner is not None:
        owned = (*described, record.is_observed, record.owner)
        return TOPIC, OWNED_VERSION, record.topic, (), owned
    if record.is_observed:
        return TOPIC, OBSERVED_VERSION, record.topic, (), (*described, True)
    return TOPIC, RECORD_VERSION, record.topic, (), described


def _write_end(record: EndReported) -> EntryFields:
    value = (record.end_offset, record.reported_ms)
    return TOPIC_END, RECORD_VERSION, record.topic, (record.partition,), value


def _write_repeated(record: EndsRepeated) -> EntryFields:
    times: Any = record.reported_ms
    if times.count(times[0]) == len(times):
        times = times[0]
    return ENDS_REPEATED, RECORD_VERSION, record.topic, (record.partitions,), (times,)


def _read_topic(topic: str, _key: Any, value: Any) -> TopicRecord:
    partition_count, hosts, is_deleted, version, *newer = value
    listed = tuple(PartitionHosts(partition, tuple(names)) for partition, names in hosts)
    return TopicRegistered(topic, partition_count, listed, is_deleted, version, *newer)


def _read_end(topic: str, key: Any, value: Any) -> TopicRecord:
    (partition,) = key
    return EndReported(topic, partition, *value)


def _read_repeated(topic: str, key: Any, value: Any) -> TopicRecord:
    (partitions,), (times,) = key, value
    times = (times,) * len(partitions) if type(times) is int else times
    if len(times) != len(partitions) or not times:
        raise ValueError(f"{len(times)} times of {len(partitions)} partitions")
    return EndsRepeated(topic, tuple(partitions), tuple(times))


WRITERS: Final[Mapping[type, Writer]] = {
    TopicRegistered: _write_topic,
    EndReported: _write_end,
    EndsRepeated: _write_repeated,
    RegistryChanged: lambda record: (REGISTRY, RECORD_VERSION, "", (), tuple(record)),
    TopicForgotten: lambda record: (TOPIC_FORGOTTEN, RECORD_VERSION, record.topic, (), None),
}
READERS: Final[Mapping[int, Reader]] = {
    TOPIC: Reader(_read_topic, OWNED_VERSION),
    TOPIC_END: Reader(_read_end),
    ENDS_REPEATED: Reader(_read_repeated),
    REGISTRY: Reader(lambda _scope, _key, value: RegistryChanged(*value)),
    TOPIC_FORGOTTEN: Reader(lambda topic, _key, _value: TopicForgotten(topic)),
}
