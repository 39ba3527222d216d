"""Errors of the log: it can't be opened, or can't go on. Each has an exit status of the process."""

import errno
from typing import ClassVar, Final

# Errno values of a write for which the disk, the quota or the file has no room.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
EXIT_CORRUPT: Final = 65
EXIT_UNREACHABLE: Final = 69
EXIT_WRITE_FAILED: Final = 74
EXIT_REFUSED: Final = 78


class LogError(Exception):
    """Base of the errors that end the process; the message is for the operator."""

    exit_status: ClassVar[int] = EXIT_REFUSED


class LogRefused(LogError):
    """The data folder can't be served as it is; its files were not changed."""


class LogCorrupt(LogRefused):
    """Damage that a crash can't explain. An operator has to decide; a repair may lose data."""

    exit_status = EXIT_CORRUPT


class LogIncompatible(LogRefused):
    """The folder belongs to a newer release, another node, or another number of partitions."""


class LogLocked(LogRefused):
    """The data folder is locked by another process."""


class LogFailed(LogError):
    """A write or fsync failed: the state on disk is unknown. Never retried; reopen instead."""

    exit_status = EXIT_WRITE_FAILED


class FolderLost(LogFailed):
    """The lock was lost: another process may serve the folder, and further writes may be lost."""


class SyncFailed(OSError):
    """A sync failed, perhaps for lack of room: written bytes may be lost. Never retried."""


class BatchTooLarge(ValueError):
    """The batch is larger than allowed; raised before any change."""
