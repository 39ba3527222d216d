"""What becomes of a stateful query that reads a coordinated source: it ends, with an error.

State and watermark live in a query's own checkpoint and don't move with a partition, so after a
rebalance such a query is wrong without any error. A source can't see the plan of its query, and
Spark has no plan before the first batch; the progress of that batch is the earliest place that
tells, about 0.1 s after it. The guard then leaves a `Refusals` note, with which the reader fails on
its next trigger: before the second batch, or after a few where they follow each other at once.
"""

# ruff: noqa: N802 - Spark chose the names of the callbacks.

import json
import logging
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

from client.spark.offsets import EndOffset, decode_end
from client.spark.refusal import Refusals

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)


class StatefulGuard(StreamingQueryListener):
    """Ends a stateful query over a coordinated source, or only warns, as ``onStateful`` says.

    Args:
        refusals: how the readers are told.

    """

    def __init__(self, refusals: Refusals | None = None) -> None:
        super().__init__()
        self._refusals = refusals or Refusals()
        self._seen: dict[str, set[str]] = {}  # The readers that were dealt with, per run.

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """The plan is not known here."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Look for state operators."""
        progress = event.progress
        if not progress.stateOperators:
            return
        run_id = str(progress.runId)
        # The end of a replayed batch names an earlier process; the next one names ours.
        seen = self._seen.setdefault(run_id, set())
        operators = ", ".join(str(operator.operatorName) for operator in progress.stateOperators)
        for end in map(_coordinated, (source.endOffset for source in progress.sources)):
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
                self._refuse(end.reader.client_id, reason)

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """No news."""

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """Forget the run."""
        self._seen.pop(str(event.runId), None)

    def _refuse(self, client_id: str, reason: str) -> None:
        try:
            self._refusals.refuse(client_id, reason)
        except OSError as error:
            logger.error("the query can't be told to end, stop it yourself: %s", error)  # noqa: TRY400 - the error above says all.


def _coordinated(offset_json: str | None) -> EndOffset | None:
    try:
        return decode_end(json.loads(offset_json or ""))
    except ValueError:
        return None
