"""Compacts a data folder that no daemon is running on."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from coordinator.log.compaction import compact, finish, plan
from coordinator.log.directory import Directory
from coordinator.log.format import BATCH_BYTES_MAX, Batch
from coordinator.log.journal import Journal
from coordinator.log.recovery import Checked, check_folder, check_unused
from coordinator.log.replay import JournalReplay, all_batches
from coordinator.log.segments import read_footer
from coordinator.log.state_files import META_NAME
from coordinator.log.swap import Swap, output_prefix, remove_outputs

# ------------------------------------------------------------------------------------------
# What the daemon would say of a folder, without changing it.


class Verdict(NamedTuple):
    """A folder that the daemon would serve."""

    checked: Checked
    torn_bytes: int  # What the next start would cut off the newest segment.


def inspect(directory: Directory, saw: Callable[[Batch], None]) -> Verdict | None:
    """Do what the daemon does at its start, but nothing that changes the folder.

    Args:
        directory: The folder, locked.
        saw: Is shown every batch.

    Returns:
        None if nothing was ever kept in the folder.

    Raises:
        LogRefused: The daemon would refuse to start, with this message.
        LogFailed: The disk fails.
        OSError: Likewise.
    """
    names = directory.names()
    if META_NAME not in names:
        check_unused(directory, names)
        return None
    checked = check_folder(directory, names, None)
    newest = checked.newest
    segments = [
        (segment, newest.valid_bytes if segment.data_bytes is None else segment.data_bytes)
        for segment in checked.manifest.segments
    ]
    replay = JournalReplay(
        directory,
        segments,
        checked.meta.num_partitions,
        partial(read_footer, directory),
        part_bytes=BATCH_BYTES_MAX,
    )
    for batch in all_batches(replay):
        saw(batch)
    return Verdict(checked, len(newest.data) - newest.valid_bytes)


# ------------------------------------------------------------------------------------------
# Compacts a data folder that no daemon is running on.


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
        journal.manifest,
        num_partitions=journal.meta.num_partitions,
        segment_bytes=segment_bytes,
        drop_before_ms=drop_before_ms,
        prefix=output_prefix(journal.leader_epoch, 0),
        leave_free_bytes=0,
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
