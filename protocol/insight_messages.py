"""Requests and responses that look into groups; import them from `protocol.messages`.

Why did it rebalance, how far behind is it, what has it committed, and for how long is that
kept. Times of day are wall clock of the coordinator, in ms since the epoch.
"""

from typing import NamedTuple

# --- 1005 DescribeRebalances ------------------------------------------------------------


class DescribeRebalancesRequest(NamedTuple):
    """Why did this group rebalance? The newest ``max_rebalances`` are told, newest first."""

    group_id: str
    max_rebalances: int


class LateMember(NamedTuple):
    """A member that the others had to wait for."""

    member_id: str
    client_id: str
    client_host: str
    phase: str  # "join" or "sync".
    waited_ms: int  # From the start of the phase until it came, or was removed.
    removed: bool  # For not coming in time.


class Rebalance(NamedTuple):
    """One rebalance of a group, from its trigger to its end.

    ``member_id`` … ``client_host`` name the member that caused it, "" for nobody in particular.
    """

    number: int  # 1, 2, … for the life of the group.
    started_ms: int
    trigger: str  # Such as "member joined", "session expired", "topics changed".
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    reason: str  # In words, with what was measured.
    old_generation: int
    new_generation: int  # -1 if it was overtaken before its join phase completed.
    join_ms: int
    sync_ms: int
    members: int  # Of the new generation.
    outcome: str  # "stable", "empty", or "overtaken" by another rebalance.
    late: tuple[LateMember, ...]


class DescribeRebalancesResponse(NamedTuple):
    """Answer to `DescribeRebalancesRequest`."""

    error: int
    message: str | None
    group_id: str
    rebalances: tuple[Rebalance, ...]


# --- 1006 ScanOffsets -------------------------------------------------------------------


class ScanOffsetsRequest(NamedTuple):
    """All committed offsets of one offsets partition, page by page.

    ``cursor`` is empty for the first page, and after that the one of the page before. It goes
    with the same ``group_ids`` and ``topics``.
    """

    offsets_partition: int
    cursor: bytes
    max_offsets: int
    # Version 1: answer in columns (see `OffsetColumns`), and only these groups and topics.
    in_columns: bool = False
    group_ids: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None


class ScannedOffset(NamedTuple):
    """One committed offset."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int  # -1: the group's retention decides.


class OffsetColumns(NamedTuple):
    """Committed offsets by column; as many runs of one topic of one group as there are ``counts``.

    Integers in bin are big-endian.
    """

    group_ids: tuple[str, ...] = ()  # Of each run.
    topics: tuple[str, ...] = ()
    counts: bytes = b""  # 4 bytes for each run: how many offsets it has.
    # Of each offset: [partition, offset, leader_epoch, metadata, 0] in msgpack, as OffsetFetch has
    # it, how many bytes that takes (2 bytes for each), and the times in ms (8 bytes for each).
    rows: bytes = b""
    sizes: bytes = b""
    committed_ms: bytes = b""
    expire_ms: bytes = b""  # Empty: for all of them the group's retention decides.


class ScanOffsetsResponse(NamedTuple):
    """Answer to `ScanOffsetsRequest`.

    ``position`` is where the stream of changes starts that belongs to this page: the whole scan,
    and then the changes from the first page's position on, give the state at any later position.
    An empty ``cursor`` says that this was the last page.
    """

    error: int
    position: int
    offsets: tuple[ScannedOffset, ...]
    cursor: bytes
    columns: tuple[OffsetColumns, ...] = ()  # Version 1: one, where it was asked for.


# --- 1007 ReadOffsetChanges -------------------------------------------------------------


class ReadOffsetChangesRequest(NamedTuple):
    """The changes of one offsets partition from ``position`` on, in their order."""

    offsets_partition: int
    position: int
    max_changes: int


class OffsetChange(NamedTuple):
    """One change of committed offsets, as it is in the log."""

    position: int
    kind: str  # "committed", "removed" (one offset), or "group deleted" (all of them).
    group_id: str
    topic: str  # "" for a deleted group, and then the numbers are -1.
    partition: int
    offset: int  # -1 for a removed one.
    leader_epoch: int
    metadata: str
    timestamp_ms: int  # When it was written.


class ReadOffsetChangesResponse(NamedTuple):
    """Answer to `ReadOffsetChangesRequest`.

    ``next_position`` is where to go on; it may have moved although nothing changed, as other
    entries share the log. ``end_position`` is the durable end: reached if the two are equal.
    """

    error: int
    changes: tuple[OffsetChange, ...]
    next_position: int
    end_position: int


# --- 1008 DescribeLag -------------------------------------------------------------------


class DescribeLagRequest(NamedTuple):
    """How far is this group behind, in partitions that it has committed, or owns?"""

    group_id: str


class PartitionLag(NamedTuple):
    """The lag of one partition. What is not known is -1, and never 0."""

    partition: int
    committed_offset: int
    end_offset: int
    lag: int  # end_offset - committed_offset, at least 0; -1 unless both are known.
    commit_timestamp_ms: int
    end_reported_ms: int
    member_id: str  # Who owns it, "" for nobody.


class TopicLag(NamedTuple):
    """The lag of one topic's partitions."""

    topic: str
    partitions: tuple[PartitionLag, ...]


class DescribeLagResponse(NamedTuple):
    """Answer to `DescribeLagRequest`."""

    error: int
    message: str | None
    group_id: str
    topics: tuple[TopicLag, ...]


# --- 1009 AlterGroupRetention -----------------------------------------------------------


class AlterGroupRetentionRequest(NamedTuple):
    """Keep this group's offsets for another time than offsets.retention.minutes.

    ``retention_ms`` -1 is for ever, None the setting again.
    """

    group_id: str
    retention_ms: int | None


class AlterGroupRetentionResponse(NamedTuple):
    """Answer to `AlterGroupRetentionRequest`."""

    error: int
