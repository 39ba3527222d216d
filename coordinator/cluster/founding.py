"""Before a node runs: whether the ensemble will do, and whose is what stands under its chroot.

What is there is looked at first, and what can't be is refused before anything is written. A
cluster that isn't there is made only for a caller that asks for it. Several of them may do that at
once, and be interrupted: each makes what is missing, and `/cluster/id`, which comes last, only one
of them can make.
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
# Before 3.9.2 an ensemble can lose what it has acknowledged (ZOOKEEPER-4785), and 3.9.3 can, too
# (ZOOKEEPER-4925).
OLDEST: Final = (3, 9, 4)
_VERSION: Final = re.compile(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)")
_SRVR_S: Final = 2.0
_PROBE_S: Final = 5.0
_MAKES_AT_ONCE: Final = 200
# No znode ever has it: what asks for it fails, once all the rest was looked at.
_NO_VERSION: Final = 2**31 - 1


class Found(NamedTuple):
    """The cluster under the chroot.

    Attributes:
        secret: Which its nodes share, and nobody else knows.
        is_new: It was made just now.
        unknown: Servers whose version nobody knows, and why.
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
    """Return the cluster, made if it isn't there; blocks.

    Args:
        access: How the ensemble is reached.
        layout: What the cluster has to be like.
        cluster_id: Which one it has to be; "" for any.
        new_cluster_id: Makes the id of a new one.
        patience_s: How long to wait for a connection, and for each answer.
        advice: If not None, a cluster that isn't there is refused with these words, not made.

    Raises:
        ClusterRefused: The ensemble or what stands in it can't be used; the message says why.
        EnsembleUnreachable: Nobody answers.
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
    """Look at the servers; return those whose version isn't known, and the reason of each.

    Args:
        access: How the ensemble is reached.
        patience_s: How long to wait for a connection, and for each answer.
        makes_chroot: Make the chroot, too, once the versions will do.

    Raises:
        ClusterRefused: They can't be used; the message says why.
        EnsembleUnreachable: Nobody answers.
    """
    with Visit(replace(access, chroot=""), patience_s=patience_s) as visit:
        # Servers that start together tell their versions once a majority is there.
        away, silent = _check_versions(access)
        if makes_chroot:
            _make_chroot(visit, access)
    for server in servers_of(access):
        if server not in away:
            _probe(replace(access, hosts=server))
    return away | silent


def make_chroot(access: Access, *, patience_s: float) -> None:
    """Make the path that the cluster lies under. Raises ClusterRefused, EnsembleUnreachable."""
    with Visit(replace(access, chroot=""), patience_s=patience_s) as visit:
        _make_chroot(visit, access)


def servers_of(access: Access) -> list[str]:
    """Return the ensemble's servers one by one, as ``host:port``."""
    hosts, _ = collect_hosts(access.hosts)
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts]


# --- The servers ---------------------------------------------------------------------------


def _check_versions(access: Access) -> tuple[dict[str, str], dict[str, str]]:
    """Refuse servers that are too old; return those that are away, and those that don't tell."""
    away, silent = {}, {}
    servers = servers_of(access)
    # Side by side: each that hangs takes its time.
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
                raise _lost()
            case other:
                raise ClusterRefused(f"{place} changes while we write it: {other}")


class Place:
    """What is under the chroot; its text is how people are told of it."""

    def __init__(self, visit: Visit, access: Access) -> None:
        """Look at it by *visit*, which is in the chroot of *access*."""
        self._visit = visit
        self._top = _top(access)
        self._text = _place(access)

    def __str__(self) -> str:
        """Return how people are told of it."""
        return self._text

    def cluster_id(self) -> str | None:
        """Return which cluster is there, None if there is none. Raises ClusterRefused."""
        data = self._read(znodes.CLUSTER_ID)
        if data is None:
            # A server may be behind; after a transaction, also one that fails, its session is not.
            self._visit.do(Multi((Check(self._top, _NO_VERSION, {}),)))
            data = self._read(znodes.CLUSTER_ID)
        if data is None:
            return None
        fields = _fields(data)
        if fields.get("version") != CLUSTER_VERSION or not isinstance(fields.get("id"), str):
            # Kafka's has its version as a string.
            raise ClusterRefused(f"{self} holds a cluster that is none of ours")
        found: str = fields["id"]
        return found

    def check_layout(self, layout: Layout) -> None:
        """Refuse another layout than this."""
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
        """Return what only the nodes of the cluster know. Raises ClusterRefused."""
        found = _fields(self._read(znodes.SECRET) or b"").get("secret")
        with suppress(ValueError):
            return bytes.fromhex(str(found))
        raise ClusterRefused(f"{self} holds a cluster whose {znodes.SECRET} can't be read")

    def begin(self, layout: Layout, secret: bytes) -> None:
        """Make all of a cluster but its id, or what an interrupted founding has left out."""
        self.check_empty()
        _make(self._visit, _head(layout, secret), self._text)
        # If somebody else has begun, with other numbers, there must not be a mixture.
        self.check_layout(layout)
        self._make_rest(layout)

    def begin_anew(self, layout: Layout, secret: bytes) -> int:
        """Make all of a cluster but its id, and remove first what was begun before.

        Return the version of the layout, which `finish` takes: each founding that began before has
        a lower one, and finishes nothing any more.
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
        fence = Check(znodes.LAYOUT, begun.version + 1, {})  # Fails if another one came between.
        for name in sorted(_OURS - {"cluster"}):
            self._remove_tree(f"/{name}", fence)
        self._make_rest(layout)
        return fence.version

    def finish(self, cluster_id: str, version: int = 0) -> str:
        """Make it a cluster; return which one, as somebody else may have been faster."""
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
        """Refuse a cluster that we may not change, without a change."""
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
        """Refuse a chroot that is somebody else's: what is ours begins with ``/cluster``."""
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
    """Return what a founding begins with, in one transaction."""
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
