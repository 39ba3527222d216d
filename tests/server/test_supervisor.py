"""What the supervisor of several nodes does about each, with times as arguments."""

import errno
import math
import signal
from collections.abc import Sequence

import pytest
import structlog
import trio
from trio.testing import MockClock

from coordinator.config import ConfigError, load_settings
from coordinator.server.service_manager import ServiceManager
from coordinator.server.supervisor import (
    CALM_S,
    FIRST_WORD_S,
    RETRY_LAST_S,
    WATCHDOG_S,
    Effect,
    End,
    Report,
    Send,
    Start,
    Supervisor,
    Tell,
    settings_of_nodes,
    supervise,
)

READY = ("READY=1", "STATUS=ready")


def running(*nodes: int, ready: bool = True) -> Supervisor:
    """Return one whose nodes run since second 0."""
    supervisor = Supervisor(nodes, stop_timeout_s=20)
    supervisor.tick(0)
    for node in nodes if ready else ():
        supervisor.heard(node, READY, 0)
    return supervisor


def words(effects: Sequence[Effect]) -> list[str]:
    """Return what the service manager is told."""
    return [word for effect in effects if isinstance(effect, Report) for word in effect.words]


def test_all_nodes_are_started_and_it_is_ready_when_they_are() -> None:
    """Systemd starts what comes after it only then."""
    supervisor = Supervisor((1, 2), stop_timeout_s=20)
    first = supervisor.tick(0)

    assert first == [Start(1), Start(2), Report(("STATUS=0 of 2 nodes are ready",))]
    assert words(supervisor.heard(1, READY, 1)) == ["STATUS=1 of 2 nodes are ready"]
    assert words(supervisor.heard(2, READY, 2)) == ["READY=1", "STATUS=2 of 2 nodes are ready"]
    assert words(supervisor.heard(2, READY, 3)) == []


def test_a_node_that_ends_is_started_again_later_and_later() -> None:
    """Whatever is wrong may pass, and a machine that is busy with starts does nothing else."""
    supervisor = running(1)
    waits = []
    now = 10.0
    for _ in range(9):
        effects = supervisor.ended(1, 74, now)
        (told,) = [effect for effect in effects if isinstance(effect, Tell)]
        waits.append(told.fields["retry_in_ms"] / 1000)
        assert supervisor.next_due_s() == now + waits[-1]
        assert Start(1) not in supervisor.tick(now + waits[-1] - 0.1)
        now += waits[-1]
        assert Start(1) in supervisor.tick(now)

    assert waits == [1, 2, 4, 8, 16, 32, RETRY_LAST_S, RETRY_LAST_S, RETRY_LAST_S]


def test_a_node_that_was_ready_for_long_has_not_failed_in_a_row() -> None:
    """A node that is killed once a day comes back at once each time."""
    supervisor = running(1)
    for now in 0.0, 1.0:
        supervisor.ended(1, -signal.SIGKILL, now)
        supervisor.tick(now + 60)
    supervisor.heard(1, READY, 100)
    effects = supervisor.ended(1, -signal.SIGKILL, 100 + CALM_S)

    told = Tell("node.ended", {"node": 1, "exit_status": 137, "retry_in_ms": 1000})
    assert told in effects


async def test_a_node_that_can_not_be_started_is_tried_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine may lack memory for a while: the other nodes must not end by that."""
    tried: list[float] = []
    is_over = trio.Event()

    async def no_process(*_command: object, **_settings: object) -> trio.Process:
        tried.append(trio.current_time())
        if len(tried) == 3:
            is_over.set()
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(trio.lowlevel, "open_process", no_process)
    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervise, {1: ()}, ServiceManager(), lambda: None, 20)
            await is_over.wait()
            nursery.cancel_scope.cancel()

    assert [0, 1, 3] == pytest.approx([at - tried[0] for at in tried])
    assert {
        "event": "node.ended",
        "log_level": "warning",
        "node": 1,
        "exit_status": 1,
        "retry_in_ms": 1000,
        "reason": "[Errno 12] no memory",
    } == lines[0]


def test_a_node_that_is_refused_is_given_up_and_the_others_go_on() -> None:
    """The next start would find the same settings, and the others serve its groups meanwhile."""
    supervisor = running(1, 2)
    effects = supervisor.ended(1, 78, 5)

    assert Tell("node.given_up", {"node": 1, "exit_status": 78}) in effects
    assert supervisor.next_due_s() == WATCHDOG_S  # Of node 2 alone.
    assert End(78) in supervisor.ended(2, 65, 6) or End(78) in supervisor.tick(7)


def test_a_node_that_ends_by_itself_with_success_is_started_again() -> None:
    """Whoever sends one of them SIGTERM wants it to start anew, such as with another release."""
    supervisor = running(1, 2)
    supervisor.ended(2, 0, 5)

    assert Start(2) in supervisor.tick(6)


def test_an_event_loop_that_hangs_is_ended() -> None:
    """A process that is there and does nothing leads its journals until its session ends."""
    supervisor = running(1, 2)
    supervisor.heard(2, ("WATCHDOG=1",), 30)
    effects = supervisor.tick(WATCHDOG_S)

    assert effects == [Tell("node.hangs", {"node": 1}), Send(1, signal.SIGKILL)]
    assert supervisor.next_due_s() == 30 + WATCHDOG_S


def test_a_start_that_never_says_anything_is_ended() -> None:
    """It may wait for servers that are about to start, but not for ever."""
    supervisor = running(1, ready=False)

    assert supervisor.next_due_s() == FIRST_WORD_S
    assert supervisor.tick(FIRST_WORD_S) == [
        Tell("node.hangs", {"node": 1}),
        Send(1, signal.SIGKILL),
    ]
    assert supervisor.next_due_s() == math.inf  # Its end is what comes next.


def test_a_node_that_loads_asks_for_time_as_long_as_its_loop_turns() -> None:
    """A start takes as long as it takes, and systemd waits for it; one that hangs never ends."""
    supervisor = running(1, ready=False)
    effects = supervisor.heard(1, ("STATUS=loading", "EXTEND_TIMEOUT_USEC=30000000"), 1)

    assert effects == [Report(("EXTEND_TIMEOUT_USEC=30000000",))]
    assert supervisor.next_due_s() == 1 + WATCHDOG_S
    supervisor.heard(1, ("WATCHDOG=1",), 31)
    assert supervisor.tick(1 + WATCHDOG_S) == []
    assert Send(1, signal.SIGKILL) in supervisor.tick(31 + WATCHDOG_S)


@pytest.mark.parametrize("says_so", [False, True])
def test_a_node_that_hangs_while_it_reloads_is_ended(says_so: bool) -> None:
    """The reload would never be over, and the node never be watched again."""
    supervisor = running(1)
    supervisor.reload(5)
    if says_so:
        supervisor.heard(1, ("RELOADING=1",), 5)

    assert Send(1, signal.SIGKILL) in supervisor.tick(5 + WATCHDOG_S)


def test_a_reload_is_over_when_all_nodes_are_ready_again() -> None:
    """`systemctl reload` returns then."""
    supervisor = running(1, 2)
    effects = supervisor.reload(5)

    assert [effect for effect in effects if isinstance(effect, Send)] == [
        Send(1, signal.SIGHUP),
        Send(2, signal.SIGHUP),
    ]
    supervisor.heard(1, ("RELOADING=1", "MONOTONIC_USEC=1"), 5)
    assert "READY=1" not in words(supervisor.heard(1, READY, 5))
    assert "READY=1" in words(supervisor.heard(2, READY, 6))


def test_a_stop_waits_for_all_nodes_and_says_the_worst() -> None:
    """A drain that failed has to be seen, whichever node it was."""
    supervisor = running(1, 2, 3)
    supervisor.ended(3, 74, 5)
    effects = supervisor.stop(5.5)

    assert effects == [Send(1, signal.SIGTERM), Send(2, signal.SIGTERM)]
    assert supervisor.tick(7) == []  # Nobody is started any more.
    assert End not in map(type, supervisor.ended(1, 0, 8))
    assert supervisor.ended(2, -signal.SIGKILL, 9) == [End(137)]


def test_a_second_stop_ends_them_at_once_and_one_that_hangs_is_killed() -> None:
    """Whoever asks twice does not want to wait, and nobody waits for ever."""
    supervisor = running(1)
    supervisor.stop(5)

    assert supervisor.stop(6) == [Send(1, signal.SIGTERM)]
    assert Send(1, signal.SIGKILL) in supervisor.tick(6 + 20)


@pytest.mark.parametrize(("stops", "status"), [(1, 0), (2, 143)])
def test_a_node_that_was_stopped_before_its_first_line_has_not_failed(
    stops: int, status: int
) -> None:
    """Until then the system's default ends it; later a first signal never does, a second may."""
    supervisor = running(1, ready=False)
    for second in range(stops):
        supervisor.stop(second)

    assert supervisor.ended(1, -signal.SIGTERM, 5) == [End(status)]


def test_ids_and_ports_count_up() -> None:
    """Each node needs its own, and port 0 is a free one for each."""
    settings = load_settings(
        overrides=(
            "node.id=5",
            "listeners=SSL://0.0.0.0:9310,127.0.0.1:0",
            "ssl.keystore.location=server.pem",
            "advertised.listeners=SSL://c1.example:19310",
            "http.listeners=127.0.0.1:9320",
        )
    )

    assert settings_of_nodes(settings, 2)[1] == {
        "node.id": "6",
        "listeners": "SSL://0.0.0.0:9311,PLAINTEXT://127.0.0.1:0",
        "advertised.listeners": "SSL://c1.example:19311",
        "http.listeners": "http://127.0.0.1:9321",
    }


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (
            ("listeners=127.0.0.1:9310", "http.listeners=127.0.0.1:9311"),
            "listeners of node 2: port 9311 is one of the http.listeners of node 1",
        ),
        (("listeners=127.0.0.1:65535",), "there is no port 65536"),
    ],
)
def test_ports_that_two_nodes_would_have_are_refused(overrides: list[str], why: str) -> None:
    """The second one could not listen, and would be started again and again."""
    with pytest.raises(ConfigError, match=why):
        settings_of_nodes(load_settings(overrides=overrides), 3)
