"""What a node that comes to lead a journal knows of the topics, which are in another one."""

from collections.abc import Callable

from coordinator.cluster.engine import SetLeader
from coordinator.cluster.journal import Role
from tests.cluster.model import History, Host


def run_until(
    host: Host, history: History, is_so: Callable[[], bool], *, reads_topics: bool = False
) -> None:
    """Have one process go on, an answer at a time, until *is_so* says so."""
    line = host.line
    for _ in range(1_000):
        if is_so():
            return
        line.see(history.world.ensemble.transactions)
        if line.has_requests and not line.has_answers:
            line.serve()
        elif line.has_answers:
            line.deliver()
        else:
            history.world.now_ms += 20
            host.tick()
        host.take(1)
        if reads_topics:
            host.take(0)
    raise AssertionError("it never comes to that")


def test_a_lead_that_is_kept_waits_for_the_topics_as_a_new_one_does() -> None:
    """It was to be handed over before this node had read what there is, and that failed."""
    history = History(1, journals=2)
    world = history.world
    history.come_to_rest()
    old = next(host for host in history.hosts if 1 in host.epochs)
    topics = next(host for host in history.hosts if 0 in host.epochs)
    new = next(host for host in history.hosts if host not in (old, topics))
    machine = new.cluster.journals[1]
    # The node dies, and while another one claims its journal there is one more topic.
    history.hosts.remove(old)
    assert old.line.session is not None
    world.ensemble.end(old.line.session)
    run_until(new, history, lambda: new.line.is_asked(SetLeader))
    topics.commit(0)
    while history.do_all(topics):
        world.look()
    run_until(new, history, lambda: machine.role is Role.LEADING)
    # It is to be handed over, and the connection breaks before that is done.
    new.move(1, topics.number)
    new.stop(1)
    new.line.drop()
    new.line.connect()
    run_until(new, history, lambda: new.cluster.is_connected and not machine._given)
    run_until(new, history, lambda: 1 in new.epochs, reads_topics=True)

    assert len(new.held[0]) == len(world.logs[0].tokens) == 1
