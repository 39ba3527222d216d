"""What `cluster status` makes of what nodes answer, and `cluster move` of what it sees."""

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest
from msgspec import structs

from coordinator.cli.cluster_status import Status, from_nodes, show
from coordinator.cli.common import AskFailed, Unreachable
from coordinator.cli.output import Output
from coordinator.config import Address
from protocol import messages as m
from tests.fakes.command_line import CommandLine

AT: Final = {number: Address("127.0.0.1", 9310 + number) for number in (1, 2, 3)}
SINCE_MS: Final = 1_700_000_000_000
NODES: Final = m.DescribeClusterResponse(
    0, "c" * 22, tuple(m.ClusterNode(n, one.host, one.port, True) for n, one in AT.items())
)


def journals(*last_entries: int, leaders: tuple[int, ...] = (1, 2)) -> Any:
    """Return what a node says that has so much of the log of each journal."""
    found = tuple(
        m.DescribedJournal(number, leader, 7, SINCE_MS, last, 5, 400, last - 5, 900)
        for number, (leader, last) in enumerate(zip(leaders, last_entries, strict=True))
    )
    return m.DescribeJournalsResponse(0, None, 1, True, 1, 2, 2_600, 10_000, found)


class Cluster:
    """Answers as the nodes of a cluster would."""

    def __init__(
        self, answers: Mapping[int, Any], nodes: m.DescribeClusterResponse = NODES
    ) -> None:
        self._nodes = nodes
        self._answers = {
            number: answer
            if isinstance(answer, AskFailed)
            else structs.replace(answer, node_id=number)
            for number, answer in answers.items()
        }

    def ask(self, request: m.Request) -> Any:
        """Answer as the first node."""
        return self._nodes if type(request) is m.DescribeClusterRequest else self._answers[1]

    def ask_nodes(self, *requests: m.Request) -> dict[tuple[int, Address], Any]:
        """Return what each of them answers."""
        assert [type(one) for one in requests] == [m.DescribeJournalsRequest, m.ApiVersionsRequest]
        hello = m.ApiVersionsResponse(0, (), "group-coordinator/1", "c", 1, 1)
        return {
            (number, AT[number]): answer if isinstance(answer, AskFailed) else [answer, hello]
            for number, answer in self._answers.items()
        }


def status(answers: Mapping[int, Any], nodes: m.DescribeClusterResponse = NODES) -> Status:
    """Return what comes of these answers."""
    return from_nodes(Cluster(answers, nodes))  # type: ignore[arg-type]  # it asks, as far as this goes


def test_how_far_each_follower_is_behind_is_told_by_the_leader_of_each_journal() -> None:
    """The node that was asked first may be behind itself."""
    seen = status({1: journals(90, 40), 2: journals(70, 50), 3: journals(90, 51)})

    assert [journal.behind for journal in seen.journals] == [{2: 20, 3: 0}, {1: 10, 3: 0}]
    assert [journal.last_entry for journal in seen.journals] == [90, 50]
    assert [node.formats for node in seen.nodes] == [(1, 2)] * 3
    assert (seen.problems, seen.state_bytes) == ([], 2_600)


def test_what_is_wrong_is_told_in_words() -> None:
    """Whoever looks at night needs not know what the table should be like."""
    unready = structs.replace(
        NODES, nodes=(*NODES.nodes[:2], structs.replace(NODES.nodes[2], is_ready=False))
    )
    seen = status(
        {
            1: journals(90, 40, leaders=(1, -1)),
            2: structs.replace(journals(90, 40, leaders=(1, -1)), is_connected=False),
            3: Unreachable("No coordinator answers at 127.0.0.1:9313: Connection refused"),
        },
        unready,
    )

    assert seen.problems == [
        "Node 2 has no connection to ZooKeeper.",
        "Node 3 doesn't answer: No coordinator answers at 127.0.0.1:9313: Connection refused",
        "Node 3 is not ready: it doesn't follow every journal.",
        "Nobody leads journal 1.",
    ]


def expecting(answer: Any, nodes: int) -> Any:
    """Return what a node says that has so many in cluster.nodes."""
    return structs.replace(answer, nodes_expected=nodes)


@pytest.mark.parametrize(
    ("expected", "problems"),
    [
        ((0, 0), []),
        ((2, 2), []),
        ((3, 3), ["Only 2 of 3 nodes (cluster.nodes) are registered: 1, 2."]),
        ((0, 3), ["Only 2 of 3 nodes (cluster.nodes) are registered: 1, 2."]),
    ],
)
def test_a_missing_node_is_told_where_a_node_knows_how_many_there_should_be(
    expected: tuple[int, int], problems: list[str]
) -> None:
    """The cluster goes on without it, and the next loss may be one too many."""
    there = structs.replace(NODES, nodes=NODES.nodes[:2])
    first, second = (expecting(journals(90, 40), number) for number in expected)
    seen = status({1: first, 2: second}, there)

    assert (seen.problems, seen.nodes_expected) == (problems, max(expected) or None)


def test_a_node_that_answers_and_is_not_registered_is_missing() -> None:
    """A node that is cut off from ZooKeeper takes nothing over."""
    there = structs.replace(NODES, nodes=NODES.nodes[:2])
    cut_off = structs.replace(expecting(journals(90, 40), 3), is_connected=False)
    seen = status(
        {1: expecting(journals(90, 40), 3), 2: expecting(journals(9, 4), 3), 3: cut_off}, there
    )

    assert "Only 2 of 3 nodes (cluster.nodes) are registered: 1, 2." in seen.problems


def test_a_frozen_cluster_is_told_as_one_by_its_nodes() -> None:
    """That no node leads is what the export wanted, and no outage."""
    answer = journals(90, 40, leaders=(-1, -1))
    frozen = tuple(structs.replace(one, is_frozen=True) for one in answer.journals)
    seen = status({1: structs.replace(answer, journals=frozen)})

    assert seen.problems == ["Frozen, as the cluster was exported: journal 0, 1."]
    assert [one.frozen for one in seen.journals] == [True, True]


def test_a_full_cluster_is_told() -> None:
    """Commits are refused, and nothing else looks wrong."""
    full = structs.replace(journals(1, 1), state_bytes=10_000)

    assert status({1: full}).problems == [
        "New data is refused: cluster.state.max.bytes is reached."
    ]


def test_a_program_gets_all_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """And what is wrong is in it, too."""
    failed = show(status({1: journals(9, 4), 2: journals(9, 9)}), Output("json"))
    told = json.loads(capsys.readouterr().out)

    assert (failed, told["problems"]) == (False, [])
    assert [journal["behind"] for journal in told["journals"]] == [{"2": 0}, {"1": 5}]
    assert told["nodes"][0] == {
        "node": 1,
        "at": "127.0.0.1:9311",
        "ready": True,
        "since": None,
        "software": "group-coordinator/1",
        "formats": [1, 2],
    }


@pytest.mark.parametrize(
    ("journal", "node", "said", "exit_status"),
    [
        ("0", "2", "journal 0: node 1 has handed it to node 2", 0),
        ("0", "1", "Node 1 leads journal 0 already.", 0),
        ("1", "2", "nobody leads journal 1", 1),
        ("2", "2", "there is no journal 2 of 2", 1),
        ("0", "9", "there is no node 9: there are the nodes 1, 2, 3", 1),
    ],
)
def test_a_journal_is_moved_by_who_leads_it(
    journal: str, node: str, said: str, exit_status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator names any node, and doesn't have to look first."""
    line = CommandLine(
        monkeypatch,
        {
            m.DescribeClusterRequest: NODES,
            m.DescribeJournalsRequest: journals(1, 1, leaders=(1, -1)),
            m.MoveJournalRequest: m.MoveJournalResponse(0, None),
        },
    )
    done = line.run("cluster", "move", journal, node, "--yes")

    assert (done.exit_code, said) == (exit_status, done.output.strip())
    moves = [m.MoveJournalRequest(0, 2)] if said.startswith("journal") else []
    assert line.of_type(m.MoveJournalRequest) == moves


def test_a_dry_run_plans_no_move_to_a_node_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan that can't be carried out misleads, and a typing error is found before the night."""
    line = CommandLine(
        monkeypatch,
        {m.DescribeClusterRequest: NODES, m.DescribeJournalsRequest: journals(1, 1)},
    )
    done = line.run("cluster", "move", "0", "9")

    assert (done.exit_code, done.stdout) == (1, "")
    assert "there is no node 9" in done.stderr


def test_a_move_that_was_refused_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next command of a script must not run."""
    refusal = m.MoveJournalResponse(42, "node 2 is not ready to take a journal")
    line = CommandLine(
        monkeypatch,
        {
            m.DescribeClusterRequest: NODES,
            m.DescribeJournalsRequest: journals(1, 1),
            m.MoveJournalRequest: refusal,
        },
    )
    done = line.run("cluster", "move", "0", "2", "--yes")

    assert done.exit_code == 1
    assert "node 2 is not ready to take a journal" in done.output


def test_a_node_with_a_folder_has_no_cluster_to_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default address may be such a node's."""
    refusal = m.DescribeJournalsResponse(
        42, "this node is in no cluster", 1, False, -1, -1, -1, -1, ()
    )
    line = CommandLine(
        monkeypatch, {m.DescribeClusterRequest: NODES, m.DescribeJournalsRequest: refusal}
    )
    done = line.run("cluster", "status")

    assert (done.exit_code, "this node is in no cluster" in done.output) == (1, True)
