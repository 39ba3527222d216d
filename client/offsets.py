"""Committed offsets: what users hand in and get back, on the wire, and the calls for them."""

from collections.abc import AsyncIterator, Hashable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from client.exceptions import (
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OutcomeUnknown,
    Rebalanced,
    code_text,
    codes_text,
    error_info,
    refusal,
)
from client.router import Router
from protocol.errors import Applied, ErrorCode
from protocol.messages import (
    GroupFetch,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    TopicCommit,
    TopicPartitions,
)
from protocol.partition import INT64_MAX, NO_LEADER_EPOCH, NO_OFFSET, TopicPartition


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next one to read, not the last one that was read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


Offsets = Mapping[TopicPartition, int | OffsetAndMetadata]


class Owner(NamedTuple):
    """A member, and the partitions that it has."""

    generation: int
    member_id: str
    group_instance_id: str | None
    partitions: tuple[TopicPartition, ...]


def with_metadata(value: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """Return *value* with empty metadata if it has none."""
    return value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)


class CommitOrder:
    """One commit in flight per partition, in the order in which they were asked for.

    Two commits of different partitions don't wait for each other.
    """

    def __init__(self) -> None:
        """Begin with nobody in line."""
        self._line: list[tuple[tuple[Hashable, ...], trio.Event]] = []

    @asynccontextmanager
    async def turn(self, partitions: Iterable[Hashable], deadline_s: float) -> AsyncIterator[None]:
        """Wait until all earlier commits of any of *partitions* are done.

        Raises:
            CoordinatorUnavailable: They are not at *deadline_s*.
        """
        mine = (tuple(partitions), trio.Event())
        # Usually there is nobody, and thousands of partitions needn't be hashed.
        own = frozenset(mine[0]) if self._line else frozenset()
        before = [done for others, done in self._line if not own.isdisjoint(others)]
        self._line.append(mine)
        try:
            with trio.move_on_at(deadline_s) as waiting:
                for done in before:
                    await done.wait()
            if waiting.cancelled_caught:
                raise CoordinatorUnavailable("an earlier commit of the same partitions goes on")
            yield
        finally:
            self._line.remove(mine)
            mine[1].set()


class OffsetCalls:
    """The offsets requests of one client."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._order = CommitOrder()

    @trio.lowlevel.enable_ki_protection
    async def commit(self, request: OffsetCommitRequest, timeout_ms: float | None) -> None:
        """Send *request* until its outcome is known; see `client.member.Member.commit`."""
        partitions = [
            (request.group_id, topic.topic, one.partition)
            for topic in request.topics
            for one in topic.partitions
        ]
        if not partitions:
            return
        outcome = "unknown"  # Also of one that was cancelled, or interrupted.
        try:
            await self._commit(request, partitions, timeout_ms)
            outcome = "done"
        except OutcomeUnknown:
            raise
        except CoordinatorError:
            outcome = "refused"
            raise
        finally:
            self._router.counts.group(request.group_id).commits[outcome] += 1

    async def _commit(
        self,
        request: OffsetCommitRequest,
        partitions: list[tuple[str, str, int]],
        timeout_ms: float | None,
    ) -> None:
        deadline_s = self._router.deadline_s(timeout_ms)
        async with self._order.turn(partitions, deadline_s):
            await self._store(request, deadline_s)

    async def _store(self, request: OffsetCommitRequest, deadline_s: float) -> None:
        """Send *request*, whose turn it is, until its outcome is known."""
        reply = await self._router.call(
            request,
            timeout_ms=left_ms(deadline_s),
            changes_state=True,
        )
        response = reply.response
        assert isinstance(response, OffsetCommitResponse)
        if response.error == ErrorCode.NONE:
            check_commit(request, response, after_doubt=reply.after_doubt)
            return
        refusal = commit_refusal(request, response.error, response.message)
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
        timeout_ms: float | None,
        owner: Owner | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return committed offsets; see `client.member.Member.fetch`. An owner asks for its own."""
        wanted = None if partitions is None else list(partitions)
        if wanted == []:
            return {}
        return await self._fetch(group_id, wanted, self._router.deadline_s(timeout_ms), owner)

    async def _fetch(
        self,
        group_id: str,
        partitions: list[TopicPartition] | None,
        deadline_s: float,
        owner: Owner | None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of some partitions, or of all (None)."""
        del owner  # There is nothing that it could put in order.
        request = fetch_request(group_id, partitions)
        response = await self._router.ask(
            request, OffsetFetchResponse, timeout_ms=left_ms(deadline_s)
        )
        code = response.groups[0].error
        if code != ErrorCode.NONE:
            raise refusal(f"no offsets of group {group_id!r}: {code_text(code)}", code)
        return fetched(response)

    async def close(self) -> None:
        """Let go of what they need besides the router."""


def left_ms(deadline_s: float) -> float:
    """Return how long it is until *deadline_s*, by trio's clock."""
    return (deadline_s - trio.current_time()) * 1000


def commit_refusal(
    request: OffsetCommitRequest, code: int, message: str | None
) -> CoordinatorError:
    """Return what it means that the group refuses a commit with *code*."""
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
    return refusal(text, code)


# A member of an enum takes longer to look up than a partition to look at.
_NONE: Final = ErrorCode.NONE.value


def commit_request(
    group_id: str,
    generation: int,
    member_id: str,
    group_instance_id: str | None,
    offsets: Offsets,
    expected: Mapping[TopicPartition, int] | None,
) -> OffsetCommitRequest:
    """Return the request that stores *offsets*, topics and partitions sorted.

    Raises:
        ValueError: An offset is none, or ``expected`` names a partition that isn't committed.
    """
    expected = expected or {}
    if strangers := expected.keys() - offsets.keys():
        listed = ", ".join(map(str, sorted(strangers)))
        raise ValueError(f"expected offsets of partitions that are not committed: {listed}")
    topics: dict[str, list[PartitionCommit]] = {}
    for tp in sorted(offsets):
        value = offsets[tp]
        offset, metadata, leader_epoch = with_metadata(value)
        if type(offset) is not int or not 0 <= offset <= INT64_MAX:
            raise ValueError(f"{offset!r} is no offset (of {tp})")
        topic, partition = tp
        topics.setdefault(topic, []).append(
            PartitionCommit(partition, offset, leader_epoch, metadata, expected.get(tp))
        )
    return OffsetCommitRequest(
        group_id,
        generation,
        member_id,
        group_instance_id,
        tuple(TopicCommit(topic, tuple(partitions)) for topic, partitions in topics.items()),
    )


def check_commit(
    request: OffsetCommitRequest, response: OffsetCommitResponse, *, after_doubt: bool
) -> None:
    """Raise what the partitions' codes mean; the error of the whole group is none.

    Raises:
        CommitRefused: Some partitions were surely not stored by this attempt.
        OutcomeUnknown: Of some partitions nobody knows.
        FatalError: The answer is about other partitions than the request.
    """
    asked = [(topic.topic, one.partition) for topic in request.topics for one in topic.partitions]
    answered = [
        (topic.topic, one.partition) for topic in response.topics for one in topic.partitions
    ]
    # The order is that of the request, which is quickly seen; another one is as good.
    if answered != asked and set(answered) != set(asked):
        raise FatalError("the answer to a commit is about other partitions than were committed")
    errors = {
        TopicPartition(topic.topic, one.partition): one.error
        for topic in response.topics
        for one in topic.partitions
        if one.error != _NONE
    }
    if not errors:
        return
    if any(info and info.applied is Applied.UNKNOWN for info in map(error_info, errors.values())):
        raise OutcomeUnknown(f"the coordinator could not confirm {codes_text(errors)}")
    raise CommitRefused(errors, response.message, maybe_stored=after_doubt)


def fetch_request(group_id: str, partitions: Iterable[TopicPartition] | None) -> OffsetFetchRequest:
    """Return the request for the committed offsets of *partitions*, or of all (None)."""
    topics = None if partitions is None else by_topic(partitions)
    return OffsetFetchRequest((GroupFetch(group_id, topics),), require_stable=False)


def by_topic(partitions: Iterable[TopicPartition]) -> tuple[TopicPartitions, ...]:
    """Return *partitions* as the wire has them, topics and partitions sorted, each once."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(set(partitions)):
        topics.setdefault(topic, []).append(partition)
    return tuple(TopicPartitions(topic, tuple(numbers)) for topic, numbers in topics.items())


def fetched(response: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets. A partition without one is left out: it is never 0.

    Raises:
        FatalError: The offset of some partition could not be read.
    """
    result = {}
    for topic in response.groups[0].topics:
        for entry in topic.partitions:
            tp = TopicPartition(topic.topic, entry.partition)
            if entry.error != ErrorCode.NONE:
                raise refusal(f"no offset of {tp}: {code_text(entry.error)}", entry.error)
            if entry.offset != NO_OFFSET:
                result[tp] = OffsetAndMetadata(entry.offset, entry.metadata, entry.leader_epoch)
    return result
