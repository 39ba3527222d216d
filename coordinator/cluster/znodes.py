"""Requests as operations of ZooKeeper: paths, contents, transactions, and results as replies.

Each request is one operation of ZooKeeper: a transaction, reads of znodes, a check whether one
exists, or a list of children. `zookeeper` does the operation and passes its result back here; it is
independent of journals. All paths are under the cluster's chroot. docs/log-format.md has the table.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import takewhile
from typing import Any, Final

from coordinator.cluster import engine
from coordinator.cluster.engine import NO_LEADER, Code, Leader, Registration, Reply, Snapshot

CLUSTER_ID: Final = "/cluster/id"
LAYOUT: Final = "/cluster/layout"
SECRET: Final = "/cluster/secret"  # noqa: S105 - where it is
# Indexes per directory of the log. Limited, as every change of its children raises the 32-bit
# version that ZooKeeper keeps of a directory by one.
ENTRIES_PER_DIRECTORY: Final = 1_000_000
ANY_VERSION: Final = -1

# Names of nodes, entries, their directories and chunks.
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")
_TOPIC: Final = "/brokers/topics/__consumer_offsets"


# --- Operations of ZooKeeper --------------------------------------------------------------


class Failure(Enum):
    """Expected reasons for which a transaction fails; all others are reported as `Odd`."""

    NODE_EXISTS = auto()
    NO_NODE = auto()
    BAD_VERSION = auto()


# Code of the request for each failure of one change of its transaction.
Meanings = Mapping[Failure, Code]

# Meanings for a znode that exists as long as the cluster does.
_LASTS: Final = {Failure.NO_NODE: Code.GONE}
_FENCE: Final = {Failure.BAD_VERSION: Code.FENCED, **_LASTS}
_BEFORE: Final = {Failure.NO_NODE: Code.GAP}
_MADE: Final = {Failure.NODE_EXISTS: Code.EXISTS}
_REPLACED: Final = {Failure.BAD_VERSION: Code.CONFLICT, Failure.NO_NODE: Code.MISSING}
_REMOVED: Final = {Failure.NO_NODE: Code.MISSING}


@dataclass(frozen=True, slots=True)
class Check:
    """Fail unless *path* exists in this version; in any if it is `ANY_VERSION`."""

    path: str
    version: int
    meanings: Meanings


@dataclass(frozen=True, slots=True)
class Make:
    """Create *path* with the default ACL, persistent unless *is_ephemeral*."""

    path: str
    data: bytes
    meanings: Meanings = field(default_factory=dict)
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace the content of *path* if it has this version; in any if it is `ANY_VERSION`."""

    path: str
    data: bytes
    version: int
    meanings: Meanings


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete *path* in any version."""

    path: str
    meanings: Meanings


Change = Check | Make | Set | Remove


@dataclass(frozen=True, slots=True)
class Multi:
    """Transaction: apply all changes in this order, or none. Result: `Applied`, `Failed`."""

    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class Get:
    """Read znodes, one after the other. Result: `Contents`.

    Attributes:
        watches: Watch the data of the single znode, if it exists.
    """

    paths: tuple[str, ...]
    watches: bool


@dataclass(frozen=True, slots=True)
class Look:
    """Check whether *path* exists, and watch for it if it doesn't. Result: `Seen`."""

    path: str


@dataclass(frozen=True, slots=True)
class Children:
    """Read the names of the children of *path*. Result: `Names`."""

    path: str
    watches: bool


Operation = Multi | Get | Look | Children


@dataclass(frozen=True, slots=True)
class Znode:
    """Content and metadata of one znode; *owner* and *changed_ms* as in `Reply`."""

    data: bytes
    version: int
    owner: int = 0
    changed_ms: int = -1


@dataclass(frozen=True, slots=True)
class Applied:
    """The transaction was applied."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The transaction was not applied: its change *at*, counted from 0, failed."""

    at: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Contents:
    """The znode of each path; None for one that doesn't exist."""

    znodes: tuple[Znode | None, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The znode exists, or doesn't."""

    is_there: bool


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the children, unordered; None if the parent doesn't exist."""

    names: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Odd:
    """Certainly not done, for an unexpected reason: missing rights, or an exceeded quota."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Unknown outcome: the connection or session was lost, or the answer took too long."""


Result = Applied | Failed | Contents | Seen | Names | Odd | Lost


# --- Paths ---------------------------------------------------------------------------------


def node_path(node: int) -> str:
    return f"/brokers/ids/{node}"


def leader_path(journal: int) -> str:
    return f"/journals/{journal}/leader"


def entry_path(journal: int, index: int) -> str:
    return f"{_directory_path(journal, index)}/{index}"


def _directory_path(journal: int, index: int) -> str:
    return f"/journals/{journal}/log/{index // ENTRIES_PER_DIRECTORY}"


def _snapshot_path(journal: int) -> str:
    return f"/journals/{journal}/snapshot"


def _chunks_path(journal: int, name: str) -> str:
    return f"/journals/{journal}/snapshots/{name}"


def _purged_path(journal: int) -> str:
    return f"/journals/{journal}/purged"


def _state_path(partition: int) -> str:
    return f"{_TOPIC}/partitions/{partition}/state"


def founding(num_partitions: int, journals: int) -> Iterator[Make]:
    """Yield the znodes of a new cluster except `/cluster/*`, in order of creation."""
    for path in ("/cluster", "/brokers", "/brokers/ids", "/brokers/topics", "/journals"):
        yield Make(path, b"")
    replicas: dict[str, list[int]] = {str(number): [] for number in range(num_partitions)}
    yield Make(_TOPIC, _json({"version": 1, "partitions": replicas}))
    yield Make(f"{_TOPIC}/partitions", b"")
    for number in range(num_partitions):
        yield Make(f"{_TOPIC}/partitions/{number}", b"")
        yield Make(_state_path(number), _state(NO_LEADER, 0, ()))
    for number in range(journals):
        yield Make(f"/journals/{number}", b"")
        yield Make(leader_path(number), b"")
        yield Make(f"/journals/{number}/log", b"")
        yield Make(_directory_path(number, 0), b"")
        yield Make(entry_path(number, 0), b"")  # `Append` checks the entry before the first one.
        yield Make(_snapshot_path(number), b"")
        yield Make(f"/journals/{number}/snapshots", b"")
        yield Make(_purged_path(number), b"0")


# --- Contents ------------------------------------------------------------------------------


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _state(leader: int, leader_epoch: int, in_sync: Sequence[int]) -> bytes:
    """Return a partition's state as Kafka's controller writes it, for tools; never read here."""
    return _json(
        {
            "controller_epoch": 0,
            "leader": leader,
            "version": 1,
            "leader_epoch": leader_epoch,
            "isr": in_sync,
        }
    )


def encode_registration(registration: Registration) -> bytes:
    """Return the JSON of a Kafka broker's registration, followed by our own fields."""
    host, port = registration.addresses[0]
    return _json(
        {
            "version": 5,
            "host": host,
            "port": port,
            "endpoints": registration.endpoints,
            "jmx_port": -1,
            "timestamp": str(registration.timestamp_ms),
            "run": registration.run,
            "formats": registration.formats,
            "ready": registration.is_ready,
            "stopping": registration.is_stopping,
        }
    )


def decode_registration(node: int, data: bytes) -> Registration | None:
    """Return a node's registration, None if it is not in our format."""
    with suppress(ValueError, KeyError, TypeError):
        fields = json.loads(data)
        lowest, highest = map(int, fields["formats"])
        return Registration(
            node,
            tuple(map(str, fields["endpoints"])),
            int(fields["timestamp"]),
            str(fields["run"]),
            (lowest, highest),
            bool(fields["ready"]),
            bool(fields.get("stopping")),
        )
    return None


def encode_leader(leader: Leader) -> bytes:
    """Return the JSON; the session is in hex, as ZooKeeper's own tools show it."""
    fields = {
        "epoch": leader.epoch,
        "node": leader.node,
        "run": leader.run,
        "session": hex(leader.session),
        "claim": leader.claim,
    }
    flags = {"frozen": leader.is_frozen, "moved": leader.is_moved}
    return _json(fields | {name: True for name, is_set in flags.items() if is_set})


def decode_leader(data: bytes) -> Leader | None:
    """Return the leader, None if there never was one. Raises ValueError, KeyError or TypeError."""
    if not data:
        return None
    fields = json.loads(data)
    return Leader(
        int(fields["epoch"]),
        int(fields["node"]),
        str(fields["run"]),
        int(fields["session"], 16),
        str(fields["claim"]),
        bool(fields.get("frozen")),
        bool(fields.get("moved")),
    )


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the JSON that describes a snapshot and its chunks."""
    return _json(
        {
            "index": snapshot.index,
            "name": snapshot.name,
            "chunks": snapshot.chunks,
            "bytes": snapshot.size_bytes,
            "crc32": snapshot.crc32,
            "ends": snapshot.ends,
            "compacted_below": snapshot.compacted_below,
        }
    )


def decode_snapshot(data: bytes) -> Snapshot:
    """Return the snapshot's description. Raises ValueError, KeyError or TypeError."""
    if not data:
        return Snapshot()
    fields = json.loads(data)
    return Snapshot(
        int(fields["index"]),
        str(fields["name"]),
        int(fields["chunks"]),
        int(fields["bytes"]),
        int(fields["crc32"]),
        _by_partition(fields["ends"]),
        _by_partition(fields["compacted_below"]),
    )


def _by_partition(offsets: dict[str, int]) -> dict[int, int]:
    return {int(partition): int(offset) for partition, offset in offsets.items()}


# --- Requests as operations ----------------------------------------------------------------


def operation(request: engine.Request) -> Operation:
    """Return the operation of ZooKeeper for *request*."""
    return _OPERATIONS[type(request)](request)


def _register(request: engine.Register) -> Multi:
    registration = request.registration
    path, data = node_path(registration.node), encode_registration(registration)
    return Multi((Make(path, data, _MADE | _LASTS, is_ephemeral=True),))


def _announce(request: engine.Announce) -> Multi:
    registration = request.registration
    path, data = node_path(registration.node), encode_registration(registration)
    return Multi((Set(path, data, ANY_VERSION, _REPLACED),))


def _set_leader(request: engine.SetLeader) -> Multi:
    leader = request.leader
    node = NO_LEADER if leader.is_frozen else leader.node
    state = _state(node, leader.epoch, request.in_sync)
    path, data = leader_path(request.journal), encode_leader(leader)
    states = [Set(_state_path(p), state, ANY_VERSION, _LASTS) for p in request.partitions]
    return Multi((Set(path, data, request.version, _FENCE), *states))


def _append(request: engine.Append) -> Multi:
    journal, index = request.journal, request.index
    before = Check(entry_path(journal, index - 1), ANY_VERSION, _BEFORE)
    changes = [_fence(journal, request.version), before]
    for number, data in enumerate(request.entries, start=index):
        if not number % ENTRIES_PER_DIRECTORY:
            changes.append(Make(_directory_path(journal, number), b"", _MADE))
        changes.append(Make(entry_path(journal, number), data, _MADE))
    return Multi(tuple(changes))


def _fence(journal: int, version: int) -> Change:
    return Check(leader_path(journal), version, _FENCE)


def _removals(request: engine.Trim) -> Iterator[Change]:
    for index in range(request.first, request.last + 1):
        yield Remove(entry_path(request.journal, index), _REMOVED)
        if not ((index + 1) % ENTRIES_PER_DIRECTORY or request.has_stray):
            yield Remove(_directory_path(request.journal, index), _REMOVED)


def _confirm(request: engine.Confirm) -> Multi:
    return Multi((_fence(request.journal, request.version),))


def _read_entries(request: engine.ReadEntries) -> Get:
    indexes = range(request.index, request.index + request.count)
    return Get(tuple([entry_path(request.journal, index) for index in indexes]), watches=False)


def _read_chunks(request: engine.ReadChunks) -> Get:
    room = _chunks_path(request.journal, request.name)
    numbers = range(request.chunk, request.chunk + request.count)
    return Get(tuple([f"{room}/{number}" for number in numbers]), watches=False)


def _list_log(request: engine.ListLog) -> Children:
    if request.index is None:
        return Children(f"/journals/{request.journal}/log", watches=False)
    return Children(_directory_path(request.journal, request.index), watches=False)


def _trim(request: engine.Trim) -> Multi:
    return Multi((_fence(request.journal, request.version), *_removals(request)))


def _write_chunk(request: engine.WriteChunk) -> Multi:
    room = _chunks_path(request.journal, request.name)
    chunk = Make(f"{room}/{request.chunk}", request.data, _MADE)
    return Multi((chunk,) if request.chunk else (Make(room, b"", _MADE), chunk))


def _install(request: engine.Install) -> Multi:
    path, snapshot = _snapshot_path(request.journal), request.snapshot
    fence = _fence(request.journal, request.version)
    room = _chunks_path(request.journal, snapshot.name)
    # An ensemble restored from a backup may have the journal, but not the chunks.
    last = Check(f"{room}/{snapshot.chunks - 1}", ANY_VERSION, _REMOVED)
    replaced = Set(path, encode_snapshot(snapshot), request.snapshot_version, _REPLACED)
    return Multi((fence, last, replaced))


def _remove_chunks(request: engine.RemoveChunks) -> Multi:
    room = _chunks_path(request.journal, request.name)
    changes = [_fence(request.journal, request.version)]
    changes += [Remove(f"{room}/{chunk}", _REMOVED) for chunk in request.chunks]
    if request.is_last:
        changes.append(Remove(room, _REMOVED))
    return Multi(tuple(changes))


def _set_purged(request: engine.SetPurged) -> Multi:
    path, data = _purged_path(request.journal), str(request.purged).encode()
    fence = _fence(request.journal, request.version)
    return Multi((fence, Set(path, data, ANY_VERSION, _LASTS)))


def _get(path: str) -> Get:
    return Get((path,), watches=True)


_OPERATIONS: Final[dict[type, Callable[[Any], Operation]]] = {
    engine.ReadCluster: lambda _: _get(CLUSTER_ID),
    engine.Register: _register,
    engine.Announce: _announce,
    engine.ListNodes: lambda _: Children("/brokers/ids", watches=True),
    engine.ReadNode: lambda request: _get(node_path(request.node)),
    engine.ReadLeader: lambda request: _get(leader_path(request.journal)),
    engine.SetLeader: _set_leader,
    engine.Append: _append,
    engine.Confirm: _confirm,
    engine.ReadEntries: _read_entries,
    engine.WatchEntry: lambda request: Look(entry_path(request.journal, request.index)),
    engine.ListLog: _list_log,
    engine.Trim: _trim,
    engine.ReadSnapshot: lambda request: _get(_snapshot_path(request.journal)),
    engine.ReadChunks: _read_chunks,
    engine.WriteChunk: _write_chunk,
    engine.Install: _install,
    engine.ListSnapshots: lambda request: Children(
        f"/journals/{request.journal}/snapshots", watches=False
    ),
    engine.ListChunks: lambda request: Children(
        _chunks_path(request.journal, request.name), watches=False
    ),
    engine.RemoveChunks: _remove_chunks,
    engine.ReadPurged: lambda request: _get(_purged_path(request.journal)),
    engine.SetPurged: _set_purged,
}


# --- Results as replies --------------------------------------------------------------------


def reply(request: engine.Request, result: Result) -> Reply:
    """Return the reply to *request*, from the *result* of its operation."""
    match result:
        case Applied():
            return Reply(Code.OK)
        case Failed(at, failure):
            return _reply_failed(request, at, failure)
        case Seen(is_there):
            return Reply(Code.OK if is_there else Code.MISSING)
        case Lost():
            return Reply(Code.LOST)
        case Odd(reason):
            return Reply(Code.REFUSED, reason)
    try:
        if isinstance(result, Names):
            return _reply_names(request, result.names)
        if isinstance(request, engine.ReadEntries | engine.ReadChunks):
            return Reply(Code.OK, _up_to_first_missing(result.znodes))
        return _reply_content(request, result.znodes[0])
    except (ValueError, LookupError, TypeError) as exc:
        return Reply(Code.REFUSED, f"what {request} reads is of another shape: {exc!r}")


def _reply_failed(request: engine.Request, at: int, failure: Failure) -> Reply:
    asked = operation(request)
    assert isinstance(asked, Multi)
    change = asked.changes[at]
    code = change.meanings.get(failure)
    if code is None:
        kind = type(request).__name__
        return Reply(Code.REFUSED, f"{kind}: {type(change).__name__} {change.path}: {failure.name}")
    path = change.path.rpartition("/")[0] if isinstance(change, Make) else change.path
    return Reply(code, path if code is Code.GONE else None)


def _missing(request: engine.Request) -> Reply:
    """Return the reply if the znode that *request* reads doesn't exist: MISSING or GONE."""
    match request:
        case engine.ReadNode() | engine.ListChunks() | engine.ListLog(_, int()):
            return Reply(Code.MISSING)
    asked = operation(request)
    assert isinstance(asked, Get | Children)
    return Reply(Code.GONE, asked.paths[0] if isinstance(asked, Get) else asked.path)


def _up_to_first_missing(znodes: tuple[Znode | None, ...]) -> tuple[bytes, ...]:
    return tuple([znode.data for znode in takewhile(bool, znodes) if znode])


def _reply_names(request: engine.Request, names: tuple[str, ...] | None) -> Reply:
    if names is None:
        return _missing(request)
    if isinstance(request, engine.ListSnapshots):
        return Reply(Code.OK, tuple(sorted(names)))
    # Tools of Kafka, and people, may write here: ignore other names, but report one.
    own = list(filter(_NUMBER.fullmatch, names))
    numbers = sorted(map(int, own))
    if isinstance(request, engine.ListLog) and request.index is None:
        numbers = [number * ENTRIES_PER_DIRECTORY for number in numbers]
    stray = ""
    if len(own) < len(names):
        listed = operation(request)
        assert isinstance(listed, Children)
        stray = f"{listed.path}/{min(set(names).difference(own))}"
    return Reply(Code.OK, tuple(numbers), stray=stray)


def _reply_content(request: engine.Request, znode: Znode | None) -> Reply:
    if znode is None:
        return _missing(request)
    value: Any = znode.data
    match request:
        case engine.ReadCluster():
            value = json.loads(value)["id"]
        case engine.ReadNode(node):
            value = decode_registration(node, value)
        case engine.ReadLeader():
            value = decode_leader(value)
        case engine.ReadSnapshot():
            value = decode_snapshot(value)
        case engine.ReadPurged():
            value = int(value)
    return Reply(Code.OK, value, znode.version, znode.owner, znode.changed_ms)
