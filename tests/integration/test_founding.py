"""What a node finds in a real ensemble before it runs, or makes, or refuses."""

import json
import shlex
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from bench.ensemble import QUICK_JVM, Ensemble, ensemble
from bench.peers import missing
from bench.processes import free_port
from coordinator.cluster import znodes
from coordinator.cluster.errors import ClusterRefused, EnsembleUnreachable
from coordinator.cluster.founding import SECRET_BYTES, Found, find_or_found
from coordinator.cluster.layout import Layout
from coordinator.cluster.znodes import Children, Contents, Get, Make, Multi, Names, Set
from coordinator.cluster.zookeeper import Access, Visit, access_of
from coordinator.config import load_settings
from coordinator.log.errors import EXIT_CORRUPT, EXIT_REFUSED
from protocol.messages import GroupFetch, OffsetFetchRequest
from tests.fakes.tls import authority
from tests.integration.cluster_support import cluster
from tests.integration.daemon import Connection, daemon, run_cli, until
from tests.integration.ensemble import (
    found as found_cluster,
    guarded_server,
    replace_by_empty,
    wipe,
)
from tests.server.world import commit

pytestmark = pytest.mark.integration

PATIENCE_S: Final = 30.0
SHORT_S: Final = 2.0
LAYOUT: Final = Layout(num_partitions=6, journals=2)
ID: Final = "0123456789012345678901"
OTHER: Final = "a123456789012345678901"
USER: Final = "gc"
# A cluster of this has its znodes in several transactions.
LARGE: Final = Layout(num_partitions=300, journals=2)
PAUSE_S: Final = 0.05
_numbers = count()


def accessed(zookeeper: Ensemble) -> Access:
    """Return a way to a chroot that nobody has used."""
    chroot = f"/founding/{next(_numbers)}"
    return Access(hosts=zookeeper.hosts, chroot=chroot, session_timeout_ms=6_000)


def found(
    access: Access,
    layout: Layout = LAYOUT,
    *,
    cluster_id: str = "",
    new: str = ID,
    patience_s: float = PATIENCE_S,
    advice: str | None = None,
) -> Found:
    """Find the cluster, or make it, unless there is an *advice* instead."""
    return find_or_found(
        access,
        layout,
        cluster_id=cluster_id,
        new_cluster_id=lambda: new,
        patience_s=patience_s,
        advice=advice,
    )


def write(access: Access, *changes: znodes.Change) -> None:
    """Do what somebody else has done there."""
    with Visit(access, patience_s=PATIENCE_S) as visit:
        assert znodes.Applied() == visit.do(Multi(changes))


@contextmanager
def administrator(zookeeper: Ensemble) -> Iterator[KazooClient]:
    """Connect as people's tools do."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


def test_a_cluster_is_made_once_and_then_found(zookeeper: Ensemble) -> None:
    """A restart finds what the first start has made."""
    access = accessed(zookeeper)

    made = found(access)
    assert (ID, True, {}) == (made.cluster_id, made.is_new, made.unknown)
    assert len(made.secret) == SECRET_BYTES
    assert made._replace(is_new=False) == found(access, new=OTHER)
    assert made._replace(is_new=False) == found(access, cluster_id=ID)
    with Visit(access, patience_s=PATIENCE_S) as visit:
        assert Names(("brokers", "cluster", "journals")) == _sorted(visit.do(Children("", False)))
        (layout,) = _contents(visit, znodes.LAYOUT)
    assert {"format": 1, "num_partitions": 6, "journals": 2} == json.loads(layout)


def _sorted(names: znodes.Result) -> Names:
    assert isinstance(names, Names)
    assert names.names is not None
    return Names(tuple(sorted(names.names)))


def _contents(visit: Visit, *paths: str) -> list[bytes]:
    contents = visit.do(Get(paths, watches=False))
    assert isinstance(contents, Contents)
    return [znode.data for znode in contents.znodes if znode is not None]


def test_nodes_that_start_at_once_make_one_cluster(zookeeper: Ensemble) -> None:
    """As they do where all of a deployment is new."""
    access = accessed(zookeeper)
    ids = [ID, OTHER, "b" + ID[1:]]
    made: list[Found] = []
    starts = [
        threading.Thread(target=lambda new=new: made.append(found(access, LARGE, new=new)))
        for new in ids
    ]
    for start in starts:
        start.start()
    for start in starts:
        start.join()

    assert len(made) == 3
    ((there, _),) = {(one.cluster_id, one.secret) for one in made}
    assert [there in ids, 1] == [True, sum(one.is_new for one in made)]
    _check_whole(access)


def _check_whole(access: Access) -> None:
    paths = [make.path for make in znodes.founding(*LARGE)]
    with Visit(access, patience_s=PATIENCE_S) as visit:
        assert len(paths) == len(_contents(visit, *paths))


def test_what_an_interrupted_start_left_is_finished(zookeeper: Ensemble) -> None:
    """There is no cluster before its id is there."""
    access = accessed(zookeeper)
    found(access, LARGE)
    whole = [make.path for make in znodes.founding(*LARGE)]
    left = (znodes.CLUSTER_ID, *reversed(whole[201:]))
    write(access, *[znodes.Remove(path, {}) for path in left])

    assert found(access, LARGE, new=OTHER)[::2] == (OTHER, True)
    _check_whole(access)


ADVICE: Final = "Make it."


def test_what_asks_for_no_cluster_makes_none(zookeeper: Ensemble) -> None:
    """Where data was lost an empty cluster would have told each group that it has no offsets."""
    access = accessed(zookeeper)

    with pytest.raises(ClusterRefused, match=r"holds no cluster\. Make it\."):
        found(access, advice=ADVICE)
    with administrator(zookeeper) as client:
        assert client.exists(access.chroot) is None

    found(access, LARGE)
    write(access, znodes.Remove(znodes.CLUSTER_ID, {}))  # As where its founding was interrupted.
    with pytest.raises(ClusterRefused, match="holds no cluster"):
        found(access, LARGE, advice=ADVICE)
    made = found(access, LARGE, new=OTHER)
    assert made._replace(is_new=False) == found(access, LARGE, advice=ADVICE)


def test_a_chroot_of_others_is_named_before_the_missing_cluster(zookeeper: Ensemble) -> None:
    """The advice would be wrong there: a cluster can't be made in it."""
    access = accessed(zookeeper)
    with administrator(zookeeper) as client:
        client.create(f"{access.chroot}/consumers", makepath=True)

    with pytest.raises(ClusterRefused, match="holds other things: consumers"):
        found(access, advice=ADVICE)


def test_another_cluster_is_refused(zookeeper: Ensemble) -> None:
    """A node with the wrong chroot in its settings would answer with foreign groups."""
    access = accessed(zookeeper)
    found(access)

    with pytest.raises(ClusterRefused, match=f"holds the cluster {ID}, not {OTHER}"):
        found(access, cluster_id=OTHER)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (LAYOUT._replace(num_partitions=7), r"offsets\.topic\.num\.partitions=6, .* say 7"),
        (LAYOUT._replace(journals=3), r"cluster\.journals=2, .* say 3"),
    ],
)
def test_another_layout_is_refused(zookeeper: Ensemble, layout: Layout, words: str) -> None:
    """A group would be looked for in a partition that it isn't in."""
    access = accessed(zookeeper)
    found(access)

    with pytest.raises(ClusterRefused, match=words):
        found(access, layout)


def test_a_half_made_cluster_of_another_layout_is_refused(zookeeper: Ensemble) -> None:
    """Two nodes with different settings start at once, and neither may make a mixture."""
    access = accessed(zookeeper)
    found(access)
    write(access, znodes.Remove(znodes.CLUSTER_ID, {}))

    with pytest.raises(ClusterRefused, match="journals=2"):
        found(access, LAYOUT._replace(journals=3))

    with Visit(access, patience_s=PATIENCE_S) as visit:
        assert Names(("0", "1")) == _sorted(visit.do(Children("/journals", False)))
        assert Names(("layout", "secret")) == _sorted(visit.do(Children("/cluster", False)))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"format":2,"num_partitions":6,"journals":2}', "by a newer release"),
        (b"[]", "as nobody knows"),
    ],
)
def test_a_layout_that_is_not_known_is_refused(
    zookeeper: Ensemble, data: bytes, words: str
) -> None:
    """An older release must not write among what it doesn't understand."""
    access = accessed(zookeeper)
    found(access)
    write(access, Set(znodes.LAYOUT, data, znodes.ANY_VERSION, {}))

    with pytest.raises(ClusterRefused, match=words):
        found(access)


@pytest.mark.parametrize("version", ['"1"', "2"])
def test_an_id_of_another_version_is_refused(zookeeper: Ensemble, version: str) -> None:
    """It may mean something else, whatever lies beside it."""
    access = accessed(zookeeper)
    found(access)
    data = f'{{"version":{version},"id":"{ID}"}}'.encode()
    write(access, Set(znodes.CLUSTER_ID, data, znodes.ANY_VERSION, {}))

    with pytest.raises(ClusterRefused, match="holds a cluster that is none of ours"):
        found(access)


def test_the_chroot_of_a_kafka_cluster_is_refused(zookeeper: Ensemble) -> None:
    """Its brokers register where our nodes would."""
    access = accessed(zookeeper)
    with administrator(zookeeper) as client:
        client.create(
            f"{access.chroot}/cluster/id",
            b'{"version":"1","id":"' + ID.encode() + b'"}',
            makepath=True,
        )
        client.create(f"{access.chroot}/brokers/ids", makepath=True)

    with pytest.raises(ClusterRefused, match="holds a cluster that is none of ours"):
        found(access)


def test_a_chroot_with_other_things_in_it_is_refused(zookeeper: Ensemble) -> None:
    """Consumers of old, say; nothing may be added to them."""
    access = accessed(zookeeper)
    with administrator(zookeeper) as client:
        client.create(f"{access.chroot}/brokers/ids", makepath=True)
        client.create(f"{access.chroot}/consumers", makepath=True)

        with pytest.raises(ClusterRefused, match="holds other things: brokers, consumers"):
            found(access)
        assert {"brokers", "consumers"} == set(client.get_children(access.chroot))


def test_missing_rights_are_told(zookeeper: Ensemble) -> None:
    """The reason is ZooKeeper's, the place is in our settings."""
    access = accessed(zookeeper)
    theirs = make_digest_acl("somebody", "else", all=True)
    readable = make_acl("world", "anyone", read=True)
    with administrator(zookeeper) as client:
        client.create(access.chroot, acl=[theirs, readable], makepath=True)
        with pytest.raises(ClusterRefused, match=r"can't be written: .*rules don't allow it"):
            found(access)

        closed = accessed(zookeeper)
        client.create(closed.chroot, acl=[theirs], makepath=True)
        with pytest.raises(ClusterRefused, match=r"can't be read: .*rules don't allow it"):
            found(closed)

        taken = accessed(zookeeper)
        found(taken)
        client.set_acls(f"{taken.chroot}/cluster/id", [theirs, readable])
        with pytest.raises(ClusterRefused, match=r"can't be written: .*rules don't allow it"):
            found(taken)


@contextmanager
def telling(answer: bytes) -> Iterator[str]:
    """Run a server that tells everybody no more than this; yield its ``host:port``."""

    class Teller(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(4)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Teller) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("version", ["3.4.14", "3.9.3"])
def test_releases_that_lose_data_are_refused(zookeeper: Ensemble, version: str) -> None:
    """One such server is enough, whatever the others are."""
    access = accessed(zookeeper)
    with (
        telling(f"Zookeeper version: {version}-abc, built on\n".encode()) as old,
        pytest.raises(ClusterRefused, match=f"{version}: releases before 3.9.4 can lose"),
    ):
        found(replace(access, hosts=f"{zookeeper.hosts},{old}"))


def test_servers_that_do_not_tell_their_version_are_named(zookeeper: Ensemble) -> None:
    """One that is away for a moment must not keep the node from starting."""
    access = accessed(zookeeper)
    away = f"127.0.0.1:{free_port()}"
    with (
        telling(b"srvr is not executed because it is not in the whitelist.\n") as silent,
        telling(b"This ZooKeeper instance is not currently serving requests\n") as idle,
    ):
        there = found(replace(access, hosts=f"{zookeeper.hosts},{silent},{idle},{away}"))

    assert {silent, idle, away} == set(there.unknown)
    assert "whitelist" in there.unknown[silent]
    assert "it serves nobody at the moment" == there.unknown[idle]


def test_an_ensemble_that_is_away_is_told_within_the_patience() -> None:
    """Whoever starts a node wants to know why nothing happens."""
    access = Access(hosts=f"127.0.0.1:{free_port()}", chroot="/gc", session_timeout_ms=6_000)

    with pytest.raises(EnsembleUnreachable, match=r"can't be reached: .*refused"):
        found(access, patience_s=SHORT_S)


def test_a_server_that_takes_no_large_requests_is_refused(tmp_path: Path) -> None:
    """Small flushes would work, and the first large one would be tried for ever."""
    if why := missing("zookeeper"):
        pytest.skip(why)
    with ensemble(tmp_path, 1, jvm=(*QUICK_JVM, "-Djute.maxbuffer=200000")) as one:
        with pytest.raises(ClusterRefused, match=r"512 KiB: its jute\.maxbuffer has to be"):
            found(accessed(one))
        with administrator(one) as client:
            assert [] == client.get_children("/founding/" + client.get_children("/founding")[0])


# --- TLS and log-ins ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Access, Access]]:
    """Return ways to a server that wants a log-in, with TLS and without."""
    if why := missing("zookeeper"):
        pytest.skip(why)
    with guarded_server(tmp_path_factory.mktemp("guarded")) as server:
        plain = replace(accessed(server.made), user=server.user, password="right", is_owned=True)
        yield plain, access_of(load_settings(overrides=server.settings(plain.chroot)))


def trusting() -> ssl.SSLContext:
    """Return what trusts the tests' authority."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    return context


def test_who_logs_in_over_tls_owns_what_he_makes(guarded: tuple[Access, Access]) -> None:
    """The log is everybody's offsets; other users of the ensemble must not read it."""
    plain, secure = guarded

    assert ID == found(secure).cluster_id
    foe = replace(plain, user="foe", password="foe")
    with Visit(foe, patience_s=PATIENCE_S) as visit:
        assert isinstance(visit.do(Get((znodes.CLUSTER_ID,), watches=False)), znodes.Odd)
        assert isinstance(visit.do(Multi((Make("/mine", b""),))), znodes.Odd)
    with pytest.raises(ClusterRefused, match="can't be read"):
        found(foe)


def test_a_wrong_password_is_refused_at_once(guarded: tuple[Access, Access]) -> None:
    """Trying again would not help."""
    _, secure = guarded

    for wrong in (replace(secure, password="wrong"), replace(secure, user="")):
        with pytest.raises(ClusterRefused, match="refuses us: the server wants a log-in"):
            found(wrong)


def test_a_certificate_of_somebody_else_is_not_taken(guarded: tuple[Access, Access]) -> None:
    """Whoever stands in between would get the password's digest, and all offsets."""
    _, secure = guarded

    with pytest.raises(EnsembleUnreachable, match=r"(?i)certificate.verify.failed"):
        found(replace(secure, new_tls=ssl.create_default_context), patience_s=SHORT_S)


def test_plain_clients_learn_why_a_port_of_tls_hangs_up(guarded: tuple[Access, Access]) -> None:
    """And the other way round."""
    plain, secure = guarded

    with pytest.raises(EnsembleUnreachable, match="can't be reached"):
        found(replace(secure, new_tls=None), patience_s=SHORT_S)
    with pytest.raises(EnsembleUnreachable, match="can't be reached"):
        found(replace(plain, new_tls=trusting), patience_s=SHORT_S)


# --- nodes as processes ---------------------------------------------------------------------


def test_a_node_refuses_where_no_cluster_is_and_names_the_command(zookeeper: Ensemble) -> None:
    """The command, copied, makes the cluster of exactly the node's settings."""
    access = accessed(zookeeper)
    settings = (
        f"cluster.zookeeper={access.hosts}{access.chroot}",
        f"cluster.id={ID}",
        "cluster.journals=2",
        "offsets.topic.num.partitions=7",
    )
    with daemon(None, *settings) as node:
        reason = node.wait_for("refused")["reason"]
        assert node.wait() == 78
    assert reason.startswith(f"{access.chroot} of ZooKeeper holds no cluster. ")
    _, _, command = reason.partition(" by: group-coordinator ")

    made = run_cli(*shlex.split(command))
    again = run_cli(*shlex.split(command))

    assert (made.returncode, made.stdout) == (0, f"Made the cluster {ID}.\n"), made.stderr
    assert (again.returncode, again.stdout) == (0, f"There is already the cluster {ID}.\n")
    with daemon(None, *settings) as node:
        assert node.ready().events("log.created") == []


def test_nodes_that_may_create_the_cluster_make_one(zookeeper: Ensemble) -> None:
    """As in examples, where all nodes of a new cluster start at once."""
    with cluster(f"{zookeeper.hosts}/founding/{next(_numbers)}", f"cluster.id={ID}") as nodes:
        assert {line["cluster_id"] for line in nodes.events("log.created")} == {ID}
        assert {line["cluster_id"] for line in nodes.events("listening")} == {ID}


def fetched(connection: Connection) -> set[int]:
    """Return the offsets that a node tells, if it does; it may have ended."""
    try:
        answer: Any = connection.ask(OffsetFetchRequest((GroupFetch("g", None),), False))
    except OSError:
        return set()
    groups = [group for group in answer.groups if not group.error]
    return {found.offset for g in groups for t in g.topics for found in t.partitions}


@pytest.mark.parametrize(
    "lose", [partial(wipe, chroot="/gc"), replace_by_empty], ids=["chroot", "ensemble"]
)
def test_nodes_end_for_good_when_their_data_is_gone_and_make_none_in_its_place(
    tmp_path: Path, lose: Callable[[Ensemble], None]
) -> None:
    """A new, empty cluster told each group -1 without an error, and began at epoch 1 again."""
    if why := missing("zookeeper"):
        pytest.skip(why)
    with ensemble(tmp_path) as made, ExitStack() as stack:
        found_cluster(made, "/gc")
        where = (f"cluster.zookeeper={made.hosts}/gc", "cluster.session.timeout.ms=4000")
        settings = (*where, "node.id=1")
        nodes = stack.enter_context(daemon(None, *settings, options=["--nodes=2"]))
        until(lambda: len(nodes.events("ready")) == 2, "both ready")
        ports = {line["port"] for line in nodes.events("listening")}
        connections = [stack.enter_context(Connection(port)) for port in ports]
        until(
            lambda: any(getattr(one.ask(commit(6)), "error", -1) == 0 for one in connections),
            "a commit",
            pause_s=0.2,
        )
        lose(made)
        seen = set[int]()
        while nodes.process.poll() is None:
            seen = seen.union(*map(fetched, connections))
            time.sleep(PAUSE_S)

        assert nodes.wait() == EXIT_CORRUPT
        assert seen <= {6}
        assert {line["node"] for line in nodes.events("node.given_up")} == {1, 2}
        assert nodes.events("node.ended") == []
        reasons = [line["reason"] for line in nodes.events("log.failed")]
        assert ["gone from ZooKeeper" in reason for reason in reasons] == [True, True], reasons
        again = stack.enter_context(daemon(None, *settings))
        reason = again.wait_for("refused")["reason"]
        assert again.wait() == EXIT_REFUSED
        assert "/gc of ZooKeeper holds no cluster. If there was one, its data is gone" in reason
