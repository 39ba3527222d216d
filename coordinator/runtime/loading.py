"""From the log into the shards: all of them at the start, or one alone, a slice at a time.

The files are read in a thread. Everything else happens in the event loop, in slices that are
short enough for requests to be answered between them: of the shards that are loaded with
COORDINATOR_LOAD_IN_PROGRESS, of all others as ever. One load goes on at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

import trio

from coordinator.group.records import RecordError
from coordinator.log.errors import LogError
from coordinator.log.replay import Replay
from coordinator.runtime.environment import Environment
from coordinator.runtime.health import Health
from coordinator.runtime.logs import ReplayLog, log_of
from coordinator.runtime.shard import ShardRunner, Status

# A slice of so many entries holds requests up for a few milliseconds.
LOAD_SLICE_ENTRIES: Final = 1_000
TELL_PERIOD_MS: Final = 1_000

Runner = ShardRunner[Any]


class Abandoned(Exception):
    """The partition was unloaded while it was being loaded, or another load took its place."""


class Progress:
    """How far one load is.

    Attributes:
        partitions: How many are loaded by it.
        entries: What was replayed so far.
        started_ms: Monotonic.
        load_ms: How long it took, once it is over.
    """

    def __init__(self, replays: Sequence[Replay], partitions: int, started_ms: int) -> None:
        self.partitions = partitions
        self.entries = 0
        self.started_ms = started_ms
        self.load_ms = -1
        self._replays = replays

    @property
    def total_bytes(self) -> int:
        """What there is to read."""
        return sum([replay.total_bytes for replay in self._replays])

    @property
    def done_bytes(self) -> int:
        """What of it was read and replayed."""
        return sum([replay.done_bytes for replay in self._replays])

    def loaded_offset(self, partition: int) -> int:
        """Return the offset behind the last entry of *partition* that was replayed."""
        return max(replay.ends.get(partition, 0) for replay in self._replays)


def percent_of(progress: Progress) -> int:
    """Return how much of the load is done, in whole percent."""
    return min(100 * progress.done_bytes // max(progress.total_bytes, 1), 100)


class Loader:
    """Loads shards and lets them serve.

    Attributes:
        progress: Of the load that goes on, or None.
        awaits_flush: Whether it waits to hear by `flushed` that more of the log is durable.
    """

    def __init__(
        self,
        *,
        logs: Sequence[ReplayLog],
        runners: Mapping[int, Runner],
        health: Health,
        environment: Environment,
        activated: Callable[[Runner], None],
    ) -> None:
        """Make it.

        Args:
            logs: Where they are loaded from.
            runners: By partition, in the order in which they are to serve.
            health: Is told what can't be loaded.
            environment: Runs what reads files, and is told how far it is.
            activated: Called when a shard serves.
        """
        self.progress: Progress | None = None
        self._logs = logs
        self._runners = runners
        self._health = health
        self._run_reading = environment.run_reading
        self._emit_event = environment.emit_event
        self._now = environment.now
        self._activated = activated
        self._one_at_a_time = trio.Lock()
        self._flushed = trio.Event()
        self.awaits_flush = False
        self._problems: dict[int, str] = {}  # Of partitions that could not be loaded.
        environment.metrics.update(
            loading_entries=lambda: getattr(self.progress, "entries", 0),
            loading_done_bytes=lambda: getattr(self.progress, "done_bytes", 0),
            loading_size_bytes=lambda: getattr(self.progress, "total_bytes", 0),
        )

    async def load_all(self) -> Progress:
        """Load every shard in one pass over each log.

        Raises:
            LogError: The log is damaged or can't be read: nothing of it must be served.
            RecordError: An entry is none that this code can know.
        """
        runners = self._runners
        async with self._one_at_a_time:
            try:
                with ExitStack() as reading:
                    for log in self._logs:
                        reading.enter_context(log.reading())
                    replays = [log.load() for log in self._logs]
                    progress = self._begin(replays, len(runners))
                    for replay in replays:
                        await self._replay(replay, runners, lambda: True)
                for runner in runners.values():
                    await self._activate(runner, lambda: True)
            finally:
                self.progress = None
        progress.load_ms = self._now().mono_ms - progress.started_ms
        return progress

    async def load_one(self, runner: Runner) -> Progress:
        """Load one shard, which was closed, through the indexes of the segments.

        Raises:
            Abandoned: It is not closed: another load goes on; or it was unloaded again.
            LogError: What there is of it can't be read; it stays closed.
            RecordError: An entry is none that this code can know; it stays closed.
        """
        if runner.status is not Status.CLOSED:
            raise Abandoned
        number = runner.begin_load()

        def wanted() -> bool:
            return runner.is_loading(number)

        async with self._one_at_a_time:
            try:
                # What was appended before it was unloaded may still be on its way.
                while wanted() and not runner.is_durable:
                    self._flushed = trio.Event()
                    self.awaits_flush = True
                    await self._flushed.wait()
                    self.awaits_flush = False
                log = log_of(self._logs, runner.partition)
                with log.reading():
                    replay = log.load_partition(runner.partition)
                    progress = self._begin([replay], 1)
                    await self._replay(replay, {runner.partition: runner}, wanted)
                await self._activate(runner, wanted)
            except (LogError, RecordError) as exc:
                if not wanted():
                    raise Abandoned from exc
                # Memory of the others is whole, so they are served on; a start refuses this log.
                runner.drop(self._now())
                self._note_problem(runner, f"partition {runner.partition} can't be loaded: {exc}")
                raise
            finally:
                self.progress = None
        self._note_problem(runner, None)
        progress.load_ms = self._now().mono_ms - progress.started_ms
        return progress

    @property
    def can_load(self) -> bool:
        """Whether there is anything to load from."""
        return bool(self._logs)

    def loaded_offset(self, partition: int) -> int:
        """Return how far a *partition* is that doesn't serve yet; 0 if it isn't being loaded."""
        return 0 if self.progress is None else self.progress.loaded_offset(partition)

    def _note_problem(self, runner: Runner, problem: str | None) -> None:
        self._problems.pop(runner.partition, None)
        if problem is not None:
            self._problems[runner.partition] = problem
        self._health.report("loading", "; ".join(self._problems.values()) or None)

    def flushed(self) -> None:
        """Go on, as more of the log is durable; called while `awaits_flush` says so."""
        self._flushed.set()

    def _begin(self, replays: Sequence[Replay], partitions: int) -> Progress:
        self.progress = Progress(replays, partitions, self._now().mono_ms)
        return self.progress

    async def _replay(
        self, replay: Replay, runners: Mapping[int, Runner], wanted: Callable[[], bool]
    ) -> None:
        progress = self.progress
        assert progress is not None
        told_ms = progress.started_ms
        entries = progress.entries
        pause_at = entries + LOAD_SLICE_ENTRIES
        while True:
            if not wanted():
                raise Abandoned
            await self._run_reading(replay.fetch)
            if replay.at_end:
                break
            for gathered, num_keys in replay.portions():
                # Checked here, and after each pause below: an abandoned shard takes no more.
                for partition, items in gathered.items():
                    runners[partition].replay(items)
                entries += num_keys
                if entries >= pause_at:
                    pause_at = entries + LOAD_SLICE_ENTRIES
                    progress.entries = entries
                    await trio.lowlevel.checkpoint()
                    if not wanted():
                        raise Abandoned
            progress.entries = entries
            now_ms = self._now().mono_ms
            if now_ms - told_ms >= TELL_PERIOD_MS:
                told_ms = now_ms
                self._tell(progress)

    def _tell(self, progress: Progress) -> None:
        fields = {
            "partitions": progress.partitions,
            "entries": progress.entries,
            "bytes": progress.done_bytes,
            "total_bytes": progress.total_bytes,
            "percent": percent_of(progress),
        }
        self._emit_event("loading", fields)

    async def _activate(self, runner: Runner, wanted: Callable[[], bool]) -> None:
        if not wanted():
            raise Abandoned
        for _ in runner.finish_load(self._now):
            await trio.lowlevel.checkpoint()
            if not wanted():
                raise Abandoned
        assert runner.status is Status.ACTIVE
        self._activated(runner)
