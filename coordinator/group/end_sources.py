"""Which clients report the ends of one topic, as far as they disagree. Pure, and soft.

Theory of operation
===================

Topics are known by their names alone. Two sources that have one name overwrite each other's ends,
and no lag of the topic is right.

An end that goes back is not enough to tell: the client may have looked at the source before
another one did, and report after it. But a look that is later than another client's report shows
at least what that report says, if the source is the same. So a topic is watched from the first end
on that goes back: the client that reported it is the low one, and the end before it is the floor.
If another client raises the end again, and the low one then reports an end below the floor, its
look may still be an earlier one: a query reports with the end of a batch the end of the log at the
batch's start, which was close to its report before. If that happens again, the look is later than
the first report of the low client, and the two disagree. If the low client reports more than the
floor, it was only late.

A client that connects anew for each report is known by its id and host.
"""

from typing import Final, NamedTuple

from msgspec import Struct

from coordinator.group.core import Caller

# Time by which a look at a source precedes the client's report before, or the look's own, in ms.
LOOK_MS: Final = 2_000
# Silence after which the low client of a topic is forgotten, in ms.
FORGET_MS: Final = 600_000
# Time between two lines about one topic, and between two lines of the node, in ms.
TOPIC_PERIOD_MS: Final = 600_000
NODE_PERIOD_MS: Final = 1_000
# Topics that are watched; the one that was watched first makes room.
WATCHED_MAX: Final = 1_000

ADVICE: Final = (
    "give each source a topic name of its own, or let the clients of one of them report no ends"
)


class Disagreement(NamedTuple):
    """Two clients that report different ends of one partition, again and again."""

    low: Caller
    high: Caller
    high_end: int


class _Watch(Struct, eq=False):
    partition: int
    low: Caller
    floor: int
    since_ms: int  # When the low client was below the floor, as far as that counts.
    heard_ms: int  # When it went back last.
    is_in_doubt: bool = False  # It did so twice.
    high: Caller | None = None  # The client that has raised the end since.
    told_ms: int | None = None


class EndSources:
    """Finds clients that report two sources under one name."""

    __slots__ = ("_told_ms", "_watched")

    def __init__(self) -> None:
        self._watched: dict[str, _Watch] = {}
        self._told_ms: int | None = None

    def forget(self, topic: str) -> None:
        """Watch *topic* no longer."""
        self._watched.pop(topic, None)

    def changed(
        self, topic: str, partition: int, before: int, end: int, caller: Caller, now_ms: int
    ) -> Disagreement | None:
        """Take note of an *end* that *caller* reports in place of *before*, another one.

        Returns:
            The two clients that disagree, if a line about them is due.
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
