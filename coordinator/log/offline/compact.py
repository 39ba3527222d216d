"""Compacts a data folder that no daemon is running on."""

from typing import NamedTuple

from coordinator.log.compaction import compact, finish
from coordinator.log.journal import Journal
from coordinator.log.swap import Swap, plan, remove_outputs


class Saved(NamedTuple):
    """Outcome of the compaction of a whole folder; `live_entries` counts keys, not batches."""

    before_bytes: int
    after_bytes: int
    live_entries: int


def compact_stopped(journal: Journal, *, segment_bytes: int, drop_before_ms: int) -> Saved:
    """Compact the whole log of *journal*, which has no other user and no unwritten batches.

    Args:
        journal: Just opened; the caller closes it.
        segment_bytes: Approximate limit of an output's size.
        drop_before_ms: Tombstones with an older timestamp are dropped.

    Raises:
        LogCorrupt: The log is damaged; its entries are unchanged.
        LogFailed: The disk failed while the log was changed.
        OSError: The disk failed before that.
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
