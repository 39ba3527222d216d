"""The few file operations a log needs. `os_directory` is the real one, tests have a mean one."""

from typing import Protocol


class File(Protocol):
    """One file being appended to. Every method may raise OSError."""

    def append(self, data: bytes) -> None:
        """Write all of *data* at the end; until `sync`, a crash may keep any part of it."""

    def sync(self) -> None:
        """Return once what was appended, and the size, are on disk."""

    def append_synced(self, data: bytes) -> None:
        """Write all of *data* at the end, and return once it is on disk: `append` and `sync`."""

    def close(self) -> None:
        """Give the handle back, without syncing."""


class Overwritten(Protocol):
    """One small file whose whole content is replaced in place, as far as that works."""

    def overwrite(self, data: bytes) -> None:
        """Put *data*, always of one length, in the place of what is there. It isn't synced."""

    def close(self) -> None:
        """Give the handle back."""


class Directory(Protocol):
    """A data folder, flat but for subfolders one deep. Every method may raise OSError."""

    def lock(self) -> None:
        """Become the folder's only process. Raises LogLocked if another one is."""

    def unlock(self) -> None:
        """Let another process have it; idempotent."""

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

    def open_append(self, name: str) -> File:
        """Open an existing file for appending."""

    def open_overwrite(self, name: str) -> Overwritten:
        """Open an existing small file for overwriting."""

    def rename(self, old: str, new: str) -> None:
        """Rename, replacing *new* if it is there; its folder is made if needed."""

    def remove(self, name: str) -> None:
        """Remove a file; one that isn't there is fine."""

    def exists(self, name: str) -> bool:
        """Return whether there is such a file, also in a subfolder ("aside/x")."""

    def sync(self, folder: str = "") -> None:
        """Make creations, renames and removals in the folder (or a subfolder) durable."""

    def free_bytes(self) -> int:
        """Return what is free on the disk for this process."""

    def total_bytes(self) -> int:
        """Return the size of the disk."""
