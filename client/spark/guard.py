"""A loud warning where a stateful query reads a coordinated source.

State and watermark live in a query's own checkpoint and don't move with a partition, so after a
rebalance such a query is wrong without any error. A source can't see the plan of its query; the
progress of the first batch is the earliest place that tells.
"""

# ruff: noqa: N802 - Spark chose the names of the callbacks.

import logging
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from client.spark.offsets import reader_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)


class StatefulGuard(StreamingQueryListener):
    """Logs an error, once per run, for a stateful query over a coordinated source."""

    def __init__(self) -> None:
        super().__init__()
        self._warned: set[str] = set()

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """The plan is not known here."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Look for state operators."""
        progress = event.progress
        run_id = str(progress.runId)
        if run_id in self._warned or not progress.stateOperators:
            return
        if any(reader_of(source.endOffset) for source in progress.sources):
            self._warned.add(run_id)
            logger.error(
                "query %s (run %s) is stateful (%s) and reads a coordinated source: its state "
                "does not move with a partition, so its results are WRONG after a rebalance. "
                "Write the source to a table, and run one stateful query over that table",
                progress.name or progress.id,
                run_id,
                ", ".join(str(operator.operatorName) for operator in progress.stateOperators),
            )

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """No news."""

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Forget the run."""
        self._warned.discard(str(event.runId))
