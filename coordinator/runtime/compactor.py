"""Keeps the log small: says when it is compacted, watches over the child, and swaps the files.

Whether one is due is looked at after each roll, after the load, and when the disk is nearly full;
a request (CompactLog) overrides it. One compaction runs at a time, its work in a child process.
What is done here is short: two changes of the manifest, each like a roll, between two flushes.
The work itself is in `coordinator.log.compact_child`.

A child that dies is started again, later and later. Damage in the log isn't tried again: a person
has to look; memory is whole, and groups are served on.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import trio

from coordinator.log import compact_child
from coordinator.log.compaction import Compacted, Job, Progress, is_due, live_share
from coordinator.log.errors import LogCorrupt
from coordinator.log.journal import Journal
from coordinator.log.state_files import data_bytes, sealed_sizes
from coordinator.log.swap import Swap, plan, remove_outputs
from coordinator.runtime.calls import Call
from coordinator.runtime.children import CompactionFailed, run_child
from coordinator.runtime.environment import Environment
from coordinator.runtime.health import Health
from protocol.errors import ErrorCode
from protocol.messages import CompactLogResponse

RunChild = Callable[[Job, Callable[[Progress], None]], Awaitable[Compacted]]

PART: Final = "compaction"
REQUESTS_WAITING_MAX: Final = 256
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 300.0
READERS_POLL_S: Final = 0.1
DAY_MS: Final = 86_400_000


class Compaction(NamedTuple):
    """How a node compacts its log.

    Attributes:
        run_child: Does the work.
        is_automatic: Whether it starts by itself; by command it always does.
        min_cleanable_ratio: What of the sealed segments must be new since the last time, 0 to 1.
        delete_retention_ms: For how long tombstones are kept.
    """

    run_child: RunChild
    is_automatic: bool = True
    min_cleanable_ratio: float = 0.5
    delete_retention_ms: int = DAY_MS


class Compactor:
    """The task of a node that compacts. `wake` and `submit` belong to the event loop.

    Attributes:
        looked_at: The manifest that it saw last; `wake` it when the journal has another one.
        spare_bytes: What a compaction leaves free on the disk.
    """

    def __init__(
        self,
        journal: Journal,
        how: Compaction,
        environment: Environment,
        health: Health,
        *,
        segment_bytes: int,
        spare_bytes: int,
    ) -> None:
        self._journal = journal
        self._how = how
        self._segment_bytes = segment_bytes
        self.spare_bytes = spare_bytes
        self._health = health
        self._emit_event = environment.emit_event
        self._wall_clock_ms = environment.wall_clock_ms
        self._run_blocking = environment.run_blocking
        self._run_reading = environment.run_reading
        self._wake = trio.Event()
        self._interruptible = trio.CancelScope()
        self._ended: trio.Event | None = None
        self._has_begun = False
        self.looked_at = journal.manifest
        self._is_stopping = False
        self._is_running = False
        self._is_damaged = False
        self._is_owed = False  # One failed and is to be tried again.
        self._retry_at = float("inf")
        self._storage_is_full = False
        self._requests: list[Call] = []
        self._asked: list[Call] = []  # Whom the compaction that runs answers.
        self._attempts = 0
        self._failures = 0
        self._failures_in_a_row = 0
        self._compactions = 0
        self._removed_bytes = 0
        self._started_s = 0.0
        self._last_duration_ms = 0
        self._progress = Progress(0, 0)
        environment.metrics.update(
            log_bytes=lambda: journal.size_bytes,
            log_live_bytes=lambda: journal.live_bytes,
            log_segments=lambda: len(journal.manifest.segments),
            log_dirty_percent=lambda: _dirty_percent(journal),
            compactions_total=lambda: self._compactions,
            compaction_failures_total=lambda: self._failures,
            compaction_removed_bytes_total=lambda: self._removed_bytes,
            compaction_running=lambda: int(self._is_running),
            compaction_read_bytes=lambda: self._progress.read_bytes,
            compaction_written_bytes=lambda: self._progress.written_bytes,
            compaction_last_duration_ms=lambda: self._last_duration_ms,
        )

    def begin(self) -> None:
        """The log is loaded: begin to look."""
        self._has_begun = True
        self._wake.set()

    def look(self, *, storage_is_full: bool) -> None:
        """See whether a compaction is due, as the disk is filling up, or isn't any more."""
        self._storage_is_full = storage_is_full
        self._wake.set()

    def wake(self) -> None:
        """Look at the log: its manifest isn't the one that was `looked_at` any more."""
        self._wake.set()

    def submit(self, call: Call) -> None:
        """Compact now, all that was written so far, and then answer *call*."""
        if len(self._requests) >= REQUESTS_WAITING_MAX:
            call.fail(ErrorCode.TOO_MANY_REQUESTS, -1)
            return
        self._requests.append(call)
        self._wake.set()

    async def stop(self) -> None:
        """Stop for good: kill the child; a swap that has begun is brought to its end."""
        self._is_stopping = True
        self._interruptible.cancel()
        if self._ended is not None:
            await self._ended.wait()
        self._refuse(ErrorCode.NOT_COORDINATOR, None)

    async def run(self, want_flush: Callable[[], None]) -> None:
        """Compact whenever it is due, until `stop`.

        Args:
            want_flush: Has a flush taken, though nothing may have been appended.

        Raises:
            LogFailed: A swap failed, and with it the journal.
        """
        self._ended = trio.Event()
        try:
            while not self._is_stopping:
                made = None
                with self._until_stopped():
                    made = await self._next(want_flush)
                if made is not None:
                    await self._put_in_place(*made)
            if self._attempts:
                with suppress(OSError):  # The next start does it, too.
                    remove_outputs(self._journal.directory)
        finally:
            self._ended.set()

    def _until_stopped(self) -> trio.CancelScope:
        self._interruptible = trio.CancelScope()
        if self._is_stopping:
            self._interruptible.cancel()
        return self._interruptible

    # --- one compaction -----------------------------------------------------------------

    async def _next(self, want_flush: Callable[[], None]) -> tuple[Job, Compacted, Swap]:
        """Wait until one is due, and return what the child has made."""
        while True:
            self._sleep_from_here()
            if not self._requests and not self._is_due():
                with trio.move_on_at(self._retry_at):
                    await self._wake.wait()
                continue
            self._asked, self._requests = self._requests, []
            if self._asked:
                await self._seal(want_flush)
            job = self._plan()
            if job is None:
                self._answer(0, 0)
                continue
            self._is_running = True
            try:
                return await self._make(job)
            except CompactionFailed as exc:
                await self._failed(exc)
            finally:
                self._is_running = False

    def _sleep_from_here(self) -> None:
        self._wake = trio.Event()
        self.looked_at = self._journal.manifest

    def _is_due(self) -> bool:
        if self._is_owed:
            return trio.current_time() >= self._retry_at
        if not (self._has_begun and self._how.is_automatic) or self._is_damaged:
            return False
        manifest = self._journal.manifest
        if self._storage_is_full and sealed_sizes(manifest.segments).dirty_bytes > 0:
            return True
        return is_due(manifest, self._how.min_cleanable_ratio)

    async def _seal(self, want_flush: Callable[[], None]) -> None:
        """Wait until everything that is durable now is in sealed segments."""
        position = self._journal.want_roll()
        want_flush()
        while True:
            # Before the look: what the flusher's thread does behind it wakes this task.
            self._sleep_from_here()
            if self._journal.manifest.segments[-1].base >= position:
                return
            await self._wake.wait()

    def _plan(self) -> Job | None:
        self._attempts += 1
        return plan(
            self._journal,
            self._attempts,
            segment_bytes=self._segment_bytes,
            drop_before_ms=self._wall_clock_ms() - self._how.delete_retention_ms,
            leave_free_bytes=self.spare_bytes,
        )

    async def _make(self, job: Job) -> tuple[Job, Compacted, Swap]:
        self._started_s = trio.current_time()
        self._progress = Progress(0, 0)
        clean_bytes, dirty_bytes = sealed_sizes(self._journal.manifest.segments)
        fields = {"segments": len(job.segments), "clean_bytes": clean_bytes}
        self._emit_event("compaction.started", {**fields, "dirty_bytes": dirty_bytes})
        compacted = await self._how.run_child(job, self._report)
        swap = Swap(self._journal, job, compacted)
        try:
            await self._run_reading(swap.check)
        except (LogCorrupt, OSError) as exc:
            raise CompactionFailed(f"what was compacted can't be used: {exc}") from exc
        return job, compacted, swap

    def _report(self, progress: Progress) -> None:
        self._progress = progress

    async def _put_in_place(self, job: Job, compacted: Compacted, swap: Swap) -> None:
        try:
            await self._run_blocking(swap.announce)
            await self._run_blocking(swap.install)
        except OSError as exc:
            await self._failed(CompactionFailed(f"there is no room for the manifest: {exc}"))
            return
        readers = self._journal.readers.now()
        share = live_share(job, compacted)
        if share is not None:
            self._journal.live_share = share
        with self._until_stopped():
            await self._clean_up(swap, readers)
            self._succeeded(job, compacted)

    async def _clean_up(self, swap: Swap, readers: frozenset[int]) -> None:
        """Remove the old files as soon as nobody reads them; after a stop, the next start does."""
        while self._journal.readers.any_left(readers):  # noqa: ASYNC110 - they are in other threads
            await trio.sleep(READERS_POLL_S)
        try:
            await self._run_reading(swap.remove)
        except OSError as exc:
            self._emit_event("compaction.not_removed", {"reason": str(exc)})
        else:
            await self._run_blocking(swap.forget)

    # --- how it went --------------------------------------------------------------------

    def _succeeded(self, job: Job, compacted: Compacted) -> None:
        removed_bytes = data_bytes(job.segments) - data_bytes(compacted.outputs)
        self._last_duration_ms = int((trio.current_time() - self._started_s) * 1000)
        self._compactions += 1
        # A compaction that cuts wide entries can add some, and a counter never goes back.
        self._removed_bytes += max(0, removed_bytes)
        self._failures_in_a_row = 0
        self._is_owed = self._is_damaged = False
        self._retry_at = float("inf")
        self._health.report(PART, None)
        self._emit_event(
            "compaction.finished",
            {
                "removed_bytes": removed_bytes,
                "log_bytes": self._journal.size_bytes,
                "live_entries": compacted.live_entries,
                "duration_ms": self._last_duration_ms,
            },
        )
        self._answer(removed_bytes, self._last_duration_ms)

    async def _failed(self, failure: CompactionFailed) -> None:
        self._failures += 1
        self._failures_in_a_row += 1
        self._is_damaged = failure.is_damage
        self._is_owed = not failure.is_damage
        pause_s = retry_pause_s(self._failures_in_a_row)
        self._retry_at = trio.current_time() + pause_s if self._is_owed else float("inf")
        retry_in_ms = int(pause_s * 1000) if self._is_owed else -1
        fields = {"reason": str(failure), "retry_in_ms": retry_in_ms}
        self._emit_event("compaction.failed", fields)
        self._health.report(PART, str(failure))
        with suppress(OSError):
            await self._run_reading(partial(remove_outputs, self._journal.directory))
        self._refuse(ErrorCode.OUTCOME_UNKNOWN, str(failure))

    def _answer(self, removed_bytes: int, duration_ms: int) -> None:
        journal = self._journal
        sizes = (removed_bytes, journal.size_bytes, journal.live_bytes, duration_ms)
        self._resolve(CompactLogResponse(ErrorCode.NONE, None, *sizes))

    def _refuse(self, error: ErrorCode, message: str | None) -> None:
        if self._is_stopping:
            self._asked += self._requests
            self._requests = []
        self._resolve(CompactLogResponse(error, message, -1, -1, -1, -1))

    def _resolve(self, response: CompactLogResponse) -> None:
        asked, self._asked = self._asked, []
        for call in asked:
            call.resolve(response, -1)


def retry_pause_s(failures_in_a_row: int) -> float:
    """Return after how long it is tried again."""
    return min(RETRY_LAST_S, RETRY_FIRST_S * 2.0 ** min(failures_in_a_row - 1, 30))


def _dirty_percent(journal: Journal) -> float:
    """Return how much of the sealed segments is new since the last compaction."""
    clean_bytes, dirty_bytes = sealed_sizes(journal.manifest.segments)
    return 100 * dirty_bytes / max(1, clean_bytes + dirty_bytes)


async def compact_in_child(path: Path, job: Job, report: Callable[[Progress], None]) -> Compacted:
    """Do *job* in a process of its own, which is killed if this is cancelled.

    See `coordinator.log.compact_child`.

    Raises:
        CompactionFailed: It ended without a result.
    """
    line = compact_child.encode_job(str(path), job)
    done = await run_child(
        compact_child.__name__, line, lambda progress: report(Progress(*progress))
    )
    return compact_child.decode_result(done)
