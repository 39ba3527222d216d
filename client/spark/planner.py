"""What comes next for all owned partitions: the log is asked, the rules of `positions` applied.

`Planner` is the half of a trigger that looks at the log. It remembers what the rules need from
one trigger to the next: since when a log ends too early, and whose turn it is in a batch of
bounded size.
"""

import logging
from collections.abc import Callable, Mapping

from client.exceptions import RetriableError
from client.spark.admission import Admission
from client.spark.log_calls import LogCalls
from client.spark.log_failures import LAG_MAX_S
from client.spark.options import ReaderOptions
from client.spark.positions import (
    Finished,
    Limits,
    Position,
    Step,
    hold_partition,
    plan_partition,
)
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)


class Planner:
    """Plans the next range of each partition.

    Args:
        options: the checked options of the stream.
        log: where the rows are.
        clock: a monotonic clock in seconds.

    """

    def __init__(self, options: ReaderOptions, log: LogCalls, clock: Callable[[], float]) -> None:
        self.ends: dict[TopicPartition, int] = {}  # The log's ends as last seen.
        self._log = log
        self._clock = clock
        self._admission = Admission(options.max_rows_per_batch)
        self._waiting_since_s: dict[TopicPartition, float] = {}

    def plan(
        self,
        positions: Mapping[TopicPartition, Position],
        finished: Mapping[TopicPartition, Finished],
        limits: Limits,
    ) -> dict[TopicPartition, Step]:
        """Return a step for each partition.

        A partition whose log can't be asked now is held: what is finished is committed, and
        nothing new starts.

        Raises:
            DataLossError: rows that should come next are gone and that is to fail.
            LogFailed: the log fails for good, or for too long.

        """
        steps: dict[TopicPartition, Step] = {}
        self.ends = {}
        self._waiting_since_s = waiting = {
            tp: since_s for tp, since_s in self._waiting_since_s.items() if tp in positions
        }
        views = self._log.view(positions)
        for tp, position in positions.items():
            view = views[tp]
            if isinstance(view, RetriableError):
                steps[tp] = hold_partition(position, finished.get(tp), str(view))
                continue
            self.ends[tp] = view.end
            if tp in waiting:
                view = view._replace(lag_over=self._lag_over(tp))
            steps[tp] = step = plan_partition(tp, position, finished.get(tp), view, limits)
            if step.waiting or tp in waiting:
                self._note_waiting(tp, step)
        return self._admission.admit(steps, positions)

    def started(self, steps: Mapping[TopicPartition, Step]) -> None:
        """Note that the ranges of these steps may start."""
        self._admission.served(steps)

    def forget(self) -> None:
        """Begin anew with other partitions."""
        self._waiting_since_s.clear()

    def _lag_over(self, tp: TopicPartition) -> bool:
        return self._clock() - self._waiting_since_s[tp] >= LAG_MAX_S

    def _note_waiting(self, tp: TopicPartition, step: Step) -> None:
        if not step.waiting:
            self._waiting_since_s.pop(tp, None)
        elif tp not in self._waiting_since_s:
            logger.warning("%s; waiting up to %g s for it", step.waiting, LAG_MAX_S)
            self._waiting_since_s[tp] = self._clock()
