"""The Delta sink on real tables in local folders, but without Spark."""

import json
import math
import os
import pickle
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from pyspark.sql.types import DecimalType, FloatType, StructField, StructType

from client.spark.sinks import DeltaSink, SinkError, delta_files, delta_log
from client.spark.sinks.delta import check_columns
from client.spark.sinks.delta_files import Writer, Written, partition_value, split, statistics
from client.spark.sinks.delta_log import TableLog, positions_of, transactions_of
from client.spark.sinks.ranges import RANGE_COLUMNS, PartitionKey, Stored
from tests.fakes.frames import SCHEMA, Frame, batch_of
from tests.spark.delta_support import offsets

KEY = PartitionKey("g", "events", 0)
COLUMNS = ("topic", "partition", "offset", "range_start", "range_end", "generation")
NOW_S = 1_800_000_000.0


def sink_of(path: Path, group: str = "g", **given: Any) -> DeltaSink:
    """Return a driver's sink; another driver has another one."""
    return DeltaSink(path, group, fsync=False, **given)


def stored(path: Path) -> dict[PartitionKey, Stored]:
    """Return the positions as a driver that begins reads them."""
    log = TableLog(str(path), {}, fsync=False)
    log.refresh()
    return positions_of(log.transactions)


# --- ranges -------------------------------------------------------------------------------------


def test_a_sink_remembers_ranges_over_restarts_and_drivers(tmp_path: Path) -> None:
    """Another driver knows nothing but the table."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1), (1, 5, 7, 1)), 0)
    sink_of(tmp_path)(batch_of((0, 3, 6, 2), (1, 5, 7, 2)), 0)
    sink_of(tmp_path)(batch_of((0, 0, 3, 1)), 1)
    sink_of(tmp_path, "other")(batch_of((0, 0, 3, 1)), 1)

    assert offsets(tmp_path) == sorted(
        [(0, 0), (0, 1), (0, 2), *((0, at) for at in range(6)), (1, 5), (1, 6)]
    )
    assert stored(tmp_path)[KEY] == Stored(3, 6, 2, late_end=3)


def test_a_batch_is_one_commit_with_a_transaction_for_each_partition(tmp_path: Path) -> None:
    """Other writers that know application transactions see how far this one is."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1), (1, 5, 7, 1)), 0)
    before = DeltaTable(tmp_path).version()
    sink_of(tmp_path)(batch_of((0, 3, 6, 2), (1, 7, 9, 2)), 1)

    table = DeltaTable(tmp_path)
    assert table.version() == before + 1
    assert [table.transaction_version(f"g/events/{number}") for number in (0, 1)] == [6, 9]


def test_a_batch_whose_rows_are_all_dropped_still_moves_the_position(tmp_path: Path) -> None:
    """Else the next range would look like a gap."""
    sink = sink_of(tmp_path, transform=lambda rows: Frame(rows.rows.slice(0, 0)))

    sink(batch_of((0, 0, 3, 1)), 0)
    sink(batch_of((0, 3, 5, 1)), 1)

    assert stored(tmp_path)[KEY].end == 5
    assert offsets(tmp_path) == []


class Observed(Frame):
    """Rows that tell when they are read, and to which something happens after each time."""

    def __init__(self, rows: pa.Table, after: Callable[[], object] = lambda: None) -> None:
        super().__init__(rows)
        self.reads = 0
        self._after = after

    def mapInArrow(self, function: Any, schema: str) -> Frame:  # noqa: N802 - Spark's name.
        """Read them."""
        self.reads += 1
        found = super().mapInArrow(function, schema)
        self._after()
        return found

    def distinct(self) -> Frame:
        """Read them."""
        raise AssertionError("the ranges were looked for in a job of its own")

    def persist(self) -> None:
        """Keep them."""
        raise AssertionError("the batch was kept, and is read once")


def files_of(path: Path) -> tuple[int, int]:
    """Return how many files are in the table, and how many in its folder."""
    return len(DeltaTable(path).file_uris()), len(list(path.rglob("part-*.parquet")))


def test_a_batch_is_read_once_and_not_kept(tmp_path: Path) -> None:
    """To keep it, and to look for its ranges first, takes twice as long as to write it."""
    batch: Any = Observed(batch_of((0, 0, 3, 1), (1, 5, 7, 1)).rows)

    sink_of(tmp_path)(batch, 0)

    assert batch.reads == 1
    assert stored(tmp_path) == {
        KEY: Stored(0, 3, 1),
        KEY._replace(partition=1): Stored(5, 7, 1),
    }


def test_of_a_batch_with_a_range_that_comes_again_only_the_others_are_written(
    tmp_path: Path,
) -> None:
    """A driver that takes over brings the last range of another one beside its own next one."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1), (1, 0, 2, 1)), 0)
    sink_of(tmp_path)(batch_of((0, 0, 3, 2), (1, 2, 4, 2)), 0)

    assert offsets(tmp_path) == [(0, 0), (0, 1), (0, 2), *((1, at) for at in range(4))]
    assert files_of(tmp_path) == (2, 2)


@pytest.mark.parametrize(
    ("again", "error"),
    [((0, 0, 3, 2), None), ((0, 4, 6, 1), "come next, but"), (None, "two range")],
)
def test_rows_that_were_written_in_vain_are_deleted(
    tmp_path: Path, again: tuple[int, int, int, int] | None, error: str | None
) -> None:
    """A query that is restarted again and again would fill the disk with them."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1)), 0)
    batch = batch_of(again) if again else batch_of((0, 3, 4, 1), (0, 4, 5, 1))

    with pytest.raises(SinkError, match=error) if error else nullcontext():
        sink_of(tmp_path)(batch, 1)

    assert offsets(tmp_path) == [(0, 0), (0, 1), (0, 2)]
    assert files_of(tmp_path) == (1, 1)


def test_a_driver_that_is_overtaken_while_it_writes_looks_afterwards(tmp_path: Path) -> None:
    """What it knew of the table when it began is old by then."""
    owner, late = sink_of(tmp_path), sink_of(tmp_path)
    owner(batch_of((0, 0, 1, 1), (1, 0, 1, 1)), 0)
    late.positions()
    overtake = partial(owner, batch_of((0, 1, 3, 2)), 1)
    batch: Any = Observed(batch_of((0, 1, 3, 1), (1, 1, 2, 1)).rows, after=overtake)

    late(batch, 1)

    assert offsets(tmp_path) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    assert files_of(tmp_path) == (3, 3)


def test_a_transform_may_hide_the_ranges(tmp_path: Path) -> None:
    """They are looked for before it."""
    sink = sink_of(tmp_path, transform=lambda rows: rows.select("partition", "offset"))

    sink(batch_of((0, 0, 3, 1)), 0)
    sink(batch_of((0, 0, 3, 1), (1, 0, 1, 1)), 1)

    assert offsets(tmp_path) == [(0, 0), (0, 1), (0, 2), (1, 0)]


def overtaking(*batches: Any, by: DeltaSink) -> Callable[[], float]:
    """Return a clock that lets another driver write first.

    A driver asks for the time when its files are written and its commit isn't: the worst moment.
    """
    following = iter(batches)

    def overtake() -> float:
        for batch in following:
            by(batch, 1)
        return NOW_S

    return overtake


def test_of_two_drivers_with_the_same_range_the_late_one_adds_no_rows(tmp_path: Path) -> None:
    """It decided on a position that is not true any more when its files are there."""
    owner = sink_of(tmp_path)
    owner(batch_of((0, 0, 1, 1)), 0)

    late = sink_of(tmp_path, clock=overtaking(batch_of((0, 1, 3, 2)), by=owner))
    late(batch_of((0, 1, 3, 1)), 1)

    assert offsets(tmp_path) == [(0, 0), (0, 1), (0, 2)]


def test_drivers_with_other_partitions_write_at_once(tmp_path: Path) -> None:
    """Each commit goes behind the other one; no file is written twice for it."""
    one = sink_of(tmp_path)
    one(batch_of((0, 0, 1, 1)), 0)

    sink_of(tmp_path, clock=overtaking(batch_of((0, 1, 3, 1)), batch_of((0, 3, 4, 1)), by=one))(
        batch_of((1, 0, 2, 1)), 0
    )

    assert offsets(tmp_path) == [*((0, at) for at in range(4)), (1, 0), (1, 1)]
    assert len(list(tmp_path.glob("*.parquet"))) == len(DeltaTable(tmp_path).file_uris()) == 4


def test_two_drivers_may_make_the_table_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them makes it; the other must not lay its form over the first one's rows."""
    make = TableLog.create
    others = iter([sink_of(tmp_path)])

    def make_late(log: TableLog, schema: StructType, partition_by: Any) -> None:
        for other in others:
            other(batch_of((1, 0, 2, 1)), 0)
        make(log, schema, partition_by)

    monkeypatch.setattr(TableLog, "create", make_late)
    sink_of(tmp_path)(batch_of((0, 0, 2, 1)), 0)

    assert offsets(tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_commit_whose_answer_was_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Object stores are asked again; taken for somebody else's commit, rows would come twice."""
    sink_of(tmp_path)(batch_of((0, 0, 2, 1)), 0)
    commit = TableLog.commit

    def answer_lost(log: TableLog, *args: Any, **kwargs: Any) -> bool:
        commit(log, *args, **kwargs)
        return False

    monkeypatch.setattr(TableLog, "commit", answer_lost)
    sink_of(tmp_path)(batch_of((0, 2, 4, 1)), 1)

    assert offsets(tmp_path) == [(0, at) for at in range(4)]


def test_forget_lets_rows_be_written_once_more(tmp_path: Path) -> None:
    """After a reset that is meant."""
    sink = sink_of(tmp_path)
    sink(batch_of((0, 0, 3, 4), (1, 0, 2, 4)), 0)
    sink_of(tmp_path, "other")(batch_of((0, 0, 2, 4)), 0)
    with pytest.raises(SinkError, match=r"forget\(\)"):
        sink(batch_of((0, 0, 2, 4)), 1)

    assert sink.forget("events", 0) == 1
    sink(batch_of((0, 0, 2, 4)), 1)

    ends = {key.partition: end for key, end in sink.positions().items() if key.group == "g"}
    assert ends == {0: 2, 1: 2}
    assert sink.forget("unknown") == 0
    assert sink.forget() == 2
    assert [key.group for key in sink_of(tmp_path).positions()] == ["other"]


def test_upkeep_of_the_table_disturbs_no_driver(tmp_path: Path) -> None:
    """Optimize, vacuum and checkpoints are the library's, and may run at any time."""
    sink = sink_of(tmp_path, clock=lambda: NOW_S)
    for number in range(3):
        sink(batch_of((0, number, number + 1, 1)), number)

    def tidy() -> float:
        DeltaTable(tmp_path).optimize.compact()
        return NOW_S

    sink_of(tmp_path, clock=tidy)(batch_of((0, 3, 4, 1)), 3)
    table = DeltaTable(tmp_path)
    table.vacuum(full=True, dry_run=False)
    table.create_checkpoint()
    sink(batch_of((0, 4, 5, 1)), 4)

    assert offsets(tmp_path) == [(0, at) for at in range(5)]
    assert len(DeltaTable(tmp_path).file_uris()) == 3


def test_positions_are_read_from_checkpoints_when_old_commits_are_gone(tmp_path: Path) -> None:
    """A table of years has no commit of its first day; a driver that slept lacks some, too."""
    asleep = sink_of(tmp_path)
    for number in range(5):
        sink_of(tmp_path)(batch_of((number, 0, 2, 1)), 0)
        if number == 1:
            assert len(asleep.positions()) == 2
    DeltaTable(tmp_path).create_checkpoint()
    sink_of(tmp_path)(batch_of((0, 2, 4, 1)), 1)
    log = tmp_path / "_delta_log"
    for version in range(5):
        (log / f"{version:020d}.json").unlink()

    expected = {PartitionKey("g", "events", n): 4 if n == 0 else 2 for n in range(5)}
    assert sink_of(tmp_path).positions() == expected
    assert asleep.positions() == expected


def test_a_checkpoint_that_somebody_has_just_written_moves_the_table_to_it(tmp_path: Path) -> None:
    """Else the positions would be newer than the table that a commit is decided on."""
    for number in range(4):
        sink_of(tmp_path)(batch_of((0, number, number + 1, 1)), 0)
    DeltaTable(tmp_path).create_checkpoint()
    seen = DeltaTable(tmp_path, version=2)

    TableLog(str(tmp_path), {}, fsync=False)._begin(seen)

    assert seen.version() == 4


def test_a_log_with_a_hole_is_refused(tmp_path: Path) -> None:
    """Positions that are not known could mean rows twice."""
    sink = sink_of(tmp_path)
    for number in range(3):
        sink(batch_of((0, number, number + 1, 1)), number)
    (tmp_path / "_delta_log" / f"{2:020d}.json").unlink()

    with pytest.raises(SinkError, match=r"can't be read as a Delta table|is missing"):
        sink_of(tmp_path)(batch_of((0, 3, 4, 1)), 0)


# --- the table's form ---------------------------------------------------------------------------


def test_columns_may_grow_if_that_is_wanted_and_never_change(tmp_path: Path) -> None:
    """A reader of years of files needs one schema for all."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1)).select(*COLUMNS), 0)
    wider = batch_of((0, 3, 5, 1))

    with pytest.raises(SinkError, match="has no column 'name'; set merge_schema=True"):
        sink_of(tmp_path)(wider, 1)
    sink_of(tmp_path, merge_schema=True)(wider, 1)
    rows = batch_of((0, 5, 9, 1)).rows
    other: Any = Frame(rows.set_column(3, "name", rows["offset"]))
    with pytest.raises(SinkError, match="column 'name' is bigint, but string in"):
        sink_of(tmp_path, merge_schema=True)(other, 1)
    with pytest.raises(SinkError, match="partition_by is"):
        sink_of(tmp_path, partition_by=["name"], on_gap="accept")(batch_of((0, 8, 9, 1)), 2)
    sink_of(tmp_path)(batch_of((0, 5, 6, 1)).select(*COLUMNS), 3)
    names = DeltaTable(tmp_path).to_pyarrow_table().sort_by("offset")["name"].to_pylist()
    assert names == [None, None, None, "n3", "n4", None]


def test_two_drivers_may_bring_a_new_column_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are restarted with the new release one after the other, or together."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1)).select(*COLUMNS), 0)
    add = TableLog.add_columns
    others = iter([sink_of(tmp_path, merge_schema=True)])

    def add_late(log: TableLog, fields: Any) -> None:
        for other in others:
            other(batch_of((1, 0, 2, 1)), 0)
        add(log, fields)

    monkeypatch.setattr(TableLog, "add_columns", add_late)
    sink_of(tmp_path, merge_schema=True)(batch_of((0, 3, 5, 1)), 1)

    assert len(offsets(tmp_path)) == 7


def test_two_drivers_may_bring_different_new_columns_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slower one must add its own afterwards, or its values would be lost."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1)).select(*COLUMNS), 0)
    add = TableLog.add_columns
    other = batch_of((1, 0, 2, 1)).select(*COLUMNS).rows
    more: Any = Frame(other.append_column("more", pa.array([1, 2], pa.int64())))
    others = iter([sink_of(tmp_path, merge_schema=True)])

    def add_late(log: TableLog, fields: Any) -> None:
        for other in others:
            other(more, 0)
        add(log, fields)

    monkeypatch.setattr(TableLog, "add_columns", add_late)
    sink_of(tmp_path, merge_schema=True)(batch_of((0, 3, 5, 1)), 1)

    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by([("partition", "ascending")])
    assert sorted(name for name in found["name"].to_pylist() if name) == ["n3", "n4"]
    assert [value for value in found["more"].to_pylist() if value] == [1, 2]


def test_a_table_that_gets_another_form_while_a_batch_is_written_is_looked_at_anew(
    tmp_path: Path,
) -> None:
    """The files that are there already have the old columns."""
    sink_of(tmp_path)(batch_of((0, 0, 3, 1)), 0)
    rows = batch_of((0, 0, 3, 1)).rows
    changes = iter([rows.set_column(3, "name", rows["offset"])])

    def overwrite() -> float:
        for changed in changes:
            write_deltalake(tmp_path, changed, mode="overwrite", schema_mode="overwrite")
        return NOW_S

    with pytest.raises(SinkError, match="column 'name' is string, but bigint in"):
        sink_of(tmp_path, clock=overwrite)(batch_of((0, 3, 5, 1)), 1)
    assert len(offsets(tmp_path)) == 3


def test_a_sink_may_be_sent_elsewhere_after_it_was_used(tmp_path: Path) -> None:
    """Spark Connect sends it to its server; what the library holds can't go with it."""
    sink = sink_of(tmp_path)
    sink(batch_of((0, 0, 3, 1)), 0)

    pickle.loads(pickle.dumps(sink))(batch_of((0, 3, 5, 1)), 1)

    assert offsets(tmp_path) == [(0, at) for at in range(5)]


def test_a_task_writes_one_file_for_each_partition_of_the_table(tmp_path: Path) -> None:
    """However their rows are mixed; else there would be a file for each change."""
    rows = batch_of((0, 0, 6, 1)).rows
    mixed: Any = Frame(rows.set_column(3, "name", pa.array(["a", "b", None] * 2, pa.string())))
    batches = pa.Table.from_batches(mixed.rows.to_batches(max_chunksize=1))

    mixed = Frame(batches)
    sink_of(tmp_path, partition_by=["name"])(mixed, 0)

    assert len(list(tmp_path.glob("name=*/*.parquet"))) == 3


def test_partitions_of_the_table_are_made_as_told(tmp_path: Path) -> None:
    """So that readers can leave out what they don't need."""
    sink_of(tmp_path, partition_by=["topic", "partition"])(batch_of((0, 0, 3, 1), (1, 0, 2, 1)), 0)

    table = DeltaTable(tmp_path)
    folders = {Path(uri).relative_to(tmp_path).parent.as_posix() for uri in table.file_uris()}
    assert folders == {"topic=events/partition=0", "topic=events/partition=1"}
    assert table.to_pyarrow_table(filters=[("partition", "=", 1)])["offset"].to_pylist() == [0, 1]
    assert offsets(tmp_path) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    with pytest.raises(SinkError, match="partition_by names columns that the rows lack"):
        sink_of(tmp_path / "b", partition_by=["day"])(batch_of((0, 0, 3, 1)), 0)


HOSTILE = ["a/b", "../..", "50%25", "ä ö", "x" * 10_000, "a=b", "\n", "[red]", "'", None]


def test_hostile_names_and_values_come_back_as_they_were(tmp_path: Path) -> None:
    """They are data to the table, and never a path."""
    rows = batch_of((0, 0, len(HOSTILE), 1), topic="a/b%").rows
    frame: Any = Frame(rows.set_column(3, "name", pa.array(HOSTILE, pa.string())))

    sink_of(tmp_path / "t", "g/[b]\n", partition_by=["name"])(frame, 0)

    found = DeltaTable(tmp_path / "t").to_pyarrow_table().sort_by("offset")["name"].to_pylist()
    assert found == HOSTILE
    assert list(stored(tmp_path / "t")) == [PartitionKey("g/[b]\n", "a/b%", 0)]
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_folders_name_is_the_whole_value(tmp_path: Path) -> None:
    """Some readers, such as Polars, look at it and not into the log."""
    values = [value for value in HOSTILE if value and len(value) < 100]
    rows = batch_of((0, 0, len(values), 1)).rows
    frame: Any = Frame(rows.set_column(3, "=%", pa.array(values, pa.string())))

    sink_of(tmp_path, partition_by=["=%"])(frame, 0)

    folders = {path.name for path in tmp_path.iterdir()} - {"_delta_log"}
    assert folders == {f"%3D%25={quote(value, safe='')}" for value in values}


@given(group=st.text(), topic=st.text(), partition=st.integers(0, 2**31 - 1))
def test_the_name_of_a_position_is_that_of_no_other(group: str, topic: str, partition: int) -> None:
    """Else a group could take another one's ranges for its own."""
    key = PartitionKey(group, topic, partition)

    assert PartitionKey.of_app_id(key.app_id) == key
    assert PartitionKey.of_app_id(f"{key.app_id}/start") is None


@given(
    history=st.lists(
        st.none()
        | st.builds(
            Stored,
            st.integers(0, 9),
            st.integers(0, 9),
            st.integers(0, 9),
            st.none() | st.integers(0, 9),
        )
    )
)
def test_transactions_tell_what_a_position_is_after_any_changes(
    history: list[Stored | None],
) -> None:
    """Only what changes is written, so each change builds on all before it."""
    transactions: dict[str, int] = {}
    before: Stored | None = None
    for after in history:
        changes = transactions_of(KEY, before, after)
        assert "g/events/0" in changes  # In each, or a conflict would go unnoticed.
        transactions |= changes
        before = after
        assert positions_of(transactions).get(KEY) == after


# --- what is written ----------------------------------------------------------------------------


def test_the_log_tells_how_many_rows_a_file_has_and_between_which_values(tmp_path: Path) -> None:
    """Readers leave out files by that, and count rows by that."""
    sink_of(tmp_path)(batch_of((0, 3, 6, 2)), 0)

    (action,) = pa.table(DeltaTable(tmp_path).get_add_actions(flatten=True)).to_pylist()
    assert action["num_records"] == 3
    assert (action["min.offset"], action["max.offset"]) == (3, 5)
    assert (action["min.name"], action["max.name"]) == ("n3", "n5")
    assert action["null_count.offset"] == 0
    assert DeltaTable(tmp_path).count() == 3


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, None, False]),
    "small": (pa.int8(), [-3, None, 7]),
    "price": (pa.decimal128(10, 2), [Decimal("1.10"), Decimal("2.50"), None]),
    "huge": (pa.decimal128(38, 0), [Decimal(10**30), Decimal(3), None]),
    "ratio": (pa.float64(), [1.5, -math.inf, 0.0]),
    "broken": (pa.float64(), [1.5, math.nan, 0.0]),
    "day": (pa.date32(), [date(2026, 1, 2), date(1969, 1, 1), None]),
    "at": (pa.timestamp("us", "Europe/Berlin"), [datetime(2026, 1, 2, 3, tzinfo=UTC), None, None]),
    "local": (pa.timestamp("us"), [datetime(2026, 1, 2, 3, 4, 5, 6), None, None]),  # noqa: DTZ001 - Of no zone.
    "text": (pa.string(), ["b" * 40, "a" * 40, None]),
    "raw": (pa.binary(), [b"x", None, None]),
    "empty": (pa.string(), [None, None, None]),
    "list": (pa.list_(pa.int32()), [[1], [2, None], None]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1)], None, []]),
    "pair": (
        pa.struct([("left", pa.int32()), ("right", pa.float64())]),
        [{"left": 4, "right": math.nan}, {"left": 2, "right": 1.0}, None],
    ),
    "last": (pa.int32(), [9, 8, 7]),
}


def every_type() -> pa.Table:
    """Return rows with a column of every type."""
    schema = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
    return pa.table({name: values for name, (_, values) in VALUES.items()}, schema)


def written_by(folder: Path, rows: pa.Table, *partition_by: str) -> list[Written]:
    """Return what a task writes of these rows."""
    writer = Writer(str(folder), {}, partition_by, "zstd", fsync=False)
    found = [batch["written"].to_pylist() for batch in writer.write(iter(rows.to_batches()))]
    return [Written(*json.loads(text)) for texts in found for text in texts]


def test_bounds_are_what_the_protocol_says_or_not_there(tmp_path: Path) -> None:
    """A wrong bound hides rows from a reader; none costs it only time."""
    (written,) = written_by(tmp_path, every_type())

    stats = json.loads(written.stats)
    assert stats["numRecords"] == written.rows == 3
    assert stats["minValues"] == {
        "small": -3,
        "price": 1.1,
        "day": "1969-01-01",
        "at": "2026-01-02T03:00:00.000000Z",
        "local": "2026-01-02T03:04:05.000006",
        "text": "a" * 32,
        "pair": {"left": 2},
        "last": 7,
        "huge": 3.0,
    }
    assert stats["maxValues"] == {
        "small": 7,
        "price": 2.5,
        "ratio": 1.5,
        "day": "2026-01-02",
        "at": "2026-01-02T03:00:00.000000Z",
        "local": "2026-01-02T03:04:05.000006",
        "text": "b" * 32 + "\U0010ffff",
        "pair": {"left": 4},
        "last": 9,
    }
    assert stats["nullCount"]["empty"] == 3
    assert stats["nullCount"]["pair"] == {"left": 1, "right": 1}
    assert "list" not in stats["nullCount"]
    assert written.bytes == (tmp_path / written.path).stat().st_size


def test_rows_of_every_type_come_back_as_they_were(tmp_path: Path) -> None:
    """The table's readers take the files as they are."""
    batch = batch_of((0, 0, 3, 1)).rows
    for name, column in zip(VALUES, every_type().columns, strict=True):
        batch = batch.append_column(name, column)
    frame: Any = Frame(batch)

    sink_of(tmp_path)(frame, 0)

    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("offset")
    for name, (_, values) in VALUES.items():
        back = found[name].to_pylist()
        assert back == values or repr(back) == repr(values), name  # NaN is never equal.


@pytest.mark.parametrize("name", ["flag", "small", "day", "at", "local", "text"])
def test_a_table_can_be_partitioned_by_any_plain_type(tmp_path: Path, name: str) -> None:
    """The protocol has a way to write each as a text."""
    kind, values = VALUES[name]
    rows = batch_of((0, 0, 3, 1)).rows.append_column(name, pa.array(values, kind))
    frame: Any = Frame(rows)

    sink_of(tmp_path, partition_by=[name])(frame, 0)

    found = DeltaTable(tmp_path).to_pyarrow_table().sort_by("offset")[name].to_pylist()
    assert found == values


def test_a_partition_value_is_written_as_the_protocol_says() -> None:
    """Other readers parse it."""
    assert partition_value("") is None
    assert partition_value(False) == "false"
    assert partition_value(datetime(2026, 1, 2, 3, tzinfo=UTC)) == "2026-01-02T03:00:00.000000Z"


def test_a_table_can_not_be_partitioned_by_floats_and_decimals() -> None:
    """Equal floats may differ; of decimals see the next test."""
    rows = StructType([StructField("a", FloatType()), StructField("b", DecimalType(10, 2))])

    with pytest.raises(SinkError, match="a column of type float"):
        check_columns(rows, ["a"])
    with pytest.raises(SinkError, match=r"a column of type decimal\(10,2\)"):
        check_columns(rows, ["b"])
    with pytest.raises(SinkError, match="names all columns"):
        check_columns(StructType(), [])


def test_the_library_misreads_decimals_as_partitions(tmp_path: Path) -> None:
    """Once it doesn't, tables can be partitioned by them."""
    prices = pa.array([Decimal("-1.10")], pa.decimal128(10, 2))

    with pytest.raises(DeltaError, match=r"'-1\.-10'"):
        write_deltalake(tmp_path, pa.table({"price": prices, "x": [1]}), partition_by=["price"])


@given(values=st.lists(st.none() | st.sampled_from("abc"), max_size=20))
def test_a_split_leaves_out_no_row(values: list[str | None]) -> None:
    """Nulls, too, belong to a partition."""
    column = pa.array(values, pa.string())
    batch = pa.RecordBatch.from_pydict({"key": column, "at": list(range(len(values)))})

    found = {
        at: each["key"] for each, rows in split(batch, ["key"]) for at in rows["at"].to_pylist()
    }

    assert found == dict(enumerate(values))


def test_a_long_task_writes_several_row_groups_and_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded; the bounds of the groups come together."""
    monkeypatch.setattr(delta_files, "ROW_GROUP_BYTES", 1)
    rows = batch_of((0, 0, 9, 1)).rows
    batches = pa.Table.from_batches(rows.to_batches(max_chunksize=2))

    (written,) = written_by(tmp_path, batches)

    metadata = pq.read_metadata(tmp_path / written.path)
    assert metadata.num_row_groups == 5
    assert json.loads(written.stats)["maxValues"]["offset"] == 8
    assert statistics(metadata, SCHEMA, set())["numRecords"] == 9


@pytest.mark.parametrize("partition_by", [(), ("partition",)])
def test_files_tell_of_all_ranges_that_a_task_has_read(
    tmp_path: Path, partition_by: tuple[str, ...]
) -> None:
    """One that is missed would look like a gap later, and its rows would be there already."""
    rows = batch_of((0, 0, 3, 1), (1, 5, 7, 2)).rows
    writer = Writer(str(tmp_path), {}, partition_by, "zstd", False, RANGE_COLUMNS)

    found = [
        Written(*json.loads(text.as_py()))
        for batch in writer.write(iter(rows.to_batches(max_chunksize=2)))
        for text in batch["written"]
    ]

    told = {tuple(one) for file in found for one in file.ranges}
    assert told == {("events", 0, 0, 3, 1), ("events", 1, 5, 7, 2)}


@pytest.mark.parametrize("fsync", [True, False])
def test_rows_and_their_commit_are_on_disk_before_the_batch_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    """The offset is committed next, and that one is on disk."""
    synced: set[int] = set()
    sync = os.fsync

    def note(fd: int) -> None:
        sync(fd)
        synced.add(os.fstat(fd).st_ino)

    sink = DeltaSink(tmp_path, "g", fsync=fsync, partition_by=["partition"])
    sink(batch_of((0, 0, 3, 1)), 0)
    monkeypatch.setattr(os, "fsync", note)
    sink(batch_of((0, 3, 6, 1)), 1)

    (newest,) = (tmp_path / "_delta_log").glob(f"{2:020d}.json")
    (action, *_) = [json.loads(x)["add"] for x in newest.read_text().splitlines() if '"add"' in x]
    file = tmp_path / action["path"]
    needed = (newest, newest.parent, file, file.parent, tmp_path)
    assert {path.stat().st_ino in synced for path in needed} == {fsync}


def test_a_checkpoint_is_on_disk_before_the_commits_that_it_replaces_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was there before isn't looked at again: a log has thousands of commits."""
    sink = DeltaSink(tmp_path, "g")
    sink(batch_of((0, 0, 3, 1)), 0)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.checkpointInterval": "5"})
    sink(batch_of((0, 3, 4, 1)), 1)
    synced: list[str] = []
    monkeypatch.setattr(delta_log, "fsync_path", lambda path: synced.append(path.name))
    before = {path.name for path in (tmp_path / "_delta_log").iterdir()}

    sink(batch_of((0, 4, 5, 1)), 2)

    written = {path.name for path in (tmp_path / "_delta_log").iterdir()} - before
    assert written == {f"{4:020d}.json", f"{4:020d}.checkpoint.parquet", "_last_checkpoint"}
    assert written <= set(synced)
    assert not before & set(synced)


# --- what can be wrong --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_arguments", "words"),
    [
        ({"group": ""}, "group is empty"),
        ({"group": "g", "files_per_batch": 0}, "files_per_batch is 0"),
        ({"group": "g", "on_gap": "ignore"}, "on_gap is 'ignore'"),
        ({"group": "g", "compression": "best"}, "compression is 'best': it must be one of zstd"),
    ],
)
def test_an_impossible_argument_is_named(
    tmp_path: Path, given_arguments: dict[str, Any], words: str
) -> None:
    """At the start of the query, not in its first batch."""
    with pytest.raises(ValueError, match=words):
        DeltaSink(tmp_path, **given_arguments)


def test_without_the_library_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the sink for databases goes on working."""
    for name in [*sys.modules]:
        if name.startswith(("client.spark.sinks", "deltalake")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    monkeypatch.setitem(sys.modules, "deltalake.fs", None)
    sinks = import_module("client.spark.sinks")

    assert sinks.SqlSink
    with pytest.raises(
        ImportError, match=r"needs deltalake: pip install 'group-coordinator\[delta"
    ):
        _ = sinks.DeltaSink


def test_files_that_stay_on_other_machines_are_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that isn't shared: rows would be gone unnoticed. So, too, after an early vacuum."""
    write = Writer.write

    def write_elsewhere(writer: Writer, batches: Iterator[Any]) -> Iterator[Any]:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        yield from write(writer._replace(uri=str(elsewhere)), batches)

    monkeypatch.setattr(Writer, "write", write_elsewhere)

    with pytest.raises(SinkError, match=r"'part-.*' is not there.*same place"):
        sink_of(tmp_path / "t")(batch_of((0, 0, 3, 1)), 0)
    assert stored(tmp_path / "t") == {}


def test_a_file_that_is_cut_off_is_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor's machine lost power, and the driver's didn't."""
    write = Writer.write

    def cut(writer: Writer, batches: Iterator[Any]) -> Iterator[Any]:
        yield from write(writer, batches)
        for file in tmp_path.glob("*.parquet"):
            os.truncate(file, 10)

    monkeypatch.setattr(Writer, "write", cut)

    with pytest.raises(SinkError, match="is not there, or is cut off"):
        sink_of(tmp_path)(batch_of((0, 0, 3, 1)), 0)
    assert stored(tmp_path) == {}


def test_a_store_that_does_not_answer_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library draws a tree of causes in color."""

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("Generic S3 error\n  \x1b[31m↳\x1b[0m refused")

    monkeypatch.setattr(delta_log, "DeltaTable", fail)

    with pytest.raises(SinkError, match=r"can't be reached: Generic S3 error refused$") as caught:
        sink_of(tmp_path)(batch_of((0, 0, 3, 1)), 0)
    assert "Traceback" not in "".join(traceback.format_exception(caught.value)).partition("\n")[2]


def test_a_table_that_is_deleted_behind_the_sinks_back_is_missed(tmp_path: Path) -> None:
    """A new one in its place would begin in the middle, without a word."""
    sink = sink_of(tmp_path / "t")
    sink(batch_of((0, 0, 3, 1)), 0)
    shutil.rmtree(tmp_path / "t")

    with pytest.raises(SinkError, match="was a Delta table, and is none any more"):
        sink(batch_of((0, 3, 5, 1)), 1)
    assert not list(tmp_path.glob("t/_delta_log/*"))


def test_a_table_that_is_deleted_while_a_batch_is_written_gets_no_commit(tmp_path: Path) -> None:
    """The commit alone would be a table without a form."""
    path = tmp_path / "t"
    sink_of(path)(batch_of((0, 0, 3, 1)), 0)

    def delete() -> float:
        shutil.rmtree(path / "_delta_log")
        return NOW_S

    with pytest.raises(SinkError, match="was a Delta table, and is none any more"):
        sink_of(path, clock=delete)(batch_of((0, 3, 5, 1)), 1)
    assert not list(path.glob("_delta_log/*"))


def test_a_table_that_is_made_anew_while_a_batch_is_written_gets_no_commit(tmp_path: Path) -> None:
    """Even if it is as many versions old: the batch would be the next one."""
    path = tmp_path / "t"
    sink_of(path)(batch_of((0, 0, 3, 1)), 0)

    def make_anew() -> float:
        shutil.rmtree(path / "_delta_log")
        sink_of(path)(batch_of((1, 0, 1, 1)), 0)
        return NOW_S

    with pytest.raises(SinkError, match="is another table than before"):
        sink_of(path, clock=make_anew)(batch_of((0, 3, 5, 1)), 1)
    assert offsets(path) == [(1, 0)]


def test_a_table_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    """Its positions are not those that this driver knows."""
    path = tmp_path / "t"
    sink = sink_of(path)
    sink(batch_of((0, 0, 3, 1)), 0)
    shutil.rmtree(path)
    for number in range(3):
        sink_of(path)(batch_of((1, number, number + 1, 1)), 0)

    with pytest.raises(SinkError, match="is another table than before"):
        sink(batch_of((0, 3, 5, 1)), 1)


def test_a_table_may_be_written_by_others_meanwhile(tmp_path: Path) -> None:
    """Rows of somebody else, and deletes: neither is a reason to lose or repeat a range."""
    sink = sink_of(tmp_path)
    sink(batch_of((0, 0, 3, 1)), 0)

    meddling = iter([True])

    def meddle() -> float:
        if not next(meddling, False):
            return NOW_S
        write_deltalake(tmp_path, batch_of((7, 0, 1, 1)).rows, mode="append")
        DeltaTable(tmp_path).delete("offset = 1")
        return NOW_S

    sink_of(tmp_path, clock=meddle)(batch_of((0, 3, 5, 1)), 1)
    sink(batch_of((0, 3, 5, 2)), 2)

    assert offsets(tmp_path) == [(0, 0), (0, 2), (0, 3), (0, 4), (7, 0)]


def test_a_table_of_another_schema_is_refused(tmp_path: Path) -> None:
    """What somebody else keeps there isn't ours to change."""
    write_deltalake(tmp_path, pa.table({"offset": ["a"], "id": [1]}))

    with pytest.raises(SinkError, match="column 'offset' is bigint, but string in"):
        sink_of(tmp_path)(batch_of((0, 0, 3, 1)), 0)
    assert DeltaTable(tmp_path).version() == 0


def test_a_column_that_must_not_be_null_is_not(tmp_path: Path) -> None:
    """The library commits files as they are."""
    strict = pa.schema([*SCHEMA, pa.field("id", pa.int64(), nullable=False)])
    DeltaTable.create(tmp_path, strict)
    batch = batch_of((0, 0, 2, 1))

    with pytest.raises(SinkError, match="have no column 'id'"):
        sink_of(tmp_path)(batch, 0)

    def with_ids(*ids: int | None) -> Any:
        return Frame(batch.rows.append_column("id", pa.array(ids, pa.int64())))

    with pytest.raises(SinkError, match="column 'id' has nulls"):
        sink_of(tmp_path)(with_ids(1, None), 0)
    sink_of(tmp_path)(with_ids(1, 2), 0)
    assert offsets(tmp_path) == [(0, 0), (0, 1)]


@pytest.mark.parametrize(
    "configuration",
    [
        {"delta.setTransactionRetentionDuration": "interval 7 days"},
        {"delta.constraints.positive": "offset >= 0"},
    ],
)
def test_a_table_that_asks_for_more_than_the_sink_does_is_refused(
    tmp_path: Path, configuration: dict[str, str]
) -> None:
    """It would write what the table's owner doesn't allow, or forget positions."""
    DeltaTable.create(tmp_path, SCHEMA)
    began_before = sink_of(tmp_path)
    began_before(batch_of((0, 0, 2, 1)), 0)
    log = tmp_path / "_delta_log"
    lines = (log / f"{0:020d}.json").read_text().splitlines()
    (changed,) = (line for line in lines if '"metaData"' in line)
    changed = changed.replace('"configuration":{}', f'"configuration":{json.dumps(configuration)}')
    (log / f"{2:020d}.json").write_text(changed)

    for sink in (sink_of(tmp_path), began_before):
        with pytest.raises(SinkError, match=f"asks for {next(iter(configuration))}"):
            sink(batch_of((0, 2, 4, 1)), 1)


@pytest.mark.parametrize("inside", [True, False])
def test_a_type_that_delta_lacks_is_named(tmp_path: Path, inside: bool) -> None:
    """Before anything is written."""
    column = pa.array([1, 2], pa.duration("us"))
    lists = pa.array([[1], [2]], pa.list_(pa.duration("us")))
    rows = batch_of((0, 0, 2, 1)).rows.append_column("for", lists if inside else column)
    frame: Any = Frame(rows)

    with pytest.raises(
        SinkError, match=r"column 'for' is .*interval.*, which Delta tables don't have"
    ):
        sink_of(tmp_path)(frame, 0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_the_release_before_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """Its rows would be hidden by the table."""
    (tmp_path / "_log").mkdir()

    with pytest.raises(SinkError, match=r"folder of a FolderSink.*CHANGELOG\.md"):
        sink_of(tmp_path)(batch_of((0, 0, 2, 1)), 0)


def test_a_commit_that_the_library_refuses_for_good_ends_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To try it again for ever would stand still without a word."""
    sink = sink_of(tmp_path)
    sink(batch_of((0, 0, 2, 1)), 0)

    def refuse(*_: Any, **__: Any) -> None:
        raise CommitFailedError("not with this writer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refuse)
    with pytest.raises(SinkError, match="refuses the batch: not with this writer"):
        sink(batch_of((0, 2, 3, 1)), 1)


# --- everything at once -------------------------------------------------------------------------


class Died(BaseException):
    """The process is gone."""


def die() -> float:
    """Be the clock of a driver that dies between its files and its commit."""
    raise Died


class TableMachine(RuleBasedStateMachine):
    """Three drivers, of which each may be interrupted anywhere, against a list of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.path = next(_folders)
        self.drivers = [sink_of(self.path) for _ in range(3)]
        self.at = 0
        self.size = 2
        self.generation = 1
        self.others = 0

    def _batch(self, generation: int) -> Any:
        return batch_of((0, self.at, self.at + self.size, generation))

    @rule(driver=st.integers(0, 2), size=st.integers(1, 3))
    def next_range(self, driver: int, size: int) -> None:
        """One driver runs the next range to its end."""
        self.size = size
        self.drivers[driver](self._batch(self.generation), 0)
        self.at += size

    @rule(driver=st.integers(0, 2), counted=st.booleans())
    def dies(self, driver: int, counted: bool) -> None:
        """One dies in the range, before or after it counts; another one runs it again."""
        if counted:
            self.drivers[driver](self._batch(self.generation), 0)
        else:
            with pytest.raises(Died):
                sink_of(self.path, clock=die)(self._batch(self.generation), 0)
        self.drivers[driver] = sink_of(self.path)
        self.generation += 1
        self.drivers[(driver + 1) % 3](self._batch(self.generation), 0)
        self.at += self.size

    @rule(driver=st.integers(0, 2), same=st.booleans())
    def races(self, driver: int, same: bool) -> None:
        """A second driver writes between the files and the commit of the first one."""
        other = self.drivers[(driver + 1) % 3]
        if same:  # A late one, whose range its new owner finishes.
            between = self._batch(self.generation + 1)
        else:
            between = batch_of((1, self.others, self.others + 1, self.generation))
            self.others += 1
        self.drivers[driver] = sink_of(self.path, clock=overtaking(between, by=other))
        self.drivers[driver](self._batch(self.generation), 0)
        self.generation += same
        self.at += self.size

    @rule(driver=st.integers(0, 2))
    def takes_over(self, driver: int) -> None:
        """The last range comes once more, in a batch with the next range of another partition."""
        if self.at:
            again = (0, self.at - self.size, self.at, self.generation)
            following = (1, self.others, self.others + 1, self.generation)
            self.drivers[driver](batch_of(again, following), 0)
            self.others += 1

    @rule(driver=st.integers(0, 2))
    def comes_again(self, driver: int) -> None:
        """The last range comes once more, from whomever."""
        if self.at:
            batch = batch_of((0, self.at - self.size, self.at, self.generation))
            self.drivers[driver](batch, 0)

    @rule(how=st.sampled_from(["optimize", "checkpoint", "vacuum"]))
    def tidied(self, how: str) -> None:
        """Upkeep runs at any time."""
        if not self.path.exists() or not self.at:
            return
        table = DeltaTable(self.path)
        if how == "optimize":
            table.optimize.compact()
        elif how == "checkpoint":
            table.create_checkpoint()
        else:
            table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    @invariant()
    def each_row_counts_once(self) -> None:
        """The promise."""
        if self.at:
            expected = [(0, at) for at in range(self.at)] + [(1, at) for at in range(self.others)]
            assert offsets(self.path) == expected


_folders: Iterator[Path]


@pytest.fixture(autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give each run of the machine a folder of its own."""
    global _folders  # noqa: PLW0603 - Hypothesis makes the machines, not pytest.
    root = tmp_path_factory.mktemp("machine")
    _folders = (root / str(number) for number in range(1_000_000))


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=20, stateful_step_count=10, deadline=None)


def test_a_conflict_of_the_same_id_fails_in_the_library_itself(tmp_path: Path) -> None:
    """What the sink builds on: a later release of the library must not change it unnoticed."""
    write_deltalake(tmp_path, pa.table({"x": [1]}))
    slow, fast, other = (DeltaTable(tmp_path) for _ in range(3))

    def commit(table: DeltaTable, *ids: str) -> None:
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction(i, 5) for i in ids]),
        )

    commit(fast, "a", "b")
    commit(other, "c", "d")
    with pytest.raises(Exception, match="Concurrent transaction failed"):
        commit(slow, "b", "e")

    table = DeltaTable(tmp_path)
    assert [table.transaction_version(name) for name in "abcde"] == [5, 5, 5, 5, None]
