"""Between the offsets that users see and the messages of the wire. Pure."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from client.exceptions import CommitRefused, FatalError, OutcomeUnknown, code_text
from protocol.errors import ERRORS, Applied, ErrorCode
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

# ------------------------------------------------------------------------------------------
# The values that users of the client hand in and get back.


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


# ------------------------------------------------------------------------------------------
# Between the offsets that users see and the messages of the wire. Pure.

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
        entry = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
        offset, metadata, leader_epoch = entry
        if isinstance(offset, bool) or not 0 <= offset <= INT64_MAX:
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
    asked = [(t.topic, p.partition) for t in request.topics for p in t.partitions]
    answered = [(t.topic, p.partition) for t in response.topics for p in t.partitions]
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
    if any(_is_unknown(code) for code in errors.values()):
        listed = ", ".join(f"{tp}: {code_text(code)}" for tp, code in sorted(errors.items()))
        raise OutcomeUnknown(f"the coordinator could not confirm {listed}")
    raise CommitRefused(errors, maybe_stored=after_doubt)


def fetch_request(group_id: str, partitions: Iterable[TopicPartition] | None) -> OffsetFetchRequest:
    """Return the request for the committed offsets of *partitions*, or of all (None)."""
    if partitions is None:
        return OffsetFetchRequest((GroupFetch(group_id, None),), require_stable=False)
    return OffsetFetchRequest((GroupFetch(group_id, by_topic(partitions)),), require_stable=False)


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
                raise FatalError(f"no offset of {tp}: {code_text(entry.error)}", code=entry.error)
            if entry.offset != NO_OFFSET:
                result[tp] = OffsetAndMetadata(entry.offset, entry.metadata, entry.leader_epoch)
    return result


def _is_unknown(code: int) -> bool:
    try:
        return ERRORS[ErrorCode(code)].applied is Applied.UNKNOWN
    except ValueError:
        return False
