"""Figures of a group, for the console and for metrics. Pure; -1 stands for an unknown figure.

Iterators with long work yield None whenever their turn is over, and continue after other requests.
Groups may change, appear and disappear in between. The figures may not be durable yet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from coordinator.group import history
from coordinator.group.core import Core, Now
from coordinator.group.group import Group
from coordinator.group.lag import (
    BEHIND_LOOKS,
    GROUP_LOOKS,
    TURN_LOOKS,
    LagSum,
    Turn,
    add_up,
    in_order,
    lag_columns,
    owners_of,
    total_lag,
)
from coordinator.group.lag_samples import SAMPLES_KEPT, UNKNOWN
from coordinator.group.member import NOTHING, Watched
from coordinator.group.records import StoredOffsets
from coordinator.group.registry import Registry
from protocol.partition import NO_OFFSET

WAITING_FOR_MAX: Final = 20


class GroupFacts(NamedTuple):
    """Figures of a group; -1: unknown."""

    group_id: str
    protocol_type: str
    protocol: str
    state: str
    generation: int
    members: int
    empty_members: int
    partitions: int
    unknown: int
    lag: int
    lag_seconds: float
    earlier_lag: int
    earlier_ms: int

    @classmethod
    def of(
        cls,
        group: Group,
        *,
        empty_members: int,
        partitions: int,
        unknown: int,
        lag: int,
        lag_seconds: float,
        earlier: tuple[int, int] = (UNKNOWN, UNKNOWN),
    ) -> "GroupFacts":
        """Return the figures of *group* now, with those that needed an iteration."""
        return cls(
            group.group_id,
            group.protocol_type,
            group.protocol or "",
            group.state.value,
            group.generation,
            len(group.members),
            empty_members,
            partitions,
            unknown,
            lag,
            lag_seconds,
            *earlier,
        )


class TopicFacts(NamedTuple):
    """A topic of a group; members and assigned count its owners and owned partitions."""

    topic: str
    partitions: int
    members: int
    assigned: int
    offset_sum: int
    unknown: int
    lag: int
    lag_seconds: float


class PartitionFacts(NamedTuple):
    """A partition that a group owns or has committed."""

    topic: str
    partition: int
    owner: str
    committed: int
    end: int
    lag: int
    lag_seconds: float
    committed_ms: int  # Wall clock, like end_reported_ms.
    end_reported_ms: int  # Time of the latest report, changed or not.
    metadata: str = ""


class MemberFacts(NamedTuple):
    """A current member; waits is "join", "sync" or ""."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    is_leader: bool
    heartbeat_age_ms: int
    session_timeout_ms: int
    partitions: int
    unknown: int
    lag: int
    drained: bool
    waits: str


class RunningFacts(NamedTuple):
    """The running rebalance."""

    started_ms: int  # Wall clock.
    trigger: str
    member_id: str
    client_id: str
    client_host: str
    reason: str
    old_generation: int
    phase: str  # "join" or "sync"
    join_ms: int
    sync_ms: int
    waiting_for: tuple[str, ...]  # At most 20 member ids.


class TopicEndFacts(NamedTuple):
    """A registered topic, independent of groups."""

    topic: str
    partition_count: int
    unknown: int  # Partitions without a reported end.
    end_sum: int  # Sum of the known ends; -1 if none is known.
    age_ms: int  # Longest time since an end's latest report; -1 if none is known.


def longest_behind(lag_seconds: float, lag: int, group_id: str) -> tuple[float, int, str]:
    """Return the sort key of groups by the time that they are behind, the longest first.

    A group that is behind for an unknown time is sorted before those that aren't behind. Groups
    with equal times are sorted by messages.
    """
    return -max(lag_seconds, 0), -lag, group_id


def facts(core: Core, now_ms: int, turn: Turn) -> Iterator[GroupFacts | None]:
    """Yield each group once, unordered, and None whenever *turn* is over.

    Groups created during the iteration may be missing.
    """
    for group_id in list(core.groups):
        group = core.groups.get(group_id)
        if group is None:
            continue
        yield from _group_facts(core, group, now_ms, turn)
        if turn.is_over_after(GROUP_LOOKS):
            yield None


def facts_of(core: Core, group_id: str, now_ms: int, turn: Turn) -> Iterator[GroupFacts | None]:
    """Yield the figures of one group, nothing if it doesn't exist; None whenever *turn* is over."""
    group = core.groups.get(group_id)
    if group is not None:
        yield from _group_facts(core, group, now_ms, turn)


def _group_facts(core: Core, group: Group, now_ms: int, turn: Turn) -> Iterator[GroupFacts | None]:
    total = yield from total_lag(core, group, turn, now_ms=now_ms)
    samples = group.lag_samples
    earlier = (UNKNOWN, UNKNOWN) if samples is None else samples.earlier(now_ms)
    idle = 0
    members = iter(list(group.members.values()))
    while chunk := list(islice(members, TURN_LOOKS)):
        idle += sum(member.owned == NOTHING for member in chunk)
        if turn.is_over_after(len(chunk)):
            yield None
    yield GroupFacts.of(
        group,
        empty_members=idle,
        partitions=total.partitions,
        unknown=total.unknown,
        lag=total.lag,
        lag_seconds=seconds(total.behind_ms),
        earlier=earlier,
    )


def group_curve(core: Core, group_id: str, minute: int) -> tuple[int, ...]:
    """Return the lags of a group in the last hour, one per minute, up to *minute*."""
    group = core.groups.get(group_id)
    samples = None if group is None else group.lag_samples
    return () if samples is None else samples.last(minute, SAMPLES_KEPT)


def curve(core: Core, group_id: str, topic: str, partition: int, minute: int) -> tuple[int, ...]:
    """Return the lags of a partition in the last hour, one per minute; -1: unknown."""
    group = core.groups.get(group_id)
    stored = None if group is None else group.offsets.get(topic)
    curves = None if stored is None else stored.curves
    return () if curves is None else curves.last(partition, minute)


def topic_facts(core: Core, group_id: str, now_ms: int, turn: Turn) -> Iterator[TopicFacts | None]:
    """Yield the topics of a group by name, and None whenever *turn* is over.

    Topics of a group are those with a committed or owned partition.
    """
    group = core.groups.get(group_id)
    if group is None:
        return
    owners = yield from owners_of(group, None, turn)
    order = yield from in_order(group.offsets, owners)
    for topic in order:
        yield from _topic_facts(core, group, topic, owners.get(topic, {}), now_ms, turn)
        if turn.is_over_after(GROUP_LOOKS):
            yield None


def _topic_facts(
    core: Core, group: Group, topic: str, owners: Mapping[int, str], now_ms: int, turn: Turn
) -> Iterator[TopicFacts | None]:
    stored = group.offsets.get(topic)
    total = LagSum()
    if stored is not None:
        yield from add_up(total, core.registry, topic, stored, turn, now_ms=now_ms)
    partitions = total.committed
    owned = iter(owners.items())
    members: set[str] = set()
    while pairs := list(islice(owned, TURN_LOOKS)):
        for partition, member_id in pairs:
            members.add(member_id)
            partitions += stored is None or partition not in stored.offsets
        if turn.is_over_after(len(pairs)):
            yield None
    yield TopicFacts(
        topic,
        partitions,
        len(members),
        len(owners),
        total.offset_sum,
        partitions - total.known,
        total.lag,
        seconds(total.behind_ms),
    )


def partition_facts(
    core: Core,
    group_id: str,
    now_ms: int,
    turn: Turn,
    *,
    topic: str | None = None,
    after: tuple[str, int] | None = None,
) -> Iterator[PartitionFacts | None]:
    """Yield the committed and owned partitions of a group, by topic and number.

    Yields None whenever *turn* is over.

    Args:
        core: The shard of the group.
        group_id: The group; nothing is yielded if it doesn't exist.
        now_ms: The monotonic time.
        turn: The work until a pause.
        topic: Yield partitions of this topic only.
        after: Begin after this partition.
    """
    group = core.groups.get(group_id)
    if group is None:
        return
    owners = yield from owners_of(group, topic, turn)
    if topic is None:
        order = yield from in_order(group.offsets, owners)
    else:
        order = [topic]
    for name in order:
        first = 0
        if after is not None:
            if name < after[0]:
                continue
            first = after[1] + 1 if name == after[0] else 0
        owned = owners.get(name, {})
        for numbers in _numbers(group.offsets.get(name, ()), owned, first, turn):
            if numbers is None:
                yield None
                continue
            yield from _partition_facts(core, group, name, numbers, owned, now_ms)
            if turn.is_over_after(BEHIND_LOOKS * len(numbers)):
                yield None


def _numbers(
    committed: Iterable[int], owned: Iterable[int], first: int, turn: Turn
) -> Iterator[list[int] | None]:
    """Yield the union from *first* on, sorted, in parts; None whenever *turn* is over."""
    runs: dict[int, set[int]] = {}
    size = TURN_LOOKS // BEHIND_LOOKS
    both = chain(list(committed), owned)
    while chunk := list(islice(both, TURN_LOOKS)):
        for partition in chunk:
            if partition >= first:
                runs.setdefault(partition // size, set()).add(partition)
        if turn.is_over_after(len(chunk)):
            yield None
    for run in sorted(runs):
        yield sorted(runs[run])


def _partition_facts(
    core: Core,
    group: Group,
    topic: str,
    numbers: Sequence[int],
    owners: Mapping[int, str],
    now_ms: int,
) -> Iterator[PartitionFacts]:
    registry = core.registry
    ends, history = registry.ends_of(topic), registry.ends_history.of(topic)
    stored = group.offsets.get(topic) or StoredOffsets()
    committed = [one for number in numbers if (one := stored.offsets.get(number)) is not None]
    columns = lag_columns(registry, topic, committed, now_ms)
    behind = zip(committed, columns.lags, columns.behind_ms, strict=True)
    found = {one.partition: (one, lag, behind_ms) for one, lag, behind_ms in behind}
    for number in numbers:
        one, lag, behind_ms = found.get(number, (None, UNKNOWN, UNKNOWN))
        end = ends.get(number)
        yield PartitionFacts(
            topic,
            number,
            owners.get(number, ""),
            NO_OFFSET if one is None else one.offset,
            NO_OFFSET if end is None else end.end_offset,
            lag,
            seconds(behind_ms),
            UNKNOWN if one is None else stored.committed_ms(number),
            UNKNOWN if end is None else history.told_ms(end),
            "" if one is None else one.metadata,
        )


def member_facts(
    core: Core, group_id: str, now_ms: int, turn: Turn
) -> Iterator[MemberFacts | None]:
    """Yield the members of a group in the order of joining, and None whenever *turn* is over."""
    group = core.groups.get(group_id)
    if group is None:
        return
    for member in list(group.members.values()):
        lag = known = 0
        owned = iter(member.owned or ())
        while chunk := list(islice(owned, TURN_LOOKS)):
            for topic, partition in chunk:
                stored = group.offsets.get(topic)
                one = None if stored is None else stored.offsets.get(partition)
                end = core.registry.ends_of(topic).get(partition)
                if one is not None and end is not None and one.offset <= end.end_offset:
                    known += 1
                    lag += end.end_offset - one.offset
            if turn.is_over_after(len(chunk)):
                yield None
        yield MemberFacts(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.member_id == group.leader,
            max(now_ms - member.heard_ms, 0),
            member.session_timeout_ms,
            len(member.owned or ()),
            len(member.owned or ()) - known,
            lag if known else UNKNOWN,
            member.drained,
            history.JOIN if member.join else history.SYNC if member.sync else "",
        )
        if turn.is_over_after(1):
            yield None


def running(core: Core, group_id: str, now_ms: int) -> RunningFacts | None:
    """Return the running rebalance of a group, None without one."""
    group = core.groups.get(group_id)
    if group is None or group.rebalance is None:
        return None
    report = group.rebalance.report(0, group.generation, "", now_ms)
    is_join = group.rebalance.completed_ms is None
    return RunningFacts(
        report.started_ms,
        report.trigger,
        report.member_id,
        report.client_id,
        report.client_host,
        report.reason,
        report.old_generation,
        history.JOIN if is_join else history.SYNC,
        report.join_ms,
        report.sync_ms,
        tuple(islice(_missing(group, is_join=is_join), WAITING_FOR_MAX)),
    )


def _missing(group: Group, *, is_join: bool) -> Iterator[str]:
    for one in chain[Watched](group.members.values(), group.pending.values()):
        if one.is_awaited(in_join=is_join):
            yield one.member_id


def topic_end_facts(registry: Registry, now: Now, turn: Turn) -> Iterator[TopicEndFacts | None]:
    """Yield all topics by name, and None whenever *turn* is over."""
    order = yield from in_order(registry.topics)
    for topic in order:
        count = registry.partition_count(topic)
        if not count:
            continue
        end_sum = known = 0
        longest_ms = UNKNOWN
        ends = iter(list(registry.ends_of(topic).values()))
        while chunk := list(islice(ends, TURN_LOOKS)):
            end_sum += sum(end.end_offset for end in chunk)
            known += len(chunk)
            age_ms = registry.ends_history.of(topic).age_ms
            longest_ms = max(longest_ms, *(age_ms(end, now.mono_ms, now.wall_ms) for end in chunk))
            if turn.is_over_after(len(chunk)):
                yield None
        end_sum = end_sum if known else UNKNOWN
        yield TopicEndFacts(topic, count, count - known, end_sum, longest_ms)
        if turn.is_over_after(1):
            yield None


def seconds(ms: int) -> float:
    """Return *ms* in seconds, UNKNOWN if it is unknown."""
    return float(UNKNOWN) if ms == UNKNOWN else ms / 1000
