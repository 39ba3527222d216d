"""Shared parts of all request handlers: settings, the groups, and a decision being made.

The core is pure: the time, the caller and new ids are arguments, and the result is an `Outcome`.
Only `Core.replay` changes hard state, both while the log is loaded and when a `Decision` emits a
record. Replaying the log therefore restores the same state.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import Raw, Struct

from coordinator.group.group import Group
from coordinator.group.member import Member, Parked, PendingId, Timers, Watched
from coordinator.group.records import (
    REBALANCES_KEPT,
    CommittedOffset,
    GroupDeleted,
    GroupGeneration,
    GroupMetadata,
    GroupOwned,
    GroupRebalanced,
    GroupRetention,
    OffsetRemoved,
    OffsetsCommitted,
    Record,
    StoredOffsets,
)
from coordinator.group.registry import Registry
from coordinator.group.totals import Share
from protocol.acls import ANONYMOUS
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages import (
    JoinGroupResponse,
    Rebalance,
    Response,
    SyncGroupResponse,
    join_error,
    sync_error,
)

MIB = 1024 * 1024
MINUTE_MS = 60_000

# Bytes of the leader's answer, and of the batch with the group's record, without their members:
# mostly the rebalance that ends in the same batch, with all late members.
HEAD_BYTES = 65_536

# Maximum number of partitions named in the event of a removed member; it may have owned 100,000.
PARTITIONS_NAMED_MAX = 100
# Maximum number of topics named in an event.
TOPICS_NAMED_MAX = 10
# Number of rules, users or principals packed in one step: less than a millisecond.
_SHOWN_AT_ONCE = 50

_SUPERSEDED = "a newer request of this member took its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of a shard, with Kafka's defaults where Kafka has the setting."""

    group_initial_rebalance_delay_ms: int = 3_000
    # Members and pending ids together: an id that was given out occupies a place.
    group_max_size: int = 10_000
    group_max_offsets: int = 100_000
    offset_metadata_max_bytes: int = 4_096
    # How long offsets are kept once the group is unused (-1: for ever), and the check's interval.
    offsets_retention_ms: int = 10_080 * MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * MINUTE_MS
    ownership_check: bool = True
    # Maximum size of the leader's JoinGroup answer, and of the group's record as one batch.
    max_response_bytes: int = 16 * MIB
    max_batch_bytes: int = 32 * MIB
    # Bytes reserved for the assignments in the group's record when a member joins: the largest
    # SyncGroup request.
    max_assignments_bytes: int = 8 * MIB
    # Upper bound of the rebalance timeout that members ask for.
    group_max_rebalance_timeout_ms: int = 3_600_000
    # Maximum wait of a new member's first JoinGroup; Kafka fixes it at 5 minutes.
    new_member_join_timeout_ms: int = 300_000


class Now(Struct, frozen=True, gc=False):
    """The time, as an argument: the core never reads a clock."""

    mono_ms: int  # For deadlines and measured intervals; never jumps.
    wall_ms: int  # For timestamps in records, since the epoch.


class Caller(NamedTuple):
    """The client that sent a request, and its principal.

    Attributes:
        only_own: Treat members of other principals as absent, in requests that name several.
        connection: The number of the connection, 0 without one.
    """

    client_id: str
    client_host: str
    principal: str = ANONYMOUS
    only_own: bool = False
    connection: int = 0

    @property
    def owner(self) -> str | None:
        """Owner of the groups, topics and members that it creates; None if unauthenticated."""
        return None if self.principal == ANONYMOUS else self.principal

    def is_anothers(self, principal: str | None) -> bool:
        """Return whether *principal* is another one; a member of None belongs to every client."""
        return principal not in {None, self.principal}


# Caller of requests whose principal doesn't matter.
NOBODY: Final = Caller("", "")

# The one answer to the request with a token: the token, the response, its first error (None: not
# determined yet), whether it is gated, and the waiting member. A gated reply waits until everything
# that the shard appended for the group before it is committed. The member is opaque outside: the
# holder of the reply passes it to `GroupShard.released` on release. A plain tuple, because one is
# made for every request.
Reply = tuple[object, Response, int | None, bool, Watched | None]


class Event(NamedTuple):
    """An event for the operator's structured log."""

    name: str
    fields: dict[str, object]


class Outcome(Struct):
    """Result of one decision about one group: records (already replayed), replies and events.

    The records are one batch: all of them become durable, or none.
    """

    group_id: str
    records: list[Any] = []  # `Record`s; in the node's own partition `NodeRecord`s.
    replies: list[Reply] = []
    events: list[Event] = []

    def __bool__(self) -> bool:
        return bool(self.records or self.replies or self.events)


class Step(NamedTuple):
    """A decision in the making about the node (topics, rules, users, quotas), not a group."""

    now: Now
    caller: Caller
    storage_full: bool  # Then only requests that remove something succeed.
    outcome: Outcome

    def event(self, name: str, **fields: object) -> None:
        """Append an event to the outcome."""
        self.outcome.events.append(Event(name, fields))


# The handler of each request type.
Handlers = Mapping[type, Callable[[Any, Step], Response]]

T = TypeVar("T")


def shown_in_slices(
    things: Sequence[T], show: Callable[[T], Any], max_bytes: int
) -> Generator[None, None, tuple[Any, ...] | None]:
    """Return what *show* returns for *things*, packed in steps; None: over *max_bytes*.

    Things that *show* returns None for are left out. Results with an error are not packed, because
    the counting of answers reads their error.
    """
    shown = []
    for at in range(0, len(things), _SHOWN_AT_ONCE):
        if at:
            yield
        for part in map(show, things[at : at + _SHOWN_AT_ONCE]):
            if part is None:
                continue
            packed = encode(part)
            max_bytes -= len(packed)
            shown.append(part if getattr(part, "error", 0) else Raw(packed))
        if max_bytes < 0:
            return None
    return tuple(shown)


class HardGroup(NamedTuple):
    """Hard state of one group: what survives a crash."""

    generation: int
    stable: GroupMetadata | None
    offsets: tuple[tuple[str, int, CommittedOffset], ...]  # Sorted by topic and partition.
    retention_ms: int | None
    rebalances: tuple[Rebalance, ...]  # Sorted by number.
    owner: str | None = None


class Core:
    """The groups of a shard."""

    def __init__(
        self, config: GroupConfig, new_uuid: Callable[[], str], registry: Registry | None = None
    ) -> None:
        self.config = config
        self.new_uuid = new_uuid
        self.registry = Registry() if registry is None else registry
        self.totals = self.registry.totals
        self.wall_offset_ms = 0  # Wall clock minus monotonic time, when the shard was loaded.
        self.newest_ms = 0  # The newest timestamp of any record; see `wall_ms`.
        self.groups: dict[str, Group] = {}
        # End offset of the latest entry that left no group behind, such as a group's tombstone.
        self.gone_end_offset = 0
        self.timers = Timers()
        self.parked: dict[object, Member] = {}  # By the token of the parked request.
        # Returns whether a member with this principal and host may see a topic; None: all may.
        self.sees_topic: Callable[[str | None, str, str], bool] | None = None
        self.storage_full = False
        self.storage_exhausted = False  # Then only requests that free room are accepted.
        self.latest: Outcome | None = None  # The current decision, see `interrupted`.

    def replay(self, record: Record) -> None:
        """Apply one record: the only code that changes hard state. Never raises."""
        if type(record) is not OffsetsCommitted:  # Nearly all of them are.
            self._replay_rare(record)
            return
        commit_ms = record.commit_timestamp_ms
        if commit_ms > self.newest_ms:  # noqa: PLR1730 - a call of `max` for each record shows.
            self.newest_ms = commit_ms
        group = self.groups.get(record.group_id) or self._make_group(record.group_id)
        stored = group.offsets.get(record.topic)
        if stored is None:
            stored = group.offsets[record.topic] = StoredOffsets()
        if group.pictures:
            group.keep_in_pictures(record.topic, record.offsets)
        added = stored.put(record.offsets, commit_ms, record.expire_timestamp_ms)
        if added:
            group.offset_count += added
            group.share.count("offsets", added)

    def share(self, group: Group | None, caller: Caller) -> Share:
        """Return the usage account of a group, or of one that *caller* is about to create."""
        return self.totals.share(caller.principal) if group is None else group.share

    def make_group(self, group_id: str, caller: Caller, outcome: Outcome) -> Group:
        """Create a group owned by *caller*; *outcome* must contain another record of it."""
        if caller.owner is None:
            return self._make_group(group_id)
        record = GroupOwned(group_id, caller.owner)
        outcome.records.append(record)
        self.replay(record)
        return self.groups[group_id]

    def _make_group(self, group_id: str) -> Group:
        group = self.groups[group_id] = Group(group_id, self.totals.share(None))
        group.share.count("groups", 1)
        return group

    def _note_gone(self, group: Group) -> None:
        self._count_group(group, -1)
        for member in (*group.members.values(), *group.pending.values()):
            self.count_member(member, -1)

    def _count_group(self, group: Group, by: int) -> None:
        share = group.share
        share.count("groups", by)
        share.count("offsets", by * group.offset_count)
        share.count_log(by * group.log_bytes)

    def count_member(self, member: Watched, by: int) -> None:
        """Add *by* to the count of members (ids that were given out included): 1 or -1."""
        self.totals.share(member.principal).count("members", by)

    def _replay_rare(self, record: Record) -> None:
        if type(record) is GroupDeleted:
            gone = self.groups.pop(record.group_id, None)
            if gone is not None:
                self._note_gone(gone)
            return
        group = self.groups.get(record.group_id) or self._make_group(record.group_id)
        if type(record) is GroupMetadata:
            group.stable = record
            # A record of an older generation comes after a newer GroupGeneration only when
            # it replaces a static member in the last stable generation.
            group.generation = max(group.generation, record.generation)
            self.newest_ms = max(self.newest_ms, record.state_timestamp_ms)
        elif type(record) is GroupGeneration:
            group.generation = max(group.generation, record.generation)
            self.newest_ms = max(self.newest_ms, record.timestamp_ms)
        elif type(record) is GroupRebalanced:
            number = record.rebalance.number
            group.rebalances[number % REBALANCES_KEPT] = record.rebalance
        elif type(record) is GroupRetention:
            group.retention_ms = record.retention_ms
        elif type(record) is OffsetRemoved:
            group.share.count("offsets", -_forget_offset(group, record))
        elif type(record) is GroupOwned:
            self._count_group(group, -1)
            group.owner, group.share = record.owner, self.totals.share(record.owner)
            self._count_group(group, 1)

    def kept(self, group_id: str, end_offset: int) -> None:
        """Note that decisions about a group are in the log, up to *end_offset*."""
        group = self.groups.get(group_id)
        if group is None:
            self.gone_end_offset = end_offset
        else:
            group.end_offset = end_offset

    def end_offset(self, group_id: str) -> int:
        """Return the end offset of a group's last entry: replies about the group wait for it."""
        group = self.groups.get(group_id)
        return self.gone_end_offset if group is None else group.end_offset

    def hard_state(self) -> dict[str, HardGroup]:
        """Return all hard state as a value, to compare with that of a replay."""
        return {
            group_id: HardGroup(
                group.generation,
                group.stable,
                tuple(
                    (topic, partition, value)
                    for topic, stored in sorted(group.offsets.items())
                    for partition, value in stored.values()
                ),
                group.retention_ms,
                tuple(sorted(group.rebalances.values(), key=lambda r: r.number)),
                group.owner,
            )
            for group_id, group in sorted(self.groups.items())
        }

    def reset(self) -> None:
        """Forget all groups and deadlines."""
        for group in self.groups.values():
            self._note_gone(group)
        self.groups = {}
        self.stop()

    def stop(self) -> None:
        """Remove all deadlines and parked requests."""
        self.timers = Timers()
        self.parked = {}

    def keep_hard(self, group: Group) -> None:
        """Remove the soft state of *group*; remove the group if it has no hard state."""
        self._note_gone(group)
        if group.is_hard():
            self.groups[group.group_id] = kept = group.without_soft_state()
            self._count_group(kept, 1)
        else:
            del self.groups[group.group_id]

    def wall_ms(self, now: Now) -> int:
        """Return the time of day for a record: never earlier than before, even if the clock is."""
        return max(now.wall_ms, self.newest_ms, now.mono_ms + self.wall_offset_ms)

    def has_room(self, group: Group, answer_bytes: int, record_bytes: int) -> bool:
        """Return whether these additional bytes of members fit the answer and the record."""
        config = self.config
        answer = HEAD_BYTES + group.answer_bytes + answer_bytes
        record = HEAD_BYTES + group.record_bytes + record_bytes + config.max_assignments_bytes
        return answer <= config.max_response_bytes and record <= config.max_batch_bytes

    def rebalance_timeout_ms(self, asked_ms: int) -> int:
        """Return the rebalance timeout, limited by the setting."""
        return min(asked_ms, self.config.group_max_rebalance_timeout_ms)

    def heard(self, member: Member, now_ms: int) -> None:
        """Restart the session of *member*; it stays suspended while a request of it is parked."""
        member.heard_ms = now_ms
        if member.join is None and member.sync is None:
            self.timers.arm(member.timer, now_ms + member.session_timeout_ms)

    def restart_session(self, member: Member, now_ms: int) -> None:
        """Restart the full session timeout of *member* now."""
        member.heard_ms = now_ms
        self.timers.arm(member.timer, now_ms + member.session_timeout_ms)


def _forget_offset(group: Group, record: OffsetRemoved) -> int:
    """Return the number of offsets removed: 0 or 1."""
    stored = group.offsets.get(record.topic)
    if stored is None:
        return 0
    group.keep_in_pictures(record.topic, (record.partition,))
    if not stored.remove(record.partition):
        return 0
    group.offset_count -= 1
    if not stored:
        del group.offsets[record.topic]
    return 1


class Decision:
    """A decision in the making: changes to one group, and the replies and records they need."""

    __slots__ = ("core", "now", "outcome")

    def __init__(self, core: Core, group_id: str, now: Now) -> None:
        self.core = core
        self.now = now
        self.outcome = core.latest = Outcome(group_id)

    @property
    def wall_ms(self) -> int:
        """The time of day, for records."""
        return self.core.wall_ms(self.now)

    def emit(self, record: Record) -> None:
        """Apply and append *record*: in force at once, durable before any gated reply is sent."""
        self.outcome.records.append(record)
        self.core.replay(record)

    def answer(
        self,
        token: object,
        response: Response,
        watched: Watched | None = None,
        *,
        gated: bool = True,
    ) -> Outcome:
        """Answer a request; return the outcome, for handlers that end with it.

        While the reply waits in the reply gate, *watched* does not expire.
        """
        if watched is not None and gated:
            watched.in_gate += 1
            watched.gated_at_ms = self.now.mono_ms
        self.outcome.replies.append((token, response, None, gated, watched))
        return self.outcome

    def event(self, name: str, **fields: object) -> None:
        """Append an event about the group to the outcome."""
        self.outcome.events.append(Event(name, {"group": self.outcome.group_id, **fields}))

    def park_join(self, group: Group, member: Member, token: object) -> None:
        """Park a JoinGroup of *member*; an older parked one is answered with SUPERSEDED."""
        if member.join is not None:
            error = join_error(ErrorCode.SUPERSEDED, member.member_id, _SUPERSEDED)
            self.finish_join(group, member, error)
        member.join = Parked(token, self.now.mono_ms)
        member.heard_ms = self.now.mono_ms
        group.parked_joins += 1
        self.core.parked[token] = member

    def finish_join(self, group: Group, member: Member, response: JoinGroupResponse) -> None:
        assert member.join is not None
        token = member.join.token
        self.core.parked.pop(token, None)
        member.join = None
        group.parked_joins -= 1
        self.answer(token, response, member)

    def park_sync(self, member: Member, token: object) -> None:
        """Park a SyncGroup of *member*; an older parked one is answered with SUPERSEDED."""
        if member.sync is not None:
            self.finish_sync(member, sync_error(ErrorCode.SUPERSEDED, _SUPERSEDED))
        member.sync = Parked(token, self.now.mono_ms)
        member.heard_ms = self.now.mono_ms
        self.core.parked[token] = member

    def finish_sync(self, member: Member, response: SyncGroupResponse) -> None:
        assert member.sync is not None
        token = member.sync.token
        self.core.parked.pop(token, None)
        member.sync = None
        self.answer(token, response, member)

    def remove(
        self, group: Group, member: Member, reason: str, detail: str, error: int | None = None
    ) -> None:
        """Remove *member* from the group; its parked requests get *error*.

        *error* is UNKNOWN_MEMBER_ID by default. *detail* is the reason in words, with measured
        values; the member gets it, too, if it asks.
        """
        if group.rebalance is not None:
            group.rebalance.gone(member, reason, self.now.mono_ms)
        code = ErrorCode.UNKNOWN_MEMBER_ID if error is None else error
        if member.join is not None:
            self.finish_join(group, member, join_error(code, "", detail))
        if member.sync is not None:
            self.finish_sync(member, sync_error(code, detail))
        self.core.timers.cancel(member.timer)
        group.drop(member)
        self.core.count_member(member, -1)
        group.note_removal(member.member_id, detail)
        self.event(
            "group.member_removed",
            member_id=member.member_id,
            client_id=member.client_id,
            client_host=member.client_host,
            reason=reason,
            detail=detail,
            generation=group.generation,
            partitions=_names(member),
        )

    def forget_pending(self, group: Group, pending: PendingId) -> None:
        """Revoke a member id that was given out."""
        self.core.timers.cancel(pending.timer)
        pending.gone = True
        del group.pending[pending.member_id]
        self.core.count_member(pending, -1)


def _names(member: Member) -> list[str]:
    """Return the names of the partitions of *member*, at most PARTITIONS_NAMED_MAX."""
    owned = sorted(member.owned or ())
    names = [f"{topic}-{partition}" for topic, partition in owned[:PARTITIONS_NAMED_MAX]]
    return names + ([f"and {len(owned) - len(names)} more"] if len(owned) > len(names) else [])
