"""Which rows of which files have which offsets: the index of one partition of a log of files.

::

    <index>/<partition>.jsonl    a header, then a piece a line, in the order of offsets
    <index>/<partition>.lock     held while pieces are added

Files are written by others, come in any order and grow; so what a file's rows are called must be
written down once, and kept. A *piece* is a run of rows in one file. Readers add the pieces they
discover, one process at a time, and fsync them before an offset is given to anybody. A line for a
piece that begins where the last one does replaces it: its file has grown. Half a line, of a
process that died, is cut off by the next one that adds.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from client.spark.disk import fsync_path
from client.spark.logs.partition_log import LogError, LogUnavailable

_VERSION: Final = 1
# When the file holds so many lines that were replaced, it is written anew.
STALE_MAX: Final = 1000
# So much of the file is searched line by line.
SCAN_BYTES: Final = 2**13
LOCK_WAIT_S: Final = 30.0
_LOCK_POLL_S: Final = 0.05


class Piece(NamedTuple):
    """The rows ``base <= offset < end``: a part of one file.

    Attributes:
        file: the path within the partition's folder.
        at: where the piece begins in the file: in bytes for text, in rows for other formats.
        to: where it ends.
        size: of a file that is written once: its size; else 0.

    """

    file: str
    at: int
    to: int
    base: int
    end: int
    size: int


class PieceIndex:
    """The pieces of one partition, as far as they are known.

    Not thread-safe.

    Args:
        folder: where the index is kept.
        partition: the partition.
        about: what must not change while the index is in use, such as the format.

    """

    def __init__(self, folder: Path, partition: int, about: Mapping[str, Any]) -> None:
        self._folder = folder
        self._path = folder / f"{partition}.jsonl"
        self._lock_path = folder / f"{partition}.lock"
        self._header = {"version": _VERSION, **about}
        self._inode = -1
        self._read_to = 0
        self._lines = 0
        self.pieces: list[Piece] = []
        self.files: dict[str, Piece] = {}

    @property
    def end(self) -> int:
        """The offset of the next row."""
        return self.pieces[-1].end if self.pieces else 0

    def load(self) -> None:
        """Read what was added since the last time.

        Raises:
            LogError: the index is damaged, or was made with other options.

        """
        try:
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._read_to, self._lines = inode, 0, 0
                    self.pieces, self.files = [], {}
                file.seek(self._read_to)
                data = file.read()
        except (FileNotFoundError, NotADirectoryError):
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._inode = -1  # So that what fails is read from the start, and fails alike, again.
        try:
            for line in whole.splitlines():
                self._take(json.loads(line))
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from error
        self._read_to += len(whole)
        self._inode = inode

    def find(self, start: int, end: int) -> list[Piece]:
        """Return the pieces with the rows ``start <= offset < end``, as far as they are known.

        Without loading the index: that of many files is long, and a range needs a line or two.

        Raises:
            LogError: the index is damaged, or was made with other options.

        """
        try:
            with self._path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                header = file.readline()
                if header.endswith(b"\n"):
                    self._check(json.loads(header))
                file.seek(_begin_of_search(file, len(header), size, start))
                return _between(file, start, end)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (ValueError, TypeError) as error:
            raise self._damaged(error) from error

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Be the only one to add; what others have added is loaded, and on disk in the end.

        Raises:
            LogError: the index can't be written here.
            LogUnavailable: somebody else adds, for long.

        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        try:
            self._wait_for(lock)
            self.load()
            lines = self._lines
            yield
            if self._lines > lines:
                for written in (self._path, self._folder):
                    fsync_path(written)
        finally:
            os.close(lock)

    def _wait_for(self, lock: int) -> None:
        give_up_s = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= give_up_s:
                    raise LogUnavailable(
                        f"another process has been adding to the index {self._path} for "
                        f"{LOCK_WAIT_S:g} s: many new files take a while"
                    ) from None
                time.sleep(_LOCK_POLL_S)
            else:
                return

    def add(self, pieces: Sequence[Piece]) -> None:
        """Write pieces down, in order; only while `adding`."""
        if not pieces:
            return
        if self._lines > len(self.pieces) + STALE_MAX:
            self._write_anew()
        with self._path.open("ab") as file:
            file.truncate(self._read_to)
            added = b"" if self._read_to else _line(self._header)
            added += b"".join(_line(piece) for piece in pieces)
            file.write(added)
        self.load()

    def _write_anew(self) -> None:
        building = self._path.with_suffix(".building")
        with building.open("wb") as file:
            file.write(_line(self._header))
            file.writelines(_line(piece) for piece in self.pieces)
            file.flush()
            os.fsync(file.fileno())
        building.rename(self._path)
        self.load()

    def _take(self, record: Any) -> None:
        self._lines += 1
        if self._lines == 1:
            self._check(record)
            return
        piece = Piece(*record)
        if self.pieces and piece[:2] == self.pieces[-1][:2]:
            self.pieces.pop()
        if piece.base != self.end or piece.end < piece.base:
            raise ValueError(f"{piece} does not begin where the piece before ends, {self.end}")
        self.pieces.append(piece)
        self.files[piece.file] = piece

    def _check(self, record: Any) -> None:
        if record != self._header:
            raise LogError(
                f"the index {self._path} was made with {record}, not with {self._header}: the "
                "format and the number of partitions can't change; use another 'log.index' "
                "(and another group, as offsets begin anew)"
            )

    def _damaged(self, error: Exception) -> LogError:
        return LogError(f"the index {self._path} is damaged: {error}")


def unwritable(folder: Path, error: OSError) -> LogError:
    """Return what to raise where the index can't be written."""
    return LogError(
        f"the index {folder} can't be written ({error.strerror}): a log of files keeps there which "
        "row has which offset; name another folder, that all drivers and executors share, with "
        "option 'log.index'"
    )


def _piece(line: bytes) -> Piece | None:
    """Return the piece of a line; None of half a line."""
    return Piece(*json.loads(line)) if line.endswith(b"\n") else None


def _begin_of_search(file: BinaryIO, low: int, high: int, offset: int) -> int:
    """Return where a line begins, not far before that of the first piece that ends behind *offset*.

    It is between *low*, where a line begins, and *high*. Ends never fall from line to line.
    """
    while high - low > SCAN_BYTES:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        at = file.tell()
        piece = _piece(file.readline())
        if piece is None or piece.end > offset:
            high = middle
        else:
            low = at
    return low


def _between(lines: Iterable[bytes], start: int, end: int) -> list[Piece]:
    """Return the pieces of *lines* that have rows ``start <= offset < end``."""
    found: list[Piece] = []
    for line in lines:
        piece = _piece(line)
        if piece is None or piece.base >= end:
            break
        if found and piece[:2] == found[-1][:2]:
            found.pop()  # It has grown.
        if found and piece.base != found[-1].end:
            raise ValueError(f"{piece} does not begin where the piece before ends")
        if piece.end > max(start, piece.base):
            found.append(piece)
    return found


def _line(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
