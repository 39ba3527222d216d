"""The real folder, on a disk that fails at a chosen call."""

import errno
import os
from pathlib import Path
from typing import Final

from coordinator.log.directory import File, OsDirectory, Overwritten
from coordinator.log.errors import SyncFailed

# What a write, a sync or a rename can end with, on a real disk.
ERRORS: Final = (errno.EIO, errno.ENOSPC)


class Faults:
    """Counts calls that change something, and fails the one with number *fail_at*."""

    def __init__(self, *, fail_at: int | None = None, error: int = errno.EIO) -> None:
        self.calls: list[str] = []
        self.fail_at = fail_at
        self.error = error

    def step(self, call: str) -> None:
        """Count a call, or fail it."""
        self.calls.append(call)
        if len(self.calls) - 1 == self.fail_at:
            error = SyncFailed if call in {"fdatasync", "fsync"} else OSError
            raise error(self.error, os.strerror(self.error), call)


class FaultyFile:
    """A real file; a write that fails has written half of it."""

    def __init__(self, file: File, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    def write(self, data: bytes, position: int) -> None:
        """Write, or write a part and fail."""
        try:
            self._faults.step("write" if data.strip(b"\0") else "zero")
        except OSError:
            self._file.write(data[: len(data) // 2], position)
            raise
        self._file.write(data, position)

    def write_synced(self, data: bytes, position: int) -> None:
        """Write and sync, or fail in either."""
        self.write(data, position)
        self.sync()

    def truncate(self, size_bytes: int) -> None:
        """Cut off, or fail."""
        self._faults.step("ftruncate")
        self._file.truncate(size_bytes)

    def sync(self) -> None:
        """Sync, or fail."""
        self._faults.step("fdatasync")
        self._file.sync()

    def close(self) -> None:
        """Close it."""
        self._file.close()


class FaultyDirectory(OsDirectory):
    """A real folder. Reading never fails."""

    def __init__(self, path: Path, faults: Faults) -> None:
        super().__init__(path)
        self._faults = faults

    def create(self, name: str) -> FaultyFile:
        """Create, or fail."""
        self._faults.step("create")
        return FaultyFile(super().create(name), self._faults)

    def open_write(self, name: str) -> FaultyFile:
        """Open, or fail."""
        self._faults.step("open")
        return FaultyFile(super().open_write(name), self._faults)

    def open_overwrite(self, name: str) -> Overwritten:
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
