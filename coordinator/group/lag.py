"""How far groups are behind: by partition, all groups in a few numbers, and how that changes.

Theory of operation
===================

What is not known is -1, and never 0: a missing commit, a missing end offset, and so their
difference. A commit beyond the reported end has no known lag either: the report is old, or the
commit is wrong. The lag of a group is the sum over the partitions of which it is known, beside how
many they are not. In time it is as far behind as the partition that is furthest.

All of that is computed in one place, a column of some partitions after the other (`lag_columns`):
a partition alone takes three times as long.

Nothing keeps that sum up to date, as a commit would pay for it. Whoever asks has it added up. That
may be long, so what goes over all groups is an iterator that pauses whenever its turn is over, and
goes on when everybody else has had theirs. Groups may come and go meanwhile.

Once a minute the sum of each group is noted, so that it can be said how it changes, and the
lag of each of its partitions. Such samples are soft: they begin anew with every load.
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

# Partitions that one turn looks at: half a millisecond. A group takes as long as ten of them.
TURN_LOOKS: Final = 1_000
GROUP_LOOKS: Final = 10
# To find out how long a partition is behind, too, takes as long as so many looks.
BEHIND_LOOKS: Final = 4
# Partitions of one step, where whoever takes the steps measures them: some are ten times as long.
STEP_LOOKS: Final = 200
# Names that one turn puts in order.
TURN_NAMES: Final = 1_000
# Numbers likewise.
TURN_NUMBERS: Final = 5_000


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


class LagColumns(NamedTuple):
    """Some committed partitions of one topic of a group; -1 is what is not known.

    Attributes:
        behind_ms: How long each is behind; empty if that was not asked for.
    """

    partitions: list[int]
    committed: list[int]
    lags: list[int]
    behind_ms: list[int]

    def first(self, count: int) -> "LagColumns":
        """Return the first *count* partitions, or all."""
        if count >= len(self.partitions):
            return self
        return LagColumns(*(column[:count] for column in self))


def lag_columns(
    registry: Registry, topic: str, committed: Collection[PartitionOffset], now_ms: int | None
) -> LagColumns:
    """Return how far some partitions of *topic* are behind, in time too if *now_ms* is given."""
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
    """Yield what is committed of a topic as it is now, *size* partitions at a time."""
    committed = list(stored.offsets.values())
    for at in range(0, len(committed), size):
        yield committed[at : at + size]


class LagSum:
    """The lag of some committed partitions, added up.

    Attributes:
        committed: How many they are.
        known: Of how many of them the lag is known.
        offset_sum: Of the committed offsets.
    """

    __slots__ = ("_behind_ms", "_is_vague", "_lag", "committed", "known", "offset_sum")

    def __init__(self) -> None:
        self.committed = self.known = self.offset_sum = self._lag = self._behind_ms = 0
        self._is_vague = False  # Of one that is behind it isn't known since when.

    def add(self, columns: LagColumns) -> None:
        """Add some."""
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
        """In messages, where it is known."""
        return min(self._lag, INT64_MAX) if self.known else UNKNOWN

    @property
    def behind_ms(self) -> int:
        """Of the partition that is furthest behind in time, of those that are known."""
        is_unknown = not self.known or (self._is_vague and not self._behind_ms)
        return UNKNOWN if is_unknown else self._behind_ms


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
    """Add what a group has committed of *topic* to *total*; otherwise as `total_lag`."""
    looks = 1 if now_ms is None else BEHIND_LOOKS
    for chunk in chunks(stored, TURN_LOOKS // looks):
        columns = lag_columns(registry, topic, chunk, now_ms)
        total.add(columns)
        if minute is not None:
            _note_curves(stored, columns, minute)
        if turn.is_over_after(looks * len(chunk)):
            yield


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


def _note_curves(stored: StoredOffsets, columns: LagColumns, minute: int) -> None:
    pairs = zip(columns.partitions, columns.lags, strict=True)
    lags = {partition: lag for partition, lag in pairs if lag != UNKNOWN}
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
            samples.put(minute, total.lag, is_whole=not total.unknown)
        elif samples is not None and samples.is_over(minute):
            group.lag_samples = None
        if turn.is_over_after(GROUP_LOOKS):
            yield


class Order:
    """The groups of a shard in their order, which is made at a first page and kept for the next."""

    __slots__ = ("_core", "_kept")

    def __init__(self, core: Core) -> None:
        self._core = core
        self.forget()

    def forget(self) -> None:
        """Have the next page make it anew; one that is being made is not kept."""
        self._kept: list[list[str]] = []

    def group_ids(self, *, is_first_page: bool) -> Generator[None, None, list[str]]:
        """Return the ids in their order; pauses in between, if it has to be made."""
        kept = self._kept
        if is_first_page or not kept:
            kept[:] = [(yield from in_order(self._core.groups))]
        return kept[0]


class Summaries:
    """Tells of all groups of a shard in their order, which is made once for all pages.

    Groups that come after the first page are missing in the others.
    """

    __slots__ = ("_core", "_order")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._order = Order(core)

    def stop(self) -> None:
        """Forget the order."""
        self._order.forget()

    def after(
        self,
        group_id: str,
        request: SummarizeGroupsRequest,
        sees_group: Callable[[str], bool],
        now_ms: int,
        turn: Turn,
    ) -> Iterator[GroupSummary | None]:
        """Yield the groups that are asked for, from the one after *group_id* on ("": the first).

        They are of those that *sees_group* shows. It yields None whenever *turn* is over.
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


def numbers_in_order(*numbers: Iterable[int]) -> Generator[None, None, list[int]]:
    """Return *numbers* sorted, each once; pauses in between.

    They are sorted in runs, and then a stretch of all runs at a time. Samples of each run, evenly
    spaced, say where a stretch ends, so that no stretch is much longer than a run.
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
    """Return who owns what, of one topic or of all: topic -> partition -> member id."""
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
    """Return the lag of every partition that the group has committed or owns, in slices.

    It is of the topics that *sees_topic* shows. None: it takes more than *max_bytes*.
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
