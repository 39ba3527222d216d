"""``offsets import``: nothing half read, nothing overwritten that moved, owners are respected."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from coordinator.cli import import_offsets
from protocol import messages as m
from protocol.group_ids import group_id_error
from protocol.messages import PartitionResult, TopicResult
from tests.fakes.command_line import CommandLine, cells

Stored = tuple[int, int, str]  # Offset, leader epoch, metadata.


class Groups:
    """Groups in memory: what is committed, and who owns what."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[tuple[str, int], Stored]] = {
            "g": {("t", 0): (50, -1, ""), ("t", 1): (60, 3, "m")},
            "busy": {("t", 0): (10, -1, ""), ("t", 1): (11, -1, "")},
        }
        self.owners: dict[str, dict[tuple[str, int], str]] = {"busy": {("t", 0): "loader"}}
        self.answers: dict[type, Any] = {
            m.DescribeGroupsRequest: self._describe,
            m.DescribeLagRequest: self._lag,
            m.OffsetFetchRequest: self._fetch,
            m.AlterOffsetsRequest: self._alter,
        }

    def _describe(self, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        (group,) = request.group_ids
        owners = sorted(set(self.owners.get(group, {}).values()))
        members = tuple(m.DescribedMember(f"{c}-1", None, c, "h", b"", b"") for c in owners)
        is_there = group in self.stored
        state = "Dead" if not is_there else "Stable" if members else "Empty"
        error = 24 if group_id_error(group) else 0 if is_there else 69
        found = m.DescribedGroup(error, None, group, state, "consumer", "", 1, members)
        return m.DescribeGroupsResponse((found,))

    def _lag(self, request: m.DescribeLagRequest) -> m.DescribeLagResponse:
        owners = self.owners.get(request.group_id, {})
        stored = self.stored[request.group_id]
        topics = tuple(
            m.TopicLag(topic, (self._partition_lag(topic, p, stored, owners),))
            for topic, p in sorted(stored.keys() | owners.keys())
        )
        return m.DescribeLagResponse(0, None, request.group_id, topics)

    @staticmethod
    def _partition_lag(
        topic: str,
        partition: int,
        stored: dict[tuple[str, int], Stored],
        owners: dict[tuple[str, int], str],
    ) -> m.PartitionLag:
        key = topic, partition
        committed = stored[key][0] if key in stored else -1
        member_id = f"{owners[key]}-1" if key in owners else ""
        return m.PartitionLag(partition, committed, -1, -1, -1, -1, member_id)

    def _fetch(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        (asked,) = request.groups
        stored = self.stored.get(asked.group_id, {})
        assert asked.topics is not None
        topics = tuple(
            m.TopicOffsets(
                t.topic,
                tuple(
                    m.PartitionOffset(p, *stored.get((t.topic, p), (-1, -1, "")), 0)
                    for p in t.partitions
                ),
            )
            for t in asked.topics
        )
        return m.OffsetFetchResponse((m.GroupOffsets(asked.group_id, 0, topics),))

    def _alter(self, request: m.AlterOffsetsRequest) -> m.AlterOffsetsResponse:
        stored = self.stored.setdefault(request.group_id, {})
        owners = self.owners.get(request.group_id, {})
        named = [
            (topic.topic, one.partition) for topic in request.topics for one in topic.partitions
        ]
        if len(set(named)) < len(named):
            return m.AlterOffsetsResponse(42, "it names the same partition twice", (), ())
        removed: set[str] = set()
        results = []
        for topic in request.topics:
            answers = []
            for one in topic.partitions:
                key = (topic.topic, one.partition)
                error = 0
                if key in owners and not request.remove_owners:
                    error = 1009
                elif one.expected_offset not in (None, stored.get(key, (-1,))[0]):
                    error = 1003
                else:
                    stored[key] = one.offset, one.leader_epoch, one.metadata or ""
                    removed |= {f"{owners[key]}-1"} if key in owners else set()
                answers.append(PartitionResult(one.partition, error))
            results.append(TopicResult(topic.topic, tuple(answers)))
        return m.AlterOffsetsResponse(0, None, tuple(results), tuple(sorted(removed)))


@pytest.fixture
def groups() -> Groups:
    """Return two groups, one with a member."""
    return Groups()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, groups: Groups) -> CommandLine:
    """Return a command line with a coordinator that has them."""
    return CommandLine(monkeypatch, groups.answers)


class File:
    """Imports text as a file."""

    def __init__(self, line: CommandLine, path: Path) -> None:
        self._line = line
        self._path = path

    def run(self, text: str, *arguments: str) -> Result:
        """Run the import of *text*."""
        self._path.write_text(text, encoding="utf-8")
        return self._line.run("offsets", "import", str(self._path), *arguments)

    def alters(self) -> list[Any]:
        """Return what the coordinator was asked to change."""
        return self._line.of_type(m.AlterOffsetsRequest)


@pytest.fixture
def file(line: CommandLine, tmp_path: Path) -> File:
    """Return the file and the command line."""
    return File(line, tmp_path / "offsets.csv")


def statuses(done: Result) -> list[Sequence[str]]:
    """Return partition, current and new offset, and status of each row."""
    return [(*row[2:5], " ".join(row[5:])) for row in cells(done.stdout)]


def test_without_yes_it_is_a_dry_run(file: File) -> None:
    """What it would do is shown, and its status tells a script that nothing was done."""
    done = file.run("g,t,0,40\ng,t,1,60\ng,t,2,7\n")

    assert done.exit_code == 3
    assert statuses(done) == [
        ("0", "50", "40", "to import"),
        ("1", "60", "60", "unchanged"),
        ("2", "-", "7", "to import"),
    ]
    assert file.alters() == []


@pytest.mark.parametrize("text", ["", "group,topic,partition,offset\n"])
def test_a_file_without_offsets_is_told_as_such(text: str, file: File) -> None:
    """An export that failed may have left one."""
    done = file.run(text, "--yes")

    assert (done.exit_code, done.stderr.endswith(": there are no offsets in it\n")) == (0, True)


def test_many_groups_that_are_not_there_are_told_in_one_line(file: File) -> None:
    """All of them are missing where a new coordinator gets what an old one had."""
    done = file.run("group,topic,partition,offset\n" + "".join(f"n{n},t,0,1\n" for n in range(7)))

    told, *_ = done.stderr.splitlines()
    assert told == (
        "7 groups do not exist; an import makes them: 'n0', 'n1', 'n2', 'n3', 'n4' and 2 more"
    )
    assert done.stderr.count("do not exist") == done.stderr.count("exist")


def test_offsets_are_imported_with_epochs_and_metadata(file: File, groups: Groups) -> None:
    """And only those that differ, where they are as they were shown."""
    head = "group,topic,partition,offset,leader_epoch,metadata\n"
    done = file.run(head + 'g,t,0,50,-1,\ng,t,1,60,4,m\nnew,u,3,7,,"a\nb"\n', "--yes")

    assert done.exit_code == 0
    assert [row[3] for row in statuses(done)] == ["unchanged", "imported", "imported"]
    assert groups.stored["g"]["t", 1] == (60, 4, "m")
    assert groups.stored["new"] == {("u", 3): (7, -1, "a\nb")}
    assert done.stderr == "Consumer group 'new' does not exist; an import makes it.\n"
    expected = [one.topics[0].partitions[0].expected_offset for one in file.alters()]
    assert expected == [60, -1]


def test_what_members_own_is_left_out_and_told(file: File, groups: Groups) -> None:
    """The rest is imported; who is in the way, and what helps, is said."""
    done = file.run("busy,t,0,1\nbusy,t,1,2\n", "--yes")

    assert done.exit_code == 1
    assert [row[3] for row in statuses(done)] == ["owned by loader", "imported"]
    assert done.stderr == (
        "1 partition can't be imported while members own them: loader. Stop or drain these, or "
        "say --remove-owners.\n"
    )
    assert groups.stored["busy"] == {("t", 0): (10, -1, ""), ("t", 1): (2, -1, "")}


def test_owners_are_removed_if_so_asked(file: File, groups: Groups) -> None:
    """The dry run says who, and the reason goes into the history."""
    text = "busy,t,0,1\n"
    shown = file.run(text, "--remove-owners")
    done = file.run(text, "--remove-owners", "--reason", "wrong rows", "--yes")

    assert (shown.exit_code, statuses(shown)[0][3]) == (3, "to import, removes loader")
    assert (done.exit_code, done.stderr) == (0, "busy: removed loader-1\n")
    (asked,) = file.alters()
    assert (asked.remove_owners, asked.reason) == (True, "wrong rows")
    assert groups.stored["busy"]["t", 0] == (1, -1, "")


def test_who_comes_between_the_look_and_the_import_is_respected(
    file: File, line: CommandLine, groups: Groups
) -> None:
    """The coordinator decides, not what was true a moment ago."""
    alter = line.answers[m.AlterOffsetsRequest]

    def later(request: m.AlterOffsetsRequest) -> m.AlterOffsetsResponse:
        groups.stored["g"]["t", 0] = (55, -1, "")
        groups.owners["g"] = {("t", 1): "loader"}
        answer: m.AlterOffsetsResponse = alter(request)
        return answer

    line.answers[m.AlterOffsetsRequest] = later
    done = file.run("g,t,0,40\ng,t,1,41\n", "--yes")

    assert done.exit_code == 1
    assert "(OFFSET_CONFLICT)" in statuses(done)[0][3]
    assert "(PARTITION_OWNED)" in statuses(done)[1][3]
    assert "g: not imported: t-0: The committed offset is not the expected one." in done.stderr
    forced = file.run("g,t,0,40\n", "--yes", "--overwrite")
    assert forced.exit_code == 0
    assert groups.stored["g"]["t", 0] == (40, -1, "")


def test_nothing_is_imported_over_what_changed_since_an_export(
    file: File, tmp_path: Path, groups: Groups
) -> None:
    """A dry run of yesterday is worth what an export of yesterday says."""
    before = tmp_path / "before.csv"
    before.write_text("g,t,0,50\ng,t,1,59\n")
    text = "g,t,0,40\ng,t,1,40\ng,t,2,40\n"
    done = file.run(text, "--unless-changed-since", str(before), "--yes")

    assert done.exit_code == 1
    assert [row[3] for row in statuses(done)] == ["imported", "changed: 59 before", "imported"]
    assert groups.stored["g"]["t", 1] == (60, 3, "m")
    both = file.run(text, "--unless-changed-since", str(before), "--overwrite")
    assert (both.exit_code, file.alters()[1:]) == (2, [])


def test_a_wrong_line_imports_nothing(file: File) -> None:
    """The whole file is read before anything is asked."""
    done = file.run("g,t,0,40\ng,t,x,40\ng,t,0,41\n", "--yes")

    assert done.exit_code == 2
    assert "line 2: 'x' is no partition; line 3: t-0 is there twice" in done.stderr
    assert file.alters() == []


@pytest.mark.parametrize("text", ["", "\n", "group,topic,partition,offset\n"])
def test_an_empty_file_changes_nothing(file: File, text: str) -> None:
    """It says what it is about: nothing."""
    done = file.run(text, "--yes")

    assert (done.exit_code, cells(done.stdout)) == (0, [])
    assert file.run(text, "g", "--yes").stderr == "g: the file has nothing of this group\n"


def test_only_the_groups_that_are_named_are_imported(file: File, groups: Groups) -> None:
    """Out of a file of all, or of one that leaves the group out."""
    text = "g,t,0,1\nbusy,t,1,1\nh,t,0,1\n"

    assert file.run(text, "g", "h", "--yes").exit_code == 0
    assert (groups.stored["g"]["t", 0][0], groups.stored["busy"]["t", 1][0]) == (1, 11)
    assert "h" in groups.stored
    assert file.run("t,5,9\n", "g", "--yes").exit_code == 0
    assert groups.stored["g"]["t", 5] == (9, -1, "")


def test_a_large_file_goes_in_several_requests(
    file: File, monkeypatch: pytest.MonkeyPatch, groups: Groups
) -> None:
    """By number, and by what the metadata takes."""
    monkeypatch.setattr(import_offsets, "PARTITIONS_PER_REQUEST", 4)
    monkeypatch.setattr(import_offsets, "METADATA_BYTES_PER_REQUEST", 10)
    sizes = (0, 0, 0, 0, 0, 8, 4, 20, 1, 0)
    lines = [
        json.dumps({"topic": "t", "partition": p, "offset": 7, "metadata": "x" * size})
        for p, size in enumerate(sizes)
    ]
    done = file.run("\n".join(lines), "big", "--yes")

    assert done.exit_code == 0
    counts = [sum(len(t.partitions) for t in one.topics) for one in file.alters()]
    assert counts == [4, 2, 1, 1, 2]
    assert len(groups.stored["big"]) == len(sizes)


def test_a_lost_answer_leaves_what_it_was_about_unknown(
    file: File, line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before is told, what comes after is not tried."""
    monkeypatch.setattr(import_offsets, "PARTITIONS_PER_REQUEST", 1)
    alter = line.answers[m.AlterOffsetsRequest]

    def breaking(request: m.AlterOffsetsRequest) -> Any:
        number = request.topics[0].partitions[0].partition
        return ConnectionResetError("gone") if number == 1 else alter(request)

    line.answers[m.AlterOffsetsRequest] = breaking
    done = file.run("g,t,0,1\ng,t,1,1\ng,t,2,1\n", "--yes")

    assert done.exit_code == 69
    assert [row[3] for row in statuses(done)] == ["imported", "unknown", "not tried"]


def test_a_group_that_is_refused_keeps_the_others(file: File, line: CommandLine) -> None:
    """A full disk, for example."""
    alter = line.answers[m.AlterOffsetsRequest]
    line.answers[m.AlterOffsetsRequest] = lambda request: (
        m.AlterOffsetsResponse(1004, "the disk is full", (), ())
        if request.group_id == "g"
        else alter(request)
    )
    done = file.run("g,t,0,1\nh,t,0,1\n", "--yes")

    assert done.exit_code == 1
    assert [row[3] for row in statuses(done)] == ["refused", "imported"]
    assert "g: the disk is full (STORAGE_FULL)" in done.stderr


def test_a_file_that_is_not_there_is_told(line: CommandLine, tmp_path: Path) -> None:
    """As any other wrong command line."""
    done = line.run("offsets", "import", str(tmp_path / "x.csv"))

    assert done.exit_code == 2
    assert "No such file or directory" in done.stderr


def test_what_is_no_text_is_told(line: CommandLine, tmp_path: Path) -> None:
    """With the line in which it stops being text."""
    path = tmp_path / "x.csv"
    path.write_bytes(b"g,t,0,1\ng,\xff,0,1\n")
    done = line.run("offsets", "import", str(path))

    assert done.exit_code == 2
    assert "line 2: this is no UTF-8" in done.stderr
