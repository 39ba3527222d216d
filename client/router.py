"""Router of requests: finds the coordinator, keeps connections, retries inside a deadline.

Any known node is asked for the coordinator. A node that fails, or doesn't know it at the moment, is
the last to be asked again, so a node that is cut off from its cluster delays no call for long.
"""

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, TypeVar

import trio

from client.backoff import RetrySettings
from client.connection import Connection, ConnectionLost
from client.counts import ClientCounts, ClientNow, MemberNow
from client.exceptions import (
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    OutcomeUnknown,
    RetriableError,
    code_text,
    error_info,
    refusal,
)
from client.outages import Outages, in_words, one_line, refusals_of
from client.security import Security
from protocol.connection import ResponseEvent
from protocol.coordinators import Key, about_partitions, key_of, next_page, of_partition
from protocol.errors import ErrorCode, Remedy, error_name
from protocol.messages import (
    APIS,
    KEY_TYPE_CLUSTER,
    KEY_TYPE_GROUP,
    KEY_TYPE_PARTITION,
    BareError,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteTopicsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    RegisterTopicsResponse,
    Request,
    Response,
    api_of,
)
from protocol.partition import NO_LEADER_EPOCH

R = TypeVar("R", bound=Response)
OpenStream = Callable[[str, int], Awaitable[trio.abc.Stream]]
Address = tuple[str, int]

# One attempt never takes longer than this, so that there is time to try another address.
ATTEMPT_MS_MAX: Final = 10_000
# With what has a coordinator of its own: less than a session with ZooKeeper lives
# (cluster.session.timeout.ms), after which another node leads; and more than a coordinator takes
# to say that it doesn't know (offsets.commit.timeout.ms, and half a second).
COORDINATOR_ATTEMPT_MS_MAX: Final = 5_750
# Connect timeouts, in ms. The first is shorter: a stopped node is soon replaced in its cluster.
CONNECT_MS: Final = 1_250
CONNECT_MS_MAX: Final = 5_000
# Failures after which pauses grow no longer (0.4 s), while a node names a coordinator that is away:
# that node is the first to know the next coordinator.
DIRECTED_FAILURES_MAX: Final = 3

_KEY_NAMES: Final = {
    KEY_TYPE_GROUP: "group",
    KEY_TYPE_CLUSTER: "the cluster's own",
    KEY_TYPE_PARTITION: "offsets partition",
}


class Verdict(Enum):
    """Next step of the retry loop."""

    DONE = "hand the answer to the caller, error code and all"
    RETRY = "pause, then ask the same coordinator again"
    LOADING = "the same, but not for ever"
    FIND = "pause, find the coordinator, ask it"
    LOG_IN = "connect anew and log in, where this client does; else hand the answer on"
    IN_DOUBT = "pause and repeat the same request: it may or may not have been applied"
    MALFORMED = "the answer doesn't fit its request; close the connection"


_VERDICTS: Final = {
    Remedy.RETRY: Verdict.RETRY,
    Remedy.FIND_COORDINATOR: Verdict.FIND,
    Remedy.REPEAT_AND_CHECK: Verdict.IN_DOUBT,
    Remedy.LOG_IN: Verdict.LOG_IN,
}


@dataclass(slots=True, eq=False)
class _Call:
    """One request on its way through attempts.

    Attributes:
        key: The key whose coordinator gets the request; None for any node.
        address: The only node that may get the request; None leaves the choice to *key*.
        is_directed: In this attempt a node has said that another one is the coordinator.
    """

    request: Request
    key: Key | None
    changes_state: bool
    parked_ms: int
    attempt_ms: int
    deadline_s: float
    address: Address | None = None
    failures: int = 0
    is_directed: bool = False
    in_doubt: bool = False
    last_trouble: str = "no attempt was made"
    cause: OSError | None = None
    refused: bool = False

    @property
    def api_name(self) -> str:
        """Which request it is, for people."""
        return APIS[api_of(self.request)].name


class Reply(NamedTuple):
    """An answer that is final, and whether an earlier attempt may have been applied, too."""

    response: Response
    after_doubt: bool


class Router:
    """All connections of one client. Its tasks live in *nursery* and never raise.

    Attributes:
        cluster_id: Id of the cluster, as the last connected node announced it.
        counts: Counters of requests and groups.
        request_timeout_ms: Default time limit of a call with its retries.

    """

    def __init__(
        self,
        nursery: trio.Nursery,
        addresses: Sequence[Address],
        *,
        client_id: str,
        open_stream: OpenStream,
        security: Security,
        rng: random.Random,
        retry: RetrySettings,
        request_timeout_ms: int,
    ) -> None:
        """Take the addresses to begin with; nothing is connected yet."""
        self.request_timeout_ms = request_timeout_ms
        self._nursery = nursery
        self._bootstrap = tuple(addresses)
        self._client_id = client_id
        self._open_stream = open_stream
        self._security = security
        self._rng = rng
        self._retry = retry
        self._connections: dict[Address, Connection] = {}
        self._connecting: dict[Address, trio.Lock] = {}
        self._coordinators: dict[Key, Address] = {}
        # Each key has one of its own: what other nodes lead has epochs that don't compare.
        self._epochs: dict[Key, int] = {}
        self._loading_since_s: dict[Key, float] = {}
        # How often a node has failed, or not known, since it was last of use; the latest one last.
        self._failures: dict[str, int] = {}
        self._is_closed = False
        self._outages = Outages()
        self._clock = trio.lowlevel.current_clock()
        self.counts = ClientCounts()
        self.cluster_id = ""

    def close(self) -> None:
        """Close every connection; waiting calls raise `ClientClosed`. Never blocks."""
        self._is_closed = True
        for connection in self._connections.values():
            connection.close("the client was closed")

    def clock_s(self) -> float:
        """Return trio's time, in whatever thread."""
        return self._clock.current_time()

    def now(self, members: tuple[MemberNow, ...]) -> ClientNow:
        """Return how the client is, whose *members* are these."""
        return ClientNow(
            self._client_id,
            sum(one.is_usable for one in list(self._connections.values())),
            self._outages.longest_s(self.clock_s()),
            members,
            self.counts,
        )

    def check_open(self) -> None:
        """Raise `ClientClosed` after `close`."""
        if self._is_closed:
            raise ClientClosed("the client is closed")

    @trio.lowlevel.enable_ki_protection
    async def call(
        self,
        request: Request,
        *,
        timeout_ms: float | None = None,
        changes_state: bool = False,
        parked_ms: int = 0,
        attempt_ms: int | None = None,
    ) -> Reply:
        """Send *request* until it has a final answer.

        The very same request is repeated, with growing pauses, while the coordinator is away,
        loading or moving, and while nobody knows whether it was applied.

        Args:
            request: About one group, or about none; it goes to the coordinator of that.
            timeout_ms: How long to go on trying; None: as long as the client was told.
            changes_state: Whether it matters if a lost request was applied.
            parked_ms: How long the coordinator may park the request; it doesn't count.
            attempt_ms: How long to wait for one answer at most, unless it is parked.

        Raises:
            CoordinatorUnavailable: Time is up; nothing was applied.
            RetriableError: The same, with a reason that the coordinator named.
            OutcomeUnknown: Time is up, and some attempt may have been applied.
            AuthenticationFailed: One end isn't sure who the other is.
            NotAuthorized: This principal may not ask that.
            FatalError: The request can't be sent, or wasn't understood.
            ClientClosed: The client was closed.
        """
        key = key_of(request)
        longest_ms = ATTEMPT_MS_MAX if key is None else COORDINATOR_ATTEMPT_MS_MAX
        call = _Call(
            request,
            key,
            changes_state,
            parked_ms,
            longest_ms if attempt_ms is None else min(attempt_ms, longest_ms),
            self.deadline_s(timeout_ms),
        )
        try:
            while True:
                reply = await self._attempt(call)
                if reply is not None:
                    return reply
                call.failures += 1
                failures = call.failures
                if call.is_directed:
                    failures = min(failures, DIRECTED_FAILURES_MAX)
                if not await self.pause(failures, call.deadline_s):
                    raise self._out_of_time(call)
        finally:
            self._outages.gone(call)

    async def ask(
        self,
        request: Request,
        kind: type[R],
        *,
        timeout_ms: float | None = None,
        changes_state: bool = False,
    ) -> R:
        """Do `call`, and return the answer, which is of *kind*."""
        reply = await self.call(request, timeout_ms=timeout_ms, changes_state=changes_state)
        assert isinstance(reply.response, kind)
        return reply.response

    async def ask_leaders(self, request: Request, kind: type[R]) -> list[R]:
        """Ask every node that leads something; return their answers, all pages of each.

        If *request* may name offsets partitions, each node is asked about those that it leads, so
        that nothing is missing and nothing is there twice, whoever begins to lead meanwhile. After
        an answer with an error of its own, which is the last one then, nobody is asked any more.

        Raises:
            As `call`.
        """
        deadline_s = self.deadline_s(None)
        answers: list[R] = []
        done: set[int] = set()
        failures = 0
        while True:
            places = await self._leaders(deadline_s)
            call = None
            for address, led in places.items():
                partitions = tuple(number for number in led if number not in done)
                if led and not partitions:
                    continue
                asked = about_partitions(request, partitions) if partitions else request
                attempt = _Call(asked, None, False, 0, ATTEMPT_MS_MAX, deadline_s, address)
                pages = await self._pages(attempt, kind)
                if pages is None:
                    call = attempt
                    continue
                answers += pages
                done.update(partitions)
                if getattr(pages[-1], "error", ErrorCode.NONE):
                    return answers
            if call is None:
                return answers
            failures += 1
            call.failures = failures
            if not await self.pause(failures, deadline_s):
                raise self._out_of_time(call)

    async def _leaders(self, deadline_s: float) -> dict[Address | None, list[int]]:
        """Return the nodes that lead something, with which offsets partitions.

        A coordinator of an older release names nobody: it is one alone, whoever it is (None).
        """
        request = FindCoordinatorRequest(KEY_TYPE_PARTITION, ())
        found = await self.ask(
            request, FindCoordinatorResponse, timeout_ms=(deadline_s - _now_s()) * 1000
        )
        places: dict[Address | None, list[int]] = {}
        for one in found.coordinators:
            places.setdefault((one.host, one.port), []).append(one.offsets_partition)
            self._coordinators[of_partition(one.offsets_partition)] = (one.host, one.port)
        return places or {None: []}

    async def _pages(self, call: _Call, kind: type[R]) -> list[R] | None:
        """Return all pages of what one node answers; None if another try may help."""
        pages: list[R] = []
        request: Request | None = call.request
        try:
            while request is not None:
                call.request = request
                reply = await self._attempt(call)
                if reply is None:
                    return None
                assert isinstance(reply.response, kind)
                pages.append(reply.response)
                request = next_page(request, reply.response)
        finally:
            self._outages.gone(call)
        return pages

    def deadline_s(self, timeout_ms: float | None) -> float:
        """Return when *timeout_ms* from now is, by trio's clock; None: the request timeout."""
        timeout_ms = self.request_timeout_ms if timeout_ms is None else timeout_ms
        return _now_s() + timeout_ms / 1000

    async def pause(self, failures: int, deadline_s: float = math.inf) -> bool:
        """Pause after the *failures*-th failure in a row; say whether there is time for it."""
        pause_s = self._retry.pause_s(failures, self._rng)
        if trio.current_time() + pause_s >= deadline_s:
            return False
        await trio.sleep(pause_s)
        return True

    async def start(self) -> None:
        """Connect to any node, to know early that there is one.

        Raises:
            CoordinatorUnavailable: No node answered in time.
            FatalError: The address belongs to no coordinator for this client.
        """
        deadline_s = self.deadline_s(None)
        failures = 0
        caller = object()
        try:
            while True:
                try:
                    connection = await self._connect_any(deadline_s, caller)
                except ConnectionLost as exc:
                    trouble = exc
                    if exc.is_stranger:
                        raise FatalError(one_line(f"no coordinator is there: {exc}")) from None
                else:
                    self._outages.answered(connection.address, caller, trio.current_time())
                    return
                failures += 1
                if not await self.pause(failures, deadline_s):
                    text = one_line(f"no coordinator answers: {trouble}")
                    raise CoordinatorUnavailable(text, cause=trouble.cause)
        finally:
            self._outages.gone(caller)

    async def _connect_any(self, deadline_s: float, caller: object) -> Connection:
        """Return a connection to some node, trying every known address once.

        Raises:
            ConnectionLost: None answered.
            FatalError: One answered and refused.
        """
        troubles: list[ConnectionLost] = []
        for address in self._known_nodes():
            try:
                return await self._connect(address, deadline_s)
            except ConnectionLost as exc:
                self._failed(exc, caller)
                troubles.append(exc)
        text = "; ".join(map(str, troubles))
        raise ConnectionLost(
            text,
            maybe_sent=False,
            is_stranger=all(trouble.is_stranger for trouble in troubles),
            cause=troubles[-1].cause,
        )

    def _known_nodes(self) -> list[Address]:
        """Return all nodes that are known; those that failed come last, the latest one at the end.

        Of the others it is who was named first, so that most requests go the same way.
        """
        usable = (address for address, one in self._connections.items() if one.is_usable)
        known = dict.fromkeys((*self._bootstrap, *usable, *self._coordinators.values()))
        failed = {name: place for place, name in enumerate(self._failures, 1)}
        return sorted(known, key=lambda address: failed.get(_name(address), 0))

    def _note_use(self, name: str, *, of_use: bool) -> None:
        """Note whether a node has just been of use."""
        failures = self._failures.pop(name, 0)
        if not of_use:
            self._failures[name] = failures + 1

    def _out_of_time(self, call: _Call) -> Exception:
        what = call.api_name
        where = ""
        if call.key is not None and call.key.type == KEY_TYPE_GROUP:
            where = f" of group {call.key.name!r}"
        times = f"{call.failures} attempt{'s' if call.failures > 1 else ''}"
        tried = f"gave up after {times}; last: {call.last_trouble}"
        text = one_line(f"{what}{where}: {tried}")
        if call.in_doubt and call.changes_state:
            return OutcomeUnknown(text, cause=call.cause)
        if call.refused:
            return RetriableError(text)
        return CoordinatorUnavailable(text, cause=call.cause)

    async def _attempt(self, call: _Call) -> Reply | None:
        """Try once; None means that another try may help."""
        self.check_open()
        call.refused, call.cause, call.is_directed = False, None, False
        try:
            connection = await self._connection_for(call)
            event, took_s = await self._ask(connection, call)
        except ConnectionLost as exc:
            if self._is_closed:
                raise ClientClosed("the client is closed") from None
            self._failed(exc, call)
            self.counts.unanswered(call.api_name)
            call.last_trouble, call.cause = str(exc), exc.cause
            call.in_doubt |= exc.maybe_sent
            self._forget_coordinator(call)
            return None
        code = error_of(call.request, event.response)
        error = "MALFORMED" if code is None else error_name(code)
        self.counts.answered(call.api_name, error, took_s)
        reply = self._judge(call, event, code, connection)
        if reply is None:
            self._outages.failed(connection.address, call.last_trouble, call, trio.current_time())
        else:
            self._outages.answered(connection.address, call, trio.current_time())
            self._note_use(connection.address, of_use=True)
        return reply

    def _failed(self, lost: ConnectionLost, caller: object) -> None:
        if lost.address:  # Otherwise it is of several, and each was told of.
            self._outages.failed(lost.address, str(lost), caller, trio.current_time())
            self._note_use(lost.address, of_use=False)

    def _forget_coordinator(self, call: _Call) -> None:
        if call.key is not None:
            self._coordinators.pop(call.key, None)

    async def _connection_for(self, call: _Call) -> Connection:
        # Finding and connecting must leave time for the request itself.
        deadline_s = min(call.deadline_s, trio.current_time() + ATTEMPT_MS_MAX / 1000)
        address = call.address
        if call.key is not None:
            address = self._coordinators.get(call.key)
            address = address or await self._find(call.key, deadline_s, call)
        if address is None:
            return await self._connect_any(deadline_s, call)
        return await self._connect(address, deadline_s)

    async def _ask(self, connection: Connection, call: _Call) -> tuple[ResponseEvent, float]:
        """Return the answer, and how long it took."""
        with trio.move_on_at(call.deadline_s) as throttled:
            await connection.wait_for_turn()
        if throttled.cancelled_caught:
            raise ConnectionLost(
                f"{connection.address} asked to wait longer", connection.address, maybe_sent=False
            )
        began_s = trio.current_time()
        allowed_s = min(call.attempt_ms / 1000, max(0.0, call.deadline_s - began_s))
        allowed_s += call.parked_ms / 1000
        try:
            with trio.move_on_after(allowed_s):
                event = await connection.request(call.request)
                return event, trio.current_time() - began_s
        finally:
            # Parked time doesn't count: a connection that breaks after minutes leaves as much
            # time for another try as one that breaks at once.
            parked_ms = min(call.parked_ms, int((trio.current_time() - began_s) * 1000))
            call.parked_ms -= parked_ms
            call.deadline_s += parked_ms / 1000
        # A stuck connection is stuck for the other callers, too; and only on a new connection
        # can the same request be sent again without one overtaking the other.
        connection.close("an answer did not come in time")
        raise ConnectionLost(
            f"{connection.address} did not answer within {allowed_s:.1f} s", connection.address
        )

    def _judge(
        self, call: _Call, event: ResponseEvent, code: int | None, connection: Connection
    ) -> Reply | None:
        key, response = call.key, event.response
        if key is not None and not self._epoch_is_fresh(key, event.leader_epoch):
            connection.close("it answered with an old leader epoch")
            self._coordinators.pop(key, None)
            call.in_doubt = True
            call.last_trouble = f"{connection.address} answered with an old leader epoch"
            return None
        what = verdict(code)
        if what is not Verdict.LOADING and key is not None:
            self._loading_since_s.pop(key, None)
        if what is Verdict.LOG_IN and not self._security.logs_in:
            raise refusal(
                f"{connection.address} wants a log-in: set security.protocol and sasl.mechanism",
                code or 0,
            )
        if what is Verdict.DONE:
            if isinstance(response, BareError):
                raise refusal(
                    f"{type(call.request).__name__} was refused: {code_text(response.error)}",
                    response.error,
                )
            return Reply(response, after_doubt=call.in_doubt)
        self._note_trouble(call, what, code, response, connection)
        return None

    def _note_trouble(
        self,
        call: _Call,
        what: Verdict,
        code: int | None,
        response: Response,
        connection: Connection,
    ) -> None:
        key = call.key
        if code is None:
            text = "an answer that doesn't fit the request"
        else:
            text = code_text(code, getattr(response, "message", None))
        call.last_trouble = f"{connection.address} answered {text}"
        match what:
            case Verdict.RETRY:
                call.refused = True
            case Verdict.LOADING if key is not None:
                now_s = trio.current_time()
                since_s = self._loading_since_s.setdefault(key, now_s)
                if now_s - since_s >= self._retry.loading_patience_ms / 1000:
                    del self._loading_since_s[key]
                    self._coordinators.pop(key, None)
            case Verdict.FIND if key is not None:
                self._coordinators.pop(key, None)
            case Verdict.FIND:
                self._note_use(connection.address, of_use=False)  # Ask another node next.
            case Verdict.LOG_IN:
                connection.close("its log-in has ended")  # Nothing was applied.
            case Verdict.IN_DOUBT:
                call.in_doubt = True
                self._forget_coordinator(call)  # Its log is slow, or another node's by now.
            case Verdict.MALFORMED:
                call.in_doubt = True
                connection.close("an answer did not fit its request")
            case _:
                pass

    def _epoch_is_fresh(self, key: Key, epoch: int) -> bool:
        if epoch == NO_LEADER_EPOCH:
            return True
        if epoch < self._epochs.get(key, epoch):
            return False
        self._epochs[key] = epoch
        return True

    async def _find(self, key: Key, deadline_s: float, call: _Call) -> Address:
        """Ask any node for the coordinator of *key*.

        Raises:
            ConnectionLost: No node answered, or none knows the coordinator at the moment.
            FatalError: The name in *key* is refused.
        """
        connection = await self._connect_any(deadline_s, call)
        request = FindCoordinatorRequest(key.type, (key.name,))
        allowed_s = max(0.0, deadline_s - trio.current_time())
        try:
            with trio.move_on_after(allowed_s) as scope:
                await connection.wait_for_turn()
                response = (await connection.request(request)).response
        except ConnectionLost as exc:
            raise exc.before_sending() from exc
        if scope.cancelled_caught:
            connection.close("an answer did not come in time")
            text = f"{connection.address} did not answer within {allowed_s:.1f} s"
            raise ConnectionLost(text, connection.address, maybe_sent=False)
        code = error_of(request, response)
        if code == ErrorCode.INVALID_REQUEST and key.type != KEY_TYPE_GROUP:
            # A coordinator of an older release, which knows groups only: it is one alone.
            return next(a for a, one in self._connections.items() if one is connection)
        if code != ErrorCode.NONE or not isinstance(response, FindCoordinatorResponse):
            what = f"{_KEY_NAMES[key.type]} {key.name!r}" if key.name else _KEY_NAMES[key.type]
            said = [one.message for one in getattr(response, "coordinators", ())]
            why = "nonsense" if code is None else code_text(code, *said[:1])
            if code is not None and verdict(code) is Verdict.DONE:
                raise refusal(f"no coordinator for {what}: {why}", code)
            text = f"{connection.address} can't find the coordinator of {what}: {why}"
            raise ConnectionLost(text, connection.address, maybe_sent=False)
        found = response.coordinators[0]
        if not self._epoch_is_fresh(key, found.leader_epoch):
            text = f"{connection.address} named a coordinator of an old epoch"
            raise ConnectionLost(text, connection.address, maybe_sent=False)
        address = self._coordinators[key] = found.host, found.port
        call.is_directed = connection.address != _name(address)
        return address

    async def _connect(self, address: Address, deadline_s: float) -> Connection:
        """Return the connection to *address*, made now if there is none.

        Raises:
            ConnectionLost: It can't be reached.
            AuthenticationFailed: One end isn't sure who the other is.
            FatalError: It refused this client.
        """
        name = _name(address)
        failures = self._failures.get(name, 0)
        allowed_ms = CONNECT_MS_MAX
        if failures:
            allowed_ms = min(CONNECT_MS << min(failures - 1, 10), CONNECT_MS_MAX)
        allowed_s = min(allowed_ms / 1000, max(0.0, deadline_s - trio.current_time()))
        try:
            with trio.move_on_after(allowed_s):
                async with self._connecting.setdefault(address, trio.Lock()):
                    connection = self._connections.get(address)
                    if connection is None or not connection.is_usable:
                        connection = await self._open(address, name)
                        self._connections[address] = connection
                        self.cluster_id = connection.cluster_id
                    return connection
        except ConnectionLost as exc:
            raise exc.before_sending() from exc  # Only ApiVersions was sent so far.
        text = f"{name} could not be connected within {allowed_s:.1f} s"
        raise ConnectionLost(text, name, maybe_sent=False)

    async def _open(self, address: Address, name: str) -> Connection:
        try:
            stream = await self._open_stream(*address)
            stream = await self._security.secured(stream, address[0], name)
        except (OSError, trio.BrokenResourceError) as exc:
            refusals = refusals_of(exc)
            why = in_words(refusals) or str(exc) or type(exc).__name__
            text = f"{name} could not be connected: {why}"
            raise ConnectionLost(text, name, cause=next(iter(refusals), None)) from exc
        connection = Connection(stream, name, security=self._security)
        if self._is_closed:  # The nursery may be gone; nobody would close the stream.
            await trio.aclose_forcefully(stream)
            raise ClientClosed("the client is closed")
        self._nursery.start_soon(connection.run, name=f"connection to {name}")
        try:
            await connection.handshake(self._client_id)
        except BaseException:
            connection.close("the handshake failed")
            raise
        return connection


def _now_s() -> float:
    try:
        return trio.current_time()
    except RuntimeError:
        raise RuntimeError(
            "a client of client.connect works in its trio program only; see client.aio for asyncio"
        ) from None


def _name(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def error_of(request: Request, response: Response) -> int | None:
    """Return the code that speaks about *request* as a whole; None if the answer has none.

    Where an answer has a code for each of several things, it is one that a retry cures, if there is
    any. This client asks for one group at a time, so an answer about several, or about another
    group, is malformed.
    """
    match response:
        case FindCoordinatorResponse(coordinators=found):
            asked = request.group_ids if isinstance(request, FindCoordinatorRequest) else ()
            if asked and [one.group_id for one in found] != list(asked):
                return None
            if len(asked) == 1:
                return found[0].error
            return _worth_a_retry([one.error for one in found])
        case (
            OffsetFetchResponse(groups=groups)
            | DescribeGroupsResponse(groups=groups)
            | DeleteGroupsResponse(groups=groups)
        ):
            if [one.group_id for one in groups] != _groups_of(request):
                return None
            return groups[0].error
        case (
            RegisterTopicsResponse(error=0, topics=topics)
            | DeleteTopicsResponse(error=0, topics=topics)
        ):
            # Both may be repeated as a whole: what is done already stays as it is.
            return _worth_a_retry([one.error for one in topics])
        case _:
            error: int = response.error  # type: ignore[attr-defined]  # All others have one.
            return error


def _groups_of(request: Request) -> list[str]:
    match request:
        case OffsetFetchRequest(groups=groups):
            return [one.group_id for one in groups]
        case DescribeGroupsRequest(group_ids=group_ids) | DeleteGroupsRequest(group_ids=group_ids):
            return list(group_ids)
        case _:
            return []


def _worth_a_retry(codes: Sequence[int]) -> int:
    """Return the first code that a retry cures, else 0."""
    return next((code for code in codes if verdict(code) is not Verdict.DONE), 0)


def verdict(code: int | None) -> Verdict:
    """Return what to do about the error code of an answer.

    A code that this client doesn't know is handed on: the caller takes it for fatal.
    """
    if code is None:
        return Verdict.MALFORMED
    if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        return Verdict.LOADING
    info = error_info(code)
    return Verdict.DONE if info is None else _VERDICTS.get(info.remedy, Verdict.DONE)
