"""The room that an answer has: counted while it is made, not after it is packed."""

from collections.abc import Callable
from typing import Any, Final

from coordinator.runtime.calls import Call
from protocol import messages as m
from protocol.body import array_header
from protocol.errors import ErrorCode

# What an offset, a member or a group adds to an answer besides its names and bytes.
_ITEM_BYTES: Final = 24
_ONE_GROUP: Final = array_header(1)


class Budget:
    """The room that an answer has left, counted while it is made.

    A small request can ask for the same large group ten thousand times; the limit of a
    response must hold before the answer is in memory, not after it is packed.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._left_bytes = limit_bytes

    @property
    def is_spent(self) -> bool:
        """Whether the answer would be too large."""
        return self._left_bytes < 0

    @property
    def left_bytes(self) -> int:
        """How much is left."""
        return self._left_bytes

    def for_offsets(self, packed: bytes | None) -> bytes | None:
        """Count packed offsets and return them; None is what was too large by itself."""
        self._left_bytes = -1 if packed is None else self._left_bytes - len(packed)
        return packed

    def for_members(self, group: m.DescribedGroup) -> m.DescribedGroup:
        """Count the members of *group* and return it."""
        for member in group.members:
            names_bytes = len(member.member_id) + len(member.client_id) + len(member.client_host)
            bytes_ = len(member.metadata) + len(member.assignment)
            self._left_bytes -= _ITEM_BYTES + names_bytes + bytes_
        self._left_bytes -= _ITEM_BYTES + len(group.group_id)
        return group

    def for_groups(self, groups: tuple[m.ListedGroup, ...]) -> tuple[m.ListedGroup, ...]:
        """Count *groups* and return them."""
        self._left_bytes -= sum([_ITEM_BYTES + len(group.group_id) for group in groups])
        return groups

    def for_topic(self, topic: m.DescribedTopic) -> m.DescribedTopic:
        """Count *topic* with its hosts and end offsets, and return it."""
        hosts_bytes = sum([len(host) for item in topic.hosts for host in item.hosts])
        items = 1 + len(topic.hosts) + len(topic.end_offsets)
        self._left_bytes -= len(topic.topic) + hosts_bytes + items * 4
        return topic


class WholeFetch:
    """The token of an OffsetFetch for one group."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def resolve(self, answer: bytes | None, leader_epoch: int) -> None:
        """Send the group's packed offsets, if they are not too many."""
        if answer is None:
            self._call.resolve(m.BareError(ErrorCode.RESPONSE_TOO_LARGE), -1)
        else:
            self._call.resolve(m.PackedResponse((_ONE_GROUP + answer,)), leader_epoch)

    def fail(self, error: int, leader_epoch: int) -> None:
        """Send the group with *error*."""
        self._call.fail(error, leader_epoch)


class NoGroup:
    """The token of a call that names no group: its header carries no leader epoch."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def resolve(self, answer: m.Response, _leader_epoch: int) -> None:
        """Send the answer."""
        self._call.resolve(answer, -1)

    def fail(self, error: int, _leader_epoch: int) -> None:
        """Send the failure."""
        self._call.fail(error, -1)


def fitting(look: Callable[[], Any], limit_bytes: int) -> Callable[[], Any]:
    """Return *look*, which says RESPONSE_TOO_LARGE if what it sees takes more than the limit."""

    def look_and_count() -> Any:
        answer = look()
        if _least_bytes(answer, limit_bytes) > limit_bytes:
            return m.BareError(ErrorCode.RESPONSE_TOO_LARGE)
        return answer

    return look_and_count


def _least_bytes(value: Any, enough_bytes: int) -> int:
    """Return how many bytes *value* takes at least; it stops counting beyond *enough_bytes*."""
    if isinstance(value, str | bytes):
        return 1 + len(value)
    total = 1
    if isinstance(value, tuple):
        for item in value:
            total += _least_bytes(item, enough_bytes)
            if total > enough_bytes:
                break
    return total
