"""`connect` and `Client`: the way in."""

import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from client.actions import MembershipConfig
from client.address import parse_addresses
from client.assignors import Assignor, RangeAssignor
from client.backoff import RetrySettings
from client.exceptions import FatalError, code_text, known_code
from client.member import Member
from client.offset_calls import OffsetCalls
from client.offsets import commit_request
from client.router import OpenStream, Router
from client.types import OffsetAndMetadata, Offsets, Partitions
from protocol.errors import ErrorCode
from protocol.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DrainedMember,
    DrainMemberRequest,
    DrainMemberResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    Request,
    Response,
)
from protocol.types import NO_GENERATION, TopicPartition

REQUEST_TIMEOUT_MS = 30_000
LEAVE_TIMEOUT_MS = 1_000

R = TypeVar("R", bound=Response)


@asynccontextmanager
async def connect(
    address: str | Sequence[str],
    *,
    client_id: str = "client",
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    leave_timeout_ms: int = LEAVE_TIMEOUT_MS,
    retry: RetrySettings | None = None,
    rng: random.Random | None = None,
    open_stream: OpenStream = trio.open_tcp_stream,
) -> AsyncIterator["Client"]:
    """Connect to a coordinator; use as ``async with``. Leaving the block leaves all groups.

    Args:
        address: "host:port" of any node, or several to begin with; if one fails, the next is
            tried.
        client_id: How logs and operators see this program; member ids begin with it.
        request_timeout_ms: How long each call goes on trying.
        leave_timeout_ms: How long leaving may take, at most.
        retry: Pauses between attempts.
        rng: Where the jitter of the pauses comes from.
        open_stream: Makes a connection to (host, port); `trio.open_tcp_stream` by default.

    Raises:
        CoordinatorUnavailable: None of the addresses answered in time.
        FatalError: Somebody answered who is no coordinator for this client.
        ValueError: An address is none.
    """
    addresses = parse_addresses(address)
    rng = rng or random.Random()  # noqa: S311 - jitter needs no secrecy.
    retry = retry or RetrySettings()
    failure: BaseException | None = None
    async with trio.open_nursery() as outer:
        background = await _open_background(outer)
        router = Router(
            background,
            addresses,
            client_id=client_id,
            open_stream=open_stream,
            rng=rng,
            retry=retry,
        )
        client = Client(
            background,
            router,
            request_timeout_ms=request_timeout_ms,
            leave_timeout_ms=leave_timeout_ms,
            retry=retry,
            rng=rng,
        )
        try:
            await router.start(request_timeout_ms)
            yield client
        except BaseException as exc:  # noqa: BLE001 - raised again below, whatever it is.
            # A nursery would wrap what its block raises into an exception group, and
            # `except Rebalanced` around the caller's block would miss it.
            failure = exc
        finally:
            await client.aclose()
            background.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _open_background(outer: trio.Nursery) -> trio.Nursery:
    """Return a nursery in *outer* that outlives the caller's cancellation.

    Its tasks move the bytes; they are needed for saying goodbye when the caller was cancelled.
    Whoever opens it must cancel it.
    """
    background: trio.Nursery | None = None
    opened = trio.Event()

    async def hold_open() -> None:
        nonlocal background
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as background:
                opened.set()
                await trio.sleep_forever()

    outer.start_soon(hold_open, name="group client")
    # `outer.start` would wait for ever here if the caller is cancelled already, as it leaves
    # a child that is under way to its own cancellation, and this child is shielded from it.
    with trio.CancelScope(shield=True):
        await opened.wait()
    assert background is not None
    return background


class Client:
    """A connection to the coordinators of groups. Methods may be called from several tasks."""

    def __init__(
        self,
        nursery: trio.Nursery,
        router: Router,
        *,
        request_timeout_ms: int,
        leave_timeout_ms: int,
        retry: RetrySettings,
        rng: random.Random,
    ) -> None:
        self._nursery = nursery
        self._router = router
        self._request_timeout_ms = request_timeout_ms
        self._leave_timeout_ms = leave_timeout_ms
        self._retry = retry
        self._rng = rng
        self._offset_calls = OffsetCalls(router, request_timeout_ms)
        self._members: list[Member] = []

    @property
    def cluster_id(self) -> str:
        """Which cluster this is: 22 characters, made when its first node started."""
        return self._router.cluster_id

    def join(
        self,
        group: str,
        topics: Sequence[str],
        partitions: Partitions,
        *,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        assignors: Sequence[Assignor] = (RangeAssignor(),),
        group_instance_id: str | None = None,
        reason: str | None = None,
    ) -> Member:
        """Return a member of *group*, for ``async with``; `Member.assignment` joins.

        Args:
            group: The group id.
            topics: What to read.
            partitions: The partitions of a topic: a mapping from topic to their number, or a
                function (async, if it takes long) from topic to their numbers. Only the
                group's leader is asked.
            session_timeout_ms: Without a heartbeat for so long, the group removes the member.
                Heartbeats run in the background, so this needn't cover the work on a batch.
            rebalance_timeout_ms: How long the group waits for this member to call
                `Member.assignment` when it rebalances: longer than the work on a batch.
            assignors: How to share partitions, the preferred one first. All members of a
                group must have one in common.
            group_instance_id: The name of a static member.
            reason: Why, for the coordinator's log.

        Raises:
            ValueError: An argument makes no sense.
        """
        if isinstance(topics, str) or not topics:
            raise ValueError(f"topics must be a sequence of names, not {topics!r}")
        if not assignors:
            raise ValueError("a member must offer at least one assignor")
        names = tuple(assignor.name for assignor in assignors)
        config = MembershipConfig(
            group,
            tuple(sorted(set(topics))),
            names,
            session_timeout_ms,
            rebalance_timeout_ms,
            group_instance_id,
            reason,
        )
        member = Member(
            self._nursery,
            self._router,
            self._offset_calls,
            config=config,
            assignors=assignors,
            partitions=partitions,
            request_timeout_ms=self._request_timeout_ms,
            leave_timeout_ms=self._leave_timeout_ms,
            retry=self._retry,
            rng=self._rng,
        )
        self._members = [other for other in self._members if not other.has_left]
        self._members.append(member)
        return member

    async def commit(
        self,
        group: str,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Store offsets of a group without members, as operators and listeners do.

        See `Member.commit`; a group with active members refuses it with a `FatalError`.
        """
        request = commit_request(group, NO_GENERATION, "", None, offsets, expected)
        await self._offset_calls.commit(request, timeout_ms)

    async def fetch_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of *partitions*, or of the whole group (None).

        A partition that nothing was committed for is left out; so is all of an unknown group.

        Raises:
            CoordinatorUnavailable: Nobody could be reached in time.
            FatalError: Repeating it does not help.
        """
        return await self._offset_calls.fetch(group, partitions, timeout_ms)

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
        if response.error != ErrorCode.NONE:
            text = f"no list of groups: {code_text(response.error)}"
            raise FatalError(text, code=response.error)
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
        if response.error != ErrorCode.NONE:
            text = f"{client_id!r} in group {group!r} can't be drained: {code_text(response.error)}"
            raise FatalError(text, code=response.error)
        return list(response.members)

    async def aclose(self) -> None:
        """Leave all groups and close all connections; `connect` does it at the block's end."""
        with trio.CancelScope(shield=True):  # Bounded: each leaves within leave_timeout_ms.
            async with trio.open_nursery() as nursery:
                for member in self._members:
                    nursery.start_soon(member.leave)
        self._router.close()

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
