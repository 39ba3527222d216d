"""Keeps the journals small that this node leads: says when a snapshot is made, and has it made.

Whether one is due is looked at twice a second; a request (CompactLog) overrides it. One is made at
a time, by a child process with a session of its own (`coordinator.cluster.snapshot_child`). The
machine of the journal puts it in its place, and removes what it makes needless.

A child that dies is started again, later and later. Damage in the log isn't tried again: a person
has to look; memory is whole, and groups are served on. Who comes to lead knows of no failure.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

import trio

from coordinator.cluster.effects import Effect
from coordinator.cluster.engine import Snapshot
from coordinator.cluster.journal import ReplicatedJournal, Role
from coordinator.runtime.calls import Call
from coordinator.runtime.children import CompactionFailed
from coordinator.runtime.compactor import PART, REQUESTS_WAITING_MAX, retry_pause_s
from coordinator.runtime.environment import Environment
from coordinator.runtime.health import Health
from protocol.errors import ErrorCode
from protocol.messages import CompactLogResponse

# Returns the snapshot of a journal under a name, or raises CompactionFailed.
RunChild = Callable[[int, str], Awaitable[Snapshot]]

# Where there is no room, whatever may give some is worth it, but not all of the time.
WHEN_FULL_EVERY_S: Final = 10.0
_NEVER_S: Final = float("inf")


class Snapshots(NamedTuple):
    """How a node has snapshots made.

    Attributes:
        run_child: Does the work.
        tail_bytes: With so much of a journal behind its snapshot, another one is due.
        tail_entries: Likewise.
    """

    run_child: RunChild
    tail_bytes: int
    tail_entries: int


class _Failure(NamedTuple):
    """That the last tries came to nothing.

    Attributes:
        retry_at_s: Monotonic.
    """

    in_a_row: int
    retry_at_s: float
    reason: str


class Snapshotter:
    """The task of a node that has snapshots made."""

    def __init__(
        self,
        journals: Sequence[ReplicatedJournal],
        how: Snapshots,
        environment: Environment,
        health: Health,
        do: Callable[[Iterable[Effect]], None],
    ) -> None:
        """Make it; *do* does what the machines say."""
        self._journals = journals
        self._how = how
        self._health = health
        self._do = do
        self._emit_event = environment.emit_event
        self._wake = trio.Event()
        self._interruptible = trio.CancelScope()
        self._stopped: trio.Event | None = None
        self._is_stopping = False
        self._is_full = False
        self._failures: dict[int, _Failure] = {}
        self._made_at_s: dict[int, float] = {}
        self._requests: list[Call] = []
        self._asked: list[Call] = []  # Whom the snapshots that are made answer.
        # Of the snapshot that is being made.
        self._child = trio.CancelScope()
        self._is_over = trio.Event()
        self._is_running = False
        self._made = self._failed_in_all = self._removed_bytes = self._last_duration_ms = 0
        environment.metrics.update(
            log_live_bytes=lambda: self._live_bytes,
            compactions_total=lambda: self._made,
            compaction_failures_total=lambda: self._failed_in_all,
            compaction_removed_bytes_total=lambda: self._removed_bytes,
            compaction_running=lambda: int(self._is_running),
            compaction_last_duration_ms=lambda: self._last_duration_ms,
        )

    @property
    def _live_bytes(self) -> int:
        return sum(journal.snapshot.size_bytes for journal in self._journals)

    def look(self, *, is_full: bool) -> None:
        """See whether a snapshot is due; *is_full*: there is no room for new data."""
        self._is_full = is_full
        for number in tuple(self._failures):
            if not self._journals[number].is_leading:
                del self._failures[number]
        self._report()
        self._wake.set()

    def submit(self, call: Call) -> None:
        """Make one of each journal that is led here, and then answer *call*, a CompactLog."""
        if len(self._requests) >= REQUESTS_WAITING_MAX:
            call.fail(ErrorCode.QUOTA_EXCEEDED, -1)
            return
        self._requests.append(call)
        self._wake.set()

    def ended(self) -> None:
        """The snapshot that is being made is installed, or never will be."""
        self._is_over.set()
        self._child.cancel()

    async def stop(self) -> None:
        """Stop for good. The next leader removes what a child has left."""
        self._is_stopping = True
        self._interruptible.cancel()
        if self._stopped is not None:
            await self._stopped.wait()
        self._asked += self._requests
        self._resolve(ErrorCode.NOT_COORDINATOR, None)

    async def run(self) -> None:
        """Have snapshots made whenever they are due, until `stop`."""
        self._stopped = trio.Event()
        try:
            with self._interruptible:
                while not self._is_stopping:
                    self._wake = trio.Event()
                    await self._do_next()
        finally:
            self._stopped.set()

    async def _do_next(self) -> None:
        if self._requests:
            await self._make_all()
            return
        for journal in self._journals:
            if self._is_due(journal) and (name := journal.begin_snapshot()) is not None:
                await self._try(journal, name)
                return
        # What is due already waits for its journal, which has no time for it: look again later.
        now_s = trio.current_time()
        retries_s = [f.retry_at_s for f in self._failures.values() if f.retry_at_s > now_s]
        with trio.move_on_at(min(retries_s, default=_NEVER_S)):
            await self._wake.wait()

    def _is_due(self, journal: ReplicatedJournal) -> bool:
        if journal.role is not Role.LEADING:
            return False
        now_s = trio.current_time()
        failure = self._failures.get(journal.number)
        if failure is not None:
            return now_s >= failure.retry_at_s
        size_bytes, entries = journal.tail_size
        if size_bytes >= self._how.tail_bytes or entries >= self._how.tail_entries:
            return True
        not_before_s = self._made_at_s.get(journal.number, -_NEVER_S) + WHEN_FULL_EVERY_S
        return self._is_full and entries > 0 and now_s >= not_before_s

    async def _make_all(self) -> None:
        """Make one of each journal for who has asked."""
        self._asked, self._requests = self._requests, []
        began_s, before = trio.current_time(), self._removed_bytes
        for journal in self._journals:
            name = await self._begun(journal)
            if name is not None and (reason := await self._try(journal, name)) is not None:
                self._resolve(ErrorCode.OUTCOME_UNKNOWN, reason)
                return
        duration_ms = int((trio.current_time() - began_s) * 1000)
        log_bytes = sum(journal.state_bytes for journal in self._journals)
        sizes = (self._removed_bytes - before, log_bytes, self._live_bytes, duration_ms)
        self._resolve(ErrorCode.NONE, None, sizes)

    async def _begun(self, journal: ReplicatedJournal) -> str | None:
        """Return the name of a snapshot, once the journal has time for one; None: it isn't led."""
        while journal.role is Role.LEADING:
            name = journal.begin_snapshot()
            if name is not None:
                return name
            self._wake = trio.Event()
            await self._wake.wait()
        return None

    async def _try(self, journal: ReplicatedJournal, name: str) -> str | None:
        """Make one; return why it failed, if it did."""
        try:
            await self._make(journal, name)
        except CompactionFailed as exc:
            self._do(journal.abandon_snapshot())
            self._failed(journal.number, exc)
            return str(exc)
        # Also if nothing came of it, as the newest one has all that there is.
        self._failures.pop(journal.number, None)
        self._report()
        return None

    async def _make(self, journal: ReplicatedJournal, name: str) -> None:
        number, began_s, before_bytes = journal.number, trio.current_time(), journal.state_bytes
        fields = {"clean_bytes": journal.snapshot.size_bytes, "dirty_bytes": journal.tail_size[0]}
        self._emit_event("compaction.started", {"journal": number, **fields})
        self._is_over = trio.Event()
        snapshot = None
        self._is_running = True
        try:
            with trio.CancelScope() as self._child:
                snapshot = await self._how.run_child(number, name)
            if snapshot is not None:
                self._do(journal.install(snapshot))
                await self._is_over.wait()
        finally:
            self._is_running = False
        if journal.snapshot.name == name:  # Else another node leads, and makes its own.
            duration_ms = int((trio.current_time() - began_s) * 1000)
            # A snapshot of little may be larger than that, and a counter never goes back.
            removed_bytes = max(0, before_bytes - journal.state_bytes)
            self._succeeded(number, removed_bytes, duration_ms)

    # --- how it went --------------------------------------------------------------------

    def _succeeded(self, number: int, removed_bytes: int, duration_ms: int) -> None:
        self._made += 1
        self._removed_bytes += removed_bytes
        self._last_duration_ms = duration_ms
        self._made_at_s[number] = trio.current_time()
        self._emit_event(
            "compaction.finished",
            {
                "journal": number,
                "removed_bytes": removed_bytes,
                "log_bytes": self._journals[number].state_bytes,
                "duration_ms": duration_ms,
            },
        )

    def _failed(self, number: int, failure: CompactionFailed) -> None:
        self._failed_in_all += 1
        last = self._failures.get(number)
        in_a_row = 1 if last is None else last.in_a_row + 1
        pause_s = _NEVER_S if failure.is_damage else retry_pause_s(in_a_row)
        self._failures[number] = _Failure(in_a_row, trio.current_time() + pause_s, str(failure))
        self._report()
        retry_in_ms = -1 if failure.is_damage else int(pause_s * 1000)
        fields = {"reason": str(failure), "retry_in_ms": retry_in_ms}
        self._emit_event("compaction.failed", {"journal": number, **fields})

    def _report(self) -> None:
        problems = [f"journal {n}: {f.reason}" for n, f in sorted(self._failures.items())]
        self._health.report(PART, problems[0] if problems else None)

    def _resolve(
        self,
        error: ErrorCode,
        message: str | None,
        sizes: tuple[int, int, int, int] = (-1, -1, -1, -1),
    ) -> None:
        asked, self._asked = self._asked, []
        for call in asked:
            call.resolve(CompactLogResponse(error, message, *sizes), -1)
