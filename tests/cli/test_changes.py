"""What changes something shows what it will do, and asks."""

import json

import pytest
from click.testing import CliRunner, Result

from coordinator.cli import common
from coordinator.cli.main import main
from protocol import messages as m
from tests.fakes.command_line import CommandLine, cells
from tests.fakes.group_memory import Memory


@pytest.fixture
def memory() -> Memory:
    """Return what the coordinator knows."""
    return Memory()


@pytest.fixture
def line(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line with a coordinator over *memory*."""
    return CommandLine(
        monkeypatch,
        {
            **memory.answers(),
            m.DeleteGroupsRequest: lambda r: m.DeleteGroupsResponse(
                tuple(m.DeletedGroup(group_id, 0) for group_id in r.group_ids)
            ),
            m.DeleteTopicsRequest: lambda r: m.DeleteTopicsResponse(
                0, tuple(m.DeletedTopic(topic, 0) for topic in r.topics)
            ),
            m.AlterGroupRetentionRequest: m.AlterGroupRetentionResponse(0),
        },
    )


CHANGING = [
    ("groups", "delete", "g", "h"),
    ("groups", "delete-offsets", "g", "--topic", "t"),
    ("groups", "reset-offsets", "g", "--all-topics", "--to-offset", "1"),
    ("groups", "retention", "g", "--set", "never"),
    ("topics", "delete", "t"),
]
ASKING = {
    m.ListGroupsRequest,
    m.DescribeGroupsRequest,
    m.OffsetFetchRequest,
    m.DescribeTopicsRequest,
}


def typed(answer: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Result:
    """Run a command on a terminal where somebody types *answer*."""
    monkeypatch.setattr(common, "_is_somebody_there", lambda: True)
    return CliRunner().invoke(main, [*arguments, "--at", "127.0.0.1:1"], input=answer)


@pytest.mark.parametrize("arguments", CHANGING, ids=" ".join)
def test_without_a_terminal_and_a_yes_it_is_a_dry_run(
    arguments: tuple[str, ...], line: CommandLine
) -> None:
    """A script that forgot to say so gets a status of its own, and the rows."""
    done = line.run(*arguments)

    assert done.exit_code == 3
    assert done.stderr == "Dry run: nothing was changed; --yes does it.\n"
    assert cells(done.stdout)
    assert {type(request) for request in line.asked} <= ASKING


@pytest.mark.parametrize("arguments", CHANGING, ids=" ".join)
@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_a_person_who_does_not_say_yes_changes_nothing(
    answer: str, arguments: tuple[str, ...], line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enter is no yes, and neither is the end of the input."""
    done = typed(answer, arguments, monkeypatch)

    assert done.exit_code == 3
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "Nothing was changed."
    assert {type(request) for request in line.asked} <= ASKING


def test_a_person_sees_the_rows_and_the_question_and_says_yes(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are on the standard error: what is on the standard output is the result, once."""
    done = typed("y\n", ("groups", "delete", "g", "h", "--output", "json"), monkeypatch)

    assert done.exit_code == 0
    assert [row["status"] for row in json.loads(done.stdout)] == ["deleted", "deleted"]
    for part in (
        "GROUP  STATE",
        "g      Empty  3",
        "Delete 2 groups and what was committed there? [y/N]",
    ):
        assert part in done.stderr


def test_what_can_not_be_done_is_told_and_makes_a_dry_run_fail(line: CommandLine) -> None:
    """Who tries it before a release wants to know now."""
    done = line.run("groups", "delete", "g", "busi")

    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "Consumer group 'busi' does not exist. Did you mean 'busy'?",
        "Dry run: nothing was changed; --yes does it.",
    ]
    assert cells(done.stdout) == [["g", "Empty", "3"]]


def test_where_nothing_is_left_to_change_nobody_is_asked(line: CommandLine) -> None:
    """A question about nothing would be answered without a thought, and so would the next one."""
    gone = line.run("groups", "delete", "nobody")
    same = line.run("groups", "reset-offsets", "g", "--all-topics", "--to-current")

    assert (gone.exit_code, gone.stdout) == (1, "")
    assert (same.exit_code, same.stderr) == (0, "")
    assert {row[-1] for row in cells(same.stdout)} == {"unchanged"}


def test_a_topic_is_deleted_with_what_groups_have_committed_of_it(line: CommandLine) -> None:
    """Whose offsets go is what one wants to know first."""
    done = line.run("topics", "delete", "t")
    misspelt = line.run("topics", "delete", "tt")

    assert cells(done.stdout) == [["t", "3", "g", "2"], ["t", "3", "h", "1"]]
    assert misspelt.exit_code == 1
    assert misspelt.stderr == "Topic 'tt' is not registered. Did you mean 't'?\n"


def test_a_question_about_many_rows_shows_some_of_them(
    line: CommandLine, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand lines would push the question's meaning off every terminal."""
    memory.counts["big"] = 5_000
    reset = ("groups", "reset-offsets", "g", "--topic", "big", "--to-offset", "1")
    done = typed("n\n", reset, monkeypatch)

    assert "and 4900 more\nReset 5000 offsets of 1 group? [y/N]" in done.stderr
    assert done.stderr.count("\n") < 110


@pytest.mark.parametrize("name", ["[red]x[/]", "\x1b[2J", "\u202eevil", "x" * 10_000])
def test_a_question_about_a_hostile_name_shows_it_harmless(
    name: str, line: CommandLine, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a name could write the question."""
    memory.states[name] = "Empty"
    done = typed("n\n", ("groups", "retention", name, "--set", "never"), monkeypatch)

    question = done.stderr.splitlines()[-2]
    assert question.isprintable()
    assert len(question) < 250


@pytest.mark.parametrize("option", ["--execute", "--dry-run"])
def test_the_words_of_other_tools_are_answered_with_ours(option: str, line: CommandLine) -> None:
    """Kafka's tool has them, and hands have learnt them."""
    done = line.run("groups", "reset-offsets", "g", "--all-topics", "--to-latest", option)

    assert done.exit_code == 2
    assert "--yes" in done.stderr
    assert line.asked == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("describe", "buzy"), "Consumer group 'buzy' does not exist. Did you mean 'busy'?"),
        (("delete-offsets", "g", "--topic", "tt"), "nothing is committed of topic 'tt'. Did you"),
        (
            ("reset-offsets", "g", "--topic", "tt", "--to-offset", "1"),
            "Topic 'tt' is neither registered nor committed. Did you mean 't'?",
        ),
    ],
)
def test_a_misspelt_name_is_answered_with_one_that_is_there(
    arguments: tuple[str, ...], told: str, line: CommandLine
) -> None:
    """Only names that are there are ever suggested."""
    done = line.run("groups", *arguments)

    assert done.exit_code == 1
    assert told in done.stderr


def test_a_suggestion_that_can_not_be_had_keeps_no_answer_back(line: CommandLine) -> None:
    """The group is missing whether the others can be listed or not."""
    line.answers[m.ListGroupsRequest] = m.BareError(1006)
    done = line.run("groups", "describe", "buzy")

    assert done.stderr == "Consumer group 'buzy' does not exist.\n"


def test_a_topic_that_is_unknown_is_told_where_topics_can_not_be_listed(
    line: CommandLine,
) -> None:
    """So it is with a topic: what the listing fails of is no answer to the question."""
    found = m.DescribeTopicsResponse(0, None, (m.DescribedTopic("tt", 3, -1, (), ()),), False)
    line.answers[m.DescribeTopicsRequest] = lambda request: (
        m.BareError(1006) if request.topics is None else found
    )
    done = line.run("groups", "reset-offsets", "g", "--topic", "uu", "--to-offset", "1")

    assert done.exit_code == 1
    assert done.stderr == (
        "g: Topic 'uu' is neither registered nor committed; "
        "name its partitions, as in --topic uu:0,1\n"
    )
