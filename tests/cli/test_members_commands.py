"""``members drain`` and ``members remove``."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from coordinator.cli import members
from protocol import messages as m
from protocol.consumer import Assignment, encode_assignment
from protocol.partition import TopicPartition
from tests.fakes.command_line import Clock, CommandLine, cells


def member(
    member_id: str, client_id: str, owned: int = 0, instance: str | None = None
) -> m.DescribedMember:
    """Return a member that owns so many partitions."""
    partitions = tuple(TopicPartition("t", n) for n in range(owned))
    given = encode_assignment(Assignment(partitions))
    return m.DescribedMember(member_id, instance, client_id, "h", b"", given)


def described(*found: m.DescribedMember) -> m.DescribeGroupsResponse:
    """Return the group g with these members."""
    group = m.DescribedGroup(0, None, "g", "Stable", "consumer", "range", 3, found)
    return m.DescribeGroupsResponse((group,))


def drained(**found: bool) -> m.DrainMemberResponse:
    """Return which members own nothing any more."""
    return m.DrainMemberResponse(0, tuple(m.DrainedMember(i, d) for i, d in found.items()))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line with a group of two, one of them static."""
    monkeypatch.setattr(members, "time", Clock())
    found = described(member("a-1", "loader", 2), member("b-1", "writer", 1, "i"))
    nobody = m.DescribedGroup(69, "no", "nobody", "Dead", "", "", -1, ())
    return CommandLine(
        monkeypatch,
        {
            m.DescribeGroupsRequest: lambda r: (
                m.DescribeGroupsResponse((nobody,)) if r.group_ids == ("nobody",) else found
            ),
            m.ListGroupsRequest: m.ListGroupsResponse(0, ()),
        },
    )


def one_after_the_other(answers: Sequence[Any]) -> Any:
    """Return an answer that changes; the last one stays."""
    left: Iterator[Any] = iter(answers)
    latest = [None]

    def answer(_request: object) -> Any:
        latest[0] = next(left, latest[0])
        return latest[0]

    return answer


def test_a_drain_waits_until_nothing_is_owned(line: CommandLine) -> None:
    """And tells how far it is, each change once."""
    line.answers[m.DrainMemberRequest] = one_after_the_other(
        [drained(**{"a-1": False})] * 3 + [drained(**{"a-1": True})]
    )
    done = line.run("members", "drain", "g", "loader", "--yes")

    assert (done.exit_code, done.stdout) == (0, "a-1: drained\n")
    assert done.stderr == "a-1 still owns 2 partitions\n"
    assert line.of_type(m.DrainMemberRequest) == [m.DrainMemberRequest("g", "loader")] * 4


def test_a_drain_that_takes_too_long_is_told(line: CommandLine) -> None:
    """The mark stays, so that one may go on waiting."""
    line.answers[m.DrainMemberRequest] = drained(**{"a-1": False})
    done = line.run("members", "drain", "g", "loader", "--yes", "--wait", "2")

    assert (done.exit_code, done.stdout) == (1, "a-1: still owns 2 partitions\n")
    assert "Not done within 2 s. They stay asked" in done.stderr
    assert len(line.of_type(m.DrainMemberRequest)) == 5


def test_who_stops_waiting_for_a_drain_is_told_that_it_goes_on(
    line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C takes nothing back, and "Aborted!" would say so."""

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("coordinator.cli.members.time.sleep", interrupted)
    line.answers[m.DrainMemberRequest] = drained(**{"a-1": False})
    done = line.run("members", "drain", "g", "loader", "--yes")

    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "a-1 still owns 2 partitions",
        "",
        "They stay asked: the same command goes on waiting.",
    ]


@pytest.mark.parametrize("error", [25, 69])
def test_a_member_that_leaves_meanwhile_is_done(line: CommandLine, error: int) -> None:
    """It owns nothing any more, which is what was wanted."""
    line.answers[m.DrainMemberRequest] = one_after_the_other(
        [drained(**{"a-1": False}), m.DrainMemberResponse(error, ())]
    )
    done = line.run("members", "drain", "g", "loader", "--yes")

    assert (done.exit_code, done.stdout) == (0, "a-1: left the group\n")


def test_a_drain_shows_first_what_it_is_about(line: CommandLine) -> None:
    """Nobody is asked for anything in a dry run."""
    done = line.run("members", "drain", "g", "loader")

    assert (done.exit_code, line.of_type(m.DrainMemberRequest)) == (3, [])
    assert cells(done.stdout) == [["a-1", "-", "h", "loader", "2"]]


def test_a_drain_of_all_leaves_partitions_without_an_owner(line: CommandLine) -> None:
    """That is said before it is done."""
    line.answers[m.DescribeGroupsRequest] = described(member("a-1", "loader"))
    done = line.run("members", "drain", "g", "loader")

    assert done.stderr.startswith("Nobody else is in the group: ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("drain", "g", "loade"), "g: no member has the client id 'loade'. Did you mean 'loader'?"),
        (("drain", "nobody", "x"), "Consumer group 'nobody' does not exist."),
        (("remove", "nobody", "x"), "Consumer group 'nobody' does not exist."),
        (("remove", "g", "a-2"), "g: there is no member 'a-2'. Did you mean 'a-1'?"),
        (
            ("remove", "g", "--instance", "x" * 10_000),
            f"g: there is no static member '{'x' * 100}…'.",
        ),
        (("drain", "g", "\x1b[2J"), r"g: no member has the client id '\x1b[2J'."),
    ],
    ids=range(6),
)
def test_who_is_not_there_is_told(line: CommandLine, arguments: tuple[str, ...], said: str) -> None:
    """With the names that are near, and none that a terminal would obey."""
    done = line.run("members", *arguments, "--yes")

    assert (done.exit_code, done.stderr) == (1, f"{said}\n")


def test_members_are_removed_together(line: CommandLine) -> None:
    """One rebalance for all of them, and each that can't be is named."""
    line.answers[m.LeaveGroupRequest] = lambda r: m.LeaveGroupResponse(
        0,
        tuple(
            m.LeftMember(one.member_id, one.group_instance_id, 25 * bool(one.member_id), None)
            for one in r.members
        ),
    )
    arguments = ("members", "remove", "g", "a-1", "--instance", "i", "--instance", "i")
    dry = line.run(*arguments)
    done = line.run(*arguments, "--reason", "node gone", "--yes")

    assert dry.exit_code == 3
    assert cells(dry.stdout) == [["a-1", "-", "h", "loader", "2"], ["b-1", "i", "h", "writer", "1"]]
    assert done.exit_code == 1
    first, second = done.stdout.splitlines()
    assert "(UNKNOWN_MEMBER_ID)" in first
    assert second == "i: removed"
    (asked,) = line.of_type(m.LeaveGroupRequest)
    assert asked.members == (
        m.LeavingMember("a-1", None, "node gone"),
        m.LeavingMember("", "i", "node gone"),
    )


def test_a_member_that_is_named_twice_is_removed_once(line: CommandLine) -> None:
    """By its id and by its instance id; the second time it would be unknown."""
    line.answers[m.LeaveGroupRequest] = m.LeaveGroupResponse(0, (m.LeftMember("", "i", 0, None),))
    done = line.run("members", "remove", "g", "b-1", "--instance", "i", "--yes")

    assert (done.exit_code, done.stdout) == (0, "i: removed\n")
    (asked,) = line.of_type(m.LeaveGroupRequest)
    assert asked.members == (m.LeavingMember("", "i", "removed by an operator"),)


def test_nobody_is_removed_for_nothing(line: CommandLine) -> None:
    """A command line without a name is a mistake."""
    assert line.run("members", "remove", "g", "--yes").exit_code == 2
