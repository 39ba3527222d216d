"""What a log could not do lately, and for how long: what passes by itself, and what doesn't."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from client.spark.errors import LogFailed
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

# How long a log may show less than it did before until that counts as loss: a listing on a
# network file system lags by as much as its attribute cache, usually up to a minute.
LAG_MAX_S: Final = 90.0

# Pauses between two tries of a call that fails; other partitions go on meanwhile.
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 5.0

# A call may be made seldom, as between two long batches: what failed so few times may have
# worked in between.
TRIES_MIN: Final = 3


@dataclass
class _Failing:
    """A call that fails, for now."""

    since_s: float
    retry_at_s: float
    pause_s: float
    error: str = ""
    tries: int = 0


class Failures:
    """The calls that fail, by their names.

    Args:
        log: names the log in messages.
        timeout_s: how long a call may fail in a row.
        clock: a monotonic clock in seconds.

    """

    def __init__(self, log: str, timeout_s: float, clock: Callable[[], float]) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._clock = clock
        self._failing: dict[str, _Failing] = {}

    def __bool__(self) -> bool:
        """Say whether any call fails."""
        return bool(self._failing)

    def resting(self, what: str) -> str | None:
        """Return the error of a call that is not to be made yet."""
        failing = self._failing.get(what)
        return failing.error if failing and self._clock() < failing.retry_at_s else None

    def forget(self, calls: Iterable[str]) -> None:
        """Forget calls that worked, or that are not made any more."""
        for what in calls:
            self._failing.pop(what, None)

    def note(self, what: str, why: str, cause: Exception) -> str:
        """Note that a call failed; return the words for it.

        Raises:
            LogFailed: it has for too long.

        """
        now_s = self._clock()
        failing = self._failing.setdefault(what, _Failing(now_s, now_s, RETRY_MIN_S))
        failing.tries += 1
        for_s = now_s - failing.since_s
        if for_s >= self._timeout_s and failing.tries >= TRIES_MIN:
            raise LogFailed(
                f"{what} of {self._log} has failed for {for_s:.1f} s, longer than option "
                f"'logTimeout' allows ({self._timeout_s:g} s): {why}"
            ) from cause
        if not failing.error:
            logger.warning("%s of %s failed, trying again: %s", what, self._log, why)
        failing.error = f"{what} of {self._log} failed: {why}"
        failing.retry_at_s = now_s + failing.pause_s
        failing.pause_s = min(failing.pause_s * 2, RETRY_MAX_S)
        return failing.error


class Missing:
    """The partitions that a log had, and doesn't show now.

    Args:
        log: names the log in messages.
        clock: a monotonic clock in seconds.

    """

    def __init__(self, log: str, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._since_s: dict[TopicPartition, float] = {}

    def __bool__(self) -> bool:
        """Say whether any is."""
        return bool(self._since_s)

    def seen(self, partitions: Iterable[TopicPartition]) -> None:
        """Note partitions that are there: a later gap is another one."""
        for tp in partitions:
            self._since_s.pop(tp, None)

    def for_long(self, gone: Collection[TopicPartition]) -> bool:
        """Note partitions that are gone; say whether all are for longer than a listing lags."""
        now_s = self._clock()
        if new := [tp for tp in gone if tp not in self._since_s]:
            named = ", ".join(map(str, new))
            logger.warning(
                "%s no longer has %s; waiting up to %g s for it", self._log, named, LAG_MAX_S
            )
            self._since_s |= dict.fromkeys(new, now_s)
        return all(now_s - self._since_s[tp] >= LAG_MAX_S for tp in gone)
