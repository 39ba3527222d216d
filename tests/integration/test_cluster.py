"""Three nodes over a real ensemble: what clients notice when one of them goes away."""

import http.client
import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from bench.ensemble import QUICK_JVM, Ensemble, ensemble, four_letters
from coordinator.cluster.journal import DATA_WAS_LOST
from coordinator.log.errors import EXIT_CORRUPT, EXIT_REFUSED
from protocol.errors import ErrorCode
from protocol.messages import DescribeJournalsRequest, DescribeNodeRequest
from tests.integration.cluster_support import Nodes, cluster, workers
from tests.integration.daemon import Connection, Daemon, daemon, run_cli, until
from tests.integration.ensemble import DataCopy, Wire, guarded_server, remove, wires
from tests.integration.test_http import http_port
from tests.server.world import commit

pytestmark = pytest.mark.integration

# The shortest that the ensemble grants: what a test waits for after a kill.
SESSION: Final = "cluster.session.timeout.ms=4000"
# Of journals that are led by different nodes, some of them.
GROUPS: Final = tuple(f"group-{number}" for number in range(4))
JOURNALS: Final = 6
# What there is room for before the ensemble has to elect.
TRANSACTIONS: Final = 500
_numbers = count()


@pytest.fixture
def nodes(zookeeper: Ensemble) -> Iterator[Nodes]:
    """Run three nodes in a chroot that nobody has used."""
    where = f"{zookeeper.hosts}/cluster/{next(_numbers)}"
    with cluster(where, SESSION, "group.initial.rebalance.delay.ms=0") as running:
        yield running


async def test_groups_go_on_unchanged_when_the_node_that_leads_them_is_killed(nodes: Nodes) -> None:
    """Another node has followed, so members keep their ids, their generation and their offsets."""
    async with workers(nodes, *GROUPS) as working:
        nodes.kill(nodes.leader_of(GROUPS[0]))
        for worker in working.values():
            await worker.commits_on()

        assert [len(worker.member_ids) for worker in working.values()] == [1] * len(GROUPS)
        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)
    assert nodes.events("journal.led")
    assert not nodes.events("journal.deposed")


async def test_a_node_that_stops_hands_over_first(nodes: Nodes) -> None:
    """So nobody waits for the end of its session: the others lead before it has gone."""
    async with workers(nodes, *GROUPS) as working:
        stopped = nodes.stop(nodes.leader_of(GROUPS[0]))
        for worker in working.values():
            await worker.commits_on()

        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)
    led = {line["journal"] for line in stopped.events("journal.led")}
    assert led <= {line["journal"] for line in stopped.events("journal.handed_over")}
    assert stopped.events("stopped")[0]["clean"]


async def test_a_node_that_comes_back_follows_and_leads_again(nodes: Nodes) -> None:
    """A rolling restart: each node in turn, and nobody rebalances."""
    async with workers(nodes, *GROUPS) as working:
        for number in (1, 2, 3):
            nodes.stop(number)
            nodes.start(number)
        for worker in working.values():
            await worker.commits_on()

        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)


async def test_a_node_over_tls_with_a_log_in_leads_too(tmp_path: Path) -> None:
    """As in every network that is somebody's; the commits cross it encrypted."""
    with guarded_server(tmp_path) as server:
        nodes = Nodes((*server.settings("/gc"), "cluster.create=true"))
        nodes.start(1)
        try:
            async with workers(nodes, "g") as working:
                await working["g"].commits_on()
        finally:
            nodes.kill(1)


def test_a_second_node_of_the_same_number_is_refused(nodes: Nodes) -> None:
    """It would lead what the first one leads; the first one goes on."""
    second = Daemon(None, (*nodes.settings, "node.id=2"))

    assert second.wait() == EXIT_REFUSED
    (refused,) = second.events("refused")
    assert f"node 2 is there already, at PLAINTEXT://{nodes.addresses[1]}" in refused["reason"]
    assert nodes.running[2].process.poll() is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["cluster.id=0123456789012345678901"], "not 0123456789012345678901"),
        (["offsets.topic.num.partitions=60"], "offsets.topic.num.partitions=50, and the settings"),
    ],
)
def test_a_node_of_another_cluster_is_refused(
    nodes: Nodes, settings: list[str], words: str
) -> None:
    """One line says what is where, and what the settings say."""
    stranger = Daemon(None, (*nodes.settings, "node.id=4", *settings))

    assert stranger.wait() == EXIT_REFUSED
    assert words in stranger.events("refused")[0]["reason"]


@pytest.mark.parametrize("elects", [False, True], ids=["no election since", "an election since"])
def test_nodes_end_for_good_when_their_ensemble_was_set_back(
    tmp_path: Path, *, elects: bool
) -> None:
    """What they know and it doesn't may have been acknowledged: a person has to look."""
    with ensemble(tmp_path / "servers") as made:
        where = (f"cluster.zookeeper={made.hosts}/gc", "cluster.create=true")
        settings = (*where, "cluster.session.timeout.ms=4000", "node.id=1")
        with daemon(None, *settings, options=["--nodes=2"]) as nodes:
            until(lambda: len(nodes.events("ready")) == 2, "both ready")
            commit_to(nodes, 6)
            copy = DataCopy(made, tmp_path / "copy")
            if elects:
                made.leader().kill()
                made.start()
            commit_to(nodes, 128)
            copy.restore()

            assert nodes.wait() == EXIT_CORRUPT
            assert {line["node"] for line in nodes.events("node.given_up")} == {1, 2}
            assert not nodes.events("node.ended")
            reasons = [line["reason"] for line in nodes.events("log.failed")]
            assert len([reason for reason in reasons if DATA_WAS_LOST in reason]) == 2


def test_a_node_does_not_serve_a_log_with_an_entry_missing_in_its_middle(
    zookeeper: Ensemble,
) -> None:
    """The log seemed to end before the entry, and offsets behind it to have never been."""
    where = f"/cluster/{next(_numbers)}"
    with cluster(f"{zookeeper.hosts}{where}", SESSION, "cluster.journals=1", nodes=1) as nodes:
        with nodes.running[1].connect() as connection:
            for offset in range(3):
                until(partial(is_done, connection, offset), "commit", pause_s=0.2)
        nodes.kill(1)
        remove(zookeeper, f"{where}/journals/0/log/0/2")
        again = Daemon(None, (*nodes.settings, "node.id=1"))

        assert again.wait() == EXIT_CORRUPT
        assert "entry 2 is missing" in again.events("log.failed")[0]["reason"]


def is_done(connection: Connection, offset: int) -> bool:
    """Say whether a node acknowledges a commit."""
    answer: Any = connection.ask(commit(offset))
    return bool(answer.error == ErrorCode.NONE)


def commit_to(nodes: Daemon, offset: int) -> None:
    """Commit until one of two nodes acknowledges it, and both have read all of the log."""
    with ExitStack() as stack:
        ports = {line["port"] for line in nodes.events("listening")}
        connections = [stack.enter_context(Connection(port)) for port in ports]

        def is_committed() -> bool:
            answers = [connection.ask(commit(offset)) for connection in connections]
            return any(getattr(answer, "error", -1) == 0 for answer in answers)

        def is_followed() -> bool:
            answers: list[Any] = [one.ask(DescribeJournalsRequest()) for one in connections]
            return len({tuple(j.last_entry for j in one.journals) for one in answers}) == 1

        until(is_committed, "commit", pause_s=0.2)
        until(is_followed, "both nodes with all of the log")


@pytest.mark.parametrize("lose", [Wire.keep_replies, Wire.silence], ids=["answers", "both ways"])
async def test_others_lead_what_a_node_led_that_hears_nothing_of_zookeeper(
    zookeeper: Ensemble, lose: Callable[[Wire], None]
) -> None:
    """Its connections are taken, and each try to connect prolonged its session, six times over."""
    where = f"/cluster/{next(_numbers)}"
    with wires(zookeeper) as drawn:
        hosts = ",".join(f"127.0.0.1:{wire.port}" for wire in drawn)
        with cluster(f"{hosts}{where}", SESSION, nodes=1) as nodes:
            until(lambda: len(nodes.events("journal.led")) == JOURNALS, "leaders")
            deaf = nodes.running[1]
            nodes.settings = (f"cluster.zookeeper={zookeeper.hosts}{where}", SESSION)
            nodes.start(2)
            other = nodes.running[2]
            for wire in drawn:
                lose(wire)
            until(lambda: len(other.events("journal.led")) == JOURNALS, "other leaders")
            replaced = deaf.events("zookeeper.client_replaced")
            with deaf.connect() as connection:
                for group in GROUPS:
                    until(partial(refuses, connection, group), f"a refusal about {group}")
            for wire in drawn:
                wire.mend()

            assert replaced == []
            until(lambda: len(deaf.events("journal.deposed")) >= 1, "its return")


def refuses(connection: Connection, group_id: str) -> bool:
    """Say whether a node sends those of a group elsewhere."""
    answer = connection.ask(commit(1, group_id=group_id))
    return getattr(answer, "error", 0) == ErrorCode.NOT_COORDINATOR


@pytest.mark.nightly
async def test_groups_go_on_when_zookeeper_has_no_numbers_left(tmp_path: Path) -> None:
    """A transaction's number has 32 bits: at 600 a second, every 80 days there is an election."""
    few = f"-Dzookeeper.testingonly.initialZxid={2**32 - TRANSACTIONS}"
    with (
        ensemble(tmp_path, jvm=(*QUICK_JVM, few)) as made,
        cluster(f"{made.hosts}/gc", SESSION, "group.initial.rebalance.delay.ms=0") as nodes,
    ):
        async with workers(nodes, *GROUPS) as working:
            first = elections(made)
            with trio.fail_after(120):
                while elections(made) < first + 2:
                    for worker in working.values():
                        await worker.commits_on()
            for worker in working.values():
                await worker.commits_on()

            assert [len(worker.member_ids) for worker in working.values()] == [1] * len(GROUPS)
            assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)


def elections(made: Ensemble) -> int:
    """Return how many leaders there were so far: the upper half of a transaction's number."""
    told = ""
    for server in made.servers:
        with suppress(OSError):  # It elects.
            told += four_letters(server.port, "srvr")
    return max((int(zxid, 16) >> 32 for zxid in re.findall("Zxid: 0x([0-9a-f]+)", told)), default=0)


def test_what_a_node_says_of_itself(zookeeper: Ensemble) -> None:
    """Whoever is woken sees which part is not well, and all nodes together lead everything."""
    where = f"{zookeeper.hosts}/cluster/{next(_numbers)}"
    minutes = int(time.time() // 60)
    with cluster(where, SESSION, "http.listeners=127.0.0.1:0", "max.log.bytes=5", nodes=2) as nodes:
        until(lambda: len(nodes.events("journal.led")) >= JOURNALS, "leaders")
        assert len(nodes.events("log.created")) == 1
        assert min(one["leader_epoch"] for one in nodes.events("journal.led")) >= minutes
        assert total(nodes, "group_coordinator_journals_led") == JOURNALS
        assert total(nodes, "group_coordinator_journals_without_leader") == 0
        assert [get(daemon, "/readyz")[0] for daemon in nodes.running.values()] == [200, 200]
        assert json.loads(get(nodes.running[1], "/api/v1/node")[1])["disk"] is None
        assert [line["names"] for line in nodes.events("settings.unused")] == [
            ["max.log.bytes"]
        ] * 2
        for server in zookeeper.servers:
            server.freeze()
        try:
            until(lambda: get(nodes.running[1], "/readyz")[0] == 503, "news")
            checks = json.loads(get(nodes.running[1], "/readyz")[1])["checks"]
            assert [check["part"] for check in checks if not check["ok"]] == ["zookeeper"]
            until(lambda: total(nodes, "group_coordinator_journals_led") == 0, "nothing led")
            assert total(nodes, "group_coordinator_journals_without_leader") == 2 * JOURNALS
            listed = run_cli("groups", "list", "--timeout", "1", "--at", nodes.addresses[0])
            assert (1, "") == (listed.returncode, listed.stdout)
            assert "this node has no connection to ZooKeeper" in listed.stderr
        finally:
            for server in zookeeper.servers:
                server.thaw()
        until(lambda: get(nodes.running[1], "/readyz")[0] == 200, "its end")


def total(nodes: Nodes, name: str) -> float:
    """Return a metric of all nodes, added up."""
    texts = [get(daemon, "/metrics")[1] for daemon in nodes.running.values()]
    found = [re.search(rf"^{name} (\S+)$", text, re.MULTILINE) for text in texts]
    assert None not in found
    return sum(float(one[1]) for one in found if one)


def test_a_missing_node_is_told_until_it_is_there_or_no_longer_expected(
    zookeeper: Ensemble, tmp_path: Path
) -> None:
    """ZooKeeper forgets a node with its session; only a setting says how many there should be."""
    where = f"cluster.zookeeper={zookeeper.hosts}/cluster/{next(_numbers)}"
    config = tmp_path / "settings.toml"
    config.write_text('"cluster.nodes" = 2\n', encoding="ascii")
    missing = "Only 1 of 2 nodes (cluster.nodes) are registered: 1.\n"

    def status(*options: str) -> tuple[int, str]:
        shown = run_cli("cluster", "status", *options)
        return shown.returncode, shown.stderr

    settings = (where, "cluster.create=true", SESSION)
    with daemon(None, *settings, options=("--config", str(config))) as first:
        at = ("--at", f"127.0.0.1:{first.ready().port}")
        until(lambda: len(first.events("journal.led")) == JOURNALS, "leaders")
        assert status(*at) == (1, missing)
        assert status("--set", where, "--set", "cluster.nodes=2") == (1, missing)
        with daemon(None, *settings, "node.id=2") as second:
            second.ready()
            until(lambda: status(*at) == (0, ""), "a whole cluster", pause_s=0.5)
            assert second.stop() == 0
        until(lambda: status(*at) == (1, missing), "news of a missing node", pause_s=0.5)
        config.write_text('"cluster.nodes" = 1\n', encoding="ascii")
        first.process.send_signal(signal.SIGHUP)
        assert first.wait_for("settings.reloaded")["changed"] == ["cluster.nodes"]
        assert status(*at) == (0, "")


def get(daemon: Daemon, path: str) -> tuple[int, str]:
    """Return the status and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port(daemon), timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_bound_of_the_logs_is_read_again(zookeeper: Ensemble, tmp_path: Path) -> None:
    """Who has given ZooKeeper more memory need not restart all nodes for it."""
    where = f"{zookeeper.hosts}/cluster/{next(_numbers)}"
    config = tmp_path / "settings.toml"
    config.write_text('"cluster.state.max.bytes" = 2000000\n', encoding="ascii")
    settings = (f"cluster.zookeeper={where}", "cluster.create=true")
    node = Daemon(None, settings, options=("--config", str(config)))
    try:
        node.ready()
        config.write_text('"cluster.state.max.bytes" = 3000000\n', encoding="ascii")
        node.process.send_signal(signal.SIGHUP)

        assert node.wait_for("settings.reloaded")["changed"] == ["cluster.state.max.bytes"]
        with node.connect() as connection:
            answer: Any = connection.ask(DescribeNodeRequest())
        assert {one.value for one in answer.metrics if one.name == "log_bytes_limit"} == {3_000_000}
    finally:
        node.kill()
