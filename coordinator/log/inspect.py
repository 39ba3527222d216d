"""What the daemon would say of a folder, without changing it."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from coordinator.log.checks import Checked, check_folder, check_unused
from coordinator.log.directory import Directory
from coordinator.log.format import BATCH_BYTES_MAX, Batch
from coordinator.log.replay import JournalReplay, all_batches
from coordinator.log.segments import read_footer
from coordinator.log.state_files import META_NAME


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
