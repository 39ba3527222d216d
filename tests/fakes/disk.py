"""A disk that behaves as badly as a disk is allowed to.

Written bytes and changes of names are in memory until they are synced, separately: a crash keeps
any part of what was not. Where bytes were overwritten, each sector is the old one or the new one;
behind the old end of the file, a crash invents bytes, too. A failed sync loses data that reading
still shows, until the cache is dropped. Every operation is counted, so that a test can fail, or
crash at, each of them.
"""

import errno
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Final, Literal, Self

from coordinator.log.errors import LogLocked, SyncFailed

_SECTOR_BYTES: Final = 64
_BLOCK_BYTES: Final = 4096
# Of so many sectors, `crash_states` has every mix of old and new ones.
_MIXED_SECTORS_MAX: Final = 4

# What was done to a file: bytes written at a position, or it was cut off there.
_Write = tuple[int, bytes | None]
_Change = tuple[Literal["link"], str, "_Inode"] | tuple[Literal["unlink"], str, None]


class CrashNow(Exception):
    """The power went, in the middle of an operation; the process is no more."""


@dataclass(slots=True, eq=False)
class _Inode:
    """What is on the medium, and what was written to it in memory since."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write] = field(default_factory=list)
    # What a process reads: all of that, and what a failed sync has lost. Such pages are called
    # clean: read until dropped, and never written.
    cached: bytearray = field(default_factory=bytearray)
    # The whole content, where the file was overwritten in memory.
    overwritten: bytes | None = None
    # The same, as it is in the middle of the latest of these stores.
    torn: bytes = b""

    @property
    def content(self) -> bytes | bytearray:
        return self.cached if self.overwritten is None else self.overwritten

    def write(self, position: int, data: bytes | None) -> None:
        self.pending.append((position, data))
        _do(self.cached, position, data)

    def sync(self) -> None:
        for position, data in self.pending:
            _do(self.durable, position, data)
        self.pending = []

    def drop_cache(self) -> None:
        self.cached = bytearray(self.durable)
        for position, data in self.pending:
            _do(self.cached, position, data)


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
        # What the test says is free; with a limit, what the files leave of that, in whole blocks.
        self.free_bytes = total_bytes
        self.limit_bytes: int | None = None
        self.room_errno = 0  # With which a look at the room fails, 0 for none.
        self.look_errnos: dict[str, list[int]] = {}  # With which the next looks at a file fail.
        self.operations: list[str] = []
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        self.fails_again = False
        self.fail_errno = errno.EIO
        self.crashed = False
        self._folders: dict[str, _Folder] = {"": _Folder()}
        self._holder: DiskDirectory | None = None

    @classmethod
    def with_files_of(cls, folder: Path) -> Self:
        """Return a disk of its own with a copy of a real folder's files."""
        disk = cls()
        for path in sorted(folder.iterdir()):
            disk.put(path.name, path.read_bytes())
        return disk

    def directory(self) -> "DiskDirectory":
        """Return the view of a new process."""
        return DiskDirectory(self)

    def plan(
        self,
        *,
        crash_at: int | None = None,
        fail_at: int | None = None,
        error: int = errno.EIO,
        fails_again: bool = False,
    ) -> None:
        """Crash at, or fail, the operation with that number, counted from here on.

        With *fails_again*, the same operation fails for good from there on.
        """
        self.operations = []
        self.crash_at, self.fail_at, self.fail_errno = crash_at, fail_at, error
        self.fails_again = fails_again

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
            if inode.overwritten is not None:
                found = rng.choice([inode.durable, inode.overwritten, inode.torn])
                inode.durable = bytearray(found)
            inode.overwritten = None
            for position, data in inode.pending:
                _survive(inode.durable, position, data, rng)
            inode.pending = []
            inode.drop_cache()

    def crash_states(self) -> Iterator["Disk"]:
        """Yield every disk that a power cut at this moment may leave, each once.

        Of the changes of names since the last sync of their folder, each may be there or not; of
        the bytes since the last sync of their file, none, all, a part, or other ones; of sectors
        that were overwritten, any.
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
                    other.limit_bytes = self.limit_bytes
                    for path, content in files.items():
                        other.put(path, content)
                    yield other

    # What tests do to files behind the log's back; durable at once, and not counted.

    def files(self) -> dict[str, bytes]:
        """Return every file, by path, as a process would see it."""
        return {
            f"{folder_name}/{name}" if folder_name else name: bytes(inode.content)
            for folder_name, folder in self._folders.items()
            for name, inode in sorted(folder.names.items())
        }

    def used_bytes(self) -> int:
        """Return how much the files take, in whole blocks."""
        return sum(_in_blocks(len(content)) for content in self.files().values())

    def free_now_bytes(self) -> int:
        """Return what is free by the limit, or else what the test says."""
        return self.free_bytes if self.limit_bytes is None else self.limit_bytes - self.used_bytes()

    def put(self, path: str, content: bytes) -> None:
        """Make the file, or replace what it holds."""
        folder, name = self.locate(path)
        inode = _Inode(bytearray(content), [], bytearray(content))
        folder.names[name] = folder.durable[name] = inode

    def delete(self, path: str) -> None:
        """Remove the file."""
        folder, name = self.locate(path)
        del folder.names[name]
        folder.durable.pop(name, None)

    def copy(self) -> "Disk":
        """Return a disk with the same files, all of it durable, and no process."""
        other = Disk(total_bytes=self.total_bytes)
        other.limit_bytes = self.limit_bytes
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
        if self.fail_at is not None and (
            number == self.fail_at
            or (self.fails_again and operation in self.operations[self.fail_at : number][:1])
        ):
            error = SyncFailed if operation.startswith("sync") else OSError
            raise error(self.fail_errno, "planned failure", operation)

    def look(self, name: str) -> None:
        """Fail a look at a file, if the test says so."""
        if self.look_errnos.get(name):
            raise OSError(self.look_errnos[name].pop(0), "planned failure", name)

    def acquire(self, holder: "DiskDirectory") -> None:
        """Take the folder's lock."""
        if self._holder is not None and self._holder is not holder:
            message = "the data folder is in use by another process"
            raise LogLocked(message)
        self._holder = holder
        holder.dead = False

    def is_held_by(self, holder: "DiskDirectory") -> bool:
        """Say who has the lock."""
        return self._holder is holder

    def remove_lock(self) -> None:
        """Do as if somebody removed the lock file: another process may take the folder."""
        self._holder = None

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

    def write(self, data: bytes, position: int) -> None:
        """Change the bytes in memory; a failure leaves a part of that."""
        assert self._open
        kind = "write" if data.strip(b"\0") else "zero"
        try:
            self._directory.step(f"{kind} {self._name}")
        except (OSError, CrashNow):
            self._inode.write(position, data[: len(data) // 2])
            raise
        fits = self._directory.fits_until(self._inode, position + len(data))
        self._inode.write(position, data[: max(0, fits - position)])
        if fits < position + len(data):
            raise OSError(errno.ENOSPC, "no space left on device", self._name)

    def write_synced(self, data: bytes, position: int) -> None:
        """Do both; a crash may come between them."""
        self.write(data, position)
        self.sync()

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off, in memory."""
        assert self._open
        self._directory.step(f"truncate {self._name}")
        self._inode.write(size_bytes, None)

    def sync(self) -> None:
        """Move the bytes in memory to the medium; a failure says they are there, and lies."""
        assert self._open
        inode = self._inode
        try:
            self._directory.step(f"sync {self._name}")
        except SyncFailed:
            inode.pending = []
            raise
        # What an earlier sync lost stays lost, and is a hole of zeros if more comes behind it.
        inode.sync()

    def close(self) -> None:
        """End the use of the file; nothing is synced by that."""
        self._open = False


class DiskOverwritten:
    """A small file that is overwritten; a crash leaves the old one, the new one or a torn store."""

    def __init__(self, directory: "DiskDirectory", inode: _Inode) -> None:
        self._directory = directory
        self._inode = inode

    def overwrite(self, data: bytes) -> None:
        """Replace the content, in memory. It is no operation at which tests fail or crash."""
        if not self._directory.dead:
            before = bytes(self._inode.content)
            changed = [at for at, byte in enumerate(data) if before[at : at + 1] != bytes([byte])]
            middle = changed[len(changed) // 2] if changed else 0
            self._inode.torn = data[:middle] + before[middle:]
            self._inode.overwritten = data

    def close(self) -> None:
        """Nothing is synced by that."""


class DiskDirectory:
    """The folder as one process sees it."""

    last_sync_s = 0.0

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

    def is_ours(self) -> bool:
        """Say whether this process has the lock, and nobody took it away."""
        self._disk.look("lock")
        return self._disk.is_held_by(self)

    def unlock(self) -> None:
        """Give the lock back."""
        self._disk.release(self)
        self.dead = True

    def undo(self) -> None:
        """Give it back; the lock is no file here."""
        self.unlock()

    def names(self) -> list[str]:
        """Return the names in the folder itself."""
        self.step("names")
        return sorted(self._disk.folder("").names)

    def size(self, name: str) -> int:
        """Return the size as this process sees it."""
        self._disk.look(name)
        return len(self._inode(name).content)

    def read(self, name: str, start: int = 0, size_bytes: int | None = None) -> bytes:
        """Return what was written, synced or not."""
        self.step(f"read {name}")
        content = self._inode(name).content
        end = len(content) if size_bytes is None else start + size_bytes
        return bytes(memoryview(content)[start:end])

    def drop_cache(self, name: str) -> None:
        """Forget the pages that are called clean, those of a failed sync too."""
        self.step(f"drop {name}")
        self._inode(name).drop_cache()

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

    def open_write(self, name: str) -> DiskFile:
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
        self._disk.look(name)
        folder, base = self._disk.locate(name)
        return base in folder.names

    def sync(self, folder: str = "") -> None:
        """Make the names of the folder durable."""
        self.step(f"sync folder {folder}")
        place = self._disk.folder(folder)
        place.durable, place.changes = dict(place.names), []

    def free_bytes(self) -> int:
        """Return what is free for this process."""
        self._see_room()
        return self._disk.free_now_bytes()

    def fits_until(self, inode: _Inode, end: int) -> int:
        """Return up to where a file that shall be so long has room."""
        if self._disk.limit_bytes is None:
            return end
        there = _in_blocks(len(inode.content))
        return min(
            end, max(there, there + self._disk.free_now_bytes() // _BLOCK_BYTES * _BLOCK_BYTES)
        )

    def total_bytes(self) -> int:
        """Return what the test says is the size."""
        self._see_room()
        return self._disk.total_bytes

    def _see_room(self) -> None:
        if self._disk.room_errno:
            raise OSError(self._disk.room_errno, "planned failure", "statfs")

    def _inode(self, path: str) -> _Inode:
        folder, name = self._disk.locate(path)
        if name not in folder.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return folder.names[name]


def _in_blocks(size_bytes: int) -> int:
    return -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES


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


def _do(content: bytearray, position: int, data: bytes | None) -> None:
    """Write, or cut off."""
    if data is None:
        del content[position:]
        return
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _sectors(start: int, end: int) -> list[tuple[int, int]]:
    """Return the parts of these bytes that are in one sector each."""
    inner = range(start // _SECTOR_BYTES * _SECTOR_BYTES, end, _SECTOR_BYTES)
    return [(max(start, at), min(end, at + _SECTOR_BYTES)) for at in inner]


def _left_of(inode: _Inode) -> list[bytes]:
    """Return what may be on the medium of a file: all ways that matter in which bytes are lost."""
    if inode.overwritten is not None:
        return sorted({bytes(inode.durable), inode.overwritten, inode.torn})
    found = {bytes(inode.durable)}
    for position, data in inode.pending:
        found |= {left for content in found for left in _left_by(content, position, data)}
    return sorted(found)


def _left_by(content: bytes, position: int, data: bytes | None) -> Iterator[bytes]:
    """Yield what a write or a cut that wasn't synced may make of *content*."""
    if data is None:
        yield content[:position]
        return
    over = max(0, min(len(data), len(content) - position))
    sectors = _sectors(position, position + over)
    tails = _tails(data[over:])
    for kept in _mixes(len(sectors)):
        mixed = bytearray(content)
        for (start, end), is_kept in zip(sectors, kept, strict=True):
            if is_kept:
                mixed[start:end] = data[start - position : end - position]
        for tail in tails:
            left = bytearray(mixed)
            if tail:
                _do(left, position + over, tail)
            yield bytes(left)


def _mixes(count: int) -> Iterator[tuple[bool, ...]]:
    """Yield which of so many sectors are the new ones; of many, the mixes that matter."""
    if count <= _MIXED_SECTORS_MAX:
        yield from _subsets(count)
        return
    for at in range(count + 1):
        yield (True,) * at + (False,) * (count - at)
        yield (False,) * at + (True,) * (count - at)
        yield tuple(place == at for place in range(count))
        yield tuple(place != at for place in range(count))


def _tails(pending: bytes) -> list[bytes]:
    """Return what may be there of bytes that were appended."""
    if not pending:
        return [b""]
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
    return sorted(tails)


def _survive(content: bytearray, position: int, data: bytes | None, rng: random.Random) -> None:
    """Do what a crash leaves of a write, or of a cut."""
    if data is None:
        if rng.random() < 0.5:
            _do(content, position, data)
        return
    over = max(0, min(len(data), len(content) - position))
    share = rng.choice([0.0, 0.5, 1.0])
    for start, end in _sectors(position, position + over):
        if rng.random() < share:
            content[start:end] = data[start - position : end - position]
    tail = _survivor(data[over:], rng)
    if tail:
        _do(content, position + over, tail)


def _survivor(pending: bytes, rng: random.Random) -> bytes:
    """Return what of *pending* a crash leaves: all, a prefix, with holes, with noise."""
    kept = bytearray(pending[: rng.randint(0, len(pending))] if rng.random() < 0.7 else pending)
    if not kept:
        return b""
    harm = rng.randrange(5)
    if harm == 1:
        kept[rng.randrange(len(kept))] ^= 1 << rng.randrange(8)
    elif harm == 2:
        sector = rng.randrange(0, len(kept), _SECTOR_BYTES)
        kept[sector : sector + _SECTOR_BYTES] = bytes(len(kept[sector : sector + _SECTOR_BYTES]))
    elif harm == 3:
        start = rng.randrange(len(kept))
        kept[start:] = bytes(len(kept) - start)
    elif harm == 4:
        start = rng.randrange(len(kept))
        kept[start:] = rng.randbytes(len(kept) - start)
    return bytes(kept)
