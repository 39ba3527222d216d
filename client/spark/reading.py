"""Reading a range on an executor, so that what goes wrong has a name."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from client.spark.errors import LogFailed
from client.spark.rows import SourceRange

if TYPE_CHECKING:
    import pyarrow as pa

    from client.spark.log import PartitionLog

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0


class ReadMonitor:
    """Says so when a read yields nothing for long; one thread for all reads of a process.

    Args:
        clock: a monotonic clock in seconds.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reads: dict[object, tuple[str, float, float]] = {}
        self._started = False
        self._lock = threading.Lock()

    def watch(self, read: object, what: str, silence_s: float) -> None:
        """Begin to watch *read*, or note that it yielded something."""
        self._reads[read] = (what, self._clock(), silence_s)
        with self._lock:
            if not self._started:
                threading.Thread(target=self._watch, name="read-monitor", daemon=True).start()
                self._started = True

    def done(self, read: object) -> None:
        """Stop watching it."""
        self._reads.pop(read, None)

    def look(self) -> None:
        """Log a warning for each read that is silent; for the same one, each time as long."""
        now_s = self._clock()
        for read, (what, since_s, silence_s) in list(self._reads.items()):
            if now_s - since_s >= silence_s:
                logger.warning("%s has yielded nothing for %.0f s", what, now_s - since_s)
                if read in self._reads:
                    self._reads[read] = (what, since_s, now_s - since_s + silence_s)

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_S)
            self.look()


_monitor = ReadMonitor()


def read_range(
    log: "PartitionLog", task: SourceRange, silence_s: float, monitor: ReadMonitor = _monitor
) -> "Iterator[pa.RecordBatch]":
    """Yield what *log* reads of a range.

    Args:
        log: where the rows are.
        task: the range.
        silence_s: how long the log may yield nothing until that is said.
        monitor: says it.

    Raises:
        LogFailed: the log raised something; the message names the range.

    """
    what = (
        f"{task.topic}-{task.partition}: read({task.start}, {task.end}) of the log "
        f"{type(log).__name__}"
    )
    read = object()
    try:
        monitor.watch(read, what, silence_s)
        for rows in log.read(task.topic, task.partition, task.start, task.end):
            monitor.done(read)  # What Spark does with them is not the log's time.
            yield rows
            monitor.watch(read, what, silence_s)
    except Exception as error:
        raise LogFailed(f"{what} failed: {type(error).__name__}: {error}") from error
    finally:
        monitor.done(read)
