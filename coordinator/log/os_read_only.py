"""The data folder for those who only look: nothing is made in it, not even the lock file."""

import os
from pathlib import Path

from coordinator.log.errors import LogRefused
from coordinator.log.os_directory import LOCK_NAME, OsDirectory


class ReadOnlyDirectory(OsDirectory):
    """A folder that is there; works on a file system that is mounted read-only, too."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Find the folder.

        Raises:
            LogRefused: It isn't there, or not readable for this user.
        """
        self._path = Path(path)
        self._lock: int | None = None
        if not os.access(self._path, os.R_OK | os.X_OK):
            raise LogRefused(f"the data folder {self._path} isn't there, or not readable")

    def lock(self) -> None:
        """Take the flock of the lock file, if there is one: without it, nobody ever served."""
        try:
            descriptor = os.open(self._path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._hold(descriptor)
