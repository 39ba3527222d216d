"""Before a node runs: whether the ensemble will do, and whose is what stands under its chroot.

What is there is looked at first, and what can't be is refused before anything is written. A
cluster that isn't there yet is made. Several nodes may do that at once, and be interrupted: each
makes what is missing, and `/cluster/id`, which comes last, only one of them can make.
"""

import json
import re
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, Final, NamedTuple

from kazoo.hosts import collect_hosts

from coordinator.cluster import znodes
from coordinator.cluster.engine import TRANSACTION_BYTES_MAX
from coordinator.cluster.errors import ClusterRefused, EnsembleUnreachable
from coordinator.cluster.znodes import (
    Check,
    Children,
    Contents,
    Failed,
    Failure,
    Get,
    Make,
    Multi,
    Set,
)
from coordinator.cluster.zookeeper import Access, Visit, encrypted

LAYOUT_FORMAT: Final = 1
CLUSTER_VERSION: Final = 1
# Before 3.9.2 an ensemble can lose what it has acknowledged (ZOOKEEPER-4785), and 3.9.3 can, too
# (ZOOKEEPER-4925).
OLDEST: Final = (3, 9, 4)
_VERSION: Final = re.compile(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)")
_SRVR_S: Final = 2.0
_PROBE_S: Final = 5.0
_READ_BYTES: Final = 65_536
_MAKES_AT_ONCE: Final = 200
# No znode ever has it: what asks for it fails, once all the rest was looked at.
_NO_VERSION: Final = 2**31 - 1


class Layout(NamedTuple):
    """What is fixed when a cluster is made."""

    num_partitions: int
    journals: int


class Found(NamedTuple):
    """The cluster under the chroot.

    Attributes:
        is_new: It was made just now.
        unknown: Servers whose version nobody knows, and why.
    """

    cluster_id: str
    is_new: bool
    unknown: dict[str, str]


def find_or_found(
    access: Access,
    layout: Layout,
    *,
    cluster_id: str,
    new_cluster_id: Callable[[], str],
    patience_s: float,
) -> Found:
    """Return the cluster, made if it isn't there; blocks.

    Args:
        access: How the ensemble is reached.
        layout: What the cluster has to be like.
        cluster_id: Which one it has to be; "" for any.
        new_cluster_id: Makes the id of a new one.
        patience_s: How long to wait for a connection, and for each answer.

    Raises:
        ClusterRefused: The ensemble or what stands in it can't be used; the message says why.
        EnsembleUnreachable: Nobody answers.
    """
    away, silent = _check_versions(access)
    with Visit(replace(access, chroot=""), patience_s=patience_s) as visit:
        _make_chroot(visit, access)
    for server in servers_of(access):
        if server not in away:
            _probe(replace(access, hosts=server))
    with Visit(access, patience_s=patience_s) as visit:
        clerk = _Clerk(visit, access)
        found = clerk.read(znodes.CLUSTER_ID)
        proposed = None
        if found is None:
            proposed = cluster_id or new_cluster_id()
            clerk.found(layout, proposed)
            found = clerk.read(znodes.CLUSTER_ID)
        there = _id_in(found, access)
        if cluster_id and there != cluster_id:
            raise ClusterRefused(f"{_place(access)} holds the cluster {there}, not {cluster_id}")
        _check_layout(clerk.read(znodes.LAYOUT), layout, access)
        clerk.check_rights()
    return Found(there, there == proposed, away | silent)


def servers_of(access: Access) -> list[str]:
    """Return the ensemble's servers one by one, as ``host:port``."""
    hosts, _ = collect_hosts(access.hosts)
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts]


# --- The servers ---------------------------------------------------------------------------


def _check_versions(access: Access) -> tuple[dict[str, str], dict[str, str]]:
    """Refuse servers that are too old; return those that are away, and those that don't tell."""
    away, silent = {}, {}
    for server in servers_of(access):
        try:
            version = _version_in(_srvr(server, access))
        except OSError as exc:
            away[server] = str(exc)
            continue
        if version is None:
            silent[server] = "it doesn't tell: srvr isn't in its 4lw.commands.whitelist"
        elif version < OLDEST:
            raise ClusterRefused(
                f"the ZooKeeper server {server} is {_dotted(version)}: releases before "
                f"{_dotted(OLDEST)} can lose what they have acknowledged"
            )
    return away, silent


def _srvr(server: str, access: Access) -> str:
    """Return what a server tells of itself. Raises OSError."""
    [(host, port)], _ = collect_hosts(server)
    answer = bytearray()
    with (
        socket.create_connection((host, port), _SRVR_S) as plain,
        encrypted(plain, host, access.new_tls) as sock,
    ):
        sock.sendall(b"srvr")
        with suppress(ConnectionError, ssl.SSLEOFError):  # It hangs up without a farewell.
            while data := sock.recv(_READ_BYTES):
                answer += data
    return answer.decode(errors="replace")


def _version_in(answer: str) -> tuple[int, ...] | None:
    found = _VERSION.search(answer)
    return None if found is None else tuple(map(int, found.groups()))


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _probe(access: Access) -> None:
    """Refuse a server that takes no large request; one that isn't reached is not asked.

    It is as large as any, and can't succeed, as no znode has that version.
    """
    never = Check(_top(access), _NO_VERSION, {}), Make("/large", bytes(TRANSACTION_BYTES_MAX))
    try:
        with Visit(access, patience_s=_PROBE_S) as visit:
            found = visit.do(Multi(never))
            if isinstance(found, znodes.Lost):  # By accident, perhaps.
                found = visit.do(Multi(never))
    except EnsembleUnreachable:
        return
    if isinstance(found, znodes.Lost):
        raise ClusterRefused(
            f"the ZooKeeper server {access.hosts} hangs up at a request of "
            f"{TRANSACTION_BYTES_MAX // 1024} KiB: its jute.maxbuffer has to be 1 MiB"
        )


# --- What stands under the chroot ----------------------------------------------------------


def _make_chroot(visit: Visit, access: Access) -> None:
    path = ""
    for name in access.chroot.split("/")[1:]:
        path += f"/{name}"
        # What is there already need not be ours to read.
        if visit.do(Get((path,), watches=False)) == Contents((None,)):
            _make(visit, (Make(path, b""),), _place(access))


def _make(visit: Visit, makes: Iterable[Make], place: str) -> None:
    """Make what is missing, in transactions that everybody begins and ends at the same znodes.

    So what one of them finds there already is there as a whole.
    """
    left = iter(makes)
    while chunk := tuple(islice(left, _MAKES_AT_ONCE)):
        match visit.do(Multi(chunk)):
            case znodes.Applied() | Failed(_, Failure.NODE_EXISTS):
                pass
            case znodes.Odd(reason):
                raise ClusterRefused(f"{place} can't be written: {reason}")
            case znodes.Lost():
                raise EnsembleUnreachable("the connection to ZooKeeper was lost")
            case other:
                raise ClusterRefused(f"{place} changes while we write it: {other}")


class _Clerk:
    """Reads and writes what says which cluster it is."""

    def __init__(self, visit: Visit, access: Access) -> None:
        self._visit = visit
        self._access = access

    def read(self, path: str) -> bytes | None:
        """Return what stands there, None if nothing does."""
        match self._visit.do(Get((path,), watches=False)):
            case Contents((None,)):
                return None
            case Contents((znode,)) if znode is not None:
                return znode.data
            case znodes.Odd(reason):
                raise ClusterRefused(f"{_place(self._access)} can't be read: {reason}")
        raise EnsembleUnreachable("the connection to ZooKeeper was lost")

    def found(self, layout: Layout, cluster_id: str) -> None:
        """Make a cluster, or finish one that somebody began."""
        self._check_empty()
        fixed = layout._asdict()
        head = Make("/cluster", b""), Make(znodes.LAYOUT, _json({"format": LAYOUT_FORMAT} | fixed))
        _make(self._visit, head, _place(self._access))
        # If somebody else has begun, with other numbers, there must not be a mixture.
        _check_layout(self.read(znodes.LAYOUT), layout, self._access)
        first, *rest = znodes.founding(layout.num_partitions, layout.journals)
        assert first == head[0]
        _make(self._visit, rest, _place(self._access))
        made = Make(znodes.CLUSTER_ID, _json({"version": CLUSTER_VERSION, "id": cluster_id}))
        _make(self._visit, (made,), _place(self._access))

    def _check_empty(self) -> None:
        """Refuse a chroot that is somebody else's: what is ours begins with ``/cluster``."""
        match self._visit.do(Children(_top(self._access), watches=False)):
            case znodes.Names(names) if names is not None:
                others = set(names) - _ZOOKEEPERS_OWN
            case znodes.Odd(reason):
                raise ClusterRefused(f"{_place(self._access)} can't be read: {reason}")
            case _:
                raise EnsembleUnreachable("the connection to ZooKeeper was lost")
        if others and ("cluster" not in others or not others <= _OURS):
            shown = ", ".join(sorted(others)[:5])
            raise ClusterRefused(f"{_place(self._access)} holds other things: {shown}")

    def check_rights(self) -> None:
        """Refuse a cluster that we may not change, without a change."""
        never = Set(znodes.CLUSTER_ID, b"", _NO_VERSION, {})
        match self._visit.do(Multi((never,))):
            case znodes.Odd(reason):
                raise ClusterRefused(f"{_place(self._access)} can't be written: {reason}")


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


def _id_in(data: bytes | None, access: Access) -> str:
    fields = _fields(data or b"")
    if fields.get("version") != CLUSTER_VERSION or not isinstance(fields.get("id"), str):
        # Kafka's has its version as a string.
        raise ClusterRefused(f"{_place(access)} holds a cluster that is none of ours")
    found: str = fields["id"]
    return found


def _check_layout(data: bytes | None, layout: Layout, access: Access) -> None:
    if data is None:
        raise ClusterRefused(f"{_place(access)} holds a cluster that is none of ours")
    fields = _fields(data)
    found = fields.get("format")
    if found != LAYOUT_FORMAT:
        newer = isinstance(found, int) and found > LAYOUT_FORMAT
        why = "by a newer release" if newer else "as nobody knows"
        raise ClusterRefused(f"{_place(access)} is laid out {why}: {znodes.LAYOUT}: {data!r}")
    for name, wanted in layout._asdict().items():
        if fields.get(name) != wanted:
            raise ClusterRefused(
                f"{_place(access)} was made with {_SETTINGS[name]}={fields.get(name)}, "
                f"and the settings say {wanted}: that can't be changed"
            )


_SETTINGS: Final = {
    "num_partitions": "offsets.topic.num.partitions",
    "journals": "cluster.journals",
}
