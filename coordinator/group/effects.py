"""What goes into a decision besides the request, and what the pure core asks for in return."""

from typing import NamedTuple

from coordinator.group.member import Watched
from coordinator.group.records import Record
from protocol.messages import Answer


class Now(NamedTuple):
    """The time, as an argument: the core never asks for it."""

    mono_ms: int  # For deadlines and measured gaps; never jumps.
    wall_ms: int  # For timestamps in records, since the epoch.


class Caller(NamedTuple):
    """Who sent a request."""

    client_id: str
    client_host: str


class Reply(NamedTuple):
    """The one answer to the request that came with ``token``.

    A gated reply waits until everything that the shard appended for the group before it is
    committed. ``member`` is opaque outside: whoever holds the reply back hands it to
    `GroupShard.released` when it leaves.
    """

    token: object
    response: Answer
    gated: bool
    member: Watched | None


class Event(NamedTuple):
    """Something that an operator wants to know, for the structured log."""

    name: str
    fields: dict[str, object]


class Outcome:
    """One decision about one group: records to keep (already replayed), replies, events.

    The records are one batch: all of them are on disk, or none.
    """

    __slots__ = ("events", "group_id", "records", "replies")

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.records: list[Record] = []
        self.replies: list[Reply] = []
        self.events: list[Event] = []

    def __bool__(self) -> bool:
        """Say whether there is anything to do."""
        return bool(self.records or self.replies or self.events)

    def __repr__(self) -> str:
        return (
            f"Outcome({self.group_id!r}, records={self.records}, "
            f"replies={self.replies}, events={self.events})"
        )
