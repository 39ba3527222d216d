"""The limits and times that groups live by."""

from dataclasses import dataclass

MIB = 1024 * 1024
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Settings of a shard, with Kafka's defaults where Kafka has the setting."""

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
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
    # How long a new member's first JoinGroup may stay parked; Kafka fixes it at 5 minutes.
    new_member_join_timeout_ms: int = 300_000
