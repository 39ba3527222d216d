"""Commit and fetch, for members and for those who only look at a group."""

from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from client.exceptions import (
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OutcomeUnknown,
    Rebalanced,
    code_text,
)
from client.offsets import OffsetAndMetadata, check_commit, fetch_request, fetched
from client.router import Router
from protocol.errors import ErrorCode
from protocol.messages import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchResponse
from protocol.partition import TopicPartition

# ------------------------------------------------------------------------------------------
# One commit in flight per partition, in the order in which they were asked for.


class Turns:
    """First come, first served, per key. Two commits of different partitions don't wait."""

    def __init__(self) -> None:
        """Begin with nobody in line."""
        self._line: list[tuple[tuple[Hashable, ...], trio.Event]] = []

    @asynccontextmanager
    async def turn(self, keys: Iterable[Hashable]) -> AsyncIterator[None]:
        """Wait until everyone who came before with one of *keys* is done."""
        mine = (tuple(keys), trio.Event())
        # Usually there is nobody, and thousands of keys needn't be hashed.
        own = frozenset(mine[0]) if self._line else frozenset()
        before = [done for others, done in self._line if not own.isdisjoint(others)]
        self._line.append(mine)
        try:
            for done in before:
                await done.wait()
            yield
        finally:
            self._line.remove(mine)
            mine[1].set()


# ------------------------------------------------------------------------------------------
# Commit and fetch, for members and for those who only look at a group.


class OffsetCalls:
    """The offsets requests of one client."""

    def __init__(self, router: Router, request_timeout_ms: int) -> None:
        self._router = router
        self._request_timeout_ms = request_timeout_ms
        self._turns = Turns()

    async def commit(self, request: OffsetCommitRequest, timeout_ms: int | None) -> None:
        """Send *request* until its outcome is known; see `client.member.Member.commit`."""
        keys = [
            (request.group_id, topic.topic, one.partition)
            for topic in request.topics
            for one in topic.partitions
        ]
        if not keys:
            return
        timeout_ms = self._request_timeout_ms if timeout_ms is None else timeout_ms
        deadline_s = trio.current_time() + timeout_ms / 1000
        async with AsyncExitStack() as turn:
            with trio.move_on_at(deadline_s) as waiting:
                await turn.enter_async_context(self._turns.turn(keys))
            if waiting.cancelled_caught:
                raise CoordinatorUnavailable("an earlier commit of the same partitions goes on")
            reply = await self._router.call(
                request,
                group_id=request.group_id,
                timeout_ms=(deadline_s - trio.current_time()) * 1000,
                changes_state=True,
            )
        response = reply.response
        assert isinstance(response, OffsetCommitResponse)
        if response.error == ErrorCode.NONE:
            check_commit(request, response, after_doubt=reply.after_doubt)
            return
        refusal = _refusal(request, response.error, response.message)
        if reply.after_doubt:
            # The refusal is about this attempt; an earlier one may well have been stored.
            raise OutcomeUnknown(
                f"an earlier attempt was not answered, and then: {refusal}",
                group_code=response.error,
                group_message=response.message,
            ) from refusal
        raise refusal

    async def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        timeout_ms: int | None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets; see `client.member.Member.fetch`."""
        request = fetch_request(group_id, partitions)
        if request.groups[0].topics == ():
            return {}
        reply = await self._router.call(
            request,
            group_id=group_id,
            timeout_ms=self._request_timeout_ms if timeout_ms is None else timeout_ms,
            changes_state=False,
        )
        response = reply.response
        assert isinstance(response, OffsetFetchResponse)
        code = response.groups[0].error
        if code != ErrorCode.NONE:
            raise FatalError(f"no offsets of group {group_id!r}: {code_text(code)}", code=code)
        return fetched(response)


def _refusal(request: OffsetCommitRequest, code: int, message: str | None) -> CoordinatorError:
    text = f"the commit to group {request.group_id!r} was refused: {code_text(code, message)}"
    if request.member_id:
        match code:
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.REBALANCE_IN_PROGRESS:
                return Rebalanced(text, group_code=code, group_message=message)
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.GROUP_ID_NOT_FOUND:
                return MemberLost(text, group_code=code, group_message=message)
            case ErrorCode.FENCED_INSTANCE_ID:
                return FatalError(text, code=code, group_code=code, group_message=message)
            case _:
                pass
    elif code == ErrorCode.UNKNOWN_MEMBER_ID:
        text += " The group has active members: only they can commit."
    return FatalError(text, code=code)
