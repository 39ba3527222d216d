"""Requests and responses of the topic registry; import them from `protocol.messages`.

A source that is not Kafka has no broker that knows its partitions, so whoever knows the source
tells the coordinator: which topics there are, how many partitions each has, on which hosts
their data lies, and how far they reach.
"""

from typing import NamedTuple

from protocol.types import TopicResult

# --- 1001 RegisterTopics ----------------------------------------------------------------


class PartitionHosts(NamedTuple):
    """The hosts that have the data of one partition close by."""

    partition: int
    hosts: tuple[str, ...]


class TopicRegistration(NamedTuple):
    """A topic as its source has it now. ``hosts`` None leaves them as they are."""

    topic: str
    partition_count: int
    hosts: tuple[PartitionHosts, ...] | None


class RegisterTopicsRequest(NamedTuple):
    """Make topics known, or tell that they have grown; repeating it changes nothing."""

    topics: tuple[TopicRegistration, ...]


class RegisteredTopic(NamedTuple):
    """What became of one topic; ``partition_count`` is the registered one, -1 if there is none."""

    topic: str
    error: int
    message: str | None
    partition_count: int


class RegisterTopicsResponse(NamedTuple):
    """Answer to `RegisterTopicsRequest`, in the order asked."""

    error: int
    topics: tuple[RegisteredTopic, ...]


# --- 1002 DeleteTopics ------------------------------------------------------------------


class DeleteTopicsRequest(NamedTuple):
    """The topics are gone: forget them, and what groups have committed for them."""

    topics: tuple[str, ...]


class DeletedTopic(NamedTuple):
    """What became of one topic."""

    topic: str
    error: int


class DeleteTopicsResponse(NamedTuple):
    """Answer to `DeleteTopicsRequest`, in the order asked, each topic once."""

    error: int
    topics: tuple[DeletedTopic, ...]


# --- 1003 DescribeTopics ----------------------------------------------------------------


class DescribeTopicsRequest(NamedTuple):
    """Which topics are there?

    Those in ``topics``, or (None) all that match ``pattern``, a regular expression of RE2's
    syntax for the whole name, or (None) all. Without a list they come by name, at most
    ``max_topics`` of them after ``start_after``.
    """

    topics: tuple[str, ...] | None
    pattern: str | None
    with_end_offsets: bool
    start_after: str
    max_topics: int


class EndOffset(NamedTuple):
    """How far one partition reaches: the offset that its next record will get."""

    partition: int
    end_offset: int
    reported_ms: int  # Wall clock of the coordinator, ms since the epoch.


class DescribedTopic(NamedTuple):
    """One registered topic; error 3 (and -1 partitions) if it isn't registered."""

    topic: str
    error: int
    partition_count: int
    hosts: tuple[PartitionHosts, ...]
    end_offsets: tuple[EndOffset, ...]


class DescribeTopicsResponse(NamedTuple):
    """Answer to `DescribeTopicsRequest`; ``has_more`` says that another page follows."""

    error: int
    message: str | None
    topics: tuple[DescribedTopic, ...]
    has_more: bool


# --- 1004 ReportEndOffsets --------------------------------------------------------------


class PartitionEnd(NamedTuple):
    """How far one partition reaches."""

    partition: int
    end_offset: int


class TopicEnds(NamedTuple):
    """How far a topic's partitions reach."""

    topic: str
    partitions: tuple[PartitionEnd, ...]


class ReportEndOffsetsRequest(NamedTuple):
    """Tell how far partitions reach, for lag."""

    topics: tuple[TopicEnds, ...]


class ReportEndOffsetsResponse(NamedTuple):
    """Answer to `ReportEndOffsetsRequest`: an error of the whole request, or one per partition."""

    error: int
    topics: tuple[TopicResult, ...]
