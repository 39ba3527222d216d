"""Offsets as znodes: path, contents, and the steps of a write. Pure.

Theory of operation
===================

Kafka 0.8 kept a group's offsets in ``/consumers/GROUP/offsets/TOPIC/PARTITION``, as decimal
digits. The owner of a partition overwrote its znode without a check. An owner that was frozen
during the write, and replaced while it was frozen, moved the offset back when it woke up.

Here a write names the version of the znode that it replaces. A writer remembers the version of each
znode that it has read or written, and may overwrite that version with any offset, larger or
smaller. If the znode has another version, another client has written it: the writer reads it, and
goes on only if its own offset is larger. A lost answer is handled in the same way.

`ZnodeWrite` is one write as a state machine: requests out, replies in. `client.zookeeper.ensemble`
carries them.
"""

import re
from enum import Enum, auto
from typing import Final, NamedTuple

from protocol.partition import INT64_MAX

ROOT: Final = "/consumers"

# Characters that no name of a znode may contain: those that ZooKeeper's own PathUtils refuses, and
# surrogates, which can't be sent. In Java a character beyond U+FFFF is two surrogates.
_ILLEGAL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff/]")


def offsets_path(group: str, *names: object) -> str:
    """Return the path of a group's offsets; *names*: a topic, or a topic and a partition."""
    return "/".join((ROOT, group, "offsets", *map(str, names)))


def name_problem(name: str) -> str | None:
    """Return why no znode can have this name; None if one can."""
    if not name or name in {".", ".."}:
        return "no znode may have this name"
    if found := _ILLEGAL.search(name):
        return f"no znode may have {found[0]!r} in its name"
    return None


def encoded(offset: int) -> bytes:
    """Return the contents of a znode with *offset*."""
    return b"%d" % offset


def decoded(data: bytes | None) -> int:
    """Return the offset in a znode.

    Raises:
        ValueError: It holds no offset. The message is the end of a sentence whose subject is the
            znode, such as "is empty".
    """
    text = b"" if data is None else data
    if not text:
        raise ValueError("is empty")
    if len(text) <= 20 and text.isdigit() and (offset := int(text)) <= INT64_MAX:
        return offset
    shown = text[:40].decode("utf-8", "replace") + ("…" if len(text) > 40 else "")
    raise ValueError(f"is {shown!r}, and no offset")


# --- Requests and replies ---------------------------------------------------------------------


class Read(NamedTuple):
    """Read a znode."""

    path: str


class Set(NamedTuple):
    """Overwrite a znode if it has this version."""

    path: str
    data: bytes
    version: int


class Create(NamedTuple):
    """Create a znode, and its missing parents."""

    path: str
    data: bytes


class Found(NamedTuple):
    """Contents of a znode that was read."""

    data: bytes
    version: int


class Written(NamedTuple):
    """A znode was overwritten or created, and has this version now."""

    version: int


class Failed(NamedTuple):
    """The ensemble refuses the request; *why* is a text for people."""

    why: str


class Status(Enum):
    """Reply without a result.

    Attributes:
        MISSING: The znode doesn't exist.
        EXISTS: The znode exists already.
        CHANGED: The znode has another version.
        LOST: The connection broke, or the time was up: the request was done, wasn't, or will be.
        UNKNOWN: The server is too old for this kind of request.

    """

    MISSING = auto()
    EXISTS = auto()
    CHANGED = auto()
    LOST = auto()
    UNKNOWN = auto()


Request = Read | Set | Create
Reply = Found | Written | Failed | Status


class ZnodeWrite:
    """The write of one offset into its znode, as a state machine.

    Attributes:
        request: The next request; None once the write is over.
        offset: The offset to write.
        version: Version of the znode once it has this offset; None if another client's is kept.
        kept: The larger offset, written by another client, that is kept; None otherwise.
        failure: Why the offset can't be written; None if it can.

    """

    def __init__(self, path: str, offset: int, known: int | None, *, is_reset: bool) -> None:
        """Set the first request.

        Args:
            path: Path of the znode.
            offset: The offset to write.
            known: The version that this writer last read or wrote; None if there is none.
            is_reset: Whether an operator sets the offset of a group without members. Any contents
                are then overwritten, larger offsets too.
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
        """Take the reply to `request`, and set the next request."""
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
            case _:  # Written by another client, or the outcome is unknown.
                self.request = Read(self._path)

    def _found(self, data: bytes, version: int) -> None:
        try:
            there = decoded(data)
        except ValueError:
            there = -1  # No offset that a reader could use: overwrite it.
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


# --- Coordinator and ZooKeeper ----------------------------------------------------------------


class Merge:
    """Remembers the coordinator's offsets that a larger offset of a znode hides from the client.

    The client gets the larger offset of both. If a commit expects that offset, the coordinator can
    only compare its own: `expected` translates the one into the other.
    """

    def __init__(self) -> None:
        """Begin with nothing hidden."""
        self._hidden: dict[object, tuple[int, int]] = {}  # (znode's offset, coordinator's offset)

    def fetched(self, key: object, coordinator: int, znode: int) -> bool:
        """Note both offsets, -1 for none; return whether the znode's is larger."""
        if znode <= coordinator:
            self._hidden.pop(key, None)
            return False
        self._hidden[key] = znode, coordinator
        return True

    def expected(self, key: object, offset: int) -> int:
        """Return the coordinator's offset where *offset* was fetched; -1 for none."""
        shown, hidden = self._hidden.get(key, (None, offset))
        return hidden if shown == offset else offset

    def committed(self, key: object) -> None:
        """Note that the coordinator has the client's offset now, and nothing is hidden."""
        self._hidden.pop(key, None)
