"""The driver's side of the coordinated source: queries that can't be right are told to end.

A source can't see the plan of its query, nor which other sources that has. `QueryGuard`, in the
driver's process, can, and leaves a note in `Refusals`, with which a reader ends the query.

- Two readers of one group. Spark asks the sources of a query one after the other, and in a
  rebalance each member waits for the others, so each of the two would wait for the other one until
  the group removes it. The plan of the query tells of both when the query starts, before Spark
  makes its readers, so they end before they join.
- State. State and watermark live in a query's own checkpoint and don't move with a partition, so
  after a rebalance such a query is wrong without any error. The progress of the first batch is the
  earliest place that tells for certain. The reader ends on its next trigger: before the second
  batch, or after a few where they follow each other at once.
"""

import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from client.spark.source.reader_options import ReaderOptions, parse_options
from client.spark.source.stream_offsets import read_end

# ruff: noqa: N802 - Spark chose the names of these methods.

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)


# Returns the options of each source of a query that is a reader of a group, by the query's id.
Sources = Callable[[str], Sequence[Mapping[str, str]]]


class Refusals:
    """Notes from the driver's process to reader processes: the reason to end their query.

    Both are on one machine, as children of one user, but share no memory and no pipe. So the reason
    is left in a file of a name that both know, in a folder that only this user can write to.

    Args:
        folder: where they are; by default one per user beside other temporary files.

    """

    def __init__(self, folder: Path | None = None) -> None:
        uid = os.getuid()
        self._folder = folder or Path(tempfile.gettempdir()) / f"group-coordinator-{uid}"

    def refuse(self, name: str, reason: str) -> None:
        """Leave a reason under this name.

        Raises:
            OSError: the folder can't be written to.

        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        building = self._folder / f".{name}"
        building.write_text(reason, "utf-8")
        building.rename(self._folder / name)

    def reason(self, name: str) -> str | None:
        """Return the reason under this name, if there is one."""
        try:
            if self._folder.stat().st_uid != os.getuid():
                return None  # Somebody else's folder under our name.
            return (self._folder / name).read_text("utf-8")
        except (FileNotFoundError, PermissionError):
            return None

    def withdraw(self, name: str) -> None:
        """Remove the reason under this name."""
        with suppress(OSError):
            (self._folder / name).unlink()


def readers_note(driver: str, options: ReaderOptions) -> str:
    """Return the name of the note for the readers of one group that a driver starts now.

    A reader doesn't know which query it is of, so it takes the note for its own if its first call
    comes while the refused query lives.
    """
    about = f"{driver}\n{options.coordinator}\n{options.group}"
    return hashlib.sha256(about.encode()).hexdigest()


def sources_of(
    spark: "SparkSession", format_name: str, query_id: str
) -> Sequence[Mapping[str, str]]:
    """Return the options of each source of a format that a query has; each is a reader.

    Parts of a query that use one DataFrame share a source. A join of a DataFrame with itself has
    two, as Spark tells the columns apart.
    """
    # The public calls show no plan.
    query = spark._jsparkSession.streams().get(query_id)  # noqa: SLF001
    leaves = query.streamingQuery().analyzedPlan().collectLeaves()
    relations = {leaves.apply(index) for index in range(leaves.size())}
    return [
        dict(relation.extraOptions().asCaseSensitiveMap())
        for relation in relations
        if relation.getClass().getSimpleName() == "StreamingRelationV2"
        if relation.sourceName().lower() == format_name
    ]


class QueryGuard(StreamingQueryListener):
    """Ends queries over coordinated sources that can't be right, or warns as ``onStateful`` says.

    Args:
        driver: names the sources that this guard looks after, in notes to their readers.
        sources: returns the coordinated sources of a query.
        refusals: how the readers are told.

    """

    def __init__(self, driver: str, sources: Sources, refusals: Refusals | None = None) -> None:
        super().__init__()
        self._driver = driver
        self._sources = sources
        self._refusals = refusals or Refusals()
        self._seen: dict[str, set[str]] = {}  # The readers that were dealt with, per run.
        self._notes: dict[str, set[str]] = {}  # Names of the notes for readers, per run.
        # A query starts in a thread of its own; the other events come in another one.
        self._lock = threading.Lock()

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Look for two readers of one group; Spark makes the readers after this."""
        readers: dict[str, list[ReaderOptions]] = {}
        for options in map(parse_options, self._sources(str(event.id))):
            readers.setdefault(readers_note(self._driver, options), []).append(options)
        for note, same in readers.items():
            if len(same) > 1:
                reason = _several(str(event.name or event.id), same)
                logger.error("%s (run %s)", reason, event.runId)
                self._refuse(str(event.runId), note, reason)

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Look for state operators."""
        progress = event.progress
        if not progress.stateOperators:
            return
        run_id = str(progress.runId)
        # The end of a replayed batch names an earlier process; the next one names ours.
        seen = self._seen.setdefault(run_id, set())
        operators = ", ".join(str(operator.operatorName) for operator in progress.stateOperators)
        for end in (read_end(source.endOffset) for source in progress.sources):
            if end is None or end.reader is None or end.reader.client_id in seen:
                continue
            reason = (
                f"query {progress.name or progress.id} is stateful ({operators}) and reads a "
                "coordinated source: its state does not move with a partition, so its results are "
                "WRONG after a rebalance. Write the source to a table, and run one stateful query "
                "over that table (or set option 'onStateful' to 'warn')"
            )
            if not seen:
                logger.error("%s (run %s)", reason, run_id)
            seen.add(end.reader.client_id)
            if end.stateful == "fail":
                self._refuse(run_id, end.reader.client_id, reason)

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """No news."""

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Forget the run, and take back the notes that no other run needs."""
        run_id = str(event.runId)
        self._seen.pop(run_id, None)
        with self._lock:
            left = self._notes.pop(run_id, set())
            for name in left.difference(*self._notes.values()):
                self._refusals.withdraw(name)

    def _refuse(self, run_id: str, name: str, reason: str) -> None:
        with self._lock:
            self._notes.setdefault(run_id, set()).add(name)
            try:
                self._refusals.refuse(name, reason)
            except OSError as error:
                logger.error("the query can't be told to end, stop it yourself: %s", error)  # noqa: TRY400 - the error before says all.


def _several(query: str, readers: Sequence[ReaderOptions]) -> str:
    return (
        f"query {query} has {len(readers)} readers of group {readers[0].group!r}: Spark asks one "
        "after the other, and in a rebalance each would wait for the other one. Read all topics of "
        "the group by one load() (option 'topics'), and don't join its DataFrame with itself; or "
        "start a query for each load(), or give each load() a group of its own"
    )
