"""A real Prometheus scrapes a real daemon, and its alerts fire and clear."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol import messages as m
from protocol.errors import ErrorCode
from tests.deploy.support import needs, panels
from tests.integration.daemon import Connection, Daemon, run_cli, until
from tests.integration.prometheus import Prometheus, prometheus
from tests.server.world import ASSIGNMENT, commit, join

pytestmark = pytest.mark.integration

# Panels of what need not have happened, or is known only after a minute.
MAY_BE_QUIET = {
    "All groups",
    "Answers with an error",
    "Behind, in messages",
    "Behind, in time",
    "Commits",
    "Connections",
    "Furthest behind",
    "How long they take",
    "Members taken out, by reason",
    "Rebalances by cause",
    "Refused and waiting",
    "Watching it",
}
SESSION_MS = 600_000  # Nobody is evicted, however slow the machine is.


class Site:
    """A daemon with a file of settings, and the Prometheus that watches over it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "coordinator.toml"
        self.http_port = 0

    def settings(self, **values: str | int) -> None:
        """Write the file."""
        every = {
            "http_listeners": f"127.0.0.1:{self.http_port}",
            "group_initial_rebalance_delay_ms": 0,
            "storage_reserve_bytes": 0,
        }
        lines = [
            f'"{k.replace("_", ".")}" = {json.dumps(v)}\n' for k, v in (every | values).items()
        ]
        self.config.write_text("".join(lines), encoding="utf-8")

    def start(self) -> Daemon:
        """Start the daemon, the second time where it was."""
        self.settings()
        one = Daemon(self.folder / "data", options=("--config", str(self.config)))
        self.http_port = one.wait_for("http.listening")["port"]
        return one.ready()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Daemon, Prometheus]]:
    """One of each for all tests here."""
    needs("prometheus")
    folder = tmp_path_factory.mktemp("site")
    site = Site(folder)
    one = site.start()
    try:
        with prometheus(folder / "prometheus", f"127.0.0.1:{site.http_port}") as watcher:
            yield site, one, watcher
    finally:
        one.kill()


def joined(connection: Connection, group_id: str, member_id: str) -> m.JoinGroupResponse:
    """Join and return the answer."""
    answer = connection.ask(join(group_id, member_id, SESSION_MS))
    assert type(answer) is m.JoinGroupResponse
    return answer


def assign(connection: Connection, group_id: str, generation: int, member_id: str) -> None:
    """Sync, as the leader or as another member."""
    shares = (m.MemberAssignment(member_id, ASSIGNMENT),)
    answer = connection.ask(
        m.SyncGroupRequest(group_id, generation, member_id, None, None, None, shares)
    )
    assert type(answer) is m.SyncGroupResponse
    assert answer.error == 0


def test_every_rule_can_be_evaluated_over_what_the_daemon_exposes(
    watched: tuple[Site, Daemon, Prometheus],
) -> None:
    """A join of series that are there twice, or a missing label, is an error only here."""
    _, _, watcher = watched
    groups = watcher.get("rules")["groups"]
    bad = {
        rule["name"]: rule.get("lastError", rule["health"])
        for group in groups
        for rule in group["rules"]
        if rule["health"] != "ok" and rule["lastEvaluation"] > "1"
    }

    assert bad == {}


def test_an_alert_of_a_rebalance_fires_and_clears(
    watched: tuple[Site, Daemon, Prometheus],
) -> None:
    """Somebody joins, and a member that is needed for it does not come; then it does."""
    _, one, watcher = watched
    with one.connect() as first, one.connect() as second:
        first_id = joined(first, "night", "").member_id
        generation = joined(first, "night", first_id).generation_id
        assign(first, "night", generation, first_id)
        second_id = joined(second, "night", "").member_id
        second.send(join("night", second_id, SESSION_MS))

        alert = watcher.wait_for("GroupRebalanceLong")["GroupRebalanceLong"]
        again = joined(first, "night", first_id)
        assign(first, "night", again.generation_id, first_id)
        watcher.wait_until_clear("GroupRebalanceLong")

    assert alert["labels"]["group_id"] == "night"
    assert alert["annotations"]["summary"] == "Group night has been rebalancing for minutes"


def test_an_alert_of_a_group_that_was_left_fires_and_clears(
    watched: tuple[Site, Daemon, Prometheus],
) -> None:
    """Its last member is gone, and there is something to do; nobody ever was in the other one."""
    _, one, watcher = watched
    at = ("--at", f"127.0.0.1:{one.port}")
    for words in (("register", "t", "1"), ("report-end", "t", "0", "12")):
        assert run_cli("topics", *words, *at).returncode == 0
    with one.connect() as connection:
        member_id = joined(connection, "left", "").member_id
        generation = joined(connection, "left", member_id).generation_id
        assign(connection, "left", generation, member_id)
        for group_id in ("left", "query"):
            connection.ask(commit(5, group_id=group_id))
        owned = m.PartitionCommit(0, 5, -1, "", None)
        connection.ask(
            m.OffsetCommitRequest(
                "left", generation, member_id, None, (m.TopicCommit("t", (owned,)),)
            )
        )
        assert run_cli("members", "remove", "left", member_id, "--yes", *at).returncode == 0

        alert = watcher.wait_for("GroupHasNoMembers")["GroupHasNoMembers"]
        again = joined(connection, "left", "").member_id
        joined(connection, "left", again)
        watcher.wait_until_clear("GroupHasNoMembers")

    assert alert["labels"]["group_id"] == "left"


def test_alerts_of_settings_fire_and_clear(watched: tuple[Site, Daemon, Prometheus]) -> None:
    """An operator has no room left on the disk, and none for a group in a scrape."""
    site, one, watcher = watched
    with one.connect() as connection:
        connection.ask(commit(1))
    site.settings(storage_reserve_bytes=2**60, metrics_max_series=0)
    one.process.send_signal(signal.SIGHUP)
    fired = watcher.wait_for("StorageRefusesCommits", "DiskNearReserve", "SeriesLeftOut")
    with one.connect() as connection:
        refused = connection.ask(commit(1))
        site.settings()
        one.process.send_signal(signal.SIGHUP)
        watcher.wait_until_clear("StorageRefusesCommits", "DiskNearReserve", "SeriesLeftOut")
        taken = connection.ask(commit(1))

    assert type(refused) is type(taken) is m.OffsetCommitResponse
    assert (refused.error, taken.error) == (ErrorCode.STORAGE_FULL, ErrorCode.NONE)
    assert fired["StorageRefusesCommits"]["labels"]["severity"] == "critical"
    assert fired["DiskNearReserve"]["annotations"]["summary"].endswith("iB left")


def test_the_alert_of_a_daemon_that_is_gone_fires_and_clears(tmp_path: Path) -> None:
    """It is the one that must not fail: everything else is silent then."""
    needs("prometheus")
    site = Site(tmp_path)
    one = site.start()
    try:
        with prometheus(tmp_path / "prometheus", f"127.0.0.1:{site.http_port}") as watcher:
            one.kill()
            watcher.wait_for("CoordinatorDown")
            one = site.start()
            watcher.wait_until_clear("CoordinatorDown")
    finally:
        if one.process.poll() is None:
            one.kill()


def test_every_query_of_the_dashboard_has_an_answer(
    watched: tuple[Site, Daemon, Prometheus],
) -> None:
    """Grafana shows a query that is wrong as a small red mark, and most people don't see it."""
    _, one, watcher = watched
    with one.connect() as connection:
        connection.ask(commit(1))
    until(lambda: watcher.value("group_coordinator_offsets > 0"), "a scrape of the commit")
    found = {}
    for panel in panels():
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", "5s")
            for name in ("job", "instance", "group"):
                expr = expr.replace(f"${name}", ".*")
            found[f"{panel['title']}: {target['legendFormat']}"] = len(watcher.value(expr))

    # What has not happened has no series; all else has.
    quiet = {title.partition(":")[0] for title, count in found.items() if not count}
    assert quiet <= MAY_BE_QUIET
