"""Distributes interchangeable partitions to members, whose numbers of partitions are fixed.

The numbers (`Seats`) are fixed first: neither keeping a member's old partitions nor preferring
partitions on its host can then make the result less balanced.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, Self, TypeVar

from client.assignors.base import Hosts, Members, Partitions, in_order
from protocol.partition import TopicPartition

# Type of a unit, the thing that is distributed: one partition, or the partitions of several topics
# with the same number.
U = TypeVar("U", bound=Hashable)


class Audience(NamedTuple):
    """Members (in order), and the topics (sorted) that exactly these members read.

    Any of the members can take any partition of these topics.
    """

    members: tuple[str, ...]
    topics: tuple[str, ...]

    def partitions(self, of: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return all partitions of these topics, by topic and number."""
        return [TopicPartition(topic, number) for topic in self.topics for number in of[topic]]


def audiences(members: Members, partitions: Partitions) -> list[Audience]:
    """Group the topics that have partitions and readers; the smallest audience first.

    Members without an existing topic are in no audience.
    """
    readers: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in set(member.topics):
            if partitions.get(topic):
                readers.setdefault(topic, []).append(member.member_id)
    topics: dict[tuple[str, ...], list[str]] = {}
    for topic in sorted(readers):
        topics.setdefault(tuple(readers[topic]), []).append(topic)
    grouped = [Audience(ids, tuple(names)) for ids, names in topics.items()]
    return sorted(grouped, key=lambda audience: (len(audience.members), audience.topics))


def are_disjoint(grouped: Sequence[Audience]) -> bool:
    """Return whether no member is in two audiences, so that each can be distributed on its own.

    The simplest case: all subscriptions are equal.
    """
    ids = [member_id for audience in grouped for member_id in audience.members]
    return len(ids) == len(set(ids))


class Near(NamedTuple, Generic[U]):
    """Hosts of members and of units (KIP-881; Kafka's word is rack).

    A unit is near a member if a copy is on the member's host. All copies count, whether in sync or
    not.
    """

    host_of: Mapping[str, str]  # The host of each member that has one.
    hosts_of: Mapping[U, frozenset[str]]  # The hosts of each unit.

    def near(self, unit: U, member_id: str | None) -> bool:
        """Return whether *member_id* is on a host of *unit*; None stands for no member."""
        return member_id is not None and self.host_of.get(member_id) in self.hosts_of[unit]

    def makes_a_difference(self) -> bool:
        """Return whether some unit is near a member, and not all units are on all hosts."""
        everywhere = frozenset().union(*self.hosts_of.values())
        return not everywhere.isdisjoint(self.host_of.values()) and any(
            hosts != everywhere for hosts in self.hosts_of.values()
        )


def near_partitions(
    members: Members,
    tps: Iterable[TopicPartition],
    hosts: Hosts,
) -> Near[TopicPartition] | None:
    """Return the hosts of *members* and *tps*; None if hosts make no difference."""
    host_of = {one.member_id: one.host for one in members if one.host is not None}
    if not hosts or not host_of:
        return None
    found = Near(host_of, {tp: frozenset(hosts.get(tp, ())) for tp in tps})
    return found if found.makes_a_difference() else None


class Seats:
    """Number of units for each member: its base, and one more while there are extras."""

    __slots__ = ("_base", "_extras", "taken")

    def __init__(self, base: Mapping[str, int], extras: int = 0) -> None:
        """Take the base of each member; *extras* of them get one more."""
        self._base = base
        self._extras = extras
        self.taken = dict.fromkeys(base, 0)

    @classmethod
    def even(cls, member_ids: Sequence[str], count: int) -> Self:
        """Return seats for *count* units; members differ by at most one."""
        base, extras = divmod(count, len(member_ids))
        return cls(dict.fromkeys(member_ids, base), extras)

    def below_base(self, member_id: str) -> bool:
        """Return whether the member has fewer units than its base."""
        return self.taken[member_id] < self._base[member_id]

    def free(self, member_id: str) -> bool:
        """Return whether the member has a free seat."""
        left = self._base[member_id] - self.taken[member_id]
        return left > 0 or (left == 0 and self._extras > 0)

    def take(self, member_id: str) -> None:
        """Use one seat."""
        if self.taken[member_id] == self._base[member_id]:
            self._extras -= 1
        self.taken[member_id] += 1

    def give_back(self, member_id: str) -> None:
        """Free one seat."""
        self.taken[member_id] -= 1
        if self.taken[member_id] == self._base[member_id]:
            self._extras += 1


def share_out(
    units: Sequence[U],
    seats: Seats,
    wishes: Iterable[Mapping[U, str]] = (),
    near: Near[U] | None = None,
    *,
    in_a_row: bool = False,
) -> dict[str, list[U]]:
    """Distribute the units; return those of each member. There is exactly one seat for each unit.

    Args:
        units: The units, in order.
        seats: The number of units of each member; its members are in order.
        wishes: The preferred member of units, such as the last owner. Earlier wishes come first.
            If a wish gives a member too many units, it loses those at the end of the wish.
        near: The hosts of members and units, if they matter. They count more than the wishes.
        in_a_row: Give each member its remaining units in a row, instead of one to each in turn.

    """
    placing = _Placing(units, seats)
    for wish in wishes:
        placing.keep(wish)
    if near is not None:
        placing.seat_near(near, crowd=in_a_row)
    if in_a_row:
        placing.fill()
    else:
        placing.deal()
    if near is not None:
        placing.swap_near(near)
    result: dict[str, list[U]] = {member_id: [] for member_id in seats.taken}
    for unit, member_id in placing.holder.items():
        result[member_id].append(unit)
    return result


class _Free:
    """Members with a free seat, by host: the first in order if *crowd*, else the least loaded."""

    def __init__(self, seats: Seats, host_of: Mapping[str, str], *, crowd: bool) -> None:
        self._seats = seats
        self._weight = 0 if crowd else 1
        self._ids = list(seats.taken)
        self._heaps: dict[str, list[tuple[int, int]]] = {}
        for position, member_id in enumerate(self._ids):
            if member_id in host_of:
                entry = self._entry(position)
                heappush(self._heaps.setdefault(host_of[member_id], []), entry)
        self._counts = {host: len(heap) for host, heap in self._heaps.items()}

    def members_on(self, hosts: Iterable[str]) -> int:
        """Return the number of members on *hosts*, with or without a free seat."""
        return sum(self._counts.get(host, 0) for host in hosts)

    def first(self, hosts: Iterable[str]) -> str | None:
        """Return the member that should take a unit on *hosts*; None if no member can."""
        found = [entry for host in hosts if (entry := self._first_on(host)) is not None]
        return self._ids[min(found)[1]] if found else None

    def _entry(self, position: int) -> tuple[int, int]:
        return self._weight * self._seats.taken[self._ids[position]], position

    def _first_on(self, host: str) -> tuple[int, int] | None:
        heap = self._heaps.get(host, [])
        while heap:
            # Entries of the heap may be out of date.
            now = self._entry(heap[0][1])
            if not self._seats.free(self._ids[now[1]]):
                heappop(heap)
            elif heap[0] != now:
                heapreplace(heap, now)
            else:
                return now
        return None


class _Placing(Generic[U]):
    def __init__(self, units: Sequence[U], seats: Seats) -> None:
        self._units = units
        self._seats = seats
        self._kept: set[U] = set()
        self.holder: dict[U, str] = {}

    def keep(self, wish: Mapping[U, str]) -> None:
        """Give members the units of *wish*, as far as they have free seats."""
        wished: dict[str, list[U]] = {member_id: [] for member_id in self._seats.taken}
        for unit, member_id in wish.items():
            if unit not in self.holder:
                wished[member_id].append(unit)
        for member_id, units in wished.items():
            for unit in units:
                if not self._seats.free(member_id):
                    break
                self._seats.take(member_id)
                self.holder[unit] = member_id
                self._kept.add(unit)

    def seat_near(self, near: Near[U], *, crowd: bool) -> None:
        """Give units that have no member, or a distant one, to near members with a free seat.

        Units with the fewest near members come first. With *crowd* the first member fills its
        seats before the next one gets any; otherwise the member with the fewest units takes it.
        """
        free = _Free(self._seats, near.host_of, crowd=crowd)
        far = [unit for unit in self._units if not near.near(unit, self.holder.get(unit))]
        far.sort(key=lambda unit: free.members_on(near.hosts_of[unit]))
        for unit in far:
            member_id = free.first(near.hosts_of[unit])
            if member_id is None:
                continue
            old = self.holder.pop(unit, None)
            if old is not None:
                self._seats.give_back(old)
            self._seats.take(member_id)
            self.holder[unit] = member_id

    def fill(self) -> None:
        """Give each member in turn all units for its free seats."""
        rest = deque(unit for unit in self._units if unit not in self.holder)
        for member_id in self._seats.taken:
            while rest and self._seats.free(member_id):
                self._seats.take(member_id)
                self.holder[rest.popleft()] = member_id

    def deal(self) -> None:
        """Give one unit to each member in turn up to its base, then the extras."""
        ids = list(self._seats.taken)
        turns = deque(member_id for member_id in ids if self._seats.below_base(member_id))
        rest = deque(unit for unit in self._units if unit not in self.holder)
        while rest and turns:
            member_id = turns.popleft()
            self._seats.take(member_id)
            self.holder[rest.popleft()] = member_id
            if self._seats.below_base(member_id):
                turns.append(member_id)
        for member_id in ids:
            if rest and self._seats.free(member_id):
                self._seats.take(member_id)
                self.holder[rest.popleft()] = member_id

    def swap_near(self, near: Near[U]) -> None:
        """Exchange pairs of distant units, while an exchange makes one of them near.

        Units that members kept from earlier are moved last. An exchange never gives a member more
        distant units than it had, so one pass is enough.
        """
        far = [unit for unit in self._units if not near.near(unit, self.holder[unit])]
        far.sort(key=lambda unit: unit not in self._kept)
        offered: dict[str, list[U]] = {}

        def offer(unit: U) -> None:
            host = near.host_of.get(self.holder[unit])
            if host is not None:
                offered.setdefault(host, []).append(unit)

        for unit in far:
            offer(unit)
        for unit in far:
            if near.near(unit, self.holder[unit]):
                continue
            for host in sorted(near.hosts_of[unit]):
                others = offered.get(host, [])
                while others and near.host_of.get(self.holder[others[-1]]) != host:
                    others.pop()  # Moved away since.
                if others:
                    other = others.pop()
                    holder = self.holder
                    holder[unit], holder[other] = holder[other], holder[unit]
                    if not near.near(other, holder[other]):
                        offer(other)
                    break
