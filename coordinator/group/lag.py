"""How far groups are behind: by partition, all groups in a few numbers, and how that changes.

Theory of operation
===================

What is not known is -1, and never 0: a missing commit, a missing end offset, and so their
difference. The lag of a group is the sum over the partitions of which it is known, beside how many
they are not.

Nothing keeps that sum up to date, as a commit would pay for it. Whoever asks has it added up. That
may be long, so what goes over all groups is an iterator that pauses whenever its turn is over, and
goes on when everybody else has had theirs. Groups may come and go meanwhile.

Once a minute the sum of each group is noted, so that it can be said how it changes, the lag of each
of its partitions, and how far each partition reaches. Such samples are soft: they begin anew with
every load.
"""

import bisect
import heapq
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from typing import Final, NamedTuple

from coordinator.group.core import Core, Now
from coordinator.group.group import Group
from coordinator.group.lag_samples import MINUTE_MS, UNKNOWN, LagSamples
from coordinator.group.minutes import LagCurves
from coordinator.group.records import StoredOffsets
from coordinator.group.registry import Registry
from protocol.codec import PackedArray
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeLagResponse,
    EndOffset,
    GroupSummary,
    PartitionLag,
    PartitionOffset,
    SummarizeGroupsRequest,
    TopicLag,
)
from protocol.partition import INT64_MAX, NO_OFFSET

# Partitions that one turn looks at: half a millisecond. A group takes as long as ten of them.
TURN_LOOKS: Final = 1_000
GROUP_LOOKS: Final = 10
# To find out how long a partition is behind takes as long as so many looks.
BEHIND_LOOKS: Final = 3
# Names that one turn puts in order.
TURN_NAMES: Final = 1_000


class Turn:
    """What an iterator over groups may still look at before it pauses."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TURN_LOOKS

    def is_over_after(self, looks: int) -> bool:
        """Take note of *looks*; say whether to pause. After that the next turn begins."""
        self._left -= looks
        if self._left > 0:
            return False
        self._left = TURN_LOOKS
        return True


class TotalLag(NamedTuple):
    """The lag of a group: of how many partitions, of how many it is unknown, and of the others.

    Attributes:
        behind_ms: That of the partition which is furthest behind in time, if it was asked for.
    """

    partitions: int
    unknown: int
    lag: int
    behind_ms: int


def total_lag(
    core: Core, group: Group, turn: Turn, *, now_ms: int | None = None, minute: int | None = None
) -> Generator[None, None, TotalLag]:
    """Add up the lag of *group*; pauses whenever *turn* is over.

    Args:
        core: Whose group it is.
        group: It may change, or go, while this pauses.
        turn: How long to look without a pause.
        now_ms: Look for how long it is behind in time, too.
        minute: Note the lag of each partition as that of this minute.
    """
    partitions = unknown = lag = 0
    behind = Behind()
    for topic, stored in list(group.offsets.items()):
        ends = core.registry.ends_of(topic)
        committed = iter(list(stored.offsets.values()))
        while chunk := list(islice(committed, TURN_LOOKS)):
            for one in chunk:
                end = ends.get(one.partition)
                if end is None:
                    unknown += 1
                elif end.end_offset > one.offset:
                    lag += end.end_offset - one.offset
            partitions += len(chunk)
            if turn.is_over_after(len(chunk)):
                yield
            if minute is not None:
                _note_curves(stored, chunk, ends, minute)
            if now_ms is not None:
                yield from behind.look(core.registry, topic, chunk, now_ms, turn)
    missing = yield from _count_uncommitted(group, turn)
    partitions += missing
    unknown += missing
    known = partitions - unknown
    lag = min(lag, INT64_MAX) if known else UNKNOWN
    return TotalLag(partitions, unknown, lag, behind.ms if known else UNKNOWN)


def _count_uncommitted(group: Group, turn: Turn) -> Generator[None, None, int]:
    """Return how many partitions are owned of which nothing is committed."""
    missing = 0
    for member in list(group.members.values()):
        owned = iter(member.owned or ())
        while named := list(islice(owned, TURN_LOOKS)):
            missing += sum(
                partition not in group.offsets.get(topic, ()) for topic, partition in named
            )
            if turn.is_over_after(len(named)):
                yield
    return missing


class Behind:
    """How long some partitions are behind: as long as the one that is furthest."""

    __slots__ = ("_any_unknown", "_ms")

    def __init__(self) -> None:
        self._ms = 0
        self._any_unknown = False

    @property
    def ms(self) -> int:
        """The result; `UNKNOWN` if none that lags is known."""
        return UNKNOWN if self._any_unknown and not self._ms else self._ms

    def note(self, ms: int) -> None:
        """Take one more partition into account."""
        if ms > self._ms:
            self._ms = ms
        elif ms == UNKNOWN:
            self._any_unknown = True

    def look(
        self,
        registry: Registry,
        topic: str,
        committed: Iterable[PartitionOffset],
        now_ms: int,
        turn: Turn,
    ) -> Iterator[None]:
        """Take partitions of *topic* into account; pauses whenever *turn* is over."""
        ends, behind_ms = registry.ends_of(topic), registry.ends_history.of(topic).behind_ms
        for one in committed:
            end = ends.get(one.partition)
            if end is not None and end.end_offset > one.offset:
                self.note(behind_ms(end, one.offset, now_ms))
                if turn.is_over_after(BEHIND_LOOKS):
                    yield


def _note_curves(
    stored: StoredOffsets,
    committed: Iterable[PartitionOffset],
    ends: Mapping[int, EndOffset],
    minute: int,
) -> None:
    lags = {
        one.partition: max(end.end_offset - one.offset, 0)
        for one in committed
        if (end := ends.get(one.partition)) is not None
    }
    if lags:
        if stored.curves is None:
            stored.curves = LagCurves()
        stored.curves.put(minute, lags)


def sample_lags(core: Core, minute: int, turn: Turn) -> Iterator[None]:
    """Note the lag of each group as that of *minute*; pauses whenever *turn* is over."""
    for group_id in list(core.groups):
        group = core.groups.get(group_id)
        if group is None:
            continue
        total = yield from total_lag(core, group, turn, minute=minute)
        samples = group.lag_samples
        if total.lag != UNKNOWN:
            if samples is None:
                samples = group.lag_samples = LagSamples()
            samples.put(minute, total.lag)
        elif samples is not None and samples.is_over(minute):
            group.lag_samples = None
        if turn.is_over_after(GROUP_LOOKS):
            yield


def sample_ends(registry: Registry, minute: int, now: Now, turn: Turn) -> Iterator[None]:
    """Note how far each topic reaches as *minute* begins; pauses whenever *turn* is over."""
    for topic in list(registry.ends):
        ends = iter(list(registry.ends_of(topic).values()))
        while chunk := list(islice(ends, TURN_LOOKS)):
            if registry.partition_count(topic):  # It may have gone meanwhile.
                registry.ends_history.sample(topic, chunk, minute, now.mono_ms, now.wall_ms)
            if turn.is_over_after(len(chunk)):
                yield
        if turn.is_over_after(1):
            yield


class Summaries:
    """Tells of all groups of a shard in their order, which is made once for all pages.

    Groups that come after the first page are missing in the others.
    """

    __slots__ = ("_core", "_group_ids")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._group_ids: list[str] | None = None

    def stop(self) -> None:
        """Forget the order."""
        self._group_ids = None

    def after(
        self, group_id: str, request: SummarizeGroupsRequest, now_ms: int, turn: Turn
    ) -> Iterator[GroupSummary | None]:
        """Yield the groups that are asked for, from the one after *group_id* on ("": the first).

        It yields None whenever *turn* is over.
        """
        states = frozenset(state.lower() for state in request.states)
        order = self._group_ids if group_id else None
        if order is None:
            order = yield from in_order(self._core.groups)
            self._group_ids = order
        for at in range(bisect.bisect_right(order, group_id), len(order)):
            group = self._core.groups.get(order[at])
            if group is not None and self._is_wanted(group, request.pattern, states):
                total = yield from total_lag(self._core, group, turn)
                yield _summary(group, total, request.max_samples, now_ms)
            if turn.is_over_after(GROUP_LOOKS):
                yield None
        self._group_ids = None

    def _is_wanted(self, group: Group, pattern: str | None, states: frozenset[str]) -> bool:
        if states and group.state.value.lower() not in states:
            return False
        return pattern is None or self._core.registry.matches(pattern, group.group_id)


def in_order(*names: Collection[str]) -> Generator[None, None, list[str]]:
    """Return *names* sorted, each once; pauses in between."""
    unsorted = chain.from_iterable([list(some) for some in names])
    runs: list[list[str]] = []
    while run := sorted(set(islice(unsorted, TURN_NAMES))):
        runs.append(run)
        if len(runs) > 1:
            yield
    if len(runs) <= 1:
        return runs[0] if runs else []
    merged = (name for name, _ in groupby(heapq.merge(*runs)))
    order: list[str] = []
    while part := list(islice(merged, TURN_NAMES)):
        order += part
        yield
    return order


def _summary(group: Group, total: TotalLag, max_samples: int, now_ms: int) -> GroupSummary:
    samples = group.lag_samples
    earlier = (UNKNOWN, UNKNOWN)
    shown: tuple[int, ...] = ()
    if samples is not None:
        earlier = samples.earlier(now_ms)
        shown = samples.last(now_ms // MINUTE_MS, max_samples)
    return GroupSummary(
        group.group_id,
        group.protocol_type,
        group.state.value,
        len(group.members),
        total.partitions,
        total.unknown,
        total.lag,
        *earlier,
        shown,
    )


def describe_lag(
    core: Core, group_id: str, max_bytes: int
) -> Generator[None, None, DescribeLagResponse | None]:
    """Return the lag of every partition that the group has committed or owns, in slices.

    What is not known is -1, and never 0: a missing commit, a missing end offset, and so their
    difference. None: it takes more than *max_bytes*.
    """
    group = core.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND.value
        return DescribeLagResponse(error, f"Group {group_id} not found.", group_id, ())
    owners: dict[str, dict[int, str]] = {}
    for member in list(group.members.values()):
        owned = iter(member.owned or ())
        while some := list(islice(owned, TURN_LOOKS)):
            for topic, partition in some:
                owners.setdefault(topic, {})[partition] = member.member_id
            yield
    topics: list[TopicLag] = []
    room = max_bytes
    for topic in sorted({*group.offsets, *owners}):
        stored = group.offsets.get(topic)
        owner_of = owners.get(topic, {})
        partitions = sorted({*(() if stored is None else stored.offsets), *owner_of})
        packed = PackedArray()
        for at in range(0, len(partitions), TURN_LOOKS):
            packed.extend(
                tuple(
                    [
                        _lag(core, group, topic, partition, owner_of.get(partition, ""))
                        for partition in partitions[at : at + TURN_LOOKS]
                    ]
                )
            )
            if packed.size_bytes > room:
                return None
            yield
        room -= packed.size_bytes + len(topic)
        topics.append(TopicLag(topic, packed.whole()))
    return DescribeLagResponse(ErrorCode.NONE.value, None, group_id, tuple(topics))


def _lag(core: Core, group: Group, topic: str, partition: int, member_id: str) -> PartitionLag:
    stored = group.offset_of(topic, partition)
    end = core.registry.end_offset(topic, partition)
    committed_offset = NO_OFFSET if stored is None else stored.offset
    end_offset = NO_OFFSET if end is None else end.end_offset
    is_known = stored is not None and end is not None
    return PartitionLag(
        partition,
        committed_offset,
        end_offset,
        max(end_offset - committed_offset, 0) if is_known else UNKNOWN,
        UNKNOWN if stored is None else stored.commit_timestamp_ms,
        UNKNOWN if end is None else core.registry.ends_history.of(topic).told_ms(end),
        member_id,
    )
