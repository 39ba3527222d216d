"""Who gets which of some interchangeable partitions, once it is clear how many each gets.

The numbers are fixed before (`Seats`), so that neither keeping what a member had nor being
near to it can cost balance.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from typing import Generic, NamedTuple, Self, TypeVar

from client.assignors.base import Hosts, Members, Partitions, in_order
from protocol.partition import TopicPartition

# What is handed out: one partition, or the partitions with one number of several topics.
U = TypeVar("U", bound=Hashable)


class Audience(NamedTuple):
    """Some members (in order), and the topics (sorted) that they and nobody else read.

    Among these topics, partitions can be exchanged.
    """

    members: tuple[str, ...]
    topics: tuple[str, ...]

    def partitions(self, of: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return all partitions of these topics, by topic and number."""
        return [TopicPartition(topic, number) for topic in self.topics for number in of[topic]]


def audiences(members: Members, partitions: Partitions) -> list[Audience]:
    """Group the topics that have partitions and readers; the smallest audience first.

    Members that read nothing (that exists) are in no audience.
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
    """Return whether nobody is in two audiences, so that each can be served on its own.

    Equal subscriptions are the plainest case of it.
    """
    ids = [member_id for audience in grouped for member_id in audience.members]
    return len(ids) == len(set(ids))


class Near(NamedTuple, Generic[U]):
    """The hosts of some members and of what they are to share (KIP-881; Kafka says rack).

    All copies of a partition count, whether in sync or not.
    """

    host_of: Mapping[str, str]  # Of each member that has one.
    hosts_of: Mapping[U, frozenset[str]]  # Of each unit that is to be handed out.

    def near(self, unit: U, member_id: str | None) -> bool:
        """Return whether *member_id* (None: nobody) is on a host of *unit*."""
        return member_id is not None and self.host_of.get(member_id) in self.hosts_of[unit]

    def makes_a_difference(self) -> bool:
        """Return whether somebody is near to something, and not everything is everywhere."""
        everywhere = frozenset().union(*self.hosts_of.values())
        return not everywhere.isdisjoint(self.host_of.values()) and any(
            hosts != everywhere for hosts in self.hosts_of.values()
        )


def near_partitions(
    members: Members,
    tps: Iterable[TopicPartition],
    hosts: Hosts,
) -> Near[TopicPartition] | None:
    """Return who is near to which of *tps*; None where hosts make no difference."""
    host_of = {one.member_id: one.host for one in members if one.host is not None}
    if not hosts or not host_of:
        return None
    found = Near(host_of, {tp: frozenset(hosts.get(tp, ())) for tp in tps})
    return found if found.makes_a_difference() else None


class Seats:
    """How many each member gets: its base, and one of the extras while there are any."""

    __slots__ = ("_base", "_extras", "taken")

    def __init__(self, base: Mapping[str, int], extras: int = 0) -> None:
        """Take the base of each member, and how many of them get one more."""
        self._base = base
        self._extras = extras
        self.taken = dict.fromkeys(base, 0)

    @classmethod
    def even(cls, member_ids: Sequence[str], count: int) -> Self:
        """Return the seats for *count* units that differ by at most one."""
        base, extras = divmod(count, len(member_ids))
        return cls(dict.fromkeys(member_ids, base), extras)

    def below_base(self, member_id: str) -> bool:
        """Return whether the member has less than it must get."""
        return self.taken[member_id] < self._base[member_id]

    def free(self, member_id: str) -> bool:
        """Return whether the member can take one more."""
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
    """Return the units of each member of *seats*; there is exactly one seat for each unit.

    Args:
        units: What is handed out, in order.
        seats: How many each gets; its members in order.
        wishes: Who should have what. The first counts most; within one, the units that come
            first are the last that a member with too many loses.
        near: Who is near to what, if that plays a part. It counts more than the wishes.
        in_a_row: Give each member its rest in a row, instead of one to each in turn.

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
    """Who has a free seat, by host: with *crowd* the first in order first, else the emptiest."""

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
        """Return how many members there are on *hosts*, free or not."""
        return sum(self._counts.get(host, 0) for host in hosts)

    def first(self, hosts: Iterable[str]) -> str | None:
        """Return who should take what is on *hosts*; None where nobody can."""
        found = [entry for host in hosts if (entry := self._first_on(host)) is not None]
        return self._ids[min(found)[1]] if found else None

    def _entry(self, position: int) -> tuple[int, int]:
        return self._weight * self._seats.taken[self._ids[position]], position

    def _first_on(self, host: str) -> tuple[int, int] | None:
        heap = self._heaps.get(host, [])
        while heap:
            # What is in the heap may be out of date.
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
        """Let members keep what they had, as far as their seats go."""
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
        """Bring what is far from its holder, or has none, to members that are near and free.

        What the fewest are near to comes first. With *crowd* the first member takes what it
        can before the next one takes any; else the one that has least takes it.
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
        """Give each member in turn all that it still gets."""
        rest = deque(unit for unit in self._units if unit not in self.holder)
        for member_id in self._seats.taken:
            while rest and self._seats.free(member_id):
                self._seats.take(member_id)
                self.holder[rest.popleft()] = member_id

    def deal(self) -> None:
        """Give one to each member in turn up to its base, then the extras."""
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
        """Exchange two units that both are far, until that brings none nearer.

        What its holder had before is moved last. A member never comes to hold more that is
        far than it did, so that one pass is enough.
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
                    others.pop()  # It has moved since.
                if others:
                    other = others.pop()
                    holder = self.holder
                    holder[unit], holder[other] = holder[other], holder[unit]
                    if not near.near(other, holder[other]):
                        offer(other)
                    break
