"""The door while it closes or hiccups, and reads that end inside a frame."""

import errno
import os
import socket

import pytest
import trio
from trio.testing import MockClock

from coordinator.config import ConfigError, load_settings
from coordinator.server.transport import listen
from tests.fakes.transport import MemoryTransport
from tests.server.world import beat, world


async def test_door_that_closes_while_a_client_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM may close it in the very turn in which accept became possible."""
    listener = listen("127.0.0.1", 0)

    async def readable_and_closed(_socket: object) -> None:
        listener.close()

    monkeypatch.setattr(trio.lowlevel, "wait_readable", readable_and_closed)
    with pytest.raises(trio.ClosedResourceError):
        await listener.accept()


async def test_a_crowd_is_let_in_without_waiting_for_the_door_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under load it would be one of them in each slice of the poller's."""
    listener = listen("127.0.0.1", 0)
    crowd = [socket.create_connection(("127.0.0.1", listener.port)) for _ in range(5)]

    async def wait(_socket: object) -> None:
        raise AssertionError("they are there")

    monkeypatch.setattr(trio.lowlevel, "wait_readable", wait)
    for client in crowd:
        (await listener.accept()).close()
        client.close()
    listener.close()


async def test_letting_a_crowd_in_keeps_nobody_else_from_running() -> None:
    """Each of them is a turn of its own, in which the daemon may also be stopped."""
    listener = listen("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", listener.port)), trio.CancelScope() as scope:
        scope.cancel()
        await listener.accept()
    listener.close()

    assert scope.cancelled_caught


@pytest.mark.parametrize("code", [errno.EPROTO, errno.EHOSTUNREACH, errno.ECONNRESET])
async def test_a_connection_that_broke_before_accept(code: int, autojump_clock: MockClock) -> None:
    """On Linux accept(2) reports the new connection's errors; they must not end the server."""
    async with world() as w:
        w.listener.arrive(OSError(code, os.strerror(code)))
        client = w.connect()
        sent = client.send(beat())
        await trio.sleep(0.2)

        assert sent in client.answers()


async def test_a_connection_that_the_system_does_not_watch_is_refused_alone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of watched descriptors has a limit of the machine's, which others may use up."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with world() as w:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryTransport, "attach", refuse)
            refused = w.connect()
            await trio.sleep(0.1)
        client = w.connect()
        sent = client.send(beat())
        await trio.sleep(0.1)

        assert refused.transport.closed
        assert sent in client.answers()
        telemetry = w.environment.telemetry
        assert telemetry.connections_refused["descriptors"] == 1
        assert not any(telemetry.connections_failed.values())
        assert len(list(w.server.sessions)) == 1


async def test_reads_that_always_end_inside_another_frame(autojump_clock: MockClock) -> None:
    """Only bytes that stop are late: here every frame becomes whole in half a second."""
    async with world("request.read.timeout.ms=2000") as w:
        client = w.connect()
        _, before = client.frame(beat())
        client.transport.put(before[:7])
        for _ in range(20):
            sent, frame = client.frame(beat())
            client.transport.put(before[7:] + frame[:7])
            before = frame
            await trio.sleep(0.5)
        client.transport.put(before[7:])
        await trio.sleep(0.1)

        assert sent in client.answers()
        assert not client.transport.closed


@pytest.mark.parametrize(
    "override",
    [
        "offsets.topic.segment.bytes=1073741825",  # The journal's own limit.
        "socket.request.max.bytes=33554432",  # A commit of that size is no batch any more.
        "sync.request.max.bytes=33554432",  # No member would be let in.
    ],
)
def test_sizes_that_the_log_can_not_carry_are_refused(override: str) -> None:
    """Refused at the start, not by a traceback or by a daemon that lets nobody in."""
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_settings(overrides=[override])
