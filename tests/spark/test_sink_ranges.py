"""What a sink makes of a range."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from client.spark import FolderLogWriter
from client.spark.logs.folder import FolderLog
from client.spark.sinks.ranges import (
    PartitionKey,
    Policy,
    SinkError,
    SinkRange,
    Stored,
    Verdict,
    checked_policy,
    decide,
    each_range,
    ranges_of,
)
from tests.fakes.frames import Frame, batch_of

KEY = PartitionKey("g", "events", 0)
STRICT = Policy()
SCHEMA = pa.schema([("id", pa.int64())])


def one(start: int, end: int, generation: int = 5) -> SinkRange:
    """Return a range of the partition that these tests use."""
    return SinkRange("events", 0, start, end, generation)


@pytest.mark.parametrize(
    ("stored", "given_range", "verdict"),
    [
        (None, one(40, 50), Verdict.WRITE),
        (Stored(0, 40, 5), one(40, 50), Verdict.WRITE),
        (Stored(0, 40, 7), one(40, 50, 5), Verdict.WRITE),  # Planned before, pinned, not done yet.
        (Stored(40, 50, 5), one(40, 50, 6), Verdict.REPEAT),
        (Stored(40, 50, 6), one(40, 50, 5), Verdict.REPEAT),
        (Stored(40, 50, 6), one(20, 30, 5), Verdict.LATE),
        (Stored(40, 50, 6, late_end=10), one(20, 30, 5), Verdict.LATE),
    ],
)
def test_a_range_is_known_by_its_bounds_and_its_generation(
    stored: Stored | None, given_range: SinkRange, verdict: Verdict
) -> None:
    """A row comes here again after any crash; none may be in the sink twice."""
    decision = decide(KEY, given_range, stored, STRICT)

    assert decision.verdict is verdict
    if verdict is Verdict.WRITE:
        newest = max(given_range.generation, 0 if stored is None else stored.generation)
        assert decision.after == Stored(40, 50, newest)


@pytest.mark.parametrize(
    ("stored", "given_range"),
    [
        (Stored(40, 50, 5), one(20, 30, 5)),  # The group's offsets were set back.
        (Stored(40, 50, 5), one(20, 60, 6)),
        (Stored(40, 50, 5), one(45, 60, 4)),
        (Stored(40, 50, 5), one(30, 50, 5)),  # It ends as the last one, but is another one.
        (Stored(40, 50, 6, late_end=20), one(20, 30, 1)),  # The second of a group made anew.
    ],
)
def test_rows_that_come_again_for_no_known_reason_are_refused(
    stored: Stored, given_range: SinkRange
) -> None:
    """To skip them in silence would lose the rows of a log that was made anew."""
    with pytest.raises(SinkError, match=r"events-0 of group 'g'.*forget\(\).*on_reset"):
        decide(KEY, given_range, stored, STRICT)


def test_on_reset_skip_writes_only_what_the_sink_lacks() -> None:
    """A range that reaches over the sink's position holds old rows and new ones."""
    policy = Policy(on_reset="skip")
    stored = Stored(40, 50, 5)

    assert decide(KEY, one(20, 30), stored, policy).verdict is Verdict.REPEAT
    assert decide(KEY, one(45, 60), stored, policy).from_offset == 50
    assert decide(KEY, one(45, 60), stored, policy).after == Stored(45, 60, 5)


def test_on_reset_append_goes_on_from_where_the_group_is() -> None:
    """The next range has to follow the one that was appended, not the older ones."""
    decision = decide(KEY, one(20, 30), Stored(40, 50, 5), Policy(on_reset="append"))

    assert decision.from_offset == 20
    assert decide(KEY, one(30, 40), decision.after, STRICT).verdict is Verdict.WRITE


def test_offsets_without_rows_are_no_gap(tmp_path: Path) -> None:
    """Markers of transactions have offsets in Kafka; no range of nothing else comes to a sink."""
    FolderLogWriter.create(tmp_path, "events", SCHEMA, 1).close()
    with FolderLogWriter(tmp_path, "events") as writer:
        writer.append(0, pa.table({"id": list(range(45))}, SCHEMA))
    named = f"{__name__}:{WithGaps.__name__}"
    policy = checked_policy("error", "error", {"log": named, "Path": str(tmp_path)})

    assert decide(KEY, one(40, 42), Stored(0, 30, 5), policy).verdict is Verdict.WRITE
    with pytest.raises(SinkError, match=r"as Kafka's have .*log="):
        decide(KEY, one(41, 42), Stored(0, 30, 5), policy)  # There is a row at 40.
    with pytest.raises(SinkError, match=r"as Kafka's have .*log="):
        decide(KEY, one(60, 62), Stored(0, 50, 5), policy)  # That can't be read any more.
    copy = pickle.loads(pickle.dumps(policy))
    assert decide(KEY, one(40, 42), Stored(0, 30, 5), copy).verdict is Verdict.WRITE


class WithGaps(FolderLog):
    """A log without rows from 30 to 39."""

    dense_offsets = False

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Leave them out."""
        if start < 30:
            yield from super().read(topic, partition, start, min(end, 30))
        if end > 40:
            yield from super().read(topic, partition, max(start, 40), end)


def test_a_gap_is_refused_unless_it_is_accepted() -> None:
    """Rows that are nowhere should be somebody's decision."""
    stored = Stored(0, 40, 5)

    with pytest.raises(SinkError, match=r"up to 40 only.*on_gap='accept'"):
        decide(KEY, one(50, 60), stored, STRICT)
    accepted = decide(KEY, one(50, 60), stored, Policy(on_gap="accept"))
    assert accepted.after == Stored(50, 60, 5)


def test_an_unknown_policy_is_named() -> None:
    """A typing error must not mean the default."""
    with pytest.raises(ValueError, match="on_reset is 'replace': it must be one of error, skip"):
        checked_policy("error", "replace")


@settings(max_examples=200)
@given(data=st.data())
def test_whoever_brings_the_pinned_ranges_each_row_is_written_once(data: st.DataObject) -> None:
    """Ranges come in order, each begun by members of rising generations, and late ones come again.

    Only a late one may fail.
    """
    stored: Stored | None = None
    at, generation = 0, 1
    written: list[int] = []
    late: list[SinkRange] = []
    for _ in range(data.draw(st.integers(1, 8), "ranges")):
        size = data.draw(st.integers(1, 4), "size")
        for _ in range(data.draw(st.integers(0, 2), "members lost in this range")):
            late.append(one(at, at + size, generation))
            if data.draw(st.booleans(), "it had written"):
                stored = _take(late[-1], stored, written)
            generation += data.draw(st.integers(1, 2))
        stored = _take(one(at, at + size, generation), stored, written)
        at += size
        while late:
            if not data.draw(st.booleans(), "a late one wakes"):
                break
            woken = late.pop(data.draw(st.integers(0, len(late) - 1)))
            try:
                stored = _take(woken, stored, written)
            except SinkError:
                assert woken.generation < generation

    assert written == list(range(at))
    assert stored is not None
    assert stored.end == at


def _take(given_range: SinkRange, stored: Stored | None, written: list[int]) -> Stored:
    decision = decide(KEY, given_range, stored, STRICT)
    if decision.verdict is Verdict.WRITE:
        written.extend(range(decision.from_offset, given_range.end))
    return decision.after


def test_the_ranges_of_a_batch_are_found_once_each() -> None:
    """They are the key under which the sink knows the rows."""
    batch = batch_of((1, 5, 8, 2), (0, 0, 3, 2))

    assert ranges_of(batch) == [one(0, 3, 2), SinkRange("events", 1, 5, 8, 2)]


def test_a_batch_without_the_range_columns_is_refused_with_the_way_out() -> None:
    """A projection before the sink is the usual mistake."""
    with pytest.raises(SinkError, match=r"no column 'range_end', 'generation'.*transform="):
        ranges_of(batch_of((0, 0, 1, 1)).select("topic", "partition", "offset", "range_start"))


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(0, 0, 5, 1), (0, 5, 9, 1)], "two ranges of events-0"),
        ([(0, -2, 5, 1)], "don't change its columns"),
        ([(0, 0, 5, None)], "don't change its columns"),
    ],
)
def test_ranges_that_no_batch_can_have_are_refused(ranges: list[Any], words: str) -> None:
    """A union of two groups' sources would mix up their positions."""
    with pytest.raises(SinkError, match=words):
        ranges_of(batch_of(*ranges))


def test_a_sink_of_ones_own_gets_the_ranges_with_their_rows_and_keys() -> None:
    """For databases that know idempotent writes, and for Delta tables."""
    batch = batch_of((0, 3, 5, 2), (1, 0, 2, 2))

    given_ranges = list(each_range(batch, "g"))

    assert [each.key for each in given_ranges] == ["g/events/0/5", "g/events/1/2"]
    assert given_ranges[0].delta_options() == {"txnAppId": "g/events/0", "txnVersion": "5"}
    rows = given_ranges[0].rows
    assert isinstance(rows, Frame)
    assert rows.select("offset").collect() == [(3,), (4,)]
    assert not batch.storageLevel.useMemory
