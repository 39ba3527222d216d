"""Compacts a data folder that no daemon is running on."""

from typing import NamedTuple

from coordinator.log.compaction import compact, finish
from coordinator.log.journal import Journal
from coordinator.log.swap import Swap, plan, remove_outputs


class Saved(NamedTuple):
    """What a compaction of a whole folder came to."""

    before_bytes: int
    after_bytes: int
    live_entries: int


def compact_stopped(journal: Journal, *, segment_bytes: int, drop_before_ms: int) -> Saved:
    """Compact the whole log of *journal*, which this process alone has open and nobody appends to.

    Args:
        journal: Just opened; the caller closes it.
        segment_bytes: About how large an output may be.
        drop_before_ms: Tombstones of an older timestamp are dropped.

    Raises:
        LogCorrupt: The log is damaged; it is as it was.
        LogFailed: The disk failed while the log was changed.
        OSError: The disk failed before.
    """
    before_bytes = journal.size_bytes
    journal.want_roll()
    flush = journal.take_flush()
    if flush is not None:
        journal.write_flush(flush)
    job = plan(
        journal, 0, segment_bytes=segment_bytes, drop_before_ms=drop_before_ms, leave_free_bytes=0
    )
    if job is None:
        return Saved(before_bytes, before_bytes, 0)
    try:
        compacted = finish(compact(journal.directory, job))
    except BaseException:
        remove_outputs(journal.directory)
        raise
    swap = Swap(journal, job, compacted)
    swap.check()
    swap.announce()
    swap.install()
    swap.remove()
    swap.forget()
    return Saved(before_bytes, journal.size_bytes, compacted.live_entries)
