"""Alerts fire and clear in a real Prometheus, over what is done to a real daemon.

Those of what an operator or a single group does are in `test_prometheus`.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from protocol import messages as m
from tests.deploy.support import needs
from tests.integration.daemon import Daemon, daemon, run_cli, until
from tests.integration.prometheus import Prometheus, prometheus
from tests.integration.test_compaction_processes import (
    SETTINGS,
    children,
    is_begun,
    made_log,
    the_child,
)
from tests.integration.test_http import http_port
from tests.integration.test_loading import SETTING, write_log
from tests.integration.test_prometheus import assign, joined
from tests.server.world import commit
from tests.soak.clock import Shift

pytestmark = pytest.mark.integration

HTTP: Final = "http.listeners=127.0.0.1:0"
AT_ONCE: Final = "group.initial.rebalance.delay.ms=0"
HOUR_NS: Final = 3_600 * 10**9


@contextmanager
def watched(one: Daemon, folder: Path) -> Iterator[Prometheus]:
    """Have a Prometheus of its own watch over *one*."""
    with prometheus(folder / "prometheus", f"127.0.0.1:{http_port(one)}") as watcher:
        yield watcher


def test_alerts_of_what_clients_do_fire_and_clear(tmp_path: Path) -> None:
    """One speaks nonsense, some hold all connections, and one joins again and again."""
    needs("prometheus")
    alerts = ("RequestsRefused", "ConnectionsNearLimit", "GroupRebalancesOften")
    with (
        daemon(tmp_path / "data", HTTP, AT_ONCE, "max.connections=8") as one,
        watched(one.ready(), tmp_path) as watcher,
        one.connect() as connection,
    ):
        member_id = joined(connection, "restless", "").member_id

        def trouble() -> None:
            generation = joined(connection, "restless", member_id).generation_id
            assign(connection, "restless", generation, member_id)
            with one.connect() as stranger, ExitStack() as crowd:
                stranger.socket.sendall(b"\xff" * 8)
                assert stranger.closed_by_server()
                for _ in range(9):
                    crowd.enter_context(one.connect())

        fired = watcher.wait_for(*alerts, meanwhile=trouble)
        watcher.wait_until_clear(*alerts)

        assert one.stop() == 0
    assert fired["RequestsRefused"]["labels"]["reason"] == "too_large"
    assert fired["GroupRebalancesOften"]["labels"]["group_id"] == "restless"


@pytest.mark.nightly
def test_the_alert_of_a_process_without_a_core_fires_and_clears(tmp_path: Path) -> None:
    """It stands still for a moment, again and again, as in a container that is throttled."""
    needs("prometheus")
    with (
        daemon(tmp_path / "data", HTTP) as one,
        watched(one.ready(), tmp_path) as watcher,
    ):

        def stand_still() -> None:
            one.process.send_signal(signal.SIGSTOP)
            time.sleep(0.3)
            one.process.send_signal(signal.SIGCONT)

        watcher.wait_for("LoopStalls", meanwhile=stand_still)
        watcher.wait_until_clear("LoopStalls")

        assert one.stop() == 0


def test_alerts_of_a_log_that_is_not_compacted_fire_and_clear(tmp_path: Path) -> None:
    """Each child is killed, so the log stays as large as it is; then one is left alone."""
    needs("prometheus")
    made_log(tmp_path / "data")
    with daemon(tmp_path / "data", *SETTINGS, HTTP) as one:
        the_child(one.ready())  # It stands still until somebody watches.
        with watched(one, tmp_path) as watcher:

            def kill() -> None:
                for pid in filter(is_begun, children(one)):
                    os.kill(pid, signal.SIGKILL)

            watcher.wait_for("CompactionFails", "LogGrows", meanwhile=kill)
            watcher.wait_until_clear("CompactionFails", "LogGrows")

        assert one.stop() == 0


@pytest.mark.nightly
def test_the_alert_of_a_partition_that_cannot_be_loaded_fires_and_clears(tmp_path: Path) -> None:
    """A byte of it turns over on the disk, and back."""
    needs("prometheus")
    write_log(tmp_path / "data", groups=400, offsets=100)
    settings = (SETTING, "partition.reload.min.interval.ms=0", "log.cleaner.enable=false")
    segment = min((tmp_path / "data").glob("*.segment"))
    whole = segment.read_bytes()

    def turn_over() -> None:
        middle = len(whole) // 2
        with segment.open("r+b") as file:
            file.seek(middle)
            file.write(bytes((whole[middle] ^ 0xFF,)))

    with (
        daemon(tmp_path / "data", *settings, HTTP) as one,
        watched(one.ready(), tmp_path) as watcher,
        one.connect() as operator,
    ):
        turn_over()
        for partition in range(4):
            operator.ask(m.ReloadPartitionRequest(partition))
        fired = watcher.wait_for("CoordinatorNotReady")
        segment.write_bytes(whole)
        for partition in range(4):
            operator.ask(m.ReloadPartitionRequest(partition))
        watcher.wait_until_clear("CoordinatorNotReady")

        assert one.stop() == 0
    assert fired["CoordinatorNotReady"]["labels"]["part"] == "loading"


@pytest.mark.nightly
def test_alerts_of_lag_in_time_fire_and_clear(tmp_path: Path) -> None:
    """Nothing was told or done for an hour, which only the clock of before can have written."""
    needs("prometheus")
    clock = Shift(tmp_path / "clock")
    clock.set_ns(-HOUR_NS)
    with daemon(tmp_path / "data", prefix=clock.prefix) as past:
        at = ("--at", f"127.0.0.1:{past.ready().port}")
        for words in (("register", "t", "1"), ("report-end", "t", "0", "100")):
            assert run_cli("topics", *words, *at).returncode == 0
        with past.connect() as connection:
            connection.ask(commit(50))
        assert past.stop() == 0

    with (
        daemon(tmp_path / "data", HTTP) as one,
        watched(one.ready(), tmp_path) as watcher,
        one.connect() as connection,
    ):
        at = ("--at", f"127.0.0.1:{one.port}")
        fired = watcher.wait_for("EndsNotReported")
        assert run_cli("topics", "report-end", "t", "0", "200", *at).returncode == 0
        watcher.wait_until_clear("EndsNotReported")
        fired |= watcher.wait_for("GroupFarBehind", "GroupFallsBehind")
        connection.ask(commit(200))
        watcher.wait_until_clear("GroupFarBehind", "GroupFallsBehind")

        assert one.stop() == 0
    assert fired["EndsNotReported"]["labels"]["topic_name"] == "t"
    assert fired["GroupFarBehind"]["annotations"]["summary"].startswith("Group g is 1h 0m")


@pytest.mark.nightly
def test_alerts_of_a_slow_disk_fire_and_clear(tmp_path: Path) -> None:
    """Held up by strace: a read of the load at the start, and then one write."""
    needs("prometheus")
    strace = needs("strace")
    made_log(tmp_path / "data")
    slow_read = "inject=pread64:delay_enter=12000000:when=1"
    slow_write = "inject=pwritev2:delay_enter=9000000:when=10"
    traced = [strace, "-D", "-f", "-q", "-o", "/dev/null", "-e", "trace=pread64,pwritev2"]
    traced += ["-e", slow_read, "-e", slow_write]
    settings = ("log.cleaner.enable=false", "offsets.commit.timeout.ms=600")
    with daemon(tmp_path / "data", HTTP, *settings, prefix=traced) as one:
        until(
            lambda: one.events("http.listening") or one.process.poll() is not None, "start or end"
        )
        if one.stray and "ptrace" in one.stray[0].lower():
            pytest.skip(f"no process may be traced here: {one.stray[0]}")
        with watched(one, tmp_path) as watcher:
            watcher.wait_for("CoordinatorLoadsLong")
            one.ready()
            watcher.wait_until_clear("CoordinatorLoadsLong")
            with one.connect() as connection:
                for offset in range(20):
                    connection.ask(commit(offset))
                watcher.wait_for("DiskHangs", "AnswersUnknown", "CommitsSlow")
                watcher.wait_for("FsyncSlow")
                watcher.wait_until_clear("DiskHangs", "AnswersUnknown", "CommitsSlow", "FsyncSlow")

        assert one.stop() == 0
