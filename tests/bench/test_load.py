"""The load generator's connections, and the generator against a real echo."""

import select
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import load
from bench.dialects import COMMIT, EchoDialect, Load
from bench.load import Connection, Plan
from bench.processes import serving

PLAN = Plan(
    host="127.0.0.1",
    port=0,
    dialect="echo",
    workload=COMMIT,
    connections=3,
    window=2,
    partitions=5,
    warmup_s=0.02,
    duration_s=0.1,
    run="test",
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends with buffers that are full soon."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.settimeout(60)
    yield ours, theirs
    ours.close()
    theirs.close()


def test_what_a_full_socket_refuses_is_sent_later_and_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """A generator that lost bytes would wait for its answer for ever."""
    ours, theirs = pair
    dialect = EchoDialect(Load(COMMIT, window=64, partitions=100, run="r"))
    exchanges = dialect.prepare(ours, 0)
    with select.epoll() as epoll:
        connection = Connection(ours, epoll, dialect.reader(exchanges), exchanges)
        connection.send(range(64))
        connection.send([5])
        expected = b"".join(exchange.request for exchange in exchanges) + exchanges[5].request
        got = b""
        while len(got) < len(expected):
            got += theirs.recv(1 << 16)
            if any(mask & select.EPOLLOUT for _, mask in epoll.poll(0)):
                connection.flush()
    # The sixth frame of the first round left before its offset moved on.
    frame = len(exchanges[0].request)
    assert len(got) == len(expected)
    assert got[: 5 * frame] + got[6 * frame :] == expected[: 5 * frame] + expected[6 * frame :]


@pytest.fixture(scope="module")
def echo_plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plan]:
    """A plan with the port of an echo server."""
    output: Path = tmp_path_factory.mktemp("echo") / "log"
    with serving(
        ["bench.echo_server", "stream"], output=output, core=None, graceful=False
    ) as server:
        yield replace(PLAN, host=server.host, port=server.port, server_pid=server.pid)


@pytest.mark.integration
@pytest.mark.parametrize("rate_per_s", [None, 500.0])
def test_every_request_to_the_echo_is_answered_and_checked(
    echo_plan: Plan, rate_per_s: float | None
) -> None:
    """The generator end to end, in both loops."""
    measured = load.run(replace(echo_plan, rate_per_s=rate_per_s))
    assert measured.requests > 0
    assert (measured.wrong, measured.unanswered, measured.differences) == (0, 0, 0)
    assert 0 < measured.p50_us <= measured.p99_us <= measured.max_us
    assert (measured.late_p99_us is None) == (rate_per_s is None)


@pytest.mark.integration
def test_one_connection_with_one_slot_is_enough(echo_plan: Plan) -> None:
    """In an open loop the rest waits in the backlog, and its wait counts."""
    plan = replace(echo_plan, connections=1, window=1, rate_per_s=200_000.0)
    measured = load.run(plan)
    assert (measured.wrong, measured.unanswered) == (0, 0)
    # Meant to leave long before there was a free slot: more than a round trip.
    assert measured.max_us > 10 * load.run(replace(plan, rate_per_s=None)).p50_us
