"""The task that sleeps until the earliest deadline of any shard."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import trio

from coordinator.runtime.environment import Environment
from coordinator.runtime.shard import ShardRunner

# Who wakes so much later than planned was stopped or starved, and could hear nobody meanwhile.
LATE_MS: Final = 500
FOREVER_MS: Final = 2**63 - 1  # Later than any deadline.


class Timekeeper:
    """Has the shards do what is due, and holds nothing against peers while we stood still.

    Attributes:
        wakes_at_ms: Until when it sleeps; `wake` it for an earlier deadline.
    """

    def __init__(
        self,
        runners: Sequence[ShardRunner[Any]],
        environment: Environment,
        *,
        expired: Callable[[], None],
        done: Callable[[], Awaitable[None]],
    ) -> None:
        """Make it; *expired* is called after each shard that had something to do.

        *done* is called whenever it has woken, last.
        """
        self._runners = runners
        self._now = environment.now
        self._emit_event = environment.emit_event
        self._caught_up = environment.poller.caught_up
        self._expired = expired
        self._done = done
        self._kick = trio.Event()
        self.wakes_at_ms = FOREVER_MS

    def wake(self) -> None:
        """Look at the deadlines again: one is earlier than `wakes_at_ms`."""
        self._kick.set()

    async def run(self) -> None:
        """Expire what is due until cancelled."""
        while True:
            await self._done()
            self._kick = trio.Event()
            deadlines = [d for r in self._runners if (d := r.next_deadline_ms()) is not None]
            if not deadlines:
                self.wakes_at_ms = FOREVER_MS
                await self._kick.wait()
                continue
            # Not longer at a time than what counts as late, so that lateness is how long we
            # stood still and not only how far past the first deadline that went.
            self.wakes_at_ms = min(*deadlines, self._now().mono_ms + LATE_MS)
            # Half a millisecond more: in floating point, the deadline may read as one too early.
            with trio.move_on_at((self.wakes_at_ms + 0.5) / 1000):
                await self._kick.wait()
            if self._now().mono_ms >= self.wakes_at_ms:
                await self._expire(self.wakes_at_ms)

    async def _expire(self, planned_ms: int) -> None:
        late_ms = self._now().mono_ms - planned_ms
        if late_ms > LATE_MS:
            self._emit_event("stalled", {"late_ms": late_ms})
            for runner in self._runners:
                runner.core.shift_deadlines(late_ms)
            return
        await self._caught_up()  # Whoever has sent something in time is not late.
        for runner in self._runners:
            now = self._now()
            deadline_ms = runner.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now.mono_ms:
                runner.expire(now)
                # Expiry comes to all shards at once: a slice of each is too much in one turn.
                self._expired()
                await trio.lowlevel.checkpoint()
