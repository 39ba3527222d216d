"""The commands that change groups, except for the reset of offsets."""

import socket
from typing import Any

import pytest
from msgspec import structs

from coordinator.cli.common import retention_ms, retention_text, topic_scope
from protocol import messages as m
from protocol.messages import PartitionResult, TopicResult
from tests.fakes.command_line import CommandLine, cells

EMPTY = m.DescribedGroup(0, None, "g", "Empty", "consumer", "", 3, (), 604_800_000)
GONE = m.DescribedGroup(69, "not found", "nobody", "Dead", "", "", -1, ())


def described(request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
    """Know all but nobody, without members."""
    (group_id,) = request.group_ids
    found = structs.replace(EMPTY, group_id=group_id)
    return m.DescribeGroupsResponse((GONE if group_id == "nobody" else found,))


def fetched(request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
    """Return two offsets of t and one of u."""
    both = tuple(m.PartitionOffset(p, 5, -1, "", 0) for p in (0, 1))
    topics = (m.TopicOffsets("t", both), m.TopicOffsets("u", both[:1]))
    return m.OffsetFetchResponse((m.GroupOffsets(request.groups[0].group_id, 0, topics),))


def forgotten(request: m.OffsetDeleteRequest) -> m.OffsetDeleteResponse:
    """Refuse what is subscribed to, which is u."""
    return m.OffsetDeleteResponse(
        0,
        tuple(
            TopicResult(
                t.topic,
                tuple(PartitionResult(p, 86 if t.topic == "u" else 0) for p in t.partitions),
            )
            for t in request.topics
        ),
    )


def deleted(request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
    """Delete all but busy."""
    (group_id,) = request.group_ids
    return m.DeleteGroupsResponse((m.DeletedGroup(group_id, 68 if group_id == "busy" else 0),))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line with a coordinator that does most of it."""
    groups = tuple(m.ListedGroup(g, "consumer", "Empty", "classic") for g in ("h", "busy", "g"))
    return CommandLine(
        monkeypatch,
        {
            m.ListGroupsRequest: m.ListGroupsResponse(0, groups),
            m.DescribeGroupsRequest: described,
            m.OffsetFetchRequest: fetched,
            m.OffsetDeleteRequest: forgotten,
            m.DeleteGroupsRequest: deleted,
            m.AlterGroupRetentionRequest: m.AlterGroupRetentionResponse(0),
        },
    )


def test_groups_are_deleted_each_for_itself(line: CommandLine) -> None:
    """One that is in use must not keep the others, and must not be missed among them."""
    done = line.run("groups", "delete", "--all-groups", "--yes")

    assert done.exit_code == 1
    assert done.stdout == "g: deleted\nh: deleted\n"
    assert done.stderr == "busy: The group still has members. (NON_EMPTY_GROUP)\n"
    assert line.run("groups", "delete", "g", "g", "--yes").stdout == "g: deleted\n"


def test_a_broken_connection_ends_the_deleting(line: CommandLine) -> None:
    """What was deleted is told, and which group is in doubt."""
    line.answers[m.DeleteGroupsRequest] = lambda r: (
        ConnectionResetError("gone") if r.group_ids == ("h",) else deleted(r)
    )
    done = line.run("groups", "delete", "g", "h", "i", "--yes")

    assert done.exit_code == 69
    told = "h: No coordinator answers at 127.0.0.1:1: gone\n"
    assert (done.stdout, done.stderr) == ("g: deleted\n", told)


def test_offsets_of_single_partitions_are_deleted(line: CommandLine) -> None:
    """And what was not there is not claimed to be deleted."""
    done = line.run("groups", "delete-offsets", "g", "--topic", "t:1,7", "--yes")

    assert done.exit_code == 0
    assert cells(done.stdout) == [["t", "1", "deleted"], ["t", "7", "nothing", "was", "committed"]]
    assert line.asked[-1] == m.OffsetDeleteRequest("g", (m.TopicPartitions("t", (1, 7)),))


def test_offsets_of_whole_topics_are_deleted(line: CommandLine) -> None:
    """Without numbers it is all that are committed; a topic with none is a mistyped one."""
    topics = [word for topic in ("t", "u", "v") for word in ("--topic", topic)]
    done = line.run("groups", "delete-offsets", "g", *topics, "--yes")

    assert done.exit_code == 1
    assert [row[:3] for row in cells(done.stdout)] == [
        ["t", "0", "deleted"], ["t", "1", "deleted"], ["u", "0", "Members"],
    ]  # fmt: skip
    assert "GROUP_SUBSCRIBED_TO_TOPIC" in done.stdout
    assert done.stderr == "g: nothing is committed of topic 'v'.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("delete-offsets", "nobody", "--topic", "t"),
        ("retention", "nobody", "--set", "never"),
    ],
)
def test_a_group_that_is_not_there_is_not_made(
    arguments: tuple[str, ...], line: CommandLine
) -> None:
    """A mistyped name is told as such."""
    done = line.run("groups", *arguments)

    assert done.exit_code == 1
    assert done.stderr == "Consumer group 'nobody' does not exist.\n"
    assert [type(r) for r in line.asked] == [m.DescribeGroupsRequest, m.ListGroupsRequest]


@pytest.mark.parametrize(
    ("text", "kept_ms"),
    [("14d", 1_209_600_000), ("36h", 129_600_000), ("1w", 604_800_000), ("90m", 5_400_000),
     ("5s", 5_000), ("1ms", 1), ("never", -1), ("default", None)],
)  # fmt: skip
def test_retention_is_set_in_words(text: str, kept_ms: int | None, line: CommandLine) -> None:
    """Nobody should have to count milliseconds."""
    done = line.run("groups", "retention", "g", "--set", text, "--yes")

    assert done.stdout == "g: 7d\n"
    assert line.of_type(m.AlterGroupRetentionRequest) == [
        m.AlterGroupRetentionRequest("g", kept_ms)
    ]


@pytest.mark.parametrize(
    "text", ["", "14", "0d", "-1d", "1.5h", "soon", "99999999999999999d", "\u0661d"]
)
def test_a_retention_that_is_none_changes_nothing(text: str, line: CommandLine) -> None:
    """Least of all to 0, which would expire everything."""
    done = line.run("groups", "retention", "g", f"--set={text}")

    assert done.exit_code == 2
    assert "14d" in done.stderr
    assert line.asked == []


def test_retention_alone_only_tells(line: CommandLine) -> None:
    """Looking changes nothing."""
    assert line.run("groups", "retention", "g").stdout == "g: 7d\n"
    assert line.of_type(m.AlterGroupRetentionRequest) == []


@pytest.mark.parametrize(
    ("kept_ms", "words"),
    [(-1, "never"), (0, "0ms"), (1, "1ms"), (1_500, "1500ms"), (90_000, "90s"),
     (5_400_000, "90m"), (129_600_000, "36h"), (604_800_000, "7d")],
)  # fmt: skip
def test_retention_is_told_as_it_can_be_set(kept_ms: int, words: str) -> None:
    """What is read can be typed again."""
    assert retention_text(kept_ms) == words
    if kept_ms:
        assert retention_ms(words) == kept_ms


@pytest.mark.parametrize(
    ("texts", "scope"),
    [
        (["t"], {"t": None}),
        (["t:0,1", "t:3", "u:0"], {"t": {0, 1, 3}, "u": {0}}),
        (["t:0", "t"], {"t": None}),
        (["t", "t:0"], {"t": None}),
        (["a:1:2"], {"a:1": {2}}),
        (["a:1:"], {"a:1": None}),
        (["a:b"], {"a:b": None}),
        (["t:0-3"], {"t:0-3": None}),
    ],
)
def test_topics_and_partitions_are_read(texts: list[str], scope: dict[str, Any]) -> None:
    """Names may have colons, and several options add up."""
    assert topic_scope(texts) == scope


@pytest.mark.parametrize("text", ["", "t:2147483648"])
def test_what_names_no_topic_or_partition_is_refused(text: str, line: CommandLine) -> None:
    """Before anybody is asked."""
    assert line.run("groups", "delete-offsets", "g", "--topic", text).exit_code == 2
    assert line.asked == []


def test_a_timeout_is_in_seconds(monkeypatch: pytest.MonkeyPatch, line: CommandLine) -> None:
    """Of every command, whatever unit other tools have."""
    waits: list[float] = []

    def refuse(_: object, *, timeout: float) -> None:
        waits.append(timeout)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", refuse)

    done = line.run("groups", "list", "--timeout", "1.5")
    assert (done.exit_code, waits) == (69, [1.5])
    told = "No coordinator answers at 127.0.0.1:1: nothing came within 1.5 s\n"
    assert done.stderr == told
