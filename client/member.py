"""A member of a group: the trio side of `client.membership`."""

import inspect
import logging
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import trio

from client.actions import MembershipConfig, Send, State
from client.assignors import Assignor
from client.backoff import RetrySettings
from client.commits import Commits
from client.driving import Driver
from client.exceptions import ClientClosed, CoordinatorError
from client.hand_over import Change, Step
from client.lag import Lag, group_lag
from client.leading import Leading
from client.membership import Membership
from client.offset_calls import OffsetCalls
from client.router import Router
from client.topics import TopicCalls
from client.types import Assignment, Callbacks, OffsetAndMetadata, Offsets, Partitions
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)


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
        topic_calls: TopicCalls,
        *,
        config: MembershipConfig,
        assignors: Sequence[Assignor],
        partitions: Partitions | None,
        callbacks: Callbacks,
        auto_commit_interval_ms: int | None,
        request_timeout_ms: int,
        leave_timeout_ms: int,
        retry: RetrySettings,
        rng: random.Random,
    ) -> None:
        self._client_nursery = nursery
        self._router = router
        self._offset_calls = offset_calls
        leading = Leading(assignors, partitions, topic_calls)
        self._machine = Membership(config, leading.user_data)
        self._driver = Driver(
            self._machine,
            router,
            topic_calls,
            leading,
            request_timeout_ms=request_timeout_ms,
            retry=retry,
            rng=rng,
        )
        self._commits = Commits(
            self._machine,
            offset_calls,
            request_timeout_ms=request_timeout_ms,
            do=self._driver.do,
            wait_changed=self._driver.wait_changed,
            auto=auto_commit_interval_ms is not None,
        )
        self._callbacks = {
            Change.GIVEN: callbacks.on_assigned,
            Change.REVOKED: callbacks.on_revoked,
            Change.LOST: callbacks.on_lost,
        }
        self._auto_commit_interval_ms = auto_commit_interval_ms
        self._request_timeout_ms = request_timeout_ms
        self._leave_timeout_ms = leave_timeout_ms
        self._asking = trio.Lock()
        self._is_telling = False
        self._is_leaving = False

    async def __aenter__(self) -> Self:
        self._router.check_open()
        await self._client_nursery.start(self._driver.run)
        if self._auto_commit_interval_ms is not None:
            auto_commit = partial(self._commits.run_auto_commit, self._auto_commit_interval_ms)
            self._driver.start_soon(auto_commit)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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

    async def assignment(self) -> Assignment:
        """Return the current assignment; join, or join again, if that is needed.

        The only call that gives partitions away, so that the caller chooses when: first
        finish and commit what was read. Cancelling it stops the waiting, not the joining;
        call it again to go on waiting.

        A cooperative member that has partitions doesn't wait: it gets those that it has
        while the group rebalances, and what has changed with a later call.

        Callbacks are called in here. One that raises has been called, and what it raised comes
        out of here; one that was cancelled is called again by the next call.

        Raises:
            CoordinatorUnavailable: No coordinator could be reached in time. Call again.
            FatalError: Joining again won't help; make another member.
            ClientClosed: This member has left.
            Exception: What the caller's own ``partitions`` (asked of the leader only),
                assignors or callbacks raised.
        """
        await trio.lowlevel.checkpoint()
        self._check_entered()
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
                await self._give_up(step)
            else:
                # Of an earlier time that they were ours, or in vain.
                self._commits.forget(step.partitions)
                await self._call(step)
        finally:
            self._is_telling = False

    async def _give_up(self, step: Step) -> None:
        await self._call(step)
        await self._commits.give_up(step.partitions)
        self._commits.forget(step.partitions)
        self._machine.told(step)

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

        For a change that the group can't see, such as a topic with more partitions.

        Args:
            reason: Why, for the coordinator's log.
            topics: What to read from then on; None leaves it as it is.

        Raises:
            ValueError: *topics* are given, and this member reads a pattern.
        """
        if topics is not None and self._machine.config.topic_pattern is not None:
            raise ValueError("a member that reads a pattern can't be given topics")
        await trio.lowlevel.checkpoint()
        names = None if topics is None else tuple(sorted(set(topics)))
        self._machine.request_rejoin(reason, names)
        self._driver.notify()

    def store(self, offsets: Offsets) -> None:
        """Take note that everything before *offsets* was processed, to be committed later.

        `commit` without arguments does that, and auto-commit, if it is on: every interval, and
        before partitions are given up.

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
        timeout_ms: int | None = None,
    ) -> None:
        """Store *offsets*: each is the next offset to read, not the last one that was read.

        When this returns, they survive a crash of the coordinator. While the group of a
        cooperative member rebalances, a commit may take as long as the others need to sync.

        Args:
            offsets: Only of partitions that are assigned in the current generation; None
                commits what was stored with `store`.
            expected: What must be committed so far, per partition; -1 for nothing. A partition
                that it doesn't name isn't checked.
            timeout_ms: How long to try; by default the client's request timeout.

        Raises:
            Rebalanced: The group moved on; nothing was stored. Call `assignment`.
            MemberLost: The group removed this member; nothing was stored. Call `assignment`.
            CommitRefused: Some partitions were refused, the others are stored.
            OutcomeUnknown: No definite answer in time. Repeat the same call, or read back.
            CoordinatorUnavailable: Nobody could be reached in time; nothing was stored.
            FatalError: Repeating it does not help.
            ValueError: An argument makes no sense.
        """
        if offsets is not None:
            await self._commits.commit(offsets, expected, timeout_ms)
        elif expected is not None:
            raise ValueError("expected offsets of partitions that are not named")
        else:
            await self._commits.commit_stored(self._machine.usable, timeout_ms)

    async def fetch(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of *partitions*, or of the whole group (None).

        A partition that nothing was committed for is left out.

        Raises:
            CoordinatorUnavailable: Nobody could be reached in time.
            FatalError: Repeating it does not help.
        """
        return await self._offset_calls.fetch(self.group_id, partitions, timeout_ms)

    async def lag(self) -> dict[TopicPartition, Lag]:
        """Return how far the group is behind, per partition; see `client.lag.group_lag`."""
        return await group_lag(self._router, self.group_id, self._request_timeout_ms)

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
            confirmed = await self._say_goodbye(reason, remove=remove)
        return confirmed

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

    async def _say_goodbye(self, reason: str | None, *, remove: bool) -> bool:
        actions = self._machine.leave(reason, remove=remove)
        self._driver.stop()
        confirmed = False
        with trio.move_on_after(self._leave_timeout_ms / 1000, shield=True):
            for action in actions:
                if isinstance(action, Send):
                    confirmed = await self._send_goodbye(action)
                else:
                    self._driver.settle(action)
            self._driver.notify()
        return confirmed

    async def _send_goodbye(self, action: Send) -> bool:
        try:
            await self._router.call(
                action.request,
                group_id=self.group_id,
                timeout_ms=self._leave_timeout_ms,
                changes_state=False,
            )
        except CoordinatorError:
            return False  # The session will end by itself.
        return True

    def _check_entered(self) -> None:
        if not self._driver.is_running:
            raise RuntimeError("a member must be used in `async with client.join(...)`")
