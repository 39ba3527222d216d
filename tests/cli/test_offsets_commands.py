"""``offsets watch`` and ``offsets export``."""

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.cli import offsets
from protocol import messages as m
from tests.fakes.command_line import CommandLine, cells
from tests.fakes.offsets_log import OffsetsLog


@pytest.fixture
def log() -> OffsetsLog:
    """Return a log with some offsets."""
    log = OffsetsLog()
    log.commit("g", "t", 0, 50, "m,\x1b[2J")
    log.commit("g", "t", 1, 60)
    log.commit("h", "u", 0, 7)
    return log


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, log: OffsetsLog) -> CommandLine:
    """Return a command line with a coordinator that has the log."""

    def described(request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        (group,) = request.group_ids
        error = 69 if group == "nobody" else 0
        state = "Dead" if error else "Empty"
        found = m.DescribedGroup(error, None, group, state, "consumer", "", 1, ())
        return m.DescribeGroupsResponse((found,))

    listed = m.ListGroupsResponse(0, (m.ListedGroup("g", "consumer", "Empty", "classic"),))
    return CommandLine(
        monkeypatch,
        {
            **log.answers,
            m.DescribeGroupsRequest: described,
            m.ListGroupsRequest: listed,
        },
    )


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what says what happens after each round of a watch; then comes Ctrl-C."""

    def script(*steps: Callable[[], object]) -> None:
        left = iter(steps)

        def pause(_seconds: float) -> None:
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        monkeypatch.setattr(offsets, "pause", pause)

    return script


def test_changes_are_printed_as_they_come(
    line: CommandLine, log: OffsetsLog, rounds: Callable[..., None]
) -> None:
    """From now on, one line each, until Ctrl-C, which is how it ends."""

    def removals() -> None:
        log.remove("g", "t", 0)
        log.delete("a-rather-long-name")

    rounds(
        lambda: log.commit("g", "t", 0, 51),
        removals,
    )
    done = line.run("offsets", "watch")

    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        (
            "TIME                       KIND           GROUP         TOPIC         PARTITION  "
            "OFFSET    METADATA"
        ),
        "1970-01-01T00:00:01+00:00  committed      g             t             0          51",
        "1970-01-01T00:00:01+00:00  removed        g             t             0          -",
        "1970-01-01T00:00:01+00:00  group deleted  a-rather-long-name  -             -          -",
    ]


def test_from_the_beginning_what_there_is_comes_first(
    line: CommandLine, log: OffsetsLog, rounds: Callable[..., None]
) -> None:
    """With names and metadata that a terminal must not obey."""
    rounds(lambda: log.commit("g", "t", 1, 61))
    done = line.run("offsets", "watch", "--from", "beginning", "--group", "g")

    assert [row[1:] for row in cells(done.stdout)] == [
        ["found", "g", "t", "0", "50", r"m,\x1b[2J"],
        ["found", "g", "t", "1", "60"],
        ["committed", "g", "t", "1", "61"],
    ]


def test_programs_get_an_object_a_line(
    line: CommandLine, log: OffsetsLog, rounds: Callable[..., None]
) -> None:
    """With everything that is known; or CSV with the same names."""
    rounds(lambda: log.delete("h"))
    found = line.run("offsets", "watch", "--from", "beginning", "--output", "json").stdout
    lines = [json.loads(text) for text in found.splitlines()]

    assert [one["kind"] for one in lines] == ["scan", "found", "found", "found", "group deleted"]
    assert lines[1] == {
        "time": "1970-01-01T00:00:01+00:00",
        "kind": "found",
        "group_id": "g",
        "topic": "t",
        "partition": 0,
        "offset": 50,
        "leader_epoch": -1,
        "metadata": "m,\x1b[2J",
        "offsets_partition": 0,
        "position": 3,
    }
    rounds()
    text = line.run("offsets", "watch", "--from", "beginning", "--output", "csv").stdout
    (_, row, _) = csv.DictReader(io.StringIO(text))
    assert {k: v for k, v in row.items() if v} == {
        k: str(v) for k, v in lines[1].items() if k != "position"
    } | {"position": "4"}


def test_it_outlives_the_coordinator(
    line: CommandLine, log: OffsetsLog, rounds: Callable[..., None]
) -> None:
    """It says once that it is away, and goes on where it was."""
    describe = log.answers[m.DescribeNodeRequest]

    def away() -> None:
        line.answers[m.DescribeNodeRequest] = ConnectionRefusedError(111, "Connection refused")
        log.commit("g", "t", 0, 51)

    def loads() -> None:
        line.answers[m.DescribeNodeRequest] = m.BareError(14)

    def back() -> None:
        line.answers[m.DescribeNodeRequest] = describe

    rounds(away, lambda: None, loads, back, lambda: log.commit("g", "t", 0, 52))
    done = line.run("offsets", "watch")

    assert done.exit_code == 0
    assert [row[5] for row in cells(done.stdout)] == ["51", "52"]
    first, second = done.stderr.splitlines()
    assert "Connection refused" in first
    assert first.endswith("; trying again")
    assert second.startswith("The coordinator is back after ")


def test_who_never_was_there_is_not_waited_for(
    line: CommandLine, rounds: Callable[..., None]
) -> None:
    """It is a wrong address, rather."""
    rounds()
    line.answers[m.DescribeNodeRequest] = ConnectionRefusedError(111, "Connection refused")
    done = line.run("offsets", "watch")

    assert (done.exit_code, done.stdout) == (69, "")


def test_a_reader_that_goes_ends_it(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while nothing changes: `watch | head` must not stay for ever."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        offsets.pause(0.001)
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            offsets.pause(60)


def test_an_export_is_a_file_of_offsets(line: CommandLine, log: OffsetsLog, tmp_path: Path) -> None:
    """Exact, whole, and named only when it is whole."""
    path = tmp_path / "offsets.csv"
    done = line.run("offsets", "export", "--all-groups", "--file", str(path))

    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"3 offsets of 2 groups in {path}\n"
    assert path.read_text(encoding="utf-8") == (
        "group,topic,partition,offset,leader_epoch,metadata\n"
        'g,t,0,50,-1,"m,\x1b[2J"\ng,t,1,60,-1,\nh,u,0,7,-1,\n'
    )
    assert [one.name for one in tmp_path.iterdir()] == ["offsets.csv"]
    line.answers[m.ScanOffsetsRequest] = ConnectionResetError("gone")
    assert line.run("offsets", "export", "--all-groups", "--file", str(path)).exit_code == 69
    assert [one.name for one in tmp_path.iterdir()] == ["offsets.csv"]
    assert "g,t,1,60" in path.read_text(encoding="utf-8")


def test_some_groups_and_topics_are_exported(line: CommandLine) -> None:
    """What isn't there is told, and doesn't keep the rest."""
    done = line.run("offsets", "export", "g", "nobody", "--output", "json", "--topic", "t")

    assert done.exit_code == 1
    assert [json.loads(text)["offset"] for text in done.stdout.splitlines()] == [50, 60]
    assert "Consumer group 'nobody' does not exist." in done.stderr
    empty = line.run("offsets", "export", "h", "--topic", "t")
    assert (empty.exit_code, empty.stderr) == (0, "h: nothing is committed\n")
    assert line.run("offsets", "export").exit_code == 2


def test_a_misspelt_group_leaves_the_earlier_export_as_it_is(
    line: CommandLine, tmp_path: Path
) -> None:
    """An export that found nothing would have replaced the only copy by an empty one."""
    path = tmp_path / "offsets.csv"
    path.write_text("an earlier export", encoding="utf-8")

    done = line.run("offsets", "export", "nobody", "--file", str(path))

    assert (done.exit_code, done.stderr) == (1, "Consumer group 'nobody' does not exist.\n")
    assert [(one.name, one.read_text("utf-8")) for one in tmp_path.iterdir()] == [
        ("offsets.csv", "an earlier export")
    ]
    done = line.run("offsets", "export", "g", "nobody", "--file", str(path))
    assert done.exit_code == 1
    assert "g,t,1,60" in path.read_text("utf-8")


def test_a_file_that_can_not_be_written_is_told(line: CommandLine, tmp_path: Path) -> None:
    """Before anything is read."""
    done = line.run("offsets", "export", "g", "--file", str(tmp_path / "no" / "x.csv"))

    assert done.exit_code == 1
    assert "No such file or directory" in done.stderr
