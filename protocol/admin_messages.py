"""Requests and responses about whole groups; import them from `protocol.messages`."""

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
