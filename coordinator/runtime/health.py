"""What is wrong with this node, part by part, and when new data is refused for the disk's sake."""

import sys
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from coordinator.log.journal import Journal
from coordinator.runtime.environment import Environment


class Health:
    """The node's known problems. A part without one is well.

    Attributes:
        log_part: What the logs are written to, `DISK` or `ZOOKEEPER`.
        problems: Part ("compaction", "storage") -> what is wrong with it, for the operator.
        since_ms: Since when the part has had a problem, whichever; wall clock.
    """

    def __init__(self, environment: Environment, log_part: str) -> None:
        self.log_part = log_part
        self._emit_event = environment.emit_event
        self._wall_clock_ms = environment.wall_clock_ms
        self.problems: dict[str, str] = {}
        self.since_ms: dict[str, int] = {}

    def report(self, part: str, problem: str | None) -> None:
        """Note how *part* is; None is well. What changes is told as an event, once."""
        if self.problems.get(part) == problem:
            return
        if problem is None:
            del self.problems[part], self.since_ms[part]
            self._emit_event("health.recovered", {"part": part})
        else:
            self.problems[part] = problem
            self.since_ms.setdefault(part, self._wall_clock_ms())
            self._emit_event("health.problem", {"part": part, "problem": problem})


LOADING: Final = "loading"
DISK: Final = "disk"
ZOOKEEPER: Final = "zookeeper"
STORAGE: Final = "storage"
COMPACTION: Final = "compaction"
STOPPING: Final = "stopping"
# A node has the second, or in a cluster the third one.
PARTS: Final = (LOADING, DISK, ZOOKEEPER, STORAGE, COMPACTION, STOPPING)


class Check(NamedTuple):
    """How one part is.

    Attributes:
        reason: What is wrong, for the operator; None if it is well.
        since_ms: Since when, by the wall clock; None if it is well.
        done: How far the load is, from 0 to 1; None if none goes on.
    """

    part: str
    ok: bool
    reason: str | None = None
    since_ms: int | None = None
    done: float | None = None


class Load(NamedTuple):
    """A load that goes on, or has yet to begin: what there is to read, and what of it is done."""

    done_bytes: int
    total_bytes: int
    entries: int
    partitions: int
    partitions_served: int
    age_ms: int  # For how long it has been going on.

    def done(self) -> float:
        """Return the share that is done, in partitions as long as nobody knows how much it is."""
        if self.total_bytes:
            return self.done_bytes / self.total_bytes
        return self.partitions_served / self.partitions

    def __str__(self) -> str:
        percent = int(100 * self.done())
        served = f"{self.partitions_served} of {self.partitions} partitions"
        return f"{percent} % of the log: {served}, {self.entries:,} entries"


class Checks:
    """Looks at each part of a node, for whoever restarts it, or sends it traffic."""

    def __init__(
        self,
        health: Health,
        environment: Environment,
        *,
        commit_timeout_ms: int,
        load: Callable[[], Load | None],
        is_draining: Callable[[], bool],
    ) -> None:
        """Make it; *load* returns None once everything is served."""
        self._health = health
        self._telemetry = environment.telemetry
        self._clock_s = environment.clock_s
        self._wall_clock_ms = environment.wall_clock_ms
        self._commit_timeout_ms = commit_timeout_ms
        self._load = load
        self._is_draining = is_draining
        self._since_ms: dict[str, int] = {}  # Of what is no problem that was reported.

    def look(self) -> tuple[Check, ...]:
        """Return how each of `PARTS` is now that this node has."""
        return (
            self._loading(),
            self._writing(),
            self._reported(STORAGE),
            self._reported(COMPACTION),
            self._noted(STOPPING, "it was told to stop" if self._is_draining() else None),
        )

    def _loading(self) -> Check:
        # A node that stops serves nothing any more, which is no load.
        load = None if self._is_draining() else self._load()
        if LOADING in self._health.problems:
            return self._reported(LOADING)
        if load is None:
            return self._noted(LOADING, None)
        return self._noted(LOADING, str(load), load.age_ms)._replace(done=load.done())

    def _writing(self) -> Check:
        part = self._health.log_part
        began_s = self._telemetry.flush_began_s()
        if part in self._health.problems or began_s is None:
            return self._reported(part)
        took_ms = int((self._clock_s() - began_s) * 1000)
        if took_ms <= self._commit_timeout_ms:
            return Check(part, ok=True)
        reason = (
            f"a flush has been on its way for {took_ms / 1000:.1f} s, longer than "
            f"offsets.commit.timeout.ms ({self._commit_timeout_ms})"
        )
        return Check(part, ok=False, reason=reason, since_ms=self._wall_clock_ms() - took_ms)

    def _reported(self, part: str) -> Check:
        problem = self._health.problems.get(part)
        return Check(part, problem is None, problem, self._health.since_ms.get(part))

    def _noted(self, part: str, reason: str | None, age_ms: int = 0) -> Check:
        """Return the check of a *part* of which nobody else notes since when it is as it is."""
        if reason is None:
            self._since_ms.pop(part, None)
            return Check(part, ok=True)
        since_ms = self._since_ms.setdefault(part, self._wall_clock_ms() - age_ms)
        return Check(part, ok=False, reason=reason, since_ms=since_ms)


def status_of(checks: tuple[Check, ...]) -> str:
    """Return "ready", "loading", "unhealthy" or "stopping": all of *checks* in one word."""
    wrong = {check.part: check for check in checks if not check.ok}
    if STOPPING in wrong:
        return "stopping"
    loading = wrong.pop(LOADING, None)
    if wrong or (loading is not None and loading.done is None):
        return "unhealthy"
    return "ready" if loading is None else "loading"


def loaded_share(checks: Iterable[Check]) -> float:
    """Return how far the load is, from 0 to 1; 1 if none goes on."""
    return next((check.done for check in checks if check.done is not None), 1.0)


# A disk that hangs answers no commit, but its clients send the next ones all the same: what waits
# to be written must not grow until the process is killed for its memory.
UNWRITTEN_BYTES_MAX: Final = 256 * 1024 * 1024

_IS_FULL: Final = (
    "the disk's reserve is reached: {reserve} MB of its {total} MB are to stay free "
    "(storage.reserve.bytes is {setting}): new offsets are refused"
)
_OF_ITSELF: Final = (
    "-1: 5 % of the disk, or the log and two segments of offsets.topic.segment.bytes"
)
_IS_LARGE: Final = "the log has reached max.log.bytes: new offsets are refused"
_IS_SLOW: Final = "the disk does not keep up with what is to be written: new offsets are refused"
_IS_EXHAUSTED: Final = "; generations and assignments, too, as half of what was left is used up"


class StorageWatch:
    """Looks at the disk and says what must be refused, as it is nearly full or doesn't keep up.

    First new offsets and new members, so that groups go on for a while. When half of the room
    that is left then is used up, too, all that isn't needed to free some: generations and
    assignments, which may be as large and come as fast as commits.

    Attributes:
        is_full: Whether the disk's reserve was reached at the last look.
        refuses: Whether new data is to be refused, for this or another reason.
        is_exhausted: Whether generations and assignments are to be refused, too.
        alarm_bytes: With so much to be written, look again at once.
    """

    def __init__(
        self,
        journal: Journal,
        health: Health,
        environment: Environment,
        *,
        reserve_bytes: int,
        segment_bytes: int,
        max_log_bytes: int,
    ) -> None:
        """Keep *reserve_bytes* free; if negative, what compactions and a few segments need.

        A log of *max_log_bytes* is as good as a full disk.
        """
        self.is_full = False
        self.refuses = False
        self.is_exhausted = False
        self.alarm_bytes = UNWRITTEN_BYTES_MAX // 2
        self.reserve_bytes = reserve_bytes
        self.max_log_bytes = max_log_bytes
        self._journal = journal
        self._health = health
        self._emit_event = environment.emit_event
        self._segment_bytes = segment_bytes
        self._free_bytes, self._total_bytes = sys.maxsize, 0  # Until the disk was seen once.
        self._reached_bytes = 0  # The reserve, when it was reached.
        self._see_room()
        environment.metrics.update(
            log_unflushed_bytes=lambda: journal.open_bytes,
            disk_free_bytes=lambda: self._free_bytes,
            disk_size_bytes=lambda: self._total_bytes,
            disk_reserve_bytes=self._reserve,
            log_bytes_limit=lambda: self.max_log_bytes,
        )

    def look(self) -> bool:
        """Look again, tell of a change, and return whether `is_full` is another than before."""
        unseen = self._see_room()
        free, reserve = self._free_bytes, self._reserve()
        is_large = self._journal.size_bytes >= self.max_log_bytes
        was_full, self.is_full = self.is_full, free < reserve or is_large
        if self.is_full and not was_full:
            self._reached_bytes = reserve
        unwritten = self._journal.open_bytes
        is_slow = unwritten > UNWRITTEN_BYTES_MAX // 2
        self.refuses = self.is_full or is_slow
        self.is_exhausted = free < reserve // 2 or unwritten > UNWRITTEN_BYTES_MAX
        self.alarm_bytes = UNWRITTEN_BYTES_MAX if is_slow else UNWRITTEN_BYTES_MAX // 2
        problem = self._why_full() if self.is_full else _IS_SLOW if is_slow else unseen
        if is_large:
            problem = _IS_LARGE
        if problem is not None and self.is_exhausted:
            problem += _IS_EXHAUSTED
        self._health.report(STORAGE, problem)
        if was_full == self.is_full:
            return False
        name = "storage.full" if self.is_full else "storage.has_room"
        self._emit_event(name, {"free_bytes": free, "reserve_bytes": reserve})
        return True

    def _why_full(self) -> str:
        """Say it with the reserve of when that began: each other text is one more line of log."""
        is_set = self.reserve_bytes >= 0
        return _IS_FULL.format(
            reserve=(self.reserve_bytes if is_set else self._reached_bytes) // 10**6,
            total=self._total_bytes // 10**6,
            setting=self.reserve_bytes if is_set else _OF_ITSELF,
        )

    def _reserve(self) -> int:
        if self.reserve_bytes >= 0:
            return self.reserve_bytes
        live = self._journal.live_bytes + 2 * self._segment_bytes
        return max(self._total_bytes // 20, live)

    def _see_room(self) -> str | None:
        """Note the room on the disk; if it can't be seen, leave what is noted, and say why."""
        directory = self._journal.directory
        try:
            self._free_bytes, self._total_bytes = directory.free_bytes(), directory.total_bytes()
        except OSError as exc:
            return f"the room on the disk can't be seen ({exc}): the last look stands"
        return None
