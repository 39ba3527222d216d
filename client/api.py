"""`connect` and `Client`: the way in."""

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from client.assignors import Assignor, RangeAssignor
from client.backoff import RetrySettings
from client.counts import ClientNow
from client.member import Callback, Member, Partitions
from client.membership import Change, MembershipConfig
from client.offsets import OffsetAndMetadata, OffsetCalls, Offsets, commit_request
from client.operators import OperatorCalls
from client.router import OpenStream, Router
from client.security import Given, Security
from client.zookeeper.offset_calls import offset_calls
from client.zookeeper.storage import Given as StorageGiven, OffsetStorage
from protocol.fields import TOPIC_BYTES_MAX
from protocol.group_ids import NAME_BYTES_MAX, name_error
from protocol.partition import NO_GENERATION, TopicPartition

REQUEST_TIMEOUT_MS = 30_000
LEAVE_TIMEOUT_MS = 700  # A program that is cancelled ends within a second, exit included.


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def connect(
    address: str | Sequence[str],
    *,
    client_id: str = "client",
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    leave_timeout_ms: int = LEAVE_TIMEOUT_MS,
    retry: RetrySettings | None = None,
    rng: random.Random | None = None,
    security: Given = None,
    offset_storage: StorageGiven = None,
    open_stream: OpenStream = trio.open_tcp_stream,
) -> AsyncIterator["Client"]:
    """Connect to a coordinator; use as ``async with``. Leaving the block leaves all groups.

    Args:
        address: "host:port" of any node, or several to begin with; if one fails, the next is
            tried.
        client_id: How logs and operators see this program; member ids begin with it.
        request_timeout_ms: How long each call of the client goes on trying; for those of a member
            see `Client.join`.
        leave_timeout_ms: How long leaving may take, at most.
        retry: Pauses between attempts.
        rng: Where the jitter of the pauses comes from.
        security: Settings of TLS and SASL: properties by Kafka's names (``security.protocol``,
            ``sasl.*``, ``ssl.*``), or a file of them. None is plaintext without a log-in.
        offset_storage: Place of committed offsets, for a move away from ZooKeeper: properties
            by Kafka's names (``offsets.storage``, ``dual.commit.enabled``, ``zookeeper.*``), or a
            file of them. None is the coordinator.
        open_stream: Makes a connection to (host, port); `trio.open_tcp_stream` by default.

    Raises:
        CoordinatorUnavailable: None of the addresses answered in time.
        AuthenticationFailed: Client or coordinator could not authenticate the other.
        FatalError: The address belongs to no coordinator for this client.
        RuntimeError: The caller is no trio program.
        ValueError: An argument makes no sense.
    """
    addresses = parse_addresses(address)
    _check_connect(
        client_id, request_timeout_ms=request_timeout_ms, leave_timeout_ms=leave_timeout_ms
    )
    secured = Security.of(security)
    storage = OffsetStorage.of(offset_storage)
    _check_trio()
    failure: BaseException | None = None
    async with trio.open_nursery() as outer:
        background = await _open_background(outer)
        router = Router(
            background,
            addresses,
            client_id=client_id,
            open_stream=open_stream,
            security=secured,
            rng=rng or random.Random(),  # noqa: S311 - jitter needs no secrecy.
            retry=retry or RetrySettings(),
            request_timeout_ms=request_timeout_ms,
        )
        client = Client(background, router, offset_calls(router, storage), leave_timeout_ms)
        try:
            try:
                await router.start()
                yield client
            finally:
                await client.aclose()
        except BaseException as exc:  # noqa: BLE001 - raised again below, whatever it is.
            # A nursery would wrap what its block raises into an exception group, and
            # `except Rebalanced` around the caller's block would miss it.
            failure = exc
        finally:
            background.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _check_connect(client_id: object, **times_ms: object) -> None:
    if not isinstance(client_id, str) or not client_id:
        raise ValueError(f"client_id must be a name, not {client_id!r}")
    _check_name("client_id", client_id)
    _check_times(**times_ms)


def _check_times(**times_ms: object) -> None:
    for name, ms in times_ms.items():
        if not isinstance(ms, int | float) or not ms >= 0:
            raise ValueError(f"{name} must be a number of milliseconds, not {ms!r}")


def _check_name(what: str, name: str, max_bytes: int = NAME_BYTES_MAX) -> None:
    if (wrong := name_error(name, max_bytes)) is not None:
        shown = f"{name[:100]}…" if len(name) > 100 else name
        raise ValueError(f"{what} {shown!r} is not legal: {wrong}")


def _check_trio() -> None:
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        raise RuntimeError(
            "client.connect works in trio programs only; use client.aio.connect with asyncio, "
            "and client.blocking.connect_blocking in ordinary threads"
        ) from None


async def _open_background(outer: trio.Nursery) -> trio.Nursery:
    """Return a nursery in *outer* that outlives the caller's cancellation.

    Its tasks send and receive, also while members leave after the caller was cancelled.
    The caller of this function must cancel the nursery.
    """
    background: trio.Nursery | None = None
    opened = trio.Event()

    @trio.lowlevel.enable_ki_protection
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


class Client(OperatorCalls):
    """A connection to the coordinators of groups. Methods may be called from several tasks."""

    def __init__(
        self,
        nursery: trio.Nursery,
        router: Router,
        offset_calls: OffsetCalls,
        leave_timeout_ms: int,
    ) -> None:
        super().__init__(router)
        self._nursery = nursery
        self._leave_timeout_ms = leave_timeout_ms
        self._offset_calls = offset_calls
        self._members: list[Member] = []

    @property
    def cluster_id(self) -> str:
        """Which cluster this is: 22 characters, made when its first node started."""
        return self._router.cluster_id

    def join(
        self,
        group: str,
        topics: Sequence[str] | None = None,
        partitions: Partitions | None = None,
        *,
        pattern: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        assignors: Sequence[Assignor] = (RangeAssignor(),),
        group_instance_id: str | None = None,
        host: str | None = None,
        reason: str | None = None,
        register: bool = True,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
        auto_commit_interval_ms: int | None = None,
        request_timeout_ms: int | None = None,
    ) -> Member:
        """Return a member of *group*, for ``async with``; `Member.assignment` joins.

        Args:
            group: The group id.
            topics: Topics to read; or give *pattern*.
            partitions: The partitions of a topic: a mapping from topic to their number, or a
                function (async, if it takes long) from topic to their numbers; None asks the
                coordinator's registry. Only the group's leader needs them.
            pattern: Read all registered topics whose whole name matches this regular expression
                of RE2's syntax, those that come later, too.
            session_timeout_ms: The group removes a member without a heartbeat for this time.
                Heartbeats run in the background, so this needn't cover the work on a batch.
            rebalance_timeout_ms: How long the group waits for this member to call
                `Member.assignment` when it rebalances: longer than the work on a batch.
            assignors: How to share partitions, the preferred one first. All members of a
                group must have one in common. If all of them are cooperative, the partitions
                that stay are readable while the group rebalances.
            group_instance_id: The name of a static member, which takes its partitions up again
                when it was restarted within *session_timeout_ms*. It doesn't leave at the end.
            host: Where this member runs, to be given partitions whose data lie there.
            reason: Why, for the coordinator's log.
            register: As leader, tell the coordinator's registry what *partitions* says, so that
                lag can be known. It only ever adds to the registry, and bounds no commits. If it
                fails, that is logged.
            on_assigned: Called with the partitions that are added.
            on_revoked: Called with those that will be given up; they can still be committed.
            on_lost: Called with those that were lost: another member may have them already.
            auto_commit_interval_ms: Interval of commits of stored offsets (see `Member.store`);
                they are also committed before partitions are given up.
            request_timeout_ms: How long `Member.assignment`, `Member.fetch` and `Member.commit` go
                on trying while the coordinator is away. None: until it answers.

        Raises:
            ValueError: An argument makes no sense.
        """
        _check_join(group, topics, pattern, assignors, auto_commit_interval_ms)
        if request_timeout_ms is not None:
            _check_times(request_timeout_ms=request_timeout_ms)
        if group_instance_id is not None:
            _check_name("group_instance_id", group_instance_id)
        config = MembershipConfig(
            group_id=group,
            topics=tuple(sorted(set(topics or ()))),
            assignor_names=tuple(assignor.name for assignor in assignors),
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            group_instance_id=group_instance_id,
            reason=reason,
            topic_pattern=pattern,
            host=host,
            # One eager assignor among them may be what the group chooses, and would give away
            # what this member still reads.
            cooperative=all(map(_is_cooperative, assignors)),
        )
        member = Member(
            self._nursery,
            self._router,
            self._offset_calls,
            config=config,
            assignors=assignors,
            partitions=partitions,
            register=register,
            callbacks={
                Change.GIVEN: on_assigned,
                Change.REVOKED: on_revoked,
                Change.LOST: on_lost,
            },
            auto_commit_interval_ms=auto_commit_interval_ms,
            request_timeout_ms=math.inf if request_timeout_ms is None else request_timeout_ms,
            leave_timeout_ms=self._leave_timeout_ms,
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

    def now(self) -> ClientNow:
        """Return how this client is and what it has counted, for metrics; from any thread."""
        return self._router.now(tuple(one.now() for one in self._members if not one.has_left))

    def start_soon(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do *work*, which must not raise, until it is done or the client is closed."""
        self._nursery.start_soon(work)

    @trio.lowlevel.enable_ki_protection
    async def aclose(self) -> None:
        """Leave all groups and close all connections; `connect` does it at the block's end."""
        try:
            with trio.CancelScope(shield=True):  # Bounded: each leaves within leave_timeout_ms.
                async with trio.open_nursery() as nursery:
                    for member in self._members:
                        nursery.start_soon(member.leave)
                with trio.move_on_after(self._leave_timeout_ms / 1000):
                    await self._offset_calls.close()
        finally:
            self._router.close()


def _check_join(
    group: object,
    topics: Sequence[object] | None,
    pattern: str | None,
    assignors: Sequence[object],
    auto_commit_interval_ms: int | None,
) -> None:
    if not isinstance(group, str) or not group:
        raise ValueError(f"a group id is a text, not {group!r}")
    if (topics is None) == (pattern is None):
        raise ValueError("a member reads either topics or a pattern")
    is_one = isinstance(topics, str)
    if pattern is None and (is_one or not topics or not all(isinstance(t, str) for t in topics)):
        raise ValueError(f"topics must be a sequence of names, not {topics!r}")
    for topic in topics or ():
        _check_name("topic", str(topic), TOPIC_BYTES_MAX)
    if pattern == "":
        raise ValueError("an empty pattern matches no topic")
    if not assignors:
        raise ValueError("a member must offer at least one assignor")
    for one in assignors:
        if isinstance(one, str | type) or not hasattr(one, "assign"):
            raise ValueError(f"an assignor is an object such as RangeAssignor(), not {one!r}")
    if auto_commit_interval_ms is not None and auto_commit_interval_ms <= 0:
        raise ValueError("auto_commit_interval_ms must be positive, or None for no auto-commit")


def _is_cooperative(assignor: Assignor) -> bool:
    # A caller's own assignor needn't know the word.
    return bool(getattr(assignor, "cooperative", False))


def parse_addresses(address: str | Sequence[str]) -> list[tuple[str, int]]:
    """Return host and port of "host:port", "[v6]:port", or of each of several.

    Commas part several in one text.

    Raises:
        ValueError: One of them is neither, or there is none.
    """
    texts = _texts(address)
    if not texts:
        raise ValueError("at least one address is needed")
    return [_parse(text) for text in texts]


def _texts(address: object) -> list[object]:
    if isinstance(address, str):
        return [*address.split(",")]
    if isinstance(address, bytes) or not isinstance(address, Iterable):
        return [address]
    return list(address)


def _parse(text: object) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":") if isinstance(text, str) else ("", "", "")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port) <= 65535):
        raise ValueError(f"{text!r} is not of the form host:port")
    return host, int(port)
