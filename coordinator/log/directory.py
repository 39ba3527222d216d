"""File operations of the log, as protocols, and their implementation on a real file system.

`Directory` and the files that it opens are protocols: tests implement them with a disk in memory
that crashes and fails. No other module of the log calls the operating system.
"""

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Protocol

from coordinator.log.errors import LogLocked, LogRefused, SyncFailed

LOCK_NAME: Final = "lock"
_FILE_MODE: Final = 0o640
_READ_CHUNK_BYTES: Final = 8 * 1024 * 1024
_DESCRIPTOR_TRIES: Final = 300  # About five minutes.


class File(Protocol):
    """One file open for writing. Every method may raise OSError."""

    def write(self, data: bytes, position: int) -> None:
        """Write all of *data* from byte *position* on; until `sync`, a crash may keep any part."""

    def write_synced(self, data: bytes, position: int) -> None:
        """Write all of *data*, and return once the bytes are on disk: `write` and `sync`."""

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to *size_bytes*; until `sync`, a crash may bring the rest back."""

    def sync(self) -> None:
        """Return once all written bytes and the size are on disk. Raises SyncFailed."""

    def close(self) -> None:
        """Close the file without syncing."""


class Overwritten(Protocol):
    """One small file whose whole content is overwritten in place, as best effort."""

    def overwrite(self, data: bytes) -> None:
        """Replace the content by *data*, which always has the same length. Not synced.

        A kill or a power cut may leave any mixture of old and new bytes.
        """

    def close(self) -> None: ...


class Directory(Protocol):
    """A data folder, flat but for subfolders one deep. Every method may raise OSError.

    Attributes:
        last_sync_s: Duration of the latest `File.write_synced`.
    """

    last_sync_s: float

    def lock(self) -> None:
        """Take the folder's exclusive lock. Raises LogLocked if another process has it."""

    def is_ours(self) -> bool:
        """Return whether no other process can have taken the lock since `lock`."""

    def unlock(self) -> None:
        """Release the lock; idempotent."""

    def undo(self) -> None:
        """Unlock the folder; remove the files and folders that opening and locking created."""

    def names(self) -> list[str]:
        """Return the names of the regular files in the folder itself, sorted."""

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """Return *size_bytes* (by default all) from byte *start*; fewer at the end of the file."""

    def drop_cache(self, name: str) -> None:
        """Make the next read of the file come from the medium, not from memory."""

    def create(self, name: str) -> File:
        """Make a new file. Raises FileExistsError rather than touching an old one."""

    def open_write(self, name: str) -> File:
        """Open an existing file."""

    def open_overwrite(self, name: str) -> Overwritten:
        """Open an existing small file for overwriting."""

    def rename(self, old: str, new: str) -> None:
        """Rename *old*, replacing *new* if it exists; create the folder of *new* if needed."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def exists(self, name: str) -> bool:
        """Return whether the file exists; *name* may lead into a subfolder ("aside/x")."""

    def sync(self, folder: str = "") -> None:
        """Make creations, renames and removals in the folder durable. Raises SyncFailed."""

    def free_bytes(self) -> int:
        """Return the free space of the disk that an unprivileged process may use."""

    def total_bytes(self) -> int:
        """Return the size of the disk."""


class OsFile:
    """A file descriptor open for writing; fdatasync(2), or its equivalent, makes it durable."""

    def __init__(self, descriptor: int, directory: "OsDirectory") -> None:
        self._descriptor = descriptor
        self._directory = directory

    def write(self, data: bytes, position: int) -> None:
        """Write all of *data*; one pwrite(2) may write only a part."""
        written = os.pwrite(self._descriptor, data, position)
        if written < len(data):
            with memoryview(data) as view:
                while written < len(data):
                    written += os.pwrite(self._descriptor, view[written:], position + written)

    def write_synced(self, data: bytes, position: int) -> None:
        """Call pwritev2(2) with RWF_DSYNC: all of *data* is on disk when the call returns.

        One system call instead of two, because after each one the thread waits for the GIL while
        the event loop computes, up to the switch interval.
        """
        clock_s = self._directory.clock_s
        began_s = clock_s()
        self._write_synced(data, position)
        self._directory.last_sync_s = clock_s() - began_s

    def _write_synced(self, data: bytes, position: int) -> None:
        try:
            written = os.pwritev(self._descriptor, (data,), position, os.RWF_DSYNC)
        except OSError as exc:
            if exc.errno != errno.EOPNOTSUPP:
                raise
            # Some sandboxes and file systems lack the flag. Nothing was written.
            self.write(data, position)
            self.sync()
            return
        if written < len(data):
            with memoryview(data) as view:
                while written < len(data):
                    rest, at = view[written:], position + written
                    written += os.pwritev(self._descriptor, (rest,), at, os.RWF_DSYNC)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        """Call fdatasync(2): the data is durable, and the metadata to find it, such as the size."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as exc:
            raise SyncFailed(exc.errno, exc.strerror) from exc

    def close(self) -> None:
        """Close the descriptor; idempotent."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsOverwritten:
    """A file overwritten through a memory map, so that no call releases the GIL.

    A pwrite(2) behind each flush would make its thread wait for the event loop once more. Bytes
    stored in the map outlive the process, as written bytes do.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        try:
            self._memory: mmap.mmap | None = mmap.mmap(descriptor, 0)
        except (OSError, ValueError):  # Some network file systems have no shared memory maps.
            self._memory = None

    def overwrite(self, data: bytes) -> None:
        """Store *data*, a few bytes within one sector; without a map, ignore a failed write."""
        if self._memory is None:
            with suppress(OSError):
                os.pwrite(self._descriptor, data, 0)
        else:
            self._memory[: len(data)] = data

    def close(self) -> None:
        """Close the map and the descriptor; idempotent."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsDirectory:
    """A data folder of the file system, created if it doesn't exist."""

    last_sync_s = 0.0
    _sleep: Callable[[float], None] | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock_s: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """Open or create the folder.

        Args:
            path: The folder.
            clock_s: Clock for `last_sync_s`; by default every duration is 0.
            sleep: Called between tries to get a file descriptor; None: don't try again.

        Raises:
            LogRefused: The folder can't be created, or this user can't read and write it.
        """
        self.clock_s = clock_s
        self._sleep = sleep
        self._path = Path(path)
        self._lock_path = os.fspath(self._path / LOCK_NAME)
        self._lock: int | None = None
        self._lock_identity = (0, 0)  # Inode and device of the lock file.
        self._made: list[Path] = []  # Created here, the innermost first.
        try:
            self._made = [p for p in (self._path, *self._path.parents) if not p.exists()]
            self._path.mkdir(parents=True, exist_ok=True)
            for made in self._made:
                # A new folder must not vanish together with the first acknowledged commit.
                _sync_folder(made.parent)
            if not os.access(self._path, os.R_OK | os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, "not readable and writable for this user")
        except OSError as exc:
            self.undo()
            message = f"the data folder {self._path} can't be used: {exc.strerror}"
            raise LogRefused(message) from exc

    def lock(self) -> None:
        """Take the flock of the lock file; the file is removed only by `undo`."""
        path = self._path / LOCK_NAME
        while True:
            is_new = not path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            self._hold(descriptor)
            # A process whose start was refused may have removed the file since it was opened.
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    break
            self.unlock()
        if is_new:
            self._made.insert(0, path)

    def is_ours(self) -> bool:
        """Return whether the locked file itself, not only one of its name, is still there.

        A flock belongs to the file, not to its name. If the lock file or the folder was removed
        or replaced, another process can lock the new one. Inode and device identify the file:
        while it is open, its inode number isn't reused.
        """
        if self._lock is None:
            return False
        try:
            found = os.stat(self._lock_path)  # noqa: PTH116 - with each flush; a Path costs thrice as much
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_ino, found.st_dev) == self._lock_identity

    def _hold(self, descriptor: int) -> None:
        """Take the flock of the open lock file; if that fails, close the file.

        Raises:
            LogLocked: Another process has the lock.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(descriptor)
            message = f"the data folder {self._path} is in use by another process"
            raise LogLocked(message) from exc
        except OSError:
            os.close(descriptor)
            raise
        self._lock = descriptor
        held = os.fstat(descriptor)
        self._lock_identity = (held.st_ino, held.st_dev)

    def unlock(self) -> None:
        """Release the flock by closing the file; idempotent."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            os.close(descriptor)

    def undo(self) -> None:
        """Remove the lock file and the folders that were created here, then release the flock."""
        for made in self._made:
            # A folder that isn't empty any more is in use by another process, and stays.
            with suppress(OSError):
                if made.is_dir():
                    made.rmdir()
                else:
                    made.unlink()
        self._made = []
        self.unlock()

    def names(self) -> list[str]:
        """Return the names of the regular files; subfolders such as lost+found are ignored."""
        with os.scandir(self._path) as entries:
            return sorted(e.name for e in entries if e.is_file(follow_symlinks=False))

    def size(self, name: str) -> int:
        return (self._path / name).stat().st_size

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """Read with pread(2) until *size_bytes* or the end of the file are reached."""
        with _open_for_reading(self._path / name) as descriptor:
            left = os.fstat(descriptor).st_size - start if size_bytes is None else size_bytes
            chunks: list[bytes] = []
            while left > 0:
                chunk = os.pread(descriptor, min(left, _READ_CHUNK_BYTES), start)
                if not chunk:
                    break
                chunks.append(chunk)
                start += len(chunk)
                left -= len(chunk)
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def drop_cache(self, name: str) -> None:
        """Ask the kernel to drop the file's clean pages, also those that a failed fsync left."""
        with _open_for_reading(self._path / name) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def create(self, name: str) -> File:
        """Open with O_EXCL, so that no existing file is overwritten."""
        path = self._path / name
        path.parent.mkdir(exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return OsFile(self._open(path, flags), self)

    def open_write(self, name: str) -> File:
        return OsFile(self._open(self._path / name, os.O_WRONLY | os.O_CLOEXEC), self)

    def open_overwrite(self, name: str) -> Overwritten:
        """Open for reading and writing, as mmap(2) requires both."""
        return OsOverwritten(os.open(self._path / name, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        """Rename, atomically within the file system."""
        (self._path / new).parent.mkdir(exist_ok=True)
        (self._path / old).rename(self._path / new)

    def remove(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        try:
            return stat.S_ISREG((self._path / name).lstat().st_mode)
        except FileNotFoundError:
            return False

    def sync(self, folder: str = "") -> None:
        """Call fsync(2) on the folder itself, which holds the names."""
        descriptor = self._open(self._path / folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as exc:
            raise SyncFailed(exc.errno, exc.strerror) from exc
        finally:
            os.close(descriptor)

    def _open(self, path: Path, flags: int) -> int:
        """Open a file for writing or a folder for syncing; wait if no descriptor is free.

        A roll, or a change of the manifest, may be half done: waiting lets it continue.
        """
        for tries in range(_DESCRIPTOR_TRIES):
            try:
                return os.open(path, flags, _FILE_MODE)
            except OSError as exc:
                if exc.errno not in {errno.EMFILE, errno.ENFILE} or self._sleep is None:
                    raise
            self._sleep(min(1.0, 0.01 * 2 ** min(tries, 7)))
        return os.open(path, flags, _FILE_MODE)

    def free_bytes(self) -> int:
        status = os.statvfs(self._path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self) -> int:
        status = os.statvfs(self._path)
        return status.f_blocks * status.f_frsize


class ReadOnlyDirectory(OsDirectory):
    """A data folder open for reading only: no file is created in it, not even the lock file.

    The file system may be mounted read-only.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Check that the folder can be read; don't create it.

        Raises:
            LogRefused: The folder doesn't exist, or this user can't read it.
        """
        self._path = Path(path)
        self._lock_path = os.fspath(self._path / LOCK_NAME)
        self._lock: int | None = None
        self._lock_identity = (0, 0)
        self._made: list[Path] = []
        if not os.access(self._path, os.R_OK | os.X_OK):
            raise LogRefused(f"the data folder {self._path} isn't there, or not readable")

    def lock(self) -> None:
        """Take the flock of the lock file, if there is one: without it, no daemon ever ran here."""
        try:
            descriptor = os.open(self._path / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._hold(descriptor)


@contextmanager
def _open_for_reading(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync_folder(path: Path) -> None:
    with _open_for_reading(path, os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)
