"""A member of a group of Kafka 0.8's consumers: runs `client.zookeeper.membership` on trio."""

import logging
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from secrets import randbits
from typing import Final, Protocol

import trio

from client.exceptions import (
    AuthenticationFailed,
    ClientClosed,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    OutcomeUnknown,
    Rebalanced,
)
from client.zookeeper.ensemble import new_client
from client.zookeeper.membership import (
    BACKOFF_MS,
    HAND_OVER_MS,
    Answer,
    Assignment,
    Config,
    Membership,
    Request,
    Result,
    State,
)
from client.zookeeper.registrations import Kind, Subscription, consumer_id, matched, named
from client.zookeeper.session import (
    Answered,
    Asked,
    Changed,
    CommitOffsets,
    Event,
    Expired,
    FetchOffsets,
    LogInRefused,
    OffsetsAnswered,
    OffsetsRequest,
    Opened,
    PrepareOffsets,
    Resumed,
    Session,
    Suspended,
)
from client.zookeeper.settings import ZooKeeper
from client.zookeeper.znodes import decoded, encoded, name_problem, offsets_path
from protocol.partition import INT64_MAX, TopicPartition
from protocol.text import some_of

logger = logging.getLogger("client.zookeeper")

REQUEST_TIMEOUT_MS: Final = 30_000
# Longest wait for a session to close, in seconds. With a connection, closing takes milliseconds;
# without one, the ensemble ends the session after its timeout.
_CLOSE_S: Final = 2.0
# Pause before a new session, in seconds.
_REOPEN_S: Final = 0.5
# Most offsets in one transaction: far below jute.maxbuffer (1 MiB).
_OFFSETS_PER_COMMIT: Final = 500
# Pause between two attempts of a call that waits for the connection, in seconds.
_PAUSE_S: Final = 0.1


class Requests(Protocol):
    """Carrier of requests to the ensemble, such as `client.zookeeper.session.Session`."""

    def send(self, request: Asked) -> None:
        """Send a request; its answer comes as an event."""

    async def close(self) -> None:
        """End the session."""


# Function that opens a session; the session calls the given function with each event.
OpenSession = Callable[[Callable[[Event], object]], Requests]


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def join(
    zookeeper: ZooKeeper | Mapping[str, object] | str,
    group: str,
    topics: Mapping[str, int] | Sequence[str] | None = None,
    *,
    white_list: str | None = None,
    black_list: str | None = None,
    num_streams: int = 1,
    hand_over_timeout_ms: int = HAND_OVER_MS,
    rebalance_backoff_ms: int = BACKOFF_MS,
) -> AsyncIterator["Consumer"]:
    """Join a group of Kafka 0.8's consumers as a member; use as ``async with``.

    Args:
        zookeeper: The ensemble with ``/consumers`` and ``/brokers``: "host:port,…/chroot", or
            its settings, or properties (``zookeeper.connect`` and so on).
        group: The group's name.
        topics: Names of the topics to read, or the number of threads for each topic (0.8's number
            of streams): a consumer with n threads gets the share of n consumers with one. Give
            exactly one of *topics*, *white_list* and *black_list*.
        white_list: Regular expression; read all topics that match it, as 0.8's `--whitelist`.
        black_list: Regular expression; read all topics that don't match it.
        num_streams: Threads for each topic, where *topics* gives no number.
        hand_over_timeout_ms: How long this consumer may keep a partition that now belongs to
            another member. After this time the partition is released without waiting for the
            program; consumers of Kafka 0.8 wait for it about 8 s.
        rebalance_backoff_ms: Pause before the next attempt to claim partitions that other members
            still have.

    Raises:
        CoordinatorUnavailable: The ensemble can't be reached.
        AuthenticationFailed: The ensemble refuses the log-in.
        FatalError: kazoo isn't installed.
        ValueError: An argument is invalid.
    """
    settings = _settings(zookeeper)
    own = _subscription(topics, white_list, black_list, num_streams)
    _check_names(group, own)
    now_ms = round(time.time() * 1000)
    config = Config(
        group=group,
        consumer_id=consumer_id(group, socket.gethostname(), now_ms, randbits(32)),
        subscription=own,
        registered_at_ms=now_ms,
        backoff_ms=rebalance_backoff_ms,
        hand_over_ms=hand_over_timeout_ms,
    )

    def open_session(post: Callable[[Event], object]) -> Session:
        return Session(new_client(settings), group, config.consumer_id, post)

    async with joined(config, settings, open_session) as consumer:
        yield consumer


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def joined(
    config: Config, settings: ZooKeeper, open_session: OpenSession
) -> AsyncIterator["Consumer"]:
    """Do the same as `join`, with sessions made by *open_session*."""
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        driver = Driver(config, settings, open_session)
        nursery.start_soon(driver.run)
        try:
            await driver.wait_connected()
            yield Consumer(driver)
        except BaseException as exc:  # noqa: BLE001 - raised again below, whatever it is.
            # The nursery would wrap an error into a group, and `except Rebalanced` would miss it.
            failure = exc
        finally:
            driver.leave()
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _settings(given: ZooKeeper | Mapping[str, object] | str) -> ZooKeeper:
    match given:
        case ZooKeeper():
            return given
        case str():
            return ZooKeeper(given)
        case _:
            return ZooKeeper.of(given)


def _subscription(
    topics: Mapping[str, int] | Sequence[str] | None,
    white_list: str | None,
    black_list: str | None,
    num_streams: int,
) -> Subscription:
    if [topics, white_list, black_list].count(None) != 2:
        raise ValueError("a consumer reads topics, or a white list, or all but a black list")
    if white_list is not None:
        return matched(Kind.WHITE_LIST, white_list, num_streams)
    if black_list is not None:
        return matched(Kind.BLACK_LIST, black_list, num_streams)
    if isinstance(topics, str):
        raise ValueError(f"topics must be a sequence of names, not {topics!r}")  # noqa: TRY004 - As all that is wrong here.
    return named(
        topics if isinstance(topics, Mapping) else dict.fromkeys(topics or (), num_streams)
    )


def _check_names(group: str, own: Subscription) -> None:
    names = [group, *(() if own.is_pattern else own.threads)]
    for name in names:
        if problem := name_problem(name):
            raise ValueError(f"{name!r} can't be in ZooKeeper: {problem}")


class Driver:
    """Runs the state machine `Membership`: gives it events and the time, sends its requests."""

    def __init__(self, config: Config, settings: ZooKeeper, open_session: OpenSession) -> None:
        self.machine = Membership(config)
        self.failure: CoordinatorError | None = None
        self._settings = settings
        self._open_session = open_session
        self._session: Requests | None = None
        self._slots: dict[int, Slot] = {}
        self._connected = trio.Event()
        self._changed = trio.Event()
        self._told_of: Mapping[str, str] = {}
        self._granted_ms = settings.session_timeout_ms

    @property
    def name(self) -> str:
        """Name of the ensemble in messages."""
        return f"ZooKeeper at {self._settings.connect}"

    async def run(self) -> None:
        """Keep a session open until cancelled; open a new one when a session ends."""
        while self.failure is None:
            await self._live_through_session()
            await trio.sleep(_REOPEN_S)
        await trio.sleep_forever()

    async def _live_through_session(self) -> None:
        token = trio.lowlevel.current_trio_token()
        is_over = False
        session: Requests | None = None

        def post(event: Event) -> None:
            token.run_sync_soon(come, event)

        def come(event: Event) -> None:
            nonlocal is_over
            if self._session is session and session is not None:
                is_over = isinstance(event, Expired)
                self._take(event)

        try:
            session = self._session = self._open_session(post)
        except (
            CoordinatorError
        ) as exc:  # kazoo, or the file or variable of the password, is missing.
            self._fail(exc)
            return
        try:
            while not is_over and self.failure is None:
                due_ms = self.machine.next_deadline_ms()
                with trio.move_on_at(math.inf if due_ms is None else due_ms / 1000):
                    await self.wait_changed()
                    continue
                self.send_all(self.machine.tick(_now_ms()))
        finally:
            self._session = None
            self._give_up_slots()
            with trio.CancelScope(shield=True), trio.move_on_after(_CLOSE_S):
                await session.close()

    def _take(self, event: Event) -> None:
        machine, now_ms = self.machine, _now_ms()
        requests: list[Request] = []
        match event:
            case Opened(timeout_ms):
                self._connected.set()
                self._compare_granted(timeout_ms)
                requests = machine.opened(timeout_ms, now_ms)
            case Suspended():
                machine.suspended(now_ms)
            case Resumed(timeout_ms):
                self._compare_granted(timeout_ms)
                requests = machine.resumed(timeout_ms, now_ms)
            case Changed():
                requests = machine.changed(now_ms)
            case Expired():
                machine.expired()
            case LogInRefused():
                user = self._settings.username
                self._fail(AuthenticationFailed(f"{self.name} doesn't take the log-in of {user!r}"))
            case OffsetsAnswered():
                if (slot := self._slots.pop(id(event.request), None)) is not None:
                    slot.fill(event)
            case Answered(request, answer):
                requests = machine.answered(request, answer, now_ms)
                self._look()
        self.send_all(requests)

    def _compare_granted(self, granted_ms: int) -> None:
        """Log a warning if the granted session timeout differs from the last one.

        The first one granted is compared with the setting.
        """
        if granted_ms != self._granted_ms:
            self._granted_ms = granted_ms
            logger.warning(
                "%s grants sessions of %d ms, and not the %d ms of zookeeper.session.timeout.ms: "
                "without a connection, partitions count as lost in %d ms at the latest "
                "(a server grants 2 to 20 of its ticks, unless it is set otherwise)",
                self.name,
                granted_ms,
                self._settings.session_timeout_ms,
                granted_ms * 5 // 6,
            )

    def send_all(self, requests: Iterable[Request]) -> None:
        """Send the machine's requests, and wake the tasks in `wait_changed`."""
        for request in requests:
            if self._session is not None:
                self._session.send(request)
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_changed(self) -> None:
        """Wait for the next event, sent requests or failure."""
        await self._changed.wait()

    async def wait_connected(self) -> None:
        """Wait for the first connection.

        Raises:
            CoordinatorUnavailable: No connection within ``zookeeper.connection.timeout.ms``.
            AuthenticationFailed: The ensemble refuses the log-in.
        """
        with trio.move_on_after(self._settings.connection_timeout_ms / 1000):
            while not self._connected.is_set() and self.failure is None:
                await self.wait_changed()
        if self.failure is not None:
            raise self.failure
        if not self._connected.is_set():
            raise CoordinatorUnavailable(f"{self.name}: no server answered in time")

    @property
    def has_session(self) -> bool:
        """Whether a session exists now."""
        return self._session is not None

    async def ask(self, request: OffsetsRequest) -> OffsetsAnswered | None:
        """Send a request in the present session; None if there is no session, or it ended."""
        if self._session is None:
            return None
        slot = self._slots[id(request)] = Slot()
        try:
            self._session.send(request)
            return await slot.wait()
        finally:
            self._slots.pop(id(request), None)

    def leave(self) -> None:
        """End the machine. Cancelling `run` closes the session."""
        self.machine.leave()
        self.send_all(())

    def _give_up_slots(self) -> None:
        for slot in self._slots.values():
            slot.fill(None)
        self._slots.clear()

    def _look(self) -> None:
        if self.machine.state is State.FAILED and self.failure is None:
            self._fail(FatalError(f"{self.name} refuses: {self.machine.failure}"))
        found = {**self.machine.unreadable, **self.machine.orphans}
        for name in sorted(found.keys() - self._told_of.keys()):
            group = self.machine.config.group
            logger.warning("group %r: %s (%s)", group, found[name], self.name)
        self._told_of = found

    def _fail(self, failure: CoordinatorError) -> None:
        self.failure = failure
        self.send_all(())


class Slot:
    """Place for the answer to one request."""

    def __init__(self) -> None:
        self._filled = trio.Event()
        self._answered: OffsetsAnswered | None = None

    def fill(self, answered: OffsetsAnswered | None) -> None:
        """Store the answer; None if none will come."""
        self._answered = answered
        self._filled.set()

    async def wait(self) -> OffsetsAnswered | None:
        """Wait for the answer and return it."""
        await self._filled.wait()
        return self._answered


class Consumer:
    """A member of its group; made by `join`. Methods may be called from several tasks."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._machine = driver.machine

    @property
    def group(self) -> str:
        """The group's name."""
        return self._machine.config.group

    @property
    def consumer_id(self) -> str:
        """This consumer's id in the group."""
        return self._machine.config.consumer_id

    @property
    def rebalance_needed(self) -> bool:
        """Whether to call `assignment`: it would release partitions, or return a new assignment.

        The last assignment stays valid until that call, unless `lost` is true.
        """
        return self._driver.failure is not None or self._machine.rebalance_needed

    @property
    def lost(self) -> bool:
        """Whether a partition of the last assignment is lost; also true before the first one.

        Partitions are lost when the session has ended or may have ended, or when the hand-over
        timeout has passed.
        """
        return self._machine.lost

    async def assignment(self) -> Assignment:
        """Release the partitions that now belong to other members, then return the assignment.

        Call it often, and only when no work on these partitions is running: other members wait
        for the call, up to the hand-over timeout. The call waits while other members still have
        all partitions that the formula gives to this consumer.

        Raises:
            FatalError: The ensemble refuses a request for good.
            AuthenticationFailed: The ensemble no longer accepts the log-in.
            ClientClosed: The consumer has left.
        """
        await trio.lowlevel.checkpoint()
        while True:
            self._check()
            self._driver.send_all(self._machine.hand_over(_now_ms()))
            if (assignment := self._machine.take()) is not None:
                return assignment
            await self._driver.wait_changed()

    async def wait_rebalance_needed(self) -> None:
        """Wait until `rebalance_needed` is true.

        Raises:
            ClientClosed: The consumer has left.
        """
        await trio.lowlevel.checkpoint()
        while not self.rebalance_needed:
            self._check()
            await self._driver.wait_changed()

    async def fetch(
        self, partitions: Iterable[TopicPartition], *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> dict[TopicPartition, int]:
        """Return the group's committed offsets of *partitions*; one without an offset is left out.

        Raises:
            CoordinatorUnavailable: No answer in time.
            FatalError: A znode holds no offset, or can't be read.
            ClientClosed: The consumer has left.
        """
        self._check()
        wanted = tuple(sorted(set(partitions)))
        with trio.move_on_after(timeout_ms / 1000):
            while True:
                answered = await self._driver.ask(FetchOffsets(wanted))
                if answered is not None and answered.answer.result is not Result.UNKNOWN:
                    self._check_refusal(answered.answer)
                    return self._offsets(wanted, answered.found)
                with trio.move_on_after(_PAUSE_S):
                    await self._driver.wait_changed()
        raise CoordinatorUnavailable(f"{self._driver.name} didn't answer in time")

    async def commit(
        self, offsets: Mapping[TopicPartition, int], *, timeout_ms: int = REQUEST_TIMEOUT_MS
    ) -> None:
        """Write *offsets* into the group's znodes; an offset is that of the next message to read.

        The ensemble itself checks with each write that this consumer is still a member, so a
        process that was frozen can't overwrite offsets of a newer owner.

        Args:
            offsets: Only of partitions that this consumer has.
            timeout_ms: How long to try.

        Raises:
            Rebalanced: Some partitions no longer belong to this consumer. As for the two errors
                below, that request (500 offsets at most) wrote nothing, and those before it did.
            CoordinatorUnavailable: No connection in time.
            FatalError: The ensemble refuses the write.
            OutcomeUnknown: No definite answer: the time was up, or the connection broke during the
                write and the partitions were lost afterwards, as after a freeze of the process.
                ``fetch`` returns what is stored.
            ClientClosed: The consumer has left.
            ValueError: A value is no offset.
        """
        for tp, offset in offsets.items():
            if type(offset) is not int or not 0 <= offset <= INT64_MAX:
                raise ValueError(f"{tp}: {offset!r} is no offset")
        listed = sorted(offsets)
        commits = Commits(self._driver, trio.current_time() + timeout_ms / 1000)
        for start in range(0, len(listed), _OFFSETS_PER_COMMIT):
            some = listed[start : start + _OFFSETS_PER_COMMIT]
            await commits.write({tp: encoded(offsets[tp]) for tp in some}, self._check_owned)

    def _check(self) -> None:
        if self._driver.failure is not None:
            raise self._driver.failure
        if self._machine.state is State.LEFT:
            raise ClientClosed("this consumer has left the group")

    def _check_owned(self, partitions: Iterable[TopicPartition]) -> None:
        self._check()
        if others := [tp for tp in partitions if tp not in self._machine.usable]:
            raise Rebalanced(f"not this consumer's now: {some_of(others)}; call assignment()")

    def _check_refusal(self, answer: Answer) -> None:
        if answer.result is Result.REFUSED:
            raise FatalError(f"{self._driver.name} refuses: {answer.why}")

    def _offsets(
        self, partitions: Sequence[TopicPartition], found: Sequence[bytes | None]
    ) -> dict[TopicPartition, int]:
        offsets = {}
        for tp, data in zip(partitions, found, strict=True):
            if data is not None:
                try:
                    offsets[tp] = decoded(data)
                except ValueError as exc:
                    path = offsets_path(self.group, *tp)
                    raise FatalError(f"{path} in {self._driver.name} {exc}") from None
        return offsets


class Commits:
    """Writes offsets into their znodes, with retries until *deadline_s* of trio's clock."""

    def __init__(self, driver: Driver, deadline_s: float) -> None:
        self._driver = driver
        self._deadline_s = deadline_s

    async def write(
        self,
        offsets: Mapping[TopicPartition, bytes],
        check_owned: Callable[[Iterable[TopicPartition]], None],
    ) -> None:
        """Write *offsets*; *check_owned* is called before each attempt, and raises to forbid it."""
        new: frozenset[TopicPartition] = frozenset()
        in_doubt = False
        with trio.move_on_at(self._deadline_s):
            while True:
                try:
                    check_owned(offsets)
                except Rebalanced as exc:
                    raise _unknown(exc) if in_doubt else exc from None
                if not self._driver.has_session:
                    await self._pause()
                    continue
                was_in_doubt, in_doubt = in_doubt, True
                answer = _answer(await self._driver.ask(CommitOffsets(offsets, new)))
                if answer.result is Result.DONE:
                    return
                if answer.result is Result.UNKNOWN:
                    await self._pause()
                    continue
                in_doubt = was_in_doubt
                if answer.result is Result.TAKEN:
                    new = await self._missing(tuple(offsets))
                    continue
                raise self._refusal(answer, in_doubt=in_doubt)
        if in_doubt:
            raise OutcomeUnknown(f"{self._driver.name} didn't confirm it in time")
        raise CoordinatorUnavailable(f"{self._driver.name} can't be reached")

    async def _missing(self, partitions: tuple[TopicPartition, ...]) -> frozenset[TopicPartition]:
        """Return those of *partitions* that have no znode for their offset yet."""
        answered = await self._driver.ask(PrepareOffsets(partitions))
        if _answer(answered).result is Result.REFUSED:
            raise self._refusal(_answer(answered), in_doubt=False)
        if answered is None or answered.answer.result is not Result.DONE:
            await self._pause()
            return frozenset()
        found = zip(partitions, answered.found, strict=True)
        return frozenset(tp for tp, data in found if data is None)

    def _refusal(self, answer: Answer, *, in_doubt: bool) -> CoordinatorError:
        if answer.result is Result.REFUSED:
            return FatalError(f"{self._driver.name} refuses: {answer.why}")
        gone = Rebalanced("this consumer's session has ended; call assignment()")
        return _unknown(gone) if in_doubt else gone

    async def _pause(self) -> None:
        # Bounded, as the event that is awaited may have come already.
        with trio.move_on_after(_PAUSE_S):
            await self._driver.wait_changed()


def _answer(answered: OffsetsAnswered | None) -> Answer:
    return Answer(Result.UNKNOWN) if answered is None else answered.answer


def _unknown(reason: CoordinatorError) -> OutcomeUnknown:
    return OutcomeUnknown(f"an earlier attempt was not answered, and then: {reason}")


def _now_ms() -> int:
    return round(trio.current_time() * 1000)
