"""The lag of groups: by partition, as a summary of each group, and its change over time.

Theory of operation
===================

Unknown numbers are -1, never 0: a missing commit, a missing end offset, and the lag computed from
them. A commit beyond the reported end has an unknown lag, too: the report is old, or the commit is
wrong. The lag of a group is the sum over the partitions with a known lag, next to the number of the
others. Its lag in time is that of the partition furthest behind.

All of that is computed in one place, column by column for some partitions at a time
(`lag_columns`): one partition at a time takes three times as long.

The sum is not kept up to date, because every commit would pay for it. It is computed on request.
That may take long, so iterators over all groups pause whenever their turn is over, and continue
after other requests. Groups may appear and disappear in between.

Once a minute the sum of each group is stored, to show its change, and the lag of each partition.
These samples are soft: they start from empty with every load.
"""

import bisect
import heapq
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from math import inf
from typing import Final, NamedTuple

from coordinator.group.core import Core
from coordinator.group.group import Group
from coordinator.group.lag_samples import MINUTE_MS, UNKNOWN, LagSamples
from coordinator.group.minutes import LagCurves
from coordinator.group.records import StoredOffsets
from coordinator.group.registry import Registry
from protocol.codec import PackedArray
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeLagResponse,
    GroupSummary,
    PartitionLag,
    PartitionOffset,
    SummarizeGroupsRequest,
    TopicLag,
)
from protocol.partition import INT64_MAX, NO_OFFSET

# Number of partitions read in one turn: half a millisecond. A group takes as long as ten of them.
TURN_LOOKS: Final = 1_000
GROUP_LOOKS: Final = 10
# Cost of a partition including its lag in time, in partitions.
BEHIND_LOOKS: Final = 4
# Partitions per step, where the caller measures the steps' time: some take ten times as long.
STEP_LOOKS: Final = 200
# Number of names sorted in one turn.
TURN_NAMES: Final = 1_000
# Number of integers sorted in one turn.
TURN_NUMBERS: Final = 5_000


class Turn:
    """The work that an iterator over groups may do before it pauses."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = TURN_LOOKS

    def is_over_after(self, looks: int) -> bool:
        """Subtract *looks*; return whether to pause. The next turn begins after the pause."""
        self._left -= looks
        if self._left > 0:
            return False
        self._left = TURN_LOOKS
        return True


class LagColumns(NamedTuple):
    """Columns of some committed partitions of one topic of a group; -1: unknown.

    Attributes:
        behind_ms: Lag of each partition in time; empty if it was not requested.
    """

    partitions: list[int]
    committed: list[int]
    lags: list[int]
    behind_ms: list[int]

    def first(self, count: int) -> "LagColumns":
        if count >= len(self.partitions):
            return self
        return LagColumns(*(column[:count] for column in self))


def lag_columns(
    registry: Registry, topic: str, committed: Collection[PartitionOffset], now_ms: int | None
) -> LagColumns:
    """Return the lags of some partitions of *topic*, also in time if *now_ms* is given."""
    partitions = [one.partition for one in committed]
    offsets = [one.offset for one in committed]
    ends = list(map(registry.ends_of(topic).get, partitions))
    lags = [
        UNKNOWN if end is None or end.end_offset < offset else end.end_offset - offset
        for end, offset in zip(ends, offsets, strict=True)
    ]
    behind_ms: list[int] = []
    if now_ms is not None:
        is_behind = max(lags, default=0) > 0
        history = registry.ends_history.of(topic)
        behind_ms = history.behind_ms(ends, offsets, now_ms) if is_behind else lags
    return LagColumns(partitions, offsets, lags, behind_ms)


def chunks(stored: StoredOffsets, size: int) -> Iterator[list[PartitionOffset]]:
    """Yield the current commits of a topic, *size* partitions at a time."""
    committed = list(stored.offsets.values())
    for at in range(0, len(committed), size):
        yield committed[at : at + size]


class LagSum:
    """The sum of the lags of some committed partitions.

    Attributes:
        committed: Number of these partitions.
        known: Number of those with a known lag.
        offset_sum: Sum of the committed offsets.
    """

    __slots__ = ("_behind_ms", "_is_vague", "_lag", "committed", "known", "offset_sum")

    def __init__(self) -> None:
        self.committed = self.known = self.offset_sum = self._lag = self._behind_ms = 0
        self._is_vague = False  # For a partition that is behind, the start is unknown.

    def add(self, columns: LagColumns) -> None:
        lags, behind_ms = columns.lags, columns.behind_ms
        unknown = lags.count(UNKNOWN)
        self.committed += len(lags)
        self.known += len(lags) - unknown
        self.offset_sum += sum(columns.committed)
        self._lag += sum(lags) + unknown
        self._behind_ms = max(self._behind_ms, *behind_ms, 0)
        self._is_vague |= behind_ms.count(UNKNOWN) > unknown

    @property
    def lag(self) -> int:
        """Messages of the partitions with a known lag."""
        return min(self._lag, INT64_MAX) if self.known else UNKNOWN

    @property
    def behind_ms(self) -> int:
        """Time of the partition furthest behind, among those with a known time."""
        is_unknown = not self.known or (self._is_vague and not self._behind_ms)
        return UNKNOWN if is_unknown else self._behind_ms


class TotalLag(NamedTuple):
    """The lag of a group: partitions, those with an unknown lag, and the lag of the others.

    Attributes:
        behind_ms: Time of the partition furthest behind, if requested.
    """

    partitions: int
    unknown: int
    lag: int
    behind_ms: int


def total_lag(
    core: Core, group: Group, turn: Turn, *, now_ms: int | None = None, minute: int | None = None
) -> Generator[None, None, TotalLag]:
    """Compute the lag of *group*; pauses whenever *turn* is over.

    Args:
        core: The shard of the group.
        group: May change, or be deleted, during a pause.
        turn: The work until a pause.
        now_ms: The monotonic time; if given, compute the lag in time, too.
        minute: If given, store the lag of each partition as its sample of this minute.
    """
    total = LagSum()
    for topic, stored in list(group.offsets.items()):
        yield from add_up(total, core.registry, topic, stored, turn, now_ms=now_ms, minute=minute)
    missing = yield from _count_uncommitted(group, turn)
    partitions = total.committed + missing
    return TotalLag(partitions, partitions - total.known, total.lag, total.behind_ms)


def add_up(
    total: LagSum,
    registry: Registry,
    topic: str,
    stored: StoredOffsets,
    turn: Turn,
    *,
    now_ms: int | None = None,
    minute: int | None = None,
) -> Iterator[None]:
    """Add the commits of *topic* to *total*; the other arguments are those of `total_lag`."""
    looks = 1 if now_ms is None else BEHIND_LOOKS
    for chunk in chunks(stored, TURN_LOOKS // looks):
        columns = lag_columns(registry, topic, chunk, now_ms)
        total.add(columns)
        if minute is not None:
            _note_curves(stored, columns, minute)
        if turn.is_over_after(looks * len(chunk)):
            yield


def _count_uncommitted(group: Group, turn: Turn) -> Generator[None, None, int]:
    """Return the number of owned partitions without a commit."""
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


def _note_curves(stored: StoredOffsets, columns: LagColumns, minute: int) -> None:
    pairs = zip(columns.partitions, columns.lags, strict=True)
    lags = {partition: lag for partition, lag in pairs if lag != UNKNOWN}
    if lags:
        if stored.curves is None:
            stored.curves = LagCurves()
        stored.curves.put(minute, lags)


def sample_lags(core: Core, minute: int, turn: Turn) -> Iterator[None]:
    """Store the lag of each group as its sample of *minute*; pauses whenever *turn* is over."""
    for group_id in list(core.groups):
        group = core.groups.get(group_id)
        if group is None:
            continue
        total = yield from total_lag(core, group, turn, minute=minute)
        samples = group.lag_samples
        if total.lag != UNKNOWN:
            if samples is None:
                samples = group.lag_samples = LagSamples()
            samples.put(minute, total.lag, is_whole=not total.unknown)
        elif samples is not None and samples.is_over(minute):
            group.lag_samples = None
        if turn.is_over_after(GROUP_LOOKS):
            yield


class Order:
    """The sorted groups of a shard, computed for a first page and kept for the next ones."""

    __slots__ = ("_core", "_kept")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.forget()

    def forget(self) -> None:
        """Drop the kept order; an order that is being computed is not kept either."""
        self._kept: list[list[str]] = []

    def group_ids(self, *, is_first_page: bool) -> Generator[None, None, list[str]]:
        """Return the sorted ids; pauses while it sorts them."""
        kept = self._kept
        if is_first_page or not kept:
            kept[:] = [(yield from in_order(self._core.groups))]
        return kept[0]


class Summaries:
    """Summarizes all groups of a shard by id; the order is computed once for all pages.

    Groups created after the first page are missing in the others.
    """

    __slots__ = ("_core", "_order")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._order = Order(core)

    def stop(self) -> None:
        self._order.forget()

    def after(
        self,
        group_id: str,
        request: SummarizeGroupsRequest,
        sees_group: Callable[[str], bool],
        now_ms: int,
        turn: Turn,
    ) -> Iterator[GroupSummary | None]:
        """Yield the requested visible groups after *group_id* ("": from the first).

        Yields None whenever *turn* is over.
        """
        states = frozenset(state.lower() for state in request.states)
        order = yield from self._order.group_ids(is_first_page=not group_id)
        for at in range(bisect.bisect_right(order, group_id), len(order)):
            group = self._core.groups.get(order[at]) if sees_group(order[at]) else None
            if group is not None and self._is_wanted(group, request.pattern, states):
                total = yield from total_lag(self._core, group, turn)
                yield _summary(group, total, request.max_samples, now_ms)
            if turn.is_over_after(GROUP_LOOKS):
                yield None
        self._order.forget()

    def _is_wanted(self, group: Group, pattern: str | None, states: frozenset[str]) -> bool:
        if states and group.state.value.lower() not in states:
            return False
        return pattern is None or self._core.registry.matches(pattern, group.group_id)


def in_order(*names: Collection[str]) -> Generator[None, None, list[str]]:
    """Return *names* sorted, without duplicates; pauses in between."""
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


def numbers_in_order(*numbers: Iterable[int]) -> Generator[None, None, list[int]]:
    """Return *numbers* sorted, without duplicates; pauses in between.

    Runs are sorted first, then merged one value range at a time. Evenly spaced samples of each run
    set the ranges' bounds, so that no range is much longer than a run.
    """
    unsorted = list(chain.from_iterable(numbers))
    if len(unsorted) <= TURN_NUMBERS:
        return sorted(set(unsorted))
    runs: list[list[int]] = []
    for at in range(0, len(unsorted), TURN_NUMBERS):
        runs.append(sorted(unsorted[at : at + TURN_NUMBERS]))
        yield
    space = max(1, TURN_NUMBERS // (2 * len(runs)))
    samples = sorted(chain.from_iterable([run[::space] for run in runs]))
    order: list[int] = []
    begins = [0] * len(runs)
    for until in (*samples[len(runs) :: len(runs)], inf):
        ends = [bisect.bisect_left(run, until) for run in runs]
        parts = [run[begin:end] for run, begin, end in zip(runs, begins, ends, strict=True)]
        order += sorted(set(chain.from_iterable(parts)))
        begins = ends
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


def owners_of(
    group: Group, topic: str | None, turn: Turn
) -> Generator[None, None, dict[str, dict[int, str]]]:
    """Return the owners of one topic or of all: topic -> partition -> member id."""
    found: dict[str, dict[int, str]] = {}
    for member in list(group.members.values()):
        owned = iter(member.owned or ())
        while chunk := list(islice(owned, TURN_LOOKS)):
            for name, partition in chunk:
                if topic is None or name == topic:
                    found.setdefault(name, {})[partition] = member.member_id
            if turn.is_over_after(len(chunk)):
                yield
        if turn.is_over_after(1):
            yield
    return found


def describe_lag(
    core: Core, group_id: str, sees_topic: Callable[[str], bool], max_bytes: int
) -> Generator[None, None, DescribeLagResponse | None]:
    """Return the lag of every committed or owned partition of the group, in steps.

    The answer has only topics that *sees_topic* shows. None: over *max_bytes*.
    """
    group = core.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND.value
        return DescribeLagResponse(error, f"Group {group_id} not found.", group_id, ())
    owners = yield from owners_of(group, None, Turn())
    topics: list[TopicLag] = []
    room = max_bytes
    for topic in (yield from in_order(group.offsets, owners)):
        if not sees_topic(topic):
            yield
            continue
        stored = group.offsets.get(topic)
        owner_of = owners.get(topic, {})
        committed = () if stored is None else stored.offsets
        partitions = yield from numbers_in_order(owner_of, committed)
        packed = PackedArray()
        for at in range(0, len(partitions), STEP_LOOKS):
            some = partitions[at : at + STEP_LOOKS]
            packed.extend(_lags(core.registry, group, topic, some, owner_of))
            if packed.size_bytes > room:
                return None
            yield
        room -= packed.size_bytes + len(topic)
        topics.append(TopicLag(topic, packed.whole()))
    return DescribeLagResponse(ErrorCode.NONE.value, None, group_id, tuple(topics))


def _lags(
    registry: Registry,
    group: Group,
    topic: str,
    partitions: Iterable[int],
    owner_of: Mapping[int, str],
) -> tuple[PartitionLag, ...]:
    ends, history = registry.ends_of(topic), registry.ends_history.of(topic)
    stored = group.offsets.get(topic) or StoredOffsets()
    lags = []
    for partition in partitions:
        one, end = stored.offsets.get(partition), ends.get(partition)
        committed_offset = NO_OFFSET if one is None else one.offset
        end_offset = NO_OFFSET if end is None else end.end_offset
        is_known = one is not None and end is not None and one.offset <= end.end_offset
        lags.append(
            PartitionLag(
                partition,
                committed_offset,
                end_offset,
                end_offset - committed_offset if is_known else UNKNOWN,
                UNKNOWN if one is None else stored.committed_ms(partition),
                UNKNOWN if end is None else history.told_ms(end),
                owner_of.get(partition, ""),
            )
        )
    return tuple(lags)
