"""Requests to the engine that keeps the log, their replies, and the engine's events.

This module is independent of the connection to the engine. `znodes` maps each request to reads
and transactions of ZooKeeper, and their results to replies.

The contract
============

1. Requests are done and answered in the order of their submission. Each request is answered
   once, in the event loop, and never before `submit` has returned.
2. A request without a connection is answered LOST soon after `submit`. The engine keeps no request
   to send it later, and sends none twice: repeating one is the caller's task.
3. When a connection breaks, first every request in flight is answered LOST, then `Suspended` is
   announced, then perhaps `Expired`, then `Connected`. A lost request may have been applied, may
   never be, or may be later, even concurrently with later requests. No answer of a former
   connection comes after `Suspended`.
4. `Connected` with another session means that the former one is not used any more. The former
   session may not have ended yet: its ephemeral nodes stay until then, unless `Expired` was
   announced.
5. Within a session reads never go back in time. A new session may read an older state than the
   former one did, until its first write.
6. A watch is announced once (`Fired`), after the answer to the request that set it, and ends with
   the connection. Equal requests share one watch. `Fired` says that something changed, never what;
   it comes before the answer to any request that reads a later state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol

# Limit of one transaction in bytes, with its paths: half of what the engine accepts by default.
TRANSACTION_BYTES_MAX: Final = 512 * 1024
# Entries per `Trim`, entries per `ReadEntries`, and chunks per `ReadChunks`, at most.
TRIM_ENTRIES_MAX: Final = 128
READ_ENTRIES_MAX: Final = 64
READ_CHUNKS_MAX: Final = 8


class Code(Enum):
    """Outcome of a request. Only OK means applied; LOST may have been."""

    OK = auto()  # Done.
    EXISTS = auto()  # The znode to create exists already.
    MISSING = auto()  # The znode to read, change or remove doesn't exist.
    FENCED = auto()  # The znode `leader` has another version.
    CONFLICT = auto()  # The znode to replace has another version.
    GAP = auto()  # The entry before the first appended one doesn't exist.
    GONE = auto()  # A znode that every cluster has doesn't exist; `value` is its path.
    REFUSED = auto()  # Any other failure that is certain; `value` is the reason, in words.
    LOST = auto()  # Unknown outcome. Requests that only read are repeated.


class Reply(NamedTuple):
    """The answer to a request.

    Attributes:
        value: Content that was read; see the request. A str if the code is GONE or REFUSED.
        version: Version of the znode, if the request reads a single one.
        owner: Session that owns an ephemeral node, else 0.
        changed_ms: Time of the znode's last change by the engine's wall clock, for display; -1 if
            not known.
        stray: Path of a listed znode that is no part of a cluster; "" if none.
    """

    code: Code
    value: Any = None
    version: int = 0
    owner: int = 0
    changed_ms: int = -1
    stray: str = ""


# --- Contents of the znodes ----------------------------------------------------------------

# Node id of the leader where no node leads, as in Kafka. Such a `Leader` has session 0, which no
# node has: so the first node to come claims.
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class Leader:
    """Leadership of a journal. The version of its znode is the fence.

    Attributes:
        epoch: Leader epoch, raised by every claim, renewal and hand-over.
        run: Random id of the node's process; renewals keep it.
        session: Session of the node. Once the session has ended, any node may claim.
        claim: Random id of this one attempt to lead: identifies the attempt if its answer is lost.
        is_frozen: No node leads or may claim: the cluster is exported.
        is_moved: An operator moved the journal to this node, so balancing moves it away last.
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
    """A registered node.

    Attributes:
        endpoints: Addresses for clients, as `name://host:port` of each listener, in their order.
        timestamp_ms: Wall-clock time of the registration.
        run: Random id of the process.
        formats: The lowest and the highest log format that the node reads.
        is_ready: The node follows every journal, so it may lead any.
        is_stopping: The node is about to end, and won't be ready any more.
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
        """Host and port of each listener."""
        return tuple(map(_host_and_port, self.endpoints))


def _host_and_port(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.partition("://")[2].rpartition(":")
    return host.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Log snapshot: the live contents of a journal's log up to an index.

    Attributes:
        index: Index of the last entry in it.
        name: Random name of its chunks; "" for a new journal's first snapshot, which is empty.
        chunks: Number of chunks.
        size_bytes: Total size of the chunks.
        crc32: Checksum of all chunks, concatenated.
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
    """Read the cluster id, and watch it. `value`: the id."""


# --- Nodes ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """Create this session's ephemeral node. OK; EXISTS: `ReadNode` returns its owner."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class Announce:
    """Replace this session's registration. OK; MISSING: the session has ended."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class ListNodes:
    """List the registered nodes, and watch the list. `value`: tuple of node ids."""


@dataclass(frozen=True, slots=True)
class ReadNode:
    """Read one registration, and watch it. `value`: `Registration`, with its `owner`. MISSING.

    The value is None if the registration is not one of ours, such as that of a broker of Kafka.

    Attributes:
        journal: The journal that sends the request before it claims; -1 for the node itself.
    """

    node: int
    journal: int = -1


# --- Leadership ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadLeader:
    """Read the leader, and watch it. `value`: `Leader`, None if there never was one; `version`."""

    journal: int


@dataclass(frozen=True, slots=True)
class SetLeader:
    """Claim, renew, or hand over: replace `leader`, if its version is *version*. OK, FENCED.

    The new version is *version* + 1. The same transaction sets the states of the journal's
    partitions, for people and tools.

    Attributes:
        partitions: Partitions of the journal.
        in_sync: Ready nodes.
    """

    journal: int
    version: int
    leader: Leader
    partitions: tuple[int, ...]
    in_sync: tuple[int, ...]


# --- The log -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Append entries from *index* on. OK, FENCED, EXISTS, GAP.

    One transaction checks the version of `leader`, checks that the entry before *index* exists,
    and creates the entries. A repeated attempt is the same request, whatever its version.

    Attributes:
        entries: Entries as `entries.encode` returns them.
    """

    journal: int
    version: int
    index: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Confirm:
    """Check the version of `leader`, in a transaction of its own. OK, FENCED."""

    journal: int
    version: int


@dataclass(frozen=True, slots=True)
class ReadEntries:
    """Read entries from *index* on. `value`: tuple of bytes, up to the first missing entry.

    The code is OK with an empty tuple if entry *index* is missing: not written, not visible to
    this server yet, or trimmed.
    """

    journal: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class WatchEntry:
    """Watch for the entry *index*. OK: it exists, and no watch is set. MISSING: a watch is set."""

    journal: int
    index: int


@dataclass(frozen=True, slots=True)
class ListLog:
    """List the entries in the directory of *index*. `value`: sorted tuple of indexes. MISSING.

    With *index* None: `value` is the lowest possible index of each directory, sorted.
    """

    journal: int
    index: int | None


@dataclass(frozen=True, slots=True)
class Trim:
    """Remove the entries *first* to *last*, fenced. OK, FENCED; MISSING: a lost attempt did it.

    Attributes:
        last: Index below the newest entry, which must stay.
        has_stray: The directory has a foreign znode, too, so the directory stays.
    """

    journal: int
    version: int
    first: int
    last: int
    has_stray: bool = False


# --- Snapshots -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """Read the newest snapshot's description, and watch it. `value`: `Snapshot`; `version`."""

    journal: int


@dataclass(frozen=True, slots=True)
class ReadChunks:
    """Read chunks of a snapshot. `value`: tuple of bytes, up to the first missing chunk.

    A missing chunk below the snapshot's number of chunks means that a newer snapshot was installed.
    """

    journal: int
    name: str
    chunk: int
    count: int


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Write one chunk of a snapshot that isn't installed; chunk 0 creates the parent, too.

    OK; EXISTS: an earlier attempt wrote it, as the name is random.
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
        snapshot_version: Version of the replaced snapshot, as `ReadSnapshot` returned it.
    """

    journal: int
    version: int
    snapshot: Snapshot
    snapshot_version: int


@dataclass(frozen=True, slots=True)
class ListSnapshots:
    """List the snapshots that have chunks. `value`: tuple of names."""

    journal: int


@dataclass(frozen=True, slots=True)
class ListChunks:
    """List the chunks of a snapshot. `value`: sorted tuple of numbers. MISSING."""

    journal: int
    name: str


@dataclass(frozen=True, slots=True)
class RemoveChunks:
    """Remove chunks of an older snapshot, fenced. OK, FENCED; MISSING: a lost attempt did it.

    Attributes:
        is_last: No chunk is left then: remove their parent, too.
    """

    journal: int
    version: int
    name: str
    chunks: tuple[int, ...]
    is_last: bool


# --- Deleted topics ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadPurged:
    """Read the registry version up to which a journal has removed offsets; watch it. An int."""

    journal: int


@dataclass(frozen=True, slots=True)
class SetPurged:
    """Set the version that `ReadPurged` reads, fenced. OK, FENCED."""

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


# --- Events of the engine ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection is up. *session* is the former one, or a new one; never 0."""

    session: int


@dataclass(frozen=True, slots=True)
class Suspended:
    """The connection broke. The session may live on for its timeout.

    Attributes:
        silent_ms: Time since the last data from the ensemble.
    """

    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class Expired:
    """The engine has ended the session, and its ephemeral nodes with it."""


@dataclass(frozen=True, slots=True)
class Fired:
    """The watch set by *request* fired: its content may have changed."""

    request: Request


Event = Connected | Suspended | Expired | Fired


class Engine(Protocol):
    """A session with the store of the log. Events go to the callback given on construction."""

    def submit(self, request: Request, done: Callable[[Reply], None]) -> None:
        """Submit *request*; *done* is called with the reply."""

    async def run(self) -> None:
        """Keep a session until cancelled; no event comes before `run` starts."""
