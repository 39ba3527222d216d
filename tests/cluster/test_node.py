"""One node of a cluster, step by step, among others that go on."""

from coordinator.cluster import znodes
from coordinator.cluster.engine import Registration
from tests.cluster.model import History, Host


def registered(history: History, host: Host) -> Registration:
    """Return what the ensemble has of a node."""
    znode = history.world.ensemble.at(znodes.node_path(host.number))
    assert znode is not None
    return znodes.decode_registration(host.number, znode.data)


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
