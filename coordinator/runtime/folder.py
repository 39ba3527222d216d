"""The data folder of one node: its one log, and what keeps that writable and small."""

from collections.abc import Generator, Sequence
from functools import partial

import outcome

from coordinator.log.format import Batch, Flush
from coordinator.log.journal import Journal
from coordinator.runtime.compactor import Compaction, Compactor
from coordinator.runtime.environment import Done, Environment
from coordinator.runtime.health import DISK, Health, StorageWatch
from coordinator.runtime.logs import Log, LogUser, ReplayLog


class Folder:
    """A store with one log, which it is itself.

    Attributes:
        logs: This one; likewise ``replays``.
        is_fenced: It is not: a lock keeps others away.
        last_wait_s: See `FlushLog`.
        end_round: None: nothing is done then.
        health: See `Store`; likewise ``cluster_id``, ``num_partitions``, ``refuses``,
            ``is_exhausted``, ``logs_repeats`` and ``alarm_bytes``.
        append_packed: See `Journal`; likewise ``end_offset``, ``take_flush``, ``load``,
            and ``load_partition``.
        reading: See `Readers.reading`.
    """

    def __init__(
        self,
        journal: Journal,
        environment: Environment,
        *,
        reserve_bytes: int,
        segment_bytes: int,
        max_log_bytes: int,
        compaction: Compaction,
    ) -> None:
        """Keep *journal*; see `StorageWatch` for the first and the last number of bytes."""
        self.logs: Sequence[Log] = (self,)
        self.replays: Sequence[ReplayLog] = (self,)
        self.is_fenced = False
        self.logs_repeats = True
        self.end_round = None
        self.cluster_id = journal.meta.cluster_id
        self.num_partitions = journal.meta.num_partitions
        self.append_packed = journal.append_packed  # Called for every decision: bound once.
        self.end_offset = journal.end_offset
        self.take_flush = journal.take_flush
        self.load = journal.load
        self.load_partition = journal.load_partition
        self.reading = journal.readers.reading
        self.health = health = Health(environment, DISK)
        self._journal = journal
        self._segment_bytes = segment_bytes
        self.last_wait_s: float | None = None
        self._submit = environment.submit
        self._clock_s = environment.clock_s
        self._takes_ballast = False
        self._purged = 0  # Each start looks anew.
        self._watch = StorageWatch(
            journal,
            health,
            environment,
            reserve_bytes=reserve_bytes,
            segment_bytes=segment_bytes,
            max_log_bytes=max_log_bytes,
        )
        self._compactor = Compactor(
            journal,
            compaction,
            environment,
            health,
            segment_bytes=segment_bytes,
            spare_bytes=self._spare_bytes(reserve_bytes),
        )
        self.begin = self._compactor.begin
        self.compact = self._compactor.submit
        self.stop = self._compactor.stop

    # --- the log ------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The epoch of this run."""
        return self._journal.leader_epoch

    @property
    def open_bytes(self) -> int:
        """See `Journal.open_bytes`."""
        return self._journal.open_bytes

    @property
    def last_sync_s(self) -> float:
        """How long the latest write and sync took."""
        return self._journal.directory.last_sync_s

    @property
    def compacted_below(self) -> dict[int, int]:
        """See `Journal.compacted_below`."""
        return self._journal.compacted_below

    async def fetch(
        self, partition: int, from_offset: int, max_bytes: int
    ) -> Generator[Batch, None, None]:
        """Return what reads the files as it is taken; see `Journal.read`."""
        return self._journal.read(partition, from_offset, max_bytes=max_bytes)

    def next_write(self) -> int:
        """Never called: whoever has the lock of the folder leads."""
        raise NotImplementedError

    def write(self, flush: Flush, done: Done) -> None:
        """Have *flush* written and synced by the disk's thread, and then call *done*."""
        self._submit(partial(self._write, flush, self._clock_s()), partial(self._end, done))

    def _write(self, flush: Flush, asked_s: float) -> None:
        self.last_wait_s = self._clock_s() - asked_s
        self._journal.write_flush(flush)

    def _end(self, done: Done, result: outcome.Outcome[None]) -> None:
        if isinstance(result, outcome.Value):
            # Here and not in the disk's thread, which would wait for its turn once more.
            result = outcome.capture(self._journal.check_ours)
        done(result)

    # --- its room -----------------------------------------------------------------------

    @property
    def refuses(self) -> bool:
        """Whether new data is to be refused."""
        return self._watch.refuses

    @property
    def is_exhausted(self) -> bool:
        """Whether generations and assignments are to be refused, too."""
        return self._watch.is_exhausted

    @property
    def alarm_bytes(self) -> int:
        """Unwritten bytes beyond which to look at once; -1 once a flush found the disk full."""
        return -1 if self._journal.used_ballast else self._watch.alarm_bytes

    def keep_free(self, reserve_bytes: int, max_log_bytes: int) -> None:
        """Refuse new data by other bounds than so far; see `StorageWatch`."""
        self._watch.reserve_bytes = reserve_bytes
        self._watch.max_log_bytes = max_log_bytes
        self._compactor.spare_bytes = self._spare_bytes(reserve_bytes)

    def _spare_bytes(self, reserve_bytes: int) -> int:
        return self._segment_bytes if reserve_bytes else 0

    def purged(self, log: int) -> int:  # noqa: ARG002 - there is one
        """Return up to which version of the registry it has no offsets of deleted topics."""
        return self._purged

    def set_purged(self, log: int, version: int) -> None:  # noqa: ARG002 - there is one
        """Take note of that."""
        self._purged = version

    def flushed(self) -> None:
        """Have the compactor look, if the flush has sealed a segment."""
        if self._journal.manifest is not self._compactor.looked_at:
            self._compactor.wake()

    def look(self) -> None:
        """See whether the disk has room and keeps up."""
        self._journal.used_ballast = False
        if self._watch.look():
            self._compactor.look(storage_is_full=self._watch.is_full)

    async def run(self, node: LogUser) -> None:
        """See `Compactor.run`."""
        await self._compactor.run(node.want_flushes)

    async def hand_over(self) -> None:
        """Do nothing: there is nobody else."""

    def tend(self) -> None:
        """See that the folder is still ours, and that a start on a full disk will be possible.

        Raises:
            LogFailed: It isn't ours.
        """
        self._journal.check_ours()  # Whoever only asks is told nothing stale for long.
        if not self._takes_ballast and self._journal.lacks_ballast():
            # Not awaited: a disk that hangs must not keep the janitor from giving up waits.
            self._takes_ballast = True
            self._submit(self._journal.take_ballast, self._took_ballast)

    def _took_ballast(self, _: outcome.Outcome[None]) -> None:
        """Go on looking. If it failed the journal has, too, and the next flush tells."""
        self._takes_ballast = False
