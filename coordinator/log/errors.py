"""Why a log cannot be opened, or cannot go on. Each names the exit status of the process."""

import errno
from typing import ClassVar, Final

# What the system says when there is no room for a write.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
EXIT_CORRUPT: Final = 65
EXIT_UNREACHABLE: Final = 69
EXIT_WRITE_FAILED: Final = 74
EXIT_REFUSED: Final = 78


class LogError(Exception):
    """Base of what ends the process; the message is for the operator."""

    exit_status: ClassVar[int] = EXIT_REFUSED


class LogRefused(LogError):
    """The data folder can't be served as it is. Nothing in it was changed."""


class LogCorrupt(LogRefused):
    """Damage that a crash cannot explain. A person has to look; a repair may lose data."""

    exit_status = EXIT_CORRUPT


class LogIncompatible(LogRefused):
    """The folder belongs to a newer release, another node, or another number of partitions."""


class LogLocked(LogRefused):
    """Another process has the data folder open."""


class LogFailed(LogError):
    """A write or fsync failed: what reached the disk is unknown. Never retried; reopen instead."""

    exit_status = EXIT_WRITE_FAILED


class FolderLost(LogFailed):
    """The data folder may be another process's by now: what is written may reach no log."""


class SyncFailed(OSError):
    """A sync failed, perhaps for lack of room: what was written may be lost. Never tried again."""


class BatchTooLarge(ValueError):
    """The batch would pass the limit; raised before anything was changed."""
