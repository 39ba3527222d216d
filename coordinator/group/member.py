"""The members of a group, the ids that may become one, and their deadlines.

Theory of operation of the timers
=================================

A timer has one live entry in a heap, which may be too early: moving its deadline later only
overwrites a field, and the entry is moved when it surfaces. So a member that commits a thousand
times a second costs two stores each, and no memory.

The entry of a timer that was turned off stays until it surfaces, which may be weeks later. So
whenever the heap has doubled, those entries are thrown out.

Deadlines are kept in a time of their own that stands still while the process is stalled:
`Timers.shift` is one addition, whatever the number of timers.

A timer names its group and member by id. So no circle of references keeps a group in memory that
isn't served any more; the collector would not find it, because what was loaded is frozen
(`gc.freeze`).
"""

import heapq
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from protocol.consumer import decode_assignment, decode_subscription, subscribed_topics
from protocol.messages import JoinProtocol
from protocol.partition import TopicPartition

CONSUMER: Final = "consumer"

# Topic and partition.
Owned = frozenset[tuple[str, int]]
NOTHING: Final[Owned] = frozenset()

# What msgpack adds to a member's fields, rounded up.
MEMBER_OVERHEAD_BYTES: Final = 48

# With so many entries in the heap at least, those that are off are looked for.
PRUNE_MIN: Final = 256


class TimerKind(Enum):
    """What happens when it is due."""

    SESSION = "a member was not heard from"
    PENDING = "a member id was given out and not used"
    JOIN = "the join phase has lasted long enough"
    SYNC = "the sync phase has lasted long enough"
    SWEEP = "a slice of the work on all groups"


@dataclass(slots=True, eq=False)
class Timer:
    """One deadline that can be moved at will; off until armed."""

    kind: TimerKind
    group_id: str = ""  # Empty for the timer of the whole shard.
    member_id: str = ""  # Also of an id that was only given out.
    deadline_ms: int | None = None  # In the timers' own time; None is off.
    armed_ms: int | None = None  # Where its live heap entry stands, never later.


class _Entry(NamedTuple):
    at_ms: int
    sequence: int  # Ties go by the order of arming, so that a run can be repeated.
    timer: Timer


class Timers:
    """All deadlines of a shard, with cheap re-arming."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._prune_at = PRUNE_MIN
        self._sequence = 0
        self._shift_ms = 0

    def __len__(self) -> int:
        """Return how many entries the heap has."""
        return len(self._heap)

    def arm(self, timer: Timer, at_ms: int) -> None:
        """Let *timer* be due at the monotonic time *at_ms*, whenever it was due before."""
        deadline_ms = at_ms - self._shift_ms
        timer.deadline_ms = deadline_ms
        if timer.armed_ms is None or deadline_ms < timer.armed_ms:
            self._push(timer, deadline_ms)

    @staticmethod
    def cancel(timer: Timer) -> None:
        """Turn *timer* off."""
        timer.deadline_ms = None

    def shift(self, by_ms: int) -> None:
        """Move every deadline by *by_ms*."""
        self._shift_ms += by_ms

    def next_deadline_ms(self) -> int | None:
        """Return when the earliest timer is due, or None when all are off."""
        while self._heap:
            at_ms, _, timer = self._heap[0]
            if timer.armed_ms != at_ms:
                heapq.heappop(self._heap)  # Superseded by an earlier entry.
                continue
            if timer.deadline_ms == at_ms:
                return at_ms + self._shift_ms
            heapq.heappop(self._heap)
            timer.armed_ms = None
            if timer.deadline_ms is not None:
                self._push(timer, timer.deadline_ms)
        return None

    def pop_due(self, now_ms: int) -> Timer | None:
        """Turn off and return the earliest timer if it is due at *now_ms*."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        timer = heapq.heappop(self._heap).timer
        timer.armed_ms = timer.deadline_ms = None
        return timer

    def _push(self, timer: Timer, at_ms: int) -> None:
        if len(self._heap) >= self._prune_at:
            self._prune()
        timer.armed_ms = at_ms
        self._sequence += 1
        heapq.heappush(self._heap, _Entry(at_ms, self._sequence, timer))

    def _prune(self) -> None:
        kept = []
        for entry in self._heap:
            timer = entry.timer
            if timer.armed_ms != entry.at_ms:
                continue  # Superseded by an earlier entry.
            if timer.deadline_ms is None:
                timer.armed_ms = None
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap = kept
        self._prune_at = max(2 * len(kept), PRUNE_MIN)


class Parked(NamedTuple):
    """A request that is answered later, and the monotonic time at which it came."""

    token: object
    at_ms: int


@dataclass(slots=True, eq=False)
class Watched:
    """Something that expires unless it is heard from in time."""

    member_id: str
    session_timeout_ms: int
    timer: Timer
    client_id: str
    client_host: str
    # Replies that wait for the disk: it can't be expected to act before it has them.
    in_gate: int = 0
    gated_at_ms: int = 0  # When the latest of them was decided.
    gone: bool = False  # No longer part of the group.
    principal: str | None = None  # Whose it is; None: of whoever has its id.

    def is_awaited(self, *, in_join: bool) -> bool:
        """Say whether the join phase, or else the sync phase, waits for it."""
        return in_join


@dataclass(slots=True, eq=False)
class PendingId(Watched):
    """A member id that was given out with MEMBER_ID_REQUIRED and not joined with yet."""


@dataclass(slots=True, eq=False, kw_only=True)
class Member(Watched):
    """Soft state of one member; what must survive a crash is in the group's record."""

    group_instance_id: str | None
    rebalance_timeout_ms: int
    protocols: tuple[JoinProtocol, ...]
    topic_pattern: str | None  # It wants whatever registered topic matches.
    # Monotonic time of its last request, or of our answer to one that was parked.
    heard_ms: int
    # The topics it subscribes to under the protocol in force; None if that can't be read.
    topics: tuple[str, ...] | None = ()
    join: Parked | None = None
    sync: Parked | None = None
    is_loaded: bool = False  # Known from the log: whether it was drained is forgotten.
    is_new: bool = True  # Until its first JoinGroup is answered.
    synced: bool = False  # Has sent its SyncGroup of this generation.
    drained: bool = False  # Asked to give everything up; lasts as long as the membership.
    # What it said it still has when it last joined, if it is drained.
    claimed: tuple[TopicPartition, ...] = ()
    assignment: bytes = b""  # Of the last generation that was assigned.
    # What the assignment names, read once a generation because every commit asks;
    # None where that can't be known.
    owned: Owned | None = NOTHING
    # What it owned in the last generation that was assigned, and nobody does in this one:
    # it may still commit that, which is how a cooperative member hands a partition over.
    former: Owned = NOTHING

    def is_awaited(self, *, in_join: bool) -> bool:
        """Say whether it has nothing parked in the join phase, or has not synced since."""
        return self.join is None if in_join else not self.synced

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return its subscription under *protocol*, empty if it has none."""
        for offered in self.protocols:
            if offered.name == protocol:
                return offered.metadata
        return b""

    def read_topics(self, protocol_type: str, protocol: str | None) -> None:
        """Note the topics of its subscription under *protocol*."""
        is_consumer = protocol_type == CONSUMER
        self.topics = subscribed_topics(self.metadata_for(protocol)) if is_consumer else None

    def read_claim(self, protocol_type: str, protocol: str | None) -> None:
        """Note what it still has: a drained cooperative member gives it up after this join.

        Who stayed away has given up everything (KIP-429: the claim is in the subscription).
        """
        self.claimed = ()
        if self.drained and self.join is not None and protocol_type == CONSUMER:
            read = decode_subscription(self.metadata_for(protocol))
            self.claimed = () if read is None else read.owned_partitions

    def answer_bytes(self) -> int:
        """Return the most that it can add to the leader's JoinGroup answer."""
        largest = max((len(p.metadata) for p in self.protocols), default=0)
        names = self.member_id + (self.group_instance_id or "") + (self.topic_pattern or "")
        return MEMBER_OVERHEAD_BYTES + len(names.encode()) + largest

    def record_bytes(self) -> int:
        """Return the most that it can add to the group's record, without its assignment."""
        return self.answer_bytes() + len((self.client_id + self.client_host).encode())


def read_assignment(protocol_type: str, assignment: bytes) -> tuple[tuple[str, int], ...] | None:
    """Return the partitions that *assignment* names, in its order; None if it is opaque.

    Empty bytes name nothing, whatever the protocol type.
    """
    if not assignment:
        return ()
    if protocol_type != CONSUMER:
        return None
    decoded = decode_assignment(assignment)
    return None if decoded is None else decoded.partitions
