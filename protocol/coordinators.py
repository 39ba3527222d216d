"""The coordinator that a request goes to.

A cluster has a coordinator for each group, one for each offsets partition, and one for what is the
cluster's own: topics, rules of access, users and quotas. FindCoordinator names them. What a request
is about says so by itself, so whoever asks need not. What is about all groups goes to each node
that leads offsets partitions.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec import structs

from protocol import messages as m

R = TypeVar("R", bound=m.Request)


class Key(NamedTuple):
    """What has one coordinator, as FindCoordinator asks for it."""

    type: int
    name: str


CLUSTER: Final = Key(m.KEY_TYPE_CLUSTER, "")

_OF_CLUSTER: Final = frozenset(
    {
        m.RegisterTopicsRequest,
        m.DeleteTopicsRequest,
        m.DescribeTopicsRequest,
        m.ReportEndOffsetsRequest,
        m.DescribeAclsRequest,
        m.CreateAclsRequest,
        m.DeleteAclsRequest,
        m.DescribeUserScramCredentialsRequest,
        m.AlterUserScramCredentialsRequest,
        m.DescribeClientQuotasRequest,
        m.AlterClientQuotasRequest,
    }
)
_OF_GROUPS: Final = frozenset({m.DescribeGroupsRequest, m.DeleteGroupsRequest})


def of_group(group_id: str) -> Key:
    """Return the key of a group."""
    return Key(m.KEY_TYPE_GROUP, group_id)


def of_partition(offsets_partition: int) -> Key:
    """Return the key of an offsets partition."""
    return Key(m.KEY_TYPE_PARTITION, str(offsets_partition))


def key_of(request: m.Request) -> Key | None:
    """Return the key of what *request* is about, None if any node can answer it.

    Of a request about several groups it is that of the first one.
    """
    kind = type(request)
    if kind in _OF_CLUSTER:
        return CLUSTER
    if kind in _OF_GROUPS:
        group_ids: tuple[str, ...] = request.group_ids  # type: ignore[attr-defined]  # both have them
        return of_group(group_ids[0]) if group_ids else None
    if isinstance(request, m.OffsetFetchRequest):
        return of_group(request.groups[0].group_id) if request.groups else None
    if hasattr(request, "group_id"):
        return of_group(request.group_id)
    if hasattr(request, "offsets_partition"):
        return of_partition(request.offsets_partition)
    return None


def about_partitions(request: R, offsets_partitions: Sequence[int]) -> R:
    """Return *request*, as it is about these offsets partitions alone if it may name any."""
    if "offsets_partitions" not in request.__struct_fields__:
        return request
    return structs.replace(request, offsets_partitions=tuple(offsets_partitions))


def next_page(request: R, response: m.Response) -> R | None:
    """Return what asks for the page behind *response*, None if that is the last one."""
    cursor: bytes = getattr(response, "cursor", b"")
    return structs.replace(request, cursor=cursor) if cursor else None
