"""A member of a group: the trio side of `client.membership`."""

import inspect
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Self

import trio

from client.actions import (
    Action,
    Assigned,
    Compute,
    GaveUp,
    MembershipConfig,
    Send,
    State,
)
from client.assignors import Assignor, read_subscriptions, write_assignments
from client.backoff import RetrySettings, pause_ms
from client.exceptions import ClientClosed, CoordinatorError, MemberLost, Rebalanced
from client.membership import Membership
from client.offset_calls import OffsetCalls
from client.offsets import commit_request
from client.router import ATTEMPT_MS_MAX, Router
from client.types import Assignment, OffsetAndMetadata, Offsets, Partitions
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from protocol.types import TopicPartition

# A heartbeat that isn't answered for this long makes the client try another connection, even
# where the session is shorter than three times that: a busy server is not a dead one.
HEARTBEAT_ATTEMPT_MS_MIN: Final = 3_000


class _Join:
    """One join under way, and everyone who waits for it."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.assignment: Assignment | None = None
        self.error: Exception | None = None


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
        partitions: Partitions,
        request_timeout_ms: int,
        leave_timeout_ms: int,
        retry: RetrySettings,
        rng: random.Random,
    ) -> None:
        self._client_nursery = nursery
        self._router = router
        self._offset_calls = offset_calls
        self._machine = Membership(config)
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._partitions = partitions
        self._request_timeout_ms = request_timeout_ms
        self._leave_timeout_ms = leave_timeout_ms
        self._retry = retry
        self._rng = rng
        self._scope = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        self._changed = trio.Event()
        self._join: _Join | None = None

    async def __aenter__(self) -> Self:
        self._router.check_open()
        await self._client_nursery.start(self._run)
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
        """Whether `assignment` would join (again).

        The partitions are still this member's, and commits are accepted, until `assignment`
        is called or the group stops waiting; unless `lost` is true.
        """
        return self._machine.rebalance_needed

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

        Raises:
            CoordinatorUnavailable: No coordinator could be reached in time. Call again.
            FatalError: Joining again won't help; make another member.
            ClientClosed: This member has left.
            Exception: What the caller's own ``partitions`` raised (asked of the leader only).
        """
        await trio.lowlevel.checkpoint()
        self._check_entered()
        machine = self._machine
        if machine.state is State.STABLE and not machine.rebalance_needed:
            assert machine.assignment is not None
            return machine.assignment
        join = self._join
        if join is None:
            join = self._join = _Join()
        self._do(machine.want_assignment())
        await join.done.wait()
        if join.error is not None:
            raise join.error
        assert join.assignment is not None
        return join.assignment

    async def wait_rebalance_needed(self) -> None:
        """Wait until `rebalance_needed` is true.

        Raises:
            ClientClosed: This member has left.
        """
        await trio.lowlevel.checkpoint()
        while not self._machine.rebalance_needed or self.has_left:
            if self.has_left:
                raise ClientClosed("this member has left the group")
            await self._changed.wait()

    async def request_rejoin(self, reason: str) -> None:
        """Make the group rebalance at this member's next `assignment`.

        For a change that the group can't see, such as a topic with more partitions.
        """
        await trio.lowlevel.checkpoint()
        self._machine.request_rejoin(reason)
        self._notify()

    async def commit(
        self,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """Store *offsets*: each is the next offset to read, not the last one that was read.

        When this returns, they survive a crash of the coordinator.

        Args:
            offsets: Only of partitions that are assigned in the current generation.
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
        machine = self._machine
        if machine.lost:
            raise self._why_lost()
        generation, member_id = machine.generation, machine.member_id
        instance_id = machine.config.group_instance_id
        request = commit_request(
            self.group_id, generation, member_id, instance_id, offsets, expected
        )
        try:
            await self._offset_calls.commit(request, timeout_ms)
        except CoordinatorError as exc:
            if exc.group_code is not None:
                self._do(machine.observe(exc.group_code, generation, member_id))
            raise

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

    async def leave(self, reason: str | None = None) -> bool:
        """Leave the group, so that the others needn't wait for the session to end.

        Takes at most the client's ``leave_timeout_ms``, also when cancelled, and raises
        nothing about the coordinator. Returns whether the coordinator confirmed it.
        """
        actions = self._machine.leave(reason)
        self._scope.cancel()
        confirmed = False
        with trio.move_on_after(self._leave_timeout_ms / 1000, shield=True):
            for action in actions:
                if isinstance(action, Send):
                    confirmed = await self._say_goodbye(action)
                else:
                    self._settle(action)
            self._notify()
        return confirmed

    # --- Background ---

    async def _run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                self._tasks = nursery
                task_status.started()
                while True:
                    self._do(self._machine.tick(_now_ms()))
                    deadline_ms = self._machine.next_deadline_ms()
                    wake_s = math.inf if deadline_ms is None else deadline_ms / 1000
                    with trio.move_on_at(wake_s):
                        await self._changed.wait()

    def _do(self, actions: list[Action]) -> None:
        assert self._tasks is not None
        for action in actions:
            match action:
                case Send():
                    self._tasks.start_soon(self._send, action)
                case Compute():
                    self._tasks.start_soon(self._compute, action)
                case _:
                    self._settle(action)
        self._notify()

    def _settle(self, action: Action) -> None:
        join, self._join = self._join, None
        if join is None:
            return  # Nobody asked, such as when a heartbeat was refused.
        if isinstance(action, Assigned):
            join.assignment = action.assignment
        elif isinstance(action, GaveUp):
            join.error = action.error
        join.done.set()

    def _notify(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _send(self, action: Send) -> None:
        if action.rejoins > 1:
            await trio.sleep(pause_ms(action.rejoins - 1, self._retry, self._rng) / 1000)
        request = action.request
        timeout_ms, attempt_ms = self._request_timeout_ms, ATTEMPT_MS_MAX
        if isinstance(request, HeartbeatRequest):
            session_ms = self._machine.config.session_timeout_ms
            timeout_ms = session_ms
            attempt_ms = min(attempt_ms, max(HEARTBEAT_ATTEMPT_MS_MIN, session_ms // 3))
        try:
            reply = await self._router.call(
                request,
                group_id=self.group_id,
                timeout_ms=timeout_ms,
                changes_state=False,  # Repeating a join, sync or heartbeat harms nothing.
                parked_ms=action.parked_ms or 0,
                attempt_ms=attempt_ms,
            )
        except CoordinatorError as exc:
            self._do(self._machine.unanswered(request, exc, _now_ms()))
            return
        response = reply.response
        assert isinstance(response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        self._do(self._machine.answered(request, response, _now_ms()))

    async def _compute(self, action: Compute) -> None:
        try:
            members = read_subscriptions(action.members)
            topics = sorted({topic for member in members for topic in member.topics})
            partitions = {topic: await self._partitions_of(topic) for topic in topics}
            assigned = self._assignors[action.assignor_name].assign(members, partitions)
            assignments = write_assignments(assigned)
        except Exception as exc:  # noqa: BLE001 - it is the user's code; they get it back.
            self._do(self._machine.compute_failed(action.generation, exc))
        else:
            self._do(self._machine.computed(action.generation, assignments))

    async def _partitions_of(self, topic: str) -> list[int]:
        if isinstance(self._partitions, Mapping):
            return list(range(self._partitions.get(topic, 0)))
        numbers = self._partitions(topic)
        if inspect.isawaitable(numbers):
            numbers = await numbers
        return sorted(set(numbers))

    async def _say_goodbye(self, action: Send) -> bool:
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

    def _why_lost(self) -> CoordinatorError:
        machine = self._machine
        match machine.state:
            case State.LEFT:
                return ClientClosed("this member has left the group")
            case State.FAILED:
                assert machine.failure is not None
                return machine.failure
            case State.STABLE if not machine.member_id:
                return MemberLost("the group removed this member; nothing was stored")
            case _:
                return Rebalanced("this member has no assignment now; nothing was stored")

    def _check_entered(self) -> None:
        if self._tasks is None:
            raise RuntimeError("a member must be used in `async with client.join(...)`")


def _now_ms() -> int:
    # Rounded up: whoever slept until a deadline in whole milliseconds finds it reached.
    return math.ceil(trio.current_time() * 1000)
