"""Importing a Kafka cluster's groups: what is planned, done, and said."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from client.exceptions import CommitRefused, CoordinatorUnavailable
from client.kafka_groups import (
    Existing,
    ImportReport,
    KafkaCluster,
    KafkaGroup,
    KafkaGroupError,
    KafkaUnavailable,
    __main__ as command_line,
    import_groups,
)
from client.kafka_groups.__main__ import parse_settings, read_settings
from client.offsets import OffsetAndMetadata
from protocol.messages import DescribedGroup
from protocol.partition import TopicPartition

A, B, U = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
Stored = dict[TopicPartition, OffsetAndMetadata]


def at(offset: int, metadata: str = "", epoch: int = -1) -> OffsetAndMetadata:
    """Return a committed offset."""
    return OffsetAndMetadata(offset, metadata, epoch)


class FakeCluster:
    """A cluster's groups in memory."""

    def __init__(self, **groups: tuple[str, Stored]) -> None:
        self.states = groups
        self.broken: set[str] = set()

    def groups(self) -> list[KafkaGroup]:
        """Return all of them."""
        return [KafkaGroup(name, state) for name, (state, _) in sorted(self.states.items())]

    def group(self, name: str) -> KafkaGroup:
        """Return one."""
        return KafkaGroup(name, self.states.get(name, ("DEAD", {}))[0])

    def offsets(self, name: str) -> Stored:
        """Return its offsets."""
        if name in self.broken:
            raise KafkaUnavailable("no answer")
        return dict(self.states.get(name, ("DEAD", {}))[1])


class FakeCoordinator:
    """The coordinator's groups in memory; some have members."""

    def __init__(self, **groups: Stored) -> None:
        self.stored = groups
        self.states: dict[str, str] = {}
        self.commits: list[str] = []
        self.meanwhile: Stored = {}
        self.away = False

    def describe_groups(self, groups: Sequence[str]) -> list[DescribedGroup]:
        """Return a state each."""
        return [
            DescribedGroup(0, None, name, self.states.get(name, "Empty"), "", "", 0, ())
            for name in groups
        ]

    def fetch_offsets(self, group: str) -> Stored:
        """Return what is stored; others write right afterwards."""
        stored = dict(self.stored.get(group, {}))
        if self.meanwhile:
            self.stored.setdefault(group, {}).update(self.meanwhile)
        return stored

    def commit(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        expected: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Store what is as expected."""
        if self.away:
            raise CoordinatorUnavailable("nobody there")
        assert expected is not None
        assert expected.keys() == offsets.keys()
        self.commits.append(group)
        stored = self.stored.setdefault(group, {})
        errors = {}
        for tp, value in offsets.items():
            assert isinstance(value, OffsetAndMetadata)
            if stored.get(tp, at(-1)).offset == expected[tp]:
                stored[tp] = value
            else:
                errors[tp] = 1003
        if errors:
            raise CommitRefused(errors)


def statuses(report: ImportReport) -> dict[str, str]:
    """Return the status of each group."""
    return {one.group: one.status for one in report.groups}


def test_offsets_are_copied_with_what_belongs_to_them() -> None:
    """Metadata may be an application's own state, and the epoch tells of truncation."""
    cluster = FakeCluster(g=("EMPTY", {A: at(5, "mine", 3), B: at(7)}))
    coordinator = FakeCoordinator()

    report = import_groups(cluster, coordinator)

    assert coordinator.stored == {"g": {A: at(5, "mine", 3), B: at(7)}}
    assert statuses(report) == {"g": "imported"}
    assert not report.failed


def test_a_dry_run_changes_nothing_and_says_the_same() -> None:
    """What it shows is what will be done."""
    cluster = FakeCluster(g=("EMPTY", {A: at(5)}))
    coordinator = FakeCoordinator()

    report = import_groups(cluster, coordinator, dry_run=True)

    assert coordinator.stored == {}
    assert statuses(report) == {"g": "to import"}


def test_importing_again_writes_nothing() -> None:
    """A migration is rehearsed, and repeated on the day."""
    cluster = FakeCluster(g=("EMPTY", {A: at(5)}))
    coordinator = FakeCoordinator()
    import_groups(cluster, coordinator)

    assert statuses(import_groups(cluster, coordinator)) == {"g": "unchanged"}
    assert coordinator.commits == ["g"]


def test_a_group_with_members_is_skipped_unless_forced() -> None:
    """Its offsets move on; what is copied is old at once."""
    cluster = FakeCluster(a=("STABLE", {A: at(5)}), b=("UNKNOWN", {A: at(5)}))
    coordinator = FakeCoordinator()

    report = import_groups(cluster, coordinator)
    assert statuses(report) == {"a": "skipped", "b": "skipped"}
    assert "has members in Kafka" in report.groups[0].reason
    assert coordinator.stored == {}

    report = import_groups(cluster, coordinator, force=True)
    assert statuses(report) == {"a": "imported", "b": "imported"}
    assert "a moment's offsets" in report.groups[0].reason


def test_a_group_with_members_at_the_coordinator_is_never_written_to() -> None:
    """Only they can commit there; force is about Kafka."""
    cluster = FakeCluster(g=("EMPTY", {A: at(5)}))
    coordinator = FakeCoordinator()
    coordinator.states["g"] = "Stable"

    report = import_groups(cluster, coordinator, force=True)

    assert statuses(report) == {"g": "skipped"}
    assert "members at the coordinator (Stable)" in report.groups[0].reason


@pytest.mark.parametrize(
    ("existing", "left"),
    [
        (Existing.FORWARD, {A: at(9), B: at(7)}),
        (Existing.KEEP, {A: at(9), B: at(3)}),
        (Existing.OVERWRITE, {A: at(5), B: at(7)}),
    ],
)
def test_what_is_there_already_is_treated_as_asked(existing: Existing, left: Stored) -> None:
    """A group that has moved on must not be turned back by a repeated import."""
    cluster = FakeCluster(g=("EMPTY", {A: at(5), B: at(7), U: at(1)}))
    coordinator = FakeCoordinator(g={A: at(9), B: at(3)})

    import_groups(cluster, coordinator, existing=existing)

    assert coordinator.stored["g"] == {**left, U: at(1)}


def test_an_offset_that_changes_meanwhile_is_left_alone_and_reported() -> None:
    """Somebody else works on the group; the user decides."""
    cluster = FakeCluster(g=("EMPTY", {A: at(5), B: at(7)}))
    coordinator = FakeCoordinator()
    coordinator.meanwhile = {A: at(6)}

    report = import_groups(cluster, coordinator)

    assert coordinator.stored["g"] == {A: at(6), B: at(7)}
    assert report.failed
    (group,) = report.groups
    assert group.reason == "1 partitions were not imported, 1 were"
    assert "OFFSET_CONFLICT" in group.partitions[0].status
    assert group.partitions[1].status == "imported"


def test_one_groups_trouble_does_not_stop_the_others() -> None:
    """Of a thousand groups one is always odd."""
    cluster = FakeCluster(a=("EMPTY", {A: at(5)}), b=("EMPTY", {A: at(5)}), c=("EMPTY", {}))
    cluster.broken.add("a")
    coordinator = FakeCoordinator()

    report = import_groups(cluster, coordinator)

    assert statuses(report) == {"a": "failed", "b": "imported", "c": "skipped"}
    assert report.failed
    assert report.groups[0].reason == "no answer"


def test_a_coordinator_that_goes_away_is_a_failure_of_the_group() -> None:
    """Nothing of it is said to be imported."""
    coordinator = FakeCoordinator()
    coordinator.away = True

    report = import_groups(FakeCluster(g=("EMPTY", {A: at(5)})), coordinator)

    (group,) = report.groups
    assert (group.status, group.reason) == ("failed", "nobody there")
    assert group.partitions[0].status == "nobody there"


def test_groups_are_chosen_by_name_or_by_pattern() -> None:
    """One without a name belongs to consumers that have none."""
    cluster = FakeCluster(**{"a-1": ("EMPTY", {A: at(1)}), "b-1": ("EMPTY", {A: at(1)})})
    cluster.states[""] = ("EMPTY", {A: at(1)})

    assert list(statuses(import_groups(cluster, FakeCoordinator()))) == ["a-1", "b-1"]
    assert list(statuses(import_groups(cluster, FakeCoordinator(), pattern="a-.*"))) == ["a-1"]
    assert statuses(import_groups(cluster, FakeCoordinator(), ["b-1", "x"])) == {
        "b-1": "imported",
        "x": "skipped",
    }


def test_only_the_topics_asked_for_are_imported() -> None:
    """A cluster's group may read what the coordinator has nothing to do with."""
    coordinator = FakeCoordinator()

    import_groups(FakeCluster(g=("EMPTY", {A: at(1), U: at(2)})), coordinator, topics={"u"})

    assert coordinator.stored == {"g": {U: at(2)}}


def test_groups_may_get_other_names_but_not_the_same() -> None:
    """Two clusters often have groups of the same name."""
    cluster = FakeCluster(a=("EMPTY", {A: at(1)}), b=("EMPTY", {A: at(2)}))
    coordinator = FakeCoordinator()
    import_groups(cluster, coordinator, into=lambda name: f"east-{name}")

    assert coordinator.stored == {"east-a": {A: at(1)}, "east-b": {A: at(2)}}
    with pytest.raises(ValueError, match="several groups would be imported into all"):
        import_groups(cluster, coordinator, into=lambda _: "all")


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"groups": ["g"], "pattern": "g"}, "either groups or a pattern"),
        ({"groups": "g"}, "groups must be several names"),
        ({"pattern": "("}, "is no regular expression"),
    ],
)
def test_wrong_arguments_are_named(how: dict[str, Any], error: str) -> None:
    """Before anything is asked."""
    with pytest.raises((ValueError, TypeError), match=error):
        import_groups(FakeCluster(), FakeCoordinator(), **how)


offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from("tu"), st.integers(0, 3)),
    st.integers(0, 9).map(at),
    max_size=6,
)


@given(offsets, offsets, st.sampled_from(Existing), st.booleans())
def test_an_import_does_exactly_what_it_reports(
    kafka: Stored, stored: Stored, existing: Existing, dry_run: bool
) -> None:
    """Nothing is lost, nothing else is touched, and forward never turns back."""
    coordinator = FakeCoordinator(g=dict(stored))

    report = import_groups(
        FakeCluster(g=("EMPTY", kafka)), coordinator, existing=existing, dry_run=dry_run
    )

    after = coordinator.stored["g"]
    (group,) = report.groups
    if dry_run:
        assert after == stored
        import_groups(FakeCluster(g=("EMPTY", kafka)), coordinator, existing=existing)
        after = coordinator.stored["g"]
    wrote = {"to import", "imported"}
    moved = {part.tp: part.kafka for part in group.partitions if part.status in wrote}
    assert after == stored | moved
    if existing is not Existing.OVERWRITE:
        assert all(after[tp].offset >= value.offset for tp, value in stored.items())


def test_the_report_is_a_table_and_json() -> None:
    """For people, and for the script of the migration."""
    cluster = FakeCluster(a=("EMPTY", {A: at(5), B: at(7)}), b=("STABLE", {A: at(5)}))
    report = import_groups(cluster, FakeCoordinator(a={A: at(9)}), dry_run=True)

    assert [line.split(maxsplit=7) for line in report.to_lines()] == [
        ["GROUP", "INTO", "STATE", "TOPIC", "PARTITION", "STORED", "KAFKA", "STATUS"],
        ["a", "a", "EMPTY", "t", "0", "9", "5", "kept"],
        ["a", "a", "EMPTY", "t", "1", "-", "7", "to import"],
        ["b", "b", "STABLE", "-", "-", "-", "-", f"skipped: {report.groups[1].reason}"],
        ["Groups:", "1", "to", "import,", "1", "skipped."],
    ]
    assert len(report.to_lines(each_partition=False)) == 4
    assert import_groups(FakeCluster(), FakeCoordinator()).to_lines()[-1] == "Groups: no groups."
    found = json.loads(json.dumps(report.to_dict()))
    assert found["groups"][0]["partitions"][1] == {
        "topic": "t",
        "partition": 1,
        "offset": 7,
        "stored": None,
        "status": "to import",
    }


def test_settings_come_from_a_file_without_their_values_in_errors(tmp_path: Path) -> None:
    """Passwords stay off command lines and out of logs."""
    file = tmp_path / "kafka.properties"
    file.write_text("# a comment\n\nsasl.password = a=b \nbootstrap.servers=k:9092\n")

    assert read_settings(None, file) == {"sasl.password": "a=b", "bootstrap.servers": "k:9092"}
    assert read_settings("k2:9092", file)["bootstrap.servers"] == "k2:9092"
    with pytest.raises(ValueError, match=r"x, line 2: not of the form") as caught:
        parse_settings("a=1\nsecret", "x")
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="say --kafka"):
        read_settings(None, None)
    with pytest.raises(ValueError, match="No such file"):
        read_settings("k:9092", tmp_path / "none")


def cli(monkeypatch: pytest.MonkeyPatch, found: ImportReport | Exception, *args: str) -> Any:
    """Run the command; the import returns or raises *found*."""

    def imported(*_args: object, **_how: object) -> ImportReport:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(command_line, "import_groups", imported)
    return CliRunner().invoke(
        command_line.main, ["import", "--kafka", "k:9092", "--coordinator", "h:1", *args]
    )


def test_the_command_ends_with_what_became_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 for done, 1 for a group that failed, 2 for nobody there or a wrong call."""
    good = import_groups(FakeCluster(g=("EMPTY", {A: at(5)})), FakeCoordinator(), dry_run=True)
    broken = FakeCluster(g=("EMPTY", {A: at(5)}))
    broken.broken.add("g")

    done = cli(monkeypatch, good, "--all-groups")
    assert (done.exit_code, "to import" in done.output) == (0, True)
    assert (
        "Dry run: nothing was changed."
        in cli(monkeypatch, good, "--all-groups", "--dry-run").output
    )
    as_json = cli(monkeypatch, good, "--all-groups", "--json", "--dry-run")
    assert json.loads(as_json.output)["groups"][0]["group"] == "g"
    assert cli(monkeypatch, import_groups(broken, FakeCoordinator()), "--all-groups").exit_code == 1
    away = cli(monkeypatch, KafkaUnavailable("k:9092: no answer"), "--group", "g")
    assert (away.exit_code, away.output) == (2, "Error: k:9092: no answer\n")
    assert cli(monkeypatch, ValueError("bad pattern"), "--pattern", "(").exit_code == 2
    assert "exactly one of" in cli(monkeypatch, good).output


def test_a_cluster_that_is_not_there_is_unavailable_within_its_timeout() -> None:
    """And the message says where, and why the last attempt failed."""
    cluster = KafkaCluster("127.0.0.1:1", timeout_s=0.5)

    with pytest.raises(KafkaUnavailable, match=r"Kafka at 127.0.0.1:1: its groups: _TIMED_OUT"):
        cluster.groups()
    with pytest.raises(KafkaUnavailable, match="the commit to group 'g'"):
        cluster.commit("g", {A: 5})
    with pytest.raises(KafkaUnavailable, match="group 'g'"):
        cluster.group("g")
    with pytest.raises(KafkaUnavailable, match="the offsets of group 'g'"):
        cluster.offsets("g")
    cluster.commit("g", {})


def test_wrong_settings_are_refused_at_once() -> None:
    """The name of the setting is in the message, and no other setting's value."""
    with pytest.raises(KafkaGroupError, match=r"no\.such\.setting") as caught:
        KafkaCluster({"bootstrap.servers": "k:1", "sasl.password": "s3", "no.such.setting": "x"})
    assert "s3" not in str(caught.value)
    with pytest.raises(KafkaGroupError, match=r"no\.such\.setting"):
        import_groups({"bootstrap.servers": "k:1", "no.such.setting": "x"}, "h:1")


def test_without_the_kafka_client_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is an extra that few need."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    with pytest.raises(KafkaGroupError, match=r"pip install group-coordinator\[kafka\]"):
        KafkaCluster("k:9092")
