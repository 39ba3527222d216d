"""Appends the flights to the log while the drivers read it.

All flights stand in one order, that of their departure, and the feeder walks through it, so the
partitions grow side by side like those of a real source. Flights must still be coming when a
driver is killed, and when another one joins, however long that takes on a slow machine. So the
story names the share of all flights that the next step may use up, and the feeder gets slower
the nearer it comes to it.
"""

import threading
import time
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from client.spark.logs.folder import FolderLogWriter
from demo.dataset import partition_column
from demo.names import NUM_PARTITIONS

TICK_S: Final = 0.25
# Of what is left until a limit, about a third is fed in half of this time.
_SLOWING_S: Final = 60.0


class Feed:
    """What to append next: every partition's rows, and how the one order runs through them."""

    def __init__(self, table: pa.Table) -> None:
        self.num_rows: int = table.num_rows
        partitions = partition_column(table)
        self._rows = []
        self._places = []
        for partition in range(NUM_PARTITIONS):
            places = pc.indices_nonzero(pc.equal(partitions, partition))
            self._places.append(places.to_numpy())
            self._rows.append(table.take(places))

    def ends(self, upto: int) -> tuple[int, ...]:
        """Return how many rows each partition has when *upto* rows of all are appended."""
        return tuple(int(places.searchsorted(upto)) for places in self._places)

    def rows(self, partition: int, start: int, end: int) -> pa.Table:
        """Return the rows ``start <= offset < end`` of *partition*."""
        return self._rows[partition].slice(start, end - start)


def pace(to_limit: float, *, rows_per_s: int, last: bool) -> float:
    """Return how many rows to append a second.

    Args:
        to_limit: how many rows may still come before the limit.
        rows_per_s: the pace far away from it.
        last: whether the limit is the end of all rows, which is to be reached.

    """
    return rows_per_s if last else max(min(rows_per_s, to_limit / _SLOWING_S), 0.0)


class Feeder(threading.Thread):
    """Feeds in a thread of its own, until all rows are there.

    Args:
        feed: the rows.
        writer: the open topic; closed when the thread ends.

    """

    def __init__(self, feed: Feed, writer: FolderLogWriter) -> None:
        super().__init__(name="feeder", daemon=True)
        self.error: BaseException | None = None
        self.appended = 0
        self._feed = feed
        self._writer = writer
        self._limit = self._rows_per_s = 0
        self._stopping = threading.Event()

    @property
    def done(self) -> bool:
        """Whether all rows are in the log."""
        return self.appended == self._feed.num_rows

    @property
    def ends(self) -> tuple[int, ...]:
        """The end offset of each partition."""
        return self._feed.ends(self.appended)

    def feed(self, rows_per_s: int, *, share: float) -> None:
        """Go on at this pace, towards this share (0 to 1) of all rows."""
        self._limit = round(self._feed.num_rows * share)
        self._rows_per_s = rows_per_s

    def stop(self) -> None:
        """End the thread soon."""
        self._stopping.set()

    def run(self) -> None:
        """Append what is due, tick by tick."""
        try:
            with self._writer:
                place = 0.0
                last_s = time.monotonic()
                while not self.done and not self._stopping.wait(TICK_S):
                    now_s = time.monotonic()
                    # A fraction, so that a slow pace gets ahead in short ticks too.
                    place += (now_s - last_s) * pace(
                        self._limit - place,
                        rows_per_s=self._rows_per_s,
                        last=self._limit == self._feed.num_rows,
                    )
                    last_s = now_s
                    self.append_upto(min(int(place), self._feed.num_rows))
        except BaseException as error:  # noqa: BLE001 - the story raises it in the main thread.
            self.error = error

    def append_upto(self, upto: int) -> None:
        """Append all rows before place *upto* of the one order."""
        before, after = self._feed.ends(self.appended), self._feed.ends(upto)
        for partition, (start, end) in enumerate(zip(before, after, strict=True)):
            if start < end:
                self._writer.append(partition, self._feed.rows(partition, start, end))
        self.appended = upto
