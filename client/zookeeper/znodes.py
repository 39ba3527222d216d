"""Offsets as znodes: where they lie, what is in them, and how one is written. Pure.

Theory of operation
===================

Kafka 0.8 kept a group's offsets in ``/consumers/GROUP/offsets/TOPIC/PARTITION``, as decimal
digits. Whoever owned a partition overwrote its znode, whatever was in it. So an owner that was
frozen in the middle of that, and replaced meanwhile, put the offset back when it woke up.

Here a znode is overwritten by its version. A writer knows the version of each znode that it has
read or written, and overwrites just that one: its own past, whether that moves forward or back.
If somebody else has written since, it looks, and goes on only where that moves the offset
forward. An answer that was lost is cured the same way.

`ZnodeWrite` is one such write as a machine: requests out, replies in. `client.zookeeper.ensemble`
carries them.
"""

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from protocol.partition import INT64_MAX

ROOT: Final = "/consumers"

# What ZooKeeper's own PathUtils refuses, and halves of characters, which can't be sent. A character
# beyond U+FFFF is two of those halves there.
_ILLEGAL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff/]")


def offsets_path(group: str, *names: object) -> str:
    """Return the znode of a group's offsets; with a topic, and a partition, what is below it."""
    return "/".join((ROOT, group, "offsets", *map(str, names)))


def name_problem(name: str) -> str | None:
    """Return why *name* can't be that of a znode, None if it can."""
    if not name or name in {".", ".."}:
        return "no znode may have this name"
    if found := _ILLEGAL.search(name):
        return f"no znode may have {found[0]!r} in its name"
    return None


def encoded(offset: int) -> bytes:
    """Return what is in the znode of *offset*."""
    return b"%d" % offset


def decoded(data: bytes | None) -> int:
    """Return the offset in a znode.

    Raises:
        ValueError: There is none; the message ends a sentence about what is there.
    """
    text = b"" if data is None else data
    if not text:
        raise ValueError("is empty")
    if len(text) <= 20 and text.isdigit() and (offset := int(text)) <= INT64_MAX:
        return offset
    shown = text[:40].decode("utf-8", "replace") + ("…" if len(text) > 40 else "")
    raise ValueError(f"is {shown!r}, and no offset")


# --- Requests, and what comes back ------------------------------------------------------------


class Read(NamedTuple):
    """Read a znode."""

    path: str


class Set(NamedTuple):
    """Overwrite a znode that has this version."""

    path: str
    data: bytes
    version: int


class Create(NamedTuple):
    """Make a znode, and what is missing above it."""

    path: str
    data: bytes


class Found(NamedTuple):
    """What is in a znode."""

    data: bytes
    version: int


class Written(NamedTuple):
    """A znode was set or made, and has this version."""

    version: int


class Failed(NamedTuple):
    """The ensemble refuses it; *why* is a sentence for people."""

    why: str


class Status(Enum):
    """What else may come back.

    Attributes:
        MISSING: There is no such znode.
        EXISTS: There is one already.
        CHANGED: It has another version.
        LOST: The connection broke, or time was up: it was done, or not, or will be.
        UNKNOWN: The server is too old to know such a request.

    """

    MISSING = auto()
    EXISTS = auto()
    CHANGED = auto()
    LOST = auto()
    UNKNOWN = auto()


Request = Read | Set | Create
Reply = Found | Written | Failed | Status


class ZnodeWrite:
    """One offset on its way into its znode.

    Attributes:
        request: What to ask next; None when it is over.
        offset: What is to stand there.
        version: Of the znode, once it has this offset; None where somebody else's is kept.
        kept: The larger offset of somebody else's that is kept; None where none is.
        failure: Why it can't be written, None if it can.

    """

    def __init__(self, path: str, offset: int, known: int | None, *, is_reset: bool) -> None:
        """Begin.

        Args:
            path: Of the znode.
            offset: What is to stand there.
            known: The version that this writer has last read or written, None if it has none.
            is_reset: It is an operator's, of a group without members: also back, over whatever
                is found there.
        """
        self.offset = offset
        self.version: int | None = None
        self.kept: int | None = None
        self.failure: str | None = None
        self._path = path
        self._known = known
        self._is_reset = is_reset
        self.request: Request | None = Read(path) if known is None or is_reset else self._set(known)

    def take(self, reply: Reply) -> None:
        """Go on by what came back."""
        match reply:
            case Written(version):
                self._end(version)
            case Found(data, version):
                self._found(data, version)
            case Failed(why):
                self.failure = why
                self._end(None)
            case Status.MISSING:
                self.request = Create(self._path, encoded(self.offset))
            case _:  # Somebody else wrote it, or nobody knows.
                self.request = Read(self._path)

    def _found(self, data: bytes, version: int) -> None:
        try:
            there = decoded(data)
        except ValueError:
            there = -1  # Nothing that anybody could begin at.
        if there == self.offset:
            self._end(version)
        elif there < self.offset or self._is_reset or version == self._known:
            self.request = self._set(version)
        else:
            self.kept = there
            self._end(None)

    def _set(self, version: int) -> Set:
        return Set(self._path, encoded(self.offset), version)

    def _end(self, version: int | None) -> None:
        self.version = version
        self.request = None


# --- Both places ------------------------------------------------------------------------------


class Merge:
    """The larger offset of both places, and what that hides.

    A commit on the condition that the larger one is still there can be checked by the coordinator
    only as the one that *it* has.
    """

    def __init__(self) -> None:
        """Begin with nothing hidden."""
        self._hidden: dict[object, tuple[int, int]] = {}  # What was fetched, and what was hidden.

    def fetched(self, key: object, coordinator: int, znode: int) -> bool:
        """Take note of what was found, -1 for nothing; return whether the znode's is larger."""
        if znode <= coordinator:
            self._hidden.pop(key, None)
            return False
        self._hidden[key] = znode, coordinator
        return True

    def expected(self, key: object, offset: int) -> int:
        """Return what the coordinator has to have where *offset* was fetched; -1 for nothing."""
        shown, hidden = self._hidden.get(key, (None, offset))
        return hidden if shown == offset else offset

    def committed(self, key: object) -> None:
        """Take note that the coordinator has what was committed."""
        self._hidden.pop(key, None)
