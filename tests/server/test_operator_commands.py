"""The commands that look into a running coordinator."""

import json
import socket
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from coordinator.cli.main import main
from protocol import messages as m
from protocol.consumer import Assignment, encode_assignment
from protocol.partition import TopicPartition
from tests.fakes.command_line import CommandLine, cells

OWNED = encode_assignment(Assignment((TopicPartition("t", 1), TopicPartition("t", 0))))
STATIC = m.DescribedMember("c-1", "i", "driver", "192.0.2.1", b"", OWNED)
DYNAMIC = m.DescribedMember("c-2", None, "other", "192.0.2.2", b"", b"")
GROUPS = {
    "g": m.DescribedGroup(0, None, "g", "Stable", "consumer", "range", 7, (STATIC,), 604_800_000),
    "d": m.DescribedGroup(0, None, "d", "Stable", "consumer", "range", 2, (DYNAMIC,), -1),
    "e": m.DescribedGroup(0, None, "e", "Empty", "consumer", "", 3, (), 1_500),
    "p": m.DescribedGroup(0, None, "p", "PreparingRebalance", "consumer", "", 3, (), 1_500),
    "o": m.DescribedGroup(
        0, None, "o", "Stable", "connect", "x", 1, (structs.replace(STATIC, assignment=b"?"),), 0
    ),
}
PARTITIONS = (
    m.PartitionLag(0, 5, 9, 4, 1_000, 2_000, "c-1"),
    m.PartitionLag(1, -1, 9, -1, -1, 2_000, "c-1"),
    m.PartitionLag(2, 5, -1, -1, 1_000, -1, ""),
)


def described(request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
    """Describe one of the groups."""
    (group_id,) = request.group_ids
    gone = m.DescribedGroup(69, "not found", group_id, "Dead", "", "", -1, ())
    return m.DescribeGroupsResponse((GROUPS.get(group_id, gone),))


def lag(request: m.DescribeLagRequest) -> m.DescribeLagResponse:
    """Return the same lag for all."""
    return m.DescribeLagResponse(0, None, request.group_id, (m.TopicLag("t", PARTITIONS),))


def located(request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
    """Return the same place for all."""
    (group_id,) = request.group_ids
    here = m.CoordinatorOfGroup(group_id, 0, None, 1, "h", 9310, 0, 1)
    return m.FindCoordinatorResponse((here,))


LISTED = m.ListGroupsResponse(
    0, (m.ListedGroup("g", "", "Empty", "classic"), m.ListedGroup("d", "x", "Stable", "classic"))
)
SUMMARIES = (
    m.GroupSummary("g", "", "Empty", 0, 2, 2, -1, -1, -1, ()),
    m.GroupSummary("d", "x", "Stable", 3, 6, 1, 1200, 1500, 150_000, ()),
    m.GroupSummary("f", "x", "Stable", 1, 1, 0, 7000, 0, 5_000, ()),
)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line with a coordinator that knows a few groups."""
    return CommandLine(
        monkeypatch,
        {
            m.DescribeGroupsRequest: described,
            m.DescribeLagRequest: lag,
            m.FindCoordinatorRequest: located,
            m.ListGroupsRequest: LISTED,
            m.SummarizeGroupsRequest: m.SummarizeGroupsResponse(0, None, SUMMARIES, b""),
        },
    )


def test_groups_are_listed(line: CommandLine) -> None:
    """The first question of everybody."""
    rows = cells(line.run("groups", "list").stdout)

    assert rows == [
        ["d", "classic", "Stable", "x", "3", "1", "≥", "1200", "-"],
        ["f", "classic", "Stable", "x", "1", "0", "7000", "+7000", "in", "5s"],
        ["g", "classic", "Empty", "-", "0", "2", "-", "-"],
    ]


def test_a_lag_that_is_known_in_part_is_at_least_so_much(line: CommandLine) -> None:
    """Five of six partitions are unknown: 0 would say that nothing is left to do."""
    one = m.GroupSummary("r", "consumer", "Stable", 1, 6, 5, 0, 40, 150_000, ())
    line.answers[m.SummarizeGroupsRequest] = m.SummarizeGroupsResponse(0, None, (one,), b"")
    listed = line.run("groups", "list")

    assert listed.stdout.splitlines()[0].split()[-3:] == ["#UNKNOWN", "LAG", "TREND"]
    for done in (
        listed,
        line.run("groups", "top"),
        line.run("groups", "describe", "--all-groups"),
    ):
        assert cells(done.stdout)[0][-4:] == ["5", "≥", "0", "-"]
    for arguments in (("list",), ("top",), ("describe", "--all-groups")):
        (told,) = json.loads(line.run("groups", *arguments, "--output", "json").stdout)
        assert (told["lag"], told["unknown"]) == (0, 5)
        csv = line.run("groups", *arguments, "--output", "csv").stdout
        assert csv.splitlines()[1].endswith(",5,0,40,150000")


def test_a_terminal_without_the_sign_gets_the_table_all_the_same(line: CommandLine) -> None:
    """Latin-1 has no "≥", and a question at night must not end with a traceback."""
    arguments = ["groups", "list", "--at", "127.0.0.1:1"]
    done = CliRunner(charset="latin-1").invoke(main, arguments)

    assert (done.exit_code, cells(done.stdout)[0][-3:-1]) == (0, ["\\u2265", "1200"])


def test_a_commit_beyond_the_reported_end_is_told(line: CommandLine) -> None:
    """Which of the two numbers is wrong, the one who looks must find out."""
    # The second one is of a daemon of release 0.1.0, which says 0.
    beyond = [m.PartitionLag(n, 9, 5, lag, 1_000, 2_000, "c-1") for n, lag in enumerate((-1, 0))]
    line.answers[m.DescribeLagRequest] = lambda request: m.DescribeLagResponse(
        0, None, request.group_id, (m.TopicLag("t", (*beyond, PARTITIONS[2])),)
    )
    done = line.run("groups", "describe", "g")

    assert [row[2:6] for row in cells(done.stdout)[:2]] == [
        ["0", "9", "5", "-"],
        ["1", "9", "5", "-"],
    ]
    assert done.stderr == (
        "Warning: The lag of 2 partitions isn't known, as the commit is beyond the reported end; "
        "the report is old, or the commit is wrong: g: t-0, g: t-1.\n"
    )


def test_the_worst_groups_are_on_top(line: CommandLine) -> None:
    """And those of which nothing is known at the end: that is not a lag of 0."""
    done = line.run("groups", "top", "--pattern", "[a-z]", "--limit", "2")
    everything = line.run("groups", "top")

    assert cells(done.stdout) == [
        ["f", "Stable", "1", "1", "0", "7000", "+7000", "in", "5s"],
        ["d", "Stable", "3", "6", "1", "≥", "1200", "-"],
    ]
    assert done.stderr == "The worst 2 of 3 groups; --limit shows more.\n"
    assert line.asked[0] == m.SummarizeGroupsRequest("[a-z]", (), b"", 2_000, 0)
    assert [row[0] for row in cells(everything.stdout)] == ["f", "d", "g"]
    assert everything.stderr == ""


def test_all_pages_of_groups_are_asked_for(line: CommandLine) -> None:
    """The worst group may be on the last one."""
    pages = iter(
        [
            m.SummarizeGroupsResponse(0, None, SUMMARIES[:2], b"more"),
            m.SummarizeGroupsResponse(0, None, SUMMARIES[2:], b""),
        ]
    )
    line.answers[m.SummarizeGroupsRequest] = lambda _request: next(pages)

    assert cells(line.run("groups", "top").stdout)[0][0] == "f"
    assert [request.cursor for request in line.asked] == [b"", b"more"]


def test_a_pattern_that_is_none_is_said_in_the_servers_words(line: CommandLine) -> None:
    """It alone knows what is wrong with it."""
    refused = m.SummarizeGroupsResponse(128, "pattern '(': missing )", (), b"")
    line.answers[m.SummarizeGroupsRequest] = refused
    done = line.run("groups", "top", "--pattern", "(")

    assert (done.exit_code, "missing )" in done.stderr) == (1, True)


def test_all_groups_are_described_in_a_line_each_unless_told_otherwise(line: CommandLine) -> None:
    """A thousand groups of a thousand partitions are no answer."""
    done = line.run("groups", "describe", "--all-groups")

    assert [row[0] for row in cells(done.stdout)] == ["d", "f", "g"]
    assert [type(request) for request in line.asked] == [m.SummarizeGroupsRequest]

    told = line.run("groups", "describe", "--all-groups", "--offsets")

    assert "CURRENT-OFFSET" in told.stdout


def test_groups_are_listed_by_state_and_type(line: CommandLine) -> None:
    """Names are taken in any case, and asked for as they are spelled."""
    done = line.run("groups", "list", "--state", "stable, EMPTY", "--type", "Classic")

    assert done.exit_code == 0
    assert line.asked == [m.SummarizeGroupsRequest(None, ("Stable", "Empty"), b"", 2_000, 0)]


@pytest.mark.parametrize(
    ("option", "valid"),
    [
        ("--state", "Empty, PreparingRebalance, CompletingRebalance, Stable, Dead"),
        ("--type", "classic, consumer"),
    ],
)
def test_a_name_that_is_none_is_an_error_that_lists_the_valid_ones(
    option: str, valid: str, line: CommandLine
) -> None:
    """An empty list would be taken for the answer."""
    done = line.run("groups", "list", option, "stable,nonsense" if option == "--state" else "x")

    assert done.exit_code == 2
    assert f"valid: {valid}" in done.stderr
    assert line.asked == []


def test_lag_is_what_a_group_is_described_by(line: CommandLine) -> None:
    """Assigned without a commit, committed without an owner: "-" is unknown, and never 0."""
    done = line.run("groups", "describe", "g")

    assert done.exit_code == 0
    assert done.stdout.split("\n")[0].split() == [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID",
        "HOST", "CLIENT-ID",
    ]  # fmt: skip
    assert cells(done.stdout) == [
        ["g", "t", "0", "5", "9", "4", "c-1", "192.0.2.1", "driver"],
        ["g", "t", "1", "-", "9", "-", "c-1", "192.0.2.1", "driver"],
        ["g", "t", "2", "5", "-", "-", "-", "-", "-"],
    ]
    assert done.stdout == line.run("groups", "lag", "g").stdout
    assert done.stdout == line.run("groups", "describe", "g", "--offsets").stdout


def test_lag_tells_when_it_was_known_on_request(line: CommandLine) -> None:
    """An end offset of last week makes a lag of last week."""
    rows = cells(line.run("groups", "describe", "g", "--verbose").stdout)

    assert rows[0][-2:] == ["1970-01-01T00:00:01+00:00", "1970-01-01T00:00:02+00:00"]
    assert rows[2][-1] == "-"


def test_members_are_told_with_their_partitions(line: CommandLine) -> None:
    """Who has how many, and which."""
    done = line.run("groups", "describe", "g", "d", "o", "--members", "--verbose")

    assert cells(done.stdout) == [
        ["g", "c-1", "i", "192.0.2.1", "driver", "2", "t(0,1)"],
        ["d", "c-2", "-", "192.0.2.2", "other", "0", "-"],
        ["o", "c-1", "i", "192.0.2.1", "driver", "-", "-"],
    ]


def test_instance_ids_have_a_column_only_where_there_are_some(line: CommandLine) -> None:
    """As in Kafka's tool: the table is wide enough."""
    assert "GROUP-INSTANCE-ID" not in line.run("groups", "describe", "d", "--members").stdout
    assert "GROUP-INSTANCE-ID" in line.run("groups", "describe", "g", "d", "--members").stdout


def test_states_are_told_in_one_line_each(line: CommandLine) -> None:
    """All groups at a glance."""
    done = line.run("groups", "describe", "--all-groups", "--state")

    assert cells(done.stdout)[1] == ["g", "h:9310", "(1)", "range", "Stable", "1", "7", "7d"]
    assert cells(done.stdout)[0][-1] == "never"


@pytest.mark.parametrize("view", ["--offsets", "--members", "--state"])
def test_what_is_special_about_a_group_is_noted(view: str, line: CommandLine) -> None:
    """An empty table doesn't say why it is empty; scripts that read the table don't see it."""
    done = line.run("groups", "describe", "e", "p", "nobody", view)

    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "Consumer group 'nobody' does not exist.",
        "Consumer group 'e' has no active members.",
        "Warning: Consumer group 'p' is rebalancing.",
    ]


def test_what_is_special_about_many_groups_is_noted_in_one_line(line: CommandLine) -> None:
    """Nobody finds a table below 2,000 notes."""
    idle = [f"e{number}" for number in range(8)]
    line.answers[m.DescribeGroupsRequest] = lambda request: m.DescribeGroupsResponse(
        (structs.replace(GROUPS["e"], group_id=request.group_ids[0]),)
    )

    assert line.run("groups", "describe", *idle).stderr == (
        "8 consumer groups have no active members: 'e0', 'e1', 'e2', 'e3', 'e4' and 3 more.\n"
    )


@pytest.mark.parametrize("view", ["--offsets", "--members", "--state"])
def test_a_refusal_stands_alone(view: str, line: CommandLine) -> None:
    """A head without rows would say that there is something to look at; programs still get it."""
    alone = line.run("groups", "describe", "nobody", view)
    for_programs = line.run("groups", "describe", "nobody", view, "--output", "json")

    assert (alone.exit_code, alone.stdout) == (1, "")
    assert alone.stderr == "Consumer group 'nobody' does not exist.\n"
    assert (for_programs.exit_code, json.loads(for_programs.stdout)) == (1, [])


@pytest.mark.parametrize(
    "arguments",
    [
        ("describe",),
        ("describe", "g", "--all-groups"),
        ("describe", "g", "--members", "--state"),
        ("list", "--timeout", "0"),
        ("delete",),
    ],
)
def test_what_can_not_be_meant_is_a_wrong_command_line(
    arguments: tuple[str, ...], line: CommandLine
) -> None:
    """Guessing would show, or delete, something else."""
    assert line.run("groups", *arguments).exit_code == 2
    assert line.asked == []


def test_many_questions_use_one_connection(line: CommandLine) -> None:
    """A thousand groups must not be a thousand connections."""
    line.run("groups", "describe", "g", "d", "e", "--state")

    assert line.connections == 1
    assert len(line.asked) == 6


def test_names_from_clients_can_not_command_a_terminal(line: CommandLine) -> None:
    """Client ids, topics and group ids are whatever a client sends."""
    evil = "\x9b2J\u202eevil"
    member = structs.replace(DYNAMIC, client_id=evil)
    group = structs.replace(GROUPS["d"], members=(member,))
    line.answers[m.DescribeGroupsRequest] = m.DescribeGroupsResponse((group,))
    done = line.run("groups", "describe", "d", "--members")
    assert "\\x9b2J\\u202eevil" in done.stdout
    line.answers[m.DescribeGroupsRequest] = described
    missing = line.run("groups", "describe", evil)

    for text in (done.output, missing.output):
        assert "\x9b" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("list",),
            {
                "group": "d",
                "type": "classic",
                "state": "Stable",
                "protocol_type": "x",
                "members": 3,
                "unknown": 1,
                "lag": 1200,
                "earlier_lag": 1500,
                "earlier_ms": 150_000,
            },
        ),
        (
            ("describe", "g", "--members"),
            {
                "group": "g",
                "consumer_id": "c-1",
                "group_instance_id": "i",
                "host": "192.0.2.1",
                "client_id": "driver",
                "partitions": 2,
                "assignment": {"t": [0, 1]},
            },
        ),
        (
            ("lag", "g"),
            {
                "group": "g",
                "topic": "t",
                "partition": 0,
                "current_offset": 5,
                "log_end_offset": 9,
                "lag": 4,
                "consumer_id": "c-1",
                "host": "192.0.2.1",
                "client_id": "driver",
                "committed": "1970-01-01T00:00:01+00:00",
                "end_reported": "1970-01-01T00:00:02+00:00",
            },
        ),
    ],
)
def test_programs_get_json(
    arguments: tuple[str, ...], expected: dict[str, Any], line: CommandLine
) -> None:
    """Nobody should have to parse a table."""
    done = line.run("groups", *arguments, "--output", "json")

    assert json.loads(done.stdout)[0] == expected


def test_what_is_not_known_is_null_in_json(line: CommandLine) -> None:
    """A 0 or a -1 would be added up by somebody."""
    rows = json.loads(line.run("groups", "lag", "g", "--output", "json").stdout)

    assert [row["lag"] for row in rows] == [4, None, None]
    assert rows[2]["consumer_id"] is None


WHY = m.Rebalance(
    3, 0, "session expired", "c-1", None, "d", "h", "no heartbeat for 10.2 s", 4, 5, 10, 20, 2,
    "stable", (m.LateMember("c-2", "d", "h", "join", 900, True),),
)  # fmt: skip


def test_rebalances_say_why(line: CommandLine) -> None:
    """The question that Kafka's tools leave open."""
    line.answers[m.DescribeRebalancesRequest] = m.DescribeRebalancesResponse(0, None, "g", (WHY,))
    told = line.run("groups", "rebalances", "g").stdout
    (read,) = json.loads(line.run("groups", "rebalances", "g", "--output", "json").stdout)

    for part in ("1970-01-01T00:00:00+00:00", "4->5", "c-2", "no heartbeat for 10.2 s"):
        assert part in told
    assert (read["new_generation"], read["late"][0]["waited_ms"]) == (5, 900)


@pytest.mark.parametrize(
    ("trigger", "reason", "why"),
    [
        ("session expired", "no heartbeat for 10.2 s", "session expired: no heartbeat for 10.2 s"),
        ("session expired", "session expired after all", "session expired after all"),
        ("session expired", "", "session expired"),
        ("member left", "left: too slow", "member left: too slow"),
        ("member left", "left (and 1 more)", "member left (and 1 more)"),
        ("member left", "leftovers", "member left: leftovers"),
    ],
)
def test_what_happened_is_said_once(trigger: str, reason: str, why: str, line: CommandLine) -> None:
    """Saying "member joined" twice makes people look for a difference."""
    rebalance = structs.replace(WHY, trigger=trigger, reason=reason)
    answer = m.DescribeRebalancesResponse(0, None, "g", (rebalance,))
    line.answers[m.DescribeRebalancesRequest] = answer

    told = line.run("groups", "rebalances", "g").stdout.splitlines()
    assert told[1].endswith(f"  {why}")


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (m.DescribeRebalancesResponse(69, "no", "g", ()), "Consumer group 'g' does not exist."),
        (m.DescribeRebalancesResponse(14, None, "g", ()), "is being loaded"),
        (m.BareError(1006), "RESPONSE_TOO_LARGE"),
    ],
)
def test_an_error_ends_with_1_and_words(
    response: m.Response, words: str, line: CommandLine
) -> None:
    """For people and for scripts."""
    line.answers[m.DescribeRebalancesRequest] = response
    done = line.run("groups", "rebalances", "g")

    assert done.exit_code == 1
    assert words in done.stderr


def test_topics_are_registered_listed_and_deleted(line: CommandLine) -> None:
    """By hand, where no program knows the source."""
    registered = m.RegisterTopicsResponse(0, (m.RegisteredTopic("t", 0, None, 6),))
    shrunk = m.RegisterTopicsResponse(0, (m.RegisteredTopic("t", 37, "can't shrink", 6),))
    listed = m.DescribeTopicsResponse(0, None, (m.DescribedTopic("t", 0, 6, (), ()),), False)
    line.answers[m.RegisterTopicsRequest] = registered
    line.answers[m.DescribeTopicsRequest] = listed
    line.answers[m.DeleteTopicsRequest] = m.DeleteTopicsResponse(0, (m.DeletedTopic("t", 0),))
    line.answers[m.OffsetFetchRequest] = lambda request: m.OffsetFetchResponse(
        (m.GroupOffsets(request.groups[0].group_id, 0, ()),)
    )

    assert line.run("topics", "register", "t", "6").output == "ok\n"
    line.answers[m.RegisterTopicsRequest] = shrunk
    refused = line.run("topics", "register", "t", "3")
    assert (refused.exit_code, "can't shrink" in refused.stderr) == (1, True)
    assert cells(line.run("topics", "list").output) == [["t", "6", "0"]]
    assert line.run("topics", "delete", "t", "--yes").output == "ok\n"


def test_a_topic_is_described_by_partition(line: CommandLine) -> None:
    """What is reported for each, and when: a lag of "-" has its reason here."""
    found = m.DescribedTopic("t", 0, 2, (), (m.EndOffset(1, 1_200, 2_000),))
    line.answers[m.DescribeTopicsRequest] = m.DescribeTopicsResponse(0, None, (found,), False)

    assert cells(line.run("topics", "describe", "t").output) == [
        ["t", "0", "-", "-"],
        ["t", "1", "1200", "1970-01-01T00:00:02+00:00"],
    ]


@pytest.mark.parametrize(
    ("error", "known", "words"),
    [
        (0, 6, "ok"),
        (3, 6, "Topic 't' has 6 partitions, and none with the number 9."),
        (3, -1, "Topic 't' is not registered."),
        (1004, 6, "STORAGE_FULL"),
    ],
)
def test_the_end_of_a_partition_is_reported_by_hand(
    error: int, known: int, words: str, line: CommandLine
) -> None:
    """For scripts, where no program does it."""
    done = m.TopicResult("t", (m.PartitionResult(9, error),))
    found = m.DescribedTopic("t", 3 if known < 0 else 0, known, (), ())
    line.answers[m.ReportEndOffsetsRequest] = m.ReportEndOffsetsResponse(0, (done,))
    line.answers[m.DescribeTopicsRequest] = m.DescribeTopicsResponse(0, None, (found,), False)
    result = line.run("topics", "report-end", "t", "9", "1200")

    assert words in result.output
    assert result.exit_code == bool(error)
    ends = (m.TopicEnds("t", (m.PartitionEnd(9, 1200),)),)
    assert line.asked[0] == m.ReportEndOffsetsRequest(ends)


@pytest.mark.parametrize("arguments", [("-1", "5"), ("0", "-5"), ("x", "5"), ("0", str(2**63))])
def test_an_end_that_is_none_is_a_wrong_command_line(
    arguments: tuple[str, ...], line: CommandLine
) -> None:
    """Nothing is asked for it."""
    assert line.run("topics", "report-end", "t", *arguments).exit_code == 2
    assert line.asked == []


def test_nobody_there_is_said_in_words() -> None:
    """The most frequent of all failures, with a status of its own: nothing was refused."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    done = CliRunner().invoke(main, ["groups", "list", "--at", f"127.0.0.1:{port}"])

    assert done.exit_code == 69
    assert "refused" in done.stderr


def test_an_end_in_the_middle_names_the_group(line: CommandLine) -> None:
    """So that one knows which ones were looked at."""
    line.answers[m.DescribeGroupsRequest] = ConnectionResetError("gone")
    done = line.run("groups", "describe", "g", "d")

    assert done.exit_code == 69
    assert done.stderr == "g: No coordinator answers at 127.0.0.1:1: gone\n"
