"""What a process keeps open of the files that it reads, for the next range of the same file.

A range of a stream begins where the one before ended, often in the middle of what can only be
decoded from its beginning: a row group of a Parquet file, a compressed text. To begin anew for each
range would make the rows of a large file cost more the further in they are. The processes that
read live longer than a task, so they go on where they left off.
"""

import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

# Each is an open file and some megabytes of what is decoded of it.
KEPT_MAX: Final = 8


class Opened(Protocol):
    """What is open, and has to be closed."""

    @property
    def done(self) -> bool:
        """Whether it was read to its end, so that nobody will go on with it."""

    def close(self) -> None:
        """Give back what it holds."""


T = TypeVar("T", bound=Opened)


class _Same(NamedTuple):
    """What is alike as long as a file is the same one, and unchanged.

    With the process: a child would move the position in what its parent has open.
    """

    process: int
    device: int
    inode: int
    size: int
    mtime_ns: int


class KeptFiles(Generic[T]):
    """The open files that were used last, a few. Thread-safe.

    Args:
        most: how many are kept.

    """

    def __init__(self, most: int = KEPT_MAX) -> None:
        self._most = most
        self._kept: dict[tuple[Path, Hashable], tuple[_Same, T]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def use(self, path: Path, how: Hashable, open_anew: Callable[[], T]) -> Iterator[T]:
        """Lend what is open of a file to one user, and keep it unless that fails.

        Args:
            path: the file.
            how: in which way it is read.
            open_anew: opens it if nothing was kept, or the file is another one by now.

        Raises:
            OSError: there is no such file.

        """
        # Looked at before it is opened: at worst, what is kept counts as of an older file.
        same = _same(path)
        with self._lock:
            before, opened = self._kept.pop((path, how), (None, None))
        if opened is not None and before != same:
            opened.close()
            opened = None
        if opened is None:
            opened = open_anew()
        try:
            yield opened
        except BaseException:  # Also where a reader stops early: who knows how far it came.
            opened.close()
            raise
        for one in [opened] if opened.done else self._keep((path, how), (same, opened)):
            one.close()

    def _keep(self, key: tuple[Path, Hashable], kept: tuple[_Same, T]) -> list[T]:
        """Keep something; return what has to go for it."""
        with self._lock:
            gone = [self._kept.pop(key)] if key in self._kept else []
            self._kept[key] = kept
            if len(self._kept) > self._most:
                gone.append(self._kept.pop(next(iter(self._kept))))
        return [opened for _, opened in gone]


def _same(path: Path) -> _Same:
    status = path.stat()
    return _Same(os.getpid(), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
