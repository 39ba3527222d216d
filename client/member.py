"""A member of a group: the trio side of `client.membership`."""

import inspect
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self, TypeVar

import trio

from client.assignors import Assignor, read_subscriptions, run_assignor, write_assignments
from client.counts import MemberNow
from client.exceptions import (
    ClientClosed,
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OutcomeUnknown,
    Rebalanced,
    error_info,
)
from client.membership import (
    Action,
    Assignment,
    Change,
    Compute,
    GaveUp,
    Membership,
    MembershipConfig,
    Resolve,
    Send,
    State,
    Step,
)
from client.offsets import (
    CommitOrder,
    OffsetAndMetadata,
    OffsetCalls,
    Offsets,
    Owner,
    commit_request,
    left_ms,
    with_metadata,
)
from client.operators import Lag, TopicCalls, group_lag, names_of
from client.outages import one_line
from client.router import Router
from protocol.errors import ErrorCode, Remedy
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    MemberAssignment,
    SyncGroupResponse,
)
from protocol.partition import NO_GENERATION, TopicPartition
from protocol.text import some_of

logger = logging.getLogger("client.commits")  # The name in the guide.
topics_logger = logging.getLogger("client.topics")  # As is this.

T = TypeVar("T")

# Told of the member's partitions in the task that calls ``assignment()`` or ``leave()``, and only
# there.
Callback = Callable[[tuple[TopicPartition, ...]], Awaitable[object] | object]
# What partitions does a topic have? Only the group's leader asks. A number n means 0 … n-1.
Partitions = (
    Mapping[str, int] | Callable[[str], Iterable[int]] | Callable[[str], Awaitable[Iterable[int]]]
)

# A heartbeat that isn't answered for this long makes the client try another connection, even
# where the session is shorter than three times that: a busy server is not a dead one.
HEARTBEAT_ATTEMPT_MS_MIN: Final = 3_000
# Longest registration by a leader: REGISTER_MS_MAX, and 1/REGISTER_SHARE of the rebalance timeout.
# The whole group waits for its leader, and can do without lag; a member without an assignment at
# the end of the rebalance timeout is removed.
REGISTER_MS_MAX: Final = 3_000
REGISTER_SHARE: Final = 4
TOPICS_NAMED_MAX: Final = 5


class Member:
    """One member of a group. Use as ``async with``: leaving the block leaves the group.

    Joining and heartbeats run in the background, apart from what the caller does meanwhile.
    Methods may be called from several tasks.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        router: Router,
        offset_calls: OffsetCalls,
        *,
        config: MembershipConfig,
        assignors: Sequence[Assignor],
        partitions: Partitions | None,
        register: bool,
        callbacks: Mapping[Change, Callback | None],
        auto_commit_interval_ms: int | None,
        request_timeout_ms: float,
        leave_timeout_ms: int,
    ) -> None:
        self._client_nursery = nursery
        self._router = router
        self._offset_calls = offset_calls
        register_ms = min(REGISTER_MS_MAX, config.rebalance_timeout_ms // REGISTER_SHARE)
        topic_calls = TopicCalls(router, request_timeout_ms)
        leading = Leading(assignors, partitions, topic_calls, register_ms if register else None)
        self._machine = Membership(config, leading.user_data)
        self._driver = Driver(self._machine, router, topic_calls, leading, request_timeout_ms)
        auto = auto_commit_interval_ms is not None
        self._commits = Commits(self._machine, self._driver, router, offset_calls, auto)
        self._request_timeout_ms = request_timeout_ms
        self._waiting: set[trio.CancelScope] = set()  # For the coordinator.
        self._callbacks = callbacks
        self._auto_commit_interval_ms = auto_commit_interval_ms
        self._leave_timeout_ms = leave_timeout_ms
        self._asking = trio.Lock()
        self._is_telling = False
        self._is_leaving = False
        self._goodbye: Goodbye | None = None

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        self._router.check_open()
        await self._client_nursery.start(self._driver.run)
        if self._auto_commit_interval_ms is not None:
            auto_commit = partial(self._commits.run_auto_commit, self._auto_commit_interval_ms)
            self._driver.start_soon(auto_commit)
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    @property
    def group_id(self) -> str:
        """The group."""
        return self._machine.config.group_id

    @property
    def member_id(self) -> str:
        """This member's id; "" while it has none."""
        return self._machine.member_id

    @property
    def generation(self) -> int:
        """The generation that this member last joined; -1 before."""
        return self._machine.generation

    @property
    def rebalance_needed(self) -> bool:
        """Whether `assignment` would join (again), or has news for a cooperative member.

        The partitions are still this member's, and commits are accepted, until `assignment`
        is called or the group stops waiting; unless `lost` is true.
        """
        return self._machine.rebalance_needed or self._machine.news_waiting

    @property
    def lost(self) -> bool:
        """Whether the last assignment is no longer this member's (also before the first)."""
        return self._machine.lost

    @property
    def has_left(self) -> bool:
        """Whether `leave` was called."""
        return self._machine.state is State.LEFT

    def now(self) -> MemberNow:
        """Return a snapshot of this member, for metrics; from any thread."""
        return self._driver.now()

    async def assignment(self) -> Assignment:
        """Return the current assignment; join, or join again, if that is needed.

        Only this call gives partitions away, so the caller chooses when: first finish and
        commit the records that were read. Cancelling stops the waiting, not the joining;
        call again to go on waiting.

        A cooperative member that has partitions doesn't wait: it gets those that it has
        while the group rebalances, and what has changed with a later call.

        Callbacks run inside this call. A callback that raises counts as called, and this call
        raises its exception; the next call repeats a callback that was cancelled.

        Raises:
            CoordinatorUnavailable: No coordinator could be reached within the member's request
                timeout; without a timeout this call waits. Call again.
            FatalError: Joining again won't help; make another member.
            ClientClosed: This member has left.
            Exception: The caller's own ``partitions`` (called in the leader only), assignors or
                callbacks raised it.
        """
        await trio.lowlevel.checkpoint()
        if not self._driver.is_running:
            raise RuntimeError("a member must be used in `async with client.join(...)`")
        if self._asking.statistics().owner is trio.lowlevel.current_task():
            raise RuntimeError("a callback of a member can't call its assignment()")
        async with self._asking:
            while True:
                is_new = await self._hand_over()
                if self._is_leaving:
                    raise ClientClosed("this member has left the group")
                if (failure := self._driver.take_failure()) is not None:
                    raise failure
                assignment = self._standing(is_new=is_new)
                if assignment is not None:
                    return assignment
                join = self._driver.start_join()
                if self._machine.assignment is not None and not self._machine.lost:
                    return self._machine.assignment  # Cooperative: these stay meanwhile.
                await join.done.wait()

    def _standing(self, *, is_new: bool) -> Assignment | None:
        """Return the assignment if there is no need to join (again) at once."""
        machine = self._machine
        if machine.state is not State.STABLE or machine.lost:
            return None
        # An eager member has to give back at once what it couldn't use for a single round.
        use_first = is_new and not machine.config.cooperative
        return machine.assignment if use_first or not machine.rebalance_needed else None

    async def _hand_over(self) -> bool:
        """Tell the caller what is due; return whether that ended with a new assignment."""
        while not self._is_leaving and (step := self._machine.due()) is not None:
            await self._tell(step)
            if step.change is Change.GIVEN:
                return True
        return False

    async def _tell(self, step: Step) -> None:
        self._is_telling = True
        try:
            if step.change is Change.REVOKED:
                await self._call(step)
                await self._wait(self._commits.give_up(step.partitions, self._patience_ms))
                self._commits.forget(step.partitions)
                self._machine.told(step)
            else:
                # Of an earlier time that they were ours, or in vain.
                self._commits.forget(step.partitions)
                await self._call(step)
        finally:
            self._is_telling = False

    async def _call(self, step: Step) -> None:
        untold = self._machine.hand_over.untold(step)
        if untold is None:
            return
        callback = self._callbacks[step.change]
        try:
            result = callback and callback(untold.partitions)
            if inspect.isawaitable(result):
                await result
        except Exception:
            self._machine.hand_over.called(untold)
            raise
        self._machine.hand_over.called(untold)

    async def wait_rebalance_needed(self) -> None:
        """Wait until `rebalance_needed` is true.

        Raises:
            ClientClosed: This member has left.
        """
        await trio.lowlevel.checkpoint()
        while not self.rebalance_needed or self.has_left:
            if self.has_left:
                raise ClientClosed("this member has left the group")
            await self._driver.wait_changed()

    async def request_rejoin(self, reason: str, topics: Iterable[str] | None = None) -> None:
        """Make the group rebalance at this member's next `assignment`.

        Use this for a change that the group can't see, e.g. a topic with more partitions.

        Args:
            reason: Why, for the coordinator's log.
            topics: Topics to read from then on; None keeps the present ones.

        Raises:
            ValueError: *topics* are given, and this member reads a pattern.
        """
        if topics is not None and self._machine.config.topic_pattern is not None:
            raise ValueError("a member that reads a pattern can't be given topics")
        await trio.lowlevel.checkpoint()
        names = None if topics is None else tuple(sorted(set(names_of(topics, "topics"))))
        self._machine.request_rejoin(reason, names)
        self._driver.notify()

    def store(self, offsets: Offsets) -> None:
        """Take note that everything before *offsets* was processed, to be committed later.

        `commit` without arguments does that, and auto-commit, if it is on: every interval, and
        before partitions are given up. Waits for nothing, and may be called in any thread.

        Raises:
            Rebalanced: Some are not this member's now; nothing was stored.
            ValueError: One of them is no offset.
        """
        self._commits.store(offsets)

    async def commit(
        self,
        offsets: Offsets | None = None,
        expected: Mapping[TopicPartition, int] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Store *offsets*: each is the next offset to read, not the last one that was read.

        When this returns, the offsets survive a crash of the coordinator. While the coordinator
        is away, the commit is repeated until the offsets are stored or refused. While the group
        of a cooperative member rebalances, a commit may take as long as the others need to sync.

        Args:
            offsets: Only of partitions that are assigned in the current generation; None
                commits what was stored with `store`.
            expected: Offset that must be committed so far, per partition; -1 for none. Partitions
                without an entry are not checked.
            timeout_ms: How long to try; None: the request timeout of `join`, without an end by
                default.

        Raises:
            Rebalanced: The group moved on; nothing was stored. Call `assignment`.
            MemberLost: The group removed this member; nothing was stored. Call `assignment`.
            CommitRefused: Some partitions were refused, the others are stored.
            OutcomeUnknown: An attempt was not answered, and then time was up or the group had
                moved on. Call `assignment`, then `fetch` to see which offsets are stored.
            CoordinatorUnavailable: Nobody could be reached in time; nothing was stored.
            ClientClosed: The member had left; or it left while this waited, which may be stored.
            FatalError: Repeating it does not help.
            ValueError: An argument makes no sense.
        """
        timeout_ms = self._patience_ms if timeout_ms is None else timeout_ms
        if offsets is not None:
            await self._wait(self._commits.commit(offsets, expected, timeout_ms))
        elif expected is not None:
            raise ValueError("expected offsets of partitions that are not named")
        else:
            await self._wait(self._commits.commit_stored(self._machine.usable, timeout_ms))

    async def fetch(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of *partitions*, or of the whole group (None).

        A partition that nothing was committed for is left out. While the coordinator is away, this
        waits as `commit` does.

        Raises:
            CoordinatorUnavailable: Nobody could be reached in time.
            FatalError: Repeating it does not help.
        """
        machine = self._machine
        owner = Owner(
            machine.generation, machine.member_id, machine.config.group_instance_id, machine.usable
        )
        timeout_ms = self._patience_ms if timeout_ms is None else timeout_ms
        return await self._wait(
            self._offset_calls.fetch(self.group_id, partitions, timeout_ms, owner)
        )

    @property
    def _patience_ms(self) -> float:
        """How long a call waits for the coordinator: for a member that has left as for others."""
        most_ms = self._router.request_timeout_ms if self.has_left else math.inf
        return min(most_ms, self._request_timeout_ms)

    @trio.lowlevel.enable_ki_protection
    async def _wait(self, call: Awaitable[T]) -> T:
        """Return what *call* returns; once this member has left, it doesn't wait without an end."""
        with trio.CancelScope() as scope:
            self._waiting.add(scope)
            try:
                return await call
            finally:
                self._waiting.remove(scope)
        raise ClientClosed("this member has left the group, and the coordinator doesn't answer")

    async def lag(self) -> dict[TopicPartition, Lag]:
        """Return how far the group is behind, per partition; see `client.operators.group_lag`."""
        return await group_lag(self._router, self.group_id)

    @trio.lowlevel.enable_ki_protection
    async def leave(self, reason: str | None = None, *, remove: bool = False) -> bool:
        """Leave the group, so that the others needn't wait for the session to end.

        First the callbacks are called, and with auto-commit what is stored is committed. That
        and saying goodbye take at most the client's ``leave_timeout_ms`` each, also when
        cancelled; only the callbacks may take as long as they need, unless cancelled. Raises
        nothing about the coordinator. Returns whether the coordinator confirmed it.

        A static member doesn't say goodbye: its place is kept until its session ends, unless
        *remove* is true. Inside a callback, or beside one, no other is called.
        """
        self._is_leaving = True
        try:
            if not self.has_left and self._driver.is_running:
                await self._wind_up()
        finally:
            if self._goodbye is None:
                self._goodbye = Goodbye()
                self._client_nursery.start_soon(
                    partial(self._say_goodbye, self._goodbye, reason, remove=remove)
                )
            with trio.CancelScope(shield=True):
                await self._goodbye.done.wait()
        return self._goodbye.confirmed

    async def _wind_up(self) -> None:
        """Tell the caller that its partitions go, and commit what is stored."""
        is_cancelled = trio.current_effective_deadline() == -math.inf
        allowed_s = self._leave_timeout_ms / 1000 if is_cancelled else math.inf
        with trio.move_on_after(allowed_s, shield=is_cancelled):
            step = self._machine.due_at_the_end()
            if step is not None and not self._is_telling:
                self._is_telling = True
                try:
                    await self._call(step)
                finally:
                    self._is_telling = False
            try:
                await self._commits.give_up(self._machine.usable, self._leave_timeout_ms)
            except CoordinatorError as exc:
                logger.warning("before leaving group %r: %s", self.group_id, exc)

    @trio.lowlevel.enable_ki_protection
    async def _say_goodbye(self, goodbye: "Goodbye", reason: str | None, *, remove: bool) -> None:
        """Leave, in a task of its own: Ctrl-C ends only the wait for it."""
        actions = self._machine.leave(reason, remove=remove)
        self._driver.stop()
        try:
            with trio.move_on_after(self._leave_timeout_ms / 1000):
                for action in actions:
                    if not isinstance(action, Send):
                        self._driver.settle(action)
                        continue
                    # Without an answer the session ends by itself.
                    with suppress(CoordinatorError):
                        await self._router.call(action.request, timeout_ms=self._leave_timeout_ms)
                        goodbye.confirmed = True
        finally:
            for scope in self._waiting:
                scope.deadline = trio.current_time() + self._router.request_timeout_ms / 1000
            self._driver.notify()
            goodbye.done.set()


@dataclass(eq=False)
class Commits:
    """Commits of a member: immediate, of stored offsets, and during a rebalance.

    A committed offset is never ahead of the last one that the caller stored or passed.

    Args:
        machine: The member's machine.
        driver: Does what the machine asks for, and tells when something has happened to it.
        router: Knows for how long a commit tries.
        offset_calls: Sends them.
        auto: Whether stored offsets are committed without being asked for it.

    """

    _machine: Membership
    _driver: "Driver"
    _router: Router
    _offset_calls: OffsetCalls
    _auto: bool
    _stored: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    _order: CommitOrder = field(default_factory=CommitOrder)
    # Only `store` is called in other threads: once a record, so it can't go through this one.
    _storing: threading.Lock = field(default_factory=threading.Lock)

    def store(self, offsets: Offsets) -> None:
        """See `client.member.Member.store`."""
        self._check_kept()
        if strangers := offsets.keys() - frozenset(self._machine.usable):
            listed = ", ".join(map(str, sorted(strangers)))
            raise Rebalanced(f"not this member's (any more), and not stored: {listed}")
        commit_request("", NO_GENERATION, "", None, offsets, None)  # Refuses what is no offset.
        entries = {tp: with_metadata(value) for tp, value in offsets.items()}
        with self._storing:
            self._stored |= entries

    async def commit(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        timeout_ms: float,
    ) -> None:
        """Commit *offsets*; they stand for what was stored of these partitions before."""
        self._check_kept()
        self.forget(offsets)
        await self._commit(offsets, expected, timeout_ms)

    async def commit_stored(
        self, partitions: tuple[TopicPartition, ...], timeout_ms: float
    ) -> None:
        """Commit what is stored of *partitions*."""
        self._check_kept()
        owned = frozenset(partitions)
        with self._storing:
            offsets = {tp: entry for tp, entry in self._stored.items() if tp in owned}
        if not offsets:
            return
        try:
            await self._commit(offsets, None, timeout_ms)
        except CommitRefused as exc:
            for tp, code in exc.errors.items():
                info = error_info(code)
                if info and info.remedy in {Remedy.RETRY, Remedy.MAKE_ROOM}:
                    offsets.pop(tp, None)  # A later commit may store the offset.
            self._forget_if_unchanged(offsets)
            raise
        self._forget_if_unchanged(offsets)

    async def give_up(self, partitions: tuple[TopicPartition, ...], timeout_ms: float) -> None:
        """Commit what is stored of *partitions*, if auto-commit is on, before they go.

        Raises:
            CoordinatorError: The commit failed; a later try may well succeed.
        """
        if not self._auto or self._machine.lost:
            return
        try:
            await self.commit_stored(partitions, timeout_ms)
        except Rebalanced:
            pass  # The partitions are lost already.
        except OutcomeUnknown as exc:
            if exc.group_code is None:
                raise
            # The same; an earlier attempt may have been stored.
        except (CommitRefused, FatalError) as exc:
            logger.warning("before partitions were given up: %s", exc)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop what was stored of *partitions*: they are given up, or committed otherwise."""
        with self._storing:
            for tp in partitions:
                self._stored.pop(tp, None)

    def _forget_if_unchanged(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        with self._storing:
            for tp, entry in offsets.items():
                if self._stored.get(tp) is entry:  # Otherwise the caller is further by now.
                    del self._stored[tp]

    @trio.lowlevel.enable_ki_protection
    async def run_auto_commit(self, interval_ms: int) -> None:
        """Commit what is stored every *interval_ms*, for ever; a failure is logged once."""
        failed_with: type[CoordinatorError] | None = None
        while True:
            await trio.sleep(interval_ms / 1000)
            if self._machine.lost:
                continue
            try:
                # Bounded, so that an outage is told; the next interval goes on.
                await self.commit_stored(self._machine.usable, self._router.request_timeout_ms)
            except Rebalanced:
                pass  # The next `assignment` tells the caller.
            except CoordinatorError as exc:
                if type(exc) is not failed_with:
                    failed_with = type(exc)
                    group = self._machine.config.group_id
                    logger.warning("auto-commit in group %r: %s; trying again", group, exc)
            else:
                failed_with = None

    def _check_kept(self) -> None:
        """Raise why there is nothing to commit, if that is so."""
        machine = self._machine
        if not machine.lost:
            return
        because = f": {machine.gone_because}" if machine.gone_because else ""
        match machine.state:
            case State.LEFT:
                raise ClientClosed("this member has left the group")
            case State.FAILED:
                assert machine.failure is not None
                raise machine.failure
            case State.STABLE if not machine.member_id:
                raise MemberLost(f"the group removed this member; nothing was stored{because}")
            case _:
                raise Rebalanced(f"this member has no assignment now; nothing was stored{because}")

    async def _commit(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        timeout_ms: float,
    ) -> None:
        if self._machine.config.cooperative:
            await self._commit_through(offsets, expected, self._router.deadline_s(timeout_ms))
        else:
            await self._send(offsets, expected, timeout_ms)

    @trio.lowlevel.enable_ki_protection
    async def _commit_through(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        deadline_s: float,
    ) -> None:
        """Commit also while the group rebalances, repeated in the new generation if need be."""
        machine = self._machine
        usable = machine.usable
        refusal: Rebalanced | None = None
        refused_in: int | None = None
        # The repetition of an older commit must not overtake a newer one.
        async with self._order.turn(offsets, deadline_s):
            while True:
                await self._wait_for_generation(refused_in, deadline_s)
                self._check_kept()
                if refusal and machine.generation == refused_in:
                    raise refusal
                if gone := _not_kept(offsets, usable, machine.usable):
                    listed = ", ".join(map(str, sorted(gone)))
                    raise refusal or Rebalanced(f"given up meanwhile; nothing was stored: {listed}")
                refused_in = machine.generation
                try:
                    await self._send(offsets, expected, left_ms(deadline_s))
                except MemberLost:
                    raise
                except Rebalanced as exc:
                    refusal = exc
                else:
                    return

    async def _wait_for_generation(self, refused_in: int | None, deadline_s: float) -> None:
        """Wait while no generation can be committed in, the one that was refused included."""
        machine = self._machine
        with trio.move_on_at(deadline_s) as scope:
            while machine.state is State.SYNCING or (
                machine.state is State.JOINING and machine.generation == refused_in
            ):
                await self._driver.wait_changed()
        if scope.cancelled_caught:
            raise CoordinatorUnavailable("the group's rebalance goes on; nothing was stored")

    async def _send(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None,
        timeout_ms: float,
    ) -> None:
        machine = self._machine
        config, generation, member_id = machine.config, machine.generation, machine.member_id
        request = commit_request(
            config.group_id, generation, member_id, config.group_instance_id, offsets, expected
        )
        try:
            await self._offset_calls.commit(request, timeout_ms)
        except CoordinatorError as exc:
            if exc.group_code is not None:
                self._driver.do(
                    machine.observe(exc.group_code, generation, member_id, exc.group_message)
                )
            raise


def _not_kept(
    offsets: Offsets, before: tuple[TopicPartition, ...], now: tuple[TopicPartition, ...]
) -> set[TopicPartition]:
    """Return which partitions of *offsets* are of those *before*, and not of those *now*."""
    return set() if now == before else offsets.keys() & frozenset(before).difference(now)


class Join:
    """One join under way. The waiting task removes it when it is done."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None


class Goodbye:
    """One leave under way, or done."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.confirmed = False


@dataclass(eq=False)
class Driver:
    """The tasks of one member. `run` must be started in a nursery, and is ended by `stop`."""

    _machine: Membership
    _router: Router
    _topic_calls: TopicCalls
    _leading: "Leading"
    _request_timeout_ms: float
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _tasks: trio.Nursery | None = None
    _changed: trio.Event = field(default_factory=trio.Event)
    _join: Join | None = None
    _rebalance_since_s: float | None = None
    _heartbeat_s: float | None = None  # When the last one was answered.

    @property
    def is_running(self) -> bool:
        """Whether `run` was started."""
        return self._tasks is not None

    @trio.lowlevel.enable_ki_protection
    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Send heartbeats in time, and do what `do` is told, until `stop`."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._tasks = nursery
                task_status.started()
                while True:
                    self.do(self._machine.tick(_now_ms()))
                    deadline_ms = self._machine.next_deadline_ms()
                    wake_s = math.inf if deadline_ms is None else deadline_ms / 1000
                    with trio.move_on_at(wake_s):
                        await self._changed.wait()

    def start_soon(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do *work*, which must not raise, beside the rest."""
        assert self._tasks is not None
        self._tasks.start_soon(work)

    def stop(self) -> None:
        """End all tasks."""
        self._scope.cancel()

    def do(self, actions: list[Action]) -> None:
        """Do what the machine returned."""
        assert self._tasks is not None
        for action in actions:
            match action:
                case Send():
                    self._tasks.start_soon(self._send, action)
                case Resolve():
                    self._tasks.start_soon(self._resolve, action)
                case Compute():
                    self._tasks.start_soon(self._compute, action)
                case _:
                    self.settle(action)
        self.notify()

    def settle(self, action: Action) -> None:
        """Announce the result of the join to the waiting task."""
        join = self._join
        if join is None or join.done.is_set():
            return  # No task waits, e.g. after a refused heartbeat.
        if isinstance(action, GaveUp):
            join.error = action.error
        join.done.set()

    def start_join(self) -> Join:
        """Join, unless that is under way; the error of one that has failed is kept for this."""
        if self._join is None:
            self._join = Join()
        join = self._join
        if not join.done.is_set():
            self.do(self._machine.want_assignment())
        return join

    def take_failure(self) -> Exception | None:
        """Return, once, why the last join failed that has ended; None if it did not."""
        join = self._join
        if join is None or not join.done.is_set():
            return None
        self._join = None
        return join.error

    def notify(self) -> None:
        """Wake everyone in `wait_changed`."""
        self._time_rebalance()
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    def _time_rebalance(self) -> None:
        machine = self._machine
        if machine.state in {State.OUTSIDE, State.FAILED, State.LEFT}:
            self._rebalance_since_s = None
        elif machine.state is not State.STABLE or machine.rebalance_needed:
            if self._rebalance_since_s is None:
                self._rebalance_since_s = trio.current_time()
        elif self._rebalance_since_s is not None:
            counts = self._router.counts.group(machine.config.group_id)
            counts.rebalances.note(trio.current_time() - self._rebalance_since_s)
            self._rebalance_since_s = None

    def now(self) -> MemberNow:
        """Return how the member is; from any thread."""
        machine, heard_s = self._machine, self._heartbeat_s
        age_s = None if heard_s is None else max(0.0, self._router.clock_s() - heard_s)
        assigned = len(machine.usable)
        return MemberNow(
            machine.config.group_id, machine.state.value, machine.generation, assigned, age_s
        )

    async def wait_changed(self) -> None:
        """Wait until something has happened to the machine."""
        await self._changed.wait()

    @trio.lowlevel.enable_ki_protection
    async def _send(self, action: Send) -> None:
        await self._pause(action.rejoins)
        request = action.request
        timeout_ms, attempt_ms = self._request_timeout_ms, None
        if isinstance(request, HeartbeatRequest):
            timeout_ms = session_ms = self._machine.config.session_timeout_ms
            attempt_ms = max(HEARTBEAT_ATTEMPT_MS_MIN, session_ms // 3)
        try:
            reply = await self._router.call(
                request,
                timeout_ms=timeout_ms,
                parked_ms=action.parked_ms or 0,
                attempt_ms=attempt_ms,
            )
        except CoordinatorError as exc:
            self.do(self._machine.unanswered(request, exc, _now_ms()))
            return
        response = reply.response
        assert isinstance(response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        if isinstance(response, HeartbeatResponse):
            self._heartbeat_s = trio.current_time()
        self.do(self._machine.answered(request, response, _now_ms()))

    @trio.lowlevel.enable_ki_protection
    async def _resolve(self, action: Resolve) -> None:
        await self._pause(action.rejoins)
        try:
            found = await self._topic_calls.describe_topics(pattern=action.pattern)
        except CoordinatorError as exc:
            self.do(self._machine.resolve_failed(action.number, exc))
        else:
            topics = sorted(one.topic for one in found if one.error == ErrorCode.NONE)
            self.do(self._machine.resolved(action.number, tuple(topics)))

    @trio.lowlevel.enable_ki_protection
    async def _compute(self, action: Compute) -> None:
        try:
            assignments = await self._leading.compute(action)
        except Exception as exc:  # noqa: BLE001 - it is the user's code; they get it back.
            self.do(self._machine.compute_failed(action.generation, exc))
        else:
            self.do(self._machine.computed(action.generation, assignments))

    async def _pause(self, rejoins: int) -> None:
        if rejoins > 1:
            await self._router.pause(rejoins - 1)


def _now_ms() -> int:
    # Rounded up: whoever slept until a deadline in whole milliseconds finds it reached.
    return math.ceil(trio.current_time() * 1000)


class Leading:
    """Assignors of one member, and its source of the partitions of topics.

    Args:
        assignors: The assignors that the member offers.
        partitions: The caller's partitions of topics; None asks the coordinator's registry.
        topic_calls: Calls to the registry.
        register_ms: Longest time to register the caller's partitions; None: don't register.

    """

    def __init__(
        self,
        assignors: Sequence[Assignor],
        partitions: Partitions | None,
        topic_calls: TopicCalls,
        register_ms: int | None,
    ) -> None:
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._partitions = partitions
        self._topic_calls = topic_calls
        self._register_ms = None if partitions is None else register_ms
        self._registered: dict[str, int] = {}  # As last registered.

    def user_data(
        self,
        name: str,
        topics: tuple[str, ...],
        owned: tuple[TopicPartition, ...],
        generation: int,
    ) -> bytes | None:
        """Return what assignor *name* wants its leader to know of this member."""
        pack = getattr(self._assignors[name], "user_data", None)
        return None if pack is None else pack(topics, owned, generation)

    async def compute(self, action: Compute) -> tuple[MemberAssignment, ...]:
        """Return everybody's assignments. Raises what the caller's own code raises."""
        members = read_subscriptions(action.members)
        topics = sorted({topic for member in members for topic in member.topics})
        partitions, hosts = await self._find(topics)
        assignor = self._assignors[action.assignor_name]
        assignments = write_assignments(run_assignor(assignor, members, partitions, hosts))
        if self._register_ms is not None:
            await self._register(partitions, self._register_ms)
        return assignments

    async def _register(self, partitions: Mapping[str, Sequence[int]], timeout_ms: int) -> None:
        """Tell the registry of the topics that are news to it; a failure is only logged.

        Told before the assignment is in force, it makes no group rebalance that reads all of them.
        """
        counts = {topic: max(numbers) + 1 for topic, numbers in partitions.items() if numbers}
        news = {t: count for t, count in counts.items() if self._registered.get(t) != count}
        if not news:
            return
        try:
            with trio.fail_after(timeout_ms / 1000):
                await self._topic_calls.register_topics(news, observed=True)
        except trio.TooSlowError:
            topics_logger.warning("not registered in %d ms: %s", timeout_ms, _named(news))
        except CoordinatorError as exc:
            topics_logger.warning("no lag of %s: %s", _named(news), one_line(str(exc)))
            if isinstance(exc, FatalError) and exc.code != ErrorCode.QUOTA_EXCEEDED:
                self._registered |= news  # The same again would be refused again.
        else:
            self._registered |= news

    async def _find(
        self, topics: list[str]
    ) -> tuple[dict[str, list[int]], dict[TopicPartition, tuple[str, ...]]]:
        """Return the partitions of each topic, and the hosts that have their data."""
        if self._partitions is not None:
            return {topic: await self._asked(self._partitions, topic) for topic in topics}, {}
        partitions: dict[str, list[int]] = {}
        hosts: dict[TopicPartition, tuple[str, ...]] = {}
        for described in await self._topic_calls.describe_topics(topics):
            known = described.error == ErrorCode.NONE
            partitions[described.topic] = list(range(described.partition_count)) if known else []
            for one in described.hosts:
                hosts[TopicPartition(described.topic, one.partition)] = one.hosts
        return partitions, hosts

    async def _asked(self, partitions: Partitions, topic: str) -> list[int]:
        if isinstance(partitions, Mapping):
            return list(range(partitions.get(topic, 0)))
        numbers = partitions(topic)
        if inspect.isawaitable(numbers):
            numbers = await numbers
        return sorted(set(numbers))


def _named(topics: Iterable[str]) -> str:
    """Return some topics for a line of a log."""
    return some_of([repr(topic) for topic in sorted(topics)], TOPICS_NAMED_MAX)
