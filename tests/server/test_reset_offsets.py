"""``groups reset-offsets``: from what is known to commits that overwrite nothing newer."""

from pathlib import Path
from typing import Any

import pytest

from protocol import messages as m
from protocol.partition import INT64_MAX
from tests.fakes.command_line import CommandLine, cells
from tests.fakes.group_memory import Memory

RESET = ("groups", "reset-offsets")
DRY = "Dry run: nothing was changed; --yes does it.\n"


@pytest.fixture
def memory() -> Memory:
    """Return what the coordinator knows."""
    return Memory()


@pytest.fixture
def line(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line with a coordinator over *memory*."""
    return CommandLine(monkeypatch, memory.answers())


def test_a_reset_is_a_dry_run_unless_told_to_do_it(line: CommandLine, memory: Memory) -> None:
    """It may be undone only by somebody who knows where the group was."""
    before = dict(memory.offsets["g"])
    done = line.run(*RESET, "g", "--topic", "t:0", "--to-offset", "7")

    assert (done.exit_code, done.stderr) == (3, DRY)
    assert cells(done.stdout) == [["g", "t", "0", "50", "7"]]
    assert memory.offsets["g"] == before
    assert line.of_type(m.AlterOffsetsRequest) == []


def test_an_executed_reset_expects_what_it_saw(line: CommandLine, memory: Memory) -> None:
    """Each partition from the offset that was shown; no member is taken out for it."""
    done = line.run(*RESET, "g", "--topic", "t:0,2", "--to-offset", "7", "--yes")

    assert (done.exit_code, done.stderr) == (0, "")
    assert cells(done.stdout) == [
        ["g", "t", "0", "50", "7", "reset"],
        ["g", "t", "2", "-", "7", "reset"],
    ]
    wanted = (m.AlteredOffset(0, 7, -1, None, 50), m.AlteredOffset(2, 7, -1, None, -1))
    (sent,) = line.of_type(m.AlterOffsetsRequest)
    assert sent == m.AlterOffsetsRequest(
        "g", (m.AlteredTopic("t", wanted),), remove_owners=False, reason="reset"
    )
    assert memory.offsets["g"]["t", 0] == 7


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (("--to-offset", "60"), [60, 55]),
        (("--shift-by", "-55"), [0, 5]),
        (("--shift-by", "10"), [60, 55]),
        (("--shift-by", str(2**70)), [100, 55]),
        (("--to-latest",), [100, 55]),
        (("--to-current",), [50, 60]),
    ],
)
def test_each_spec_finds_its_offsets(
    spec: tuple[str, ...], expected: list[int], line: CommandLine
) -> None:
    """Between 0 and the end, except for what is committed already."""
    done = line.run(*RESET, "g", "--topic", "t:0,1", *spec)

    assert done.exit_code == (0 if spec == ("--to-current",) else 3)
    assert [int(row[4]) for row in cells(done.stdout)] == expected


def test_a_changed_target_is_a_warning(line: CommandLine) -> None:
    """The end is what somebody reported, perhaps long ago."""
    high = line.run(*RESET, "g", "--topic", "t:1", "--to-offset", "60").stderr
    low = line.run(*RESET, "g", "--topic", "t:1", "--shift-by", "-61").stderr

    assert (
        high
        == (
            "Warning: g: t-1: 60 is beyond the end 55 (reported 1970-01-01T00:00:01+00:00), so 55\n"
        )
        + DRY
    )
    assert low == "Warning: g: t-1: -1 is below 0, so 0\n" + DRY


def test_no_offset_is_over_the_largest(line: CommandLine) -> None:
    """Where no end is known, the wire's bound is left."""
    done = line.run(*RESET, "g", "--topic", "u:0", "--to-offset", str(2**64))

    assert cells(done.stdout) == [["g", "u", "0", "7", str(INT64_MAX)]]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--topic", "t", "--shift-by", "1"), "g: t-2: no offset is committed"),
        (("--topic", "u", "--to-latest"), "g: u-0: nobody has reported the end"),
        (("--topic", "t:2", "--to-current"), "g: t-2: nobody has reported the end"),
        (("--topic", "t:3,9", "--to-offset", "1"), "g: t-3, t-9: the topic has 3 partitions"),
        (("--topic", "x", "--to-offset", "1"), "Topic 'x' is neither registered nor committed"),
    ],
)
def test_a_group_is_reset_whole_or_not_at_all(
    arguments: tuple[str, ...], why: str, line: CommandLine
) -> None:
    """Half a shift leaves a state that nobody asked for."""
    done = line.run(*RESET, "g", *arguments, "--yes")

    assert done.exit_code == 1
    assert why in done.stderr
    assert line.of_type(m.AlterOffsetsRequest) == []


def test_scopes_are_what_is_committed_and_what_is_registered(line: CommandLine) -> None:
    """All topics are the group's own; one topic is all of its partitions."""
    everything = cells(line.run(*RESET, "g", "--all-topics", "--to-offset", "1").stdout)
    topic = cells(line.run(*RESET, "g", "--topic", "t", "--to-offset", "1").stdout)

    assert [row[1:3] for row in everything] == [["t", "0"], ["t", "1"], ["u", "0"]]
    assert [row[1:4] for row in topic] == [["t", "0", "50"], ["t", "1", "60"], ["t", "2", "-"]]


def test_a_group_in_use_is_not_reset_and_keeps_no_other(line: CommandLine) -> None:
    """Its members would go on from where they are, and commit over it."""
    every = ("--all-groups", "--topic", "t:0", "--to-offset", "3")
    done = line.run(*RESET, *every, "--yes")

    assert done.exit_code == 1
    assert done.stderr == ("Consumer group 'busy' has members, and is Stable: stop them first.\n")
    assert [row[0] for row in cells(done.stdout)] == ["g", "h"]


def test_a_group_that_is_not_there_is_made_by_name_only(line: CommandLine, memory: Memory) -> None:
    """A new group may begin anywhere; without a topic there is nothing to begin with."""
    made = line.run(*RESET, "new", "--topic", "t:0", "--to-offset", "3", "--yes")
    typo = line.run(*RESET, "typo", "--all-topics", "--to-offset", "3", "--yes")

    assert (made.exit_code, memory.offsets["new"]) == (0, {("t", 0): 3})
    assert made.stderr == "Consumer group 'new' does not exist; a reset makes it.\n"
    assert (typo.exit_code, typo.stderr) == (1, "Consumer group 'typo' does not exist.\n")


def test_what_moved_meanwhile_is_not_overwritten(line: CommandLine, memory: Memory) -> None:
    """Somebody committed between the look and the reset."""

    def alter(request: m.AlterOffsetsRequest) -> m.AlterOffsetsResponse:
        memory.offsets["g"]["t", 0] = 51
        return memory.alter(request)

    line.answers[m.AlterOffsetsRequest] = alter
    done = line.run(*RESET, "g", "--topic", "t:0,1", "--to-offset", "7", "--yes")

    assert done.exit_code == 1
    assert "g: t-0 was not reset: The committed offset is not the expected one." in done.stderr
    assert cells(done.stdout)[1][-1] == "reset"
    assert memory.offsets["g"]["t", 0] == 51


def test_a_group_that_became_active_is_told_as_such(line: CommandLine, memory: Memory) -> None:
    """The error of each partition would be about an owner that nobody named."""

    def alter(request: m.AlterOffsetsRequest) -> m.AlterOffsetsResponse:
        memory.states["g"] = "PreparingRebalance"
        return memory.alter(request)

    line.answers[m.AlterOffsetsRequest] = alter
    done = line.run(*RESET, "g", "--topic", "t:0", "--to-offset", "7", "--yes")

    assert done.exit_code == 1
    assert "has members, and is PreparingRebalance" in done.stderr
    (row,) = cells(done.stdout)
    assert (row[:5], row[-1]) == (["g", "t", "0", "50", "7"], "(PARTITION_OWNED)")


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (
            TimeoutError("timed out"),
            69,
            "g: No coordinator answers at 127.0.0.1:1: nothing came within 10 s\n",
        ),
        (
            m.AlterOffsetsResponse(1000, "no fsync yet", (), ()),
            1,
            "g: no fsync yet (OUTCOME_UNKNOWN)\n",
        ),
    ],
)
def test_a_reset_without_a_definite_answer_is_in_doubt(
    answer: object, status: int, words: str, line: CommandLine
) -> None:
    """What became of it has to be looked up: it may have been done."""
    line.answers[m.AlterOffsetsRequest] = answer
    done = line.run(*RESET, "g", "--topic", "t:0", "--to-offset", "7", "--yes")

    assert (done.exit_code, done.stderr) == (status, words)
    assert cells(done.stdout) == [["g", "t", "0", "50", "7", "unknown"]]


def test_many_partitions_are_committed_in_parts(line: CommandLine, memory: Memory) -> None:
    """One request has a limit; what a failure leaves is told apart from what was never sent."""
    memory.counts["big"] = 5_000
    done = line.run(*RESET, "g", "--topic", "big", "--to-offset", "1", "--yes")
    assert done.exit_code == 0
    assert [len(r.topics[0].partitions) for r in line.of_type(m.AlterOffsetsRequest)] == [
        2_000, 2_000, 1_000,
    ]  # fmt: skip
    assert len(memory.offsets["g"]) == 5_003

    def alter(request: m.AlterOffsetsRequest) -> Any:
        is_second = request.topics[0].partitions[0].partition == 2_000
        return m.AlterOffsetsResponse(1004, None, (), ()) if is_second else memory.alter(request)

    line.answers[m.AlterOffsetsRequest] = alter
    again = line.run(*RESET, "g", "--topic", "big", "--to-offset", "2", "--yes")
    assert again.exit_code == 1
    assert "STORAGE_FULL" in again.stderr
    rows = cells(again.stdout)
    said = [" ".join(rows[p][5:]) for p in (0, 2_000, 4_000)]
    assert said == ["reset", "refused", "not tried"]


def test_an_offset_that_stays_is_not_written(line: CommandLine) -> None:
    """A commit would lose its metadata."""
    done = line.run(*RESET, "g", "--all-topics", "--to-current", "--yes")

    assert {row[-1] for row in cells(done.stdout)} == {"unchanged"}
    assert line.of_type(m.AlterOffsetsRequest) == []


def test_what_is_exported_can_be_read_again(
    line: CommandLine, memory: Memory, tmp_path: Path
) -> None:
    """Backup and restore, of one group and of several."""
    one, both = str(tmp_path / "one.csv"), str(tmp_path / "both.csv")
    line.run(*RESET, "g", "--all-topics", "--to-current", "--export", one)
    line.run(*RESET, "g", "h", "--all-topics", "--to-current", "--export", both)
    assert Path(one).read_text(encoding="utf-8") == "t,0,50\nt,1,60\nu,0,7\n"
    memory.ends.clear()
    line.run(*RESET, "g", "h", "--all-topics", "--to-offset", "1", "--yes")
    restored = line.run(*RESET, "g", "h", "--from-file", both, "--yes")

    assert restored.exit_code == 0
    assert memory.offsets["h"] == {("t", 0): 10}
    assert memory.offsets["g"] == {("t", 0): 50, ("t", 1): 60, ("u", 0): 7}
    assert line.run(*RESET, "g", "--from-file", one).exit_code == 0


def test_an_export_that_can_not_be_written_ends_before_the_reset(
    line: CommandLine, tmp_path: Path
) -> None:
    """The file may be the only way back."""
    lost = str(tmp_path / "no" / "such" / "folder")
    arguments = ("--topic", "t:0", "--to-offset", "5", "--yes", "--export", lost)

    assert line.run(*RESET, "g", *arguments).exit_code == 1
    assert line.of_type(m.AlterOffsetsRequest) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("t,0\n", "line 1: 2 columns; topic,partition,offset is wanted"),
        ("t,0,1\n\nt,0,2\n", "line 3: t-0 is there twice"),
        ("t,x,1\n", "line 1: 'x' is no partition"),
        ("t,0,-1\n", "line 1: '-1' is no offset"),
        (f"t,0,{2**63}\n", "is no offset"),
        ("t,0,\u0661\n", "is no offset"),
        ("other,t,0,1\n", "line 1: group 'other' is none of those asked for"),
        ("t,0,1\n\x1b[2J,0,1,2,3\n", "line 2: 5 columns"),
        ('"t,0,1\n', "line 1: unexpected end of data"),
    ],
)
def test_a_file_that_is_wrong_names_the_line(
    text: str, why: str, line: CommandLine, tmp_path: Path
) -> None:
    """Nothing is guessed, and nothing is asked."""
    path = tmp_path / "offsets.csv"
    path.write_text(text, encoding="utf-8")
    done = line.run(*RESET, "g", "--from-file", str(path), "--yes")

    assert done.exit_code == 2
    assert why in done.stderr
    assert line.asked == []


def test_a_file_of_a_spreadsheet_is_read(line: CommandLine, tmp_path: Path) -> None:
    """With a byte order mark, spaces and Windows' line ends; offsets beyond the end are held."""
    path = tmp_path / "offsets.csv"
    path.write_bytes("\ufefft, 0, 12\r\nt,1,99\r\n".encode())
    done = line.run(*RESET, "g", "--from-file", str(path))

    assert cells(done.stdout) == [["g", "t", "0", "50", "12"], ["g", "t", "1", "60", "55"]]


@pytest.mark.parametrize("option", [("--to-datetime", "2024-01-01"), ("--by-duration", "P1D")])
def test_times_are_refused_with_the_reason(option: tuple[str, str], line: CommandLine) -> None:
    """Kafka's tool has them; here nobody knows the times of records."""
    done = line.run(*RESET, "g", "--all-topics", *option)

    assert done.exit_code == 2
    assert "keeps no timestamps" in done.stderr


def test_the_earliest_is_refused_with_what_to_say_instead(line: CommandLine) -> None:
    """0 may be gone from the source: only its owner knows."""
    done = line.run(*RESET, "g", "--all-topics", "--to-earliest", "--yes")

    assert done.exit_code == 2
    assert "--to-offset 0" in done.stderr
    assert line.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--all-topics",),
        ("--to-offset", "1"),
        ("--all-topics", "--to-latest", "--to-current"),
        ("--all-topics", "--topic", "t", "--to-latest"),
        ("--from-file", __file__, "--to-latest"),
        ("--from-file", __file__, "--all-topics"),
        ("--from-file", "no-such-file"),
        ("--all-topics", "--to-offset", "-1"),
        ("--all-topics", "--to-latest", "--execute"),
        ("--all-topics", "--to-latest", "--dry-run"),
    ],
)
def test_exactly_one_scope_and_one_spec(arguments: tuple[str, ...], line: CommandLine) -> None:
    """The last of two would win otherwise, in silence."""
    assert line.run(*RESET, "g", *arguments).exit_code == 2
    assert line.asked == []
