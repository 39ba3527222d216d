"""A thread that does what a listener's callbacks are too short for."""

import logging
import queue
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

Task = Callable[[], None]


class Background:
    """Runs tasks one after the other, and *tick* regularly; nothing that fails stops it.

    Args:
        tick: called every *every_s* seconds, and once at the end.
        every_s: None for never.

    """

    def __init__(self, tick: Task, every_s: float | None) -> None:
        self._tick = tick
        self._every_s = every_s
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = False

    def start(self) -> None:
        """Begin, if it hasn't begun."""
        with self._lock:
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._run, name="group-offset-listener-background", daemon=True
                )
                self._thread.start()

    def do(self, task: Task) -> None:
        """Have *task* run soon; after `close`, never."""
        self.start()
        with self._lock:
            if not self._closing:
                self._tasks.put(task)

    def close(self, timeout_s: float) -> None:
        """Run what is waiting, and end."""
        with self._lock:
            self._closing = True
        self._tasks.put(None)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        next_s = None if self._every_s is None else time.monotonic() + self._every_s
        while True:
            try:
                wait_s = None if next_s is None else max(next_s - time.monotonic(), 0.0)
                task = self._tasks.get(timeout=wait_s)
            except queue.Empty:
                task = self._tick
                next_s = time.monotonic() + (self._every_s or 0.0)
            if task is None:
                if self._every_s is not None:
                    self._guarded(self._tick)
                return
            self._guarded(task)

    def _guarded(self, task: Task) -> None:
        try:
            task()
        except Exception:
            # A query must never feel that its listener has trouble.
            logger.exception("in the listener's background thread")
