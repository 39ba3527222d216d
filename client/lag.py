"""How far a group is behind. What is not known is None, and never 0."""

from typing import NamedTuple

from client.exceptions import FatalError, code_text
from client.router import Router
from protocol.errors import ErrorCode
from protocol.messages import DescribeLagRequest, DescribeLagResponse
from protocol.types import TopicPartition


class Lag(NamedTuple):
    """How far the group is behind in one partition.

    ``end`` is the newest end offset that somebody reported. ``lag`` is ``end - committed``, at
    least 0, and None unless both are known. ``owner`` is a member id, None for nobody.
    """

    committed: int | None
    end: int | None
    lag: int | None
    owner: str | None


async def group_lag(router: Router, group_id: str, timeout_ms: float) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition that the group has committed or assigned.

    Raises:
        CoordinatorUnavailable: Nobody could be reached in time.
        FatalError: Code 69: no such group.
    """
    reply = await router.call(
        DescribeLagRequest(group_id), group_id=group_id, timeout_ms=timeout_ms, changes_state=False
    )
    response = reply.response
    assert isinstance(response, DescribeLagResponse)
    if response.error != ErrorCode.NONE:
        words = code_text(response.error, response.message)
        raise FatalError(f"no lag of group {group_id!r}: {words}", code=response.error)
    return {
        TopicPartition(topic.topic, one.partition): Lag(
            _known(one.committed_offset),
            _known(one.end_offset),
            _known(one.lag),
            one.member_id or None,
        )
        for topic in response.topics
        for one in topic.partitions
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number
