"""The topic registry: its records in the log, lookups for groups, and its hard state.

Every structural change (a topic is new, grew, or is deleted) increments the version. For nearly
every group, "what changed since my assignment was made?" is therefore one comparison; for the rest
it is an iteration over the newer changes.

A topic is the scope of its log entries, so that forgetting it takes one entry. Records of no topic
have the scope "".
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
# Tombstone of a scope, as for groups: it deletes all older records of the topic.
TOPIC_FORGOTTEN: Final = GROUP_DELETED

# Only topics that don't bound commits are written in this version, so that older releases can still
# read the others.
OBSERVED_VERSION: Final = 1
# Likewise only topics with an authenticated owner.
OWNED_VERSION: Final = 2

# Matching a pattern against 100,000 topics takes long. The results of the most recently used
# patterns are therefore kept: the maximum numbers of patterns, and of names in all results.
PATTERNS_KEPT: Final = 4_096
NAMES_KEPT: Final = 1_000_000
# Memory of one compiled pattern, in bytes, and its maximum number of instructions. RE2's time is
# linear in the length of the name. If a pattern needs more states than this memory holds, the time
# is also linear in the number of its instructions: a name of 249 bytes may take a microsecond per
# instruction.
PATTERN_MEMORY_BYTES: Final = 1024 * 1024
PATTERN_INSTRUCTIONS_MAX: Final = 1_000
# A list of names, exempt from the maximum: RE2 is in few states at a time.
_LIST_OF_NAMES: Final = re.compile(r"(?:[^*+?{}()\[\]\\]|\\[.|-])*")
# Minimum time of matching a name, in microseconds.
_MATCH_US: Final = 4
# Beyond twice the number of topics plus this number, changes are folded to one per topic.
CHANGES_SLACK: Final = 1_000

UNKNOWN_COUNT: Final = -1


class TopicRegistered(NamedTuple):
    """State of a topic from here on."""

    topic: str
    partition_count: int
    hosts: tuple[PartitionHosts, ...]  # Sorted by partition.
    is_deleted: bool  # No longer visible, but groups may still have offsets of it.
    version: int  # Version of the registry when the topic's structure last changed.
    # Reported by consumers only, which may not know all partitions: it doesn't bound commits.
    is_observed: bool = False
    owner: str | None = None  # None: the anonymous principal.


class EndReported(NamedTuple):
    """End offset of one partition."""

    topic: str
    partition: int
    end_offset: int
    reported_ms: int


class EndsRepeated(NamedTuple):
    """Repeated reports of some partitions of a topic, with unchanged end offsets.

    In the log one wide entry stands for all of them.
    """

    topic: str
    partitions: tuple[int, ...]
    reported_ms: tuple[int, ...]  # One for each partition.


class RegistryChanged(NamedTuple):
    """Version numbers of the whole registry."""

    version: int
    last_deletion_version: int  # Version of the latest deletion of a topic.


class TopicForgotten(NamedTuple):
    """A topic was forgotten, with all its records."""

    topic: str


TopicRecord = TopicRegistered | EndReported | EndsRepeated | RegistryChanged | TopicForgotten


class TopicChange(NamedTuple):
    """One structural change, as passed to groups."""

    version: int  # Version of the registry after the change.
    topic: str
    before: int  # Partitions; 0: the topic is new; UNKNOWN_COUNT: not known any more.
    after: int  # Partitions; 0: the topic was deleted.

    def __str__(self) -> str:
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
        open_partitions: Its number of partitions, 0 once it is deleted.
        commit_bound: Commits are accepted for partitions below this number.
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
        """Return the record that restores this state."""
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
    """Return the total length of the names in *hosts*."""
    return sum([len(name) for item in hosts for name in item.hosts])


def _log_bytes(name: str, topic: Topic) -> int:
    """Return the bytes of *topic* in the log, with an end offset for every partition."""
    ends_bytes = topic.partition_count * (LogSize.PARTITION + len(name))
    return LogSize.TOPIC + utf8_bytes([name]) + host_bytes(topic.hosts) + ends_bytes


class HardRegistry(NamedTuple):
    """Hard state of the registry: what survives a crash."""

    version: int
    last_deletion_version: int
    topics: tuple[TopicRegistered, ...]  # Sorted by name.
    ends: tuple[EndReported, ...]  # Sorted by topic and partition.


class InvalidPattern(ValueError):
    """The pattern is not valid in RE2's syntax, or compiles to too many instructions."""


class _Matches:
    """The topics that match one pattern, up to a version."""

    __slots__ = ("cost_us", "names", "version")

    def __init__(self, size: int) -> None:
        # Maximum time per name, measured with the worst patterns of this size. The size of a list
        # of names overstates its cost.
        size = min(size, PATTERN_INSTRUCTIONS_MAX)
        self.cost_us = _MATCH_US + size * size // 500
        self.names: list[str] = []
        self.version = 0

    def __contains__(self, topic: str) -> bool:
        at = bisect.bisect_left(self.names, topic)
        return at < len(self.names) and self.names[at] == topic


@lru_cache(maxsize=128)  # Each uses up to PATTERN_MEMORY_BYTES.
def _compiled(pattern: str) -> Any:
    """Return the compiled *pattern*.

    Raises:
        InvalidPattern: The pattern is no regular expression, or too large.
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
    # Bytes, because for a str the wrapper converts the match's offsets, which are not used.
    return regex.fullmatch(name.encode()) is not None


class Registry:
    """All topics. Groups only read it; only `replay` changes hard state.

    Attributes:
        version: Version of the state in memory.
        now_ms: Current time during replay: monotonic, and wall clock.
        logs_repeats: Whether all nodes can read `EndsRepeated`.
        durable_version: The latest version that is durable in the log (`Topics.take_changes`).
            Groups use no later version: their own log may be another one, and after a crash it
            could contain more than the registry's.
    """

    def __init__(self, totals: Totals | None = None) -> None:
        """Begin empty; *totals* are those of the whole node."""
        self.totals = Totals() if totals is None else totals
        self.now_ms = (0, 0)
        self.logs_repeats = True
        self.topics: dict[str, Topic] = {}  # Includes deleted ones until they are forgotten.
        self.reset()

    def reset(self) -> None:
        for name, topic in self.topics.items():
            self._count(name, topic, -1)
        # Hard: only `replay` changes it.
        self.topics = {}
        self.ends: dict[str, dict[int, EndOffset]] = {}
        self.version = 0
        self.last_deletion_version = 0
        # Soft.
        self.durable_version = 0
        self._names: list[str] | None = None  # Names of the topics that aren't deleted, sorted.
        self._changes: list[TopicChange] = []  # By version, at least each topic's latest.
        self._by_topic: dict[str, list[TopicChange]] = {}  # The same by topic.
        # Changes up to this version may be missing: the log didn't have all of them.
        self._complete_since = 0
        self._seen_version = 0  # Version of the latest replayed change.
        self._kept: dict[str, _Matches] = {}  # By pattern; the most recently used one is last.
        self.ends_history = EndsHistory()

    def replay(self, record: TopicRecord) -> TopicChange | None:
        """Apply one record; return its change for groups, None without one. Never raises."""
        if type(record) is EndReported:
            end = EndOffset(record.partition, record.end_offset, record.reported_ms)
            # The topic may be unknown yet: its latest record may follow later in the log.
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
        """Return the monotonic time of a report, at most now."""
        mono_ms, wall_ms = self.now_ms
        return mono_ms - max(wall_ms - reported_ms, 0)

    def _repeat(self, record: EndsRepeated) -> None:
        topic, ends, history = record.topic, self.ends.get(record.topic, {}), self.ends_history
        for partition, reported_ms in zip(record.partitions, record.reported_ms, strict=True):
            end = ends.get(partition)
            if end is None:
                continue  # Dropped by a compaction; a newer record of it follows.
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
        """Note a change; if versions are missing before it, changes up to *before* are incomplete.

        Versions have no gaps except those left by a compaction: a follower receives all of them.
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
        """Fold changes that may be incomplete to the latest one per topic, without its old size."""
        known = self._complete_since
        folded = sorted(
            TopicChange(topic.version, name, UNKNOWN_COUNT, topic.open_partitions)
            for name, topic in self.topics.items()
            if topic.version <= known
        )
        newer = [change for change in self._changes if change.version > known]
        if known:  # The missing changes may include earlier ones of a topic that seems to be new.
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

    # --- lookups by groups ------------------------------------------------------------------

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of *topic*, 0 if it isn't registered."""
        known = self.topics.get(topic)
        return 0 if known is None else known.open_partitions

    def ends_of(self, topic: str) -> Mapping[int, EndOffset]:
        """Return the reported end offsets of *topic*, by partition."""
        return self.ends.get(topic, {}) if self.partition_count(topic) else {}

    def end_offset(self, topic: str, partition: int) -> EndOffset | None:
        """Return the end offset of one partition, None if none was reported."""
        if partition >= self.partition_count(topic):
            return None
        return self.ends.get(topic, {}).get(partition)

    def names(self) -> list[str]:
        """Return the names of all topics, sorted; the caller must not change the list."""
        if self._names is None:
            self._names = sorted(name for name, t in self.topics.items() if t.open_partitions)
        return self._names

    def changes_since(self, version: int) -> Iterator[TopicChange]:
        """Yield the changes after *version*, oldest first."""
        start = bisect.bisect_left(self._changes, (version + 1,))
        for at in range(start, len(self._changes)):
            yield self._changes[at]

    def number_of_changes_since(self, version: int) -> int:
        """Return the number of changes that `changes_since` yields."""
        return len(self._changes) - bisect.bisect_left(self._changes, (version + 1,))

    def change_of(self, topic: str, since_version: int) -> TopicChange | None:
        """Return the changes of *topic* since a version as one change, None without any."""
        newer = [c for c in self._by_topic.get(topic, ()) if c.version > since_version]
        return newer[-1]._replace(before=newer[0].before) if newer else None

    def may_be_another(self, topic: str, since_version: int) -> bool:
        """Return whether *topic* may have been deleted and created again since a version."""
        newer = (c for c in self._by_topic.get(topic, ()) if c.version > since_version)
        return self.may_miss_deletions_since(since_version) or any(not c.after for c in newer)

    def may_miss_deletions_since(self, version: int) -> bool:
        """Return whether a deletion of a topic after *version* may be missing in the changes."""
        return version < min(self._complete_since, self.last_deletion_version)

    # --- patterns ---------------------------------------------------------------------------

    def pattern_problem(self, pattern: str) -> str | None:
        """Return why *pattern* is invalid, None if it is valid."""
        try:
            _compiled(pattern)
        except InvalidPattern as exc:
            return str(exc)
        return None

    def matches(self, pattern: str, name: str) -> bool:
        """Return whether *pattern* matches the whole of *name*; an invalid one matches nothing."""
        try:
            return _does_match(_compiled(pattern), name)
        except InvalidPattern:
            return False

    def is_matched(self, pattern: str, topic: str) -> bool:
        """Return whether a registered topic matches; a lookup if `match` is done."""
        try:
            return topic in self._matched(pattern)
        except InvalidPattern:
            return False

    def matching(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches, sorted; the caller must not change the list.

        Raises:
            InvalidPattern: The pattern is no regular expression, or too large.
        """
        return self._matched(pattern).names

    def is_up_to_date(self, pattern: str) -> bool:
        """Return whether `matching` can return a kept result."""
        found = self._kept.get(pattern)
        return found is not None and found.version == self.version

    def match(self, pattern: str) -> Iterator[int]:
        """Compute and keep the result of `matching`, name by name.

        Yields after each name the maximum microseconds that it took, so that the caller can serve
        other requests in between. Topics registered during the iteration are matched at its end. An
        invalid pattern matches nothing.
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
        """Add *topic* to the names if it is registered and matches, else remove it."""
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
