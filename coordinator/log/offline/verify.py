"""Verifies a data folder with the checks of the daemon's start, without changing the folder."""

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
    torn_bytes: int  # Cut off the newest segment by the next start.


def verify(directory: Directory, on_batch: Callable[[Batch], None]) -> Verified | None:
    """Do all checks of the daemon's start, and read the whole log, without any change.

    Args:
        directory: The folder, locked.
        on_batch: Called with every batch; for a large batch, with each part.

    Returns:
        None if the folder was never in use.

    Raises:
        LogRefused: The daemon would refuse to start, with this message.
        LogFailed: The disk fails.
        OSError: The disk fails.
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
