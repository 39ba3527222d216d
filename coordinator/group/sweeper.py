"""When which work on all groups is done: changes of topics at once, expiry now and then."""

from collections.abc import Iterable, Iterator

from coordinator.group import topics
from coordinator.group.core import Core
from coordinator.group.effects import Now, Outcome
from coordinator.group.expiry import ExpiryClock, expired
from coordinator.group.sweep import Sweep
from coordinator.group.timers import Timer, TimerKind


class Sweeper:
    """One job at a time, a slice whenever its timer is due."""

    __slots__ = (
        "_core",
        "_expiry_clock",
        "_expiry_due_ms",
        "_job",
        "_must_tell",
        "_purged",
        "_purging",
        "_sweep",
        "_timer",
        "_to_purge",
    )

    def __init__(self, core: Core) -> None:
        self._core = core
        self._timer = Timer(TimerKind.SWEEP, None)
        self._sweep = Sweep()
        self._expiry_clock: ExpiryClock | None = None
        self._job: Iterator[None] | None = None
        self._purged: list[str] = []
        self.stop()

    def start(self, now: Now) -> None:
        """Begin to serve a shard that was just loaded: the first expiry is an interval away."""
        self._expiry_clock = ExpiryClock(now.wall_ms, now.mono_ms)
        # What is written from here on is never older than that clock says.
        self._core.wall_offset_ms = now.wall_ms - now.mono_ms
        interval_ms = self._core.config.offsets_retention_check_interval_ms
        self._expiry_due_ms = now.mono_ms + interval_ms
        # What changed after a group's last record: it may take long to find out.
        self._must_tell = self._core.registry.version > 0
        self._arm(now)

    def stop(self) -> None:
        """Forget everything, as the shard's groups are forgotten."""
        self._job = None
        self._expiry_clock = None
        self._expiry_due_ms = 0
        self._must_tell = False  # The groups of changes that no job has begun to tell.
        self._to_purge: dict[str, None] = {}  # Deleted topics that no job looks for yet.
        self._purging: frozenset[str] = frozenset()
        self._purged = []
        self._timer.deadline_ms = self._timer.armed_ms = None

    def topics_changed(self, deleted: Iterable[str], now: Now) -> None:
        """Tell the groups soon, and then remove what they have committed for *deleted* topics."""
        self._to_purge.update(dict.fromkeys(deleted))
        if not self._must_tell:  # Changes may come by the thousand.
            self._must_tell = True
            if self._expiry_clock is not None:
                self._arm(now)

    def take_purged(self) -> list[str]:
        """Return the deleted topics that no group has offsets of any more, each once."""
        purged, self._purged = self._purged, []
        return purged

    def slice(self, now: Now) -> list[Outcome]:
        """Do one slice, and be due again: at once while there is more."""
        if self._job is None:
            self._job = self._next_job(now)
        outcomes = []
        if self._job is not None:
            if self._sweep.run(self._job, now):
                self._job = None
                self._purged += sorted(self._purging)
                self._purging = frozenset()
            outcomes = self._sweep.outcomes
        self._arm(now)
        return outcomes

    def _next_job(self, now: Now) -> Iterator[None] | None:
        if self._must_tell:
            self._must_tell = False
            self._purging = frozenset(self._to_purge)
            self._to_purge = {}
            return topics.changed(self._core, self._purging, self._sweep)
        if self._expiry_clock is not None and now.mono_ms >= self._expiry_due_ms:
            interval_ms = self._core.config.offsets_retention_check_interval_ms
            self._expiry_due_ms = now.mono_ms + interval_ms
            return expired(self._core, self._expiry_clock, self._sweep)
        return None

    def _arm(self, now: Now) -> None:
        is_busy = self._job is not None or self._must_tell
        at_ms = now.mono_ms if is_busy else max(self._expiry_due_ms, now.mono_ms)
        self._core.timers.arm(self._timer, at_ms)
