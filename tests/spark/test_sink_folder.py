"""The folder sink and its manifest, with Parquet files but without Spark."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from client.spark.sinks import FolderSink, SinkError, history, live_files, positions, vacuum
from client.spark.sinks.manifest import (
    SNAPSHOT_EVERY,
    Change,
    DataFile,
    Manifest,
    State,
    decode_state,
    encode,
)
from client.spark.sinks.ranges import PartitionKey, Stored
from client.spark.sinks.table import small_groups
from tests.fakes.frames import Frame, Writer, batch_of, folder_offsets

KEY = PartitionKey("g", "events", 0)


class Clock:
    """Time that the test moves."""

    def __init__(self) -> None:
        self.now_s = 2_000_000_000.0  # After any file that a test makes.

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


def change(at: int, **given: object) -> Change:
    """Return a change that moves the partition to *at*."""
    positions_given = {KEY: Stored(at - 1, at, 1)}
    return Change(kind="append", at_ms=at, positions=positions_given, **given)  # type: ignore[arg-type]  # A test's short cut.


def test_of_two_changes_on_the_same_version_one_is_refused(tmp_path: Path) -> None:
    """Each change was decided on the state right before it; that must stay true."""
    one, two = Manifest(tmp_path), Manifest(tmp_path)
    state = one.load()

    first = one.commit(state, change(1))

    assert first is not None
    assert two.commit(state, change(2)) is None
    assert two.refresh(state) == first
    assert two.commit(first, change(2)) is not None


def test_a_writer_that_slept_while_the_log_was_emptied_is_refused_too(tmp_path: Path) -> None:
    """Else its change would be a version of its own, and the folder had two truths."""
    manifest = Manifest(tmp_path, fsync=False)
    asleep = state = manifest.load()
    for at in range(1, SNAPSHOT_EVERY + 5):
        following = manifest.commit(state, change(at))
        assert following is not None
        state = following
    manifest.write_snapshot(state)
    manifest.empty_before(state.version, before_s=2_000_000_000)

    assert manifest.commit(asleep, change(1)) is None
    assert manifest.refresh(asleep) == state
    assert Manifest(tmp_path).load() == state
    with pytest.raises(SinkError, match="no version 3 any more: it was vacuumed"):
        manifest.load(3)


def test_every_version_can_be_loaded_with_and_without_snapshots(tmp_path: Path) -> None:
    """A reader must see the same whichever way it comes to it."""
    manifest = Manifest(tmp_path, fsync=False)
    states = [manifest.load()]
    for at in range(1, 2 * SNAPSHOT_EVERY + 3):
        following = manifest.commit(states[-1], change(at, add={f"f{at}": DataFile(at, 1)}))
        assert following is not None
        states.append(following)

    for version in (1, SNAPSHOT_EVERY - 1, SNAPSHOT_EVERY, SNAPSHOT_EVERY + 1, len(states) - 1):
        assert manifest.load(version) == states[version]
    assert decode_state(encode(states[-1])) == states[-1]
    with pytest.raises(SinkError, match=f"no version {len(states)}$"):
        manifest.load(len(states))


def test_a_manifest_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    """To guess what it means could lose rows."""
    manifest = Manifest(tmp_path)
    manifest.commit(manifest.load(), change(1))
    (file,) = (tmp_path / "_log").glob("*.json")
    file.write_text(file.read_text().replace('"v":1', '"v":2'))

    with pytest.raises(SinkError, match="format version 2, this release reads version 1"):
        manifest.load()


def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise rests on them."""

    def refuse(_source: object, _target: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    manifest = Manifest(tmp_path)

    with pytest.raises(SinkError, match="without hard links"):
        manifest.commit(manifest.load(), change(1))
    assert list((tmp_path / "_log").iterdir()) == []


def test_a_change_whose_answer_was_lost_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS sends a request again; taken for somebody else's change, its files would be deleted."""
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    FolderSink(tmp_path, group="g")(batch_of((0, 0, 3, 1)), 0)

    assert sorted(folder_offsets(live_files(tmp_path))) == [(0, 0), (0, 1), (0, 2)]
    assert len(history(tmp_path)) == 1


def test_a_snapshot_that_comes_late_hides_none_that_is_newer(tmp_path: Path) -> None:
    """A driver may sleep between its change and its snapshot, while the log is emptied."""
    manifest = Manifest(tmp_path, fsync=False)
    states = [manifest.load()]
    for at in range(1, 2 * SNAPSHOT_EVERY + 3):
        following = manifest.commit(states[-1], change(at))
        assert following is not None
        states.append(following)
    newest = states[-1]
    manifest.write_snapshot(newest)
    manifest.empty_before(newest.version, before_s=2_000_000_000)

    manifest.write_snapshot(states[SNAPSHOT_EVERY])

    assert Manifest(tmp_path).load() == newest
    following = manifest.commit(newest, change(newest.version + 1))
    assert manifest.load(newest.version) == newest
    assert manifest.load(newest.version + 1) == following


def test_a_sink_remembers_ranges_over_restarts_and_drivers(tmp_path: Path) -> None:
    """Another driver knows nothing but the folder."""
    FolderSink(tmp_path, group="g")(batch_of((0, 0, 3, 1), (1, 5, 7, 1)), 0)
    FolderSink(tmp_path, group="g")(batch_of((0, 3, 6, 2), (1, 5, 7, 2)), 0)
    FolderSink(tmp_path, group="g")(batch_of((0, 0, 3, 1)), 1)
    FolderSink(tmp_path, group="other")(batch_of((0, 0, 3, 1)), 1)

    assert Counter(folder_offsets(live_files(tmp_path))) == Counter(
        [(0, 0), (0, 1), (0, 2), *((0, at) for at in range(6)), (1, 5), (1, 6)]
    )
    assert positions(tmp_path)[KEY] == Stored(3, 6, 2, late_end=3)
    assert [version.rows for version in history(tmp_path)] == [3, 0, 3, 5]


@pytest.mark.parametrize("lost", ["all", "some"])
def test_files_that_stay_on_other_machines_are_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """A folder that isn't shared, or another default file system: rows would be gone unnoticed."""
    write = Writer.parquet

    def write_elsewhere(writer: Writer, path: str) -> None:
        assert path.startswith("file:///")
        if lost == "some":
            write(Writer(writer.rows.slice(1)), path)

    monkeypatch.setattr(Writer, "parquet", write_elsewhere)

    with pytest.raises(SinkError, match=r"(no file|2 of 3 rows) can be found .* shared"):
        FolderSink(tmp_path, group="g")(batch_of((0, 0, 3, 1)), 0)
    assert positions(tmp_path) == {}


def test_a_batch_whose_rows_are_all_dropped_still_moves_the_position(tmp_path: Path) -> None:
    """Else the next range would look like a gap."""
    sink = FolderSink(tmp_path, group="g", transform=_nothing)

    sink(batch_of((0, 0, 3, 1)), 0)
    sink(batch_of((0, 3, 5, 1)), 1)

    assert positions(tmp_path)[KEY].end == 5
    assert live_files(tmp_path) == []


def _nothing(rows: Any) -> Any:
    return Frame(rows.rows.slice(0, 0))


def test_of_two_drivers_with_the_same_range_the_late_one_adds_no_rows(tmp_path: Path) -> None:
    """It decided on a position that is not true any more when its files are there."""
    owner = FolderSink(tmp_path, group="g", fsync=False)
    owner(batch_of((0, 0, 1, 1)), 0)
    following = iter([batch_of((0, 1, 3, 2))])

    def overtake() -> float:
        # A driver asks for the time when its files are staged.
        for batch in following:
            owner(batch, 1)
        return 2_000_000_000

    late = FolderSink(tmp_path, group="g", fsync=False, clock=overtake)
    late(batch_of((0, 1, 3, 1)), 1)

    assert list(following) == []
    assert sorted(folder_offsets(live_files(tmp_path))) == [(0, 0), (0, 1), (0, 2)]


def test_forget_lets_rows_be_written_once_more(tmp_path: Path) -> None:
    """After a reset that is meant."""
    sink = FolderSink(tmp_path, group="g")
    sink(batch_of((0, 0, 3, 4), (1, 0, 2, 4)), 0)
    with pytest.raises(SinkError, match=r"forget\(\)"):
        sink(batch_of((0, 0, 2, 4)), 1)

    assert sink.forget("events", 0) == 1
    sink(batch_of((0, 0, 2, 4)), 1)

    assert {key.partition: end for key, end in sink.positions().items()} == {0: 2, 1: 2}
    assert sink.forget("unknown") == 0


def test_columns_may_grow_if_that_is_wanted_and_never_change(tmp_path: Path) -> None:
    """A reader of years of files needs one schema for all."""
    FolderSink(tmp_path, group="g")(batch_of((0, 0, 3, 1)).select(*COLUMNS), 0)
    wider = batch_of((0, 3, 5, 1))

    with pytest.raises(SinkError, match="has no column 'name'; set merge_schema=True"):
        FolderSink(tmp_path, group="g")(wider, 1)
    FolderSink(tmp_path, group="g", merge_schema=True)(wider, 1)
    rows = batch_of((0, 5, 9, 1)).rows
    other: Any = Frame(rows.set_column(3, "name", rows["offset"]))
    with pytest.raises(SinkError, match="column 'name' is bigint, but string in"):
        FolderSink(tmp_path, group="g", merge_schema=True)(other, 1)
    with pytest.raises(SinkError, match="partition_by is"):
        FolderSink(tmp_path, group="g", partition_by=["name"], on_gap="accept")(
            batch_of((0, 8, 9, 1)), 2
        )


COLUMNS = ("topic", "partition", "offset", "range_start", "range_end", "generation")


def test_sub_folders_are_made_as_told(tmp_path: Path) -> None:
    """So that readers can leave out what they don't need."""
    FolderSink(tmp_path, group="g", partition_by=["topic", "partition"])(
        batch_of((0, 0, 3, 1), (1, 0, 2, 1)), 0
    )

    folders = {file.relative_to(tmp_path).parent.as_posix() for file in live_files(tmp_path)}
    assert folders == {"topic=events/partition=0", "topic=events/partition=1"}
    with pytest.raises(SinkError, match="partition_by names columns that the rows lack"):
        FolderSink(tmp_path / "b", group="g", partition_by=["day"])(batch_of((0, 0, 3, 1)), 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"group": ""}, "group is empty"),
        ({"group": "g", "files_per_batch": 0}, "files_per_batch is 0"),
        ({"group": "g", "on_gap": "ignore"}, "on_gap is 'ignore'"),
    ],
)
def test_an_impossible_argument_is_named(
    tmp_path: Path, given: dict[str, object], words: str
) -> None:
    """At the start of the query, not in its first batch."""
    with pytest.raises(ValueError, match=words):
        FolderSink(tmp_path, **given)  # type: ignore[arg-type]  # That is the point.


def test_vacuum_deletes_what_no_version_counts_and_only_when_it_is_old(tmp_path: Path) -> None:
    """Crashes leave files; files of a batch that is being written look the same."""
    clock = Clock()
    FolderSink(tmp_path, group="g", clock=clock)(batch_of((0, 0, 3, 1)), 0)
    orphan = tmp_path / "part-orphan.parquet"
    orphan.write_bytes(b"left by a crash")
    staged = tmp_path / "_staging" / "dead" / "part-0.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"left by a crash")
    (staged.parent / "_SUCCESS").touch()
    young_s = orphan.stat().st_ctime

    clock.now_s = young_s + 60
    assert vacuum(tmp_path, clock=clock).files == 0
    clock.now_s = young_s + timedelta(days=8).total_seconds()
    assert vacuum(tmp_path, clock=clock) == (2, 30)

    assert not orphan.exists()
    assert not staged.parent.exists()
    assert sorted(folder_offsets(live_files(tmp_path))) == [(0, 0), (0, 1), (0, 2)]
    FolderSink(tmp_path, group="g", clock=clock)(batch_of((0, 3, 4, 1)), 1)
    assert positions(tmp_path)[KEY].end == 4
    with pytest.raises(ValueError, match="at least 1:00:00"):
        vacuum(tmp_path, older_than=timedelta(minutes=1))


def test_vacuum_bears_files_that_drivers_move_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged files and their folders vanish as soon as a batch is finished."""
    clock = Clock()
    FolderSink(tmp_path, group="g", clock=clock)(batch_of((0, 0, 3, 1)), 0)
    staged = tmp_path / "_staging" / "busy" / "part-0.parquet"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"of a batch that is being written")
    load = Manifest.load

    def move_then_load(manifest: Manifest, version: int | None = None) -> State:
        shutil.rmtree(staged.parent)
        return load(manifest, version)

    monkeypatch.setattr(Manifest, "load", move_then_load)

    assert vacuum(tmp_path, clock=clock).files == 0


def test_vacuum_keeps_what_was_just_compacted(tmp_path: Path) -> None:
    """A reader that began before goes on with the old files."""
    clock = Clock()
    FolderSink(tmp_path, group="g", clock=clock)(batch_of((0, 0, 3, 1)), 0)
    old = live_files(tmp_path)
    manifest = Manifest(tmp_path)
    compacted = Change(
        kind="compact",
        at_ms=int(clock.now_s * 1000),
        remove=tuple(file.relative_to(tmp_path).as_posix() for file in old),
    )
    manifest.commit(manifest.load(), compacted)

    clock.now_s += timedelta(days=6).total_seconds()
    assert vacuum(tmp_path, clock=clock).files == 0
    assert all(file.exists() for file in old)

    clock.now_s += timedelta(days=2).total_seconds()
    assert vacuum(tmp_path, clock=clock).files == len(old)
    assert not any(file.exists() for file in old)


@pytest.mark.parametrize("fsync", [True, False])
def test_rows_and_their_change_are_on_disk_before_they_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    """A change that outlives a power cut without its rows, or half of it, would lose them."""
    synced: set[int] = set()
    counted: list[bool] = []
    sync, link = os.fsync, os.link

    def note_sync(fd: int) -> None:
        sync(fd)
        synced.add(os.fstat(fd).st_ino)

    def note_link(change: Path, name: Path) -> None:
        rows = list(tmp_path.glob("part-*.parquet"))
        assert rows
        counted.extend(path.stat().st_ino in synced for path in (change, tmp_path, *rows))
        link(change, name)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "link", note_link)
    FolderSink(tmp_path, group="g", fsync=fsync)(batch_of((0, 0, 3, 1)), 0)

    assert set(counted) == {fsync}


def test_small_files_of_one_sub_folder_are_put_together() -> None:
    """A file per range and batch is too many after a day."""
    sizes = {"a/1": 40, "a/2": 40, "a/3": 30, "a/4": 49, "a/big": 60, "b/1": 1, "c/1": 9, "c/2": 9}
    state = State(files={name: DataFile(1, size) for name, size in sizes.items()})

    assert list(small_groups(state, target_bytes=100)) == [
        ["a/1", "a/2"],
        ["a/3", "a/4"],
        ["c/1", "c/2"],
    ]


class FolderMachine(RuleBasedStateMachine):
    """Three drivers, of which each may be interrupted anywhere, against a list of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = _folders.__next__()
        self.clock = Clock()
        self.drivers = [self._driver() for _ in range(3)]
        self.at = 0
        self.size = 2
        self.generation = 1

    def _driver(self, clock: Callable[[], float] | None = None) -> FolderSink:
        return FolderSink(self.folder, group="g", fsync=False, clock=clock or self.clock)

    @rule(driver=st.integers(0, 2), size=st.integers(1, 3))
    def next_range(self, driver: int, size: int) -> None:
        """One driver runs the next range to its end."""
        self.size = size
        self.drivers[driver](batch_of((0, self.at, self.at + size, self.generation)), 0)
        self.at += size

    @rule(driver=st.integers(0, 2), lost=st.sampled_from(["staged", "counted"]))
    def dies(self, driver: int, lost: str) -> None:
        """One dies in the range, before or after it counts; another one runs it again."""
        batch = batch_of((0, self.at, self.at + self.size, self.generation))
        if lost == "counted":
            self.drivers[driver](batch, 0)
        else:
            with pytest.raises(Died):
                self._driver(clock=_die)(batch, 0)
        self.drivers[driver] = self._driver()
        self.generation += 1
        self.drivers[(driver + 1) % 3](
            batch_of((0, self.at, self.at + self.size, self.generation)), 0
        )
        self.at += self.size

    @rule(driver=st.integers(0, 2))
    def races(self, driver: int) -> None:
        """A late one has staged the range when its new owner finishes it."""
        owner = self.drivers[(driver + 1) % 3]
        start, end = self.at, self.at + self.size
        overtaken: list[bool] = []

        def overtake() -> float:
            # A driver asks for the time when its files are staged: the worst moment.
            if not overtaken:
                overtaken.append(True)
                owner(batch_of((0, start, end, self.generation + 1)), 0)
            return self.clock()

        self.drivers[driver] = self._driver(clock=overtake)
        self.drivers[driver](batch_of((0, start, end, self.generation)), 0)
        assert overtaken
        self.generation += 1
        self.at = end

    @rule()
    def vacuumed(self) -> None:
        """Upkeep runs at any time."""
        self.clock.now_s += timedelta(days=8).total_seconds()
        vacuum(self.folder, fsync=False, clock=self.clock)

    @invariant()
    def each_row_counts_once(self) -> None:
        """The promise."""
        assert sorted(folder_offsets(live_files(self.folder))) == [(0, at) for at in range(self.at)]


class Died(BaseException):
    """The process is gone."""


def _die() -> float:
    raise Died


_folders: Iterator[Path]


@pytest.fixture(autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give each run of the machine a folder of its own."""
    global _folders  # noqa: PLW0603 - Hypothesis makes the machines, not pytest.
    root = tmp_path_factory.mktemp("machine")
    _folders = (root / str(number) for number in range(1_000_000))


TestFolderMachine = FolderMachine.TestCase
TestFolderMachine.settings = settings(max_examples=25, stateful_step_count=12)
