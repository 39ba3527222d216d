"""Detection of clients that report end offsets of one topic from different sources. Pure, soft.

Theory of operation
===================

Topics are identified by their names alone. Two sources with the same topic name overwrite each
other's end offsets, and every lag of the topic is wrong.

A single end that goes back proves nothing: the client may have read its source before another
client did, and reported after it. But if the source is the same, a read that is later than another
client's report returns at least the reported end. A topic is therefore watched from the first end
that goes back: its reporter is the low client, and the end before it is the floor. If another
client raises the end again, and the low client then reports an end below the floor, its read may
still be an earlier one: a query reports, with the end of a batch, the end of the log at the batch's
start, which was close to its previous report. If that happens again, the read is later than the
first report of the low client, and the two clients disagree. If the low client reports more than
the floor, its report was only late.

A client that reconnects for each report is recognized by its id and host.
"""

from typing import Final, NamedTuple

from msgspec import Struct

from coordinator.group.core import Caller

# Maximum time between a read of a source and the client's previous report (or its own), in ms.
LOOK_MS: Final = 2_000
# Time without low reports after which the low client of a topic is forgotten, in ms.
FORGET_MS: Final = 600_000
# Minimum time between two events about one topic, and between two events of the node, in ms.
TOPIC_PERIOD_MS: Final = 600_000
NODE_PERIOD_MS: Final = 1_000
# Maximum number of watched topics; the oldest watch is removed beyond it.
WATCHED_MAX: Final = 1_000

ADVICE: Final = (
    "give each source a topic name of its own, or let the clients of one of them report no ends"
)


class Disagreement(NamedTuple):
    """Two clients that repeatedly report different ends of one partition."""

    low: Caller
    high: Caller
    high_end: int


class _Watch(Struct, eq=False):
    partition: int
    low: Caller
    floor: int
    since_ms: int  # Start of the low client's reports below the floor, as far as they count.
    heard_ms: int  # Time of the latest end that went back.
    is_in_doubt: bool = False  # A second low report has arrived.
    high: Caller | None = None  # The client that has raised the end since.
    told_ms: int | None = None


class EndSources:
    """Finds clients that report two sources under one topic name."""

    __slots__ = ("_told_ms", "_watched")

    def __init__(self) -> None:
        self._watched: dict[str, _Watch] = {}
        self._told_ms: int | None = None

    def forget(self, topic: str) -> None:
        """Stop watching *topic*."""
        self._watched.pop(topic, None)

    def changed(
        self, topic: str, partition: int, before: int, end: int, caller: Caller, now_ms: int
    ) -> Disagreement | None:
        """Note that *caller* reports *end*, which differs from the known end *before*.

        Returns:
            The two disagreeing clients, if an event about them is due.
        """
        watch = self._watched.get(topic)
        if end > before:
            if watch is not None and watch.partition == partition and watch.low != caller:
                watch.high = caller
            return None
        if watch is None or now_ms - watch.heard_ms >= FORGET_MS:
            self._begin(topic, _Watch(partition, caller, before, now_ms, now_ms))
            return None
        if watch.partition != partition or not _is_same(watch.low, caller):
            return None
        watch.heard_ms = now_ms
        if now_ms - watch.since_ms < LOOK_MS:
            return None
        if end >= watch.floor:
            again = _Watch(partition, caller, before, now_ms, now_ms, told_ms=watch.told_ms)
            self._begin(topic, again)
            return None
        high = watch.high
        if high is None or high == caller:
            return None
        was_in_doubt, watch.is_in_doubt = watch.is_in_doubt, True
        watch.since_ms = now_ms
        if not was_in_doubt or not self._is_due(watch, now_ms):
            return None
        self._told_ms = watch.told_ms = now_ms
        return Disagreement(caller, high, before)

    def _begin(self, topic: str, watch: _Watch) -> None:
        self.forget(topic)
        if len(self._watched) >= WATCHED_MAX:
            del self._watched[next(iter(self._watched))]
        self._watched[topic] = watch

    def _is_due(self, watch: _Watch, now_ms: int) -> bool:
        is_told = watch.told_ms is not None and now_ms - watch.told_ms < TOPIC_PERIOD_MS
        return not is_told and (self._told_ms is None or now_ms - self._told_ms >= NODE_PERIOD_MS)


def _is_same(low: Caller, caller: Caller) -> bool:
    names = (low.client_id, low.client_host)
    return low == caller or names == (caller.client_id, caller.client_host)
