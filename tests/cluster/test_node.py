"""One node of a cluster, step by step, among others that go on."""

import pytest

from coordinator.cluster import effects as fx, znodes
from coordinator.cluster.engine import Registration, SetLeader, Snapshot
from coordinator.cluster.errors import ClusterGone
from coordinator.cluster.journal import Role
from tests.cluster import model
from tests.cluster.model import History, Host


def registered(history: History, host: Host) -> Registration:
    """Return what the ensemble has of a node."""
    znode = history.world.ensemble.at(znodes.node_path(host.number))
    assert znode is not None
    found = znodes.decode_registration(host.number, znode.data)
    assert found is not None
    return found


def test_a_node_that_comes_back_is_not_ready_before_it_knows_what_it_lost() -> None:
    """It would be given a journal that it has to load, and nobody could serve that meanwhile."""
    history = History(1, steps=0, journals=1)
    history.run()
    old = next(host for host in history.hosts if host.epochs)
    assert registered(history, old).is_ready
    old.line.drop()
    assert old.line.session is not None
    history.world.ensemble.end(old.line.session)
    others = [host for host in history.hosts if host is not old]
    while not any(host.epochs for host in others):
        history.world.now_ms += 100
        for host in others:
            history.do_all(host)
            host.tick()
    old.line.connect()
    old.line.serve()
    assert not registered(history, old).is_ready
    seen = []
    while old.line.has_requests or old.line.has_answers:
        (old.line.serve if old.line.has_requests else old.line.deliver)()
        old.take(0)
        seen.append((registered(history, old).is_ready, old.cluster.journals[0].is_following))
    history.come_to_rest()

    assert (True, False) not in seen
    assert registered(history, old).is_ready


def take_over_from(history: History, old: Host, journal: int) -> Host:
    """Have *journal* moved, and return who leads it without knowing the topics yet."""
    new = next(host for host in history.hosts if host is not old)
    old.move(journal, new.number)
    old.stop(journal)
    while new.cluster.journals[journal].role is not Role.LEADING:
        for host in (old, new):
            host.line.see(history.world.ensemble.transactions)
            if host.line.has_requests:
                host.line.serve()
            elif host.line.has_answers:
                host.line.deliver()
    assert journal not in new.epochs
    return new


def test_a_hand_over_that_fails_is_told_though_the_topics_are_not_known_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator may have asked for it, and waits for what came of it."""
    kept: list[fx.KeptLead] = []
    monkeypatch.setitem(model._ACTIONS, fx.KeptLead, lambda _host, effect: kept.append(effect))
    history = History(1, steps=0, journals=2)
    history.run()
    old = next(host for host in history.hosts if 0 in host.epochs)
    if 1 not in old.epochs:
        next(host for host in history.hosts if 1 in host.epochs).move(1, old.number)
        history.come_to_rest()
    new = take_over_from(history, old, 1)
    new.move(1, old.number)
    new.stop(1)
    assert new.line.is_asked(SetLeader)
    new.line.drop()
    history.come_to_rest()

    assert kept == [fx.KeptLead(1)]
    assert 1 in new.epochs


def test_a_snapshot_whose_chunks_are_gone_is_not_installed() -> None:
    """An ensemble that was set back has the whole journal, and not what was made beside it."""
    history = History(1, steps=0, journals=1)
    history.run()
    leader = next(host for host in history.hosts if host.epochs)
    leader.commit(0)
    leader.flush(0)
    history.come_to_rest()
    before = 0
    while not leader.snapshots:  # A child may see too little.
        history.come_to_rest()
        before = history.world.ensemble.transactions
        leader.make_snapshot(0)
    history.set_back(history.world.ensemble.transactions - before)
    history.come_to_rest()
    leader.install()
    history.come_to_rest()

    assert leader.cluster.journals[0].snapshot == Snapshot()
    assert leader.cluster.journals[0].begin_snapshot() is not None
    assert not any(host.is_over for host in history.hosts)


def test_a_node_that_a_copy_does_not_know_registers_again() -> None:
    """The copy may have its session, and not its registration: nobody would give it anything."""
    history = History(1, steps=0, journals=1)
    history.run()
    host, ensemble = next(h for h in history.hosts if not h.epochs), history.world.ensemble
    host.line.drop()
    removed = znodes.Multi((znodes.Remove(znodes.node_path(host.number), {}),))
    ensemble.do(ensemble.connect(), removed, None)
    history.come_to_rest()

    assert registered(history, host).run == host.run


def test_who_is_no_node_stands_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of Kafka with the cluster's chroot ended all nodes, each with 78."""
    strangers: list[int] = []
    monkeypatch.setitem(
        model._ACTIONS, fx.Stranger, lambda _, effect: strangers.append(effect.node)
    )
    history = History(1, steps=0, journals=1)
    history.run()
    ensemble = history.world.ensemble
    old = next(host for host in history.hosts if host.epochs)
    history.hosts.remove(old)
    assert old.line.session is not None
    ensemble.end(old.line.session)
    brokers = [znodes.Make(znodes.node_path(number), b"{}") for number in (old.number, 99)]
    ensemble.do(ensemble.connect(), znodes.Multi(tuple(brokers)), None)
    history.come_to_rest()

    assert any(host.epochs for host in history.hosts)
    assert set(strangers) == {old.number, 99}


def gone(history: History) -> list[str]:
    """Let everything happen; return why each node has ended."""
    hosts = list(history.hosts)
    history.world.is_set_back = True
    history.come_to_rest()
    assert not history.hosts
    assert all(isinstance(host.error, ClusterGone) for host in hosts)
    return [str(host.error) for host in hosts]


@pytest.mark.parametrize(
    "path",
    [
        znodes.CLUSTER_ID,
        znodes.leader_path(0),
        "/journals/0/snapshot",
        "/journals/0/purged",
    ],
)
def test_a_node_ends_as_soon_as_what_every_cluster_has_is_removed(path: str) -> None:
    """A watch tells it, also where nobody writes: no time passes."""
    history = History(1, steps=0, journals=1)
    history.run()
    began_ms = history.world.now_ms
    ensemble = history.world.ensemble
    ensemble.do(ensemble.connect(), znodes.Multi((znodes.Remove(path, {}),)), None)
    history.world.is_set_back = True
    for host in list(history.hosts):
        history.do_all(host)

    assert history.world.now_ms == began_ms
    for reason in gone(history):
        assert f"the cluster's data is gone from ZooKeeper: {path} isn't there" in reason
        assert "group-coordinator cluster init" in reason


def all_cut_off() -> History:
    """Return a cluster at rest, none of whose nodes has a connection."""
    history = History(1, steps=0, journals=1)
    history.run()
    for host in history.hosts:
        host.line.drop()
    return history


def test_a_node_that_meets_an_ensemble_without_data_ends() -> None:
    """Its servers have no room for a registration either."""
    history = all_cut_off()
    ensemble = history.world.ensemble
    while ensemble.wipe(lambda leaves: leaves[0]):
        pass

    reasons = gone(history)
    assert [reason for reason in reasons if "isn't there" not in reason] == []


def test_a_node_that_meets_another_cluster_ends_before_it_does_anything_there() -> None:
    """Somebody has made a new one in the place of the wiped one, and its fences may fit."""
    history = all_cut_off()
    ensemble = history.world.ensemble
    other = f'{{"version":1,"id":"{"B" * 22}"}}'.encode()
    change = znodes.Set(znodes.CLUSTER_ID, other, znodes.ANY_VERSION, {})
    ensemble.do(ensemble.connect(), znodes.Multi((change,)), None)
    before = ensemble.at(znodes.leader_path(0))

    assert [reason for reason in gone(history) if "not AAAAAAAAAAAAAAAAAAAAAA" not in reason] == []
    assert ensemble.at(znodes.leader_path(0)) == before
