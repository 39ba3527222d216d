"""The journal under any sequence of writes, crashes, kills and restarts."""

import contextlib
import errno
import random
from typing import Final

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coordinator.log.errors import LogFailed
from coordinator.log.format import NODE_PARTITION, Flush
from coordinator.log.journal import Journal
from tests.fakes.disk import CrashNow, Disk
from tests.log.helpers import NOW_MS, append, entry, loaded, numbers_of, open_journal

PARTITIONS: Final = st.sampled_from([0, 1, 2, 3, NODE_PARTITION])
SEEDS: Final = st.integers(0, 2**32)

# A batch as the model keeps it: partition, base offset, numbers of its entries.
Written = tuple[int, int, tuple[int, ...]]


class JournalMachine(RuleBasedStateMachine):
    """Model: the list of everything ever appended, and how much of it was acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = Disk()
        self.written: list[Written] = []
        self.acknowledged = 0
        self.numbers = 0
        self.epoch = 0
        self.segment_bytes = 400
        self.zeros_bytes = 0

    @initialize(segment_bytes=st.integers(100, 1500), zeros_bytes=st.sampled_from([0, 70, 500]))
    def start(self, segment_bytes: int, zeros_bytes: int) -> None:
        """Make the folder."""
        self.segment_bytes, self.zeros_bytes = segment_bytes, zeros_bytes
        self.open()

    def open(self) -> None:
        """Restart; what survived must hold what was acknowledged and be a prefix."""
        self.journal: Journal = open_journal(
            self.disk, segment_bytes=self.segment_bytes, zeros_bytes=self.zeros_bytes
        )
        survived = self.replay()

        assert self.written[: self.acknowledged] == survived[: self.acknowledged]
        assert self.written[: len(survived)] == survived
        assert self.journal.leader_epoch > self.epoch

        self.epoch = self.journal.leader_epoch
        self.written, self.acknowledged = survived, len(survived)
        self.taken: Flush | None = None

    def replay(self) -> list[Written]:
        """Return what the journal has, as the model keeps it."""
        return [(b.partition, b.base_offset, tuple(numbers_of(b))) for b in loaded(self.journal)]

    @rule(partition=PARTITIONS, count=st.integers(1, 4), padding=st.integers(0, 80))
    def append(self, partition: int, count: int, padding: int) -> None:
        """Put a batch into the open flush."""
        numbers = tuple(range(self.numbers, self.numbers + count))
        self.numbers += count
        base_offset = self.journal.end_offset(partition)
        append(self.journal, partition, *numbers, padding=padding)
        self.written.append((partition, base_offset, numbers))

    @precondition(lambda self: self.taken is None)
    @rule()
    def take(self) -> None:
        """Seal the open flush; appending goes on behind it."""
        taken_batches = len(self.written)
        self.taken = self.journal.take_flush()
        self.taken_batches = taken_batches

    @precondition(lambda self: self.taken is not None)
    @rule()
    def write(self) -> None:
        """Write the sealed flush: it is acknowledged."""
        assert self.taken is not None
        self.journal.write_flush(self.taken)
        self.acknowledged, self.taken = self.taken_batches, None

    @precondition(lambda self: self.taken is not None)
    @rule(operation=st.integers(0, 20), seed=SEEDS, kill=st.booleans())
    def crash_during_write(self, operation: int, seed: int, *, kill: bool) -> None:
        """Cut the power, or kill the process, at some operation of the write or the roll."""
        assert self.taken is not None
        self.disk.plan(crash_at=operation)
        with contextlib.suppress(CrashNow):
            self.journal.write_flush(self.taken)
            self.acknowledged = self.taken_batches
        self.end_process(seed, kill=kill)
        self.open()

    @precondition(lambda self: self.taken is not None)
    @rule(
        operation=st.integers(0, 12),
        error=st.sampled_from([errno.EIO, errno.ENOSPC]),
        seed=SEEDS,
        kill=st.booleans(),
    )
    def fail_during_write(self, operation: int, error: int, seed: int, *, kill: bool) -> None:
        """Let the disk fail, which ends the process, unless only zeros had no room."""
        assert self.taken is not None
        self.disk.plan(fail_at=operation, error=error)
        try:
            self.journal.write_flush(self.taken)
            self.acknowledged = self.taken_batches
        except LogFailed:
            with pytest.raises(LogFailed):
                self.journal.append(0, [entry(0)], NOW_MS)
        self.end_process(seed, kill=kill)
        self.open()

    @rule(operations=st.lists(st.integers(0, 25), max_size=3), seed=SEEDS, kill=st.booleans())
    def crash_and_crash_again_while_opening(
        self, operations: list[int], seed: int, *, kill: bool
    ) -> None:
        """The recovery itself is interrupted, more than once."""
        self.end_process(seed, kill=kill)
        for operation in operations:
            self.disk.plan(crash_at=operation)
            with contextlib.suppress(CrashNow):
                open_journal(self.disk, segment_bytes=self.segment_bytes)
            seed += 1
            self.end_process(seed, kill=False)
        self.open()

    @rule()
    def stop_cleanly_and_start(self) -> None:
        """A planned restart keeps everything."""
        for taken, count in ((self.taken, None), (self.journal.take_flush(), len(self.written))):
            if taken is not None:
                self.journal.write_flush(taken)
                self.acknowledged = self.taken_batches if count is None else count
        before = list(self.written)
        assert self.acknowledged == len(before)
        self.journal.close(clean=True)
        self.open()

        assert before == self.written
        assert self.journal.recovery_events == []

    @invariant()
    def each_partition_read_alone_is_its_part_of_the_journal(self) -> None:
        """The index and the replay agree, and show only what is durable."""
        if not hasattr(self, "journal"):
            return
        durable = self.written[: self.acknowledged]
        for partition in (0, 3, NODE_PARTITION):
            alone = [(b.base_offset, tuple(numbers_of(b))) for b in self.journal.read(partition)]

            assert [w[1:] for w in durable if w[0] == partition] == alone

    def end_process(self, seed: int, *, kill: bool) -> None:
        """Kill the process, or cut the power."""
        if kill:
            self.disk.kill()
        else:
            self.disk.crash(random.Random(seed))


TestJournalMachine = JournalMachine.TestCase
TestJournalMachine.settings = settings(max_examples=80, stateful_step_count=25)
