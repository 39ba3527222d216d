"""Bulk writes: checked as a whole, each group written as a whole."""

import json
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from client.blocking import BlockingClient
from client.exceptions import OutcomeUnknown
from client.offsets import OffsetAndMetadata
from client.spark.source.stream_offsets import parse_pin
from client.spark.tables import bulk
from client.spark.tables.bulk import (
    BulkWriteError,
    How,
    NewOffset,
    bulk_write,
    by_group,
    check,
    next_offset,
    normal_columns,
    plan_group,
    summary,
    write_report,
)
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition
from tests.spark.tables.fakes import FakeGroups

AS_IT_IS = How()


def tp(partition: int, topic: str = "t") -> TopicPartition:
    """Return a partition."""
    return TopicPartition(topic, partition)


def row(group: str, partition: int, offset: int, **more: Any) -> dict[str, Any]:
    """Return a row."""
    return {"group": group, "topic": "t", "partition": partition, "offset": offset, **more}


def written(
    groups: FakeGroups, rows: list[dict[str, Any]], how: How = AS_IT_IS
) -> list[bulk.GroupResult]:
    """Write *rows*."""
    wanted = by_group(normal_columns(pa.Table.from_pylist(rows)))
    return bulk_write(cast("BlockingClient", groups), wanted, how)


def statuses(results: list[bulk.GroupResult]) -> dict[str, str]:
    """Return what became of each group."""
    return {result.group: result.status for result in results}


@pytest.fixture
def groups() -> FakeGroups:
    """Two groups, one of them with a member."""
    fake = FakeGroups()
    fake.offsets = {
        "idle": {tp(0): OffsetAndMetadata(5), tp(1): OffsetAndMetadata(6)},
        "busy": {tp(0): OffsetAndMetadata(5)},
    }
    fake.members = {"busy": ["m"]}
    return fake


def test_a_reset_replaces_what_the_rows_name(groups: FakeGroups) -> None:
    """Other partitions stay; a group that isn't there is made; one commit for each."""
    results = written(groups, [row("new", 3, 9, leader_epoch=4, metadata="m"), row("idle", 0, 1)])

    assert statuses(results) == {"idle": "written", "new": "written"}
    assert groups.offsets["idle"] == {tp(0): OffsetAndMetadata(1), tp(1): OffsetAndMetadata(6)}
    assert groups.offsets["new"] == {tp(3): OffsetAndMetadata(9, "m", 4)}
    assert sorted(groups.commits) == ["idle", "new"]


def test_what_is_there_already_is_not_written(groups: FakeGroups) -> None:
    """To repeat a write that broke off costs nothing, and moves no times."""
    results = written(groups, [row("idle", 0, 5), row("idle", 1, 6)])

    assert statuses(results) == {"idle": "unchanged"}
    assert groups.commits == []


def test_one_refused_group_keeps_all_from_being_written(groups: FakeGroups) -> None:
    """Half a migration is worse than none; who wants it says so."""
    rows = [row("busy", 0, 1), row("idle", 0, 1)]
    results = written(groups, rows)

    assert statuses(results) == {"busy": "refused", "idle": "not written"}
    assert groups.commits == []
    with pytest.raises(BulkWriteError, match="of 2 groups 2 were not written and 0 were: 'busy'"):
        check(results, How())

    how = How(skip_refused=True)
    results = written(groups, rows, how)

    assert statuses(results) == {"busy": "refused", "idle": "written"}
    check(results, how)
    assert groups.commits == ["idle"]
    assert summary(results) == "1 refused, 1 written"


def test_a_dry_run_writes_nothing(groups: FakeGroups) -> None:
    """And says what would be written, and what would not."""
    results = written(groups, [row("busy", 0, 1), row("idle", 0, 1)], How(dry_run=True))

    assert statuses(results) == {"busy": "refused", "idle": "planned"}
    assert groups.commits == []
    check(results, How(dry_run=True))


def test_force_removes_the_members_first(
    groups: FakeGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come back, at times before the commit; then they are removed again."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    groups.coming_back = 3
    results = written(groups, [row("busy", 0, 1)], How(force=True))

    assert statuses(results) == {"busy": "written"}
    assert groups.offsets["busy"] == {tp(0): OffsetAndMetadata(1)}

    groups.members["busy"] = ["m"]
    groups.coming_back = 10**6
    results = written(groups, [row("busy", 0, 2)], How(force=True))

    assert statuses(results) == {"busy": "failed"}
    assert "its members come back at once" in str(results[0].message)


def test_without_force_members_that_come_meanwhile_win(
    groups: FakeGroups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator has the last word: nothing of the group is stored."""
    fetch = groups.fetch_offsets

    def join_meanwhile(group: str, partitions: Any) -> dict[TopicPartition, OffsetAndMetadata]:
        groups.members[group] = ["m"]
        return fetch(group, partitions)

    monkeypatch.setattr(groups, "fetch_offsets", join_meanwhile)
    results = written(groups, [row("idle", 0, 1)])

    assert statuses(results) == {"idle": "failed"}
    with pytest.raises(BulkWriteError, match="'idle': has members"):
        check(results, How())


def test_a_commit_that_was_stored_in_part_is_undone(groups: FakeGroups) -> None:
    """Whatever the coordinator refuses, a group has all of it or nothing."""
    before = dict(groups.offsets["idle"])
    groups.refuses = {tp(2): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    rows = [row("idle", 0, 1), row("idle", 2, 1), row("idle", 3, 1)]
    results = written(groups, rows)

    assert statuses(results) == {"idle": "failed"}
    assert "OFFSET_METADATA_TOO_LARGE" in str(results[0].message)
    assert groups.offsets["idle"] == before


def test_an_unknown_outcome_is_said_and_the_others_go_on(groups: FakeGroups) -> None:
    """One group's trouble is not another's."""
    groups.fails = {"idle": OutcomeUnknown("no answer")}
    results = written(groups, [row("idle", 0, 1), row("new", 0, 1)])

    assert statuses(results) == {"idle": "unknown", "new": "written"}
    with pytest.raises(BulkWriteError, match="1 were not written and 1 were: 'idle': no answer"):
        check(results, How())


def test_what_is_overwritten_is_told_before_it_is(groups: FakeGroups, tmp_path: Path) -> None:
    """A report that can't be written must not be found out when the old offsets are gone."""
    table = normal_columns(pa.Table.from_pylist([row("idle", 0, 1)]))
    before = groups.fetch_offsets("idle", None)
    client = cast("BlockingClient", groups)

    with pytest.raises(FileNotFoundError):
        bulk_write(client, by_group(table), How(), str(tmp_path / "nowhere" / "report"))
    assert groups.fetch_offsets("idle", None) == before
    assert groups.commits == []


def test_the_report_has_what_it_takes_to_undo(groups: FakeGroups, tmp_path: Path) -> None:
    """A line for each partition, and one for a group without a change."""
    results = written(groups, [row("idle", 0, 1), row("busy", 0, 5)], How(force=True))
    write_report(results, str(tmp_path / "report"))
    lines = [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()]

    assert lines == [
        {"group": "busy", "status": "unchanged", "message": None},
        {
            "group": "idle",
            "status": "written",
            "message": None,
            "topic": "t",
            "partition": 0,
            "old_offset": 5,
            "old_metadata": "",
            "old_leader_epoch": -1,
            "new_offset": 1,
            "new_metadata": "",
            "new_leader_epoch": -1,
        },
    ]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"group": "g", "topic": "t"}], "no column partition, offset; to write group_offsets"),
        ([row("g", 0, 1) | {"group": None}, row("g", 1, 1)], "column group is null in 1 rows"),
        ([row("g", 0, -1)], "every offset is a number from 0 .* such as group 'g', t-0: offset -1"),
        ([row("g", -1, 1)], "every partition is a number from 0"),
        ([row("g", 0, 1), row("g", 0, 2)], "can be written only once; 1 .* group 'g', t-0"),
        ([row("g", 2**40, 1)], "column partition can't be read as int32"),
        ([row("g", 0, 1, metadata=b"\xff")], "column metadata can't be read as string"),
    ],
)
def test_rows_that_make_no_sense_are_refused_as_a_whole(
    groups: FakeGroups, rows: list[dict[str, Any]], message: str
) -> None:
    """Before anything is looked at, with examples."""
    with pytest.raises(BulkWriteError, match=message):
        written(groups, rows)

    assert groups.commits == []


@pytest.mark.parametrize(
    ("group", "wanted", "message"),
    [
        ("x" * 256, {tp(0): NewOffset(1, None, None)}, "the group id isn't legal"),
        ("g", {tp(0, "t\n"): NewOffset(1, None, None)}, "isn't legal: it contains control"),
        ("g", {tp(3, "known"): NewOffset(1, None, None)}, "registered with 3 partitions"),
        ("g", {tp(n): NewOffset(1, None, None) for n in range(10_001)}, "more than one commit"),
        ("g", {tp(n): NewOffset(1, None, "x" * 4_000) for n in range(300)}, "larger than a req"),
    ],
)
def test_a_group_that_can_not_be_written_as_a_whole_is_refused(
    group: str, wanted: dict[TopicPartition, NewOffset], message: str
) -> None:
    """The coordinator would refuse it, too, but later and in part."""
    plan = plan_group(group, wanted, {}, state="Empty", num_partitions={"known": 3}, force=False)

    assert plan.refusal is not None
    assert message in plan.refusal


OFFSET = st.integers(0, 20)
METADATA = st.none() | st.sampled_from(["", "mine", "gc1:9:0", "gc1:3:4"])


@given(
    st.none() | st.builds(OffsetAndMetadata, OFFSET, METADATA.map(lambda m: m or ""), OFFSET),
    st.builds(NewOffset, OFFSET, st.none() | OFFSET, METADATA),
)
def test_the_counter_of_resets_goes_up_whenever_a_pinned_offset_moves(
    stored: OffsetAndMetadata | None, wanted: NewOffset
) -> None:
    """An idempotent sink would skip the ranges that it has seen under the old one."""
    new = next_offset(wanted, stored)
    old = parse_pin(stored.metadata) if stored else None
    pin = parse_pin(new.metadata)

    assert new.offset == wanted.offset
    if wanted.leader_epoch is not None:
        assert new.leader_epoch == wanted.leader_epoch
    if stored is not None and old is not None and new.offset != stored.offset:
        if wanted.metadata == "mine":
            assert new.metadata == "mine"  # Whoever says what it is to be gets it.
        else:
            assert pin is not None
            assert pin.resets > old.resets
            if wanted.metadata:
                assert pin.end == int(wanted.metadata.split(":")[1])
    elif wanted.metadata is not None:
        assert new.metadata == wanted.metadata
    elif stored is not None and new.offset == stored.offset:
        assert new.metadata == stored.metadata
    else:
        assert not new.metadata


def test_other_columns_are_left_aside() -> None:
    """So that what was read as a table can be written back as it is."""
    table = normal_columns(pa.Table.from_pylist([row("g", 0, 1, committed_at=3, x=1)]))

    assert table.column_names == [
        "group",
        "topic",
        "partition",
        "offset",
        "leader_epoch",
        "metadata",
    ]
