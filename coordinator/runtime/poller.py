"""Readiness of many descriptors in one trio task.

Theory of operation
===================

Every descriptor is registered once, level-triggered, with an epoll of our own. One task waits in
trio for that epoll to be readable, asks it which descriptors are ready, and calls straight into
whoever watches them. A task per connection that waits by `trio.lowlevel.wait_readable` costs a
task switch and an epoll_ctl or two per request instead, two fifths of what a fetch took.

A *round* is what one look at the epoll found, handled, and after it the `at_round_end` of `run`:
there the answers of all sessions leave, and there what was appended is handed to the disk. A
callback is a plain function and must not wait. An error of a callback ends its owner, that of a
callback without one ends `run` (see `bulkhead`).

Two things can go wrong with a list of ready descriptors while one works through it. A callback may
close a descriptor that is further down: `unwatch` makes its entry mean nothing. And the system may
give the same number to a new descriptor before the list is done: what is watched from here on is
called from the next look on, and loses nothing, since it is then still ready.

Other tasks must run too, so what takes longer than `SLICE_S` is put aside for one turn of trio's.
So is what was put off by `call_soon`, which has a slice of its own behind that: who asks for little
is never behind who goes on with much, and each of the two gets on.
The time is trio's own, unless another one is given: under a virtual clock it stands still within a
turn, and what happens does not depend on how fast the machine is.

A pass of trio's loop for each request costs more than what a heartbeat asks for. So the task
*stays* once requests follow each other closely, which two short waits in a row show: it waits in
its own epoll, at most `stay_s` at a time, and everything that it can be woken by is in there, the
end of a flush, too. It goes through trio as soon as a round has made another task runnable, after
`SLICE_S` at the latest, and when nothing came. So timers, signals and trio's own descriptors (new
connections) are noticed a few milliseconds later under load, and who comes alone wakes nobody
twice. Nothing is gathered: what comes is handled at once. With a `stay_s` of 0 it never stays, for
under a virtual clock nothing may really wait.
"""

import os
import select
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

import trio

from coordinator.runtime.bulkhead import Owner, attempt, caught

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
# The system reports these two whether they are asked for or not.
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP

OnReady = Callable[[int], None]

# A list longer than this is fetched in parts; the system goes around among what is ready.
EVENTS_MAX: Final = 512
SLICE_S: Final = 0.002


class Rests(Protocol):
    """Who is less urgent than others, and lets them go first after each round."""

    def begin(self) -> None:
        """A round begins."""

    async def pause(self) -> None:
        """Return when the next one may."""


class _Runnable(trio.abc.Instrument):
    """Which tasks could run now.

    trio's own statistics leave out those that it has yet to run in this pass.
    """

    def __init__(self) -> None:
        self.tasks: set[trio.lowlevel.Task] = set()

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        """Note that it waits no more."""
        self.tasks.add(task)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Note that it has its turn."""
        self.tasks.discard(task)


class Poller:
    """Calls back when descriptors are ready.

    Attributes:
        in_round: Whether a round is on, so that its end will come before trio's other tasks run.
        now_s: In a round, when the callback before the one that goes on was done.
    """

    def __init__(
        self,
        stay_s: float = 0,
        slice_s: float = SLICE_S,
        clock_s: Callable[[], float] = trio.current_time,
    ) -> None:
        """Make it.

        Args:
            stay_s: How long it waits for more outside of trio, while much comes.
            slice_s: How long a round may take before other tasks have their turn.
            clock_s: It measures that. trio's own is asked through three functions, each time.
        """
        self._stay_s = stay_s
        self._slice_s = slice_s
        self._clock_s = clock_s
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[Owner | None, OnReady]] = {}
        # Watched since the list below was fetched.
        self._arriving: dict[int, tuple[Owner | None, OnReady]] = {}
        self._ready: list[tuple[int, int]] = []  # Descriptors and masks, the next one last.
        self._soon: deque[tuple[Owner | None, Callable[[], None]]] = deque()
        self.in_round = False
        self.now_s = 0.0
        self._looks = 0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False
        self.watch(self._wake_fd, self._wake_up)

    def watch(
        self, fd: int, on_ready: OnReady, mask: int = READABLE, owner: Owner | None = None
    ) -> None:
        """Call *on_ready* with what *fd* is ready for, as long as it is.

        Raises:
            OSError: The system watches no more descriptors.
        """
        self._epoll.register(fd, mask)
        self._arriving[fd] = (owner, on_ready)

    def modify(self, fd: int, mask: int) -> None:
        """Look for *mask* from now on. With 0 only `BROKEN` is reported."""
        self._epoll.modify(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Call nobody about *fd* any more, also if it is ready already. Close it after this."""
        self._watched.pop(fd, None)
        self._arriving.pop(fd, None)
        # Everything is forgotten already where the poller was closed first.
        with suppress(OSError, ValueError):
            self._epoll.unregister(fd)

    def call_soon(self, callback: Callable[[], None], owner: Owner | None = None) -> None:
        """Call *callback* in a round of its own turn: the next one, even if nothing is ready."""
        self._soon.append((owner, callback))
        self.wake()

    def wake(self) -> None:
        """Have a round, even if nothing is ready; the one that is on is as good."""
        if not (self.in_round or self._woken):
            self._woken = True
            os.eventfd_write(self._wake_fd, 1)

    async def caught_up(self) -> None:
        """Return when everything has been handled that was ready as this was called."""
        # What lets data arrive in a simulation is a task like the one that asks.
        await trio.lowlevel.checkpoint()
        # The system lets everybody who is ready have a turn in so many lists.
        lists = 1 + (len(self._watched) + len(self._arriving)) // EVENTS_MAX
        until = self._looks + lists
        while self._looks < until or self._ready:
            done = trio.Event()
            self.call_soon(done.set)
            await done.wait()

    async def run(self, at_round_end: Callable[[], None], rests: Rests | None = None) -> None:
        """Call back until cancelled, and *at_round_end* after each round; raises what they do.

        With *rests* it is that which says when the next round may begin.
        """
        clock = self._clock_s
        fd = self._epoll.fileno()
        others = _Runnable()
        if self._stay_s:
            trio.lowlevel.add_instrument(others)
        stays = was_short = False
        until_s = 0.0
        try:
            while True:
                is_due = self._ready or self._soon
                if is_due or (stays and (others.tasks or clock() >= until_s)):
                    await trio.lowlevel.checkpoint()
                    until_s = clock() + self._slice_s
                elif not stays:
                    since_s = clock()
                    await trio.lowlevel.wait_readable(fd)
                    now_s = clock()
                    until_s = now_s + self._slice_s
                    is_short = now_s - since_s < self._stay_s
                    stays, was_short = is_short and was_short, is_short
                if not self._ready:
                    waits = stays and not (self._soon or others.tasks)
                    self._look(self._stay_s if waits else 0)
                    if not (self._ready or self._soon):
                        stays = was_short = False
                        continue
                if rests is not None:
                    rests.begin()
                self.in_round = True
                try:
                    self._round()
                    at_round_end()
                finally:
                    self.in_round = False
                if rests is not None:
                    await rests.pause()
        finally:
            if self._stay_s:
                trio.lowlevel.remove_instrument(others)

    def _look(self, timeout_s: float) -> None:
        """Fetch the next list of ready ones; wait so long for the first of them."""
        self._watched.update(self._arriving)
        self._arriving.clear()
        self._ready = self._epoll.poll(timeout_s, EVENTS_MAX)
        self._ready.reverse()
        self._looks += 1

    def _round(self) -> None:
        ready, soon, watched, clock = self._ready, self._soon, self._watched, self._clock_s
        number_soon = len(soon)
        self.now_s = now_s = clock()
        until_s = now_s + self._slice_s
        while ready:
            fd, mask = ready.pop()
            watcher = watched.get(fd)
            if watcher is not None:
                owner, on_ready = watcher
                exception = None
                try:  # `attempt` written out: every request comes here.
                    on_ready(mask)
                except Exception:  # noqa: BLE001 - as there
                    exception = caught(owner)
                if exception is not None and owner is not None:
                    owner.fail(exception)
                self.now_s = now_s = clock()
                if now_s >= until_s:
                    break
        until_s = now_s + self._slice_s
        for _ in range(number_soon):
            attempt(*soon.popleft())
            self.now_s = now_s = clock()
            if now_s >= until_s:
                break

    def _wake_up(self, _mask: int) -> None:
        os.eventfd_read(self._wake_fd)
        self._woken = False

    def close(self) -> None:
        """Let go of everything. Watched descriptors stay open."""
        self._watched.clear()
        self._arriving.clear()
        self._soon.clear()
        if not self._epoll.closed:
            self._epoll.close()
            os.close(self._wake_fd)
            self._woken = True  # Nobody may write there: the number may soon be another file's.
