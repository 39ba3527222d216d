"""What one consumer group does, said naively: lists, scans over everybody, no heap, no log.

The specification (the reference of the group's semantics and docs/decisions) a second time, by
other means, for test_machine.py to compare with. A request returns its error code, or None while it
is parked; the code of a parked one lands in `answers` later. Left out, as no step of the test can
reach it: limits in bytes, drains, topics, and the five minutes of a first JoinGroup.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial

MAX_SIZE, DELAY_MS = 4, 3_000
PREPARING, COMPLETING, STABLE, EMPTY = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Empty",
)
Name = str | None
Offers = tuple[tuple[str, bytes], ...]  # Protocols and their metadata, the preferred one first.
Times = tuple[int, int]  # Session and rebalance timeout, in ms.


@dataclass
class Member:
    """One member; its session ends at ``due`` unless a JoinGroup or SyncGroup is parked."""

    id: str
    instance: Name
    offers: Offers
    times: Times
    due: int = 0
    parked: int | None = None  # The token of what it waits for.
    synced: bool = False
    is_loaded: bool = False  # Since the last crash; may have been drained before it.
    owned: frozenset[str] = frozenset()
    former: frozenset[str] = frozenset()  # Owned before, and in this generation by nobody.


def common(offers: Iterable[Offers]) -> set[str]:
    """Return the protocols that everybody supports."""
    return set.intersection(*({name for name, _ in one} for one in offers))


class Model:
    """One group."""

    def __init__(self) -> None:
        self.now = self.generation = self.ids_given = self.token = 0
        self.answers: dict[int, int] = {}
        self.exists = False
        self.offsets: dict[str, int] = {}
        self.members: list[Member] = []
        self.leader: Name = None
        self.protocol: Name = None
        self.keep()
        self.reload()

    def keep(self) -> None:
        """Write what a crash leaves, besides the generation and the offsets."""
        self.record = deepcopy((self.generation, self.members, self.leader, self.protocol))

    def reload(self) -> None:
        """Forget everything soft, and begin anew with the rest."""
        assigned, self.members, self.leader, self.protocol = deepcopy(self.record)
        self.pending: dict[str, int] = {}  # Member id -> when it is taken back.
        self.timer: int | None = None  # When the join or the sync phase has lasted long enough.
        self.initial: Times | None = None  # The initial delay of now, and what remains.
        self.came_meanwhile = False
        self.state = STABLE if self.members else EMPTY
        for m in self.members:
            m.parked, m.synced, m.former, m.due = None, True, frozenset(), self.now + m.times[0]
            m.is_loaded = True
            m.offers = tuple(offer for offer in m.offers if offer[0] == self.protocol)
        self.is_recovering = bool(self.members) and self.generation > assigned
        if self.is_recovering:
            self.state, self.timer = PREPARING, self.now + self.longest()

    def longest(self) -> int:
        """Return the longest rebalance timeout."""
        return max((m.times[1] for m in self.members), default=0)

    def holder(self, instance: Name) -> Member | None:
        """Return the member with that instance id."""
        return next((m for m in self.members if instance and m.instance == instance), None)

    def named(self, id_: str, instance: Name) -> tuple[Member | None, int]:
        """Return the member with that id, or why id and instance are nobody's."""
        member = next((m for m in self.members if m.id == id_), None)
        holder = self.holder(instance)
        if instance and holder is not member:
            return None, 82 if holder else 25
        return member, 0 if member else 25

    def answer(self, member: Member, code: int) -> None:
        """Answer what *member* has parked, if anything; its session starts anew."""
        if member.parked is not None:
            self.answers[member.parked], member.parked = code, None
            member.due = self.now + member.times[0]

    def new_id(self, prefix: str) -> str:
        """Return the next member id, as the test context makes them."""
        self.ids_given += 1
        return f"{prefix}-{self.ids_given:04d}"

    # --- requests ---------------------------------------------------------------------------

    def ask(self, token: int, request: Callable[..., int | None], *arguments: object) -> None:
        """Hand in *request*, one of the methods below."""
        self.token = token
        code = request(*arguments)
        if code is not None:
            self.answers[token] = code

    def join(self, id_: str, instance: Name, offers: Offers, times: Times) -> int | None:
        """JoinGroup."""
        old = None if id_ else self.holder(instance)
        member, error = (old, 0) if old else self.named(id_, instance)
        others = [m.offers for m in self.members if m is not old]
        is_given = id_ in self.pending
        known = {m.id for m in self.members} | set(self.pending)
        quiet = {COMPLETING} if id_ == self.leader else {COMPLETING, STABLE}
        if not self.exists and id_:
            return 25
        if not old and id_ not in known and len(known) >= MAX_SIZE:
            return 81
        if others and not common([offers, *others]):
            return 23
        if error and id_ and (instance or not is_given):
            return error
        self.exists = True
        if not id_ and not instance:
            self.pending[self.new_id("spark")] = self.now + times[0]
            return 79
        if old:
            return self.replace(old, offers, times)
        if not member:
            self.pending.pop(id_, None)
            member = Member(id_ or self.new_id(str(instance)), instance, offers, times)
            self.members.append(member)
            self.leader = self.leader or member.id
            self.came_meanwhile = True
            self.put_on_record(member)
        elif member.offers == offers and self.state in quiet:
            return 0
        member.offers, member.times = offers, times
        return self.park_join(member)

    def replace(self, member: Member, offers: Offers, times: Times) -> int | None:
        """Let a static member come back under a new id; the old one is fenced."""
        was_leader, old_topics = member.id == self.leader, member.offers[0][1]
        self.answer(member, 82)
        member.id = self.new_id(str(member.instance))
        member.offers, member.times, member.due = offers, times, self.now + times[0]
        self.leader = member.id if was_leader else self.leader
        may_be_drained, member.is_loaded = member.is_loaded and not member.owned, False
        is_same = self.state == STABLE and offers[0][1] == old_topics and not may_be_drained
        is_quiet = is_same and self.vote() == self.protocol
        self.put_on_record(member, is_quiet=is_quiet)
        return 0 if is_quiet else self.park_join(member)

    def put_on_record(self, member: Member, *, is_quiet: bool = False) -> None:
        """Let the last stable generation name an instance's new id, lest a crash fence it."""
        assigned, recorded, leader, protocol = self.record
        for m in recorded:
            if member.instance and m.instance == member.instance:
                leader = member.id if m.id == leader else leader
                m.id = member.id
                if is_quiet:
                    m.offers, m.times = member.offers, member.times
        self.record = assigned, recorded, leader, protocol

    def park_join(self, member: Member) -> int | None:
        """Let a JoinGroup wait for the others."""
        self.answer(member, 1007 if self.state == PREPARING else 27)
        member.parked = self.token
        self.go_on(member)
        return None

    def sync(
        self, id_: str, instance: Name, generation: int, given: dict[str, list[str]]
    ) -> int | None:
        """SyncGroup; *given* is what a leader gives to whom."""
        member, error = self.named(id_, instance)
        if not member or generation != self.generation or self.state == PREPARING:
            return error or (22 if generation != self.generation else 27)
        member.synced = True
        was_stable = self.state == STABLE
        if not was_stable:
            self.answer(member, 1007)
            member.parked = self.token
            if member.id == self.leader:
                self.assign(member, given)
        if self.state == STABLE and all(m.synced for m in self.members):
            self.timer = None
        return 0 if was_stable else None

    def assign(self, leader: Member, given: dict[str, list[str]]) -> None:
        """Bring an assignment into force, or throw its author out."""
        named = [name for names in given.values() for name in names]
        if not set(given) <= {m.id for m in self.members} or len(named) != len(set(named)):
            self.remove(leader, code=42)
            self.go_on()
            return
        self.state = STABLE
        for m in self.members:
            m.former, m.owned = m.owned - set(named), frozenset(given.get(m.id, []))
            self.answer(m, 0)
        self.keep()

    def beat(self, id_: str, instance: Name, generation: int) -> int:
        """Heartbeat."""
        member, error = self.named(id_, instance)
        assigned = self.record[0] if self.is_recovering else self.generation
        if not member or generation not in {assigned, self.generation}:
            return error or 22
        member.due = self.now + member.times[0]
        return 27 if self.state == PREPARING else 0

    def leave(self, id_: str, instance: Name) -> int:
        """LeaveGroup of one member; an operator names the instance alone."""
        if id_ in self.pending and not instance:
            del self.pending[id_]
            self.maybe_complete()
            return 0
        member, error = self.named(id_, instance)
        member = member if id_ else self.holder(instance)
        if not member:
            return error
        self.remove(member)
        self.go_on()
        return 0

    def commit(self, id_: str, instance: Name, generation: int, name: str, offset: int) -> int:
        """OffsetCommit of one partition."""
        if not self.exists and generation >= 0:
            return 69
        if generation >= 0 or self.state != EMPTY:
            member, error = self.named(id_, instance)
            if not member or generation != self.generation:
                return error or 22
            if self.state == COMPLETING or self.generation != self.record[0]:
                return 27
            member.due = self.now + member.times[0]
            if name not in member.owned | member.former:
                return 1002
        self.exists = True
        self.offsets[name] = offset
        return 0

    # --- the rebalance ----------------------------------------------------------------------

    def go_on(self, newcomer: Member | None = None) -> None:
        """Somebody came or went: start a rebalance, or see whether all are there."""
        if self.state != PREPARING:
            for m in self.members:
                if m is not newcomer:
                    self.answer(m, 27)
            delay = DELAY_MS if self.state == EMPTY else 0
            self.initial = (delay, max(self.longest() - delay, 0)) if delay else None
            self.timer = self.now + (delay or self.longest())
            self.state, self.came_meanwhile = PREPARING, False
        self.maybe_complete()

    def maybe_complete(self) -> None:
        """Begin the next generation if nobody is missing."""
        are_in = all(m.parked is not None for m in self.members) and not self.pending
        if self.state == PREPARING and (not self.members or (are_in and not self.initial)):
            self.complete()

    def complete(self) -> None:
        """Begin the next generation, or become Empty."""
        self.generation += 1
        self.timer, self.initial, self.is_recovering = None, None, False
        if not self.members:
            self.state, self.leader, self.protocol = EMPTY, None, None
            self.keep()
            return
        back = [m.id for m in self.members if m.parked is not None]
        self.leader = self.leader if self.leader in back else back[0]
        self.state, self.protocol = COMPLETING, self.vote()
        self.timer = self.now + self.longest()
        for m in self.members:
            m.synced = m.is_loaded = False
            self.answer(m, 0)

    def vote(self) -> str:
        """Return the protocol that most prefer; a tie goes to the one named first."""
        all_know = common(m.offers for m in self.members)
        votes = [next(name for name, _ in m.offers if name in all_know) for m in self.members]
        return max(votes, key=votes.count)

    def remove(self, *members: Member, code: int = 25) -> None:
        """Take members out; what they have parked gets *code*."""
        for m in members:
            self.answer(m, code)
            self.members.remove(m)
            if self.leader == m.id:
                self.leader = self.members[0].id if self.members else None

    # --- time -------------------------------------------------------------------------------

    def advance(self, by_ms: int) -> None:
        """Let time pass; whatever is due happens, the earliest first. Silence is like leaving."""
        end = self.now + by_ms
        while True:
            dues: list[tuple[int, Callable[[], object]]] = [
                *(
                    (m.due, partial(self.leave, m.id, None))
                    for m in self.members
                    if m.parked is None
                ),
                *((due, partial(self.leave, id_, None)) for id_, due in self.pending.items()),
                *([] if self.timer is None else [(self.timer, self.fire)]),
            ]
            due, act = min(dues, key=lambda entry: entry[0], default=(end + 1, self.go_on))
            if due > end:
                break
            self.now = max(self.now, due)
            act()
        self.now = end

    def fire(self) -> None:
        """Look again at the initial delay, or go on without the missing."""
        self.timer = None
        if self.state != PREPARING:
            self.remove(*[m for m in self.members if not m.synced])
            self.go_on()
            return
        if self.initial and self.initial[1] and self.came_meanwhile:
            before, remains = self.initial
            self.initial = min(DELAY_MS, remains), max(remains - before, 0)
            self.timer, self.came_meanwhile = self.now + self.initial[0], False
            return
        self.initial = None
        self.remove(*[m for m in self.members if m.parked is None and not m.instance])
        if not self.members or any(m.parked is not None for m in self.members):
            self.complete()
        else:
            self.timer = self.now + max(self.longest(), 500)
