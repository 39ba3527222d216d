"""What the load generator says to the peers, and how it judges what they answer."""

import socket
from collections.abc import Callable
from typing import NamedTuple

import pytest

from bench.dialect_kafka import KafkaDialect, make_ready
from bench.dialect_zookeeper import ZooKeeperDialect, offset_path
from bench.dialects import COMMIT, FETCH, FIRST_OFFSET, HEARTBEAT, DialectError, Exchange, Load
from bench.frames import Talk
from bench.peer_dialects import ALL_DIALECTS
from tests.bench.peer_servers import FakeKafka, FakeRedis, FakeZooKeeper, speaking

FakePeer = FakeKafka | FakeRedis | FakeZooKeeper


class Case(NamedTuple):
    """A dialect, a server that speaks it, and how many partitions a request can name."""

    dialect: str
    make: Callable[[], FakePeer]
    refusing: Callable[[], FakePeer]
    partitions: int


CASES = (
    Case("kafka", FakeKafka, lambda: FakeKafka(commit_error=28), 3),
    Case("zookeeper", FakeZooKeeper, lambda: FakeZooKeeper(error=-102), 1),
    Case("redis", FakeRedis, lambda: FakeRedis(refuses=True), 3),
)
each_peer = pytest.mark.parametrize("case", CASES, ids=[case.dialect for case in CASES])


def answered(
    case: Case, sock: socket.socket, exchanges: list[Exchange], rounds: int
) -> tuple[list[int], int]:
    """Send every slot's next request in turn, so many rounds; return slots and wrong answers."""
    load = Load(COMMIT if exchanges[0].offset else FETCH, len(exchanges), case.partitions, "r")
    reader = ALL_DIALECTS[case.dialect](load).reader(exchanges)
    slots: list[int] = []
    for _ in range(rounds):
        sock.sendall(b"".join(exchange.next_request() for exchange in exchanges))
        wanted = len(slots) + len(exchanges)
        while len(slots) < wanted:
            # Small reads: an answer may be cut anywhere.
            slots += reader.feed(sock.recv(7))
    return slots, reader.wrong


@each_peer
def test_commits_are_answered_in_full_and_read_back(case: Case) -> None:
    """The last offset that was sent is what the peer must hold afterwards."""
    load = Load(COMMIT, 2, case.partitions, "r")
    peer = case.make()
    with speaking(peer.serve) as sock:
        dialect = ALL_DIALECTS[case.dialect](load)
        exchanges = dialect.prepare(sock, 4)
        assert answered(case, sock, exchanges, rounds=3) == ([0, 1] * 3, 0)
        assert [exchange.offset for exchange in exchanges] == [FIRST_OFFSET + 3] * 2
        assert dialect.differences(sock, 4, exchanges) == 0


@each_peer
def test_commits_that_were_not_kept_are_found(case: Case) -> None:
    """An acknowledgement without the commit is no throughput of a peer either."""
    with speaking(case.make().serve) as sock:
        dialect = ALL_DIALECTS[case.dialect](Load(COMMIT, 3, 1, "r"))
        exchanges = dialect.prepare(sock, 0)
        answered(case._replace(partitions=1), sock, exchanges, rounds=1)
        exchanges[1].next_request()  # As if it had been sent and acknowledged.
        assert dialect.differences(sock, 0, exchanges) == 1


@each_peer
def test_fetches_are_compared_with_what_was_committed(case: Case) -> None:
    """All of the answer counts, with every partition."""
    with speaking(case.make().serve) as sock:
        dialect = ALL_DIALECTS[case.dialect](Load(FETCH, 2, case.partitions, "r"))
        exchanges = dialect.prepare(sock, 0)
        assert answered(case, sock, exchanges, rounds=2) == ([0, 1] * 2, 0)
        assert dialect.differences(sock, 0, exchanges) == 0


@each_peer
def test_a_fetch_that_finds_another_offset_counts_as_wrong(case: Case) -> None:
    """Behind the first answer's back, too."""
    peer = case.make()
    with speaking(peer.serve) as sock:
        dialect = ALL_DIALECTS[case.dialect](Load(FETCH, 1, case.partitions, "r"))
        exchanges = dialect.prepare(sock, 0)
        match peer:
            case FakeKafka():
                peer.offsets["bench-r-000-000", 0] += 1
            case FakeZooKeeper():
                peer.nodes[offset_path("bench-r-000-000")] = (b"1099511627777", 1)
            case FakeRedis():
                peer.hashes[b"bench-r-000-000"][b"flights:0"] = b"1099511627777"
        assert answered(case, sock, exchanges, rounds=1) == ([0], 1)


@each_peer
def test_a_peer_that_refuses_stops_the_run(case: Case) -> None:
    """All later answers are compared with the first: it must be right itself."""
    with speaking(case.refusing().serve) as sock, pytest.raises(DialectError, match="refused"):
        ALL_DIALECTS[case.dialect](Load(COMMIT, 1, 1, "r")).prepare(sock, 0)


@each_peer
def test_a_load_that_a_peer_has_not_is_refused(case: Case) -> None:
    """No peer has heartbeats here."""
    with pytest.raises(DialectError):
        ALL_DIALECTS[case.dialect](Load(HEARTBEAT, 1, 1, "r"))


@each_peer
def test_groups_are_never_shared_between_connections_and_slots(case: Case) -> None:
    """Each connection and slot writes somewhere else, as with ours."""
    peer = case.make()
    dialect = ALL_DIALECTS[case.dialect](Load(COMMIT, 2, 1, "r"))
    for number in range(3):
        with speaking(peer.serve) as sock:
            dialect.prepare(sock, number)
    match peer:
        case FakeKafka():
            stored = len(peer.offsets)
        case FakeZooKeeper():
            stored = sum(path.endswith("/0") for path in peer.nodes)
        case FakeRedis():
            stored = len(peer.hashes)
    assert stored == 6


def test_kafka_commits_as_a_consumer_that_is_no_member() -> None:
    """Members would have to join first, and Kafka would check more."""
    peer = FakeKafka()
    with speaking(peer.serve) as sock:
        KafkaDialect(Load(COMMIT, 1, 1, "r")).prepare(sock, 0)
    assert peer.members == {(-1, "")}


@pytest.mark.parametrize("workload", [COMMIT, FETCH])
def test_kafka_is_asked_again_while_it_is_not_ready(workload: str) -> None:
    """Its coordinator is there a while after it listens."""
    peer = FakeKafka(not_yet=2)
    with speaking(peer.serve) as sock:
        exchanges = KafkaDialect(Load(workload, 1, 1, "r")).prepare(sock, 0)
        assert len(exchanges) == 1
    assert peer.not_yet == 0


def test_kafka_is_ready_when_it_has_a_topic_and_a_coordinator() -> None:
    """Kafka refuses commits for a topic that it doesn't have."""
    peer = FakeKafka(not_yet=1)
    with speaking(peer.serve) as sock:
        make_ready(sock, 100)
    assert peer.created == [("flights", 100)]
    assert peer.not_yet == 0


def test_zookeeper_keeps_an_offset_where_old_consumers_did() -> None:
    """A node a group, topic and partition, with the digits in it."""
    peer = FakeZooKeeper()
    with speaking(peer.serve) as sock:
        ZooKeeperDialect(Load(COMMIT, 1, 1, "r")).prepare(sock, 0)
    data, _ = peer.nodes["/consumers/bench-r-000-000/offsets/flights/0"]
    assert data == b"%d" % FIRST_OFFSET


def test_a_server_that_hangs_up_while_it_is_asked_is_no_silent_success() -> None:
    """ZooKeeper does so while it starts."""
    with speaking(lambda sock: None) as sock, pytest.raises(OSError, match=r"closed|pipe|reset"):
        Talk(sock).ask([b"\0\0\0\0"])
