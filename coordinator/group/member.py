"""A member of a group, and an id that may become one."""

import heapq
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from protocol.consumer import decode_assignment, decode_subscription, subscribed_topics
from protocol.messages import JoinProtocol
from protocol.partition import TopicPartition

# ------------------------------------------------------------------------------------------
# Deadlines: of members, pending ids, the barriers of a rebalance, and the shard's own.

if TYPE_CHECKING:
    from coordinator.group.group import Group


# With so many entries in the heap at least, those that are off are looked for.
PRUNE_MIN: Final = 256


class TimerKind(Enum):
    """What happens when it is due."""

    SESSION = "a member was not heard from"
    PENDING = "a member id was given out and not used"
    JOIN = "the join phase has lasted long enough"
    SYNC = "the sync phase has lasted long enough"
    SWEEP = "a slice of the work on all groups"


class Timer:
    """One deadline that can be moved at will; off until armed."""

    __slots__ = ("armed_ms", "deadline_ms", "group", "kind", "subject")

    def __init__(
        self, kind: TimerKind, group: "Group | None", subject: "Watched | None" = None
    ) -> None:
        self.kind = kind
        self.group = group  # None for a timer of the whole shard.
        self.subject = subject
        self.deadline_ms: int | None = None  # In the timers' own time; None is off.
        self.armed_ms: int | None = None  # Where its live heap entry stands, never later.


class _Entry(NamedTuple):
    at_ms: int
    sequence: int  # Ties go by the order of arming, so that a run can be repeated.
    timer: Timer


class Timers:
    """All deadlines of a shard, with cheap re-arming.

    Each timer has one live heap entry, which may be too early: moving a deadline later only
    overwrites it, and the entry is moved when it surfaces. So a member that commits a
    thousand times a second costs two stores each, and no memory.

    An entry whose timer was turned off keeps that, its member and its group in memory until it
    surfaces, which may be weeks later. So whenever the heap has doubled, they are thrown out.

    Deadlines are kept in a time of their own that stands still while the process is stalled:
    `shift` is one addition, whatever the number of timers.
    """

    __slots__ = ("_heap", "_prune_at", "_sequence", "_shift_ms")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._prune_at = PRUNE_MIN
        self._sequence = 0
        self._shift_ms = 0

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


# ------------------------------------------------------------------------------------------
# A member of a group, and an id that may become one.

if TYPE_CHECKING:
    from coordinator.group.group import Group

CONSUMER: Final = "consumer"

Owned = frozenset[tuple[str, int]]
NOTHING: Final[Owned] = frozenset()

# What msgpack adds to a member's fields, rounded up.
MEMBER_OVERHEAD_BYTES: Final = 48


class Parked(NamedTuple):
    """A request that is answered later, and the monotonic time at which it came."""

    token: object
    at_ms: int


class Watched:
    """Something that expires unless it is heard from in time."""

    __slots__ = ("gated_at_ms", "gone", "group", "in_gate", "session_timeout_ms", "timer")

    def __init__(self, group: "Group", kind: TimerKind, session_timeout_ms: int) -> None:
        self.group = group
        self.session_timeout_ms = session_timeout_ms
        self.timer = Timer(kind, group, self)
        # Replies that wait for the disk: it can't be expected to act before it has them.
        self.in_gate = 0
        self.gated_at_ms = 0  # When the latest of them was decided.
        self.gone = False  # No longer part of the group.


class PendingId(Watched):
    """A member id that was given out with MEMBER_ID_REQUIRED and not joined with yet."""

    __slots__ = ("member_id",)

    def __init__(self, group: "Group", member_id: str, session_timeout_ms: int) -> None:
        super().__init__(group, TimerKind.PENDING, session_timeout_ms)
        self.member_id = member_id


class Member(Watched):
    """Soft state of one member; what must survive a crash is in the group's record."""

    __slots__ = (
        "assignment",
        "claimed",
        "client_host",
        "client_id",
        "drained",
        "former",
        "group_instance_id",
        "heard_ms",
        "is_loaded",
        "is_new",
        "join",
        "member_id",
        "owned",
        "protocols",
        "rebalance_timeout_ms",
        "sync",
        "synced",
        "topic_pattern",
        "topics",
    )

    def __init__(
        self,
        group: "Group",
        member_id: str,
        *,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: tuple[JoinProtocol, ...],
        heard_ms: int,
        group_instance_id: str | None = None,
        topic_pattern: str | None = None,
    ) -> None:
        super().__init__(group, TimerKind.SESSION, session_timeout_ms)
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.topic_pattern = topic_pattern  # It wants whatever registered topic matches.
        # The topics it subscribes to under the protocol in force; None if that can't be read.
        self.topics: tuple[str, ...] | None = ()
        # Monotonic time of its last request, or of our answer to one that was parked.
        self.heard_ms = heard_ms
        self.join: Parked | None = None
        self.sync: Parked | None = None
        self.is_loaded = False  # Known from the log: whether it was drained is forgotten.
        self.is_new = True  # Until its first JoinGroup is answered.
        self.synced = False  # Has sent its SyncGroup of this generation.
        self.drained = False  # Asked to give everything up; lasts as long as the membership.
        # What it said it still has when it last joined, if it is drained.
        self.claimed: tuple[TopicPartition, ...] = ()
        self.assignment = b""  # Of the last generation that was assigned.
        # What the assignment names, read once a generation because every commit asks;
        # None where that can't be known.
        self.owned: Owned | None = NOTHING
        # What it owned in the last generation that was assigned, and nobody does in this one:
        # it may still commit that, which is how a cooperative member hands a partition over.
        self.former: Owned = NOTHING

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
