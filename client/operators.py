"""What operators, and those who know a source, ask of the coordinator."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

from client.exceptions import FatalError, code_text, known_code
from client.offset_stream import CHANGES_PER_PAGE, ColumnScan, OffsetChanges, read_changes
from client.offsets import by_topic
from client.router import Router
from client.topics import TopicCalls, TopicSource
from protocol.errors import ErrorCode
from protocol.messages import (
    AlterGroupRetentionRequest,
    AlterGroupRetentionResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedTopic,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeLagRequest,
    DescribeLagResponse,
    DescribeNodeRequest,
    DescribeNodeResponse,
    DescribeRebalancesRequest,
    DescribeRebalancesResponse,
    DrainedMember,
    DrainMemberRequest,
    DrainMemberResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    Rebalance,
    Request,
    Response,
)
from protocol.partition import TopicPartition

# ------------------------------------------------------------------------------------------
# How far a group is behind. What is not known is None, and never 0.


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


# ------------------------------------------------------------------------------------------
# What operators, and those who know a source, ask of the coordinator.

REBALANCES_MAX = 100
PARTITIONS_PER_DELETE = 10_000  # What a request's array may hold.
FOR_EVER = -1
NODE_PARTITION = 65_535  # The node's own, with the topics: it holds no offsets.

R = TypeVar("R", bound=Response)


class OperatorCalls:
    """The part of `client.Client` that joins no group."""

    def __init__(self, router: Router, request_timeout_ms: int) -> None:
        self._router = router
        self._request_timeout_ms = request_timeout_ms
        self._topic_calls = TopicCalls(router, request_timeout_ms)

    # --- Groups ---

    async def describe_groups(self, groups: Iterable[str]) -> list[DescribedGroup]:
        """Return state and members of each group, in the order asked.

        A group that isn't there has error 69 and state "Dead".
        """
        described: list[DescribedGroup] = []
        for group in groups:
            response = await self._ask(
                DescribeGroupsRequest((group,)), DescribeGroupsResponse, group
            )
            described.extend(response.groups)
        return described

    async def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[ListedGroup]:
        """Return all groups of the node, or those in the given states and of the given types."""
        request = ListGroupsRequest(tuple(states), tuple(types))
        response = await self._ask(request, ListGroupsResponse, None)
        _check(response.error, "no list of groups")
        return list(response.groups)

    async def delete_groups(self, groups: Iterable[str]) -> dict[str, int]:
        """Delete groups without members, with their offsets; return the code per group.

        0 is done; 68 has members; 69 is not there.

        Raises:
            OutcomeUnknown: No definite answer in time; describe the group to find out.
        """
        codes: dict[str, int] = {}
        for group in dict.fromkeys(groups):
            request = DeleteGroupsRequest((group,))
            response = await self._ask(request, DeleteGroupsResponse, group, changes_state=True)
            codes[group] = known_code(response.groups[0].error)
        return codes

    async def drain_member(
        self, group: str, client_id: str, *, timeout_ms: int | None = None
    ) -> list[DrainedMember]:
        """Take all partitions away from the members with *client_id*, before a planned stop.

        Repeat it until each is drained. It tries for *timeout_ms*, by default the client's
        request timeout.

        Raises:
            FatalError: Code 69: no such group; 25: no such member.
        """
        request = DrainMemberRequest(group, client_id)
        response = await self._ask(
            request, DrainMemberResponse, group, changes_state=True, timeout_ms=timeout_ms
        )
        _check(response.error, f"{client_id!r} in group {group!r} can't be drained")
        return list(response.members)

    async def remove_static_members(
        self, group: str, instance_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """Remove static members by their instance ids, all in one rebalance; return the codes.

        For those that will not come back: a static member doesn't leave when it ends, and keeps
        its partitions until its session does. 0 is done; 25: the group has no such member.
        """
        names = tuple(dict.fromkeys(instance_ids))
        if not names:
            return {}
        leaving = tuple(LeavingMember("", name, reason) for name in names)
        request = LeaveGroupRequest(group, leaving)
        response = await self._ask(request, LeaveGroupResponse, group, changes_state=True)
        _check(response.error, f"static members of group {group!r} can't be removed")
        return {
            name: known_code(left.error)
            for name, left in zip(names, response.members, strict=False)
        }

    async def remove_members(
        self, group: str, member_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """Remove members by their ids, all in one rebalance; return the codes.

        Those that live find out at their next heartbeat, and join again as new members, at what
        is committed by then. 0 is done; 25: the group has no such member (any more).
        """
        names = tuple(dict.fromkeys(member_ids))
        if not names:
            return {}
        leaving = tuple(LeavingMember(name, None, reason) for name in names)
        request = LeaveGroupRequest(group, leaving)
        response = await self._ask(request, LeaveGroupResponse, group, changes_state=True)
        _check(response.error, f"members of group {group!r} can't be removed")
        return {
            name: known_code(left.error)
            for name, left in zip(names, response.members, strict=False)
        }

    async def rebalances(self, group: str, limit: int = REBALANCES_MAX) -> list[Rebalance]:
        """Return the newest *limit* rebalances of *group*, newest first: why, how long, who late.

        The coordinator keeps the last 100.

        Raises:
            FatalError: Code 69: no such group.
        """
        request = DescribeRebalancesRequest(group, limit)
        response = await self._ask(request, DescribeRebalancesResponse, group)
        _check(response.error, f"no rebalances of group {group!r}", response.message)
        return list(response.rebalances)

    # --- Offsets ---

    async def lag(self, group: str) -> dict[TopicPartition, Lag]:
        """Return how far *group* is behind, in each partition that it has committed or assigned.

        Raises:
            FatalError: Code 69: no such group.
        """
        return await group_lag(self._router, group, self._request_timeout_ms)

    async def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Forget committed offsets of a group; return the code per partition.

        0 is done (or nothing was committed); 86: the group's members subscribe to the topic;
        3: the topic is registered and has no such partition.

        Raises:
            FatalError: Code 69: no such group; 68: it has members that are no consumers.
        """
        wanted = sorted(set(partitions))
        codes: dict[TopicPartition, int] = {}
        for start in range(0, len(wanted), PARTITIONS_PER_DELETE):
            part = by_topic(wanted[start : start + PARTITIONS_PER_DELETE])
            request = OffsetDeleteRequest(group, part)
            response = await self._ask(request, OffsetDeleteResponse, group, changes_state=True)
            _check(response.error, f"offsets of group {group!r} can't be deleted")
            for topic in response.topics:
                for one in topic.partitions:
                    codes[TopicPartition(topic.topic, one.partition)] = known_code(one.error)
        return codes

    async def set_offsets_retention(self, group: str, retention_ms: int | None) -> None:
        """Keep the group's offsets for *retention_ms* once nobody uses them; -1 is for ever.

        None is the server's setting offsets.retention.minutes again.

        Raises:
            FatalError: Code 69: no such group.
            ValueError: *retention_ms* is below -1.
        """
        if retention_ms is not None and retention_ms < FOR_EVER:
            raise ValueError(f"{retention_ms} ms is no time to keep offsets; -1 is for ever")
        request = AlterGroupRetentionRequest(group, retention_ms)
        response = await self._ask(request, AlterGroupRetentionResponse, group, changes_state=True)
        _check(response.error, f"the retention of group {group!r} can't be changed")

    async def offsets_partition(self, group: str) -> int:
        """Return the offsets partition that keeps *group*, for `scan_offset_columns`."""
        request = FindCoordinatorRequest(0, (group,))
        response = await self._ask(request, FindCoordinatorResponse, group)
        found = response.coordinators[0]
        _check(found.error, f"no coordinator for {group!r}", found.message)
        return found.offsets_partition

    async def offsets_partitions(self) -> list[int]:
        """Return all offsets partitions, for `scan_offset_columns` and `offset_changes`."""
        return list(await self.offsets_log_ends())

    async def offsets_log_ends(self) -> dict[int, int]:
        """Return where the log of each offsets partition ends, what isn't on disk yet included."""
        response = await self._ask(DescribeNodeRequest(), DescribeNodeResponse, None)
        _check(response.error, "the node can't be described")
        ends = {one.offsets_partition: one.end_offset for one in response.partitions}
        return {number: ends[number] for number in sorted(ends) if number != NODE_PARTITION}

    def scan_offset_columns(
        self,
        offsets_partition: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> ColumnScan:
        """Return all offsets of one offsets partition, or those of some groups and topics.

        ``async for`` yields them one by one; `ColumnScan.page` returns them in columns, as they
        are on the wire, for those who read millions. At most 10,000 groups and 10,000 topics can
        be named, in at most a request's bytes.

        Commits go on meanwhile. For a state that was there at one moment, apply the changes from
        `ColumnScan.position` on; see `offset_changes`.

        Raises:
            FatalError: While reading, code 42: there is no such offsets partition; 35: the
                coordinator is too old for this.
        """
        return ColumnScan(
            self._router, offsets_partition, self._request_timeout_ms, group_ids, topics
        )

    async def offset_changes(
        self, offsets_partition: int, position: int, max_changes: int = CHANGES_PER_PAGE
    ) -> OffsetChanges:
        """Return what was committed and removed from *position* on, in its order.

        Only what is on disk, and as much of it as the log still has: a compacted log skips
        changes that newer ones have overwritten. Doesn't wait for new ones.

        Raises:
            PositionTooOld: The log doesn't reach back so far, or not as far: scan anew.
            FatalError: Code 42: there is no such offsets partition.
        """
        return await read_changes(
            self._router, offsets_partition, position, max_changes, self._request_timeout_ms
        )

    # --- Topics ---

    async def register_topics(self, topics: Mapping[str, int | TopicSource]) -> None:
        """Tell which topics there are: their number of partitions, or also where they lie.

        Repeating it changes nothing. Of a topic that has grown, or that matches a group's
        pattern and is new, the groups concerned rebalance.

        Raises:
            FatalError: Some topics were refused, the others are registered. Code 37: a topic
                can't shrink; 42: no partitions.
            RetriableError: A topic of that name is still being deleted, or the registry is full.
            OutcomeUnknown: No definite answer in time. Repeat the same call.
        """
        await self._topic_calls.register(topics)

    async def delete_topics(self, topics: Iterable[str]) -> dict[str, int]:
        """Tell that topics are gone; return the code per topic: 0 is done, 3 is not there.

        What any group has committed for them is removed in the background, and the groups
        that read them rebalance.

        Raises:
            OutcomeUnknown: No definite answer in time; describe the topics to find out.
        """
        return await self._topic_calls.delete(topics)

    async def describe_topics(
        self,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        *,
        with_end_offsets: bool = False,
    ) -> list[DescribedTopic]:
        """Return *topics* in their order, or by name those that match *pattern*, or all.

        A pattern is a regular expression of RE2's syntax for the whole name. A topic that isn't
        registered has error 3 and -1 partitions.

        Raises:
            FatalError: Code 128: *pattern* is no regular expression.
            ValueError: Both *topics* and *pattern* are given.
        """
        return await self._topic_calls.describe(topics, pattern, with_end_offsets=with_end_offsets)

    async def report_end_offsets(self, ends: Mapping[TopicPartition, int]) -> None:
        """Tell how far partitions of registered topics reach, for `lag`.

        Each is the offset that the partition's next record will get.

        Raises:
            FatalError: Code 3: some are not registered; the others are stored.
            ValueError: An end offset is none.
        """
        await self._topic_calls.report_ends(ends)

    async def _ask(
        self,
        request: Request,
        kind: type[R],
        group: str | None,
        *,
        changes_state: bool = False,
        timeout_ms: int | None = None,
    ) -> R:
        reply = await self._router.call(
            request,
            group_id=group,
            timeout_ms=self._request_timeout_ms if timeout_ms is None else timeout_ms,
            changes_state=changes_state,
        )
        assert isinstance(reply.response, kind)
        return reply.response


def _check(code: int, what: str, message: str | None = None) -> None:
    if code != ErrorCode.NONE:
        raise FatalError(f"{what}: {code_text(code, message)}", code=code)
