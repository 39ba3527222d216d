"""The values that users of the client hand in and get back."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from protocol.types import NO_LEADER_EPOCH, TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to read, not the last one that was read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


class Assignment(NamedTuple):
    """What this member may read and commit in one generation; ``partitions`` is sorted."""

    generation: int
    member_id: str
    partitions: tuple[TopicPartition, ...]
    is_leader: bool


Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]

Callback = Callable[[tuple[TopicPartition, ...]], Awaitable[object] | object]


class Callbacks(NamedTuple):
    """What the caller wants to be told about its partitions; each may be async.

    They are called in the task that calls ``assignment()`` or ``leave()``, and only there.
    """

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


# What partitions does a topic have? Only the group's leader asks. A number n means 0 … n-1.
Partitions = (
    Mapping[str, int] | Callable[[str], Iterable[int]] | Callable[[str], Awaitable[Iterable[int]]]
)
