"""Verifies a data folder: says what the daemon would, without changing anything."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from coordinator.log.directory import Directory
from coordinator.log.format import Batch
from coordinator.log.recovery import Checked, check_folder, check_unused
from coordinator.log.replay import JournalReplay, all_batches
from coordinator.log.segments import read_footer
from coordinator.log.state_files import META_NAME


class Verified(NamedTuple):
    """A folder that the daemon would serve."""

    checked: Checked
    torn_bytes: int  # What the next start would cut off the newest segment.


def verify(directory: Directory, on_batch: Callable[[Batch], None]) -> Verified | None:
    """Do what the daemon does at its start, but nothing that changes the folder.

    Args:
        directory: The folder, locked.
        on_batch: Is shown every batch; of a large one, its parts.

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
    replay = JournalReplay(
        directory,
        checked.manifest.segments,
        newest.valid_bytes,
        checked.meta.num_partitions,
        partial(read_footer, directory),
    )
    for batch in all_batches(replay):
        on_batch(batch)
    return Verified(checked, len(newest.data) - newest.valid_bytes)
