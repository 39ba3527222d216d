"""What is asked of the engine that keeps the log, what comes back, and what it tells unasked.

Nothing here knows how the engine is reached. `znodes` says which reads and transactions of
ZooKeeper each request is, and what their results mean.

The contract
============

1. Requests are done in the order in which they were submitted, and so are their answers: each
   request is answered once, in the event loop, and never before `submit` has returned.
2. A request for which there is no connection is answered LOST at once. None is kept to be sent
   later, and none is ever sent twice: whoever asked repeats what must be repeated.
3. A connection that breaks: first every request that is on its way is answered LOST, then
   `Suspended` is told, then perhaps `Expired`, then `Connected`. What was lost may have been
   applied, may never be, or may be later, even beside what follows. No answer of a former
   connection comes behind `Suspended`.
4. `Connected` with another session means that the former one is not used any more. It may not have
   ended yet: its ephemeral nodes stay until it has, unless `Expired` was told.
5. Within a session what is read never goes back. A new session may see less than the former one
   did, until its first write.
6. A watch is told once (`Fired`), behind the answer to the request that set it, and ends with the
   connection. Equal requests share one. It says that something is different, never what; and it is
   told before the answer to any request that sees more of what happened.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol

# Of one transaction, with its paths; what the engine takes by itself is twice of it.
TRANSACTION_BYTES_MAX: Final = 512 * 1024
# So many entries a `Trim` removes at most, and a `ReadEntries` asks for.
TRIM_ENTRIES_MAX: Final = 128
READ_ENTRIES_MAX: Final = 64
READ_CHUNKS_MAX: Final = 8


class Code(Enum):
    """What became of a request."""

    OK = auto()  # Done, as asked.
    EXISTS = auto()  # What was to be made is there already. Not applied.
    MISSING = auto()  # What was to be read, changed or removed isn't there. Not applied.
    FENCED = auto()  # The version of `leader` is another one. Not applied.
    CONFLICT = auto()  # The version of what was to be replaced is another one. Not applied.
    GAP = auto()  # The entry before the one to be appended isn't there. Not applied.
    GONE = auto()  # A znode isn't there that every cluster has; `value` names it. Not applied.
    REFUSED = auto()  # Anything else that is surely not applied; `value` says what, in words.
    LOST = auto()  # Nobody knows. What only reads is asked again.


class Reply(NamedTuple):
    """The answer to a request.

    Attributes:
        value: What was read; see the request. A str if it was GONE or REFUSED.
        version: Of the one znode that was read or replaced.
        owner: The session that an ephemeral node belongs to, else 0.
        changed_ms: When it was last replaced, by the engine's wall clock, to be shown; -1 if not
            known.
        stray: A znode among those that were listed, "" if none, that is no part of a cluster.
    """

    code: Code
    value: Any = None
    version: int = 0
    owner: int = 0
    changed_ms: int = -1
    stray: str = ""


# --- What stands in the znodes -------------------------------------------------------------

# Leads where nobody does, as in Kafka. No session has the number 0: whoever comes first claims.
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a journal. The version of its znode is the fence.

    Attributes:
        epoch: Raised with every claim, renewal and hand-over.
        run: The life of the process, random; renewals keep it.
        session: Its session. Once that has ended, anyone may claim.
        claim: Of this one try to lead, random: what tells after a lost answer whose try it was.
        is_frozen: Nobody leads, and nobody may claim: the cluster is being exported.
        is_moved: An operator wants it there: of what a node has too much of, this goes last.
    """

    epoch: int
    node: int
    run: str
    session: int
    claim: str
    is_frozen: bool = False
    is_moved: bool = False


@dataclass(frozen=True, slots=True)
class Registration:
    """A node that is there.

    Attributes:
        endpoints: Where clients reach it, as `name://host:port` of each listener, the first one
            first.
        timestamp_ms: Wall clock, at which it was registered.
        run: The life of the process, random.
        formats: The lowest and the highest format of the log that it reads.
        is_ready: It follows every journal, so it may lead any.
        is_stopping: It is about to end, and won't be ready any more.
    """

    node: int
    endpoints: tuple[str, ...]
    timestamp_ms: int
    run: str
    formats: tuple[int, int]
    is_ready: bool
    is_stopping: bool = False

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """The host and the port of each listener."""
        return tuple(map(_host_and_port, self.endpoints))


def _host_and_port(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the log of a journal comes to, up to an index.

    Attributes:
        index: The last entry that is in it.
        name: Of its chunks, random; "" for the one that a journal is made with, which is empty.
        chunks: How many there are.
        size_bytes: Of all chunks together.
        crc32: Of all chunks together, one after the other.
        ends: By partition, the end offset as of *index*.
        compacted_below: By partition, the offset below which tombstones may be missing.
    """

    index: int = 0
    name: str = ""
    chunks: int = 0
    size_bytes: int = 0
    crc32: int = 0
    ends: dict[int, int] = field(default_factory=dict)
    compacted_below: dict[int, int] = field(default_factory=dict)


# --- The cluster ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadCluster:
    """Read which cluster it is, and watch that. `value`: its id."""


# --- Nodes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """Make this session's ephemeral node. OK, EXISTS; `ReadNode` tells whose it is then."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class Announce:
    """Replace what this session has registered. MISSING: the session has ended since."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class ListNodes:
    """Read which nodes are registered, and watch for others. `value`: tuple of node ids."""


@dataclass(frozen=True, slots=True)
class ReadNode:
    """Read one registration, and watch it. `value`: `Registration`, with its `owner`. MISSING.

    The value is None if somebody else has registered, such as a broker of Kafka.

    Attributes:
        journal: Which of the journals asks, before it claims; -1 for the node that they are of.
    """

    node: int
    journal: int = -1


# --- Leadership ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadLeader:
    """Read who leads, and watch it. `value`: `Leader`, None if there never was one; `version`."""

    journal: int


@dataclass(frozen=True, slots=True)
class SetLeader:
    """Claim, renew, or hand over: replace `leader`, if its version is *version*. OK, FENCED.

    Then its version is *version* + 1. In the same transaction the states of the journal's
    partitions are set, for people and tools.

    Attributes:
        partitions: Those of the journal.
        in_sync: The ready nodes.
    """

    journal: int
    version: int
    leader: Leader
    partitions: tuple[int, ...]
    in_sync: tuple[int, ...]


# --- The log -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Append entries at *index* and behind it. OK, FENCED, EXISTS, GAP.

    In one transaction: check the version of `leader`, check that the entry before is there, make
    these. A repeated try is the same request, whatever its version.

    Attributes:
        entries: As `entries.encode` makes them.
    """

    journal: int
    version: int
    index: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Confirm:
    """Check the version of `leader`, by a transaction that does nothing else. OK, FENCED."""

    journal: int
    version: int


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read entries from *index* on. `value`: tuple of bytes, up to the first that isn't there.

    So it is OK with an empty tuple if the first isn't: not written yet, not seen yet, or trimmed.
    """

    journal: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class WatchEntry:
    """Watch for the entry *index*. OK: it is there already, and no watch is set. MISSING: it is."""

    journal: int
    index: int


@dataclass(frozen=True, slots=True)
class ListLog:
    """Read which entries there are in the directory of *index*. `value`: sorted tuple of indexes.

    With *index* None: `value` is the lowest index that each directory may have, sorted.
    """

    journal: int
    index: int | None


@dataclass(frozen=True, slots=True)
class Trim:
    """Remove the entries *first* to *last*, fenced. OK, FENCED; MISSING: a lost try did it.

    Attributes:
        last: It is below the newest entry, which must stay.
        has_stray: Something else lies in their directory: that stays, too.
    """

    journal: int
    version: int
    first: int
    last: int
    has_stray: bool = False


# --- Snapshots -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Read what the newest snapshot is, and watch it. `value`: `Snapshot`; `version`."""

    journal: int


@dataclass(frozen=True, slots=True)
class ReadChunks:
    """Read chunks of a snapshot. `value`: tuple of bytes, up to the first that isn't there.

    There is a newer snapshot if one is missing that should be there.
    """

    journal: int
    name: str
    chunk: int
    count: int


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Write one chunk of a snapshot that nobody knows yet; the first one makes its room.

    EXISTS: an earlier try, as the name is random.
    """

    journal: int
    name: str
    chunk: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Install:
    """Make *snapshot* the newest one, fenced. OK, FENCED; CONFLICT: another one was installed.

    MISSING: its chunks are gone.

    Attributes:
        snapshot_version: Of the one that it replaces, as `ReadSnapshot` told.
    """

    journal: int
    version: int
    snapshot: Snapshot
    snapshot_version: int


@dataclass(frozen=True, slots=True)
class ListSnapshots:
    """Read for which snapshots there are chunks. `value`: tuple of names."""

    journal: int


@dataclass(frozen=True, slots=True)
class ListChunks:
    """Read which chunks there are of a snapshot. `value`: sorted tuple of numbers. MISSING."""

    journal: int
    name: str


@dataclass(frozen=True, slots=True)
class RemoveChunks:
    """Remove chunks of an older snapshot, fenced. OK, FENCED; MISSING: a lost try did it.

    Attributes:
        is_last: Nothing at all is left then: remove its room, too.
    """

    journal: int
    version: int
    name: str
    chunks: tuple[int, ...]
    is_last: bool


# --- Deleted topics ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadPurged:
    """Read up to which registry version a journal has removed offsets, and watch it. An int."""

    journal: int


@dataclass(frozen=True, slots=True)
class SetPurged:
    """Replace that, fenced. OK, FENCED."""

    journal: int
    version: int
    purged: int


Request = (
    ReadCluster
    | Register
    | Announce
    | ListNodes
    | ReadNode
    | ReadLeader
    | SetLeader
    | Append
    | Confirm
    | ReadEntries
    | WatchEntry
    | ListLog
    | Trim
    | ReadSnapshot
    | ReadChunks
    | WriteChunk
    | Install
    | ListSnapshots
    | ListChunks
    | RemoveChunks
    | ReadPurged
    | SetPurged
)


# --- What the engine tells -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """There is a connection. *session* is the former one, or a new one; never 0."""

    session: int


@dataclass(frozen=True, slots=True)
class Suspended:
    """The connection broke. The session lives on for its timeout, as far as anyone knows.

    Attributes:
        silent_ms: For how long nothing had come from the ensemble.
    """

    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class Expired:
    """The session has ended, by the engine's own word, and its ephemeral nodes with it."""


@dataclass(frozen=True, slots=True)
class Fired:
    """What *request* has set a watch on is different now, perhaps."""

    request: Request


Event = Connected | Suspended | Expired | Fired


class Engine(Protocol):
    """A session with what keeps the log. Its events go to whom it was made with."""

    def submit(self, request: Request, done: Callable[[Reply], None]) -> None:
        """Have *request* done, and *done* called with the answer."""

    async def run(self) -> None:
        """Keep a session, until cancelled; nothing is told before."""
