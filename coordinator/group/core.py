"""What all request handlers share: settings, the groups, and one decision in the making.

The core is pure: the time, the caller and fresh ids come in as arguments, and what it wants done
comes out as an `Outcome`. `Core.replay` alone changes hard state, when the log is loaded and when
a `Decision` emits a record, so that a replay of the log gives the same state again.
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

# What the leader's answer, and the batch with the group's record, hold besides their members: most
# of it is the rebalance that ends in the same batch, with everybody who was late.
HEAD_BYTES = 65_536

# Partitions that the event of a removed member names; it may have owned 100,000.
PARTITIONS_NAMED_MAX = 100
# Topics that an event names.
TOPICS_NAMED_MAX = 10
# So many rules, users or principals are shown in less than a millisecond.
_SHOWN_AT_ONCE = 50

_SUPERSEDED = "a newer request of this member took its place"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of a shard, with Kafka's defaults where Kafka has the setting."""

    group_initial_rebalance_delay_ms: int = 3_000
    # Members and pending ids together: an id that was given out keeps its place.
    group_max_size: int = 10_000
    group_max_offsets: int = 100_000
    offset_metadata_max_bytes: int = 4_096
    # How long the offsets of a group are kept once nobody uses them (-1 for ever), and how
    # often that is looked at.
    offsets_retention_ms: int = 10_080 * MINUTE_MS
    offsets_retention_check_interval_ms: int = 10 * MINUTE_MS
    ownership_check: bool = True
    # What the leader's JoinGroup answer, and the group's record as one batch, must fit in.
    max_response_bytes: int = 16 * MIB
    max_batch_bytes: int = 32 * MIB
    # Room that a joiner must leave for the assignments in the group's record: the largest
    # SyncGroup request.
    max_assignments_bytes: int = 8 * MIB
    # However long its members ask it to wait for them.
    group_max_rebalance_timeout_ms: int = 3_600_000
    # How long a new member's first JoinGroup may stay parked; Kafka fixes it at 5 minutes.
    new_member_join_timeout_ms: int = 300_000


class Now(Struct, frozen=True, gc=False):
    """The time, as an argument: the core never asks for it."""

    mono_ms: int  # For deadlines and measured gaps; never jumps.
    wall_ms: int  # For timestamps in records, since the epoch.


class Caller(NamedTuple):
    """Who sent a request.

    Attributes:
        only_own: Members of other principals are none to him, where a request names several.
        connection: The number of the connection, 0 for what comes by none.
    """

    client_id: str
    client_host: str
    principal: str = ANONYMOUS
    only_own: bool = False
    connection: int = 0

    @property
    def owner(self) -> str | None:
        """Whose is what he makes, and joins with; None if he hasn't said who he is."""
        return None if self.principal == ANONYMOUS else self.principal

    def is_anothers(self, principal: str | None) -> bool:
        """Say whether a member of *principal*'s is somebody else's; one of None is everybody's."""
        return principal not in {None, self.principal}


# Where nobody asks whose a request is.
NOBODY: Final = Caller("", "")

# The one answer to the request that came with a token: the token, the response, its first error
# (None: nobody has looked), whether it is gated, and the member that waits. A gated reply waits
# until everything that the shard appended for the group before it is committed. The member is
# opaque outside: whoever holds the reply back hands it to `GroupShard.released` when it leaves.
# A plain tuple: one is made for every request.
Reply = tuple[object, Response, int | None, bool, Watched | None]


class Event(NamedTuple):
    """Something that an operator wants to know, for the structured log."""

    name: str
    fields: dict[str, object]


class Outcome(Struct):
    """One decision about one group: records to keep (already replayed), replies, events.

    The records are one batch: all of them are on disk, or none.
    """

    group_id: str
    records: list[Any] = []  # `Record`s, and of the node's own partition `NodeRecord`s.
    replies: list[Reply] = []
    events: list[Event] = []

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.records or self.replies or self.events)


class Step(NamedTuple):
    """One decision about what belongs to the node, and not to a group, in the making."""

    now: Now
    caller: Caller
    storage_full: bool  # What only removes goes on then.
    outcome: Outcome

    def event(self, name: str, **fields: object) -> None:
        """Tell the operator."""
        self.outcome.events.append(Event(name, fields))


# By type of request, what decides it.
Handlers = Mapping[type, Callable[[Any, Step], Response]]

T = TypeVar("T")


def shown_in_slices(
    things: Sequence[T], show: Callable[[T], Any], max_bytes: int
) -> Generator[None, None, tuple[Any, ...] | None]:
    """Return what *show* makes of *things*, packed some at a time; None: it is over *max_bytes*.

    None of one thing: it is left out. What has an error is not packed: whoever counts answers looks
    for that.
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
    """What a crash leaves of one group."""

    generation: int
    stable: GroupMetadata | None
    offsets: tuple[tuple[str, int, CommittedOffset], ...]  # By topic and partition.
    retention_ms: int | None
    rebalances: tuple[Rebalance, ...]  # By number.
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
        self.wall_offset_ms = 0  # Wall clock minus monotonic time, at the load.
        self.newest_ms = 0  # The newest timestamp of any record, see `wall_ms`.
        self.groups: dict[str, Group] = {}
        # Where the latest entry ends that left no group behind, such as a group's tombstone.
        self.gone_end_offset = 0
        self.timers = Timers()
        self.parked: dict[object, Member] = {}  # By the token of the parked request.
        # Says of a member's principal and host whether a topic may be known to it; None: all are.
        self.sees_topic: Callable[[str | None, str, str], bool] | None = None
        self.storage_full = False
        self.storage_exhausted = False  # Nothing is taken that isn't needed to free room.
        self.latest: Outcome | None = None  # The decision in the making, see `interrupted`.

    def replay(self, record: Record) -> None:
        """Apply one record: the only code that changes hard state. It can't fail."""
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
        """Return what a group, or one that *caller* is about to make, counts for."""
        return self.totals.share(caller.principal) if group is None else group.share

    def make_group(self, group_id: str, caller: Caller, outcome: Outcome) -> Group:
        """Make a group, which belongs to *caller*; *outcome* has records of it besides."""
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
        """Count a member, or an id that was given out, that came (1) or went (-1)."""
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
        """Note that what was decided about a group is in the log, up to *end_offset*."""
        group = self.groups.get(group_id)
        if group is None:
            self.gone_end_offset = end_offset
        else:
            group.end_offset = end_offset

    def end_offset(self, group_id: str) -> int:
        """Return the end offset of a group's last entry: what is known of it waits for that."""
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
        """Forget all deadlines, and who waits."""
        self.timers = Timers()
        self.parked = {}

    def keep_hard(self, group: Group) -> None:
        """Forget what is soft of *group*, which may be all of it."""
        self._note_gone(group)
        if group.is_hard():
            self.groups[group.group_id] = kept = group.without_soft_state()
            self._count_group(kept, 1)
        else:
            del self.groups[group.group_id]

    def wall_ms(self, now: Now) -> int:
        """Return the time of day for a record: it never goes back, though the clock may."""
        return max(now.wall_ms, self.newest_ms, now.mono_ms + self.wall_offset_ms)

    def has_room(self, group: Group, answer_bytes: int, record_bytes: int) -> bool:
        """Say whether so many more bytes of members still fit an answer and a record."""
        config = self.config
        answer = HEAD_BYTES + group.answer_bytes + answer_bytes
        record = HEAD_BYTES + group.record_bytes + record_bytes + config.max_assignments_bytes
        return answer <= config.max_response_bytes and record <= config.max_batch_bytes

    def rebalance_timeout_ms(self, asked_ms: int) -> int:
        """Return how long a member that asked for so much is waited for."""
        return min(asked_ms, self.config.group_max_rebalance_timeout_ms)

    def heard(self, member: Member, now_ms: int) -> None:
        """Note that *member* is alive; while a request of it is parked its session waits."""
        member.heard_ms = now_ms
        if member.join is None and member.sync is None:
            self.timers.arm(member.timer, now_ms + member.session_timeout_ms)

    def restart_session(self, member: Member, now_ms: int) -> None:
        """Give *member* a full session from now on."""
        member.heard_ms = now_ms
        self.timers.arm(member.timer, now_ms + member.session_timeout_ms)


def _forget_offset(group: Group, record: OffsetRemoved) -> int:
    """Return how many offsets are gone."""
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
    """One step in the making: changes to one group and what must be sent and kept for it."""

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
        """Keep *record*: it is in force from here on, and on disk before any gated reply."""
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
        """Answer a request; return the outcome, for who has nothing more to decide.

        While the reply is in the gate, *watched* does not expire.
        """
        if watched is not None and gated:
            watched.in_gate += 1
            watched.gated_at_ms = self.now.mono_ms
        self.outcome.replies.append((token, response, None, gated, watched))
        return self.outcome

    def event(self, name: str, **fields: object) -> None:
        """Tell the operator."""
        self.outcome.events.append(Event(name, {"group": self.outcome.group_id, **fields}))

    def park_join(self, group: Group, member: Member, token: object) -> None:
        """Park a JoinGroup of *member*; an older one gets its answer."""
        if member.join is not None:
            error = join_error(ErrorCode.SUPERSEDED, member.member_id, _SUPERSEDED)
            self.finish_join(group, member, error)
        member.join = Parked(token, self.now.mono_ms)
        member.heard_ms = self.now.mono_ms
        group.parked_joins += 1
        self.core.parked[token] = member

    def finish_join(self, group: Group, member: Member, response: JoinGroupResponse) -> None:
        """Answer the parked JoinGroup of *member*."""
        assert member.join is not None
        token = member.join.token
        self.core.parked.pop(token, None)
        member.join = None
        group.parked_joins -= 1
        self.answer(token, response, member)

    def park_sync(self, member: Member, token: object) -> None:
        """Park a SyncGroup of *member*; an older one gets its answer."""
        if member.sync is not None:
            self.finish_sync(member, sync_error(ErrorCode.SUPERSEDED, _SUPERSEDED))
        member.sync = Parked(token, self.now.mono_ms)
        member.heard_ms = self.now.mono_ms
        self.core.parked[token] = member

    def finish_sync(self, member: Member, response: SyncGroupResponse) -> None:
        """Answer the parked SyncGroup of *member*."""
        assert member.sync is not None
        token = member.sync.token
        self.core.parked.pop(token, None)
        member.sync = None
        self.answer(token, response, member)

    def remove(
        self, group: Group, member: Member, reason: str, detail: str, error: int | None = None
    ) -> None:
        """Take *member* out of the group; what it has parked gets *error*, 25 by default.

        *detail* says in words why, with what was measured: also to the member, if it asks.
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
        """Take back a member id that was given out."""
        self.core.timers.cancel(pending.timer)
        pending.gone = True
        del group.pending[pending.member_id]
        self.core.count_member(pending, -1)


def _names(member: Member) -> list[str]:
    """Return the partitions of *member* for a person to read."""
    owned = sorted(member.owned or ())
    names = [f"{topic}-{partition}" for topic, partition in owned[:PARTITIONS_NAMED_MAX]]
    return names + ([f"and {len(owned) - len(names)} more"] if len(owned) > len(names) else [])
