"""What is wrong with this node, part by part, and when new data is refused for the disk's sake."""

from typing import Final

from coordinator.log.journal import Journal
from coordinator.runtime.environment import EmitEvent, Environment


class Health:
    """The node's known problems. A part without one is well.

    Attributes:
        problems: Part ("compaction", "storage") -> what is wrong with it, for the operator.
    """

    def __init__(self, emit_event: EmitEvent) -> None:
        self._emit_event = emit_event
        self.problems: dict[str, str] = {}

    def report(self, part: str, problem: str | None) -> None:
        """Note how *part* is; None is well. What changes is told as an event, once."""
        if self.problems.get(part) == problem:
            return
        if problem is None:
            del self.problems[part]
            self._emit_event("health.recovered", {"part": part})
        else:
            self.problems[part] = problem
            self._emit_event("health.problem", {"part": part, "problem": problem})


# A disk that hangs answers no commit, but its clients send the next ones all the same: what waits
# to be written must not grow until the process is killed for its memory.
UNWRITTEN_BYTES_MAX: Final = 256 * 1024 * 1024

_IS_FULL: Final = "the disk's reserve is reached: new offsets are refused"
_IS_SLOW: Final = "the disk does not keep up with what is to be written: new offsets are refused"


class StorageWatch:
    """Looks at the disk and says whether new data must be refused.

    New offsets and new members are, where the disk is nearly full or doesn't keep up.

    Attributes:
        is_full: Whether the disk's reserve was reached at the last look.
        refuses: Whether new data is to be refused, for this or another reason.
    """

    def __init__(
        self,
        journal: Journal,
        health: Health,
        environment: Environment,
        *,
        reserve_bytes: int,
        segment_bytes: int,
    ) -> None:
        """Keep *reserve_bytes* free; if negative, what compactions and a few segments need."""
        self.is_full = False
        self.refuses = False
        self.reserve_bytes = reserve_bytes
        self._journal = journal
        self._health = health
        self._emit_event = environment.emit_event
        self._segment_bytes = segment_bytes
        environment.metrics.update(
            log_unflushed_bytes=lambda: journal.open_bytes,
            disk_free_bytes=journal.directory.free_bytes,
            disk_size_bytes=journal.directory.total_bytes,
        )

    def look(self) -> bool:
        """Look again, tell of a change, and return whether `is_full` is another than before."""
        free = self._journal.directory.free_bytes()
        reserve = self.reserve_bytes
        if reserve < 0:
            live = self._journal.live_bytes + 2 * self._segment_bytes
            reserve = max(self._journal.directory.total_bytes() // 20, live)
        was_full, self.is_full = self.is_full, free < reserve
        is_slow = self._journal.open_bytes > UNWRITTEN_BYTES_MAX
        self.refuses = self.is_full or is_slow
        self._health.report("storage", _IS_FULL if self.is_full else _IS_SLOW if is_slow else None)
        if was_full == self.is_full:
            return False
        name = "storage.full" if self.is_full else "storage.has_room"
        self._emit_event(name, {"free_bytes": free, "reserve_bytes": reserve})
        return True
