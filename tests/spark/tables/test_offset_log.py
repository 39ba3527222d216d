"""The stream of changes: where it stands, what its reader asks, and what its rows lead to."""

import json
import pickle
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from client.spark.tables import offset_log
from client.spark.tables.offset_log import (
    ARROW,
    LogOffsetError,
    LogRange,
    OffsetLogSource,
    decode_positions,
    encode_positions,
    next_positions,
    ranges,
    share,
)
from tests.spark.tables.fakes import CLUSTER, FakeLog

Key = tuple[str, str, int]


class World:
    """A reader, and a sink that keeps the newest row of each partition."""

    def __init__(self, log: FakeLog, **options: str) -> None:
        self.log = log
        source = OffsetLogSource({"coordinator": "h:1", **options})
        self.reader = source.streamReader(source.schema())
        self.state: dict[int, dict[Key, int]] = {number: {} for number in log.logs}
        self.kinds: list[str] = []

    def run(self, at: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
        """Read until nothing is new, as a query does; return the last offset."""
        read_limit = ReadAllAvailable() if limit is None else ReadMaxRows(limit)
        while (end := self.reader.latestOffset(at, read_limit)) != at:
            for task in self.reader.partitions(at, end):
                for batch in self.reader.read(task):
                    self.apply(batch)
            at = end
        return at

    def apply(self, batch: pa.RecordBatch) -> None:
        """Do what docs/spark.md tells users to do."""
        assert batch.schema == ARROW
        for row in batch.to_pylist():
            state = self.state[row["offsets_partition"]]
            self.kinds.append(row["kind"])
            key = row["group"], row["topic"], row["partition"]
            match row["kind"]:
                case "snapshot begins":
                    state.clear()
                case "snapshot" | "committed":
                    state[key] = row["offset"]
                case "removed":
                    assert row["offset"] is None
                    state.pop(key, None)
                case _:
                    assert key[1:] == (None, None)
                    for gone in [known for known in state if known[0] == row["group"]]:
                        del state[gone]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """A coordinator that every reader finds."""
    fake = FakeLog()
    monkeypatch.setattr(offset_log, "client_of", lambda _: fake)
    return fake


STEP = st.tuples(
    st.sampled_from(["committed", "committed", "removed", "group deleted", "read"]),
    st.integers(0, 1),
    st.sampled_from("ab"),
    st.sampled_from("tu"),
    st.integers(0, 1),
)


@settings(deadline=None)  # The first one loads pandas.
@given(st.lists(STEP, max_size=30), st.integers(1, 5), st.booleans())
def test_the_newest_rows_are_the_state(
    steps: list[tuple[str, int, str, str, int]], limit: int, rescans: bool
) -> None:
    """From a snapshot on, however the batches fall, and whatever is compacted meanwhile."""
    log = FakeLog()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offset_log, "client_of", lambda _: log)
        world = World(log, onPositionTooOld="rescan" if rescans else "fail")
        at = world.reader.initialOffset()
        for kind, number, group, topic, partition in steps:
            if kind == "read":
                at = world.run(at, limit)
                if rescans:
                    log.compacted_below[number] = len(log.logs[number]) + 1
                    log.add(number, "committed", "x", "t", 0)
                    log.add(number, "committed", "x", "t", 1)
            elif kind == "group deleted":
                log.add(number, kind, group)
            else:
                log.add(number, kind, group, topic, partition)
        world.run(at, limit)

    assert world.state == {number: log.state(number) for number in log.logs}


def test_a_stream_can_begin_at_the_end(log: FakeLog) -> None:
    """Who keeps no state wants only what comes."""
    log.add(0, "committed", "a", "t", 0)
    world = World(log, startingOffsets="latest")
    at = world.reader.initialOffset()
    log.add(0, "committed", "b", "t", 0)
    world.run(at)

    assert world.kinds == ["committed"]
    assert world.state[0] == {("b", "t", 0): 1}


def test_a_change_is_in_one_batch_only(log: FakeLog) -> None:
    """An answer may reach beyond the end of a batch; a sink would count what is there twice."""
    log.per_answer = 10
    world = World(log, startingOffsets="latest")
    at = world.reader.initialOffset()
    for partition in range(7):
        log.add(0, "committed", "a", "t", partition)
    world.run(at, limit=3)

    assert world.kinds == ["committed"] * 7


def test_only_some_groups_and_topics_are_shown(log: FakeLog) -> None:
    """In the snapshot and after it; of a deleted group, all topics are gone."""
    for group in "ab":
        for topic in "tu":
            log.add(0, "committed", group, topic, 0)
    world = World(log, groups="a", topics="t")
    at = world.run(world.reader.initialOffset())

    assert world.state[0] == {("a", "t", 0): 0}

    log.add(0, "removed", "a", "u", 0)
    log.add(0, "group deleted", "b")
    log.add(0, "group deleted", "a")
    world.kinds.clear()
    world.run(at)

    assert world.kinds == ["group deleted"]
    assert world.state[0] == {}


def test_positions_that_are_gone_fail_the_query_and_say_what_to_do(log: FakeLog) -> None:
    """A gap that nobody is told of would be for ever."""
    world = World(log)
    log.add(1, "committed", "a", "t", 0)
    at = world.run(world.reader.initialOffset())
    log.add(1, "committed", "a", "t", 0)
    log.compacted_below[1] = 2

    with pytest.raises(LogOffsetError, match="set option 'onPositionTooOld' to 'rescan'"):
        world.run(at)


def test_available_now_ends_where_the_log_ended_at_its_start(log: FakeLog) -> None:
    """Else a busy coordinator would keep it for ever."""
    log.add(0, "committed", "a", "t", 0)
    world = World(log)
    at = world.reader.initialOffset()
    world.reader.prepareForTriggerAvailableNow()
    log.add(0, "committed", "b", "t", 0)
    at = world.run(at)

    assert at["0"] == 1


def test_nothing_new_is_the_same_offset_and_asks_only_for_the_ends(log: FakeLog) -> None:
    """Spark makes no batch then, and the coordinator has next to nothing to do."""
    world = World(log)
    at = world.run(world.reader.initialOffset())
    log.asked.clear()

    assert world.reader.latestOffset(at, ReadAllAvailable()) == at
    assert log.asked == []
    assert world.reader.reportLatestOffset() == at


def test_a_checkpoint_of_another_coordinator_is_refused(log: FakeLog) -> None:
    """Also of the same one with its data folder made anew."""
    world = World(log)
    at = world.reader.initialOffset()
    assert at["@"] == {"v": 1, "cluster_id": CLUSTER}
    log.logs[2] = []

    with pytest.raises(LogOffsetError, match="has 2 offsets partitions, the coordinator 3"):
        world.reader.latestOffset(at, ReadAllAvailable())

    log.cluster_id = "c2"

    with pytest.raises(LogOffsetError, match="use a new checkpoint"):
        world.reader.latestOffset(at, ReadAllAvailable())


def test_what_is_pickled_for_executors_is_the_options(log: FakeLog) -> None:
    """A reader that has run may be planned again."""
    world = World(log)
    world.reader.prepareForTriggerAvailableNow()
    world.run(world.reader.initialOffset())

    assert pickle.dumps(world.reader) == pickle.dumps(World(log).reader)
    assert world.reader.getDefaultReadLimit() == ReadMaxRows(500_000)


def test_a_log_that_lost_its_end_is_reported(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for ever would look like an idle query."""
    log.add(0, "committed", "a", "t", 0)
    world = World(log, startingOffsets="latest", coordinatorTimeout="200ms")
    at = world.reader.initialOffset()
    log.add(0, "committed", "a", "t", 0)
    end = world.reader.latestOffset(at, ReadAllAvailable())
    (task,) = world.reader.partitions(at, end)
    log.logs[0].pop()
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)

    with pytest.raises(LogOffsetError, match="has lost the end of its log"):
        list(world.reader.read(task))

    assert sum(slept) == pytest.approx(0.2)


POSITIONS = st.dictionaries(st.integers(0, 49), st.integers(-1, 2**62), max_size=5)


@given(POSITIONS)
def test_an_offset_comes_back_from_the_checkpoint_as_it_was(positions: dict[int, int]) -> None:
    """Spark keeps it as JSON."""
    offset = json.loads(json.dumps(encode_positions(positions, "c1")))

    assert decode_positions(offset, "c1") == positions


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"0": 1}, "did not write"),
        ({"flights": {"0": 20}}, "did not write"),
        ({"@": {"v": 1, "cluster_id": "c1"}, "0": "1"}, "did not write"),
        ({"@": {"v": 1, "cluster_id": "c1"}, "x": 1}, "did not write"),
        ({"@": {"v": 1, "cluster_id": "c1"}, "0": -2}, "did not write"),
        ({"@": {"v": 2, "cluster_id": "c1"}}, "format version 2, this release reads version 1"),
        ({"@": {"v": 1, "cluster_id": "c9"}}, "cluster id 'c9', option 'coordinator' names"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(offset: dict[str, object], message: str) -> None:
    """Positions of another log would skip changes without a word."""
    with pytest.raises(LogOffsetError, match=message):
        decode_positions(offset, "c1")


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 1_000), max_size=10),
    st.none() | st.integers(1, 5_000),
)
def test_a_limit_is_shared_fairly(waiting: dict[int, int], limit: int | None) -> None:
    """Nobody starves, nothing is left over while somebody waits, and the large pay for it."""
    given_ = share(waiting, limit)
    behind = {number for number, count in waiting.items() if count > 0}

    assert given_.keys() == behind
    assert all(1 <= given_[number] <= waiting[number] for number in given_)
    if limit is None or sum(waiting.values()) <= limit:
        assert given_ == {number: waiting[number] for number in behind}
    elif limit >= len(behind):
        assert sum(given_.values()) == limit
    cut = [given_[number] for number in given_ if given_[number] < waiting[number]]
    assert max(cut, default=0) - min(cut, default=0) <= 1
    assert all(given_[number] <= min(cut, default=10**9) + 1 for number in given_) or not cut


@given(
    st.dictionaries(st.integers(0, 4), st.tuples(st.integers(-1, 100), st.integers(0, 300))),
    st.integers(1, 50),
)
def test_batches_follow_each_other_without_a_gap(
    logs: dict[int, tuple[int, int]], limit: int
) -> None:
    """Every position up to the end is in exactly one batch, after one snapshot at most."""
    at = {number: min(start, end) for number, (start, end) in logs.items()}
    ends = {number: end for number, (_, end) in logs.items()}
    taken: list[LogRange] = []
    while True:
        following = next_positions(at, ends, limit, rescans=False)
        if following == at:
            break
        batch = ranges(at, following)
        changes = [one for one in batch if not one.is_snapshot]
        assert sum(one.end - one.start for one in changes) <= max(limit, len(changes))
        taken += batch
        at = following

    assert at == ends
    for number, (start, end) in logs.items():
        mine = [one for one in taken if one.number == number]
        edges = [one.start for one in mine] + [end]
        assert [one.end for one in mine] == edges[1:]
        assert edges[0] == min(start, end)


def test_a_log_that_ends_before_the_checkpoint_was_restored() -> None:
    """Its positions mean other changes now: said, or begun anew, never read on."""
    with pytest.raises(LogOffsetError, match=r"partition 3 ends at 5, before .* position 9"):
        next_positions({3: 9}, {3: 5}, None, rescans=False)

    again = next_positions({3: 9, 4: 1}, {3: 5, 4: 2}, None, rescans=True)

    assert again == {3: -1, 4: 2}
    assert ranges({3: 9, 4: 1}, again) == [LogRange(4, 1, 2)]
    assert ranges(again, next_positions(again, {3: 5, 4: 2}, None, rescans=True)) == [
        LogRange(3, -1, 5)
    ]
