"""Reports of the log to the coordinator: which topics there are, and where partitions end.

The coordinator can't see the log, and without reports no tool can show the lag of a group. Topics
are registered as observed by a consumer: this bounds no commits, and removes no partitions that
others registered.

All reports are sent by a task in the client's thread. The reader only notes partitions and ends.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Final, NamedTuple

import trio

from client.exceptions import ClientClosed, FatalError
from client.offsets import OffsetAndMetadata
from client.operators import TopicCalls
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition

logger = logging.getLogger(__name__)

# Minimum time between two reports of ends, in seconds; shorter if a commit is about to pass one.
PERIOD_S: Final = 1.0
# Time after which an unchanged end is reported again, in seconds, and the most ends that a report
# repeats. Without repeats a quiet topic looks like one that no reader reads.
REPEAT_S: Final = 60.0
REPEATS_MAX: Final = 1_000
# Pause after a failure, in seconds: lag is not worth load on a coordinator in trouble.
RETRY_S: Final = 10.0


class _Report(NamedTuple):
    end: int
    at_s: float


class EndReporter:
    """Registers topics, reports changed ends, and repeats unchanged ones after `REPEAT_S`.

    Args:
        calls: the calls to the coordinator.

    """

    def __init__(self, calls: TopicCalls) -> None:
        self._calls = calls
        self._counts: dict[str, int] = {}  # Partitions in the log.
        self._registered: dict[str, int] = {}  # Minimum number of partitions in the registry.
        self._ends: Mapping[TopicPartition, int] = {}
        self._reported: dict[TopicPartition, _Report] = {}  # Oldest first.
        # The ends noted at the last report.
        self._seen: Mapping[TopicPartition, int] | None = None
        self._news = trio.Event()
        self._next_report_s = 0.0
        self._is_failing = False

    def note_topics(self, partitions: Mapping[str, Sequence[int]]) -> None:
        """Note the partitions of each topic. Call it in the client's thread.

        They are registered at once: a group that learns of new partitions in another way would
        rebalance a second time.
        """
        counts = {topic: max(listed) + 1 for topic, listed in partitions.items() if listed}
        if counts != self._counts:
            self._counts = counts
            self._news.set()

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Note *ends*, a mapping that must not be changed afterwards. Call it in any thread."""
        self._ends = ends

    def note_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Report ends now if *offsets*, which are committed next, pass the reported ends.

        Else the lag would be unknown until the next report. Call it in the client's thread.
        """
        if self._is_failing:
            return
        for tp, one in offsets.items():
            known = self._reported.get(tp)
            if known is not None and known.end < one.offset:
                self._next_report_s = 0.0
                self._news.set()
                return

    async def run(self) -> None:
        """Send reports until the client closes. Raises nothing."""
        with suppress(ClientClosed):
            while True:
                await self._tell()
                with trio.move_on_at(self._next_report_s):
                    await self._news.wait()

    async def finish(self) -> None:
        """Send the last report now, before the client closes. Raises nothing."""
        self._next_report_s = 0.0
        with suppress(ClientClosed):
            await self._tell()

    async def _tell(self) -> None:
        self._news = trio.Event()
        try:
            await self._register()
            if trio.current_time() >= self._next_report_s:
                self._next_report_s = trio.current_time() + PERIOD_S
                await self._report()
        except ClientClosed:
            raise
        except Exception as error:  # noqa: BLE001 - else it would end the membership.
            self._next_report_s = trio.current_time() + RETRY_S
            if not self._is_failing:
                logger.warning("ends are not reported, so no lag is shown; trying again: %s", error)
            self._is_failing = True
            return
        if self._is_failing:
            logger.info("ends are reported again")
            self._is_failing = False

    async def _register(self) -> None:
        wanted = {t: n for t, n in self._counts.items() if self._registered.get(t, 0) < n}
        if not wanted:
            return
        await self._calls.register_topics(wanted, observed=True)
        self._registered |= wanted

    async def _report(self, *, again: bool = False) -> None:
        ends = self._ends
        changed = {
            tp: end
            for tp, end in ends.items()
            if ((known := self._reported.get(tp)) is None or known.end != end)
            and tp.partition < self._registered.get(tp.topic, 0)
        }
        if ends is not self._seen:
            changed |= self._repeats(ends)
        if not changed:
            return
        try:
            await self._calls.report_end_offsets(changed)
        except FatalError as error:
            if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # The registry was emptied, or a topic deleted: register and report all again.
            self._registered, self._reported = {}, {}
            if again:
                raise
            await self._register()
            await self._report(again=True)
            return
        self._seen = ends
        now_s = trio.current_time()
        for tp, end in changed.items():
            self._reported.pop(tp, None)  # Moves the entry to the end of the order.
            self._reported[tp] = _Report(end, now_s)

    def _repeats(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return ends last reported `REPEAT_S` ago or earlier; forget those no longer in *ends*."""
        due_s = trio.current_time() - REPEAT_S
        due = takewhile(lambda item: item[1].at_s <= due_s, self._reported.items())
        repeats = {}
        for one, _ in list(islice(due, REPEATS_MAX)):
            if one not in ends:
                del self._reported[one]
            else:
                repeats[one] = ends[one]
        return repeats
