"""Commands on a cluster: any of its nodes is named, and the one is asked that knows."""

import json
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from coordinator.cli import common
from coordinator.cli.main import main
from coordinator.config import Address
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.group_ids import NODE_PARTITION
from tests.fakes.command_line import Clock, FakeSocket, cells

# By offsets partition: the node that leads it. Groups are named by theirs.
LEADERS: Final = {0: 1, 1: 2, 2: 1, NODE_PARTITION: 2}
CLUSTER: Final = "127.0.0.1:1,127.0.0.1:2"


class Nodes:
    """Two nodes, at ports that are their ids; each answers of what it leads.

    Attributes:
        away: Those that nobody reaches.
        frozen: Those that are reached, and answer nobody.
        loading: The partitions that nobody can be told of yet.
        answers: To what else is asked.
        apis: The versions that nodes tell.
        connected: Who was connected to.
        together: Where nodes wait before they tell how they are, until all of them do.
        asked: What each was asked, but for who it is.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.away: set[int] = set()
        self.frozen: set[int] = set()
        self.leaders = dict(LEADERS)
        self.asked: list[tuple[int, m.Request]] = []
        self.connected: list[int] = []
        self.together = threading.Barrier(1)
        self.loading: set[int] = set()
        self.answers: dict[type, Callable[[int, Any], m.Response]] = {}
        self.host = "127.0.0.1"
        self.apis: tuple[m.ApiVersionRange, ...] = ()
        self.found: Callable[[], None] = lambda: None  # Called after each search.
        monkeypatch.setattr(socket, "create_connection", self._connect)

    def _connect(self, where: tuple[str, int], **_: object) -> FakeSocket:
        if where[0] != "127.0.0.1" or where[1] in self.away:
            raise ConnectionRefusedError(111, "Connection refused")
        self.connected.append(where[1])
        return FakeSocket(lambda request: self._answer(where[1], request))

    def _answer(self, node: int, request: Any) -> m.Response:
        if node in self.frozen:
            raise TimeoutError("timed out")
        if isinstance(request, m.ApiVersionsRequest):
            return m.ApiVersionsResponse(0, self.apis, "s", "c", node, 1)
        self.asked.append((node, request))
        answers: dict[type, Callable[[int, Any], m.Response]] = self.answers | {
            m.FindCoordinatorRequest: self._find,
            m.DescribeClusterRequest: self._cluster,
            m.DescribeNodeRequest: self._node,
            m.CompactLogRequest: lambda node, _: m.CompactLogResponse(0, None, node, 5, 5, 1),
            m.ListGroupsRequest: self._list,
            m.SummarizeGroupsRequest: self._summarize,
            m.DescribeTopicsRequest: self._topics,
            m.DescribeRebalancesRequest: self._rebalances,
        }
        return answers[type(request)](node, request)

    def _find(self, _node: int, request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        keys = request.group_ids
        if request.key_type == m.KEY_TYPE_CLUSTER:
            keys = (str(NODE_PARTITION),)
        elif not keys:
            keys = ("0", "1", "2")
        names = request.group_ids or keys
        places = [self._place(key, name) for key, name in zip(keys, names, strict=True)]
        self.found()
        return m.FindCoordinatorResponse(tuple(places))

    def _place(self, key: str, name: str) -> m.CoordinatorOfGroup:
        partition = int(key)
        leader = self.leaders.get(partition)
        if leader is None:
            return m.find_coordinator_error(name, 15, "it has no leader")
        return m.CoordinatorOfGroup(name, 0, None, leader, self.host, leader, partition, 1)

    def _cluster(self, _node: int, _: m.DescribeClusterRequest) -> m.DescribeClusterResponse:
        there = [node for node in (1, 2) if node not in self.away]
        nodes = tuple(m.ClusterNode(node, self.host, node, is_ready=True) for node in there)
        return m.DescribeClusterResponse(0, "c", nodes)

    def _node(self, node: int, _: m.DescribeNodeRequest) -> m.DescribeNodeResponse:
        self.together.wait(10)
        partitions = tuple(
            m.NodePartition(number, "active" if leader == node else "following", 3, 3)
            for number, leader in self.leaders.items()
        )
        return m.DescribeNodeResponse(0, node, 1, "ready", (), partitions, ())

    def _list(self, node: int, request: m.ListGroupsRequest) -> m.ListGroupsResponse:
        assert request.offsets_partitions is not None
        if self.loading & set(request.offsets_partitions):
            return m.ListGroupsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ())
        if any(self.leaders[one] != node for one in request.offsets_partitions):
            return m.ListGroupsResponse(ErrorCode.NOT_COORDINATOR, ())
        groups = (m.ListedGroup(str(one), "", "Empty", "") for one in request.offsets_partitions)
        return m.ListGroupsResponse(0, tuple(groups))

    def _summarize(self, node: int, request: m.SummarizeGroupsRequest) -> m.SummarizeGroupsResponse:
        listed = self._list(node, m.ListGroupsRequest((), (), request.offsets_partitions))
        numbers = ("", "Empty", 0, 0, 0, -1, -1, -1, ())
        groups = tuple(m.GroupSummary(one.group_id, *numbers) for one in listed.groups)
        return m.SummarizeGroupsResponse(listed.error, None, groups, b"")

    def _topics(self, node: int, _: m.DescribeTopicsRequest) -> m.DescribeTopicsResponse:
        if self.leaders[NODE_PARTITION] != node:
            return m.DescribeTopicsResponse(ErrorCode.NOT_COORDINATOR, None, (), has_more=False)
        topic = m.DescribedTopic("t", 0, 3, (), ())
        return m.DescribeTopicsResponse(0, None, (topic,), has_more=False)

    def _rebalances(
        self, node: int, request: m.DescribeRebalancesRequest
    ) -> m.DescribeRebalancesResponse:
        partition = int(request.group_id)
        error = 0 if self.leaders.get(partition) == node else 16
        if partition in self.loading:
            error = 14
        return m.DescribeRebalancesResponse(error, None, request.group_id, ())

    def asked_for(self, kind: type) -> list[int]:
        """Return which nodes were asked for that."""
        return [node for node, request in self.asked if type(request) is kind]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the time of commands that wait."""
    made = Clock()
    monkeypatch.setattr(common, "time", made)
    return made


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Return two nodes that are there."""
    return Nodes(monkeypatch)


def run(*arguments: str, at: str = CLUSTER) -> Result:
    """Run a command."""
    return CliRunner().invoke(main, [*arguments, "--at", at])


def test_the_node_is_asked_that_knows(nodes: Nodes) -> None:
    """The first one that is named says that it isn't the one, and then which one is."""
    done = run("topics", "list")

    assert cells(done.stdout) == [["t", "3", "0"]]
    assert nodes.asked_for(m.DescribeTopicsRequest) == [1, 2]


def test_what_is_asked_of_the_right_node_needs_no_search(nodes: Nodes) -> None:
    """One node, which has everything, is asked as ever."""
    assert run("groups", "rebalances", "0").exit_code == 0
    assert nodes.asked_for(m.FindCoordinatorRequest) == []


def test_a_node_that_is_away_is_passed_over(nodes: Nodes) -> None:
    """Any of those that are named will do."""
    nodes.away = {1}

    assert cells(run("topics", "list").stdout) == [["t", "3", "0"]]
    nodes.away = {1, 2}
    done = run("topics", "list")
    assert done.exit_code == 69
    assert done.stderr.count("No coordinator answers at") == 2


def test_groups_of_all_nodes_are_listed(nodes: Nodes) -> None:
    """Each node lists its own."""
    done = run("groups", "list", at="127.0.0.1:2")

    assert [row[0] for row in cells(done.stdout)] == ["0", "1", "2"]
    assert sorted(nodes.asked_for(m.SummarizeGroupsRequest)) == [1, 2]


def test_a_node_is_asked_where_it_was_reached(nodes: Nodes) -> None:
    """The address that it tells may not lead there, through a tunnel, say."""
    nodes.host = "inside.example"
    nodes.leaders = dict.fromkeys(nodes.leaders, 1)
    done = run("groups", "list", at="127.0.0.1:1")

    assert [row[0] for row in cells(done.stdout)] == ["0", "1", "2"]


def test_a_list_is_begun_anew_when_somebody_else_leads_meanwhile(nodes: Nodes) -> None:
    """Half of an older one and half of a newer one would have gaps."""

    def move() -> None:
        nodes.leaders[2] = 2

    nodes.found = move
    done = run("groups", "list")

    assert [row[0] for row in cells(done.stdout)] == ["0", "1", "2"]


@pytest.mark.parametrize("command", [("groups", "list"), ("groups", "rebalances", "1")])
@pytest.mark.parametrize("is_loading", [False, True])
def test_a_partition_without_a_leader_is_waited_for(
    nodes: Nodes, clock: Clock, command: Sequence[str], *, is_loading: bool
) -> None:
    """A node was killed, or all of them start: somebody leads some seconds later."""
    if is_loading:
        nodes.loading = {1}
        clock.at[103.0] = nodes.loading.clear
    else:
        leader = nodes.leaders.pop(1)
        clock.at[103.0] = lambda: nodes.leaders.update({1: leader})

    assert run(*command).exit_code == 0
    assert 103 <= clock.now_s < 104


def test_a_partition_that_stays_without_a_leader_is_told(nodes: Nodes, clock: Clock) -> None:
    """So some groups can't be shown; a command waits no longer than for an answer."""
    del nodes.leaders[1]
    for command in (("groups", "list"), ("groups", "rebalances", "1")):
        began_s = clock.now_s
        done = run(*command, "--timeout", "5")

        assert done.exit_code == 1
        assert "it has no leader (COORDINATOR_NOT_AVAILABLE)" in done.stderr
        assert 5 <= clock.now_s - began_s < 5.5


@pytest.mark.parametrize("command", [("groups", "list"), ("groups", "rebalances", "1")])
def test_a_leader_that_was_killed_is_waited_for(
    nodes: Nodes, clock: Clock, command: Sequence[str]
) -> None:
    """Until its session ends the others name it."""
    nodes.away = {2}
    clock.at[103.0] = lambda: nodes.leaders.update(dict.fromkeys(nodes.leaders, 1))

    assert run(*command).exit_code == 0
    nodes.away = {1}
    assert run(*command).exit_code == 69
    assert 113 <= clock.now_s < 114


def test_a_command_waits_once_however_many_groups_have_no_leader(
    nodes: Nodes, clock: Clock
) -> None:
    """Of a thousand groups each would take ten seconds."""
    nodes.leaders = {0: 1, 2: 2}
    began_s = clock.now_s
    failed = []
    with common.Coordinator((Address("127.0.0.1", 1),), timeout_s=10) as coordinator:
        for group_id in ("1", "3", "0", "4", "2", "5"):
            try:
                coordinator.ask(m.DescribeRebalancesRequest(group_id, 5))
            except common.AskFailed as exc:
                failed.append(exc.code)

    assert failed == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 4
    assert 10 <= clock.now_s - began_s < 11


@pytest.mark.parametrize(
    ("ask", "about"),
    [
        (common.Coordinator.ask, m.DescribeRebalancesRequest("1", 5)),
        (common.Coordinator.ask_leaders, m.ListGroupsRequest((), ())),
    ],
)
def test_a_command_that_takes_long_waits_for_each_leader_anew(
    nodes: Nodes,
    clock: Clock,
    ask: Callable[[common.Coordinator, m.Request], object],
    about: m.Request,
) -> None:
    """In an upgrade each node pauses; what took minutes failed at the second of them."""
    with common.Coordinator((Address("127.0.0.1", 1),), timeout_s=10) as coordinator:
        for began_s in (200.0, 300.0):
            clock.now_s = began_s
            nodes.loading = {1}
            clock.at[began_s + 9] = nodes.loading.clear
            ask(coordinator, about)

            assert began_s + 9 <= clock.now_s < began_s + 10


def test_a_leader_that_hangs_is_waited_for_once_for_all_groups_that_it_leads(
    nodes: Nodes, clock: Clock
) -> None:
    """Five seconds for each of them would be minutes until another one leads."""
    nodes.frozen = {2}
    nodes.leaders = {0: 1, 1: 2, 2: 2}
    clock.at[100.5] = lambda: nodes.leaders.update({1: 1, 2: 1})
    requests = [m.DescribeRebalancesRequest(group_id, 5) for group_id in ("0", "1", "2")]
    with common.Coordinator((Address("127.0.0.1", 1),), timeout_s=10) as coordinator:
        answers = coordinator.ask_all(requests)
        tries = len(nodes.asked_for(m.FindCoordinatorRequest)) - 1

    assert [answer.error for answer in answers] == [0, 0, 0]
    assert nodes.connected.count(2) == tries > 0


@pytest.mark.parametrize(
    ("command", "kind", "answer"),
    [
        (("reload", "0"), m.ReloadPartitionRequest, m.ReloadPartitionResponse(14, None, -1, -1)),
        (
            ("cluster", "move", "0", "2", "--yes"),
            m.MoveJournalRequest,
            m.MoveJournalResponse(15, "journal 0 did not go to node 2"),
        ),
    ],
)
def test_what_was_tried_is_not_tried_again(
    nodes: Nodes, command: Sequence[str], kind: type, answer: m.Response
) -> None:
    """Each move is a pause of groups, and each reload one more load."""
    journal = m.DescribedJournal(0, 1, 7, 0, 1, 1, 1, 1, 1)
    status = m.DescribeJournalsResponse(0, None, 1, True, 1, 1, 0, 10, (journal,))
    nodes.answers = {kind: lambda *_: answer, m.DescribeJournalsRequest: lambda *_: status}

    assert run(*command).exit_code == 1
    assert len(nodes.asked_for(kind)) == 1


def test_the_health_of_all_nodes_is_a_table(nodes: Nodes) -> None:
    """Who leads how much; the status of the command is that of the worst."""
    done = run("health", "--all", at="127.0.0.1:1")

    assert (done.exit_code, cells(done.stdout)) == (
        0,
        [["1", "127.0.0.1:1", "ready", "2", "4"], ["2", "127.0.0.1:2", "ready", "2", "4"]],
    )


def test_a_node_that_is_away_is_shown_if_it_was_named(nodes: Nodes) -> None:
    """The cluster itself forgets it with its session."""
    nodes.away = {2}
    done = run("health", "--all")
    shown = json.loads(run("health", "--all", "--output", "json").stdout)

    assert done.exit_code == 1
    assert cells(done.stdout)[1] == ["-", "127.0.0.1:2", "away", "-", "-"]
    assert [node["status"] for node in shown["nodes"]] == ["ready", "away"]


@pytest.mark.parametrize(("newest", "is_told"), [(0, False), (1, True)])
def test_a_node_is_asked_in_a_version_that_it_answers(
    nodes: Nodes, newest: int, *, is_told: bool
) -> None:
    """In the middle of an upgrade the nodes of a cluster are of two releases."""
    journal = m.DescribedJournal(0, 1, 7, 0, 1, 1, 1, 1, 1)
    status = m.DescribeJournalsResponse(0, None, 1, True, 1, 1, 0, 10, (journal,), 3)
    nodes.answers = {m.DescribeJournalsRequest: lambda *_: status}
    nodes.apis = (m.ApiVersionRange(m.ApiKey.DESCRIBE_JOURNALS, 0, newest),)
    done = run("cluster", "status")

    assert (done.exit_code, "Only 2 of 3 nodes" in done.stderr) == (int(is_told), is_told)


def test_all_nodes_are_asked_at_a_time(nodes: Nodes) -> None:
    """Each that hangs took ten seconds, one after the other, while somebody waited at night."""
    nodes.together = threading.Barrier(2)

    assert run("health", "--all").exit_code == 0


def test_a_node_that_hangs_is_tried_and_shown_once(nodes: Nodes) -> None:
    """It is named, and the cluster may not have lost it yet."""
    nodes.frozen = {2}
    done = run("health", "--all")

    assert done.exit_code == 1
    assert [row[:3] for row in cells(done.stdout)] == [
        ["1", "127.0.0.1:1", "ready"],
        ["2", "127.0.0.1:2", "away"],
    ]
    assert nodes.connected.count(2) == 1
    assert "nothing came within 5 s" in done.stderr


def test_health_is_that_of_one_node_unless_all_are_asked_for(nodes: Nodes) -> None:
    """A probe must not fail for another node; what it follows is as it should be."""
    nodes.away = {2}
    done = run("health", at="127.0.0.1:1")

    assert done.exit_code == 0
    assert "following" not in done.stdout


def test_the_logs_of_all_nodes_are_compacted(nodes: Nodes) -> None:
    """Each node has those that it leads."""
    done = run("compact")

    assert [line.split()[1] for line in done.stdout.splitlines()] == ["1", "2"]


def test_an_address_that_is_none_is_a_wrong_command_line(nodes: Nodes) -> None:
    """Whichever of them it is."""
    done = run("ping", at="127.0.0.1:1,nowhere")

    assert done.exit_code == 2
    assert "'nowhere' is not HOST:PORT" in done.stderr
    assert nodes.asked == []


def test_a_node_that_hangs_keeps_nobody_from_asking_another_one(nodes: Nodes) -> None:
    """It lets anybody connect; who looks at a cluster does so when something hangs in it."""
    nodes.frozen = {1}
    nodes.leaders = dict.fromkeys(LEADERS, 2)
    listed = run("groups", "list")
    alone = run("groups", "list", at="127.0.0.1:1")

    assert [row[0] for row in cells(listed.stdout)] == ["0", "1", "2"]
    assert alone.exit_code == 69
    assert "No coordinator answers at 127.0.0.1:1: nothing came within 10 s" in alone.stderr
