"""The real folder, on a disk that fails at a chosen call."""

import errno
import os
from pathlib import Path
from typing import Final

from coordinator.log.directory import OsDirectory, OsFile, OsOverwritten

# What a write, a sync or a rename can end with, on a real disk.
ERRORS: Final = (errno.EIO, errno.ENOSPC)


class Faults:
    """Counts calls that change something, and fails the one with number *fail_at*."""

    def __init__(self, *, fail_at: int | None = None, error: int = errno.EIO) -> None:
        self.calls: list[str] = []
        self._fail_at = fail_at
        self._error = error

    def step(self, call: str) -> None:
        """Count a call, or fail it."""
        self.calls.append(call)
        if len(self.calls) - 1 == self._fail_at:
            raise OSError(self._error, os.strerror(self._error), call)


class FaultyFile(OsFile):
    """A real file; a write that fails has written half of it."""

    def __init__(self, descriptor: int, faults: Faults) -> None:
        super().__init__(descriptor)
        self._faults = faults

    def append(self, data: bytes) -> None:
        """Write, or write a part and fail."""
        try:
            self._faults.step("write")
        except OSError:
            super().append(data[: len(data) // 2])
            raise
        super().append(data)

    def append_synced(self, data: bytes) -> None:
        """Write and sync, or fail in either."""
        self.append(data)
        self.sync()

    def sync(self) -> None:
        """Sync, or fail."""
        self._faults.step("fdatasync")
        super().sync()


class FaultyDirectory(OsDirectory):
    """A real folder. Reading never fails."""

    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path)
        self._faults = faults

    def create(self, name: str) -> OsFile:
        """Create, or fail."""
        self._faults.step("create")
        return _faulty(super().create(name), self._faults)

    def open_append(self, name: str) -> OsFile:
        """Open, or fail."""
        self._faults.step("open")
        return _faulty(super().open_append(name), self._faults)

    def open_overwrite(self, name: str) -> OsOverwritten:
        """Open, or fail."""
        self._faults.step("open")
        return super().open_overwrite(name)

    def rename(self, old: str, new: str) -> None:
        """Rename, or fail."""
        self._faults.step("rename")
        super().rename(old, new)

    def remove(self, name: str) -> None:
        """Unlink, or fail."""
        self._faults.step("unlink")
        super().remove(name)

    def sync(self, folder: str = "") -> None:
        """Sync the folder, or fail."""
        self._faults.step("fsync")
        super().sync(folder)


def _faulty(file: OsFile, faults: Faults) -> FaultyFile:
    descriptor = os.dup(file._descriptor)
    file.close()
    return FaultyFile(descriptor, faults)
