"""Members of a group, ids given out to future members, and their deadlines.

Theory of operation of the timers
=================================

A timer has one live entry in a heap, which may be too early: a later deadline only overwrites a
field, and the entry is moved when it reaches the top. A member that commits a thousand times a
second therefore costs two assignments per commit, and no memory.

The entry of a cancelled timer stays in the heap until it reaches the top, which may be weeks later.
These entries are therefore removed whenever the heap has doubled.

Deadlines are kept in a separate time that stands still while the process is stalled: `Timers.shift`
is one addition, whatever the number of timers.

A timer names its group and member by id. This avoids reference cycles that would keep an unloaded
group in memory: the garbage collector would not find it, because loaded objects are frozen
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

# Bytes that msgpack adds to a member's fields, rounded up.
MEMBER_OVERHEAD_BYTES: Final = 48

# Minimum number of heap entries before cancelled ones are removed.
PRUNE_MIN: Final = 256


class TimerKind(Enum):
    """Kind of a deadline, which selects the action when it is due."""

    SESSION = "a member was not heard from"
    PENDING = "a member id was given out and not used"
    JOIN = "the join phase has lasted long enough"
    SYNC = "the sync phase has lasted long enough"
    SWEEP = "a slice of the work on all groups"


@dataclass(slots=True, eq=False)
class Timer:
    """One movable deadline; off until armed."""

    kind: TimerKind
    group_id: str = ""  # Empty for the timer of the whole shard.
    member_id: str = ""  # Also for an id that was only given out.
    deadline_ms: int | None = None  # In the timers' own time; None: off.
    armed_ms: int | None = None  # Time of its live heap entry, never later than the deadline.


class _Entry(NamedTuple):
    at_ms: int
    sequence: int  # Breaks ties by the order of arming, so that runs are reproducible.
    timer: Timer


class Timers:
    """All deadlines of a shard, with cheap re-arming."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._prune_at = PRUNE_MIN
        self._sequence = 0
        self._shift_ms = 0

    def __len__(self) -> int:
        """Return the number of entries in the heap."""
        return len(self._heap)

    def arm(self, timer: Timer, at_ms: int) -> None:
        """Set the deadline of *timer* to the monotonic time *at_ms*, replacing the old one."""
        deadline_ms = at_ms - self._shift_ms
        timer.deadline_ms = deadline_ms
        if timer.armed_ms is None or deadline_ms < timer.armed_ms:
            self._push(timer, deadline_ms)

    @staticmethod
    def cancel(timer: Timer) -> None:
        timer.deadline_ms = None

    def shift(self, by_ms: int) -> None:
        self._shift_ms += by_ms

    def next_deadline_ms(self) -> int | None:
        """Return the deadline of the earliest timer, None if all are off."""
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
        """Turn off and return the earliest timer if it is due at *now_ms*, else None."""
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
    """A request that is answered later, with the monotonic time of its arrival."""

    token: object
    at_ms: int


@dataclass(slots=True, eq=False)
class Watched:
    """A member or pending id that expires unless its client sends requests in time."""

    member_id: str
    session_timeout_ms: int
    timer: Timer
    client_id: str
    client_host: str
    # Number of replies in the reply gate. The session doesn't expire while they wait.
    in_gate: int = 0
    gated_at_ms: int = 0  # Time at which the latest of them was decided.
    gone: bool = False  # Removed from the group.
    principal: str | None = None  # Owner of the member; None: any client with its id.

    def is_awaited(self, *, in_join: bool) -> bool:
        """Return whether the join phase, or else the sync phase, waits for this client."""
        return in_join


@dataclass(slots=True, eq=False)
class PendingId(Watched):
    """A member id that was given out with MEMBER_ID_REQUIRED and has not joined yet."""


@dataclass(slots=True, eq=False, kw_only=True)
class Member(Watched):
    """Soft state of one member; the group's record has the state that must survive a crash."""

    group_instance_id: str | None
    rebalance_timeout_ms: int
    protocols: tuple[JoinProtocol, ...]
    topic_pattern: str | None  # Subscribes to all registered topics that match.
    # Monotonic time of its last request, or of the answer to a parked one.
    heard_ms: int
    # Subscribed topics under the current protocol; None if the subscription is opaque.
    topics: tuple[str, ...] | None = ()
    join: Parked | None = None
    sync: Parked | None = None
    is_loaded: bool = False  # Loaded from the log, which doesn't tell whether it was drained.
    is_new: bool = True  # Until its first JoinGroup is answered.
    synced: bool = False  # A SyncGroup of this generation has arrived.
    drained: bool = False  # Must give up all partitions, until it leaves.
    # Partitions that a drained member still owned, by its latest JoinGroup.
    claimed: tuple[TopicPartition, ...] = ()
    assignment: bytes = b""  # Of the latest assigned generation.
    # Partitions in the assignment, decoded once per generation because every commit reads them;
    # None if the assignment is opaque.
    owned: Owned | None = NOTHING
    # Partitions owned in the previous assigned generation and by no member in this one: commits for
    # them are still accepted, because a cooperative member hands partitions over in this way.
    former: Owned = NOTHING

    def is_awaited(self, *, in_join: bool) -> bool:
        """Return whether its JoinGroup, or else its SyncGroup, is missing."""
        return self.join is None if in_join else not self.synced

    def metadata_for(self, protocol: str | None) -> bytes:
        """Return the subscription under *protocol*, empty if there is none."""
        for offered in self.protocols:
            if offered.name == protocol:
                return offered.metadata
        return b""

    def read_topics(self, protocol_type: str, protocol: str | None) -> None:
        """Set `topics` from the subscription under *protocol*."""
        is_consumer = protocol_type == CONSUMER
        self.topics = subscribed_topics(self.metadata_for(protocol)) if is_consumer else None

    def read_claim(self, protocol_type: str, protocol: str | None) -> None:
        """Set `claimed`: partitions that a drained cooperative member gives up after this join.

        A member without a parked JoinGroup has given up everything (KIP-429: the claim is in the
        subscription).
        """
        self.claimed = ()
        if self.drained and self.join is not None and protocol_type == CONSUMER:
            read = decode_subscription(self.metadata_for(protocol))
            self.claimed = () if read is None else read.owned_partitions

    def answer_bytes(self) -> int:
        """Return the maximum bytes of this member in the leader's JoinGroup answer."""
        largest = max((len(p.metadata) for p in self.protocols), default=0)
        names = self.member_id + (self.group_instance_id or "") + (self.topic_pattern or "")
        return MEMBER_OVERHEAD_BYTES + len(names.encode()) + largest

    def record_bytes(self) -> int:
        """Return the maximum bytes of this member in the group's record, without its assignment."""
        return self.answer_bytes() + len((self.client_id + self.client_host).encode())


def read_assignment(protocol_type: str, assignment: bytes) -> tuple[tuple[str, int], ...] | None:
    """Return the partitions in *assignment*, in its order; None if it is opaque.

    Empty bytes contain no partitions, whatever the protocol type.
    """
    if not assignment:
        return ()
    if protocol_type != CONSUMER:
        return None
    decoded = decode_assignment(assignment)
    return None if decoded is None else decoded.partitions
