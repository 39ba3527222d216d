"""Many offsets stored once, and whether they are there."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from bench.dialects import FIRST_OFFSET, DialectError
from bench.fill import FillPlan, fill, group_name, is_there, last_groups, offsets_of
from protocol.groups import offsets_partition
from tests.bench.peer_servers import FakeKafka, until_closed
from tests.bench.test_dialects import Shop


@contextmanager
def listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port whose connections are served, each by a thread of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threads: list[Thread] = []

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                threads.append(Thread(target=until_closed, args=(serve, sock)))
                threads[-1].start()

        accepting = Thread(target=accept)
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # Closing alone would leave it accepting.
            accepting.join(60)
            for thread in threads:
                thread.join(60)


STORES = pytest.mark.parametrize("dialect", ["coordinator", "kafka"])


def store(dialect: str, *, error: int = 0) -> Shop | FakeKafka:
    """A server that keeps offsets by group and partition."""
    if dialect == "kafka":
        return FakeKafka(commit_error=error)
    return Shop(commit_error=error)


def plan(port: int, dialect: str) -> FillPlan:
    """A plan that doesn't fill the last round of its connections."""
    return FillPlan("127.0.0.1", port, dialect, groups=10, partitions=3, passes=2, connections=4)


@STORES
def test_every_group_gets_every_offset_and_the_last_turn_stays(dialect: str) -> None:
    """Ten million bytes of log are worth nothing if they are of one group."""
    server = store(dialect)
    with listening(server.serve) as port:
        filled = fill(plan(port, dialect))
        assert filled.commits == 20
        assert server.offsets == {
            (group_name(group), partition): offset
            for group in range(10)
            for partition, offset in enumerate(offsets_of(3, 2))
        }
        assert is_there(plan(port, dialect))


@STORES
def test_a_partition_whose_group_has_an_older_offset_is_not_there(dialect: str) -> None:
    """A start is over when all is loaded, not when something is."""
    server = store(dialect)
    with listening(server.serve) as port:
        fill(plan(port, dialect))
        server.offsets[group_name(last_groups(10)[3]), 0] = FIRST_OFFSET + 1
        assert not is_there(plan(port, dialect))


@STORES
def test_a_refused_commit_is_told(dialect: str) -> None:
    """A log that was not filled would load fast."""
    with listening(store(dialect, error=28).serve) as port, pytest.raises(DialectError, match="28"):
        fill(plan(port, dialect))


def test_the_last_groups_are_one_of_each_partition() -> None:
    """So that their answers say that every partition is loaded."""
    found = [offsets_partition(group_name(number), 50) for number in last_groups(10_000)]
    assert sorted(found) == list(range(50))
