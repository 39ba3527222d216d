"""Requests and responses about whole groups and the log; import them from `protocol.messages`."""

from typing import NamedTuple

# --- 15 DescribeGroups ------------------------------------------------------------------


class DescribeGroupsRequest(NamedTuple):
    """Who is in these groups, and what do they own?"""

    group_ids: tuple[str, ...]


class DescribedMember(NamedTuple):
    """One member of a described group."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """One group; state is one of Kafka's five names."""

    error: int
    message: str | None
    group_id: str
    state: str
    protocol_type: str
    protocol_name: str
    generation_id: int
    members: tuple[DescribedMember, ...]
    # Version 1: how long the offsets are kept once nobody uses them; -1 for ever.
    offsets_retention_ms: int = -1


class DescribeGroupsResponse(NamedTuple):
    """Answer to `DescribeGroupsRequest`, in the order asked."""

    groups: tuple[DescribedGroup, ...]


# --- 16 ListGroups ----------------------------------------------------------------------


class ListGroupsRequest(NamedTuple):
    """Which groups are there? Filters are case-insensitive; empty means all."""

    states: tuple[str, ...]
    types: tuple[str, ...]


class ListedGroup(NamedTuple):
    """One group of a list."""

    group_id: str
    protocol_type: str
    state: str
    type: str


class ListGroupsResponse(NamedTuple):
    """Answer to `ListGroupsRequest`."""

    error: int
    groups: tuple[ListedGroup, ...]


# --- 42 DeleteGroups --------------------------------------------------------------------


class DeleteGroupsRequest(NamedTuple):
    """Delete groups without members, and their offsets."""

    group_ids: tuple[str, ...]


class DeletedGroup(NamedTuple):
    """What became of one group."""

    group_id: str
    error: int


class DeleteGroupsResponse(NamedTuple):
    """Answer to `DeleteGroupsRequest`, in the order asked, each group once."""

    groups: tuple[DeletedGroup, ...]


# --- 1011 CompactLog --------------------------------------------------------------------


class CompactLogRequest(NamedTuple):
    """Compact the offsets log now, everything that is on disk so far."""


class CompactLogResponse(NamedTuple):
    """Answer to `CompactLogRequest`, when that has been done or has failed."""

    error: int
    message: str | None
    removed_bytes: int
    log_bytes: int  # What is left, with what was written meanwhile.
    live_bytes: int  # About how much of that another compaction would keep.
    duration_ms: int
