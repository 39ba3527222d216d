"""Files that may be written anew while the daemon runs: which one it is, and what it says."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

FILE_BYTES_MAX: Final = 1024 * 1024
# Which file it is, when it was changed last, and its size; None if there is none to look at.
Look = tuple[int, int, int] | None


class BadFile(Exception):
    """A file of keys or tokens makes no sense; the message names the place and shows no secret."""


def look_at(path: Path) -> Look:
    """Return what is another one whenever the file is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class WatchedFile(Generic[T]):
    """What a file says, which may be written anew at any time.

    Attributes:
        path: The file.
        value: What it said when it last made sense.

    """

    def __init__(self, path: Path, parse: Callable[[str], T]) -> None:
        """Read it.

        Raises:
            BadFile: It can't be read, or makes no sense.
        """
        self.path = path
        self._parse = parse
        self._latest = self._seen = look_at(self.path)
        self.value = self._read()

    def __call__(self) -> T:
        """Return what is in force."""
        return self.value

    def refresh(self, *, force: bool = False) -> bool:
        """Read it if it has changed, or if *force* says so; return whether it was taken.

        Who replaces it may still be writing, so a change is read when the next look finds nothing
        newer. Each is read once: a bad one is told once.

        Raises:
            BadFile: It makes no sense; what was in force stays so.
        """
        look = look_at(self.path)
        is_at_rest, self._latest = look == self._latest, look
        if not force and (look == self._seen or not is_at_rest):
            return False
        self._seen = look
        self.value = self._read()
        return True

    def _read(self) -> T:
        try:
            with self.path.open("rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
            return self._parse(_within_bounds(data).decode())
        except OSError as exc:
            raise BadFile(f"{self.path}: {exc.strerror}") from None
        except UnicodeDecodeError:
            raise BadFile(f"{self.path}: it is no UTF-8") from None
        except BadFile as exc:
            raise BadFile(f"{self.path}: {exc}") from None


def _within_bounds(data: bytes) -> bytes:
    if len(data) > FILE_BYTES_MAX:
        raise BadFile(f"it has more than {FILE_BYTES_MAX} bytes")
    return data
