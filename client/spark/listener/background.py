"""Threads that do what a listener's callbacks are too short for."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

Task = Callable[[], object]


class Worker(ABC):
    """A daemon thread; what it shares with others is guarded by ``changed``.

    Args:
        name: the thread's name.

    """

    def __init__(self, name: str) -> None:
        self.changed = threading.Condition()
        self.closing = False
        self._name = name
        self._thread: threading.Thread | None = None

    @abstractmethod
    def run(self) -> None:
        """Work until ``closing`` is set."""

    def start(self) -> None:
        """Begin, if it hasn't begun and isn't closed."""
        with self.changed:
            if self._thread is None and not self.closing:
                self._thread = threading.Thread(target=self.run, name=self._name, daemon=True)
                self._thread.start()
            self.changed.notify()

    def begin_close(self) -> None:
        """Have the thread finish what waits, and end."""
        with self.changed:
            self.closing = True
            self.changed.notify()

    def close(self, timeout_s: float) -> None:
        """Do `begin_close`, and wait for the thread."""
        self.begin_close()
        if self._thread is not None:
            self._thread.join(timeout_s)


class Background(Worker):
    """Runs tasks one after the other, and *tick* regularly; nothing that fails stops it.

    Args:
        tick: called every *every_s* seconds, and once at the end.
        every_s: None for never.

    """

    def __init__(self, tick: Task, every_s: float | None) -> None:
        super().__init__("group-offset-listener-background")
        self._tick = tick
        self._every_s = every_s
        self._tasks: deque[Task] = deque()

    def do(self, task: Task) -> None:
        """Have *task* run soon; after `close`, never."""
        with self.changed:
            if not self.closing:
                self._tasks.append(task)
        self.start()

    def run(self) -> None:
        """Run tasks and ticks."""
        tick_s = None if self._every_s is None else time.monotonic() + self._every_s
        while True:
            with self.changed:
                wait_s = None if tick_s is None else max(tick_s - time.monotonic(), 0.0)
                self.changed.wait_for(lambda: self._tasks or self.closing, wait_s)
                task = self._tasks.popleft() if self._tasks else None
                ends = task is None and self.closing
            if task is None and self._every_s is not None:
                task = self._tick
                tick_s = time.monotonic() + self._every_s
            if task is not None:
                self._guarded(task)
            if ends:
                return

    def _guarded(self, task: Task) -> None:
        try:
            task()
        except Exception:
            # A query must never feel that its listener has trouble.
            logger.exception("in the listener's background thread")
