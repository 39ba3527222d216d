"""``zookeeper import``: forward only, each bad znode told, nothing lost, and again at any time."""

import json
from itertools import product
from typing import Any, Self

import pytest
from click.testing import Result

from client.zookeeper.znodes import Status, offsets_path
from coordinator.cli import zookeeper
from protocol import messages as m
from tests.cli.test_import_offsets import Groups
from tests.fakes.command_line import CommandLine
from tests.fakes.znodes import Znodes


class Ensemble(Znodes):
    """An ensemble that is closed at the end of the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def znodes(monkeypatch: pytest.MonkeyPatch) -> Ensemble:
    """Return what every command finds in ZooKeeper."""
    found = Ensemble()
    monkeypatch.setattr(zookeeper, "Ensemble", lambda _settings: found)
    return found


@pytest.fixture
def groups() -> Groups:
    """Return what the coordinator has: two groups, one with a member."""
    return Groups()


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch, groups: Groups) -> CommandLine:
    """Return a command line with both."""
    known = m.DescribedTopic("t", 0, 3, (), ())
    topics = m.DescribeTopicsResponse(0, None, (known,), has_more=False)
    return CommandLine(monkeypatch, {**groups.answers, m.DescribeTopicsRequest: topics})


def put(znodes: Znodes, group: str, topic: str, *offsets: object) -> None:
    """Have the partitions 0, 1, … of a topic there."""
    for partition, offset in enumerate(offsets):
        data = offset if isinstance(offset, bytes) else str(offset).encode()
        znodes.put(offsets_path(group, topic, partition), data)


def rows(done: Result) -> list[list[Any]]:
    """Return the report as programs get it."""
    return [list(one.values()) for one in json.loads(done.stdout)]


def run(line: CommandLine, *arguments: str) -> Result:
    """Run the import, for programs."""
    return line.run("zookeeper", "import", "zk:2181", *arguments, "--output", "json")


def test_without_yes_it_is_a_dry_run(line: CommandLine, znodes: Ensemble) -> None:
    """It shows what it would do, and its status says that nothing was done."""
    put(znodes, "g", "t", 60, 60)
    done = run(line)

    assert (done.exit_code, line.of_type(m.AlterOffsetsRequest)) == (3, [])
    assert rows(done) == [
        ["g", "t", 0, 50, 60, "to import"],
        ["g", "t", 1, 60, 60, "unchanged"],
    ]
    assert done.stderr.startswith("2 offsets in ZooKeeper, read in ")
    assert znodes.is_closed


def test_offsets_only_move_forward(line: CommandLine, znodes: Ensemble, groups: Groups) -> None:
    """A group that has gone on here is not put back by what nobody writes any more."""
    put(znodes, "g", "t", 40, 70, 5)
    done = run(line, "--yes")

    assert done.exit_code == 4
    assert [row[-1] for row in rows(done)] == ["ahead", "imported", "imported"]
    assert groups.stored["g"] == {
        ("t", 0): (50, -1, ""),
        ("t", 1): (70, -1, ""),
        ("t", 2): (5, -1, ""),
    }
    assert "2 imported, 1 ahead; imported in " in done.stderr
    assert done.stderr.endswith("ZooKeeper is behind the coordinator: 1 ahead\n")


def test_again_it_goes_on_where_it_was(line: CommandLine, znodes: Ensemble, groups: Groups) -> None:
    """An import that was interrupted, or that comes a day later, brings what is missing."""
    put(znodes, "a", "t", 1, 2)
    put(znodes, "b", "t", 3, 4)
    alter = line.answers[m.AlterOffsetsRequest]
    line.answers[m.AlterOffsetsRequest] = ConnectionResetError("gone")
    broken = run(line, "--yes")
    line.answers[m.AlterOffsetsRequest] = alter
    done = run(line, "--yes")
    last = run(line, "--yes")

    assert (broken.exit_code, {row[-1] for row in rows(broken)}) == (69, {"unknown"})
    assert (done.exit_code, {row[-1] for row in rows(done)}) == (0, {"imported"})
    assert (last.exit_code, {row[-1] for row in rows(last)}) == (0, {"unchanged"})


def test_groups_that_are_there_do_not_end_an_import(
    line: CommandLine, znodes: Ensemble, groups: Groups
) -> None:
    """More than are asked about together: what is missing behind them would be left out."""
    names = [f"group-{number:03}" for number in range(100)]
    for name in names:
        put(znodes, name, "t", 1)
        groups.stored[name] = {("t", 0): (1, -1, "")}
    put(znodes, "z", "t", 7)
    done = run(line, "--yes")

    assert done.exit_code == 0
    assert [row[-1] for row in rows(done)] == ["unchanged"] * len(names) + ["imported"]
    assert groups.stored["z"] == {("t", 0): (7, -1, "")}


def test_what_is_bad_is_told_and_the_rest_is_imported(
    line: CommandLine, znodes: Ensemble, groups: Groups
) -> None:
    """Each with the reason; its status tells a script that something was left out."""
    long = "x" * 10_000
    put(znodes, "new", "t", 7, b"abc", -1, b"", 8)
    znodes.put("/consumers/new/offsets/t/0-0", b"9")
    znodes.put("/consumers/new/offsets/t/9999999999", b"9")
    put(znodes, "new", long, 1)
    put(znodes, long, "t", 2)
    put(znodes, "new", "secret", 3)
    znodes.refused["/consumers/new/offsets/secret/0"] = "nobody has allowed it"
    done = run(line, "--yes")

    assert done.exit_code == 1
    assert sorted(row[-1] for row in rows(done)) == [
        "imported",
        "imported",
        "not imported: '0-0' is no partition",
        "not imported: '9999999999' is no partition",
        "not imported: it can't be read: nobody has allowed it",
        "not imported: it is '-1', and no offset",
        "not imported: it is 'abc', and no offset",
        "not imported: it is empty",
        "not imported: the group's name is not legal: it is longer than 255 bytes of UTF-8",
        "not imported: the topic's name is not legal: it is longer than 249 bytes of UTF-8",
    ]
    assert groups.stored["new"] == {("t", 0): (7, -1, ""), ("t", 4): (8, -1, "")}
    assert len(done.stdout) < 10_000


def test_a_partition_has_one_spelling(line: CommandLine, znodes: Ensemble, groups: Groups) -> None:
    """Two znodes for one partition would have two offsets, and either may be the wrong one."""
    put(znodes, "new", "t", 1, b"garbage")
    znodes.put("/consumers/new/offsets/t/01", b"5")
    shown = run(line)
    done = run(line, "--yes")

    others = [
        ["new", "t", "01", None, None, "not imported: '01' is no partition"],
        ["new", "t", "1", None, None, "not imported: it is 'garbage', and no offset"],
    ]
    assert (shown.exit_code, done.exit_code) == (1, 1)
    assert rows(shown)[0] == ["new", "t", 0, None, 1, "to import"]
    assert rows(done)[0] == ["new", "t", 0, None, 1, "imported"]
    assert sorted(rows(shown)[1:]) == sorted(rows(done)[1:]) == others
    assert groups.stored["new"] == {("t", 0): (1, -1, "")}


@pytest.mark.parametrize(
    "found",
    [
        dict(zip(("1", "01", "001", "+1"), data, strict=True))
        for data in product((None, b"10", b"x"), repeat=4)
    ],
)
def test_a_run_does_what_the_dry_run_has_said(
    found: dict[str, bytes | None], line: CommandLine, znodes: Ensemble, groups: Groups
) -> None:
    """A surprise would come too late, with any spellings of a partition beside each other."""
    put(znodes, "new", "t", 7)
    for name, data in found.items():
        if data is not None:
            znodes.put(f"/consumers/new/offsets/t/{name}", data)
    shown = rows(run(line))
    done = rows(run(line, "--yes"))

    assert [["imported" if cell == "to import" else cell for cell in row] for row in shown] == done
    right = {("t", 0): (7, -1, "")} | ({("t", 1): (10, -1, "")} if found["1"] == b"10" else {})
    assert groups.stored["new"] == right


def test_groups_and_topics_are_chosen_by_pattern(line: CommandLine, znodes: Ensemble) -> None:
    """A whole name has to match, as everywhere."""
    for group in ("etl-1", "etl-2", "web"):
        for topic in ("orders", "orders2", "clicks"):
            put(znodes, group, topic, 5)
    done = run(line, "--pattern", "etl-.*", "--topics", "orders|clicks")

    assert [row[:2] for row in rows(done)] == [
        [group, topic] for group in ("etl-1", "etl-2") for topic in ("clicks", "orders")
    ]
    assert run(line, "--pattern", "(").exit_code == 2
    assert run(line, "g", "--pattern", "g").exit_code == 2


def test_groups_are_chosen_by_name(line: CommandLine, znodes: Ensemble) -> None:
    """One that has nothing there is told: it may be misspelt."""
    put(znodes, "a", "t", 1)
    put(znodes, "b", "t", 1)
    done = run(line, "a", "c", "--yes")

    assert done.exit_code == 1
    assert rows(done) == [
        ["a", "t", 0, None, 1, "imported"],
        [
            "c",
            None,
            None,
            None,
            None,
            "not imported: it has no offsets in ZooKeeper (of these topics)",
        ],
    ]


def test_what_members_own_is_left_alone(
    line: CommandLine, znodes: Ensemble, groups: Groups
) -> None:
    """They would go on from where they are, and commit over it."""
    put(znodes, "busy", "t", 20, 21)
    done = run(line, "--yes")
    forced = run(line, "--yes", "--remove-owners")

    assert (done.exit_code, [row[-1] for row in rows(done)]) == (1, ["owned by loader", "imported"])
    assert (forced.exit_code, groups.stored["busy"]["t", 0]) == (0, (20, -1, ""))


def test_an_owner_that_is_where_it_should_be_is_no_obstacle(
    line: CommandLine, znodes: Ensemble
) -> None:
    """Between two restarts, this is the check that both places are the same."""
    put(znodes, "busy", "t", 10, 11)
    done = run(line, "busy")

    assert (done.exit_code, {row[-1] for row in rows(done)}) == (0, {"unchanged"})


def test_a_znode_that_is_missing_is_a_difference(line: CommandLine, znodes: Ensemble) -> None:
    """A consumer that reads only ZooKeeper would find nothing there, and begin anywhere."""
    put(znodes, "g", "t", 50)
    done = run(line, "g")

    assert (done.exit_code, line.of_type(m.AlterOffsetsRequest)) == (4, [])
    assert rows(done) == [["g", "t", 0, 50, 50, "unchanged"], ["g", "t", 1, 60, None, "missing"]]
    assert "1 unchanged, 1 missing; imported in " in done.stderr
    assert done.stderr.endswith("ZooKeeper is behind the coordinator: 1 missing\n")


@pytest.mark.parametrize("arguments", [("g",), (), ("--pattern", "g")])
def test_a_group_without_any_znode_of_an_offset_is_missing_whole(
    arguments: tuple[str, ...], line: CommandLine, znodes: Ensemble
) -> None:
    """Its consumers are known to ZooKeeper, or it was named; nothing is left of its offsets."""
    znodes.put("/consumers/g/ids/one", b"{}")
    done = run(line, *arguments)

    assert (done.exit_code, [row[-1] for row in rows(done)]) == (4, ["missing", "missing"])


def test_what_has_an_offset_nowhere_is_left_out(
    line: CommandLine, znodes: Ensemble, groups: Groups
) -> None:
    """Each console consumer of old has left such a group, and a new member has partitions first."""
    for group in ("console-1", "x" * 10_000):  # One name is not legal.
        znodes.put(f"/consumers/{group}/ids/one", b"{}")
    put(znodes, "busy", "t", 10, 11)
    groups.owners["busy"]["t", 2] = "loader"
    done = run(line)

    assert (done.exit_code, [row[0] for row in rows(done)]) == (0, ["busy", "busy"])
    assert "console-1" not in done.stderr


def test_only_topics_that_are_asked_for_can_be_missing(line: CommandLine, znodes: Ensemble) -> None:
    """A check of one topic says nothing about the others."""
    put(znodes, "g", "u", 1)
    done = run(line, "g", "--topics", "u")

    assert (done.exit_code, [row[1] for row in rows(done)]) == (3, ["u"])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_can_not_be_read_is_not_missing(
    depth: int, line: CommandLine, znodes: Ensemble
) -> None:
    """All offsets may be there, behind the refusal."""
    put(znodes, "g", "t", 50, 60)
    path = offsets_path("g", *("t", 1)[:depth])
    znodes.refused[path] = "nobody has allowed it"
    done = run(line, "g")

    kept = ["unchanged"] if depth == 2 else []
    assert done.exit_code == 1
    assert [row[-1] for row in rows(done)] == [
        *kept,
        "not imported: it can't be read: nobody has allowed it",
    ]


# What is in ZooKeeper and at the coordinator: what a dry run says.
_SAID = {
    (None, 10): "missing",
    (b"x", None): "not imported: it is 'x', and no offset",
    (b"x", 10): "not imported: it is 'x', and no offset",
    (b"9", None): "to import",
    (b"9", 10): "ahead",
    (b"10", 10): "unchanged",
    (b"11", 10): "to import",
}


@pytest.mark.parametrize("pair", list(product(_SAID, repeat=2)))
def test_the_exit_status_is_0_only_where_both_places_are_the_same(
    pair: tuple[tuple[bytes | None, int | None], ...],
    line: CommandLine,
    znodes: Ensemble,
    groups: Groups,
) -> None:
    """Before the run as after it: a script checks nothing else between two restarts."""
    znodes.put("/consumers/h/ids/one", b"{}")
    groups.stored["h"] = {}
    for number, (in_zookeeper, committed) in enumerate(pair):
        if in_zookeeper is not None:
            znodes.put(offsets_path("h", "t", number), in_zookeeper)
        if committed is not None:
            groups.stored["h"]["t", number] = (committed, -1, "")
    shown = run(line, "h")
    done = run(line, "h", "--yes")

    said = [_SAID[one] for one in pair]
    became = [one.replace("to import", "imported") for one in said]
    is_behind = bool({"ahead", "missing"} & set(said))
    is_bad = any(one.startswith("not imported") for one in said)
    assert sorted(row[-1] for row in rows(shown)) == sorted(said)
    assert sorted(row[-1] for row in rows(done)) == sorted(became)
    assert shown.exit_code == (1 if is_bad else 3 if "to import" in said else 4 * is_behind)
    assert done.exit_code == (1 if is_bad else 4 * is_behind)
    there = {("t", n): data for n, (data, _) in enumerate(pair) if data is not None}
    here = {key: b"%d" % stored[0] for key, stored in groups.stored["h"].items()}
    assert (done.exit_code == 0) == (here == there)


def test_a_summary_has_a_line_for_each_group(line: CommandLine, znodes: Ensemble) -> None:
    """Of thousands of offsets nobody reads each; what is bad is told all the same."""
    put(znodes, "g", "t", 60, 60, 5)
    put(znodes, "g", "u", b"x")
    put(znodes, "busy", "t", 10)
    done = run(line, "--summary", "--yes")

    assert rows(done) == [["busy", 1, 0, 0, 1, 0, 1, 0], ["g", 4, 0, 2, 1, 0, 0, 1]]
    assert "g u 0 not imported: it is 'x', and no offset\n" in done.stderr


def test_topics_that_nobody_registered_are_told(line: CommandLine, znodes: Ensemble) -> None:
    """They have offsets, and no lag; a misspelt one is found so."""
    put(znodes, "g", "t", 60)
    put(znodes, "g", "tt", 60)

    assert "1 topic not registered here, and so without lag: 'tt'" in run(line).stderr


def test_a_server_that_goes_away_in_the_middle_is_asked_again(
    line: CommandLine, znodes: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading twice harms nothing."""
    put(znodes, "g", "t", *range(60, 80))
    lost = iter([True, False])
    read = znodes.read

    def half(paths: list[str], timeout_s: float) -> list[Any]:
        found: list[Any] = list(read(paths, timeout_s))
        return [Status.LOST, *found[1:]] if next(lost, False) else found

    monkeypatch.setattr(znodes, "read", half)

    assert len(rows(run(line))) == 20


def test_an_ensemble_that_answers_nobody_is_unreachable(
    line: CommandLine, znodes: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, or after it has lost everything a few times; nothing was changed."""
    put(znodes, "g", "t", 60)
    monkeypatch.setattr(znodes, "read", lambda paths, _timeout_s: [Status.LOST] * len(paths))
    silent = run(line, "--yes")
    znodes.is_away = True
    away = run(line, "--yes")

    assert (silent.exit_code, away.exit_code) == (69, 69)
    assert "answers don't come" in silent.stderr
    assert "no server answered in time" in away.stderr
    assert line.asked == []


def test_a_wrong_chroot_is_told(line: CommandLine, znodes: Ensemble) -> None:
    """An empty report would look like a success."""
    done = run(line)

    assert done.exit_code == 1
    assert "/consumers in ZooKeeper at fake: there is none; is the chroot right?" in done.stderr


@pytest.mark.parametrize("where", ["zk:x", "zk:2181,", "zk:99999", ""])
def test_an_address_that_can_not_be_is_a_wrong_command_line(line: CommandLine, where: str) -> None:
    """Before anybody is asked."""
    done = line.run("zookeeper", "import", where)

    assert done.exit_code == 2
    assert "HOST:PORT,…[/CHROOT]" in done.stderr


def test_properties_come_from_a_file(line: CommandLine, znodes: Ensemble, tmp_path: Any) -> None:
    """A password has no place on a command line."""
    put(znodes, "g", "t", 60)
    file = tmp_path / "zookeeper.properties"
    file.write_text("zookeeper.ssl.client.enable=true\n")
    good = run(line, "--zookeeper-config", str(file))
    file.write_text("zookeeper.sll=true\n")
    bad = run(line, "--zookeeper-config", str(file))

    assert (good.exit_code, bad.exit_code) == (3, 2)
    assert "there is no property 'zookeeper.sll'" in bad.stderr


def test_who_says_dry_run_is_told_how(line: CommandLine, znodes: Ensemble) -> None:
    """Other tools have the option; here it is what happens without --yes."""
    done = run(line, "--dry-run")

    assert (done.exit_code, "Without --yes it is a dry run." in done.stderr) == (2, True)
