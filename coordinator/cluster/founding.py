"""Checks of the ensemble and its chroot before a node runs; founding of a new cluster.

The ensemble and the chroot are checked first, and refused before anything is written. A missing
cluster is founded only if the caller asks for that. Several callers may found it concurrently, and
may be interrupted: each creates the missing znodes, and only one can create `/cluster/id`, which
comes last.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple

from kazoo.hosts import collect_hosts

from coordinator.cluster import znodes
from coordinator.cluster.engine import TRANSACTION_BYTES_MAX
from coordinator.cluster.errors import ClusterRefused, EnsembleUnreachable
from coordinator.cluster.layout import Layout
from coordinator.cluster.znodes import (
    Check,
    Children,
    Contents,
    Failed,
    Failure,
    Get,
    Make,
    Multi,
    Remove,
    Set,
    Znode,
)
from coordinator.cluster.zookeeper import Access, Server, Visit, serves, srvr

LAYOUT_FORMAT: Final = 1
CLUSTER_VERSION: Final = 1
SECRET_BYTES: Final = 16
# Oldest accepted release of ZooKeeper. Before 3.9.2 an ensemble can lose acknowledged writes
# (ZOOKEEPER-4785), and 3.9.3 can, too (ZOOKEEPER-4925).
OLDEST: Final = (3, 9, 4)
_VERSION: Final = re.compile(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)")
_SRVR_S: Final = 2.0
_PROBE_S: Final = 5.0
_MAKES_AT_ONCE: Final = 200
# A version that no znode ever has: a transaction that checks it fails, after all other checks.
_NO_VERSION: Final = 2**31 - 1


class Found(NamedTuple):
    """The cluster under the chroot.

    Attributes:
        secret: Secret that only the cluster's nodes share.
        is_new: This call made the cluster.
        unknown: Servers whose version isn't known, with the reason of each.
    """

    cluster_id: str
    secret: bytes
    is_new: bool
    unknown: dict[str, str]


def find_or_found(
    access: Access,
    layout: Layout,
    *,
    cluster_id: str,
    new_cluster_id: Callable[[], str],
    patience_s: float,
    advice: str | None = None,
) -> Found:
    """Return the cluster under the chroot, and found it if it is missing; blocks.

    Args:
        access: Connection settings of the ensemble.
        layout: Required layout.
        cluster_id: Required cluster id; "" for any.
        new_cluster_id: Returns the id for a new cluster.
        patience_s: Time limit for the connection, and for each answer.
        advice: If not None, a missing cluster is refused with these words instead of founded.

    Raises:
        ClusterRefused: The ensemble or its content can't be used; the message says why.
        EnsembleUnreachable: No server answers.
    """
    unknown = prepare(access, patience_s=patience_s, makes_chroot=advice is None)
    with Visit(access, patience_s=patience_s) as visit:
        place = Place(visit, access)
        proposed = None
        if (there := place.cluster_id()) is None:
            if advice is not None:
                place.check_empty()
                raise ClusterRefused(f"{place} holds no cluster. {advice}")
            proposed = cluster_id or new_cluster_id()
            place.begin(layout, secrets.token_bytes(SECRET_BYTES))
            there = place.finish(proposed)
        if cluster_id and there != cluster_id:
            raise ClusterRefused(f"{place} holds the cluster {there}, not {cluster_id}")
        place.check_layout(layout)
        place.check_rights()
        secret = place.secret()
    return Found(there, secret, there == proposed, unknown)


def prepare(access: Access, *, patience_s: float, makes_chroot: bool) -> dict[str, str]:
    """Check the servers; return those whose version isn't known, and the reason of each.

    Args:
        access: Connection settings of the ensemble.
        patience_s: Time limit for the connection, and for each answer.
        makes_chroot: Create the chroot, too, once the versions are accepted.

    Raises:
        ClusterRefused: The servers can't be used; the message says why.
        EnsembleUnreachable: No server answers.
    """
    with Visit(replace(access, chroot=""), patience_s=patience_s) as visit:
        # Check versions once connected: servers that start together only then have a majority,
        # and tell their versions.
        away, silent = _check_versions(access)
        if makes_chroot:
            _make_chroot(visit, access)
    for server in servers_of(access):
        if server not in away:
            _probe(replace(access, hosts=server))
    return away | silent


def make_chroot(access: Access, *, patience_s: float) -> None:
    """Create the chroot of the cluster. Raises ClusterRefused, EnsembleUnreachable."""
    with Visit(replace(access, chroot=""), patience_s=patience_s) as visit:
        _make_chroot(visit, access)


def servers_of(access: Access) -> list[str]:
    """Return the ensemble's servers one by one, as ``host:port``."""
    hosts, _ = collect_hosts(access.hosts)
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts]


# --- The servers ---------------------------------------------------------------------------


def _check_versions(access: Access) -> tuple[dict[str, str], dict[str, str]]:
    """Refuse servers that are too old; return the absent ones, and those without a version."""
    away, silent = {}, {}
    servers = servers_of(access)
    # Concurrently: each server that hangs takes the whole time limit.
    with ThreadPoolExecutor(len(servers)) as pool:
        answers = list(pool.map(partial(_srvr, access), servers))
    for server, answer in zip(servers, answers, strict=True):
        if isinstance(answer, OSError):
            away[server] = str(answer)
            continue
        version = _version_in(answer)
        if not serves(answer):
            away[server] = "it serves nobody at the moment"
        elif version is None:
            silent[server] = "it doesn't tell: srvr isn't in its 4lw.commands.whitelist"
        elif version < OLDEST:
            raise ClusterRefused(
                f"the ZooKeeper server {server} is {_dotted(version)}: releases before "
                f"{_dotted(OLDEST)} can lose what they have acknowledged"
            )
    return away, silent


def _srvr(access: Access, server: str) -> str | OSError:
    [(host, port)], _ = collect_hosts(server)
    try:
        return srvr(Server(host, port, host), access.new_tls, _SRVR_S)
    except OSError as exc:
        return exc


def _version_in(answer: str) -> tuple[int, ...] | None:
    found = _VERSION.search(answer)
    return None if found is None else tuple(map(int, found.groups()))


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _probe(access: Access) -> None:
    """Refuse a server that accepts no large request; skip one that can't be reached.

    The request is as large as any of ours, and changes nothing, as no znode has that version.
    """
    never = Check(_top(access), _NO_VERSION, {}), Make("/large", bytes(TRANSACTION_BYTES_MAX))
    try:
        with Visit(access, patience_s=_PROBE_S) as visit:
            found = visit.do(Multi(never))
            if isinstance(found, znodes.Lost):  # Perhaps by chance: try once more.
                found = visit.do(Multi(never))
    except EnsembleUnreachable:
        return
    if isinstance(found, znodes.Lost):
        raise ClusterRefused(
            f"the ZooKeeper server {access.hosts} hangs up at a request of "
            f"{TRANSACTION_BYTES_MAX // 1024} KiB: its jute.maxbuffer has to be 1 MiB"
        )


# --- The content of the chroot -------------------------------------------------------------


def _make_chroot(visit: Visit, access: Access) -> None:
    path = ""
    for name in access.chroot.split("/")[1:]:
        path += f"/{name}"
        # An existing parent needn't be readable for us; create only a missing one.
        if visit.do(Get((path,), watches=False)) == Contents((None,)):
            _make(visit, (Make(path, b""),), _place(access))


def _make(visit: Visit, makes: Iterable[Make], place: str) -> None:
    """Create the missing znodes, in transactions of `_MAKES_AT_ONCE` changes.

    All callers cut at the same znodes, so a transaction that fails as a znode exists was applied
    as a whole by another caller.
    """
    left = iter(makes)
    while chunk := tuple(islice(left, _MAKES_AT_ONCE)):
        match visit.do(Multi(chunk)):
            case znodes.Applied() | Failed(_, Failure.NODE_EXISTS):
                pass
            case znodes.Odd(reason):
                raise ClusterRefused(f"{place} can't be written: {reason}")
            case znodes.Lost():
                raise _lost()
            case other:
                raise ClusterRefused(f"{place} changes while we write it: {other}")


class Place:
    """The content of the chroot; `str` names it in messages."""

    def __init__(self, visit: Visit, access: Access) -> None:
        """Use *visit*, a session in the chroot of *access*."""
        self._visit = visit
        self._top = _top(access)
        self._text = _place(access)

    def __str__(self) -> str:
        """Return the name for messages."""
        return self._text

    def cluster_id(self) -> str | None:
        """Return the cluster's id, None if there is no cluster. Raises ClusterRefused."""
        data = self._read(znodes.CLUSTER_ID)
        if data is None:
            # The server may be behind. After a transaction, even a failed one, this session isn't.
            self._visit.do(Multi((Check(self._top, _NO_VERSION, {}),)))
            data = self._read(znodes.CLUSTER_ID)
        if data is None:
            return None
        fields = _fields(data)
        if fields.get("version") != CLUSTER_VERSION or not isinstance(fields.get("id"), str):
            # Kafka writes its version as a string, so its clusters are refused here.
            raise ClusterRefused(f"{self} holds a cluster that is none of ours")
        found: str = fields["id"]
        return found

    def check_layout(self, layout: Layout) -> None:
        """Raise ClusterRefused unless the cluster has this layout."""
        data = self._read(znodes.LAYOUT)
        if data is None:
            raise ClusterRefused(f"{self} holds a cluster that is none of ours")
        fields = _fields(data)
        found = fields.get("format")
        if found != LAYOUT_FORMAT:
            newer = isinstance(found, int) and found > LAYOUT_FORMAT
            why = "by a newer release" if newer else "as nobody knows"
            raise ClusterRefused(f"{self} is laid out {why}: {znodes.LAYOUT}: {data!r}")
        for name, wanted in layout._asdict().items():
            if fields.get(name) != wanted:
                raise ClusterRefused(
                    f"{self} was made with {_SETTINGS[name]}={fields.get(name)}, "
                    f"and the settings say {wanted}: that can't be changed"
                )

    def secret(self) -> bytes:
        """Return the secret that the nodes of the cluster share. Raises ClusterRefused."""
        found = _fields(self._read(znodes.SECRET) or b"").get("secret")
        with suppress(ValueError):
            return bytes.fromhex(str(found))
        raise ClusterRefused(f"{self} holds a cluster whose {znodes.SECRET} can't be read")

    def begin(self, layout: Layout, secret: bytes) -> None:
        """Create all znodes of a cluster but its id, or the missing ones."""
        self.check_empty()
        _make(self._visit, _head(layout, secret), self._text)
        # A concurrent founding may use another layout: never mix the two.
        self.check_layout(layout)
        self._make_rest(layout)

    def begin_anew(self, layout: Layout, secret: bytes) -> int:
        """Create all znodes of a cluster but its id; first remove those of earlier attempts.

        Return the version of the layout, which `finish` takes: each founding that began before has
        a lower version, and its `finish` fails.
        """
        self.check_empty()
        head = _head(layout, secret)
        _make(self._visit, head, self._text)
        if (begun := self._get(znodes.LAYOUT)) is None:
            raise ClusterRefused(f"{self} changes while we write it")
        no_cluster = Make(znodes.CLUSTER_ID, b""), Remove(znodes.CLUSTER_ID, {})
        ours = [Set(one.path, one.data, znodes.ANY_VERSION, {}) for one in head[1:]]
        taken = self._visit.do(Multi((*no_cluster, *ours)))
        if taken != znodes.Applied():
            raise self._refusal(taken)
        fence = Check(
            znodes.LAYOUT, begun.version + 1, {}
        )  # Fails if another founding began since.
        for name in sorted(_OURS - {"cluster"}):
            self._remove_tree(f"/{name}", fence)
        self._make_rest(layout)
        return fence.version

    def finish(self, cluster_id: str, version: int = 0) -> str:
        """Create the cluster's id; return the id in force, perhaps that of another founding."""
        made = Make(znodes.CLUSTER_ID, _json({"version": CLUSTER_VERSION, "id": cluster_id}))
        done = self._visit.do(Multi((Check(znodes.LAYOUT, version, {}), made)))
        if (there := self.cluster_id()) is None:
            raise self._refusal(done)
        return there

    def _refusal(self, result: znodes.Result) -> ClusterRefused | EnsembleUnreachable:
        match result:
            case znodes.Lost():
                return _lost()
            case znodes.Odd(reason):
                return ClusterRefused(f"{self} can't be written: {reason}")
            case Failed(_, Failure.NODE_EXISTS):
                return ClusterRefused(f"{self} holds the cluster {self.cluster_id()} already")
            case Failed(_, Failure.BAD_VERSION):
                return ClusterRefused(
                    f"{self} is being filled by `cluster init --from`, or was until that was "
                    "interrupted: run it again"
                )
        return ClusterRefused(f"{self} changes while we write it: {result}")

    def _make_rest(self, layout: Layout) -> None:
        _, *rest = znodes.founding(layout.num_partitions, layout.journals)
        _make(self._visit, rest, self._text)

    def check_rights(self) -> None:
        """Refuse a cluster without write permission; changes nothing."""
        never = Set(znodes.CLUSTER_ID, b"", _NO_VERSION, {})
        match self._visit.do(Multi((never,))):
            case znodes.Odd(reason):
                raise ClusterRefused(f"{self} can't be written: {reason}")

    def _read(self, path: str) -> bytes | None:
        znode = self._get(path)
        return None if znode is None else znode.data

    def _get(self, path: str) -> Znode | None:
        match self._visit.do(Get((path,), watches=False)):
            case Contents((znode,)):
                return znode
            case znodes.Odd(reason):
                raise ClusterRefused(f"{self} can't be read: {reason}")
        raise _lost()

    def _names(self, path: str) -> set[str]:
        match self._visit.do(Children(path, watches=False)):
            case znodes.Names(names):
                return set(names or ())
            case znodes.Odd(reason):
                raise ClusterRefused(f"{self} can't be read: {reason}")
        raise _lost()

    def check_empty(self) -> None:
        """Refuse a chroot with foreign znodes: our own always include ``/cluster``."""
        others = self._names(self._top) - _ZOOKEEPERS_OWN
        if others and ("cluster" not in others or not others <= _OURS):
            shown = ", ".join(sorted(others)[:5])
            raise ClusterRefused(f"{self} holds other things: {shown}")

    def _remove_tree(self, path: str, fence: Check) -> None:
        for name in self._names(path):
            self._remove_tree(f"{path}/{name}", fence)
        removed = self._visit.do(Multi((fence, Remove(path, {}))))
        if removed not in {znodes.Applied(), Failed(1, Failure.NO_NODE)}:
            raise self._refusal(removed)


def _head(layout: Layout, secret: bytes) -> tuple[Make, ...]:
    """Return the first znodes of a founding, which one transaction creates."""
    return (
        Make("/cluster", b""),
        Make(znodes.LAYOUT, _json({"format": LAYOUT_FORMAT} | layout._asdict())),
        Make(znodes.SECRET, _json({"version": 1, "secret": secret.hex()})),
    )


def _lost() -> EnsembleUnreachable:
    return EnsembleUnreachable("the connection to ZooKeeper was lost")


_ZOOKEEPERS_OWN: Final = frozenset({"zookeeper"})
_OURS: Final = frozenset({"cluster", "brokers", "journals"})


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _top(access: Access) -> str:
    """Return the path of the chroot itself."""
    return "" if access.chroot else "/"


def _place(access: Access) -> str:
    return f"{access.chroot or '/'} of ZooKeeper"


def _fields(data: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        fields = json.loads(data)
        if isinstance(fields, dict):
            return fields
    return {}


_SETTINGS: Final = {
    "num_partitions": "offsets.topic.num.partitions",
    "journals": "cluster.journals",
}
