"""The registry of topics: which there are, how many partitions each has, how far they reach."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from client.exceptions import FatalError, code_text, known_code
from client.router import Router
from protocol.errors import ErrorCode
from protocol.messages import (
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribedTopic,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    PartitionEnd,
    PartitionHosts,
    RegisterTopicsRequest,
    RegisterTopicsResponse,
    ReportEndOffsetsRequest,
    ReportEndOffsetsResponse,
    Request,
    TopicEnds,
    TopicRegistration,
    TopicResult,
)
from protocol.partition import INT64_MAX, TopicPartition

# An answer holds 16 MiB: enough for so many topics of a few hundred partitions each.
TOPICS_PER_PAGE: Final = 1_000
PARTITIONS_PER_REPORT: Final = 10_000

R = TypeVar("R", RegisterTopicsResponse, DeleteTopicsResponse, ReportEndOffsetsResponse)


class TopicSource(NamedTuple):
    """A topic as its source has it: partitions 0 … *partition_count* - 1, and where they lie.

    ``hosts`` names the hosts that have the data of a partition close by; None leaves those
    that are registered as they are.
    """

    partition_count: int
    hosts: Mapping[int, Sequence[str]] | None = None


class TopicCalls:
    """The topic requests of one client."""

    def __init__(self, router: Router, request_timeout_ms: int) -> None:
        self._router = router
        self._request_timeout_ms = request_timeout_ms

    async def describe(
        self,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        *,
        with_end_offsets: bool = False,
    ) -> list[DescribedTopic]:
        """Return *topics* in their order, or by name those that match *pattern*, or all.

        A topic that isn't registered has error 3 and -1 partitions.

        Raises:
            CoordinatorUnavailable: Nobody could be reached in time.
            FatalError: Code 128: *pattern* is no regular expression of RE2's syntax.
            ValueError: Both *topics* and *pattern* are given.
        """
        if topics is not None and pattern is not None:
            raise ValueError("describe topics by their names or by a pattern, not by both")
        if topics is None:
            return await self._pages(pattern, with_end_offsets=with_end_offsets)
        names = tuple(dict.fromkeys(topics))
        found: list[DescribedTopic] = []
        size = TOPICS_PER_PAGE
        while names:
            request = DescribeTopicsRequest(names[:size], None, with_end_offsets, "", size)
            response = await self._describe(request)
            if response is None:
                size = max(1, size // 2)
                continue
            found += response.topics
            names = names[size:]
        return found

    async def _pages(self, pattern: str | None, *, with_end_offsets: bool) -> list[DescribedTopic]:
        found: list[DescribedTopic] = []
        size = TOPICS_PER_PAGE
        while True:
            start_after = found[-1].topic if found else ""
            request = DescribeTopicsRequest(None, pattern, with_end_offsets, start_after, size)
            response = await self._describe(request)
            if response is None:
                size = max(1, size // 2)
                continue
            found += response.topics
            if not response.has_more or not response.topics:
                return found

    async def _describe(self, request: DescribeTopicsRequest) -> DescribeTopicsResponse | None:
        """Ask; None says that the answer would be too large."""
        reply = await self._router.call(
            request, group_id=None, timeout_ms=self._request_timeout_ms, changes_state=False
        )
        response = reply.response
        assert isinstance(response, DescribeTopicsResponse)
        if response.error == ErrorCode.NONE:
            return response
        if response.error == ErrorCode.RESPONSE_TOO_LARGE and request.max_topics > 1:
            return None
        raise FatalError(
            f"no list of topics: {code_text(response.error, response.message)}", code=response.error
        )

    async def register(self, topics: Mapping[str, int | TopicSource]) -> None:
        """Make *topics* known, or tell that they have grown; see `Client.register_topics`."""
        registrations = []
        for topic, value in sorted(topics.items()):
            source = value if isinstance(value, TopicSource) else TopicSource(value)
            hosts = None
            if source.hosts is not None:
                listed = sorted(source.hosts.items())
                hosts = tuple(PartitionHosts(p, tuple(names)) for p, names in listed if names)
            registrations.append(TopicRegistration(topic, source.partition_count, hosts))
        for start in range(0, len(registrations), TOPICS_PER_PAGE):
            request = RegisterTopicsRequest(tuple(registrations[start : start + TOPICS_PER_PAGE]))
            response = await self._change(request, RegisterTopicsResponse, "topics")
            refused = [topic for topic in response.topics if topic.error != ErrorCode.NONE]
            if refused:
                listed_words = "; ".join(
                    f"{one.topic}: {code_text(one.error, one.message)}" for one in refused
                )
                raise FatalError(f"not registered: {listed_words}", code=refused[0].error)

    async def delete(self, topics: Iterable[str]) -> dict[str, int]:
        """Forget *topics* and their offsets; see `Client.delete_topics`."""
        names = tuple(dict.fromkeys(topics))
        codes: dict[str, int] = {}
        for start in range(0, len(names), TOPICS_PER_PAGE):
            request = DeleteTopicsRequest(names[start : start + TOPICS_PER_PAGE])
            response = await self._change(request, DeleteTopicsResponse, "topics")
            codes |= {topic.topic: known_code(topic.error) for topic in response.topics}
        return codes

    async def report_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Tell how far partitions reach; see `Client.report_end_offsets`."""
        entries = sorted(ends.items())
        for tp, end in entries:
            if isinstance(end, bool) or not 0 <= end <= INT64_MAX:
                raise ValueError(f"{end!r} is no end offset (of {tp})")
        refused: dict[TopicPartition, int] = {}
        for start in range(0, len(entries), PARTITIONS_PER_REPORT):
            topics: dict[str, list[PartitionEnd]] = {}
            for tp, end in entries[start : start + PARTITIONS_PER_REPORT]:
                topics.setdefault(tp.topic, []).append(PartitionEnd(tp.partition, end))
            request = ReportEndOffsetsRequest(
                tuple(TopicEnds(topic, tuple(listed)) for topic, listed in topics.items())
            )
            response = await self._change(request, ReportEndOffsetsResponse, "end offsets")
            refused |= refusals(response.topics)
        if refused:
            listed_codes = ", ".join(f"{tp}: {code_text(code)}" for tp, code in refused.items())
            raise FatalError(
                f"end offsets not taken: {listed_codes}", code=next(iter(refused.values()))
            )

    async def _change(self, request: Request, kind: type[R], what: str) -> R:
        reply = await self._router.call(
            request, group_id=None, timeout_ms=self._request_timeout_ms, changes_state=True
        )
        response = reply.response
        assert isinstance(response, kind)
        if response.error != ErrorCode.NONE:
            text = f"the change of {what} was refused: {code_text(response.error)}"
            raise FatalError(text, code=response.error)
        return response


def refusals(topics: Iterable[TopicResult]) -> dict[TopicPartition, int]:
    """Return the code of each partition that was refused."""
    return {
        TopicPartition(topic.topic, partition.partition): known_code(partition.error)
        for topic in topics
        for partition in topic.partitions
        if partition.error != ErrorCode.NONE
    }
