"""A real node of a cluster whose ZooKeeper is away, and comes."""

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench.ensemble import ensemble
from protocol.errors import ErrorCode
from protocol.messages import FindCoordinatorRequest, OffsetFetchRequest
from tests.integration.daemon import daemon, until
from tests.integration.ensemble import needs_zookeeper
from tests.server.world import commit

pytestmark = [pytest.mark.integration, needs_zookeeper]


def status_of(port: int, path: str) -> tuple[int, str]:
    """Return the status of what HTTP says, and the text."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def test_a_node_answers_while_zookeeper_is_away_and_serves_when_it_comes(tmp_path: Path) -> None:
    """The node was silent for a minute; its clients waited for each of their attempts to end."""
    with ensemble(tmp_path, 1) as made:
        made.servers[0].kill()
        settings = (
            f"cluster.zookeeper={made.hosts}/gc",
            "cluster.create=true",
            "http.listeners=127.0.0.1:0",
        )
        with daemon(None, *settings) as node, node.connect() as connection:
            http = node.wait_for("http.listening")["port"]
            found: Any = connection.ask(FindCoordinatorRequest(0, ("g",)))
            assert found.coordinators[0].error == ErrorCode.COORDINATOR_NOT_AVAILABLE
            committed: Any = connection.ask(commit(7))
            assert committed.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
            node.wait_for("health.problem")
            assert status_of(http, "/livez")[0] == 200
            status, text = status_of(http, "/readyz")
            assert status == 503
            assert "ZooKeeper can't be reached" in text

            made.start()
            node.ready()
            assert status_of(http, "/readyz")[0] == 200

            def is_committed() -> bool:
                committed: Any = connection.ask(commit(7))
                return bool(committed.error == ErrorCode.NONE)

            until(is_committed, "a leader of the group")
            assert node.stop() == 0


def test_a_node_that_waits_for_zookeeper_stops_at_once(tmp_path: Path) -> None:
    """Nothing is under way that could be lost, and whoever restarts it need not kill it."""
    with daemon(None, "cluster.zookeeper=127.0.0.1:1/gc") as node, node.connect() as connection:
        fetched: Any = connection.ask(OffsetFetchRequest((), require_stable=False))
        assert fetched.groups == ()
        assert node.stop() == 0
        assert not node.stray
