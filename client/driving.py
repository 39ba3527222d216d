"""Does in the background what a member's machine asks for."""

import math
import random
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from client.actions import Action, Compute, GaveUp, Resolve, Send
from client.backoff import RetrySettings, pause_ms
from client.exceptions import CoordinatorError
from client.leading import Leading
from client.membership import Membership
from client.router import ATTEMPT_MS_MAX, Router
from client.topics import TopicCalls
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)

# A heartbeat that isn't answered for this long makes the client try another connection, even
# where the session is shorter than three times that: a busy server is not a dead one.
HEARTBEAT_ATTEMPT_MS_MIN: Final = 3_000


class Join:
    """One join under way. Whoever waits for it takes it away when it is done."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: Exception | None = None


class Driver:
    """The tasks of one member. `run` must be started in a nursery, and is ended by `stop`."""

    def __init__(
        self,
        machine: Membership,
        router: Router,
        topic_calls: TopicCalls,
        leading: Leading,
        *,
        request_timeout_ms: int,
        retry: RetrySettings,
        rng: random.Random,
    ) -> None:
        self._machine = machine
        self._router = router
        self._topic_calls = topic_calls
        self._leading = leading
        self._request_timeout_ms = request_timeout_ms
        self._retry = retry
        self._rng = rng
        self._scope = trio.CancelScope()
        self._tasks: trio.Nursery | None = None
        self._changed = trio.Event()
        self._join: Join | None = None

    @property
    def is_running(self) -> bool:
        """Whether `run` was started."""
        return self._tasks is not None

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
        """Tell whoever waits for the join how it ended."""
        join = self._join
        if join is None or join.done.is_set():
            return  # Nobody asked, such as when a heartbeat was refused.
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
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def wait_changed(self) -> None:
        """Wait until something has happened to the machine."""
        await self._changed.wait()

    async def _send(self, action: Send) -> None:
        await self._pause(action.rejoins)
        request = action.request
        timeout_ms, attempt_ms = self._request_timeout_ms, ATTEMPT_MS_MAX
        if isinstance(request, HeartbeatRequest):
            session_ms = self._machine.config.session_timeout_ms
            timeout_ms = session_ms
            attempt_ms = min(attempt_ms, max(HEARTBEAT_ATTEMPT_MS_MIN, session_ms // 3))
        try:
            reply = await self._router.call(
                request,
                group_id=self._machine.config.group_id,
                timeout_ms=timeout_ms,
                changes_state=False,  # Repeating a join, sync or heartbeat harms nothing.
                parked_ms=action.parked_ms or 0,
                attempt_ms=attempt_ms,
            )
        except CoordinatorError as exc:
            self.do(self._machine.unanswered(request, exc, _now_ms()))
            return
        response = reply.response
        assert isinstance(response, JoinGroupResponse | SyncGroupResponse | HeartbeatResponse)
        self.do(self._machine.answered(request, response, _now_ms()))

    async def _resolve(self, action: Resolve) -> None:
        await self._pause(action.rejoins)
        try:
            found = await self._topic_calls.describe(pattern=action.pattern)
        except CoordinatorError as exc:
            self.do(self._machine.resolve_failed(action.number, exc))
        else:
            topics = sorted(one.topic for one in found if one.error == ErrorCode.NONE)
            self.do(self._machine.resolved(action.number, tuple(topics)))

    async def _compute(self, action: Compute) -> None:
        try:
            assignments = await self._leading.compute(action)
        except Exception as exc:  # noqa: BLE001 - it is the user's code; they get it back.
            self.do(self._machine.compute_failed(action.generation, exc))
        else:
            self.do(self._machine.computed(action.generation, assignments))

    async def _pause(self, rejoins: int) -> None:
        if rejoins > 1:
            await trio.sleep(pause_ms(rejoins - 1, self._retry, self._rng) / 1000)


def _now_ms() -> int:
    # Rounded up: whoever slept until a deadline in whole milliseconds finds it reached.
    return math.ceil(trio.current_time() * 1000)
