"""A disk that behaves as badly as a disk is allowed to.

Appended bytes and changes of names are in memory until they are synced, separately: a crash keeps
any part of what was not, and invents bytes in it. A failed sync loses data that reading still
shows, until the cache is dropped. Every operation is counted, so that a test can fail, or crash
at, each of them.
"""

import errno
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Final, Literal

from coordinator.log.errors import LogLocked

_PAGE_BYTES: Final = 64

_Change = tuple[Literal["link"], str, "_Inode"] | tuple[Literal["unlink"], str, None]


class CrashNow(Exception):
    """The power went, in the middle of an operation; the process is no more."""


@dataclass(slots=True, eq=False)
class _Inode:
    """What is on the medium, and what was appended to it in memory since."""

    durable: bytes = b""
    pending: bytes = b""
    # A failed sync leaves pages that are called clean: read until dropped, and never written.
    lost_bytes: int = 0
    # The whole content, where the file was overwritten in memory.
    overwritten: bytes | None = None

    @property
    def content(self) -> bytes:
        return self.durable + self.pending if self.overwritten is None else self.overwritten


@dataclass(slots=True)
class _Folder:
    """Names in memory, names on the medium, and how one became the other."""

    names: dict[str, _Inode] = field(default_factory=dict)
    durable: dict[str, _Inode] = field(default_factory=dict)
    changes: list[tuple[_Change, ...]] = field(default_factory=list)


class Disk:
    """The medium. It outlives processes; each of them gets its own `directory()`."""

    def __init__(self, *, total_bytes: int = 1 << 40) -> None:
        self.total_bytes = total_bytes
        self.free_bytes = total_bytes
        self.operations: list[str] = []
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        self.fail_errno = errno.EIO
        self.crashed = False
        self._folders: dict[str, _Folder] = {"": _Folder()}
        self._holder: DiskDirectory | None = None

    def directory(self) -> "DiskDirectory":
        """Return the view of a new process."""
        return DiskDirectory(self)

    def plan(
        self, *, crash_at: int | None = None, fail_at: int | None = None, error: int = errno.EIO
    ) -> None:
        """Crash at, or fail, the operation with that number, counted from here on."""
        self.operations = []
        self.crash_at, self.fail_at, self.fail_errno = crash_at, fail_at, error

    def kill(self) -> None:
        """End the process, not the machine: what it wrote stays in memory."""
        self._end_process()

    def crash(self, rng: random.Random) -> None:
        """Lose power: any part of what wasn't synced is on the medium afterwards."""
        self._end_process()
        for folder in self._folders.values():
            for change in folder.changes:
                if rng.random() < 0.5:
                    _apply(folder.durable, change)
            folder.names, folder.changes = dict(folder.durable), []
        for inode in {id(i): i for f in self._folders.values() for i in f.names.values()}.values():
            if inode.overwritten is not None and rng.random() < 0.5:
                inode.durable = inode.overwritten
            inode.overwritten = None
            # What a failed sync lost is gone, and so is what was written behind the hole.
            if not inode.lost_bytes:
                inode.durable += _survivor(inode.pending, rng)
            inode.pending, inode.lost_bytes = b"", 0

    def crash_states(self) -> Iterator["Disk"]:
        """Yield every disk that a power cut at this moment may leave, each once.

        Of the changes of names since the last sync of their folder, each may be there or not; of
        the bytes since the last sync of their file, none, all, a part, or other ones.
        """
        folders = sorted(self._folders.items())
        name_choices = [
            [_with_some(folder, kept) for kept in _subsets(len(folder.changes))]
            for _, folder in folders
        ]
        inodes = {id(i): i for _, f in folders for i in (*f.names.values(), *f.durable.values())}
        byte_choices = [[(i, content) for content in _left_of(i)] for i in inodes.values()]
        seen = set()
        for names in product(*name_choices):
            for contents in product(*byte_choices):
                of_inode = {id(inode): content for inode, content in contents}
                files = {
                    f"{folder}/{name}" if folder else name: of_inode[id(inode)]
                    for (folder, _), kept in zip(folders, names, strict=True)
                    for name, inode in kept.items()
                }
                state = tuple(sorted(files.items()))
                if state not in seen:
                    seen.add(state)
                    other = Disk(total_bytes=self.total_bytes)
                    for path, content in files.items():
                        other.put(path, content)
                    yield other

    # What tests do to files behind the log's back; durable at once, and not counted.

    def files(self) -> dict[str, bytes]:
        """Return every file, by path, as a process would see it."""
        return {
            f"{folder_name}/{name}" if folder_name else name: inode.content
            for folder_name, folder in self._folders.items()
            for name, inode in sorted(folder.names.items())
        }

    def put(self, path: str, content: bytes) -> None:
        """Make the file, or replace what it holds."""
        folder, name = self.locate(path)
        folder.names[name] = folder.durable[name] = _Inode(content)

    def delete(self, path: str) -> None:
        """Remove the file."""
        folder, name = self.locate(path)
        del folder.names[name]
        folder.durable.pop(name, None)

    def copy(self) -> "Disk":
        """Return a disk with the same files, all of it durable, and no process."""
        other = Disk(total_bytes=self.total_bytes)
        for path, content in self.files().items():
            other.put(path, content)
        return other

    # The parts that the directory view uses.

    def locate(self, path: str) -> tuple[_Folder, str]:
        """Return the folder that *path* is in, made if need be, and the name in it."""
        folder, _, name = path.rpartition("/")
        return self._folders.setdefault(folder, _Folder()), name

    def folder(self, name: str) -> _Folder:
        """Return a folder by name."""
        if name not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", name)
        return self._folders[name]

    def step(self, holder: "DiskDirectory", operation: str) -> None:
        """Count an operation, and end it here if the plan says so."""
        if self.crashed or holder.dead:
            raise CrashNow(operation)
        number = len(self.operations)
        self.operations.append(operation)
        if number == self.crash_at:
            self.crashed = True
            raise CrashNow(operation)
        if number == self.fail_at:
            raise OSError(self.fail_errno, "planned failure", operation)

    def acquire(self, holder: "DiskDirectory") -> None:
        """Take the folder's lock."""
        if self._holder is not None and self._holder is not holder:
            message = "the data folder is in use by another process"
            raise LogLocked(message)
        self._holder = holder
        holder.dead = False

    def release(self, holder: "DiskDirectory") -> None:
        """Give the lock back, if it is held."""
        if self._holder is holder:
            self._holder = None

    def _end_process(self) -> None:
        if self._holder is not None:
            self._holder.dead = True
        self._holder = None
        self.crashed = False
        self.crash_at = self.fail_at = None


class DiskFile:
    """An open file of the disk."""

    def __init__(self, directory: "DiskDirectory", name: str, inode: _Inode) -> None:
        self._directory = directory
        self._name = name
        self._inode = inode
        self._open = True

    def append(self, data: bytes) -> None:
        """Add to the bytes in memory; a failure leaves a part of them."""
        assert self._open
        try:
            self._directory.step(f"append {self._name}")
        except (OSError, CrashNow):
            self._inode.pending += data[: len(data) // 2]
            raise
        self._inode.pending += data

    def append_synced(self, data: bytes) -> None:
        """Do both; a crash may come between them."""
        self.append(data)
        self.sync()

    def sync(self) -> None:
        """Move the bytes in memory to the medium; a failure says they are there, and lies."""
        assert self._open
        inode = self._inode
        try:
            self._directory.step(f"sync {self._name}")
        except OSError:
            inode.lost_bytes = len(inode.pending)
            raise
        # What an earlier sync lost stays lost, and is a hole of zeros if more comes behind it.
        if inode.lost_bytes < len(inode.pending):
            hole = bytes(inode.lost_bytes)
            inode.durable += hole + inode.pending[inode.lost_bytes :]
            inode.pending, inode.lost_bytes = b"", 0

    def close(self) -> None:
        """End the use of the file; nothing is synced by that."""
        self._open = False


class DiskOverwritten:
    """A small file that is overwritten; of what isn't synced, a crash leaves one of them whole."""

    def __init__(self, directory: "DiskDirectory", inode: _Inode) -> None:
        self._directory = directory
        self._inode = inode

    def overwrite(self, data: bytes) -> None:
        """Replace the content, in memory. It is no operation at which tests fail or crash."""
        if not self._directory.dead:
            self._inode.overwritten = data

    def close(self) -> None:
        """Nothing is synced by that."""


class DiskDirectory:
    """The folder as one process sees it."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.dead = False

    def step(self, operation: str) -> None:
        """Count an operation of this process."""
        self._disk.step(self, operation)

    def lock(self) -> None:
        """Take the lock, unless another living process has it."""
        self._disk.acquire(self)
        self.step("lock")

    def unlock(self) -> None:
        """Give the lock back."""
        self._disk.release(self)
        self.dead = True

    def names(self) -> list[str]:
        """Return the names in the folder itself."""
        self.step("names")
        return sorted(self._disk.folder("").names)

    def size(self, name: str) -> int:
        """Return the size as this process sees it."""
        return len(self._inode(name).content)

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """Return what was written, synced or not."""
        self.step(f"read {name}")
        content = self._inode(name).content
        return content[start:] if size_bytes is None else content[start : start + size_bytes]

    def drop_cache(self, name: str) -> None:
        """Forget the pages that are called clean, those of a failed sync too."""
        self.step(f"drop {name}")
        inode = self._inode(name)
        if inode.lost_bytes:
            behind = inode.pending[inode.lost_bytes :]
            inode.pending = bytes(inode.lost_bytes) + behind if behind else b""
            inode.lost_bytes = 0

    def create(self, name: str) -> DiskFile:
        """Make a new file."""
        self.step(f"create {name}")
        folder, base = self._disk.locate(name)
        if base in folder.names:
            raise FileExistsError(errno.EEXIST, "there already", name)
        inode = _Inode()
        folder.names[base] = inode
        folder.changes.append((("link", base, inode),))
        return DiskFile(self, name, inode)

    def open_append(self, name: str) -> DiskFile:
        """Open an old file."""
        self.step(f"open {name}")
        return DiskFile(self, name, self._inode(name))

    def open_overwrite(self, name: str) -> "DiskOverwritten":
        """Open an old file that is overwritten in place."""
        self.step(f"open {name}")
        return DiskOverwritten(self, self._inode(name))

    def rename(self, old: str, new: str) -> None:
        """Rename; within a folder both names change at once or not at all."""
        self.step(f"rename {old} {new}")
        source, old_base = self._disk.locate(old)
        target, new_base = self._disk.locate(new)
        inode = self._inode(old)
        del source.names[old_base]
        target.names[new_base] = inode
        link: _Change = ("link", new_base, inode)
        unlink: _Change = ("unlink", old_base, None)
        if source is target:
            source.changes.append((link, unlink))
        else:
            # The link first: a file system may show both names after a crash, but not none.
            target.durable[new_base] = inode
            source.changes.append((unlink,))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        self.step(f"remove {name}")
        folder, base = self._disk.locate(name)
        if folder.names.pop(base, None) is not None:
            folder.changes.append((("unlink", base, None),))

    def exists(self, name: str) -> bool:
        """Return whether the file is there."""
        folder, base = self._disk.locate(name)
        return base in folder.names

    def sync(self, folder: str = "") -> None:
        """Make the names of the folder durable."""
        self.step(f"sync folder {folder}")
        place = self._disk.folder(folder)
        place.durable, place.changes = dict(place.names), []

    def free_bytes(self) -> int:
        """Return what the test says is free."""
        return self._disk.free_bytes

    def total_bytes(self) -> int:
        """Return what the test says is the size."""
        return self._disk.total_bytes

    def _inode(self, path: str) -> _Inode:
        folder, name = self._disk.locate(path)
        if name not in folder.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return folder.names[name]


def _apply(names: dict[str, _Inode], change: tuple[_Change, ...]) -> None:
    for step in change:
        if step[0] == "link":
            names[step[1]] = step[2]
        else:
            names.pop(step[1], None)


def _subsets(count: int) -> Iterator[tuple[bool, ...]]:
    return product([False, True], repeat=count)


def _with_some(folder: _Folder, kept: tuple[bool, ...]) -> dict[str, _Inode]:
    names = dict(folder.durable)
    for change, is_kept in zip(folder.changes, kept, strict=True):
        if is_kept:
            _apply(names, change)
    return names


def _left_of(inode: _Inode) -> list[bytes]:
    """Return what may be on the medium of a file: all ways that matter in which bytes are lost."""
    durable, pending = inode.durable, inode.pending
    if inode.overwritten is not None:
        return [durable, inode.overwritten]
    if not pending or inode.lost_bytes:
        return [durable]
    half = len(pending) // 2
    tails = {
        b"",
        pending[:1],
        pending[:half],
        pending[:-1],
        pending,
        bytes(len(pending)),
        pending[:half] + bytes(len(pending) - half),
        bytes(half) + pending[half:],
        pending[:half] + bytes((pending[half] ^ 1,)) + pending[half + 1 :],
    }
    return [durable + tail for tail in sorted(tails)]


def _survivor(pending: bytes, rng: random.Random) -> bytes:
    """Return what of *pending* a crash leaves: all, a prefix, with holes, with noise."""
    kept = bytearray(pending[: rng.randint(0, len(pending))] if rng.random() < 0.7 else pending)
    if not kept:
        return b""
    harm = rng.randrange(5)
    if harm == 1:
        kept[rng.randrange(len(kept))] ^= 1 << rng.randrange(8)
    elif harm == 2:
        page = rng.randrange(0, len(kept), _PAGE_BYTES)
        kept[page : page + _PAGE_BYTES] = bytes(len(kept[page : page + _PAGE_BYTES]))
    elif harm == 3:
        start = rng.randrange(len(kept))
        kept[start:] = bytes(len(kept) - start)
    elif harm == 4:
        start = rng.randrange(len(kept))
        kept[start:] = rng.randbytes(len(kept) - start)
    return bytes(kept)
