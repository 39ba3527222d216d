"""What systemd is told, over a real datagram socket and with a virtual clock."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from coordinator.server.service_manager import ServiceManager


class Part:
    """A load that is under way, as far as anybody looks."""

    total_bytes = 100
    done_bytes = 41
    entries = 1_200


@pytest.fixture(params=["path", "abstract"])
def listening(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd's, and what NOTIFY_SOCKET would say of it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@notify-{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as receiver:
        receiver.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        yield receiver, name


def heard(receiver: socket.socket) -> list[list[str]]:
    """Return the datagrams that have come, in lines."""
    found = []
    while True:
        try:
            found.append(receiver.recv(4096).decode().splitlines())
        except BlockingIOError:
            return found


def test_each_word_is_a_datagram(listening: tuple[socket.socket, str]) -> None:
    """A path and an abstract name are what systemd uses."""
    receiver, name = listening
    environ = {"NOTIFY_SOCKET": name}
    manager = ServiceManager.of(environ)
    manager.ready()
    manager.stopping()
    manager.close()
    manager.ready()  # Nobody is told.

    assert heard(receiver) == [["READY=1", "STATUS=ready"], ["STOPPING=1", "STATUS=stopping"]]
    assert environ == {}  # The compaction's child has nothing to tell.


def test_a_reload_says_when_it_began(listening: tuple[socket.socket, str]) -> None:
    """Systemd takes an older READY for none otherwise."""
    receiver, name = listening
    manager = ServiceManager(name)
    manager.reloading()
    manager.close()
    ((reloading, moment),) = heard(receiver)

    assert reloading == "RELOADING=1"
    assert int(moment.removeprefix("MONOTONIC_USEC=")) > 0


def test_without_a_socket_or_with_a_dead_one_nothing_happens(tmp_path: Path) -> None:
    """Most daemons are not started by systemd, and none may fail for it."""
    ServiceManager.of({}).ready()
    gone = ServiceManager(str(tmp_path / "gone"))
    gone.ready()
    gone.close()


async def test_a_load_tells_how_far_it_is_and_asks_for_time(
    listening: tuple[socket.socket, str], autojump_clock: MockClock
) -> None:
    """Systemd kills what isn't ready in time, and a large log takes its time."""
    receiver, name = listening
    manager = ServiceManager(name)
    seen: list[Any] = [None, Part()]
    with trio.move_on_after(1.5):
        await manager.follow(lambda: seen.pop(0))
    manager.close()

    assert heard(receiver) == [
        ["STATUS=loading: 41 %, 1,200 entries", "EXTEND_TIMEOUT_USEC=30000000"]
    ]


@pytest.mark.parametrize(
    ("pid", "times"),
    [("", 5), (str(os.getpid()), 5), ("1", 0)],
    ids=["nobody named", "this process", "another one"],
)
async def test_the_watchdog_is_fed_twice_as_often_as_it_asks(
    listening: tuple[socket.socket, str],
    autojump_clock: MockClock,
    pid: str,
    times: int,
) -> None:
    """A loop that hangs is what it is there for; another process's dog is none of ours."""
    receiver, name = listening
    environ = {"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "2000000"}
    manager = ServiceManager.of(environ | ({"WATCHDOG_PID": pid} if pid else {}))
    with trio.move_on_after(4.5):
        await manager.feed()
    manager.close()

    assert heard(receiver) == [["WATCHDOG=1"]] * times
