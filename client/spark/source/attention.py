"""Whether Spark still asks its reader for anything.

The reader is a process of its own. If the JVM freezes, the reader goes on sending heartbeats and
would keep its partitions for ever, though nobody reads them. Kafka's consumers have the same
problem, and the same answer: who isn't asked for longer than a batch may take leaves the group.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType


class Attention:
    """Calls *give_up* once when Spark has not called for *limit_s*; use as ``with`` in each call.

    A call that goes on counts as attention, however long it takes. Giving up and calls never
    overlap: a call waits until giving up is over.

    Args:
        limit_s: how long Spark may be silent between two calls.
        give_up: called with how long it has been silent; must not raise.
        clock: a monotonic clock in seconds.

    """

    def __init__(
        self,
        limit_s: float,
        give_up: Callable[[float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit_s = limit_s
        self._give_up = give_up
        self._clock = clock
        self._lock = threading.Lock()
        self._inside = False
        self._gave_up = False
        self._since_s = clock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside = True

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _value: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            self._inside = self._gave_up = False
            self._since_s = self._clock()

    def look(self) -> float:
        """Give up if Spark is silent for too long; return in how many seconds to look again."""
        with self._lock:
            silent_s = self._clock() - self._since_s
            if self._inside or self._gave_up:
                return self._limit_s
            if silent_s < self._limit_s:
                return self._limit_s - silent_s
            self._gave_up = True
            self._give_up(silent_s)
            return self._limit_s

    def watch(self) -> None:
        """Look for as long as the process lives, in a thread of its own."""

        def look_again() -> None:
            while True:
                time.sleep(self.look())

        threading.Thread(target=look_again, name="attention", daemon=True).start()
