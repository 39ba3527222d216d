"""The few file operations that a log needs, and the data folder on a real file system.

`Directory` and what it opens are protocols: tests have a disk in memory that crashes and fails.
No other module of the log knows the operating system.
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
_DESCRIPTOR_TRIES: Final = 300  # Some five minutes.


class File(Protocol):
    """One file being written to. Every method may raise OSError."""

    def write(self, data: bytes, position: int) -> None:
        """Write all of *data* from byte *position* on; until `sync`, a crash may keep any part."""

    def write_synced(self, data: bytes, position: int) -> None:
        """Write all of *data*, and return once it is on disk: `write` and `sync`."""

    def truncate(self, size_bytes: int) -> None:
        """Cut off what is behind; until `sync`, a crash may bring it back."""

    def sync(self) -> None:
        """Return once what was written, and the size, are on disk. Raises SyncFailed."""

    def close(self) -> None:
        """Give the handle back, without syncing."""


class Overwritten(Protocol):
    """One small file whose whole content is replaced in place, as far as that works."""

    def overwrite(self, data: bytes) -> None:
        """Put *data*, always of one length, in the place of what is there. It isn't synced.

        A kill or a power cut may leave any of the bytes that change, and the others as they were.
        """

    def close(self) -> None:
        """Give the handle back."""


class Directory(Protocol):
    """A data folder, flat but for subfolders one deep. Every method may raise OSError.

    Attributes:
        last_sync_s: How long the latest `File.write_synced` took.
    """

    last_sync_s: float

    def lock(self) -> None:
        """Become the folder's only process. Raises LogLocked if another one is."""

    def is_ours(self) -> bool:
        """Return whether nobody else can have become the folder's process since `lock`."""

    def unlock(self) -> None:
        """Let another process have it; idempotent."""

    def undo(self) -> None:
        """Unlock the folder, and remove what finding and locking it has made."""

    def names(self) -> list[str]:
        """Return the names of the regular files in the folder itself, sorted."""

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""

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
        """Rename, replacing *new* if it is there; its folder is made if needed."""

    def remove(self, name: str) -> None:
        """Remove a file; one that isn't there is fine."""

    def exists(self, name: str) -> bool:
        """Return whether there is such a file, also in a subfolder ("aside/x")."""

    def sync(self, folder: str = "") -> None:
        """Make creations, renames and removals in the folder durable. Raises SyncFailed."""

    def free_bytes(self) -> int:
        """Return what is free on the disk for this process."""

    def total_bytes(self) -> int:
        """Return the size of the disk."""


class OsFile:
    """A descriptor that is written to, and made durable as fdatasync(2) does."""

    def __init__(self, descriptor: int, directory: "OsDirectory") -> None:
        self._descriptor = descriptor
        self._directory = directory

    def write(self, data: bytes, position: int) -> None:
        """Write all of *data*; pwrite(2) may take less at once."""
        written = os.pwrite(self._descriptor, data, position)
        if written < len(data):
            with memoryview(data) as view:
                while written < len(data):
                    written += os.pwrite(self._descriptor, view[written:], position + written)

    def write_synced(self, data: bytes, position: int) -> None:
        """pwritev2 with RWF_DSYNC: each of its bytes is on disk when it returns.

        One call instead of two: each time it comes back from one, the thread waits for Python's
        lock while the event loop computes, up to the switch interval.
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
            # Some sandboxes and file systems don't know the flag. Nothing was written.
            self.write(data, position)
            self.sync()
            return
        if written < len(data):
            with memoryview(data) as view:
                while written < len(data):
                    rest, at = view[written:], position + written
                    written += os.pwritev(self._descriptor, (rest,), at, os.RWF_DSYNC)

    def truncate(self, size_bytes: int) -> None:
        """Cut it off with ftruncate(2)."""
        os.ftruncate(self._descriptor, size_bytes)

    def sync(self) -> None:
        """fdatasync: the data, and what is needed to find it, such as the size."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as exc:
            raise SyncFailed(exc.errno, exc.strerror) from exc

    def close(self) -> None:
        """Close the descriptor, once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsOverwritten:
    """A file that is overwritten through memory: no call that lets go of Python's lock.

    A pwrite(2) behind each flush would make its thread wait for the event loop once more. What was
    stored outlives the process, as what was written does.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        try:
            self._memory: mmap.mmap | None = mmap.mmap(descriptor, 0)
        except (OSError, ValueError):  # Not every network file system has it.
            self._memory = None

    def overwrite(self, data: bytes) -> None:
        """Store a few bytes, within one sector."""
        if self._memory is None:
            with suppress(OSError):
                os.pwrite(self._descriptor, data, 0)
        else:
            self._memory[: len(data)] = data

    def close(self) -> None:
        """Close the descriptor, once."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class OsDirectory:
    """A folder of the file system; it is made if it isn't there."""

    last_sync_s = 0.0
    _sleep: Callable[[float], None] | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        clock_s: Callable[[], float] = lambda: 0.0,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        """Open the folder; without *clock_s* nothing takes any time, without *sleep* none waits.

        Raises:
            LogRefused: It can't be made, or is not a folder that this user can use.
        """
        self.clock_s = clock_s
        self._sleep = sleep
        self._path = Path(path)
        self._lock_path = os.fspath(self._path / LOCK_NAME)
        self._lock: int | None = None
        self._lock_identity = (0, 0)  # Inode and device.
        self._made: list[Path] = []  # The innermost one first.
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
        """Take the flock of the lock file, which stays unless a start was refused."""
        path = self._path / LOCK_NAME
        while True:
            is_new = not path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            self._hold(descriptor)
            # Whoever made it may have been refused meanwhile, and have removed it.
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    break
            self.unlock()
        if is_new:
            self._made.insert(0, path)

    def is_ours(self) -> bool:
        """Look whether the lock file is still there: the file, not only one of its name.

        A flock is one of a file. Whoever removes or replaces that, or the folder, lets another
        process lock what is there now. The number of an open file is nobody else's.
        """
        if self._lock is None:
            return False
        try:
            found = os.stat(self._lock_path)  # noqa: PTH116 - with each flush; a Path costs thrice as much
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (found.st_ino, found.st_dev) == self._lock_identity

    def _hold(self, descriptor: int) -> None:
        """Take the flock of the open lock file; if that can't be had, close it.

        Raises:
            LogLocked: Another process has it.
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
        """Give the flock back."""
        if self._lock is not None:
            descriptor, self._lock = self._lock, None
            os.close(descriptor)

    def undo(self) -> None:
        """Remove the lock file and folders if they are new, then give the flock back."""
        for made in self._made:
            # What somebody else has put something into isn't ours any more.
            with suppress(OSError):
                if made.is_dir():
                    made.rmdir()
                else:
                    made.unlink()
        self._made = []
        self.unlock()

    def names(self) -> list[str]:
        """Return the regular files; subfolders such as lost+found are not ours to judge."""
        with os.scandir(self._path) as entries:
            return sorted(e.name for e in entries if e.is_file(follow_symlinks=False))

    def size(self, name: str) -> int:
        """Return the size as stat(2) has it."""
        return (self._path / name).stat().st_size

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """Read with pread(2), until the size is there or the file ends."""
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
        """Ask the kernel to forget the file's clean pages (those a failed fsync left, too)."""
        with _open_for_reading(self._path / name) as descriptor:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def create(self, name: str) -> File:
        """Open with O_EXCL, so that nothing is ever written over."""
        path = self._path / name
        path.parent.mkdir(exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return OsFile(self._open(path, flags), self)

    def open_write(self, name: str) -> File:
        """Open without O_CREAT."""
        return OsFile(self._open(self._path / name, os.O_WRONLY | os.O_CLOEXEC), self)

    def open_overwrite(self, name: str) -> Overwritten:
        """Open for reading, too: memory can't be mapped otherwise."""
        return OsOverwritten(os.open(self._path / name, os.O_RDWR | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        """Rename, which is atomic within the file system."""
        (self._path / new).parent.mkdir(exist_ok=True)
        (self._path / old).rename(self._path / new)

    def remove(self, name: str) -> None:
        """Unlink the name, if it is there."""
        (self._path / name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Return whether a regular file has that name."""
        try:
            return stat.S_ISREG((self._path / name).lstat().st_mode)
        except FileNotFoundError:
            return False

    def sync(self, folder: str = "") -> None:
        """Sync the folder itself, which is where names are kept."""
        descriptor = self._open(self._path / folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as exc:
            raise SyncFailed(exc.errno, exc.strerror) from exc
        finally:
            os.close(descriptor)

    def _open(self, path: Path, flags: int) -> int:
        """Open what is written or synced; without a descriptor, wait for one.

        A roll, or a change of the manifest, may be half done: it goes on where it was.
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
        """Return what an unprivileged process may still use."""
        status = os.statvfs(self._path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self) -> int:
        """Return the size of the file system."""
        status = os.statvfs(self._path)
        return status.f_blocks * status.f_frsize


class ReadOnlyDirectory(OsDirectory):
    """A folder that is only looked at: nothing is made in it, not even the lock file.

    It may be on a file system that is mounted read-only.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Find the folder.

        Raises:
            LogRefused: It isn't there, or not readable for this user.
        """
        self._path = Path(path)
        self._lock_path = os.fspath(self._path / LOCK_NAME)
        self._lock: int | None = None
        self._lock_identity = (0, 0)
        self._made: list[Path] = []
        if not os.access(self._path, os.R_OK | os.X_OK):
            raise LogRefused(f"the data folder {self._path} isn't there, or not readable")

    def lock(self) -> None:
        """Take the flock of the lock file, if there is one: without it, nobody ever served."""
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
